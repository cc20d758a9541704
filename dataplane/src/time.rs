//! Fabric time and rates.
//!
//! Time is counted in whole picoseconds: at 400 Gb/s a byte takes exactly 20 ps, so
//! serialization times of the usual rates (10 G to 1.6 T) have no rounding at all.

use std::ops::{Add, AddAssign, Sub};

/// A point in, or a span of, fabric time in picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The beginning of a run.
    pub const ZERO: Time = Time(0);
    /// Later than everything.
    pub const MAX: Time = Time(u64::MAX);

    /// A span of whole nanoseconds.
    pub const fn from_ns(ns: u64) -> Time {
        Time(ns.saturating_mul(1000))
    }

    /// Whole nanoseconds, rounded down.
    pub const fn as_ns(self) -> u64 {
        self.0 / 1000
    }

    /// `self - other`, or zero where `other` is later.
    pub const fn saturating_sub(self, other: Time) -> Time {
        Time(self.0.saturating_sub(other.0))
    }
}

impl Add for Time {
    type Output = Time;
    fn add(self, other: Time) -> Time {
        Time(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Time {
    fn add_assign(&mut self, other: Time) {
        *self = *self + other;
    }
}

impl Sub for Time {
    type Output = Time;
    fn sub(self, other: Time) -> Time {
        Time(self.0 - other.0)
    }
}

/// A data rate in bits per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(pub u64);

/// Preamble and start delimiter (8), frame check sequence (4) and inter-packet gap (12):
/// what a frame occupies on the medium beside its own bytes (IEEE 802.3 clause 4.4.2).
pub const WIRE_OVERHEAD_BYTES: u64 = 24;
/// Shortest frame without its check sequence (IEEE 802.3 clause 4.4.2); shorter ones are padded on the medium.
pub const MIN_FRAME_BYTES: u64 = 60;
/// What a switch has to have of a frame before it can forward it: the headers up to the transport, in a 64-byte cell.
pub const HEADER_BYTES: u64 = 64;
/// Bits in one pause quantum (IEEE 802.3 annex 31B.2).
pub const PAUSE_QUANTUM_BITS: u64 = 512;

impl Rate {
    /// Time to move `bytes` at this rate, rounded up to a picosecond.
    pub fn time_for_bytes(self, bytes: u64) -> Time {
        self.time_for_bits(bytes * 8)
    }

    /// Time to move `bits` at this rate, rounded up to a picosecond.
    pub fn time_for_bits(self, bits: u64) -> Time {
        match bits.checked_mul(1_000_000_000_000) {
            Some(product) => Time(product.div_ceil(self.0)),
            None => {
                let wide = (u128::from(bits) * 1_000_000_000_000).div_ceil(u128::from(self.0));
                Time(u64::try_from(wide).unwrap_or(u64::MAX))
            }
        }
    }

    /// Time that a frame of `frame_bytes` (without check sequence) occupies the medium.
    pub fn frame_time(self, frame_bytes: usize) -> Time {
        self.time_for_bytes(wire_bytes(frame_bytes))
    }

    /// Length of `quanta` pause quanta on a link of this rate.
    pub fn quanta_time(self, quanta: u16) -> Time {
        self.time_for_bits(u64::from(quanta) * PAUSE_QUANTUM_BITS)
    }
}

/// Bytes of the medium that a frame of `frame_bytes` (without check sequence) takes.
pub fn wire_bytes(frame_bytes: usize) -> u64 {
    (frame_bytes as u64).max(MIN_FRAME_BYTES) + WIRE_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serialization_is_exact_at_common_rates() {
        assert_eq!(Rate(400_000_000_000).time_for_bytes(1), Time(20));
        assert_eq!(Rate(100_000_000_000).frame_time(1500), Time(1524 * 80));
        assert_eq!(Rate(10_000_000_000).frame_time(14), Time(84 * 800));
    }

    #[test]
    fn longest_pause_at_100g_is_335_us() {
        assert_eq!(
            Rate(100_000_000_000).quanta_time(65_535).as_ns() / 1000,
            335
        );
    }
}
