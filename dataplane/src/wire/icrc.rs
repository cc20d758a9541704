//! The invariant CRC of RoCEv2 (IBTA specification volume 1, section 7.8.1 and annex A17.3.3).

use crc32fast::Hasher;

use super::headers::{Headers, Kind};
use super::{ETHERTYPE_IPV4, ICRC_BYTES, IP_PROTO_UDP, ROCE_UDP_PORT};

/// CRC over eight bytes of ones and the packet from its IP header up to (not with) the ICRC, with every field
/// that a hop may change taken as ones: ToS, TTL and checksum of IPv4 (traffic class, flow label and hop limit of
/// IPv6), the UDP checksum, and the BTH byte that holds FECN and BECN.
///
/// `from_ip` begins at the IP header and ends where the ICRC begins; `udp_at` is the offset of UDP in it.
/// Returns the value as it is sent, least significant byte first. Slices too short for their headers are
/// hashed as they are.
pub fn icrc(from_ip: &[u8], ipv4: bool, udp_at: usize) -> u32 {
    let mut head = [0u8; 8 + 60 + 8 + 12];
    head[..8].fill(0xff);
    let masked_bytes = (udp_at + 8 + 12).min(from_ip.len()).min(head.len() - 8);
    let masked = &mut head[8..8 + masked_bytes];
    masked.copy_from_slice(&from_ip[..masked_bytes]);
    let mut ones = |range: std::ops::Range<usize>| {
        if let Some(field) = masked.get_mut(range) {
            field.fill(0xff);
        }
    };
    if ipv4 {
        ones(1..2);
        ones(8..9);
        ones(10..12);
    } else {
        ones(1..4);
        ones(7..8);
    }
    ones(udp_at + 6..udp_at + 8);
    ones(udp_at + 8 + 4..udp_at + 8 + 5);
    if !ipv4 {
        // The version stays; the upper half of the traffic class shares its byte.
        if let Some(first) = masked.first_mut() {
            *first |= 0x0f;
        }
    }
    let mut hasher = Hasher::new();
    hasher.update(&head[..8 + masked_bytes]);
    hasher.update(&from_ip[masked_bytes..]);
    hasher.finalize()
}

/// The ICRC that a whole Ethernet frame should carry and the one it does; `None` if it is not a RoCEv2 packet.
pub fn icrc_of_frame(frame: &[u8], headers: &Headers) -> Option<(u32, u32)> {
    if headers.kind != Kind::Ip
        || headers.protocol != IP_PROTO_UDP
        || headers.dst_port != ROCE_UDP_PORT
    {
        return None;
    }
    let end = usize::from(headers.l3_end);
    let body = frame.get(usize::from(headers.l3_at)..end.checked_sub(ICRC_BYTES)?)?;
    let carried = frame.get(end - ICRC_BYTES..end)?;
    let udp_at = usize::from(headers.l4_at - headers.l3_at);
    let expected = icrc(body, headers.ethertype == ETHERTYPE_IPV4, udp_at);
    Some((expected, u32::from_le_bytes(carried.try_into().ok()?)))
}
