//! Ethernet II and the 802.1Q tag (IEEE 802.3 clause 3, IEEE 802.1Q clause 9.6).

use super::{Reader, WireError};

/// A 48-bit MAC address.
pub type MacAddr = [u8; 6];

/// IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// Customer VLAN tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// MAC control: 802.3x pause and priority flow control.
pub const ETHERTYPE_MAC_CONTROL: u16 = 0x8808;
/// Link layer discovery protocol.
pub const ETHERTYPE_LLDP: u16 = 0x88cc;

/// An 802.1Q tag: tag control information (PCP 3 bits, DEI 1, VID 12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// Tag control information as on the wire.
    pub tci: u16,
}

impl Vlan {
    /// Priority code point.
    pub fn pcp(self) -> u8 {
        (self.tci >> 13) as u8
    }
}

/// Addresses, at most one 802.1Q tag, and the type of what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ethernet {
    /// Destination.
    pub dst: MacAddr,
    /// Source.
    pub src: MacAddr,
    /// 802.1Q tag, if there is one.
    pub vlan: Option<Vlan>,
    /// Type of the payload.
    pub ethertype: u16,
}

impl Ethernet {
    pub(crate) fn read(r: &mut Reader) -> Result<Ethernet, WireError> {
        let dst = r.array("Ethernet header")?;
        let src = r.array("Ethernet header")?;
        let mut ethertype = r.u16("Ethernet header")?;
        let mut vlan = None;
        if ethertype == ETHERTYPE_VLAN {
            vlan = Some(Vlan {
                tci: r.u16("802.1Q tag")?,
            });
            ethertype = r.u16("802.1Q tag")?;
        }
        Ok(Ethernet {
            dst,
            src,
            vlan,
            ethertype,
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.dst);
        out.extend_from_slice(&self.src);
        if let Some(vlan) = self.vlan {
            out.extend_from_slice(&ETHERTYPE_VLAN.to_be_bytes());
            out.extend_from_slice(&vlan.tci.to_be_bytes());
        }
        out.extend_from_slice(&self.ethertype.to_be_bytes());
    }
}
