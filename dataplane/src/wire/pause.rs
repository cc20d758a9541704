//! MAC control: 802.3x pause (IEEE 802.3 annex 31B) and priority flow control (IEEE 802.1Qbb, 802.3 annex 31D).

use super::{MacAddr, Reader, WireError, ETHERTYPE_MAC_CONTROL};
use crate::time::MIN_FRAME_BYTES;

/// The reserved multicast address of MAC control frames; no bridge forwards it.
pub const PAUSE_DESTINATION: MacAddr = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x01];
const OPCODE_PAUSE: u16 = 0x0001;
const OPCODE_PFC: u16 = 0x0101;

/// A pause frame of either kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// 802.3x: the whole link, for so many quanta.
    Global {
        /// Pause time in quanta of 512 bit times; 0 resumes.
        quanta: u16,
    },
    /// 802.1Qbb: the priorities whose bit is set, each for its own time.
    Priority {
        /// Class-enable vector, bit n for priority n.
        enabled: u8,
        /// Pause time of each priority in quanta of 512 bit times; 0 resumes.
        quanta: [u16; 8],
    },
}

impl Pause {
    /// Reads what follows the Ethernet type 0x8808.
    ///
    /// # Errors
    /// [`WireError`] where the frame is cut short or the opcode is none of the two.
    pub fn parse(body: &[u8]) -> Result<Pause, WireError> {
        let mut r = Reader::new(body);
        match r.u16("MAC control opcode")? {
            OPCODE_PAUSE => Ok(Pause::Global {
                quanta: r.u16("pause time")?,
            }),
            OPCODE_PFC => {
                // The vector's upper byte is reserved: ignored on receipt (802.3 annex 31D.2).
                let enabled = r.u16("class-enable vector")? as u8;
                let mut quanta = [0; 8];
                for q in &mut quanta {
                    *q = r.u16("pause time vector")?;
                }
                Ok(Pause::Priority { enabled, quanta })
            }
            _ => Err(WireError::BadType("MAC control opcode")),
        }
    }

    /// The priorities it is for, with the pause time of each in quanta.
    pub fn times(self) -> impl Iterator<Item = (usize, u16)> {
        let (enabled, quanta) = match self {
            Pause::Global { quanta } => (0xff, [quanta; 8]),
            Pause::Priority { enabled, quanta } => (enabled, quanta),
        };
        quanta
            .into_iter()
            .enumerate()
            .filter(move |(priority, _)| enabled & 1 << priority != 0)
    }

    /// A PFC frame's content for one priority.
    pub fn for_priority(priority: u8, time_quanta: u16) -> Pause {
        let mut quanta = [0; 8];
        quanta[usize::from(priority & 7)] = time_quanta;
        Pause::Priority {
            enabled: 1 << (priority & 7),
            quanta,
        }
    }

    /// The whole frame from `src`, padded to the shortest Ethernet frame.
    pub fn emit(&self, src: MacAddr) -> Vec<u8> {
        let mut out = Vec::with_capacity(MIN_FRAME_BYTES as usize);
        out.extend_from_slice(&PAUSE_DESTINATION);
        out.extend_from_slice(&src);
        out.extend_from_slice(&ETHERTYPE_MAC_CONTROL.to_be_bytes());
        match *self {
            Pause::Global { quanta } => {
                out.extend_from_slice(&OPCODE_PAUSE.to_be_bytes());
                out.extend_from_slice(&quanta.to_be_bytes());
            }
            Pause::Priority { enabled, quanta } => {
                out.extend_from_slice(&OPCODE_PFC.to_be_bytes());
                out.extend_from_slice(&u16::from(enabled).to_be_bytes());
                for q in quanta {
                    out.extend_from_slice(&q.to_be_bytes());
                }
            }
        }
        out.resize(MIN_FRAME_BYTES as usize, 0);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        for pause in [
            Pause::for_priority(3, 65_535),
            Pause::Global { quanta: 7 },
            Pause::for_priority(0, 0),
        ] {
            let frame = pause.emit([2, 0, 0, 0, 0, 1]);
            assert_eq!(frame.len(), 60);
            assert_eq!(Pause::parse(&frame[14..]), Ok(pause));
        }
    }
}
