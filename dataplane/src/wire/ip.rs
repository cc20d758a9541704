//! IPv4 (RFC 791), IPv6 (RFC 8200) and UDP (RFC 768).

use super::{Reader, WireError};

/// Protocol number of TCP.
pub const IP_PROTO_TCP: u8 = 6;
/// Protocol number of UDP.
pub const IP_PROTO_UDP: u8 = 17;

/// The internet checksum of a header whose checksum field counts as it stands: 0 when it is right.
pub fn ipv4_checksum(header: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in header.chunks(2) {
        sum += u32::from(u16::from_be_bytes([
            pair[0],
            pair.get(1).copied().unwrap_or(0),
        ]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// An IPv4 header, every field as on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    /// DSCP (6 bits) and ECN (2 bits).
    pub tos: u8,
    /// Length of header and payload in bytes.
    pub total_bytes: u16,
    /// Identification.
    pub id: u16,
    /// Flags (3 bits) and fragment offset (13 bits).
    pub flags_fragment: u16,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Header checksum.
    pub checksum: u16,
    /// Source address.
    pub src: [u8; 4],
    /// Destination address.
    pub dst: [u8; 4],
    /// Options, a multiple of four bytes.
    pub options: Vec<u8>,
}

impl Ipv4 {
    /// Reads a header; the payload's length is checked against `total_bytes` by the caller.
    pub(crate) fn read(r: &mut Reader) -> Result<Ipv4, WireError> {
        let start = *r;
        let version_ihl = r.u8("IPv4 header")?;
        if version_ihl >> 4 != 4 {
            return Err(WireError::BadType("IPv4 header"));
        }
        let header_bytes = usize::from(version_ihl & 15) * 4;
        if header_bytes < 20 {
            return Err(WireError::BadLength("IPv4 header"));
        }
        let header = Ipv4 {
            tos: r.u8("IPv4 header")?,
            total_bytes: r.u16("IPv4 header")?,
            id: r.u16("IPv4 header")?,
            flags_fragment: r.u16("IPv4 header")?,
            ttl: r.u8("IPv4 header")?,
            protocol: r.u8("IPv4 header")?,
            checksum: r.u16("IPv4 header")?,
            src: r.array("IPv4 header")?,
            dst: r.array("IPv4 header")?,
            options: r.take(header_bytes - 20, "IPv4 options")?.to_vec(),
        };
        if usize::from(header.total_bytes) < header_bytes {
            return Err(WireError::BadLength("IPv4 header"));
        }
        if ipv4_checksum(&start.rest()[..header_bytes]) != 0 {
            return Err(WireError::BadChecksum);
        }
        Ok(header)
    }

    pub(crate) fn header_bytes(&self) -> usize {
        20 + self.options.len()
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[0x40 | (self.header_bytes() / 4) as u8, self.tos]);
        out.extend_from_slice(&self.total_bytes.to_be_bytes());
        out.extend_from_slice(&self.id.to_be_bytes());
        out.extend_from_slice(&self.flags_fragment.to_be_bytes());
        out.extend_from_slice(&[self.ttl, self.protocol]);
        out.extend_from_slice(&self.checksum.to_be_bytes());
        out.extend_from_slice(&self.src);
        out.extend_from_slice(&self.dst);
        out.extend_from_slice(&self.options);
    }
}

/// An IPv6 header, every field as on the wire. Extension headers count as payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipv6 {
    /// DSCP (6 bits) and ECN (2 bits).
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Length of the payload in bytes.
    pub payload_bytes: u16,
    /// Type of the payload.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub src: [u8; 16],
    /// Destination address.
    pub dst: [u8; 16],
}

impl Ipv6 {
    pub(crate) fn read(r: &mut Reader) -> Result<Ipv6, WireError> {
        let word = r.u32("IPv6 header")?;
        if word >> 28 != 6 {
            return Err(WireError::BadType("IPv6 header"));
        }
        Ok(Ipv6 {
            traffic_class: (word >> 20) as u8,
            flow_label: word & 0xf_ffff,
            payload_bytes: r.u16("IPv6 header")?,
            next_header: r.u8("IPv6 header")?,
            hop_limit: r.u8("IPv6 header")?,
            src: r.array("IPv6 header")?,
            dst: r.array("IPv6 header")?,
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let word = 6 << 28 | u32::from(self.traffic_class) << 20 | (self.flow_label & 0xf_ffff);
        out.extend_from_slice(&word.to_be_bytes());
        out.extend_from_slice(&self.payload_bytes.to_be_bytes());
        out.extend_from_slice(&[self.next_header, self.hop_limit]);
        out.extend_from_slice(&self.src);
        out.extend_from_slice(&self.dst);
    }
}

/// A UDP header, every field as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Udp {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Length of header and payload in bytes.
    pub length_bytes: u16,
    /// Checksum; RoCEv2 sends 0 (IBTA annex A17.3.2).
    pub checksum: u16,
}

impl Udp {
    pub(crate) fn read(r: &mut Reader) -> Result<Udp, WireError> {
        Ok(Udp {
            src_port: r.u16("UDP header")?,
            dst_port: r.u16("UDP header")?,
            length_bytes: r.u16("UDP header")?,
            checksum: r.u16("UDP header")?,
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        for field in [
            self.src_port,
            self.dst_port,
            self.length_bytes,
            self.checksum,
        ] {
            out.extend_from_slice(&field.to_be_bytes());
        }
    }
}
