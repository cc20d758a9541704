//! The RDMA NIC, sans-IO: reliable-connected queue pairs with RDMA WRITE, go-back-N, DCQCN at both ends, pause obeyed.

mod dcqcn;
mod qp;
mod template;

use std::collections::{HashMap, VecDeque};
use std::sync::LazyLock;

pub use dcqcn::{Dcqcn, DcqcnParams};
pub use qp::{QpConfig, PSN_MASK};
pub use template::TemplateError;

use qp::{Message, Qp, State};
use template::{Stamp, Template};

use crate::effect::{record, DropReason, Effect, Effects, EventKind, Outcome, Timer};
use crate::frame::Frame;
use crate::switch::mix;
use crate::time::{wire_bytes, Rate, Time};
use crate::tx::{PauseResponse, Tx, PRIORITIES};
use crate::wire::{
    icrc_of_frame, Bth, Ecn, ExtendedHeaders, Kind, MacAddr, Opcode, Pause, Reth, Roce, Syndrome,
    CNP_PAD_BYTES,
};

/// The port of a NIC.
const PORT: u16 = 0;
/// Chassis-id subtype "locally assigned" (IEEE 802.1AB table 8-2), which a controller's probes carry.
const LLDP_LOCALLY_ASSIGNED: u8 = 7;
/// Most control packets (ACK, NAK, CNP, LLDP) that wait in a priority; more are dropped and repeated by the protocol.
const REPLY_LIMIT: usize = 1 << 16;

/// Content of all messages: a fixed pattern, read at an offset that goes with message and position.
static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    (0..(1u64 << 13))
        .flat_map(|i| mix(i).to_le_bytes())
        .collect()
});
const PATTERN_PERIOD: u64 = 4093;

/// Totals of a NIC.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct NicCounters {
    pub tx_packets: u64,
    pub rx_packets: u64,
    pub tx_bytes: u64,
    pub rx_bytes: u64,
    pub cnp_sent: u64,
    pub cnp_received: u64,
    pub naks: u64,
    pub timeouts: u64,
    pub retransmitted_packets: u64,
    pub out_of_order_packets: u64,
    pub icrc_errors: u64,
    pub malformed: u64,
    pub malformed_bytes: u64,
    /// RoCE packets for a queue pair that is not there.
    pub unknown_qp: u64,
    /// Bytes lost because the link was down.
    pub link_down_bytes: u64,
    /// Replies that found their queue full.
    pub reply_overflow: u64,
}

/// What pause frames a storm sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StormSpec {
    /// Pause time of each frame.
    pub quanta: u16,
    /// Time between two frames; `None` repeats each before it expires, a longer one leaves gaps.
    pub interval: Option<Time>,
    /// 802.3x pause frames, which stop the whole link, instead of PFC.
    pub global: bool,
}

/// A NIC that sends pause frames without end (Guo et al., SIGCOMM 2016, section 4.3), for one priority.
#[derive(Clone, Copy, Debug)]
struct StormState {
    spec: StormSpec,
    until: Time,
    next_at: Time,
}

/// A NIC.
#[derive(Debug)]
pub struct Nic {
    mac: MacAddr,
    tx: Tx,
    /// Acknowledgements and the like, by priority; they go before data.
    replies: [VecDeque<Frame>; PRIORITIES],
    qps: Vec<QpEntry>,
    by_qpn: HashMap<u32, usize>,
    /// Queue pairs with something to send, in round-robin order.
    ring: VecDeque<usize>,
    wake_at: Time,
    lldp: Option<Vec<u8>>,
    storms: [Option<StormState>; PRIORITIES],
    /// Totals.
    pub counters: NicCounters,
}

#[derive(Debug)]
struct QpEntry {
    qp: Qp,
    template: Template,
    cnp_template: Template,
    in_ring: bool,
}

impl Nic {
    /// A NIC without queue pairs. `lldp` is the frame with which it answers a controller's LLDP probe.
    pub fn new(mac: MacAddr, rate: Rate, lldp: Option<Vec<u8>>) -> Nic {
        Nic {
            mac,
            tx: Tx::new(PORT, rate),
            replies: Default::default(),
            qps: Vec::new(),
            by_qpn: HashMap::new(),
            ring: VecDeque::new(),
            wake_at: Time::MAX,
            lldp,
            storms: Default::default(),
            counters: NicCounters::default(),
        }
    }

    /// Sets how it takes pause frames.
    pub fn set_pause_response(&mut self, response: PauseResponse) {
        self.tx.set_response(response);
    }

    /// Sets the rate of its link.
    pub fn set_rate(&mut self, rate: Rate) {
        self.tx.rate = rate;
    }

    /// Adds a connected queue pair; returns its index.
    ///
    /// # Errors
    /// [`TemplateError`] where the template is not the headers of a RoCEv2 packet.
    pub fn add_qp(&mut self, config: QpConfig) -> Result<u32, TemplateError> {
        let template = Template::new(&config.template)?;
        let index = self.qps.len();
        self.by_qpn.insert(config.qpn, index);
        self.qps.push(QpEntry {
            cnp_template: template.with_dscp(config.cnp_dscp),
            template,
            qp: Qp::new(config, self.tx.rate),
            in_ring: false,
        });
        Ok(index as u32)
    }

    /// Posts an RDMA WRITE of `bytes` as message `id` to queue pair `index`.
    pub fn post(&mut self, now: Time, index: u32, id: u32, bytes: u64, fx: &mut Effects) {
        let Some(entry) = self.qps.get_mut(index as usize) else {
            return;
        };
        if entry.qp.state == State::Error {
            finish(fx, id, 0, Outcome::Flushed);
            return;
        }
        let address = entry.qp.config.remote_address;
        entry.qp.post(id, bytes, address);
        self.activate(index as usize);
        self.kick(now, fx);
    }

    fn activate(&mut self, index: usize) {
        let entry = &mut self.qps[index];
        if !entry.in_ring && entry.qp.has_work() {
            entry.in_ring = true;
            self.ring.push_back(index);
        }
    }

    /// Begins a pause storm of a priority that lasts until `until`.
    /// One that is under way for that priority is replaced.
    pub fn start_storm(
        &mut self,
        now: Time,
        priority: u8,
        spec: StormSpec,
        until: Time,
        fx: &mut Effects,
    ) {
        let priority = priority & 7;
        let detail = u64::from(spec.quanta);
        record(
            fx,
            EventKind::Fault,
            Some(PORT),
            Some(priority),
            None,
            detail,
        );
        self.storms[usize::from(priority)] = Some(StormState {
            spec,
            until,
            next_at: now,
        });
        self.storm_tick(now, priority, fx);
    }

    fn storm_tick(&mut self, now: Time, priority: u8, fx: &mut Effects) {
        let Some(storm) = &mut self.storms[usize::from(priority)] else {
            return;
        };
        if storm.next_at != now {
            return;
        }
        if now >= storm.until {
            self.storms[usize::from(priority)] = None;
            record(fx, EventKind::Fault, Some(PORT), Some(priority), None, 0);
            return;
        }
        let StormSpec {
            quanta,
            interval,
            global,
        } = storm.spec;
        let pause = if global {
            Pause::Global { quanta }
        } else {
            Pause::for_priority(priority, quanta)
        };
        let wait = interval.unwrap_or_else(|| self.tx.pause_refresh(quanta));
        storm.next_at = (now + wait.max(self.tx.pause_refresh(0))).min(storm.until);
        fx.push(Effect::Timer {
            at: storm.next_at,
            timer: Timer::Storm { priority },
        });
        self.tx.counters[usize::from(priority)].tx_pause += 1;
        self.tx
            .push_control(priority, Frame::pause(pause, self.mac));
        self.kick(now, fx);
    }

    /// A frame has come in.
    pub fn on_frame(&mut self, now: Time, frame: Frame, fx: &mut Effects) {
        if frame.is_malformed() || frame.has_bad_fcs() {
            return self.malformed(&frame, fx);
        }
        if frame.headers().kind == Kind::MacControl {
            match frame.as_pause() {
                Ok(pause) => {
                    self.tx.on_pause(now, pause, fx);
                    self.kick(now, fx);
                }
                Err(_) => self.malformed(&frame, fx),
            }
            return;
        }
        let bytes = frame.len() as u64;
        match frame.headers().kind {
            Kind::Lldp => self.answer_lldp(&frame),
            Kind::Ip if frame.headers().dst == self.mac => {
                if let Some((expected, carried)) = icrc_of_frame(frame.bytes(), frame.headers()) {
                    if expected != carried {
                        self.counters.icrc_errors += 1;
                    } else if self.on_roce(now, &frame, fx).is_none() {
                        return self.malformed(&frame, fx);
                    }
                }
            }
            // Everything else is for the host's own stack, which has its own copy.
            _ => {}
        }
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += bytes;
        self.kick(now, fx);
    }

    fn malformed(&mut self, frame: &Frame, fx: &mut Effects) {
        self.counters.malformed += 1;
        self.counters.malformed_bytes += frame.accounted_bytes();
        let kind = EventKind::Drop(DropReason::Malformed);
        record(fx, kind, Some(PORT), None, None, frame.len() as u64);
    }

    fn answer_lldp(&mut self, frame: &Frame) {
        // Only a controller's probe is answered: two NICs back to back must not answer each other for ever.
        let at = usize::from(frame.headers().l3_at);
        let is_probe = frame.bytes().get(at + 2) == Some(&LLDP_LOCALLY_ASSIGNED);
        if let (true, Some(lldp)) = (is_probe, &self.lldp) {
            let reply = Frame::new(lldp.clone());
            self.reply(0, reply);
        }
    }

    fn reply(&mut self, priority: u8, frame: Frame) {
        let queue = &mut self.replies[usize::from(priority & 7)];
        if queue.len() < REPLY_LIMIT {
            queue.push_back(frame);
        } else {
            self.counters.reply_overflow += 1;
        }
    }

    /// Handles a RoCE packet whose ICRC is right; `None` where its headers are malformed.
    fn on_roce(&mut self, now: Time, frame: &Frame, fx: &mut Effects) -> Option<()> {
        let h = frame.headers();
        let datagram = &frame.bytes()[usize::from(h.l4_at) + 8..usize::from(h.l3_end)];
        let roce = Roce::parse(datagram).ok()?;
        let Some(&index) = self.by_qpn.get(&roce.bth.dest_qp) else {
            self.counters.unknown_qp += 1;
            return Some(());
        };
        let config = &self.qps[index].qp.config;
        let priority = match roce.bth.opcode {
            Opcode::CNP => config.cnp_priority,
            _ => config.priority,
        };
        let counters = &mut self.tx.counters[usize::from(priority & 7)];
        counters.rx_frames += 1;
        counters.rx_bytes += frame.len() as u64;
        match roce.bth.opcode {
            Opcode::CNP => self.on_cnp(now, index),
            Opcode::ACKNOWLEDGE => self.on_ack(now, index, &roce, fx),
            opcode if opcode.is_rc_write() => {
                let marked = h.ecn() == Ecn::Ce;
                self.on_write(now, index, &roce.bth, marked, fx);
            }
            // No other operation was agreed on for these queue pairs.
            _ => self.nak(index, Syndrome::NAK_INVALID_REQUEST, fx),
        }
        Some(())
    }

    fn on_cnp(&mut self, now: Time, index: usize) {
        self.counters.cnp_received += 1;
        if let Some(cc) = &mut self.qps[index].qp.congestion {
            cc.on_cnp(now);
        }
    }

    // ---- Responder

    fn on_write(&mut self, now: Time, index: usize, bth: &Bth, marked: bool, fx: &mut Effects) {
        if marked {
            self.qps[index].qp.ecn_marked += 1;
            self.notify_congestion(now, index, fx);
        }
        let qp = &mut self.qps[index].qp;
        if qp.state == State::Error {
            return;
        }
        match qp.distance(bth.psn) {
            0 => {}
            // A duplicate is acknowledged again (section 9.7.5.1.2).
            d if d < 0 => {
                if bth.wants_ack() {
                    self.acknowledge(index);
                }
                return;
            }
            _ => {
                self.counters.out_of_order_packets += 1;
                // One NAK a gap (section 9.7.5.2.8).
                if !std::mem::replace(&mut qp.nak_sent, true) {
                    self.nak(index, Syndrome::NAK_SEQUENCE_ERROR, fx);
                }
                return;
            }
        }
        if bth.opcode.starts_message() == qp.in_message {
            self.nak(index, Syndrome::NAK_INVALID_REQUEST, fx);
            return;
        }
        qp.nak_sent = false;
        qp.expected += 1;
        qp.in_message = !bth.opcode.ends_message();
        if !qp.in_message {
            qp.msn = (qp.msn + 1) & PSN_MASK;
            fx.push(Effect::Received {
                qp: index as u32,
                ecn_marked_packets: std::mem::take(&mut qp.ecn_marked),
            });
        }
        if bth.wants_ack() {
            self.acknowledge(index);
        }
    }

    fn acknowledge(&mut self, index: usize) {
        let psn = self.qps[index].qp.expected_psn().wrapping_sub(1) & PSN_MASK;
        self.send_aeth(index, Syndrome::ACK, psn);
    }

    fn nak(&mut self, index: usize, syndrome: Syndrome, fx: &mut Effects) {
        self.counters.naks += 1;
        let psn = self.qps[index].qp.expected_psn();
        record(
            fx,
            EventKind::Nak,
            Some(PORT),
            Some(self.qps[index].qp.config.priority),
            None,
            u64::from(psn),
        );
        self.send_aeth(index, syndrome, psn);
    }

    fn send_aeth(&mut self, index: usize, syndrome: Syndrome, psn: u32) {
        let entry = &self.qps[index];
        let frame = entry.template.stamp(&Stamp {
            opcode: Opcode::ACKNOWLEDGE,
            psn,
            ack_request: false,
            ext: ExtendedHeaders {
                aeth: Some(u32::from(syndrome.0) << 24 | entry.qp.msn),
                ..ExtendedHeaders::default()
            },
            payload: &[],
        });
        let priority = entry.qp.config.priority;
        self.reply(priority, frame);
    }

    /// The notification point: at most one CNP per interval and queue pair.
    fn notify_congestion(&mut self, now: Time, index: usize, fx: &mut Effects) {
        let entry = &mut self.qps[index];
        let config = &entry.qp.config;
        let due = entry
            .qp
            .last_cnp
            .is_none_or(|last| now >= last + config.cnp_interval);
        if config.dcqcn.is_none() || !due {
            return;
        }
        entry.qp.last_cnp = Some(now);
        let frame = entry.cnp_template.stamp(&Stamp {
            opcode: Opcode::CNP,
            psn: 0,
            ack_request: false,
            ext: ExtendedHeaders::default(),
            payload: &[0; CNP_PAD_BYTES],
        });
        self.counters.cnp_sent += 1;
        let priority = entry.qp.config.cnp_priority;
        record(fx, EventKind::Cnp, Some(PORT), Some(priority), None, 0);
        self.reply(priority, frame);
    }

    // ---- Requester

    fn on_ack(&mut self, now: Time, index: usize, roce: &Roce, fx: &mut Effects) {
        let Some(aeth) = roce.ext.aeth else { return };
        let syndrome = Syndrome((aeth >> 24) as u8);
        let qp = &mut self.qps[index].qp;
        if qp.state == State::Error {
            return;
        }
        let Some(seq) = qp.sent_seq(roce.bth.psn) else {
            return;
        };
        if syndrome.is_ack() {
            if seq < qp.high {
                self.advance(now, index, seq + 1, fx);
            }
        } else if syndrome == Syndrome::NAK_SEQUENCE_ERROR {
            // Everything before the PSN has arrived; go back to it.
            self.advance(now, index, seq, fx);
            self.qps[index].qp.next = seq;
        } else if syndrome.is_nak() {
            // Every other NAK ends the connection (section 9.7.5.2). A receiver that is not ready is not to be had with WRITE.
            for (message, outcome) in self.qps[index].qp.fail(Outcome::RemoteError) {
                finish(fx, message.id, message.retransmitted, outcome);
            }
        }
        self.activate(index);
    }

    /// Everything before `una` is acknowledged.
    fn advance(&mut self, now: Time, index: usize, una: u64, fx: &mut Effects) {
        let qp = &mut self.qps[index].qp;
        if una > qp.una {
            qp.una = una;
            qp.retries = 0;
            qp.next = qp.next.max(una);
            while qp.messages.front().is_some_and(|m| m.end <= una) {
                if let Some(Message {
                    id, retransmitted, ..
                }) = qp.messages.pop_front()
                {
                    finish(fx, id, retransmitted, Outcome::Success);
                }
            }
            self.arm_retry(now, index, fx);
        }
    }

    /// Starts the retransmission timer anew, or stops it where nothing is outstanding.
    fn arm_retry(&mut self, now: Time, index: usize, fx: &mut Effects) {
        let qp = &mut self.qps[index].qp;
        qp.retry_deadline = match qp.timeout() {
            Some(timeout) if qp.una < qp.high => now + timeout,
            _ => Time::MAX,
        };
        if qp.retry_deadline < Time::MAX && !qp.retry_timer_set {
            qp.retry_timer_set = true;
            fx.push(Effect::Timer {
                at: qp.retry_deadline,
                timer: Timer::Retransmit { qp: index as u32 },
            });
        }
    }

    fn on_retry_timer(&mut self, now: Time, index: usize, fx: &mut Effects) {
        let Some(entry) = self.qps.get_mut(index) else {
            return;
        };
        let qp = &mut entry.qp;
        qp.retry_timer_set = false;
        if qp.retry_deadline == Time::MAX {
            return;
        }
        if qp.retry_deadline > now {
            qp.retry_timer_set = true;
            fx.push(Effect::Timer {
                at: qp.retry_deadline,
                timer: Timer::Retransmit { qp: index as u32 },
            });
            return;
        }
        self.counters.timeouts += 1;
        let flow = qp.messages.front().map(|m| m.id);
        let psn = u64::from(qp.psn(qp.una));
        let priority = Some(qp.config.priority);
        record(fx, EventKind::Retry, Some(PORT), priority, flow, psn);
        if qp.retries >= qp.config.retry_count {
            for (message, outcome) in qp.fail(Outcome::RetryExceeded) {
                finish(fx, message.id, message.retransmitted, outcome);
            }
            return;
        }
        qp.retries += 1;
        qp.next = qp.una;
        self.arm_retry(now, index, fx);
        self.activate(index);
        self.kick(now, fx);
    }

    // ---- Port

    /// Starts the next frame: pause frames, replies by priority, then data round robin over the queue pairs.
    fn kick(&mut self, now: Time, fx: &mut Effects) {
        if !self.has_work() {
            return;
        }
        if !self.tx.is_ready(now) || self.tx.send_control(now, fx) {
            return self.tx.ask_when_free(now, fx);
        }
        for priority in (0..PRIORITIES).rev() {
            if self.tx.is_paused(priority, now) {
                continue;
            }
            if let Some(frame) = self.replies[priority].pop_front() {
                return self.send(now, frame, priority, fx);
            }
        }
        self.send_data(now, fx);
    }

    /// Whether anything is to be sent, now or later.
    fn has_work(&self) -> bool {
        self.tx.has_control()
            || !self.ring.is_empty()
            || self.replies.iter().any(|queue| !queue.is_empty())
    }

    fn send(&mut self, now: Time, frame: Frame, priority: usize, fx: &mut Effects) {
        self.counters.tx_packets += 1;
        self.counters.tx_bytes += frame.len() as u64;
        self.tx.send(now, frame, priority, fx);
        if self.has_work() {
            self.tx.ask_when_free(now, fx);
        }
    }

    fn send_data(&mut self, now: Time, fx: &mut Effects) {
        let mut wake = Time::MAX;
        for _ in 0..self.ring.len() {
            let Some(index) = self.ring.pop_front() else {
                return;
            };
            let entry = &mut self.qps[index];
            if !entry.qp.has_work() {
                entry.in_ring = false;
                continue;
            }
            self.ring.push_back(index);
            let priority = usize::from(entry.qp.config.priority & 7);
            if self.tx.is_paused(priority, now) {
                continue;
            }
            if entry.qp.send_at > now {
                wake = wake.min(entry.qp.send_at);
                continue;
            }
            return self.send_packet(now, index, priority, fx);
        }
        if wake < Time::MAX && (self.wake_at <= now || wake < self.wake_at) {
            self.wake_at = wake;
            fx.push(Effect::Timer {
                at: wake,
                timer: Timer::NicWake,
            });
        }
    }

    fn send_packet(&mut self, now: Time, index: usize, priority: usize, fx: &mut Effects) {
        let entry = &mut self.qps[index];
        let qp = &mut entry.qp;
        let seq = qp.next;
        let repeated = seq < qp.high;
        let mtu = u64::from(qp.config.mtu_bytes);
        let every = u64::from(qp.config.ack_every_packets.max(1));
        let rkey = qp.config.rkey;
        let psn = qp.psn(seq);
        let Some(message) = qp.message_at(seq) else {
            return;
        };
        let (opcode, offset, length) = message.packet(seq, mtu);
        message.retransmitted += u32::from(repeated);
        let reth = opcode.starts_message().then_some(Reth {
            virtual_address: message.address,
            rkey,
            dma_bytes: message.bytes as u32,
        });
        let start = ((u64::from(message.id) * 64 + offset) % PATTERN_PERIOD) as usize;
        let frame = entry.template.stamp(&Stamp {
            opcode,
            psn,
            ack_request: opcode.ends_message() || (seq + 1) % every == 0,
            ext: ExtendedHeaders {
                reth,
                ..ExtendedHeaders::default()
            },
            payload: &PATTERN[start..start + length as usize],
        });
        qp.next += 1;
        qp.high = qp.high.max(qp.next);
        let sent = wire_bytes(frame.len());
        if let Some(cc) = &mut qp.congestion {
            cc.on_sent(now, sent);
            qp.send_at = qp.send_at.max(now) + cc.rate().time_for_bytes(sent);
        }
        self.counters.retransmitted_packets += u64::from(repeated);
        if qp.retry_deadline == Time::MAX {
            self.arm_retry(now, index, fx);
        }
        self.send(now, frame, priority, fx);
    }

    /// The port is free, as was asked for.
    pub fn on_free(&mut self, now: Time, fx: &mut Effects) {
        self.kick(now, fx);
    }

    /// A timer set before has come.
    pub fn on_timer(&mut self, now: Time, timer: Timer, fx: &mut Effects) {
        match timer {
            Timer::Resume { .. } | Timer::NicWake => self.kick(now, fx),
            Timer::PauseTakesEffect { .. } => {
                self.tx.obey_heard(now, fx);
                self.kick(now, fx);
            }
            Timer::Retransmit { qp } => self.on_retry_timer(now, qp as usize, fx),
            Timer::Storm { priority } => self.storm_tick(now, priority & 7, fx),
            _ => {}
        }
    }

    /// The link went up or down.
    pub fn on_link(&mut self, now: Time, up: bool, fx: &mut Effects) {
        self.tx.set_up(now, up);
        let kind = if up {
            EventKind::LinkUp
        } else {
            EventKind::LinkDown
        };
        record(fx, kind, Some(PORT), None, None, 0);
        self.kick(now, fx);
    }

    /// Counts a frame that was on the link when it went down.
    pub fn lost_on_link(&mut self, frame: &Frame, fx: &mut Effects) {
        if frame.headers().kind != Kind::MacControl {
            self.counters.link_down_bytes += frame.accounted_bytes();
            let kind = EventKind::Drop(DropReason::LinkDown);
            record(fx, kind, Some(PORT), None, None, frame.len() as u64);
        }
    }

    /// The sending side of its port, with its counters.
    pub fn tx(&self) -> &Tx {
        &self.tx
    }

    /// Brings pause counters up to `now`.
    pub fn settle(&mut self, now: Time) {
        self.tx.settle_pauses(now);
    }

    /// Rate and alpha of each queue pair that has congestion control and messages under way.
    pub fn rates(&mut self, now: Time) -> Vec<(u32, Rate, f64)> {
        self.qps
            .iter_mut()
            .filter(|e| !e.qp.messages.is_empty())
            .filter_map(|e| {
                let cc = e.qp.congestion.as_mut()?;
                cc.advance(now);
                Some((e.qp.config.qpn, cc.rate(), cc.alpha()))
            })
            .collect()
    }

    /// Starts counting anew.
    pub fn reset_counters(&mut self) {
        self.counters = NicCounters::default();
        self.tx.counters = Default::default();
    }
}

fn finish(fx: &mut Effects, message: u32, retransmitted_packets: u32, outcome: Outcome) {
    fx.push(Effect::Finished {
        message,
        outcome,
        retransmitted_packets,
    });
}
