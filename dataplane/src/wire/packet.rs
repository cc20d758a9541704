//! A whole frame, taken apart and put together.

use super::{
    Ethernet, Ipv4, Ipv6, Reader, Roce, Udp, WireError, ETHERTYPE_IPV4, ETHERTYPE_IPV6,
    IP_PROTO_UDP, ROCE_UDP_PORT,
};

/// The network layer of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Network {
    Ipv4(Ipv4),
    Ipv6(Ipv6),
}

/// What an Ethernet frame carries, as far as it is understood here.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, clippy::large_enum_variant)]
pub enum Payload<'a> {
    /// RoCEv2: IP, UDP to port 4791, the InfiniBand transport.
    Roce {
        network: Network,
        udp: Udp,
        roce: Roce<'a>,
    },
    /// Any other frame, passed through as it is.
    Other(&'a [u8]),
}

/// A frame, field by field.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Packet<'a> {
    pub ethernet: Ethernet,
    pub payload: Payload<'a>,
    /// Ethernet padding behind the IP packet.
    pub trailer: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Takes a frame (without its check sequence) apart.
    ///
    /// # Errors
    /// [`WireError`] where a header is cut short or contradicts the frame.
    pub fn parse(frame: &'a [u8]) -> Result<Packet<'a>, WireError> {
        let mut r = Reader::new(frame);
        let ethernet = Ethernet::read(&mut r)?;
        let rest = r.rest();
        let (network, header_bytes, packet_bytes, protocol) = match ethernet.ethertype {
            ETHERTYPE_IPV4 => {
                let header = Ipv4::read(&mut r)?;
                let sizes = (header.header_bytes(), usize::from(header.total_bytes));
                let protocol = header.protocol;
                (Network::Ipv4(header), sizes.0, sizes.1, protocol)
            }
            ETHERTYPE_IPV6 => {
                let header = Ipv6::read(&mut r)?;
                let packet_bytes = 40 + usize::from(header.payload_bytes);
                let protocol = header.next_header;
                (Network::Ipv6(header), 40, packet_bytes, protocol)
            }
            _ => {
                return Ok(Packet {
                    ethernet,
                    payload: Payload::Other(rest),
                    trailer: &[],
                })
            }
        };
        let (packet, trailer) = rest
            .split_at_checked(packet_bytes)
            .ok_or(WireError::BadLength("IP header"))?;
        let mut r = Reader::new(&packet[header_bytes..]);
        if protocol != IP_PROTO_UDP {
            return Ok(Packet {
                ethernet,
                payload: Payload::Other(packet),
                trailer,
            });
        }
        let udp = Udp::read(&mut r)?;
        if usize::from(udp.length_bytes) != packet_bytes - header_bytes {
            return Err(WireError::BadLength("UDP header"));
        }
        let payload = if udp.dst_port == ROCE_UDP_PORT {
            Payload::Roce {
                network,
                udp,
                roce: Roce::parse(r.rest())?,
            }
        } else {
            Payload::Other(packet)
        };
        Ok(Packet {
            ethernet,
            payload,
            trailer,
        })
    }

    /// The frame's bytes again: every field as it stands, no length or checksum computed anew.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.ethernet.write(&mut out);
        match &self.payload {
            Payload::Roce { network, udp, roce } => {
                match network {
                    Network::Ipv4(header) => header.write(&mut out),
                    Network::Ipv6(header) => header.write(&mut out),
                }
                udp.write(&mut out);
                roce.emit_body(&mut out);
                out.extend_from_slice(&roce.icrc.to_le_bytes());
            }
            Payload::Other(bytes) => out.extend_from_slice(bytes),
        }
        out.extend_from_slice(self.trailer);
        out
    }
}
