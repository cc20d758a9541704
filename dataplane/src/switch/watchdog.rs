//! The PFC watchdog with SONiC's semantics: a queue that holds frames, sends none and is paused for long is in a storm; what it
//! holds and gets is then dropped (or sent all the same, or only told) until the pauses stop.

use crate::time::Time;
use crate::tx::PRIORITIES;

/// What is done about a storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchdogAction {
    /// Frames of the queue are dropped, and so are frames of its priority that come in by its port.
    Drop,
    /// Its frames are sent in spite of the pause.
    Forward,
    /// Nothing but an event.
    Alert,
}

/// Settings, by the names of SONiC's `pfcwd`.
#[derive(Clone, Copy, Debug)]
pub struct WatchdogConfig {
    /// How long a queue has to be stuck.
    pub detection_time: Time,
    /// How long it has to be without pauses to be restored.
    pub restoration_time: Time,
    /// How often queues are looked at.
    pub poll_interval: Time,
    /// What is done.
    pub action: WatchdogAction,
}

/// What a poll sees of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sight {
    pub queue_bytes: u64,
    pub tx_frames: u64,
    /// Pause frames received so far.
    pub rx_pause: u64,
    pub paused: bool,
}

/// What has changed for a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Storm,
    Restored,
}

#[derive(Clone, Copy, Debug, Default)]
struct Watch {
    tx_frames: u64,
    rx_pause: u64,
    stuck_polls: u64,
    quiet_polls: u64,
    storm: bool,
}

/// The watchdog of one port.
#[derive(Clone, Debug, Default)]
pub(super) struct Watchdog {
    queues: [Watch; PRIORITIES],
}

impl Watchdog {
    /// Whether a queue is in a storm.
    pub fn in_storm(&self, priority: usize) -> bool {
        self.queues[priority].storm
    }

    /// One poll of a queue. A storm takes two polls running at least, since the first has nothing to compare with.
    pub fn poll(
        &mut self,
        priority: usize,
        sight: Sight,
        config: &WatchdogConfig,
    ) -> Option<Change> {
        let watch = &mut self.queues[priority];
        let pauses = sight.paused || sight.rx_pause > watch.rx_pause;
        let stuck = sight.queue_bytes > 0 && sight.tx_frames == watch.tx_frames && pauses;
        watch.tx_frames = sight.tx_frames;
        watch.rx_pause = sight.rx_pause;
        let polls = |time: Time| time.0.div_ceil(config.poll_interval.0.max(1));
        if !watch.storm {
            watch.stuck_polls = if stuck { watch.stuck_polls + 1 } else { 0 };
            if watch.stuck_polls >= polls(config.detection_time).max(2) {
                watch.storm = true;
                watch.quiet_polls = 0;
                return Some(Change::Storm);
            }
            return None;
        }
        watch.quiet_polls = if pauses { 0 } else { watch.quiet_polls + 1 };
        if watch.quiet_polls >= polls(config.restoration_time).max(1) {
            *watch = Watch {
                tx_frames: watch.tx_frames,
                rx_pause: watch.rx_pause,
                ..Watch::default()
            };
            return Some(Change::Restored);
        }
        None
    }

    /// Whether there is anything to go on watching.
    pub fn is_idle(&self) -> bool {
        self.queues.iter().all(|w| !w.storm && w.stuck_polls == 0)
    }
}
