//! DCQCN's reaction point (Zhu et al., SIGCOMM 2015, section 3.1, equations 1 to 4 and figure 7).
//!
//! Nothing here sets a timer: alpha's decay and the rate's timed increases that have come due are applied when the
//! state is next looked at, which gives the same numbers as doing them on time.

use crate::time::{Rate, Time};

/// Parameters of the reaction point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DcqcnParams {
    /// Gain of alpha's moving average.
    pub g: f64,
    /// Alpha decays once each time that this passes without a CNP.
    pub alpha_timer: Time,
    /// Least time between two rate cuts.
    pub min_cut_interval: Time,
    /// Period of timed rate increases.
    pub increase_timer: Time,
    /// Bytes between counted rate increases; 0 for none (the timer alone then leads through the stages).
    pub byte_counter: u64,
    /// Steps of fast recovery.
    pub fast_recovery_steps: u32,
    /// Additive increase.
    pub rate_ai: Rate,
    /// Hyper increase.
    pub rate_hai: Rate,
    /// Lower bound of the rate.
    pub min_rate: Rate,
}

/// Rate state of one queue pair.
#[derive(Clone, Debug)]
pub struct Dcqcn {
    params: DcqcnParams,
    line_bps: f64,
    current_bps: f64,
    target_bps: f64,
    alpha: f64,
    alpha_at: Time,
    cut_at: Option<Time>,
    timer_at: Time,
    timer_stage: u32,
    byte_stage: u32,
    bytes: u64,
}

impl Dcqcn {
    /// A flow that starts at line rate with alpha 1, as in the paper.
    pub fn new(params: DcqcnParams, line: Rate) -> Dcqcn {
        let line_bps = line.0 as f64;
        Dcqcn {
            params,
            line_bps,
            current_bps: line_bps,
            target_bps: line_bps,
            alpha: 1.0,
            alpha_at: Time::ZERO,
            cut_at: None,
            timer_at: Time::ZERO,
            timer_stage: 0,
            byte_stage: 0,
            bytes: 0,
        }
    }

    fn is_limited(&self) -> bool {
        self.current_bps < self.line_bps
    }

    /// Applies everything that has come due up to `now`.
    pub fn advance(&mut self, now: Time) {
        if self.cut_at.is_none() {
            return;
        }
        while self.alpha_at + self.params.alpha_timer <= now {
            self.alpha_at += self.params.alpha_timer;
            self.alpha *= 1.0 - self.params.g;
            if self.alpha < 1e-9 || self.params.g <= 0.0 {
                // Nothing is left to decay: the rest of the steps would change nothing.
                let steps = now.saturating_sub(self.alpha_at).0 / self.params.alpha_timer.0.max(1);
                self.alpha_at += Time(steps * self.params.alpha_timer.0);
            }
        }
        while self.is_limited() && self.timer_at + self.params.increase_timer <= now {
            self.timer_at += self.params.increase_timer;
            self.timer_stage += 1;
            self.increase();
        }
    }

    /// A CNP has come in: cut the rate (equation 1), unless the last cut was just now.
    pub fn on_cnp(&mut self, now: Time) {
        self.advance(now);
        if self
            .cut_at
            .is_some_and(|at| now < at + self.params.min_cut_interval)
        {
            return;
        }
        self.cut_at = Some(now);
        self.target_bps = self.current_bps;
        self.current_bps =
            (self.current_bps * (1.0 - self.alpha / 2.0)).max(self.params.min_rate.0 as f64);
        self.alpha = (1.0 - self.params.g) * self.alpha + self.params.g;
        self.alpha_at = now;
        self.timer_at = now;
        self.timer_stage = 0;
        self.byte_stage = 0;
        self.bytes = 0;
    }

    /// `bytes` were sent.
    pub fn on_sent(&mut self, now: Time, bytes: u64) {
        self.advance(now);
        if self.params.byte_counter == 0 || !self.is_limited() {
            return;
        }
        self.bytes += bytes;
        while self.bytes >= self.params.byte_counter {
            self.bytes -= self.params.byte_counter;
            self.byte_stage += 1;
            self.increase();
        }
    }

    /// One step of fast recovery, additive or hyper increase (figure 7, equations 3 and 4).
    fn increase(&mut self) {
        let f = self.params.fast_recovery_steps;
        if self.params.byte_counter == 0 {
            // Without a byte counter the timer alone counts, as in the HPCC artifact: F steps of recovery, one additive, then hyper.
            if self.timer_stage > f + 1 {
                self.target_bps += self.params.rate_hai.0 as f64;
            } else if self.timer_stage == f + 1 {
                self.target_bps += self.params.rate_ai.0 as f64;
            }
        } else {
            let (least, most) = (
                self.timer_stage.min(self.byte_stage),
                self.timer_stage.max(self.byte_stage),
            );
            if least > f {
                let steps = f64::from(least - f);
                self.target_bps += steps * self.params.rate_hai.0 as f64;
            } else if most > f {
                self.target_bps += self.params.rate_ai.0 as f64;
            }
        }
        self.target_bps = self.target_bps.min(self.line_bps);
        self.current_bps = (self.target_bps + self.current_bps) / 2.0;
        // Halving the distance never arrives: within one part in a million it has.
        if self.current_bps > self.line_bps * (1.0 - 1e-6) {
            self.current_bps = self.line_bps;
        }
    }

    /// Rate now.
    pub fn rate(&self) -> Rate {
        Rate(self.current_bps.max(1.0) as u64)
    }

    /// Congestion estimate now.
    pub fn alpha(&self) -> f64 {
        self.alpha
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000_000;

    fn params() -> DcqcnParams {
        DcqcnParams {
            g: 1.0 / 256.0,
            alpha_timer: Time(55 * US),
            min_cut_interval: Time(50 * US),
            increase_timer: Time(55 * US),
            byte_counter: 10_000_000,
            fast_recovery_steps: 5,
            rate_ai: Rate(40_000_000),
            rate_hai: Rate(400_000_000),
            min_rate: Rate(1_000_000),
        }
    }

    #[test]
    fn first_cut_halves_and_recovery_follows_the_equations() {
        let mut cc = Dcqcn::new(params(), Rate(40_000_000_000));
        cc.on_cnp(Time(100 * US));
        assert_eq!(cc.rate(), Rate(20_000_000_000));
        // A CNP within the interval cuts nothing.
        cc.on_cnp(Time(120 * US));
        assert_eq!(cc.rate(), Rate(20_000_000_000));
        // Fast recovery: the distance to the target halves at each timer.
        for step in 1..=5u32 {
            cc.advance(Time((100 + 55 * u64::from(step)) * US));
            let expected = 40e9 - 20e9 / 2f64.powi(step as i32);
            assert!((cc.rate().0 as f64 - expected).abs() < 2.0);
        }
        // Alpha: one update by the CNP (it was 1), five decays.
        let expected = (1.0 - 1.0 / 256.0f64).powi(5);
        assert!((cc.alpha() - expected).abs() < 1e-12);
    }

    #[test]
    fn looking_often_or_once_gives_the_same() {
        let mut often = Dcqcn::new(params(), Rate(40_000_000_000));
        let mut once = often.clone();
        often.on_cnp(Time(US));
        once.on_cnp(Time(US));
        for us in 2..3000 {
            often.advance(Time(us * US));
        }
        once.advance(Time(2999 * US));
        assert_eq!(often.rate(), once.rate());
        assert_eq!(often.alpha(), once.alpha());
    }
}
