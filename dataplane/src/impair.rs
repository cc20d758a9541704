//! What may be wrong with a link, for each direction: frames lost, bits flipped, time added. All of it is drawn from a generator
//! of the link's own.

use rand_core::RngCore;
use rand_pcg::Pcg64Mcg;

use crate::switch::mix;
use crate::time::{Rate, Time};

/// One thing that is wrong, set for both directions of a link; its neutral value mends it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Impairment {
    /// Every n-th frame is lost; 0 for none.
    LossEvery(u64),
    /// Each frame is lost with this probability.
    LossRate(f64),
    /// Each bit is flipped with this probability.
    BitErrorRate(f64),
    /// Added to the delay.
    AddedDelay(Time),
    /// The rate at which the link runs; `None` for its own.
    Rate(Option<Rate>),
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Sound,
    Lost,
    /// This bit of the frame is flipped.
    Corrupted(u64),
}

/// State of one direction of a link.
#[derive(Debug)]
pub(crate) struct Line {
    loss_every: u64,
    loss_rate: f64,
    bit_error_rate: f64,
    pub added_delay: Time,
    frames: u64,
    rng: Pcg64Mcg,
}

impl Line {
    pub fn new(seed: u64) -> Line {
        Line {
            loss_every: 0,
            loss_rate: 0.0,
            bit_error_rate: 0.0,
            added_delay: Time::ZERO,
            frames: 0,
            rng: Pcg64Mcg::new(u128::from(mix(seed)) << 64 | u128::from(seed)),
        }
    }

    pub fn set(&mut self, impairment: Impairment) {
        match impairment {
            Impairment::LossEvery(n) => {
                self.loss_every = n;
                self.frames = 0;
            }
            Impairment::LossRate(p) => self.loss_rate = p,
            Impairment::BitErrorRate(p) => self.bit_error_rate = p,
            Impairment::AddedDelay(delay) => self.added_delay = delay,
            Impairment::Rate(_) => {}
        }
    }

    fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && ((self.rng.next_u64() >> 11) as f64) < p * (1u64 << 53) as f64
    }

    /// Draws what becomes of a frame of so many bytes.
    pub fn fate(&mut self, frame_bytes: usize) -> Fate {
        self.frames += 1;
        let counted = self.loss_every > 0 && self.frames % self.loss_every == 0;
        let loss_rate = self.loss_rate;
        if counted || self.chance(loss_rate) {
            return Fate::Lost;
        }
        let bits = frame_bytes as u64 * 8;
        // At least one of so many bits: one flip stands for all, since one is enough to spoil the frame.
        let spoiled = -f64::exp_m1(bits as f64 * f64::ln_1p(-self.bit_error_rate));
        if self.bit_error_rate > 0.0 && bits > 0 && self.chance(spoiled) {
            return Fate::Corrupted(self.rng.next_u64() % bits);
        }
        Fate::Sound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nth_frame_is_lost() {
        let mut line = Line::new(1);
        line.set(Impairment::LossEvery(4));
        let lost: Vec<bool> = (0..8).map(|_| line.fate(100) == Fate::Lost).collect();
        assert_eq!(lost, [false, false, false, true, false, false, false, true]);
        line.set(Impairment::LossEvery(0));
        assert!((0..100).all(|_| line.fate(100) == Fate::Sound));
    }

    #[test]
    fn loss_and_bit_errors_have_their_probabilities() {
        let mut line = Line::new(2);
        line.set(Impairment::LossRate(0.1));
        let lost = (0..100_000)
            .filter(|_| line.fate(100) == Fate::Lost)
            .count() as i64;
        assert!((lost - 10_000).abs() < 500, "{lost}");
        line.set(Impairment::LossRate(0.0));
        line.set(Impairment::BitErrorRate(1e-5));
        let corrupted = (0..100_000)
            .filter(|_| matches!(line.fate(1250), Fate::Corrupted(bit) if bit < 10_000))
            .count() as i64;
        // 1 - (1 - 1e-5)^10,000 is 9.516 %.
        assert!((corrupted - 9_516).abs() < 500, "{corrupted}");
    }
}
