//! What a node asks its executor to do. A node never does anything itself: it is given a frame or a timer with
//! the current fabric time, and returns effects.

use crate::frame::Frame;
use crate::time::Time;

/// Index of a port in its node, from 0 (OpenFlow port number minus one).
pub type Port = u16;

/// Which timer a node has set. It gets the same value back when the time has come, and decides then whether it still matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Timer {
    /// A received pause ends, or a shaper lets go: the port may go on.
    Resume { port: Port },
    /// An ingress priority still above XON repeats its pause before it expires.
    PauseRefresh { port: Port, priority: u8 },
    /// The oldest frame in a switch port's pipeline comes out of it.
    Pipeline { port: Port },
    /// A pause frame received a while ago takes effect.
    PauseTakesEffect { port: Port },
    /// The watchdog of a switch looks at its queues.
    Watchdog,
    /// A pause frame whose beginning came before is whole.
    MacControl { port: Port },
    /// A NIC may send again.
    NicWake,
    /// A queue pair's retransmission timer.
    Retransmit { qp: u32 },
    /// A storming NIC's next pause frame.
    Storm { priority: u8 },
}

/// Why a frame was dropped: the keys of `drops` in a run's summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum DropReason {
    Buffer,
    Headroom,
    NoRoute,
    Ttl,
    Watchdog,
    LinkDown,
    Malformed,
    /// Lost on a link that loses frames.
    LinkLoss,
}

impl DropReason {
    /// Every reason with its name in results.
    pub const ALL: [(DropReason, &'static str); 8] = [
        (DropReason::Buffer, "buffer"),
        (DropReason::Headroom, "headroom"),
        (DropReason::NoRoute, "no_route"),
        (DropReason::Ttl, "ttl"),
        (DropReason::Watchdog, "watchdog"),
        (DropReason::LinkDown, "link_down"),
        (DropReason::Malformed, "malformed"),
        (DropReason::LinkLoss, "link_loss"),
    ];

    /// Name in results.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// The kinds of a row in `events.parquet`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum EventKind {
    PfcXoff,
    PfcXon,
    LinkDown,
    LinkUp,
    Reroute,
    Drop(DropReason),
    Cnp,
    Nak,
    Retry,
    Fault,
    Watchdog,
}

impl EventKind {
    /// Name in results.
    pub fn name(self) -> &'static str {
        match self {
            EventKind::PfcXoff => "pfc_xoff",
            EventKind::PfcXon => "pfc_xon",
            EventKind::LinkDown => "link_down",
            EventKind::LinkUp => "link_up",
            EventKind::Reroute => "reroute",
            EventKind::Drop(_) => "drop",
            EventKind::Cnp => "cnp",
            EventKind::Nak => "nak",
            EventKind::Retry => "retry",
            EventKind::Fault => "fault",
            EventKind::Watchdog => "pfc_watchdog",
        }
    }
}

/// A row of `events.parquet` but for its time and node, which the executor adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// What happened.
    pub kind: EventKind,
    /// Port, if it happened at one.
    pub port: Option<Port>,
    /// Priority, if it concerns one.
    pub priority: Option<u8>,
    /// Flow number, if it concerns one.
    pub flow: Option<u32>,
    /// A number whose meaning goes with the kind: bytes held for `pfc_xoff` and `pfc_xon`, frame bytes for `drop`,
    /// PSN for `nak` and `retry`, pause quanta for the beginning of a storm (`fault`) and 0 for its end,
    /// 1 for a storm that the watchdog found and 0 for its end.
    pub detail: u64,
}

/// An effect of one input.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Effect {
    /// Start to send `frame`.
    Transmit { port: Port, frame: Frame },
    /// Say at `at`, when the frame in flight has left, that `port` is free: something waits for it.
    WhenFree { port: Port, at: Time },
    /// Come back at `at` with `timer`.
    Timer { at: Time, timer: Timer },
    /// Something worth a row in the results.
    Record(Record),
    /// A frame for the controller.
    PacketIn {
        port: Port,
        table: u8,
        cookie: u64,
        reason: u8,
        frame: Frame,
    },
    /// A message has come to its end.
    Finished {
        message: u32,
        outcome: Outcome,
        retransmitted_packets: u32,
    },
    /// The responder's queue pair `qp` (its index) holds one message more, complete and in order.
    Received { qp: u32, ecn_marked_packets: u32 },
}

/// How a message ended, as the verbs' completion status would tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Acknowledged to the last byte (`IBV_WC_SUCCESS`).
    Success,
    /// The transport retry counter was exceeded (`IBV_WC_RETRY_EXC_ERR`).
    RetryExceeded,
    /// The responder refused the request (`IBV_WC_REM_OP_ERR` and its kin).
    RemoteError,
    /// Flushed because the queue pair is in error (`IBV_WC_WR_FLUSH_ERR`).
    Flushed,
}

impl Outcome {
    /// Name in results.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Success => "success",
            Outcome::RetryExceeded => "retry_exceeded",
            Outcome::RemoteError => "remote_error",
            Outcome::Flushed => "flushed",
        }
    }
}

/// The effects of one input, in the order in which they came about.
pub type Effects = Vec<Effect>;

/// Shorthand for nodes.
pub(crate) fn record(
    fx: &mut Effects,
    kind: EventKind,
    port: Option<Port>,
    priority: Option<u8>,
    flow: Option<u32>,
    detail: u64,
) {
    fx.push(Effect::Record(Record {
        kind,
        port,
        priority,
        flow,
        detail,
    }));
}
