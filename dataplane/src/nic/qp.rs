//! A reliable-connected queue pair: requester and responder (IBTA specification volume 1, section 9.7).

use std::collections::VecDeque;

use super::dcqcn::Dcqcn;
use crate::effect::Outcome;
use crate::time::Time;
use crate::wire::Opcode;

/// Packet sequence numbers are 24 bits wide.
pub const PSN_MASK: u32 = 0xff_ffff;

/// Most packets outstanding: half of the PSN space, so that an acknowledgement is never ambiguous (section 9.7.5.1.4).
const WINDOW_PACKETS: u64 = 1 << 23;

/// How a queue pair is set up; the same at both ends but for numbers and template.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct QpConfig {
    pub qpn: u32,
    pub peer_qpn: u32,
    /// A packet to the peer without payload, as Scapy built it; sequence numbers, lengths and checks are stamped in.
    pub template: Vec<u8>,
    /// Path MTU: most payload bytes of a packet.
    pub mtu_bytes: u32,
    /// First PSN that this end sends, and the first that it expects.
    pub start_psn: u32,
    pub peer_start_psn: u32,
    pub priority: u8,
    /// Local ack timeout as the exponent n of 4.096 us x 2^n; 0 is never (section 9.9.2.1.1).
    pub timeout_exponent: u8,
    pub retry_count: u8,
    /// An acknowledgement is asked for with every so many packets, and with the last of a message.
    pub ack_every_packets: u32,
    pub dcqcn: Option<super::DcqcnParams>,
    /// Least time between two CNPs of this notification point.
    pub cnp_interval: Time,
    pub cnp_dscp: u8,
    pub cnp_priority: u8,
    /// Where WRITEs go in the peer's memory, and the key for it.
    pub remote_address: u64,
    pub rkey: u32,
}

/// An RDMA WRITE that was posted.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub id: u32,
    pub bytes: u64,
    /// Sequence number (not cut to 24 bits) of its first packet, and of the one behind its last.
    pub first: u64,
    pub end: u64,
    pub retransmitted: u32,
    pub address: u64,
}

impl Message {
    /// Opcode, offset and payload length of the packet with sequence number `seq`.
    pub fn packet(&self, seq: u64, mtu: u64) -> (Opcode, u64, u64) {
        let index = seq - self.first;
        let offset = index * mtu;
        let length = mtu.min(self.bytes - offset);
        let opcode = match (index == 0, seq + 1 == self.end) {
            (true, true) => Opcode::WRITE_ONLY,
            (true, false) => Opcode::WRITE_FIRST,
            (false, false) => Opcode::WRITE_MIDDLE,
            (false, true) => Opcode::WRITE_LAST,
        };
        (opcode, offset, length)
    }
}

/// Ready to send, or in error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    ReadyToSend,
    Error,
}

/// State of a queue pair.
#[derive(Debug)]
pub(super) struct Qp {
    pub config: QpConfig,
    pub state: State,
    // Requester.
    pub messages: VecDeque<Message>,
    /// Oldest unacknowledged, next to send, and the one behind the last ever sent.
    pub una: u64,
    pub next: u64,
    pub high: u64,
    /// One behind the last sequence number of the posted messages.
    pub end: u64,
    pub send_at: Time,
    pub congestion: Option<Dcqcn>,
    pub retry_deadline: Time,
    pub retry_timer_set: bool,
    pub retries: u8,
    // Responder.
    pub expected: u64,
    pub in_message: bool,
    pub nak_sent: bool,
    pub msn: u32,
    pub last_cnp: Option<Time>,
    pub ecn_marked: u32,
}

impl Qp {
    pub fn new(config: QpConfig, line: crate::time::Rate) -> Qp {
        Qp {
            congestion: config.dcqcn.map(|params| Dcqcn::new(params, line)),
            config,
            state: State::ReadyToSend,
            messages: VecDeque::new(),
            una: 0,
            next: 0,
            high: 0,
            end: 0,
            send_at: Time::ZERO,
            retry_deadline: Time::MAX,
            retry_timer_set: false,
            retries: 0,
            expected: 0,
            in_message: false,
            nak_sent: false,
            msn: 0,
            last_cnp: None,
            ecn_marked: 0,
        }
    }

    pub fn post(&mut self, id: u32, bytes: u64, address: u64) {
        let packets = bytes.div_ceil(u64::from(self.config.mtu_bytes)).max(1);
        let first = self.end;
        self.end += packets;
        self.messages.push_back(Message {
            id,
            bytes,
            first,
            end: self.end,
            retransmitted: 0,
            address,
        });
    }

    /// The message that holds sequence number `seq`.
    pub fn message_at(&mut self, seq: u64) -> Option<&mut Message> {
        let i = self.messages.partition_point(|m| m.end <= seq);
        self.messages.get_mut(i)
    }

    pub fn has_work(&self) -> bool {
        self.state == State::ReadyToSend
            && self.next < self.end
            && self.next - self.una < WINDOW_PACKETS
    }

    pub fn psn(&self, seq: u64) -> u32 {
        (self.config.start_psn.wrapping_add(seq as u32)) & PSN_MASK
    }

    pub fn timeout(&self) -> Option<Time> {
        match self.config.timeout_exponent {
            0 => None,
            n => Some(Time::from_ns(4096 << n.min(31))),
        }
    }

    /// Sequence number that an acknowledgement's PSN stands for, if it is one that was sent and is not yet acknowledged
    /// (or, for a NAK, the next to be sent).
    pub fn sent_seq(&self, psn: u32) -> Option<u64> {
        let ahead = psn.wrapping_sub(self.psn(self.una)) & PSN_MASK;
        let seq = self.una + u64::from(ahead);
        (seq <= self.high).then_some(seq)
    }

    /// How far `psn` is from the expected one: 0 is it, positive is ahead (a gap), negative a duplicate.
    pub fn distance(&self, psn: u32) -> i32 {
        let expected = self
            .config
            .peer_start_psn
            .wrapping_add(self.expected as u32)
            & PSN_MASK;
        let diff = psn.wrapping_sub(expected) & PSN_MASK;
        if diff < 1 << 23 {
            diff as i32
        } else {
            diff as i32 - (1 << 24)
        }
    }

    pub fn expected_psn(&self) -> u32 {
        self.config
            .peer_start_psn
            .wrapping_add(self.expected as u32)
            & PSN_MASK
    }

    /// Goes into error; the messages that end with it, the first with the cause, the rest flushed.
    pub fn fail(&mut self, cause: Outcome) -> Vec<(Message, Outcome)> {
        self.state = State::Error;
        self.retry_deadline = Time::MAX;
        std::mem::take(&mut self.messages)
            .into_iter()
            .enumerate()
            .map(|(i, m)| (m, if i == 0 { cause } else { Outcome::Flushed }))
            .collect()
    }
}
