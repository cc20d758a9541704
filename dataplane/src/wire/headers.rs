//! What a switch looks at: addresses, priority and the 5-tuple, with the offsets to change a field in place.

use super::{
    ethernet::Ethernet, ipv4_checksum, Reader, WireError, ETHERTYPE_ARP, ETHERTYPE_IPV4,
    ETHERTYPE_IPV6, ETHERTYPE_LLDP, ETHERTYPE_MAC_CONTROL, IP_PROTO_TCP, IP_PROTO_UDP,
};
use crate::wire::MacAddr;

const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// The kinds of frame that are handled differently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// MAC control: consumed by the receiving port.
    MacControl,
    /// LLDP.
    Lldp,
    /// ARP.
    Arp,
    /// IPv4 or IPv6, with a sound header.
    Ip,
    /// Anything else; forwarded by its MAC address.
    #[default]
    Other,
}

/// The ECN field (RFC 3168 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// Not ECN-capable, or not IP.
    NotEct,
    /// ECT(1).
    Ect1,
    /// ECT(0).
    Ect0,
    /// Congestion experienced.
    Ce,
}

/// A frame's headers as far as a switch needs them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Headers {
    /// What kind of frame this is.
    pub kind: Kind,
    /// Destination MAC address.
    pub dst: MacAddr,
    /// Source MAC address.
    pub src: MacAddr,
    /// 802.1Q tag control information.
    pub vlan_tci: Option<u16>,
    /// Ethernet type behind the tag.
    pub ethertype: u16,
    /// Offset of the layer-3 header.
    pub l3_at: u16,
    /// Offset of the end of the IP packet (padding may follow).
    pub l3_end: u16,
    /// Offset of the layer-4 header, 0 if there is none.
    pub l4_at: u16,
    /// IPv4 ToS or IPv6 traffic class.
    pub tos: u8,
    /// IP protocol.
    pub protocol: u8,
    /// IP source (IPv4 in the low 32 bits).
    pub ip_src: u128,
    /// IP destination (IPv4 in the low 32 bits).
    pub ip_dst: u128,
    /// UDP or TCP source port.
    pub src_port: u16,
    /// UDP or TCP destination port.
    pub dst_port: u16,
}

impl Headers {
    /// Finds the headers of a frame.
    ///
    /// # Errors
    /// [`WireError`] where a header is cut short or contradicts the frame: such a frame is malformed and
    /// is dropped at the port it came in by.
    pub fn parse(frame: &[u8]) -> Result<Headers, WireError> {
        // Offsets are 16 bits wide; no link has frames near that size.
        if frame.len() > usize::from(u16::MAX) {
            return Err(WireError::BadLength("frame"));
        }
        let mut r = Reader::new(frame);
        let eth = Ethernet::read(&mut r)?;
        let l3_at = (frame.len() - r.rest().len()) as u16;
        let mut h = Headers {
            dst: eth.dst,
            src: eth.src,
            vlan_tci: eth.vlan.map(|v| v.tci),
            ethertype: eth.ethertype,
            l3_at,
            l3_end: frame.len() as u16,
            ..Headers::default()
        };
        match eth.ethertype {
            ETHERTYPE_IPV4 => h.read_ipv4(r)?,
            ETHERTYPE_IPV6 => h.read_ipv6(r)?,
            ETHERTYPE_MAC_CONTROL => h.kind = Kind::MacControl,
            ETHERTYPE_LLDP => h.kind = Kind::Lldp,
            ETHERTYPE_ARP => h.kind = Kind::Arp,
            _ => {}
        }
        Ok(h)
    }

    fn read_ipv4(&mut self, r: Reader) -> Result<(), WireError> {
        let packet = r.rest();
        let fixed = packet
            .first_chunk::<20>()
            .ok_or(WireError::Truncated("IPv4 header"))?;
        let header_bytes = usize::from(fixed[0] & 15) * 4;
        let total = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
        if fixed[0] >> 4 != 4 {
            return Err(WireError::BadType("IPv4 header"));
        }
        if header_bytes < 20 || total < header_bytes || total > packet.len() {
            return Err(WireError::BadLength("IPv4 header"));
        }
        if ipv4_checksum(&packet[..header_bytes]) != 0 {
            return Err(WireError::BadChecksum);
        }
        self.kind = Kind::Ip;
        self.tos = fixed[1];
        self.protocol = fixed[9];
        self.ip_src = u128::from(u32::from_be_bytes([
            fixed[12], fixed[13], fixed[14], fixed[15],
        ]));
        self.ip_dst = u128::from(u32::from_be_bytes([
            fixed[16], fixed[17], fixed[18], fixed[19],
        ]));
        self.l3_end = self.l3_at + total as u16;
        let fragment = u16::from_be_bytes([fixed[6], fixed[7]]);
        if fragment & FRAGMENT_OFFSET == 0 {
            let whole = fragment & MORE_FRAGMENTS == 0;
            self.read_ports(&packet[..total], header_bytes, whole)?;
        }
        Ok(())
    }

    fn read_ipv6(&mut self, r: Reader) -> Result<(), WireError> {
        let packet = r.rest();
        let mut fields = r;
        let header = super::Ipv6::read(&mut fields)?;
        let total = 40 + usize::from(header.payload_bytes);
        if total > packet.len() {
            return Err(WireError::BadLength("IPv6 header"));
        }
        self.kind = Kind::Ip;
        self.tos = header.traffic_class;
        self.protocol = header.next_header;
        self.ip_src = u128::from_be_bytes(header.src);
        self.ip_dst = u128::from_be_bytes(header.dst);
        self.l3_end = self.l3_at + total as u16;
        self.read_ports(&packet[..total], 40, true)
    }

    /// `whole` says that the packet holds the whole datagram; the length in a first fragment is that of all of them.
    fn read_ports(&mut self, packet: &[u8], l4_at: usize, whole: bool) -> Result<(), WireError> {
        if !matches!(self.protocol, IP_PROTO_UDP | IP_PROTO_TCP) {
            return Ok(());
        }
        let mut r = Reader::new(&packet[l4_at..]);
        self.src_port = r.u16("layer-4 ports")?;
        self.dst_port = r.u16("layer-4 ports")?;
        self.l4_at = self.l3_at + l4_at as u16;
        if self.protocol == IP_PROTO_UDP {
            let length = usize::from(r.u16("UDP header")?);
            if length < 8 || (whole && length > packet.len() - l4_at) {
                return Err(WireError::BadLength("UDP header"));
            }
        }
        Ok(())
    }

    /// Differentiated services code point (RFC 2474).
    pub fn dscp(&self) -> u8 {
        self.tos >> 2
    }

    /// The ECN field.
    pub fn ecn(&self) -> Ecn {
        match self.tos & 3 {
            0 => Ecn::NotEct,
            1 => Ecn::Ect1,
            2 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }

    /// Priority code point of the 802.1Q tag.
    pub fn pcp(&self) -> Option<u8> {
        self.vlan_tci.map(|tci| (tci >> 13) as u8)
    }

    /// Sets congestion experienced in `frame`, whose headers these are, and keeps the IPv4 checksum right.
    pub fn mark_ce(&mut self, frame: &mut [u8]) {
        if self.kind != Kind::Ip {
            return;
        }
        self.tos |= 3;
        let l3 = usize::from(self.l3_at);
        if self.ethertype == ETHERTYPE_IPV4 {
            frame[l3 + 1] = self.tos;
            refresh_ipv4_checksum(&mut frame[l3..]);
        } else {
            frame[l3 + 1] = (frame[l3 + 1] & 0x0f) | (self.tos << 4);
        }
    }

    /// Lowers TTL or hop limit by one; false, and nothing changed, where it would reach zero.
    pub fn decrement_ttl(&self, frame: &mut [u8]) -> bool {
        if self.kind != Kind::Ip {
            return true;
        }
        let l3 = usize::from(self.l3_at);
        let ipv4 = self.ethertype == ETHERTYPE_IPV4;
        let at = l3 + if ipv4 { 8 } else { 7 };
        if frame[at] <= 1 {
            return false;
        }
        frame[at] -= 1;
        if ipv4 {
            refresh_ipv4_checksum(&mut frame[l3..]);
        }
        true
    }
}

fn refresh_ipv4_checksum(packet: &mut [u8]) {
    let header_bytes = usize::from(packet[0] & 15) * 4;
    packet[10..12].fill(0);
    let sum = ipv4_checksum(&packet[..header_bytes]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}
