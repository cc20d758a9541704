//! Packet formats: views and builders without state.
//!
//! [`Packet`] is a whole frame taken apart field by field; [`Packet::emit`] puts it together again, byte for byte.
//! [`Headers`] is the little that a switch looks at, found without reading the rest.

mod bth;
mod ethernet;
mod headers;
mod icrc;
mod ip;
mod packet;
mod pause;

pub use bth::{
    AtomicEth, Bth, Deth, ExtendedHeaders, Opcode, Reth, Roce, Syndrome, BTH_BYTES, CNP_PAD_BYTES,
    ICRC_BYTES, ROCE_UDP_PORT,
};
pub use ethernet::{
    Ethernet, MacAddr, Vlan, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_LLDP,
    ETHERTYPE_MAC_CONTROL, ETHERTYPE_VLAN,
};
pub use headers::{Ecn, Headers, Kind};
pub use icrc::{icrc, icrc_of_frame};
pub use ip::{ipv4_checksum, Ipv4, Ipv6, Udp, IP_PROTO_TCP, IP_PROTO_UDP};
pub use packet::{Network, Packet, Payload};
pub use pause::{Pause, PAUSE_DESTINATION};

/// Why bytes are not the packet they claim to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The frame ends inside the named header.
    #[error("frame ends inside {0}")]
    Truncated(&'static str),
    /// A length field contradicts the frame.
    #[error("bad length field in {0}")]
    BadLength(&'static str),
    /// The IPv4 header checksum is wrong.
    #[error("IPv4 header checksum is wrong")]
    BadChecksum,
    /// A version or type field has a value that does not belong there.
    #[error("bad version or type in {0}")]
    BadType(&'static str),
}

/// Takes fields off the front of a byte slice; every step is bounds-checked.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(rest: &'a [u8]) -> Self {
        Reader { rest }
    }

    pub fn take(&mut self, n: usize, what: &'static str) -> Result<&'a [u8], WireError> {
        let (head, rest) = self
            .rest
            .split_at_checked(n)
            .ok_or(WireError::Truncated(what))?;
        self.rest = rest;
        Ok(head)
    }

    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], WireError> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(WireError::Truncated(what))?;
        self.rest = rest;
        Ok(*head)
    }

    pub fn u8(&mut self, what: &'static str) -> Result<u8, WireError> {
        Ok(self.array::<1>(what)?[0])
    }

    pub fn u16(&mut self, what: &'static str) -> Result<u16, WireError> {
        Ok(u16::from_be_bytes(self.array(what)?))
    }

    pub fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        Ok(u32::from_be_bytes(self.array(what)?))
    }

    pub fn u64(&mut self, what: &'static str) -> Result<u64, WireError> {
        Ok(u64::from_be_bytes(self.array(what)?))
    }

    pub fn rest(self) -> &'a [u8] {
        self.rest
    }
}
