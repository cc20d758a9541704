//! The InfiniBand transport inside RoCEv2: base and extended headers (IBTA specification volume 1, chapter 9; annex A17).

use super::{Reader, WireError};

/// UDP destination port of RoCEv2.
pub const ROCE_UDP_PORT: u16 = 4791;
/// Bytes of the base transport header.
pub const BTH_BYTES: usize = 12;
/// Bytes of the ICRC.
pub const ICRC_BYTES: usize = 4;
/// Reserved bytes behind the BTH of a CNP (annex A17.9.3).
pub const CNP_PAD_BYTES: usize = 16;

/// A BTH opcode: transport class in the upper three bits, operation in the lower five.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opcode(pub u8);

#[allow(missing_docs)] // the names are those of the specification's table 38
impl Opcode {
    pub const WRITE_FIRST: Opcode = Opcode(0x06);
    pub const WRITE_MIDDLE: Opcode = Opcode(0x07);
    pub const WRITE_LAST: Opcode = Opcode(0x08);
    pub const WRITE_ONLY: Opcode = Opcode(0x0a);
    pub const ACKNOWLEDGE: Opcode = Opcode(0x11);
    pub const CNP: Opcode = Opcode(0x81);

    const UD: u8 = 3;
    /// Whether this is an operation of RC (0), UC (1) or UD (3) whose extended headers are known.
    pub fn is_known(self) -> bool {
        let operation = self.0 & 31;
        match self.0 >> 5 {
            0 => operation <= 0x17 && operation != 0x15,
            1 => operation <= 0x0b,
            Self::UD => operation == 4 || operation == 5,
            _ => self == Opcode::CNP,
        }
    }

    fn has_reth(self) -> bool {
        self.class() != Self::UD && matches!(self.0 & 31, 0x06 | 0x0a | 0x0b | 0x0c)
    }
    fn has_aeth(self) -> bool {
        self.class() == 0 && matches!(self.0, 0x0d | 0x0f | 0x10 | 0x11 | 0x12)
    }
    fn has_atomic_eth(self) -> bool {
        matches!(self.0, 0x13 | 0x14)
    }
    fn has_atomic_ack(self) -> bool {
        self.0 == 0x12
    }
    fn has_immediate(self) -> bool {
        matches!(self.0 & 31, 0x03 | 0x05 | 0x09 | 0x0b)
    }
    fn has_ieth(self) -> bool {
        matches!(self.0, 0x16 | 0x17)
    }
    fn class(self) -> u8 {
        self.0 >> 5
    }
    /// Whether this is a request of RC that moves data of an RDMA WRITE.
    pub fn is_rc_write(self) -> bool {
        matches!(self.0, 0x06..=0x0b)
    }
    /// Whether a message starts with this packet.
    pub fn starts_message(self) -> bool {
        matches!(
            self.0 & 31,
            0x00 | 0x04 | 0x05 | 0x06 | 0x0a | 0x0b | 0x0c | 0x13 | 0x14 | 0x17
        )
    }
    /// Whether a message ends with this packet.
    pub fn ends_message(self) -> bool {
        !matches!(self.0 & 31, 0x00 | 0x01 | 0x06 | 0x07 | 0x0d | 0x0e)
    }
}

/// Base transport header, every bit as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Operation.
    pub opcode: Opcode,
    /// Solicited event (1 bit), migration (1), pad count (2), header version (4).
    pub flags: u8,
    /// Partition key.
    pub pkey: u16,
    /// FECN, BECN and six reserved bits.
    pub congestion: u8,
    /// Destination queue pair, 24 bits.
    pub dest_qp: u32,
    /// Acknowledge request (1 bit) and seven reserved bits.
    pub ack_request: u8,
    /// Packet sequence number, 24 bits.
    pub psn: u32,
}

impl Bth {
    /// Backward explicit congestion notification, set in a CNP.
    pub const BECN: u8 = 0x40;

    /// Bytes of padding behind the payload.
    pub fn pad_bytes(&self) -> usize {
        usize::from(self.flags >> 4 & 3)
    }

    /// Whether the sender asks for an acknowledgement.
    pub fn wants_ack(&self) -> bool {
        self.ack_request & 0x80 != 0
    }

    fn from_bytes(bytes: [u8; BTH_BYTES]) -> Bth {
        let [opcode, flags, p0, p1, congestion, q0, q1, q2, ack_request, s0, s1, s2] = bytes;
        Bth {
            opcode: Opcode(opcode),
            flags,
            pkey: u16::from_be_bytes([p0, p1]),
            congestion,
            dest_qp: u32::from_be_bytes([0, q0, q1, q2]),
            ack_request,
            psn: u32::from_be_bytes([0, s0, s1, s2]),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let qp = self.dest_qp.to_be_bytes();
        let psn = self.psn.to_be_bytes();
        out.extend_from_slice(&[self.opcode.0, self.flags]);
        out.extend_from_slice(&self.pkey.to_be_bytes());
        out.extend_from_slice(&[self.congestion, qp[1], qp[2], qp[3]]);
        out.extend_from_slice(&[self.ack_request, psn[1], psn[2], psn[3]]);
    }
}

/// RDMA extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address in the responder's memory.
    pub virtual_address: u64,
    /// Remote key.
    pub rkey: u32,
    /// Length of the whole message in bytes.
    pub dma_bytes: u32,
}

/// Atomic extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Virtual address in the responder's memory.
    pub virtual_address: u64,
    /// Remote key.
    pub rkey: u32,
    /// Value to swap in, or to add.
    pub swap_or_add: u64,
    /// Value to compare with.
    pub compare: u64,
}

/// Datagram extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Queue key.
    pub qkey: u32,
    /// Reserved byte and source queue pair (24 bits).
    pub reserved_src_qp: u32,
}

/// The syndrome of an AETH (section 9.7.5.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syndrome(pub u8);

#[allow(missing_docs)]
impl Syndrome {
    /// ACK with the credit count that says "no end-to-end flow control".
    pub const ACK: Syndrome = Syndrome(0x1f);
    pub const NAK_SEQUENCE_ERROR: Syndrome = Syndrome(0x60);
    pub const NAK_INVALID_REQUEST: Syndrome = Syndrome(0x61);

    pub fn is_ack(self) -> bool {
        self.0 >> 5 == 0
    }

    pub fn is_nak(self) -> bool {
        self.0 >> 5 == 3
    }
}

/// The extended headers that an opcode calls for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ExtendedHeaders {
    pub deth: Option<Deth>,
    pub reth: Option<Reth>,
    pub atomic: Option<AtomicEth>,
    /// Syndrome (8 bits) and message sequence number (24 bits).
    pub aeth: Option<u32>,
    /// Original remote data of an atomic operation.
    pub atomic_ack: Option<u64>,
    pub immediate: Option<u32>,
    /// Remote key to invalidate.
    pub ieth: Option<u32>,
}

impl ExtendedHeaders {
    fn read(r: &mut Reader, opcode: Opcode) -> Result<ExtendedHeaders, WireError> {
        let mut ext = ExtendedHeaders::default();
        if opcode == Opcode::CNP {
            return Ok(ext);
        }
        if opcode.class() == Opcode::UD {
            ext.deth = Some(Deth {
                qkey: r.u32("DETH")?,
                reserved_src_qp: r.u32("DETH")?,
            });
        }
        if opcode.has_reth() {
            ext.reth = Some(Reth {
                virtual_address: r.u64("RETH")?,
                rkey: r.u32("RETH")?,
                dma_bytes: r.u32("RETH")?,
            });
        }
        if opcode.has_atomic_eth() {
            ext.atomic = Some(AtomicEth {
                virtual_address: r.u64("AtomicETH")?,
                rkey: r.u32("AtomicETH")?,
                swap_or_add: r.u64("AtomicETH")?,
                compare: r.u64("AtomicETH")?,
            });
        }
        if opcode.has_aeth() {
            ext.aeth = Some(r.u32("AETH")?);
        }
        if opcode.has_atomic_ack() {
            ext.atomic_ack = Some(r.u64("AtomicAckETH")?);
        }
        if opcode.has_immediate() {
            ext.immediate = Some(r.u32("ImmDt")?);
        }
        if opcode.has_ieth() {
            ext.ieth = Some(r.u32("IETH")?);
        }
        Ok(ext)
    }

    fn write(&self, out: &mut Vec<u8>) {
        if let Some(h) = self.deth {
            out.extend_from_slice(&h.qkey.to_be_bytes());
            out.extend_from_slice(&h.reserved_src_qp.to_be_bytes());
        }
        if let Some(h) = self.reth {
            out.extend_from_slice(&h.virtual_address.to_be_bytes());
            out.extend_from_slice(&h.rkey.to_be_bytes());
            out.extend_from_slice(&h.dma_bytes.to_be_bytes());
        }
        if let Some(h) = self.atomic {
            out.extend_from_slice(&h.virtual_address.to_be_bytes());
            out.extend_from_slice(&h.rkey.to_be_bytes());
            out.extend_from_slice(&h.swap_or_add.to_be_bytes());
            out.extend_from_slice(&h.compare.to_be_bytes());
        }
        if let Some(word) = self.aeth {
            out.extend_from_slice(&word.to_be_bytes());
        }
        if let Some(value) = self.atomic_ack {
            out.extend_from_slice(&value.to_be_bytes());
        }
        if let Some(word) = self.immediate {
            out.extend_from_slice(&word.to_be_bytes());
        }
        if let Some(word) = self.ieth {
            out.extend_from_slice(&word.to_be_bytes());
        }
    }
}

/// What a RoCEv2 packet carries in UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roce<'a> {
    /// Base transport header.
    pub bth: Bth,
    /// Extended headers in the order of the wire.
    pub ext: ExtendedHeaders,
    /// Payload with its padding (the pad count is in the BTH).
    pub payload: &'a [u8],
    /// Invariant CRC as sent, least significant byte first.
    pub icrc: u32,
}

impl<'a> Roce<'a> {
    /// Reads the content of a UDP datagram to port 4791.
    ///
    /// # Errors
    /// [`WireError`] where a header is cut short, the opcode is unknown, or the pad count exceeds the payload.
    pub fn parse(datagram: &'a [u8]) -> Result<Roce<'a>, WireError> {
        let (body, icrc) = datagram
            .split_last_chunk::<ICRC_BYTES>()
            .ok_or(WireError::Truncated("ICRC"))?;
        let mut r = Reader::new(body);
        let bth = Bth::from_bytes(r.array("BTH")?);
        if !bth.opcode.is_known() {
            return Err(WireError::BadType("BTH opcode"));
        }
        let ext = ExtendedHeaders::read(&mut r, bth.opcode)?;
        let payload = r.rest();
        if bth.pad_bytes() > payload.len() {
            return Err(WireError::BadLength("BTH pad count"));
        }
        Ok(Roce {
            bth,
            ext,
            payload,
            icrc: u32::from_le_bytes(*icrc),
        })
    }

    /// The base transport header at the front of `bytes`, which are at least [`BTH_BYTES`] long; a shorter slice counts as zeros.
    pub fn parse_bth(bytes: &[u8]) -> Bth {
        let mut whole = [0; BTH_BYTES];
        let n = bytes.len().min(BTH_BYTES);
        whole[..n].copy_from_slice(&bytes[..n]);
        Bth::from_bytes(whole)
    }

    /// Appends everything but the ICRC.
    pub fn emit_body(&self, out: &mut Vec<u8>) {
        self.bth.write(out);
        self.ext.write(out);
        out.extend_from_slice(self.payload);
    }
}
