//! The egress scheduler of a port: strict priority, deficit-weighted round robin (Shreedhar and Varghese, SIGCOMM 1995;
//! IEEE 802.1Q clause 8.6.8), and a shaper for each queue.

use crate::time::{wire_bytes, Rate, Time};
use crate::tx::PRIORITIES;

/// How a queue is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Before all weighted queues, and before strict queues of lower priority.
    Strict,
    /// In proportion to its weight among the weighted queues that may send.
    Weighted(u32),
}

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shaper {
    /// Rate at which tokens come in.
    pub rate: Rate,
    /// How much may go out at once after a rest.
    pub burst_bytes: u64,
}

/// Settings of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// How it is served.
    pub service: Service,
    /// Upper bound of its rate.
    pub shaper: Option<Shaper>,
}

impl Default for QueueConfig {
    fn default() -> Self {
        QueueConfig {
            service: Service::Strict,
            shaper: None,
        }
    }
}

/// What the scheduler wants to know of a queue: the wire bytes of its first frame, if it holds one that may be sent.
pub type Heads = [Option<u64>; PRIORITIES];

/// What it decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Send the first frame of this queue.
    Send(usize),
    /// A shaper holds everything back until then.
    Wait(Time),
    /// There is nothing to send.
    Idle,
}

/// State of a port's scheduler.
#[derive(Clone, Debug)]
pub struct Scheduler {
    queues: [QueueConfig; PRIORITIES],
    /// Bytes that a weighted queue may still send; at most what one frame needs, whatever happened before.
    credit: [u64; PRIORITIES],
    /// The weighted queue that is looked at first.
    turn: usize,
    /// When a shaped queue's bucket is full again (the theoretical arrival time of the generic cell rate algorithm).
    full_at: [Time; PRIORITIES],
}

impl Scheduler {
    /// A scheduler at rest.
    pub fn new(queues: [QueueConfig; PRIORITIES]) -> Scheduler {
        Scheduler {
            queues,
            credit: [0; PRIORITIES],
            turn: 0,
            full_at: [Time::ZERO; PRIORITIES],
        }
    }

    /// Chooses the next queue.
    pub fn choose(&mut self, now: Time, heads: &Heads) -> Choice {
        let mut wake = Time::MAX;
        let mut may_send = *heads;
        for (queue, head) in may_send.iter_mut().enumerate() {
            if head.is_none() {
                continue;
            }
            let from = self.eligible_at(queue);
            if from > now {
                wake = wake.min(from);
                *head = None;
            }
        }
        let strict = (0..PRIORITIES)
            .rev()
            .find(|&q| may_send[q].is_some() && self.queues[q].service == Service::Strict);
        if let Some(queue) = strict.or_else(|| self.choose_weighted(heads, &may_send)) {
            return Choice::Send(queue);
        }
        if wake < Time::MAX {
            Choice::Wait(wake)
        } else {
            Choice::Idle
        }
    }

    fn eligible_at(&self, queue: usize) -> Time {
        match self.queues[queue].shaper {
            Some(shaper) => {
                self.full_at[queue].saturating_sub(shaper.rate.time_for_bytes(shaper.burst_bytes))
            }
            None => Time::ZERO,
        }
    }

    /// Gives every queue that may send as many rounds of its weight as it takes for one of them to afford its frame. A queue
    /// that may not send (empty, paused, shaped) gets nothing: its share goes to the others, and it saves nothing up.
    fn choose_weighted(&mut self, heads: &Heads, may_send: &Heads) -> Option<usize> {
        let weight = |queue: usize| match self.queues[queue].service {
            Service::Weighted(weight) => u64::from(weight.max(1)),
            Service::Strict => 0,
        };
        let rounds = |queue: usize| -> Option<u64> {
            let head = may_send[queue].filter(|_| weight(queue) > 0)?;
            let lacking = head.saturating_sub(self.credit[queue]);
            Some(lacking.div_ceil(weight(queue)))
        };
        let least = (0..PRIORITIES).filter_map(rounds).min()?;
        let weights: [u64; PRIORITIES] = std::array::from_fn(weight);
        for queue in 0..PRIORITIES {
            if heads[queue].is_none() {
                self.credit[queue] = 0;
            } else if may_send[queue].is_some() {
                self.credit[queue] += least * weights[queue];
            }
        }
        (0..PRIORITIES)
            .map(|i| (self.turn + i) % PRIORITIES)
            .find(|&q| weights[q] > 0 && may_send[q].is_some_and(|head| self.credit[q] >= head))
    }

    /// The first frame of a queue, of so many bytes, is being sent.
    pub fn sent(&mut self, now: Time, queue: usize, frame_bytes: usize) {
        let bytes = wire_bytes(frame_bytes);
        if let Service::Weighted(_) = self.queues[queue].service {
            self.credit[queue] = self.credit[queue].saturating_sub(bytes);
            self.turn = (queue + 1) % PRIORITIES;
        }
        if let Some(shaper) = self.queues[queue].shaper {
            self.full_at[queue] = self.full_at[queue].max(now) + shaper.rate.time_for_bytes(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn weighted(weights: [u32; PRIORITIES]) -> Scheduler {
        Scheduler::new(weights.map(|weight| QueueConfig {
            service: if weight == 0 {
                Service::Strict
            } else {
                Service::Weighted(weight)
            },
            shaper: None,
        }))
    }

    #[test]
    fn strict_queues_go_first_from_the_top() {
        let mut s = weighted([0, 5, 0, 0, 0, 0, 0, 0]);
        let mut heads = [None; PRIORITIES];
        heads[0] = Some(1000);
        heads[1] = Some(1000);
        heads[2] = Some(1000);
        assert_eq!(s.choose(Time::ZERO, &heads), Choice::Send(2));
        heads[2] = None;
        // Strict queue 0 goes before the weighted one, whatever its number.
        assert_eq!(s.choose(Time::ZERO, &heads), Choice::Send(0));
    }

    #[test]
    fn a_shaper_holds_its_rate_and_its_burst() {
        let mut queues = [QueueConfig::default(); PRIORITIES];
        let rate = Rate(8_000_000_000);
        queues[3].shaper = Some(Shaper {
            rate,
            burst_bytes: 3000,
        });
        let mut s = Scheduler::new(queues);
        let mut heads = [None; PRIORITIES];
        heads[3] = Some(1000);
        let mut now = Time::from_ns(1_000_000);
        let start = now;
        let mut sent = 0u64;
        while now < start + Time::from_ns(1_000_000) {
            match s.choose(now, &heads) {
                Choice::Send(3) => {
                    s.sent(now, 3, 1000 - 24);
                    sent += 1000;
                    now += Time::from_ns(10);
                }
                Choice::Wait(until) => now = until,
                other => panic!("{other:?}"),
            }
        }
        // 1 byte a nanosecond for a millisecond, and the burst.
        assert!((1_000_000..=1_004_000).contains(&sent), "{sent}");
    }

    proptest! {
        #[test]
        fn shares_are_within_a_frame_of_the_weights(
            weights in prop::array::uniform4(1u32..100),
            sizes in prop::array::uniform4(64u64..9000),
            steps in 100usize..2000,
        ) {
            let mut all = [0; PRIORITIES];
            all[..4].copy_from_slice(&weights);
            let mut s = weighted(all);
            let mut heads = [None; PRIORITIES];
            for q in 0..4 {
                heads[q] = Some(wire_bytes(sizes[q] as usize));
            }
            let mut sent = [0u64; 4];
            for _ in 0..steps {
                let Choice::Send(q) = s.choose(Time::ZERO, &heads) else { panic!() };
                prop_assert!(q < 4);
                s.sent(Time::ZERO, q, sizes[q] as usize);
                sent[q] += wire_bytes(sizes[q] as usize);
            }
            // Normalized by weight, no two queues are further apart than a frame of each (and a round of rounding).
            for a in 0..4 {
                for b in 0..4 {
                    let (wa, wb) = (f64::from(weights[a]), f64::from(weights[b]));
                    let lead = sent[a] as f64 / wa - sent[b] as f64 / wb;
                    let bound = wire_bytes(sizes[a] as usize) as f64 / wa + wire_bytes(sizes[b] as usize) as f64 / wb + 2.0;
                    prop_assert!(lead <= bound, "{lead} {bound}");
                }
            }
        }

        #[test]
        fn a_pause_builds_up_no_debt(paused in 1usize..500, weight in 1u32..50) {
            let mut s = weighted([10, weight, 0, 0, 0, 0, 0, 0]);
            let mut heads = [None; PRIORITIES];
            heads[0] = Some(1524);
            for _ in 0..paused {
                prop_assert_eq!(s.choose(Time::ZERO, &heads), Choice::Send(0));
                s.sent(Time::ZERO, 0, 1500);
            }
            // Queue 1 may send again: over the next frames it gets its share and no more.
            heads[1] = Some(1524);
            let mut sent = [0f64; 2];
            for _ in 0..600 {
                let Choice::Send(q) = s.choose(Time::ZERO, &heads) else { panic!() };
                s.sent(Time::ZERO, q, 1500);
                sent[q] += 1524.0;
            }
            let lead = sent[1] / f64::from(weight) - sent[0] / 10.0;
            prop_assert!(lead <= 1524.0 / f64::from(weight) + 1524.0 / 10.0 + 2.0, "{lead}");
        }
    }
}
