//! The switch, sans-IO: arrival, lookup, admission, egress queue, scheduler, departure.

mod ecn;
mod histogram;
mod mmu;
mod scheduler;
mod table;
mod watchdog;

use std::collections::VecDeque;

use rand_pcg::Pcg64Mcg;

pub use ecn::{EcnProfile, QueueAverage};
pub use histogram::Histogram;
pub use mmu::{Admission, Mmu, MmuConfig, Threshold};
pub use scheduler::{Choice, QueueConfig, Scheduler, Service, Shaper};
pub use table::{
    ecmp_hash, mix, Action, Bucket, Destination, Field, Flow, FlowFilter, Group, GroupKind, Match,
    Output, TableError, Tables, Verdict, MAX_BUCKETS, MAX_FLOWS, MAX_GROUPS, TABLES,
};

pub use watchdog::{WatchdogAction, WatchdogConfig};

use watchdog::{Change, Sight, Watchdog};

use crate::effect::{record, DropReason, Effect, Effects, EventKind, Port, Timer};
use crate::frame::Frame;
use crate::time::{wire_bytes, Rate, Time, HEADER_BYTES};
use crate::tx::{PauseResponse, Tx, PRIORITIES};
use crate::wire::{Ecn, Headers, Kind, MacAddr, Pause};

/// Longest frame that the controller may send: what a link of MTU 9000 takes, with an 802.1Q tag.
pub const LONGEST_FRAME_BYTES: usize = 9018;
/// OpenFlow's reasons for a packet-in (specification section 7.4.1).
pub const REASON_NO_MATCH: u8 = 0;
/// An explicit output to the controller.
pub const REASON_ACTION: u8 = 1;
/// The TTL ran out.
pub const REASON_INVALID_TTL: u8 = 2;

/// Settings of a switch.
#[derive(Clone, Debug)]
pub struct SwitchConfig {
    /// Source address of its own frames.
    pub mac: MacAddr,
    /// Buffer and thresholds.
    pub mmu: MmuConfig,
    /// Whether XOFF and XON are sent.
    pub pfc: bool,
    /// Pause time of each XOFF.
    pub pfc_quanta: u16,
    /// Priority of each DSCP.
    pub dscp_map: [u8; 64],
    /// Priority of each PCP, for tagged frames that are not IP.
    pub pcp_map: [u8; 8],
    /// Seed of marking and of the ECMP hash.
    pub seed: u64,
    /// Whether a frame goes on when its header is in and every output is no faster than its input; else when it is whole.
    pub cut_through: bool,
    /// Time from there to the egress queue.
    pub pipeline_latency: Time,
    /// The PFC watchdog of every lossless queue.
    pub watchdog: Option<WatchdogConfig>,
}

/// Settings of a switch port.
#[derive(Clone, Copy, Debug, Default)]
pub struct PortConfig {
    /// Headroom of each lossless priority.
    pub headroom_bytes: u64,
    /// Marking profile of each priority's egress queue.
    pub ecn: [Option<EcnProfile>; PRIORITIES],
    /// How each priority's egress queue is served.
    pub queues: [QueueConfig; PRIORITIES],
}

/// Totals of a switch.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct SwitchCounters {
    pub rx_frames: u64,
    pub tx_frames: u64,
    pub ecn_marked: u64,
    pub pfc_xoff_sent: u64,
    pub pfc_xon_sent: u64,
    pub watchdog_trips: u64,
    pub drop_frames: [u64; 8],
    pub drop_bytes: u64,
    /// Bytes that left to the controller, and bytes that came into being here: packet-outs, and copies beyond the first.
    pub packet_in_bytes: u64,
    pub created_bytes: u64,
}

#[derive(Debug)]
struct Queued {
    at: Time,
    frame: Frame,
    in_port: Port,
}

/// A frame between its arrival and its egress queue.
#[derive(Debug)]
struct InPipeline {
    out_at: Time,
    frame: Frame,
    verdict: Verdict,
}

#[derive(Debug)]
struct SwitchPort {
    tx: Tx,
    /// In order of arrival, which is the order in which they come out.
    pipeline: VecDeque<InPipeline>,
    /// Pause frames that are not whole yet: the MAC takes them, they see no pipeline.
    pauses: VecDeque<Frame>,
    ecn: [Option<EcnProfile>; PRIORITIES],
    scheduler: Scheduler,
    watchdog: Watchdog,
    /// When a shaper lets this port go on; an earlier wake-up is out of date.
    wake_at: Time,
    queues: [VecDeque<Queued>; PRIORITIES],
    queue_bytes: [u64; PRIORITIES],
    /// Frames in all queues.
    waiting: usize,
    averages: [QueueAverage; PRIORITIES],
    /// What each frame found in its queue, and how long it waited there in nanoseconds.
    depths: [Histogram; PRIORITIES],
    waits: [Histogram; PRIORITIES],
    /// When the pause sent last is to be repeated; a timer for any other time is out of date.
    refresh_at: [Time; PRIORITIES],
}

/// A switch.
#[derive(Debug)]
pub struct Switch {
    config: SwitchConfig,
    ports: Vec<SwitchPort>,
    mmu: Mmu,
    /// Flow tables and groups.
    pub tables: Tables,
    rng: Pcg64Mcg,
    /// Whether the next poll is set. Polls begin with the first pause and end when no queue is under suspicion.
    watching: bool,
    /// Totals.
    pub counters: SwitchCounters,
}

impl SwitchPort {
    /// Draws whether the marking profile of a queue strikes now, on the way in or out.
    fn marks(
        &mut self,
        priority: usize,
        queue_bytes: u64,
        at_dequeue: bool,
        rng: &mut Pcg64Mcg,
    ) -> bool {
        let Some(profile) = self.ecn[priority].filter(|p| p.at_dequeue == at_dequeue) else {
            return false;
        };
        let length = self.averages[priority].update(queue_bytes, profile.weight);
        profile.draw(length, rng)
    }

    fn mark(&mut self, frame: &mut Frame, priority: usize, totals: &mut SwitchCounters) {
        frame.mark_ce();
        totals.ecn_marked += 1;
        self.tx.counters[priority].ecn_marked += 1;
    }
}

fn is_capable(frame: &Frame) -> bool {
    matches!(frame.headers().ecn(), Ecn::Ect0 | Ecn::Ect1)
}

/// Pseudo ingress port of frames that the controller sent: they are accounted to the port they leave by.
const FROM_CONTROLLER: Option<Port> = None;

impl Switch {
    /// A switch without ports.
    pub fn new(config: SwitchConfig) -> Switch {
        Switch {
            mmu: Mmu::new(config.mmu.clone()),
            tables: Tables::new(mix(config.seed)),
            rng: Pcg64Mcg::new(u128::from(mix(config.seed ^ 1)) << 64 | u128::from(config.seed)),
            config,
            watching: false,
            ports: Vec::new(),
            counters: SwitchCounters::default(),
        }
    }

    /// Adds a port of the given rate; returns its index.
    pub fn add_port(&mut self, rate: Rate, config: &PortConfig) -> Port {
        let port = self.ports.len() as Port;
        self.ports.push(SwitchPort {
            tx: Tx::new(port, rate),
            pipeline: VecDeque::new(),
            pauses: VecDeque::new(),
            ecn: config.ecn,
            scheduler: Scheduler::new(config.queues),
            watchdog: Watchdog::default(),
            wake_at: Time::ZERO,
            queues: Default::default(),
            queue_bytes: [0; PRIORITIES],
            waiting: 0,
            averages: Default::default(),
            depths: Default::default(),
            waits: Default::default(),
            refresh_at: [Time::ZERO; PRIORITIES],
        });
        self.mmu.add_port(config.headroom_bytes);
        self.tables.set_ports(port + 1);
        port
    }

    /// How long before its last bit this switch wants a frame that comes in at `rate`: as soon as its header is in, if it cuts
    /// through, else when it is whole.
    pub fn header_lead(&self, rate: Rate, frame_bytes: usize) -> Time {
        if !self.config.cut_through {
            return Time::ZERO;
        }
        rate.time_for_bytes(wire_bytes(frame_bytes).saturating_sub(HEADER_BYTES))
    }

    /// A frame comes in by `port`: its header is there now, its last bit at `whole_at`.
    pub fn on_frame(
        &mut self,
        now: Time,
        port: Port,
        frame: Frame,
        whole_at: Time,
        fx: &mut Effects,
    ) {
        if frame.is_malformed() {
            self.counters.rx_frames += 1;
            return self.drop(fx, port, None, &frame, DropReason::Malformed);
        }
        if frame.has_bad_fcs()
            && (!self.config.cut_through || frame.headers().kind == Kind::MacControl)
        {
            self.counters.rx_frames += 1;
            return self.drop(fx, port, None, &frame, DropReason::Malformed);
        }
        if frame.headers().kind == Kind::MacControl {
            if whole_at == now {
                return self.on_mac_control(now, port, &frame, fx);
            }
            self.ports[usize::from(port)].pauses.push_back(frame);
            fx.push(Effect::Timer {
                at: whole_at,
                timer: Timer::MacControl { port },
            });
            return;
        }
        let verdict = self.tables.lookup(&frame, port).unwrap_or_default();
        let cut = self.config.cut_through && self.can_cut_through(port, &verdict);
        // Cut through, a spoiled frame is on its way before its check sequence is in.
        if frame.has_bad_fcs() && !cut {
            self.counters.rx_frames += 1;
            return self.drop(fx, port, None, &frame, DropReason::Malformed);
        }
        let out_at = if cut { now } else { whole_at } + self.config.pipeline_latency;
        if out_at == now && self.ports[usize::from(port)].pipeline.is_empty() {
            return self.out_of_pipeline(now, port, frame, &verdict, fx);
        }
        let pipeline = &mut self.ports[usize::from(port)].pipeline;
        // Frames from outside do not take turns with ours on the link: what came first stays first.
        let out_at = pipeline
            .back()
            .map_or(out_at, |last| out_at.max(last.out_at));
        pipeline.push_back(InPipeline {
            out_at,
            frame,
            verdict,
        });
        fx.push(Effect::Timer {
            at: out_at,
            timer: Timer::Pipeline { port },
        });
    }

    /// Cut-through needs every output to be a port that is no faster than the input (an underrun would spoil the frame).
    fn can_cut_through(&self, port: Port, verdict: &Verdict) -> bool {
        let rate = self.ports[usize::from(port)].tx.rate;
        verdict.destinations.iter().all(|d| match d.output {
            Output::Port(out) => self.ports[usize::from(out)].tx.rate <= rate,
            Output::InPort => true,
            Output::Controller => false,
        })
    }

    fn out_of_pipeline(
        &mut self,
        now: Time,
        port: Port,
        frame: Frame,
        verdict: &Verdict,
        fx: &mut Effects,
    ) {
        let priority = self.classify(frame.headers());
        self.counters.rx_frames += 1;
        if self.is_discarded(port, priority) {
            return self.drop(fx, port, Some(priority), &frame, DropReason::Watchdog);
        }
        let counters = &mut self.ports[usize::from(port)].tx.counters[priority];
        counters.rx_frames += 1;
        counters.rx_bytes += frame.len() as u64;
        if verdict.destinations.is_empty() {
            return self.drop(fx, port, Some(priority), &frame, DropReason::NoRoute);
        }
        self.distribute(now, Some(port), priority, frame, verdict, fx);
    }

    fn distribute(
        &mut self,
        now: Time,
        in_port: Option<Port>,
        priority: usize,
        frame: Frame,
        verdict: &Verdict,
        fx: &mut Effects,
    ) {
        let mut rest = Some(frame);
        for (i, destination) in verdict.destinations.iter().enumerate() {
            let last = i + 1 == verdict.destinations.len();
            let copy = if last { rest.take() } else { rest.clone() };
            let Some(mut copy) = copy else { return };
            if !last {
                // A copy counts as one more frame that entered here.
                self.counters.created_bytes += copy.len() as u64;
            }
            let report_port = in_port.unwrap_or(0);
            let expired = (0..destination.dec_ttl).any(|_| !copy.decrement_ttl());
            if expired {
                self.drop(fx, report_port, Some(priority), &copy, DropReason::Ttl);
                continue;
            }
            let out_port = match destination.output {
                Output::Controller => {
                    let reason = if verdict.is_table_miss {
                        REASON_NO_MATCH
                    } else {
                        REASON_ACTION
                    };
                    self.counters.packet_in_bytes += copy.len() as u64;
                    fx.push(Effect::PacketIn {
                        port: report_port,
                        table: verdict.table,
                        cookie: verdict.cookie,
                        reason,
                        frame: copy,
                    });
                    continue;
                }
                // Back out of its port only where that is asked for (specification section 5.9).
                Output::Port(port) if Some(port) == in_port => {
                    self.drop(fx, report_port, Some(priority), &copy, DropReason::NoRoute);
                    continue;
                }
                Output::Port(port) => port,
                Output::InPort => report_port,
            };
            self.enqueue(
                now,
                in_port.unwrap_or(out_port),
                out_port,
                priority,
                copy,
                fx,
            );
        }
    }

    fn enqueue(
        &mut self,
        now: Time,
        in_port: Port,
        out_port: Port,
        priority: usize,
        mut frame: Frame,
        fx: &mut Effects,
    ) {
        if !self.ports[usize::from(out_port)].tx.is_up() {
            return self.drop(fx, out_port, Some(priority), &frame, DropReason::LinkDown);
        }
        if self.is_discarded(out_port, priority) {
            return self.drop(fx, out_port, Some(priority), &frame, DropReason::Watchdog);
        }
        let out = &mut self.ports[usize::from(out_port)];
        let queue_bytes = out.queue_bytes[priority];
        let capable = is_capable(&frame);
        let drops = out.ecn[priority].is_some_and(|profile| profile.drop_not_ect);
        let marks = (capable || drops) && out.marks(priority, queue_bytes, false, &mut self.rng);
        if marks && !capable {
            return self.drop(fx, out_port, Some(priority), &frame, DropReason::Buffer);
        }
        let admission = self
            .mmu
            .admit(usize::from(in_port), priority, frame.len(), queue_bytes);
        match admission {
            Admission::Admitted => {}
            Admission::BufferFull => {
                return self.drop(fx, out_port, Some(priority), &frame, DropReason::Buffer)
            }
            Admission::HeadroomFull => {
                return self.drop(fx, in_port, Some(priority), &frame, DropReason::Headroom)
            }
        }
        let out = &mut self.ports[usize::from(out_port)];
        if marks {
            out.mark(&mut frame, priority, &mut self.counters);
        }
        out.queue_bytes[priority] += frame.len() as u64;
        out.waiting += 1;
        out.depths[priority].record(queue_bytes);
        out.queues[priority].push_back(Queued {
            at: now,
            frame,
            in_port,
        });
        self.check_xoff(now, in_port, priority, fx);
        self.kick(now, out_port, fx);
    }

    /// Starts the next frame of a port: pause frames first, then what the scheduler chooses among queues that are not paused.
    fn kick(&mut self, now: Time, port: Port, fx: &mut Effects) {
        let out = &mut self.ports[usize::from(port)];
        if out.waiting == 0 && !out.tx.has_control() {
            return;
        }
        if !out.tx.is_ready(now) || out.tx.send_control(now, fx) {
            return out.tx.ask_when_free(now, fx);
        }
        let forwards = self
            .config
            .watchdog
            .is_some_and(|w| w.action == WatchdogAction::Forward);
        let heads = std::array::from_fn(|p| {
            let head = out.queues[p].front()?;
            let held = out.tx.is_paused(p, now) && !(forwards && out.watchdog.in_storm(p));
            (!held).then(|| wire_bytes(head.frame.len()))
        });
        let priority = match out.scheduler.choose(now, &heads) {
            Choice::Send(priority) => priority,
            Choice::Idle => return,
            Choice::Wait(until) => {
                if out.wake_at != until {
                    out.wake_at = until;
                    fx.push(Effect::Timer {
                        at: until,
                        timer: Timer::Resume { port },
                    });
                }
                return;
            }
        };
        let Some(Queued {
            at,
            mut frame,
            in_port,
        }) = out.queues[priority].pop_front()
        else {
            return;
        };
        out.waits[priority].record(now.saturating_sub(at).as_ns());
        out.queue_bytes[priority] -= frame.len() as u64;
        let queue_bytes = out.queue_bytes[priority];
        if is_capable(&frame) && out.marks(priority, queue_bytes, true, &mut self.rng) {
            out.mark(&mut frame, priority, &mut self.counters);
        }
        out.scheduler.sent(now, priority, frame.len());
        self.mmu
            .release(usize::from(in_port), priority, frame.len());
        self.counters.tx_frames += 1;
        out.waiting -= 1;
        out.tx.send(now, frame, priority, fx);
        if out.waiting > 0 {
            out.tx.ask_when_free(now, fx);
        }
        self.check_xon(now, in_port, priority, fx);
    }

    fn check_xoff(&mut self, now: Time, in_port: Port, priority: usize, fx: &mut Effects) {
        if self.config.pfc && self.mmu.turns_xoff(usize::from(in_port), priority) {
            self.counters.pfc_xoff_sent += 1;
            self.send_pfc(now, in_port, priority, self.config.pfc_quanta, fx);
            self.record_pfc(EventKind::PfcXoff, in_port, priority, fx);
        }
    }

    fn check_xon(&mut self, now: Time, in_port: Port, priority: usize, fx: &mut Effects) {
        if self.mmu.turns_xon(usize::from(in_port), priority) {
            self.counters.pfc_xon_sent += 1;
            self.record_pfc(EventKind::PfcXon, in_port, priority, fx);
            self.send_pfc(now, in_port, priority, 0, fx);
        }
    }

    fn record_pfc(&self, kind: EventKind, port: Port, priority: usize, fx: &mut Effects) {
        let held = self.mmu.ingress_bytes(usize::from(port), priority);
        record(fx, kind, Some(port), Some(priority as u8), None, held);
    }

    fn send_pfc(&mut self, now: Time, port: Port, priority: usize, quanta: u16, fx: &mut Effects) {
        let frame = Frame::pause(Pause::for_priority(priority as u8, quanta), self.config.mac);
        let out = &mut self.ports[usize::from(port)];
        if quanta > 0 {
            out.tx.counters[priority].tx_pause += 1;
            let at = now + out.tx.pause_refresh(quanta);
            out.refresh_at[priority] = at;
            fx.push(Effect::Timer {
                at,
                timer: Timer::PauseRefresh {
                    port,
                    priority: priority as u8,
                },
            });
        }
        out.tx.push_control(priority as u8, frame);
        self.kick(now, port, fx);
    }

    fn on_mac_control(&mut self, now: Time, port: Port, frame: &Frame, fx: &mut Effects) {
        match frame.as_pause() {
            Ok(pause) => {
                self.ports[usize::from(port)].tx.on_pause(now, pause, fx);
                self.watch(now, fx);
                self.kick(now, port, fx);
            }
            Err(_) => self.drop(fx, port, None, frame, DropReason::Malformed),
        }
    }

    /// `port` is free, as was asked for.
    pub fn on_free(&mut self, now: Time, port: Port, fx: &mut Effects) {
        self.kick(now, port, fx);
    }

    /// A timer set before has come.
    pub fn on_timer(&mut self, now: Time, timer: Timer, fx: &mut Effects) {
        match timer {
            Timer::Resume { port } => self.kick(now, port, fx),
            Timer::Pipeline { port } => {
                let at = usize::from(port);
                while self.ports[at]
                    .pipeline
                    .front()
                    .is_some_and(|next| next.out_at <= now)
                {
                    if let Some(next) = self.ports[at].pipeline.pop_front() {
                        self.out_of_pipeline(now, port, next.frame, &next.verdict, fx);
                    }
                }
            }
            Timer::Watchdog => self.poll_watchdog(now, fx),
            Timer::PauseTakesEffect { port } => {
                self.ports[usize::from(port)].tx.obey_heard(now, fx);
                self.kick(now, port, fx);
            }
            Timer::MacControl { port } => {
                if let Some(frame) = self.ports[usize::from(port)].pauses.pop_front() {
                    self.on_mac_control(now, port, &frame, fx);
                }
            }
            Timer::PauseRefresh { port, priority } => {
                let due = self.ports[usize::from(port)].refresh_at[usize::from(priority)] == now;
                if due && self.mmu.is_xoff(usize::from(port), usize::from(priority)) {
                    let quanta = self.config.pfc_quanta;
                    self.send_pfc(now, port, usize::from(priority), quanta, fx);
                }
            }
            _ => {}
        }
    }

    fn is_discarded(&self, port: Port, priority: usize) -> bool {
        let drops = self
            .config
            .watchdog
            .is_some_and(|w| w.action == WatchdogAction::Drop);
        drops && self.ports[usize::from(port)].watchdog.in_storm(priority)
    }

    /// Sets the next poll of the watchdog, if there is one and none is set.
    fn watch(&mut self, now: Time, fx: &mut Effects) {
        if let (Some(config), false) = (self.config.watchdog, self.watching) {
            self.watching = true;
            fx.push(Effect::Timer {
                at: now + config.poll_interval,
                timer: Timer::Watchdog,
            });
        }
    }

    fn poll_watchdog(&mut self, now: Time, fx: &mut Effects) {
        self.watching = false;
        let Some(config) = self.config.watchdog else {
            return;
        };
        let mut suspicious = false;
        for at in 0..self.ports.len() {
            let port = at as Port;
            for priority in 0..PRIORITIES {
                if !self.mmu.is_lossless(priority) {
                    continue;
                }
                let out = &mut self.ports[at];
                let counters = &out.tx.counters[priority];
                let sight = Sight {
                    queue_bytes: out.queue_bytes[priority],
                    tx_frames: counters.tx_frames,
                    rx_pause: counters.rx_pause,
                    paused: out.tx.is_paused(priority, now),
                };
                suspicious |= sight.paused;
                let change = out.watchdog.poll(priority, sight, &config);
                let detail = match change {
                    Some(Change::Storm) => 1,
                    Some(Change::Restored) => 0,
                    None => continue,
                };
                record(
                    fx,
                    EventKind::Watchdog,
                    Some(port),
                    Some(priority as u8),
                    None,
                    detail,
                );
                self.counters.watchdog_trips += detail;
                if change == Some(Change::Storm) && config.action == WatchdogAction::Drop {
                    self.discard(now, port, priority, DropReason::Watchdog, fx);
                }
                self.kick(now, port, fx);
            }
            suspicious |= !self.ports[at].watchdog.is_idle();
        }
        if suspicious {
            self.watch(now, fx);
        }
    }

    /// Drops what waits in a queue.
    fn discard(
        &mut self,
        now: Time,
        port: Port,
        priority: usize,
        reason: DropReason,
        fx: &mut Effects,
    ) {
        let out = &mut self.ports[usize::from(port)];
        out.queue_bytes[priority] = 0;
        out.waiting -= out.queues[priority].len();
        for Queued { frame, in_port, .. } in std::mem::take(&mut out.queues[priority]) {
            self.mmu
                .release(usize::from(in_port), priority, frame.len());
            self.drop(fx, port, Some(priority), &frame, reason);
            self.check_xon(now, in_port, priority, fx);
        }
    }

    /// The link at `port` went up or down. Going down empties its queues: those frames are lost.
    pub fn on_link(&mut self, now: Time, port: Port, up: bool, fx: &mut Effects) {
        let at = usize::from(port);
        self.ports[at].tx.set_up(now, up);
        let kind = if up {
            EventKind::LinkUp
        } else {
            EventKind::LinkDown
        };
        record(fx, kind, Some(port), None, None, 0);
        if up {
            return self.kick(now, port, fx);
        }
        self.mmu.clear_xoff(at);
        self.ports[at].pauses.clear();
        for priority in 0..PRIORITIES {
            self.discard(now, port, priority, DropReason::LinkDown, fx);
        }
    }

    /// The controller sends a frame (packet-out). `in_port` is what the message says, for `Output::InPort`.
    pub fn packet_out(
        &mut self,
        now: Time,
        in_port: Option<Port>,
        actions: &[Action],
        frame: Frame,
        fx: &mut Effects,
    ) {
        self.counters.created_bytes += frame.accounted_bytes();
        // MAC control is between the two ends of a link: nobody sends it across a switch.
        if frame.is_malformed()
            || frame.headers().kind == Kind::MacControl
            || frame.len() > LONGEST_FRAME_BYTES
        {
            return self.drop(
                fx,
                in_port.unwrap_or(0),
                None,
                &frame,
                DropReason::Malformed,
            );
        }
        let priority = self.classify(frame.headers());
        let mut verdict = self.tables.apply_list(actions, &frame);
        for destination in &mut verdict.destinations {
            if destination.output == Output::InPort {
                match in_port {
                    Some(port) => destination.output = Output::Port(port),
                    None => return self.drop(fx, 0, None, &frame, DropReason::NoRoute),
                }
            }
        }
        if verdict.destinations.is_empty() {
            return self.drop(fx, in_port.unwrap_or(0), None, &frame, DropReason::NoRoute);
        }
        self.distribute(now, FROM_CONTROLLER, priority, frame, &verdict, fx);
    }

    /// The priority of a frame: by DSCP for IP, by PCP for other tagged frames, else 0.
    fn classify(&self, headers: &Headers) -> usize {
        let priority = match (headers.kind, headers.pcp()) {
            (Kind::Ip, _) => self.config.dscp_map[usize::from(headers.dscp())],
            (_, Some(pcp)) => self.config.pcp_map[usize::from(pcp)],
            _ => 0,
        };
        usize::from(priority & 7)
    }

    fn drop(
        &mut self,
        fx: &mut Effects,
        port: Port,
        priority: Option<usize>,
        frame: &Frame,
        reason: DropReason,
    ) {
        self.counters.drop_frames[reason as usize] += 1;
        self.counters.drop_bytes += frame.accounted_bytes();
        record(
            fx,
            EventKind::Drop(reason),
            Some(port),
            priority.map(|p| p as u8),
            None,
            frame.len() as u64,
        );
    }

    /// Counts a frame that was on a link when the link went down.
    pub fn lost_on_link(&mut self, port: Port, frame: &Frame, fx: &mut Effects) {
        if frame.headers().kind != Kind::MacControl {
            self.drop(fx, port, None, frame, DropReason::LinkDown);
        }
    }

    /// The sending side of a port, with its counters.
    pub fn tx(&self, port: Port) -> &Tx {
        &self.ports[usize::from(port)].tx
    }

    /// Sets how a port takes pause frames.
    pub fn set_pause_response(&mut self, port: Port, response: PauseResponse) {
        self.ports[usize::from(port)].tx.set_response(response);
    }

    /// The link at a port now runs at this rate.
    pub fn set_rate(&mut self, port: Port, rate: Rate) {
        self.ports[usize::from(port)].tx.rate = rate;
    }

    /// Brings pause counters up to `now`.
    pub fn settle(&mut self, now: Time) {
        for port in &mut self.ports {
            port.tx.settle_pauses(now);
        }
    }

    /// Bytes in the egress queue of a port's priority.
    pub fn queue_bytes(&self, port: Port, priority: usize) -> u64 {
        self.ports[usize::from(port)].queue_bytes[priority]
    }

    /// What frames found in a queue (bytes), and how long they waited there (nanoseconds).
    pub fn histograms(&self, port: Port, priority: usize) -> (&Histogram, &Histogram) {
        let port = &self.ports[usize::from(port)];
        (&port.depths[priority], &port.waits[priority])
    }

    /// The buffer.
    pub fn mmu(&self) -> &Mmu {
        &self.mmu
    }

    /// Bytes of all frames that wait here.
    pub fn queued_bytes(&self) -> u64 {
        let of_port = |p: &SwitchPort| {
            let piped: u64 = p.pipeline.iter().map(|i| i.frame.accounted_bytes()).sum();
            piped + p.queue_bytes.iter().sum::<u64>()
        };
        self.ports.iter().map(of_port).sum()
    }

    /// Starts counting anew (the fabric is set up and the run begins); nothing may be queued.
    pub fn reset_counters(&mut self) {
        self.counters = SwitchCounters::default();
        self.mmu.reset_max();
        for port in &mut self.ports {
            port.depths = Default::default();
            port.waits = Default::default();
            port.tx.counters = Default::default();
        }
    }
}
