//! ECN marking as switches do it for DCQCN: RED on the length of the egress queue, instantaneous or averaged
//! (Zhu et al., SIGCOMM 2015, section 3.1 and figure 5; Floyd and Jacobson, ToN 1993).

use rand_core::RngCore;
use rand_pcg::Pcg64Mcg;

/// Marking profile of a queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EcnProfile {
    /// Nothing is marked up to this queue length.
    pub kmin_bytes: u64,
    /// Everything is marked above this queue length.
    pub kmax_bytes: u64,
    /// Marking probability when the queue reaches `kmax_bytes`, 0 to 1.
    pub pmax: f64,
    /// Look at the queue when a packet leaves it, instead of when it comes in.
    pub at_dequeue: bool,
    /// Weight of the newest length in the moving average; 1 is the instantaneous length.
    pub weight: f64,
    /// Drop packets that are not ECN-capable where others are marked (WRED), instead of leaving them alone.
    pub drop_not_ect: bool,
}

/// The moving average of a queue's length.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueAverage(f64);

impl QueueAverage {
    /// Takes in the length now; returns the average.
    pub fn update(&mut self, queue_bytes: u64, weight: f64) -> u64 {
        if weight >= 1.0 {
            return queue_bytes;
        }
        self.0 += weight * (queue_bytes as f64 - self.0);
        self.0 as u64
    }
}

impl Default for EcnProfile {
    fn default() -> Self {
        EcnProfile {
            kmin_bytes: 0,
            kmax_bytes: 0,
            pmax: 0.0,
            at_dequeue: false,
            weight: 1.0,
            drop_not_ect: false,
        }
    }
}

impl EcnProfile {
    /// Probability that a packet which finds `queue_bytes` in the queue is marked.
    pub fn probability(&self, queue_bytes: u64) -> f64 {
        if queue_bytes <= self.kmin_bytes {
            0.0
        } else if queue_bytes > self.kmax_bytes {
            1.0
        } else {
            let span = (self.kmax_bytes - self.kmin_bytes) as f64;
            self.pmax * (queue_bytes - self.kmin_bytes) as f64 / span
        }
    }

    /// Draws whether to mark. The generator moves on only where chance decides.
    pub fn draw(&self, queue_bytes: u64, rng: &mut Pcg64Mcg) -> bool {
        let p = self.probability(queue_bytes);
        if p <= 0.0 || p >= 1.0 {
            return p >= 1.0;
        }
        ((rng.next_u64() >> 11) as f64) < p * (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probability_follows_the_red_line() {
        let profile = EcnProfile {
            kmin_bytes: 100,
            kmax_bytes: 300,
            pmax: 0.2,
            ..EcnProfile::default()
        };
        assert_eq!(profile.probability(100), 0.0);
        assert!((profile.probability(200) - 0.1).abs() < 1e-12);
        assert!((profile.probability(300) - 0.2).abs() < 1e-12);
        assert_eq!(profile.probability(301), 1.0);
    }

    #[test]
    fn draws_have_the_probability() {
        let profile = EcnProfile {
            kmin_bytes: 0,
            kmax_bytes: 100,
            pmax: 0.5,
            ..EcnProfile::default()
        };
        let mut rng = Pcg64Mcg::new(7);
        let marked = (0..100_000).filter(|_| profile.draw(50, &mut rng)).count();
        // Binomial with p = 0.25: standard deviation 137.
        assert!((marked as i64 - 25_000).abs() < 700, "{marked}");
    }
}
