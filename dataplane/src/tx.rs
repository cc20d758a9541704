//! The sending side of a port, which switch and NIC share: busy or idle, link state, and pause obeyed per priority
//! (IEEE 802.1Qbb clause 36, 802.3 annex 31B).

use std::collections::VecDeque;

use crate::effect::{Effect, Effects, Port, Timer};
use crate::frame::Frame;
use crate::time::{Rate, Time};
use crate::wire::Pause;

/// Priorities of IEEE 802.1Q.
pub const PRIORITIES: usize = 8;

/// Twice the time of a pause frame for each priority: half of the link stays free, whatever the quanta.
const LEAST_REFRESH_BITS: u64 = 2 * PRIORITIES as u64 * 84 * 8;

/// Counters of one port and priority, as in `ports.parquet`.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct PriorityCounters {
    pub tx_frames: u64,
    pub tx_bytes: u64,
    pub rx_frames: u64,
    pub rx_bytes: u64,
    pub ecn_marked: u64,
    /// Time for which a received pause stopped this priority, in picoseconds, up to the last change.
    pub paused_ps: u64,
    /// Pause frames with a time above zero received for this priority.
    pub rx_pause: u64,
    /// Pause frames with a time above zero sent for this priority.
    pub tx_pause: u64,
}

/// How a port takes pause frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PauseResponse {
    /// From the pause frame's last bit to its effect (IEEE 802.1Qbb clause 36, the pause delay of 802.3 annex 31B.3.7).
    pub delay: Time,
    /// A mis-set port ignores them.
    pub ignores: bool,
}

/// Most pause frames that are yet to take effect; they come no faster than the link, and the delay is short.
const HEARD_LIMIT: usize = 4096;

/// The sending side of a port.
#[derive(Debug)]
pub struct Tx {
    port: Port,
    /// Rate of the link.
    pub rate: Rate,
    /// When the frame in flight has left.
    free_at: Time,
    /// The time for which the node has asked to be told so.
    asked_for: Option<Time>,
    up: bool,
    /// At most one pause frame a priority: a newer one takes the older one's place.
    control: VecDeque<(u8, Frame)>,
    /// How received pause frames are taken.
    response: PauseResponse,
    /// Pause frames that take effect later.
    heard: VecDeque<(Time, Pause)>,
    paused_since: [Option<Time>; PRIORITIES],
    paused_until: [Time; PRIORITIES],
    /// Counters by priority; receivers count here too.
    pub counters: [PriorityCounters; PRIORITIES],
}

impl Tx {
    /// An idle port that is up.
    pub fn new(port: Port, rate: Rate) -> Tx {
        Tx {
            port,
            rate,
            free_at: Time::ZERO,
            asked_for: None,
            up: true,
            control: VecDeque::new(),
            response: PauseResponse::default(),
            heard: VecDeque::new(),
            paused_since: [None; PRIORITIES],
            paused_until: [Time::ZERO; PRIORITIES],
            counters: Default::default(),
        }
    }

    /// Whether a frame can be started now.
    pub fn is_ready(&self, now: Time) -> bool {
        self.up && self.free_at <= now
    }

    /// Whether a pause frame waits.
    pub fn has_control(&self) -> bool {
        !self.control.is_empty()
    }

    /// Asks to be told when the port is free, if it is busy and that was not asked for yet.
    pub fn ask_when_free(&mut self, now: Time, fx: &mut Effects) {
        if self.free_at > now && self.asked_for != Some(self.free_at) {
            self.asked_for = Some(self.free_at);
            fx.push(Effect::WhenFree {
                port: self.port,
                at: self.free_at,
            });
        }
    }

    /// Whether the link is up.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// The link went up or down. Going down forgets pauses and waiting pause frames: the peer's state is gone.
    pub fn set_up(&mut self, now: Time, up: bool) {
        self.up = up;
        if !up {
            self.control.clear();
            self.heard.clear();
            for priority in 0..PRIORITIES {
                self.resume(priority, now);
            }
        }
    }

    /// Whether `priority` must not be sent now.
    pub fn is_paused(&self, priority: usize, now: Time) -> bool {
        self.paused_until[priority] > now
    }

    /// Sets how pause frames are taken from now on.
    pub fn set_response(&mut self, response: PauseResponse) {
        self.response = response;
    }

    /// A pause frame was received: it is obeyed now, or after the response delay, or not at all.
    pub fn on_pause(&mut self, now: Time, pause: Pause, fx: &mut Effects) {
        if self.response.ignores {
            self.count_pause(pause);
        } else if self.response.delay == Time::ZERO {
            self.obey(now, pause, fx);
        } else if self.heard.len() < HEARD_LIMIT {
            let at = now + self.response.delay;
            self.heard.push_back((at, pause));
            fx.push(Effect::Timer {
                at,
                timer: Timer::PauseTakesEffect { port: self.port },
            });
        }
    }

    /// Obeys what was heard and is due.
    pub fn obey_heard(&mut self, now: Time, fx: &mut Effects) {
        while self.heard.front().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, pause)) = self.heard.pop_front() {
                self.obey(now, pause, fx);
            }
        }
    }

    fn count_pause(&mut self, pause: Pause) {
        for (priority, time) in pause.times() {
            self.counters[priority].rx_pause += u64::from(time > 0);
        }
    }

    fn obey(&mut self, now: Time, pause: Pause, fx: &mut Effects) {
        self.count_pause(pause);
        for (priority, time) in pause.times() {
            if time == 0 {
                self.resume(priority, now);
                continue;
            }
            let until = now + self.rate.quanta_time(time);
            self.settle_pause(priority, now);
            self.paused_since[priority] = Some(now);
            self.paused_until[priority] = until;
            fx.push(Effect::Timer {
                at: until,
                timer: Timer::Resume { port: self.port },
            });
        }
    }

    fn resume(&mut self, priority: usize, now: Time) {
        self.settle_pause(priority, now);
        self.paused_since[priority] = None;
        self.paused_until[priority] = Time::ZERO;
    }

    /// Adds the pause that has passed to the counter and goes on counting from `now`.
    fn settle_pause(&mut self, priority: usize, now: Time) {
        if let Some(since) = self.paused_since[priority] {
            let end = now.min(self.paused_until[priority]);
            self.counters[priority].paused_ps += end.saturating_sub(since).0;
            self.paused_since[priority] = (end < self.paused_until[priority]).then_some(end);
        }
    }

    /// Brings `paused_ps` of every priority up to `now`.
    pub fn settle_pauses(&mut self, now: Time) {
        for priority in 0..PRIORITIES {
            self.settle_pause(priority, now);
        }
    }

    /// Queues a pause frame of a priority, which goes before everything else and is never paused itself. One that still waits
    /// is out of date, and is replaced.
    pub fn push_control(&mut self, priority: u8, frame: Frame) {
        if !self.up {
            return;
        }
        match self.control.iter_mut().find(|(p, _)| *p == priority) {
            Some((_, waiting)) => *waiting = frame,
            None => self.control.push_back((priority, frame)),
        }
    }

    /// How long after a pause frame of `quanta` the next one is due: half its time, which leaves room for a frame in progress and
    /// the way to the peer; but never so often that pause frames fill the link.
    pub fn pause_refresh(&self, quanta: u16) -> Time {
        let least = self.rate.time_for_bits(LEAST_REFRESH_BITS);
        Time(self.rate.quanta_time(quanta).0 / 2)
            .max(least)
            .max(Time(1))
    }

    /// Starts the next waiting pause frame; true if there was one. Call only on a port that is ready.
    pub fn send_control(&mut self, now: Time, fx: &mut Effects) -> bool {
        let Some((_, frame)) = self.control.pop_front() else {
            return false;
        };
        self.start(now, frame, fx);
        true
    }

    /// Starts a data frame of `priority`.
    pub fn send(&mut self, now: Time, frame: Frame, priority: usize, fx: &mut Effects) {
        let counters = &mut self.counters[priority];
        counters.tx_frames += 1;
        counters.tx_bytes += frame.len() as u64;
        self.start(now, frame, fx);
    }

    fn start(&mut self, now: Time, frame: Frame, fx: &mut Effects) {
        debug_assert!(self.is_ready(now));
        self.free_at = now + self.rate.frame_time(frame.len());
        fx.push(Effect::Transmit {
            port: self.port,
            frame,
        });
    }
}
