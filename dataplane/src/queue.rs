//! The event queue and its order.
//!
//! Events are taken by fabric time. Events due at the same time are taken in this order:
//! 1. scheduled controls (link state, faults, posted messages, breakpoints), in the order in which they were scheduled;
//! 2. ports that have become free, by node and port;
//! 3. arrivals of frames, by node and port;
//! 4. frames from outside, by node and port;
//! 5. timers, by node, then in the order in which they were set;
//! 6. the sampling of time series.
//!
//! What is still equal after that is taken in the order in which it was scheduled. Nodes are numbered in the order of
//! the topology, so that no hash and no address has a say.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::effect::Timer;
use crate::time::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Control(u32),
    Free { node: u32, port: u16 },
    Arrival { node: u32, port: u16 },
    Foreign { node: u32, port: u16 },
    Timer { node: u32, timer: Timer },
    Sample,
}

impl Event {
    fn order(self) -> u64 {
        let key =
            |rank: u64, node: u32, port: u16| rank << 56 | u64::from(node) << 16 | u64::from(port);
        match self {
            Event::Control(_) => key(0, 0, 0),
            Event::Free { node, port } => key(1, node, port),
            Event::Arrival { node, port } => key(2, node, port),
            Event::Foreign { node, port } => key(3, node, port),
            Event::Timer { node, .. } => key(4, node, 0),
            Event::Sample => key(5, 0, 0),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    at: Time,
    order: u64,
    seq: u64,
    event: Event,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        // Reversed: the heap gives its greatest, and the earliest is wanted.
        (other.at, other.order, other.seq).cmp(&(self.at, self.order, self.seq))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    heap: BinaryHeap<Entry>,
    seq: u64,
}

impl EventQueue {
    pub fn push(&mut self, at: Time, event: Event) {
        self.seq += 1;
        self.heap.push(Entry {
            at,
            order: event.order(),
            seq: self.seq,
            event,
        });
    }

    pub fn next_at(&self) -> Option<Time> {
        self.heap.peek().map(|e| e.at)
    }

    pub fn pop(&mut self) -> Option<(Time, Event)> {
        self.heap.pop().map(|e| (e.at, e.event))
    }
}
