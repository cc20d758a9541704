//! The fabric: nodes, links, the event queue, and what is measured.

use std::collections::VecDeque;

use crate::capture::Capture;
use crate::effect::{DropReason, Effect, Effects, EventKind, Outcome, Port, Record};
use crate::frame::Frame;
use crate::impair::{Fate, Impairment, Line};
use crate::medium::{Medium, PortId, Wait};
use crate::nic::{Nic, QpConfig, StormSpec, TemplateError};
use crate::queue::{Event, EventQueue};
use crate::switch::{Action, PortConfig, Switch};
use crate::time::{Rate, Time};
use crate::tx::{PauseResponse, PriorityCounters, Tx, PRIORITIES};

/// Most frames from outside that wait at one port for their turn on the link.
const FOREIGN_LIMIT: usize = 1000;
/// Most rows of `events.parquet`; what comes later is counted only.
const EVENT_LIMIT: usize = 20_000_000;
/// Most rows of `ports.parquet`, and of `rates.parquet`; what comes later is counted only.
const ROW_LIMIT: usize = 50_000_000;
/// Most frames that wait for the controller.
const PACKET_IN_LIMIT: usize = 4096;

/// A node of the fabric.
#[derive(Debug)]
#[allow(missing_docs, clippy::large_enum_variant)]
pub enum Node {
    Switch(Switch),
    Nic(Nic),
}

/// One end of a link.
#[derive(Debug)]
struct End {
    peer: Option<(u32, Port)>,
    delay: Time,
    rate: Rate,
    /// The link's own rate, to which a degraded one returns.
    full_rate: Rate,
    /// What is wrong with this direction, if anything ever was.
    line: Option<Line>,
    /// When the last frame that was sent here is due: a link keeps order, also when its delay shrinks.
    last_due: Time,
    up: bool,
    /// Counts the times the link went down: a frame sent before is lost.
    epoch: u32,
    /// Frames on their way to this end, in order of arrival.
    inbound: VecDeque<Inbound>,
    foreign: VecDeque<Frame>,
    foreign_free_at: Time,
    /// When the last of them is due: they keep their order, also when the delay shrinks.
    foreign_due: Time,
    /// Capture file and interface of what leaves here.
    capture: Option<(usize, u32)>,
    /// Last sample, to report what happened since.
    sampled: [PriorityCounters; PRIORITIES],
}

/// A frame on its way.
#[derive(Clone, Copy, Debug)]
struct Inbound {
    epoch: u32,
    bytes: u32,
    bad_fcs: bool,
}

impl End {
    /// What becomes of a frame that leaves by this end, and what its delay is longer by.
    fn draw_fate(&mut self, frame_bytes: usize) -> (Fate, Time) {
        match &mut self.line {
            Some(line) => (line.fate(frame_bytes), line.added_delay),
            None => (Fate::Sound, Time::ZERO),
        }
    }
}

#[derive(Debug)]
struct Slot {
    node: Node,
    ends: Vec<End>,
    first_port_id: PortId,
}

/// A message of a flow.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Message {
    pub node: u32,
    pub qp: u32,
    pub bytes: u64,
    pub start: Time,
    pub end: Option<Time>,
    pub outcome: Option<Outcome>,
    pub retransmitted_packets: u32,
    pub ecn_marked_packets: u32,
}

/// Something that happens at a set fabric time.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Control {
    Post {
        message: u32,
    },
    LinkState {
        node: u32,
        port: Port,
        up: bool,
    },
    /// Something is wrong with a link from now on, or no more; `seed` is for what is drawn.
    Impair {
        node: u32,
        port: Port,
        impairment: Impairment,
        seed: u64,
    },
    StartStorm {
        node: u32,
        priority: u8,
        spec: StormSpec,
        until: Time,
    },
    /// [`Fabric::run`] returns, so that the caller can act at this time.
    Break {
        token: u32,
    },
}

/// A row of `events.parquet`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct EventRow {
    pub at: Time,
    pub node: u32,
    pub record: Record,
}

/// A row of `ports.parquet`: what a port's priority did since the last sample, and what it holds now.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct PortRow {
    pub at: Time,
    pub node: u32,
    pub port: Port,
    pub priority: u8,
    pub queue_bytes: u64,
    pub ingress_bytes: u64,
    pub tx_bytes: u64,
    pub rx_bytes: u64,
    pub ecn_marked: u64,
    pub paused_ps: u64,
    pub interval: Time,
}

/// A row of `rates.parquet`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct RateRow {
    pub at: Time,
    pub node: u32,
    pub qpn: u32,
    pub rate: Rate,
    pub alpha: f64,
}

/// A frame for the controller.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct PacketIn {
    pub node: u32,
    pub port: Port,
    pub table: u8,
    pub cookie: u64,
    pub reason: u8,
    pub frame: Frame,
}

/// A port that changed state, for the controller.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct PortChange {
    pub node: u32,
    pub port: Port,
    pub up: bool,
}

/// Why [`Fabric::run`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Every message has ended and no frame is under way.
    Done,
    /// The fabric time asked for is reached.
    Until,
    /// A breakpoint.
    Break(u32),
    /// A port changed state: see [`Fabric::take_port_changes`].
    PortChange,
    /// The number of events or the wall time granted is used up.
    Budget,
}

/// Bytes that entered the fabric and what became of them. Pause frames are left out: they never cross a switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Conservation {
    pub injected: u64,
    pub delivered: u64,
    pub dropped: u64,
    pub in_flight: u64,
}

/// The whole fabric.
#[derive(Debug, Default)]
pub struct Fabric {
    slots: Vec<Slot>,
    ports: Vec<(u32, Port)>,
    queue: EventQueue,
    now: Time,
    /// When the run began; every time given or told is counted from here.
    origin: Time,
    controls: Vec<Control>,
    messages: Vec<Message>,
    open_messages: usize,
    /// Messages by node and requester queue pair, in the order posted, and how many of each have arrived.
    arrivals: Vec<Vec<QpArrivals>>,
    wire_frames: u64,
    wire_bytes: u64,
    sample_interval: Option<Time>,
    last_sample: Time,
    started: bool,
    port_changes: Vec<PortChange>,
    packet_ins: VecDeque<PacketIn>,
    captures: Vec<Capture>,
    capture_error: Option<String>,
    /// Rows of the result tables.
    pub events: Vec<EventRow>,
    /// Rows of the result tables.
    pub port_rows: Vec<PortRow>,
    /// Rows of the result tables.
    pub rate_rows: Vec<RateRow>,
    /// Events that found the table full.
    pub events_not_kept: u64,
    /// Rows of the series that found theirs full.
    pub rows_not_kept: u64,
    /// Frames from outside that were taken in, and bytes of them; bytes that went to ends that are not ours.
    pub foreign_frames: u64,
    foreign_bytes: u64,
    outside_bytes: u64,
    /// Frames from outside that found the line full.
    pub foreign_overflow: u64,
    /// Frames of ours that the medium lost.
    pub lost_frames: u64,
    lost_bytes: u64,
    /// Frames that links lost or spoiled because a fault says so.
    pub links_lost_frames: u64,
    links_lost_bytes: u64,
    /// See `links_lost_frames`.
    pub links_corrupted_frames: u64,
    steps: u64,
    /// Effects of the event in hand: the space is used again.
    scratch: Effects,
}

#[derive(Debug, Default)]
struct QpArrivals {
    peer: Option<(u32, u32)>,
    messages: VecDeque<u32>,
}

impl Fabric {
    /// An empty fabric at time zero.
    pub fn new() -> Fabric {
        Fabric::default()
    }

    /// Adds a node; nodes are numbered from 0 in the order in which they are added.
    pub fn add_node(&mut self, node: Node) -> u32 {
        self.slots.push(Slot {
            node,
            ends: Vec::new(),
            first_port_id: 0,
        });
        self.arrivals.push(Vec::new());
        (self.slots.len() - 1) as u32
    }

    /// Adds a port to a node: a switch numbers its ports from 0, a NIC has one (`config` means nothing to it).
    /// Returns `None` where there is no such node, or the NIC has its port already.
    pub fn add_port(
        &mut self,
        node: u32,
        rate: Rate,
        config: &PortConfig,
    ) -> Option<(Port, PortId)> {
        let slot = self.slots.get_mut(node as usize)?;
        let port = match &mut slot.node {
            Node::Switch(switch) => switch.add_port(rate, config),
            Node::Nic(nic) if slot.ends.is_empty() => {
                nic.set_rate(rate);
                0
            }
            Node::Nic(_) => return None,
        };
        slot.ends.push(End {
            peer: None,
            delay: Time::ZERO,
            rate,
            full_rate: rate,
            line: None,
            last_due: Time::ZERO,
            up: true,
            epoch: 0,
            inbound: VecDeque::new(),
            foreign: VecDeque::new(),
            foreign_free_at: Time::ZERO,
            foreign_due: Time::ZERO,
            capture: None,
            sampled: Default::default(),
        });
        if node as usize + 1 == self.slots.len() {
            // Built in order, which is the rule: the new port is the last of all.
            if port == 0 {
                self.slots[node as usize].first_port_id = self.ports.len();
            }
            self.ports.push((node, port));
        } else {
            self.number_ports();
        }
        Some((port, self.port_id(node, port)))
    }

    /// Port numbers go by node and port.
    fn number_ports(&mut self) {
        self.ports.clear();
        for (node, slot) in self.slots.iter_mut().enumerate() {
            slot.first_port_id = self.ports.len();
            let count = slot.ends.len() as Port;
            self.ports
                .extend((0..count).map(|port| (node as u32, port)));
        }
    }

    /// The number of a port in the whole fabric.
    pub fn port_id(&self, node: u32, port: Port) -> PortId {
        self.slots[node as usize].first_port_id + usize::from(port)
    }

    /// Sets how a port takes pause frames.
    pub fn set_pause_response(&mut self, (node, port): (u32, Port), response: PauseResponse) {
        match &mut self.slots[node as usize].node {
            Node::Switch(switch) => switch.set_pause_response(port, response),
            Node::Nic(nic) => nic.set_pause_response(response),
        }
    }

    /// Joins two ports by a link of the given one-way delay.
    pub fn connect(&mut self, a: (u32, Port), b: (u32, Port), delay: Time) {
        for (from, to) in [(a, b), (b, a)] {
            let end = self.end(from);
            end.peer = Some(to);
            end.delay = delay;
        }
    }

    fn end(&mut self, (node, port): (u32, Port)) -> &mut End {
        &mut self.slots[node as usize].ends[usize::from(port)]
    }

    /// Whether a node has such a port.
    pub fn has_port(&self, node: u32, port: Port) -> bool {
        self.slots
            .get(node as usize)
            .is_some_and(|s| usize::from(port) < s.ends.len())
    }

    /// A node.
    pub fn node(&self, node: u32) -> Option<&Node> {
        self.slots.get(node as usize).map(|s| &s.node)
    }

    /// A node, to change its tables.
    pub fn node_mut(&mut self, node: u32) -> Option<&mut Node> {
        self.slots.get_mut(node as usize).map(|s| &mut s.node)
    }

    /// All nodes in order.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.slots.iter().map(|s| &s.node)
    }

    /// Fabric time since the run began.
    pub fn now(&self) -> Time {
        self.now.saturating_sub(self.origin)
    }

    /// Fabric time as the clock counts it, with the set-up before the run.
    pub fn clock(&self) -> Time {
        self.now
    }

    /// Events processed so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Adds a queue pair to a NIC; returns its index, `Ok(None)` where the node is no NIC.
    ///
    /// # Errors
    /// [`TemplateError`].
    pub fn add_qp(&mut self, node: u32, config: QpConfig) -> Result<Option<u32>, TemplateError> {
        let Some(Node::Nic(nic)) = self.node_mut(node) else {
            return Ok(None);
        };
        let index = nic.add_qp(config)?;
        self.arrivals[node as usize].push(QpArrivals::default());
        Ok(Some(index))
    }

    /// Whether a NIC has such a queue pair.
    pub fn has_qp(&self, node: u32, qp: u32) -> bool {
        self.arrivals
            .get(node as usize)
            .is_some_and(|qps| (qp as usize) < qps.len())
    }

    /// Says that two queue pairs (node and index) are connected, so that a message's arrival is put down to it.
    pub fn pair_qps(&mut self, a: (u32, u32), b: (u32, u32)) {
        self.arrivals[a.0 as usize][a.1 as usize].peer = Some(b);
        self.arrivals[b.0 as usize][b.1 as usize].peer = Some(a);
    }

    /// Plans a message; returns its number.
    pub fn add_message(&mut self, node: u32, qp: u32, bytes: u64, start: Time) -> u32 {
        let id = self.messages.len() as u32;
        self.messages.push(Message {
            node,
            qp,
            bytes,
            start,
            end: None,
            outcome: None,
            retransmitted_packets: 0,
            ecn_marked_packets: 0,
        });
        self.open_messages += 1;
        self.schedule(start, Control::Post { message: id });
        id
    }

    /// Messages in the order planned.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Messages that have not ended.
    pub fn open_messages(&self) -> usize {
        self.open_messages
    }

    /// Plans a control for fabric time `at`.
    pub fn schedule(&mut self, at: Time, control: Control) {
        self.controls.push(control);
        let index = (self.controls.len() - 1) as u32;
        self.queue
            .push((self.origin + at).max(self.now), Event::Control(index));
    }

    /// Ends the set-up: run time and counters start at zero, and series are sampled at `interval` from now on.
    /// Returns false, and does nothing, while frames of the set-up (probes, replies) are still under way.
    pub fn start(&mut self, interval: Option<Time>) -> bool {
        if self.wire_frames > 0 || self.queued_bytes() > 0 {
            return false;
        }
        self.origin = self.now;
        for slot in &mut self.slots {
            match &mut slot.node {
                Node::Switch(switch) => switch.reset_counters(),
                Node::Nic(nic) => nic.reset_counters(),
            }
            for end in &mut slot.ends {
                end.sampled = Default::default();
            }
        }
        self.events.clear();
        self.port_changes.clear();
        self.foreign_frames = 0;
        self.foreign_overflow = 0;
        self.lost_frames = 0;
        self.lost_bytes = 0;
        self.events_not_kept = 0;
        self.foreign_bytes = 0;
        self.outside_bytes = 0;
        self.started = true;
        self.sample_interval = interval;
        self.last_sample = self.now;
        if let Some(interval) = interval {
            self.queue.push(self.now + interval, Event::Sample);
        }
        true
    }

    /// Captures what both ends of the link at a port send.
    ///
    /// # Errors
    /// A message where there is no link or the file cannot be written.
    pub fn capture(
        &mut self,
        at: (u32, Port),
        path: &std::path::Path,
        names: [&str; 2],
    ) -> Result<(), String> {
        if !self.has_port(at.0, at.1) {
            return Err("no such port".into());
        }
        let peer = self.end(at).peer.ok_or("the port has no link")?;
        let capture =
            Capture::create(path, &names).map_err(|e| format!("{}: {e}", path.display()))?;
        self.captures.push(capture);
        let index = self.captures.len() - 1;
        self.end(at).capture = Some((index, 0));
        self.end(peer).capture = Some((index, 1));
        Ok(())
    }

    /// Ends all captures.
    ///
    /// # Errors
    /// The first error that writing met.
    pub fn close_captures(&mut self) -> Result<(), String> {
        for slot in &mut self.slots {
            for end in &mut slot.ends {
                end.capture = None;
            }
        }
        let mut first = self.capture_error.take();
        for capture in self.captures.drain(..) {
            if let Err(error) = capture.close() {
                first.get_or_insert(error.to_string());
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Port changes since the last call.
    pub fn take_port_changes(&mut self) -> Vec<PortChange> {
        std::mem::take(&mut self.port_changes)
    }

    /// Frames for the controller since the last call.
    pub fn take_packet_ins(&mut self) -> Vec<PacketIn> {
        self.packet_ins.drain(..).collect()
    }

    /// The controller sends a frame.
    pub fn packet_out<M: Medium>(
        &mut self,
        medium: &mut M,
        node: u32,
        in_port: Option<Port>,
        actions: &[Action],
        frame: Frame,
    ) {
        let now = self.now;
        let mut fx = Effects::new();
        if let Some(Node::Switch(switch)) = self.node_mut(node) {
            switch.packet_out(now, in_port, actions, frame, &mut fx);
        }
        self.apply(medium, node, fx);
        medium.flush();
    }

    /// Records an event of the control plane.
    pub fn note(&mut self, node: u32, kind: EventKind, detail: u64) {
        let record = Record {
            kind,
            port: None,
            priority: None,
            flow: None,
            detail,
        };
        self.log(node, record);
    }

    fn log(&mut self, node: u32, record: Record) {
        if self.events.len() < EVENT_LIMIT {
            let at = self.now();
            self.events.push(EventRow { at, node, record });
        } else {
            self.events_not_kept += 1;
        }
    }

    /// Runs until there is a reason to stop; `budget` is the most events to process.
    pub fn run<M: Medium>(&mut self, medium: &mut M, until: Time, budget: u64) -> Stop {
        let until = self.origin + until;
        for _ in 0..budget {
            if !self.port_changes.is_empty() {
                medium.flush();
                return Stop::PortChange;
            }
            if self.started && self.is_done() {
                medium.flush();
                return Stop::Done;
            }
            let next = self.queue.next_at().unwrap_or(Time::MAX);
            let reach = next.min(until).max(self.now);
            match medium.wait(self.now, reach) {
                Wait::Ready => {}
                Wait::Foreign { at, port, frame } => {
                    self.now = at.clamp(self.now, reach);
                    self.take_foreign(port, frame);
                    continue;
                }
                Wait::OutOfTime(at) => {
                    self.now = at.clamp(self.now, reach);
                    return Stop::Budget;
                }
            }
            if next > until || next == Time::MAX {
                if until < Time::MAX {
                    self.now = until.max(self.now);
                }
                medium.flush();
                return Stop::Until;
            }
            let Some((at, event)) = self.queue.pop() else {
                return Stop::Until;
            };
            self.now = at;
            self.steps += 1;
            if let Some(token) = self.process(medium, event) {
                medium.flush();
                return Stop::Break(token);
            }
        }
        Stop::Budget
    }

    fn is_done(&self) -> bool {
        self.open_messages == 0 && self.wire_frames == 0 && self.queued_bytes() == 0
    }

    fn queued_bytes(&self) -> u64 {
        self.slots
            .iter()
            .map(|s| match &s.node {
                Node::Switch(switch) => switch.queued_bytes(),
                // What waits in a NIC was not sent yet.
                Node::Nic(_) => 0,
            })
            .sum()
    }

    fn process<M: Medium>(&mut self, medium: &mut M, event: Event) -> Option<u32> {
        let now = self.now;
        let mut fx = std::mem::take(&mut self.scratch);
        let node = match event {
            Event::Control(index) => return self.control(medium, index),
            Event::Sample => {
                self.sample();
                return None;
            }
            Event::Free { node, port } => {
                match &mut self.slots[node as usize].node {
                    Node::Switch(switch) => switch.on_free(now, port, &mut fx),
                    Node::Nic(nic) => nic.on_free(now, &mut fx),
                }
                node
            }
            Event::Timer { node, timer } => {
                match &mut self.slots[node as usize].node {
                    Node::Switch(switch) => switch.on_timer(now, timer, &mut fx),
                    Node::Nic(nic) => nic.on_timer(now, timer, &mut fx),
                }
                node
            }
            Event::Arrival { node, port } => {
                let port_id = self.port_id(node, port);
                let end = self.end((node, port));
                let epoch = end.epoch;
                let rate = end.rate;
                let Inbound {
                    epoch: sent_epoch,
                    bytes,
                    bad_fcs,
                } = end.inbound.pop_front()?;
                self.wire_frames -= 1;
                self.wire_bytes -= u64::from(bytes);
                let mut collected = medium.collect(port_id);
                if let (Some(frame), true) = (&mut collected, bad_fcs) {
                    frame.spoil_fcs(u64::from(bytes));
                }
                match collected {
                    Some(frame) if sent_epoch == epoch => {
                        self.deliver(node, port, frame, rate, &mut fx)
                    }
                    Some(frame) => match &mut self.slots[node as usize].node {
                        Node::Switch(switch) => switch.lost_on_link(port, &frame, &mut fx),
                        Node::Nic(nic) => nic.lost_on_link(&frame, &mut fx),
                    },
                    None => {
                        self.lost_frames += 1;
                        self.lost_bytes += u64::from(bytes);
                    }
                }
                node
            }
            Event::Foreign { node, port } => {
                let end = self.end((node, port));
                let up = end.up;
                let frame = end.foreign.pop_front()?;
                let rate = end.rate;
                if up {
                    self.foreign_bytes += frame.accounted_bytes();
                    self.deliver(node, port, frame, rate, &mut fx);
                }
                node
            }
        };
        self.apply(medium, node, fx);
        None
    }

    fn deliver(&mut self, node: u32, port: Port, frame: Frame, rate: Rate, fx: &mut Effects) {
        let now = self.now;
        match &mut self.slots[node as usize].node {
            Node::Switch(switch) => {
                let whole_at = now + switch.header_lead(rate, frame.len());
                switch.on_frame(now, port, frame, whole_at, fx);
            }
            Node::Nic(nic) => nic.on_frame(now, frame, fx),
        }
    }

    fn control<M: Medium>(&mut self, medium: &mut M, index: u32) -> Option<u32> {
        let now = self.now;
        let mut fx = Effects::new();
        let node = match self.controls[index as usize].clone() {
            Control::Break { token } => return Some(token),
            Control::Post { message } => {
                let Message {
                    node, qp, bytes, ..
                } = self.messages[message as usize];
                self.arrivals[node as usize][qp as usize]
                    .messages
                    .push_back(message);
                if let Node::Nic(nic) = &mut self.slots[node as usize].node {
                    nic.post(now, qp, message, bytes, &mut fx);
                }
                node
            }
            Control::StartStorm {
                node,
                priority,
                spec,
                until,
            } => {
                if let Node::Nic(nic) = &mut self.slots[node as usize].node {
                    nic.start_storm(now, priority, spec, until + self.origin, &mut fx);
                }
                node
            }
            Control::Impair {
                node,
                port,
                impairment,
                seed,
            } => {
                self.impair((node, port), impairment, seed);
                return None;
            }
            Control::LinkState { node, port, up } => {
                let peer = self.end((node, port)).peer;
                for (node, port) in [Some((node, port)), peer].into_iter().flatten() {
                    self.set_link(medium, node, port, up);
                }
                return None;
            }
        };
        self.apply(medium, node, fx);
        None
    }

    fn impair(&mut self, at: (u32, Port), impairment: Impairment, seed: u64) {
        let peer = self.end(at).peer;
        for (node, port) in [Some(at), peer].into_iter().flatten() {
            let own_seed = seed ^ u64::from(node) << 16 ^ u64::from(port);
            let end = self.end((node, port));
            end.line
                .get_or_insert_with(|| Line::new(own_seed))
                .set(impairment);
            if let Impairment::Rate(rate) = impairment {
                let rate = rate.unwrap_or(end.full_rate);
                end.rate = rate;
                match &mut self.slots[node as usize].node {
                    Node::Switch(switch) => switch.set_rate(port, rate),
                    Node::Nic(nic) => nic.set_rate(rate),
                }
            }
            let record = Record {
                kind: EventKind::Fault,
                port: Some(port),
                priority: None,
                flow: None,
                detail: 0,
            };
            self.log(node, record);
        }
    }

    fn set_link<M: Medium>(&mut self, medium: &mut M, node: u32, port: Port, up: bool) {
        let now = self.now;
        let end = self.end((node, port));
        if end.up == up {
            return;
        }
        end.up = up;
        end.epoch += u32::from(!up);
        let mut fx = Effects::new();
        match &mut self.slots[node as usize].node {
            Node::Switch(switch) => {
                switch.on_link(now, port, up, &mut fx);
                self.port_changes.push(PortChange { node, port, up });
            }
            Node::Nic(nic) => nic.on_link(now, up, &mut fx),
        }
        self.apply(medium, node, fx);
    }

    fn apply<M: Medium>(&mut self, medium: &mut M, node: u32, mut fx: Effects) {
        for effect in fx.drain(..) {
            match effect {
                Effect::Transmit { port, frame } => self.transmit(medium, node, port, frame),
                Effect::WhenFree { port, at } => self.queue.push(at, Event::Free { node, port }),
                Effect::Timer { at, timer } => self.queue.push(at, Event::Timer { node, timer }),
                Effect::Record(record) => self.log(node, record),
                Effect::PacketIn {
                    port,
                    table,
                    cookie,
                    reason,
                    frame,
                } => {
                    if self.packet_ins.len() < PACKET_IN_LIMIT {
                        self.packet_ins.push_back(PacketIn {
                            node,
                            port,
                            table,
                            cookie,
                            reason,
                            frame,
                        });
                    }
                }
                Effect::Finished {
                    message,
                    outcome,
                    retransmitted_packets,
                } => {
                    let now = self.now();
                    let m = &mut self.messages[message as usize];
                    m.end = Some(now);
                    m.outcome = Some(outcome);
                    m.retransmitted_packets = retransmitted_packets;
                    self.open_messages -= 1;
                }
                Effect::Received {
                    qp,
                    ecn_marked_packets,
                } => self.message_arrived(node, qp, ecn_marked_packets),
            }
        }
        self.scratch = fx;
    }

    fn message_arrived(&mut self, node: u32, qp: u32, ecn_marked_packets: u32) {
        let Some((peer, peer_qp)) = self.arrivals[node as usize][qp as usize].peer else {
            return;
        };
        let sent = &mut self.arrivals[peer as usize][peer_qp as usize].messages;
        if let Some(message) = sent.pop_front() {
            self.messages[message as usize].ecn_marked_packets = ecn_marked_packets;
        }
    }

    fn transmit<M: Medium>(&mut self, medium: &mut M, node: u32, port: Port, mut frame: Frame) {
        let from = self.port_id(node, port);
        let now = self.now;
        self.record_capture((node, port), now, &frame);
        let end = self.end((node, port));
        let (peer, epoch, rate) = (end.peer, end.epoch, end.rate);
        let base_delay = end.delay;
        let (fate, added_delay) = end.draw_fate(frame.len());
        let delay = base_delay + added_delay;
        let sent_at = now + rate.frame_time(frame.len());
        let bytes = frame.accounted_bytes() as u32;
        match fate {
            Fate::Sound => {}
            Fate::Corrupted(bit) => frame = frame.with_flipped_bit(bit),
            Fate::Lost => {
                self.links_lost_bytes += u64::from(bytes);
                return self.log_link_loss(node, port, u64::from(bytes));
            }
        }
        self.links_corrupted_frames += u64::from(matches!(fate, Fate::Corrupted(_)));
        let Some(peer) = peer else {
            self.outside_bytes += u64::from(bytes);
            return medium.carry(from, None, frame);
        };
        let to = self.port_id(peer.0, peer.1);
        let at = (sent_at + delay).max(self.end(peer).last_due);
        let end = self.end(peer);
        end.last_due = at;
        end.inbound.push_back(Inbound {
            epoch,
            bytes,
            bad_fcs: frame.has_bad_fcs(),
        });
        self.wire_frames += 1;
        self.wire_bytes += u64::from(bytes);
        let (node, port) = peer;
        let early = self.header_lead(node, rate, frame.len());
        self.queue
            .push(at.saturating_sub(early), Event::Arrival { node, port });
        medium.carry(from, Some(to), frame);
    }

    /// How long before its last bit a frame arrives for a node: at its header for a switch that wants that.
    fn header_lead(&self, node: u32, rate: Rate, frame_bytes: usize) -> Time {
        match &self.slots[node as usize].node {
            Node::Switch(switch) => switch.header_lead(rate, frame_bytes),
            Node::Nic(_) => Time::ZERO,
        }
    }

    fn record_capture(&mut self, at: (u32, Port), now: Time, frame: &Frame) {
        // The set-up's probes come before time zero.
        if !self.started {
            return;
        }
        let now = now.saturating_sub(self.origin);
        if let Some((capture, interface)) = self.end(at).capture {
            if let Err(error) = self.captures[capture].write(now, interface, frame.bytes()) {
                self.capture_error.get_or_insert(error.to_string());
            }
        }
    }

    /// A link lost a frame that left by this port.
    fn log_link_loss(&mut self, node: u32, port: Port, bytes: u64) {
        self.links_lost_frames += 1;
        let record = Record {
            kind: EventKind::Drop(DropReason::LinkLoss),
            port: Some(port),
            priority: None,
            flow: None,
            detail: bytes,
        };
        self.log(node, record);
    }

    /// Takes in a frame that an outsider sent at the far end of a port's link: it crosses the link like any other.
    fn take_foreign(&mut self, port_id: PortId, frame: Frame) {
        let Some(&(node, port)) = self.ports.get(port_id) else {
            return;
        };
        let now = self.now;
        self.foreign_frames += 1;
        let mut frame = frame;
        let mut added_delay = Time::ZERO;
        if let Some(peer) = self.end((node, port)).peer {
            self.record_capture(peer, now, &frame);
            let (fate, added) = self.end(peer).draw_fate(frame.len());
            added_delay = added;
            match fate {
                Fate::Sound => {}
                Fate::Corrupted(bit) => {
                    self.links_corrupted_frames += 1;
                    frame = frame.with_flipped_bit(bit);
                }
                Fate::Lost => {
                    return self.log_link_loss(peer.0, peer.1, frame.accounted_bytes());
                }
            }
        }
        let end = self.end((node, port));
        if end.foreign.len() >= FOREIGN_LIMIT {
            self.foreign_overflow += 1;
            return;
        }
        let sent_at = now.max(end.foreign_free_at) + end.rate.frame_time(frame.len());
        end.foreign_free_at = sent_at;
        let at = (sent_at + end.delay + added_delay).max(end.foreign_due);
        end.foreign_due = at;
        let (rate, bytes) = (end.rate, frame.len());
        end.foreign.push_back(frame);
        let early = self.header_lead(node, rate, bytes);
        self.queue
            .push(at.saturating_sub(early), Event::Foreign { node, port });
    }

    /// Takes a row of each series now.
    fn sample(&mut self) {
        self.sample_now();
        if let Some(interval) = self.sample_interval {
            self.queue.push(self.now + interval, Event::Sample);
        }
    }

    /// Takes the last, perhaps shorter, sample of a run.
    pub fn finish(&mut self) {
        if self.sample_interval.is_some() && self.now > self.last_sample {
            self.sample_now();
        }
        self.settle();
    }

    /// Brings every pause counter up to now.
    pub fn settle(&mut self) {
        let now = self.now;
        for slot in &mut self.slots {
            match &mut slot.node {
                Node::Switch(switch) => switch.settle(now),
                Node::Nic(nic) => nic.settle(now),
            }
        }
    }

    fn sample_now(&mut self) {
        self.settle();
        let now = self.now;
        let at = self.now();
        let interval = now.saturating_sub(self.last_sample);
        self.last_sample = now;
        for (node, slot) in self.slots.iter_mut().enumerate() {
            for (port, end) in slot.ends.iter_mut().enumerate() {
                let port = port as Port;
                let tx = slot.node.tx(port);
                for priority in 0..PRIORITIES {
                    let (queue_bytes, ingress_bytes) = slot.node.held(port, priority);
                    let counters = tx.counters[priority];
                    let before = std::mem::replace(&mut end.sampled[priority], counters);
                    let row = PortRow {
                        at,
                        node: node as u32,
                        port,
                        priority: priority as u8,
                        queue_bytes,
                        ingress_bytes,
                        tx_bytes: counters.tx_bytes - before.tx_bytes,
                        rx_bytes: counters.rx_bytes - before.rx_bytes,
                        ecn_marked: counters.ecn_marked - before.ecn_marked,
                        paused_ps: counters.paused_ps - before.paused_ps,
                        interval,
                    };
                    if row.is_idle() {
                        continue;
                    }
                    if self.port_rows.len() < ROW_LIMIT {
                        self.port_rows.push(row);
                    } else {
                        self.rows_not_kept += 1;
                    }
                }
            }
            if let Node::Nic(nic) = &mut slot.node {
                for (qpn, rate, alpha) in nic.rates(now) {
                    if self.rate_rows.len() >= ROW_LIMIT {
                        self.rows_not_kept += 1;
                        continue;
                    }
                    self.rate_rows.push(RateRow {
                        at,
                        node: node as u32,
                        qpn,
                        rate,
                        alpha,
                    });
                }
            }
        }
    }

    /// What entered the fabric and what became of it.
    pub fn conservation(&self) -> Conservation {
        let mut c = Conservation {
            injected: self.foreign_bytes,
            delivered: self.outside_bytes,
            dropped: self.lost_bytes + self.links_lost_bytes,
            in_flight: self.wire_bytes + self.queued_bytes(),
        };
        for node in self.nodes() {
            match node {
                Node::Switch(switch) => {
                    c.injected += switch.counters.created_bytes;
                    c.delivered += switch.counters.packet_in_bytes;
                    c.dropped += switch.counters.drop_bytes;
                }
                Node::Nic(nic) => {
                    c.injected += nic.counters.tx_bytes;
                    c.delivered += nic.counters.rx_bytes;
                    c.dropped += nic.counters.malformed_bytes + nic.counters.link_down_bytes;
                }
            }
        }
        c
    }

    /// Drops of all switches by reason, in the order of [`crate::effect::DropReason::ALL`].
    pub fn drops(&self) -> [u64; 8] {
        let mut total = [0; 8];
        for node in self.nodes() {
            if let Node::Switch(switch) = node {
                for (sum, n) in total.iter_mut().zip(switch.counters.drop_frames) {
                    *sum += n;
                }
            }
        }
        total
    }
}

impl PortRow {
    /// Whether there is nothing to tell: such rows are left out.
    fn is_idle(&self) -> bool {
        self.queue_bytes
            + self.ingress_bytes
            + self.tx_bytes
            + self.rx_bytes
            + self.ecn_marked
            + self.paused_ps
            == 0
    }
}

impl Node {
    /// The sending side of a port.
    pub fn tx(&self, port: Port) -> &Tx {
        match self {
            Node::Switch(switch) => switch.tx(port),
            Node::Nic(nic) => nic.tx(),
        }
    }

    /// Bytes in the egress queue, and held for the ingress, of a port's priority.
    fn held(&self, port: Port, priority: usize) -> (u64, u64) {
        match self {
            Node::Switch(switch) => (
                switch.queue_bytes(port, priority),
                switch.mmu().ingress_bytes(usize::from(port), priority),
            ),
            Node::Nic(_) => (0, 0),
        }
    }
}
