//! A frame on its way through the fabric: its bytes and its headers, found once per hop.

use crate::wire::{Headers, Kind, MacAddr, Pause, WireError};

/// An Ethernet frame without its check sequence. It is small to move: what it holds is on the heap.
#[derive(Clone, Debug)]
pub struct Frame(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    bytes: Vec<u8>,
    headers: Headers,
    malformed: bool,
    /// Whether its check sequence is wrong: the sequence itself is not carried.
    bad_fcs: bool,
    accounted_bytes: u64,
}

impl Frame {
    /// Any bytes; a frame whose headers do not hold together is kept, and is [`Frame::is_malformed`].
    pub fn new(bytes: Vec<u8>) -> Frame {
        let parsed = Headers::parse(&bytes);
        let is_control = parsed.is_ok_and(|h| h.kind == Kind::MacControl);
        Frame(Box::new(Inner {
            accounted_bytes: if is_control { 0 } else { bytes.len() as u64 },
            bytes,
            bad_fcs: false,
            malformed: parsed.is_err(),
            headers: parsed.unwrap_or_default(),
        }))
    }

    /// A pause frame from `src`.
    pub fn pause(pause: Pause, src: MacAddr) -> Frame {
        Frame::new(pause.emit(src))
    }

    /// The bytes as on the wire.
    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    /// The headers; all zero where the frame is malformed.
    pub fn headers(&self) -> &Headers {
        &self.0.headers
    }

    /// Whether the headers are cut short or contradict the frame.
    pub fn is_malformed(&self) -> bool {
        self.0.malformed
    }

    /// Whether its frame check sequence is wrong.
    pub fn has_bad_fcs(&self) -> bool {
        self.0.bad_fcs
    }

    /// Says that its frame check sequence is wrong, and that it counted for so many bytes when it was sound.
    pub fn spoil_fcs(&mut self, accounted_bytes: u64) {
        self.0.bad_fcs = true;
        self.0.accounted_bytes = accounted_bytes;
    }

    /// The frame with one bit flipped, which its check sequence shows.
    #[must_use]
    pub fn with_flipped_bit(self, bit: u64) -> Frame {
        let mut bytes = self.0.bytes;
        if let Some(byte) = bytes.get_mut((bit / 8) as usize) {
            *byte ^= 1 << (bit % 8);
        }
        let mut frame = Frame::new(bytes);
        frame.spoil_fcs(self.0.accounted_bytes);
        frame
    }

    /// Length in bytes, without check sequence.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.bytes.len()
    }

    /// Bytes for which it counts in the balance of a run: MAC control never crosses a switch, and counts for nothing.
    pub fn accounted_bytes(&self) -> u64 {
        self.0.accounted_bytes
    }

    /// Reads the frame as a pause frame.
    ///
    /// # Errors
    /// [`WireError`] as [`Pause::parse`].
    pub fn as_pause(&self) -> Result<Pause, WireError> {
        Pause::parse(
            self.0
                .bytes
                .get(usize::from(self.0.headers.l3_at)..)
                .unwrap_or(&[]),
        )
    }

    /// Marks the packet as having met congestion (RFC 3168).
    pub fn mark_ce(&mut self) {
        let Inner { bytes, headers, .. } = &mut *self.0;
        headers.mark_ce(bytes);
    }

    /// Lowers TTL or hop limit; false where it would reach zero.
    pub fn decrement_ttl(&mut self) -> bool {
        let Inner { bytes, headers, .. } = &mut *self.0;
        headers.decrement_ttl(bytes)
    }
}
