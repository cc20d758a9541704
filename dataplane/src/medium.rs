//! How frames get from one end of a link to the other.

use std::collections::VecDeque;

use crate::frame::Frame;
use crate::time::Time;

/// Number of a port in the whole fabric, by node and port.
pub type PortId = usize;

/// What a medium says when the fabric asks to go on to the next event.
#[derive(Debug)]
pub enum Wait {
    /// Go on.
    Ready,
    /// Go no further than this fabric time: a frame from outside has come in at a port.
    Foreign {
        /// Fabric time at which it was read.
        at: Time,
        /// The port at whose far end an outsider sent it.
        port: PortId,
        /// The frame.
        frame: Frame,
    },
    /// The wall time granted is used up; fabric time is now this.
    OutOfTime(Time),
}

/// A medium carries each frame of a link and direction in order.
pub trait Medium {
    /// Carries a frame that left `from` and is due at `to` later on; `to` is `None` where the far end is not one of ours.
    fn carry(&mut self, from: PortId, to: Option<PortId>, frame: Frame);
    /// Hands out the next frame carried to `port`; `None` if the medium lost it.
    fn collect(&mut self, port: PortId) -> Option<Frame>;
    /// Waits until the event due at `next` may be processed; the last one was at `now`.
    fn wait(&mut self, now: Time, next: Time) -> Wait;
    /// Sends out whatever is held back for batching.
    fn flush(&mut self);
}

/// Memory: the medium of the `simulate` engine.
#[derive(Debug, Default)]
pub struct MemoryMedium {
    wires: Vec<VecDeque<Frame>>,
}

impl Medium for MemoryMedium {
    fn carry(&mut self, _from: PortId, to: Option<PortId>, frame: Frame) {
        let Some(to) = to else { return };
        if self.wires.len() <= to {
            self.wires.resize_with(to + 1, VecDeque::new);
        }
        self.wires[to].push_back(frame);
    }

    fn collect(&mut self, port: PortId) -> Option<Frame> {
        self.wires.get_mut(port)?.pop_front()
    }

    fn wait(&mut self, _now: Time, _next: Time) -> Wait {
        Wait::Ready
    }

    fn flush(&mut self) {}
}
