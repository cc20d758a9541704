//! Building packets from a flow's template: what stays the same was laid out once, the rest is stamped in.

use crate::frame::Frame;
use crate::wire::{
    icrc, ipv4_checksum, ExtendedHeaders, Headers, Kind, Opcode, Roce, BTH_BYTES, ETHERTYPE_IPV4,
    ICRC_BYTES, ROCE_UDP_PORT,
};

const UDP_BYTES: usize = 8;

/// Why bytes cannot serve as a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a template is a RoCEv2 packet without payload: Ethernet, IP, UDP to port 4791, BTH, ICRC")]
pub struct TemplateError;

/// The headers of a queue pair's packets.
#[derive(Clone, Debug)]
pub(super) struct Template {
    bytes: Vec<u8>,
    l3_at: usize,
    udp_at: usize,
    ipv4: bool,
}

/// What differs from packet to packet.
pub(super) struct Stamp<'a> {
    pub opcode: Opcode,
    pub psn: u32,
    pub ack_request: bool,
    pub ext: ExtendedHeaders,
    pub payload: &'a [u8],
}

impl Template {
    pub fn new(bytes: &[u8]) -> Result<Template, TemplateError> {
        let h = Headers::parse(bytes).map_err(|_| TemplateError)?;
        let (l3_at, udp_at) = (usize::from(h.l3_at), usize::from(h.l4_at));
        let whole = h.kind == Kind::Ip
            && h.dst_port == ROCE_UDP_PORT
            && udp_at > 0
            && bytes.len() == udp_at + UDP_BYTES + BTH_BYTES + ICRC_BYTES;
        if !whole {
            return Err(TemplateError);
        }
        Ok(Template {
            bytes: bytes[..bytes.len() - ICRC_BYTES].to_vec(),
            l3_at,
            udp_at,
            ipv4: h.ethertype == ETHERTYPE_IPV4,
        })
    }

    /// The same template with another DSCP and not ECN-capable: CNPs are not marked, and have a priority of their own.
    pub fn with_dscp(&self, dscp: u8) -> Template {
        let mut other = self.clone();
        let at = self.l3_at;
        if self.ipv4 {
            other.bytes[at + 1] = dscp << 2;
        } else {
            other.bytes[at] = 0x60 | dscp >> 2;
            other.bytes[at + 1] = (other.bytes[at + 1] & 0x0f) | (dscp & 3) << 6;
        }
        other
    }

    /// A packet with right lengths, checksum and ICRC.
    pub fn stamp(&self, s: &Stamp) -> Frame {
        let mut out = Vec::with_capacity(self.bytes.len() + 28 + s.payload.len() + 3 + ICRC_BYTES);
        let bth_at = self.udp_at + UDP_BYTES;
        out.extend_from_slice(&self.bytes[..bth_at]);
        let pad = s.payload.len().wrapping_neg() & 3;
        let mut bth = Roce::parse_bth(&self.bytes[bth_at..]);
        bth.opcode = s.opcode;
        bth.flags = bth.flags & 0xcf | (pad as u8) << 4;
        bth.psn = s.psn;
        bth.ack_request = u8::from(s.ack_request) << 7;
        if s.opcode == Opcode::CNP {
            bth.congestion = crate::wire::Bth::BECN;
        }
        let roce = Roce {
            bth,
            ext: s.ext,
            payload: s.payload,
            icrc: 0,
        };
        roce.emit_body(&mut out);
        out.resize(out.len() + pad, 0);
        self.stamp_lengths(&mut out);
        let icrc = icrc(&out[self.l3_at..], self.ipv4, self.udp_at - self.l3_at);
        out.extend_from_slice(&icrc.to_le_bytes());
        Frame::new(out)
    }

    fn stamp_lengths(&self, out: &mut [u8]) {
        let whole = out.len() + ICRC_BYTES;
        let udp_bytes = ((whole - self.udp_at) as u16).to_be_bytes();
        out[self.udp_at + 4..self.udp_at + 6].copy_from_slice(&udp_bytes);
        let l3 = self.l3_at;
        if self.ipv4 {
            out[l3 + 2..l3 + 4].copy_from_slice(&((whole - l3) as u16).to_be_bytes());
            out[l3 + 10..l3 + 12].fill(0);
            let sum = ipv4_checksum(&out[l3..self.udp_at]);
            out[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
        } else {
            out[l3 + 4..l3 + 6].copy_from_slice(&((whole - l3 - 40) as u16).to_be_bytes());
        }
    }
}
