//! The medium of the `emulate` engine: packet sockets on both ends of every veth link, and the elastic fabric clock.
//!
//! Each frame that we send is expected at the far end, in order, by its length and hash. The fabric does not process
//! the arrival of a frame before the frame has really come out of the link; how long the kernel took to carry it does
//! not matter, since fabric time waits. Whatever else comes out of a link was sent by an outsider (a host's own stack,
//! a Scapy script), and enters at the fabric time at which it is read.
//!
//! Sends are held back until a frame is needed that is not there yet, so that they go out in batches without any
//! event being processed early: that is the lookahead, and it is as long as the traffic allows.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant, SystemTime};

use crate::frame::Frame;
use crate::medium::{Medium, PortId, Wait};
use crate::packet_socket::{PacketSocket, Poller, Receiver, BATCH};
use crate::time::Time;

/// How long one wait for a frame of ours lasts, and how many pass before it counts as lost. Waits are counted instead of
/// reading a clock, since a stopped process (SIGSTOP) has not waited.
const LOSS_WAIT: Duration = Duration::from_millis(20);
const LOSS_WAITS: u32 = 150;
/// Frames sent and not yet read back, above which some are read before more are sent: the kernel's backlog per processor holds 1000.
const OUTSTANDING_LIMIT: usize = 512;
/// How often that is tried, 0.1 ms each, before sending goes on all the same.
const OUTSTANDING_TRIES: u32 = 50;
/// How often a free-running clock looks for frames from outside.
const FOREIGN_POLL: Duration = Duration::from_millis(1);
/// Lateness that counts as the clock having slipped rather than as the grain of sleeping.
const SLIP_GRAIN: Duration = Duration::from_millis(1);
/// Most frames from outside that wait to be taken in.
const FOREIGN_LIMIT: usize = 16_384;
/// How often sending to a full device is tried again.
const SEND_RETRIES: u32 = 1000;

#[derive(Debug)]
struct Expected {
    length: usize,
    hash: u32,
    /// The link refused it: it will not come.
    refused: bool,
}

/// A frame that waits to be sent, and the port of ours that expects it.
#[derive(Debug)]
struct Pending {
    to: Option<PortId>,
    frame: Frame,
}

#[derive(Debug, Default)]
struct VethPort {
    socket: Option<PacketSocket>,
    pending: Vec<Pending>,
    /// What is due here, in order; the first `sent` of them have left the far end, and only those can come.
    expected: VecDeque<Expected>,
    sent: usize,
    /// Frames of ours read back, in the order expected; `None` stands for a lost one.
    ready: VecDeque<Option<Frame>>,
    /// Whether a host's own stack listens here: it has no fabric clock, so on a paced fabric it must not see a frame early.
    is_host: bool,
    /// Whether the link to here is inside the process: what is carried is there at once.
    in_memory: bool,
    /// Frames for here, with the port to send them from, that are sent when they are due.
    held: VecDeque<(PortId, Frame)>,
}

/// How well a live run kept its promises.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Fidelity {
    /// Wall time by which the clock fell behind the pace that was asked for.
    pub slipped: Duration,
    /// Frames of ours that never came out of a link, or were refused by one.
    pub lost_frames: u64,
    /// Frames that the kernel dropped at a full socket.
    pub overruns: u64,
    /// How late frames from outside were read after the kernel had them.
    pub foreign_late: Vec<Duration>,
    pub foreign_not_taken: u64,
}

/// The medium of the `emulate` engine.
#[derive(Debug)]
pub struct VethMedium {
    ports: Vec<VethPort>,
    poller: Poller,
    receiver: Receiver,
    /// Ports with pending frames.
    dirty: Vec<PortId>,
    /// Frames sent and not yet read back.
    outstanding: usize,
    foreign: VecDeque<(PortId, Frame)>,
    next_foreign_poll: Instant,
    /// Wall seconds per fabric second, or free-running.
    slowdown: Option<f64>,
    /// Wall time that fabric time zero stands at, moved whenever the clock slips.
    origin: Instant,
    deadline: Instant,
    /// How well it went.
    pub fidelity: Fidelity,
}

fn hash(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

impl VethMedium {
    /// A medium without ports.
    ///
    /// # Errors
    /// I/O errors.
    pub fn new() -> io::Result<VethMedium> {
        let now = Instant::now();
        Ok(VethMedium {
            ports: Vec::new(),
            poller: Poller::new()?,
            receiver: Receiver::default(),
            dirty: Vec::new(),
            outstanding: 0,
            foreign: VecDeque::new(),
            next_foreign_poll: now,
            slowdown: None,
            origin: now,
            deadline: now,
            fidelity: Fidelity::default(),
        })
    }

    /// Gives a port its socket; `is_host` says that a host's own stack shares the interface.
    ///
    /// # Errors
    /// I/O errors.
    pub fn attach(&mut self, port: PortId, socket: PacketSocket, is_host: bool) -> io::Result<()> {
        self.poller.add(&socket, port as u64)?;
        let port = self.port(port);
        port.socket = Some(socket);
        port.is_host = is_host;
        Ok(())
    }

    /// Keeps the link to a port inside the process: no socket, no veth.
    pub fn keep_in_memory(&mut self, port: PortId) {
        self.port(port).in_memory = true;
    }

    /// Closes a port's socket; what is expected there is counted as lost when it is due.
    pub fn detach(&mut self, port: PortId) {
        self.port(port).socket = None;
    }

    fn port(&mut self, port: PortId) -> &mut VethPort {
        if self.ports.len() <= port {
            self.ports.resize_with(port + 1, VethPort::default);
        }
        &mut self.ports[port]
    }

    /// Sets the pace: at least `slowdown` wall seconds per fabric second, from fabric time `now` on; `None` runs free.
    pub fn set_slowdown(&mut self, now: Time, slowdown: Option<f64>) {
        self.slowdown = slowdown;
        let elapsed = self.wall_span(now);
        let wall = Instant::now();
        self.origin = wall.checked_sub(elapsed).unwrap_or(wall);
    }

    /// Lets [`Medium::wait`] wait until `deadline` at most.
    pub fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Adds the kernel's own count of frames dropped at full sockets to the fidelity.
    pub fn count_overruns(&mut self) {
        for socket in self.ports.iter().filter_map(|p| p.socket.as_ref()) {
            self.fidelity.overruns += u64::from(socket.take_overruns().unwrap_or(0));
        }
    }

    fn wall_span(&self, fabric: Time) -> Duration {
        let slowdown = self.slowdown.unwrap_or(0.0);
        Duration::try_from_secs_f64(fabric.0 as f64 * 1e-12 * slowdown).unwrap_or(Duration::MAX)
    }

    /// Fabric time that the wall clock stands for.
    fn fabric_now(&self, at_least: Time) -> Time {
        match self.slowdown {
            Some(slowdown) if slowdown > 0.0 => {
                let elapsed = self.origin.elapsed().as_secs_f64();
                Time((elapsed / slowdown * 1e12) as u64).max(at_least)
            }
            _ => at_least,
        }
    }

    fn take_foreign(&mut self, now: Time) -> Option<Wait> {
        let (port, frame) = self.foreign.pop_front()?;
        let at = self.fabric_now(now);
        Some(Wait::Foreign { at, port, frame })
    }

    /// Reads every socket that has something, after waiting at most `timeout` for the first.
    fn read_all(&mut self, timeout: Duration) {
        let tokens = self.poller.wait(timeout);
        for token in tokens {
            self.read_port(token as PortId);
        }
    }

    /// Reads one batch of a port and tells our frames from others'. Returns how many frames there were.
    fn read_port(&mut self, port_id: PortId) -> usize {
        let VethPort {
            socket,
            expected,
            ready,
            sent,
            ..
        } = &mut self.ports[port_id];
        let Some(socket) = socket else { return 0 };
        let (foreign, fidelity) = (&mut self.foreign, &mut self.fidelity);
        let mut ours = 0;
        let received = self.receiver.receive(socket, |bytes, stamp| {
            let (length, digest) = (bytes.len(), hash(&bytes));
            let found = expected
                .iter()
                .take(*sent)
                .position(|e| !e.refused && e.length == length && e.hash == digest);
            if let Some(skipped) = found {
                // A veth keeps order: what was expected before this one is lost.
                for before in expected.drain(..=skipped).take(skipped) {
                    ready.push_back(None);
                    fidelity.lost_frames += 1;
                    ours += usize::from(!before.refused);
                }
                *sent -= skipped + 1;
                ours += 1;
                ready.push_back(Some(Frame::new(bytes)));
            } else if foreign.len() < FOREIGN_LIMIT {
                let wall = SystemTime::now()
                    .duration_since(SystemTime::UNIX_EPOCH)
                    .unwrap_or_default();
                if fidelity.foreign_late.len() < FOREIGN_LIMIT * 8 {
                    fidelity.foreign_late.push(wall.saturating_sub(stamp));
                }
                foreign.push_back((port_id, Frame::new(bytes)));
            } else {
                fidelity.foreign_not_taken += 1;
            }
        });
        self.outstanding = self.outstanding.saturating_sub(ours);
        received.unwrap_or(0)
    }

    fn push_pending(&mut self, from: PortId, pending: Pending) {
        let port = self.port(from);
        port.pending.push(pending);
        if port.pending.len() == 1 {
            self.dirty.push(from);
        }
    }

    fn send_pending(&mut self, port_id: PortId) {
        let mut all = std::mem::take(&mut self.ports[port_id].pending);
        let mut rest: &[Pending] = &all;
        let mut retries = 0;
        while !rest.is_empty() {
            self.relieve();
            let batch: Vec<&[u8]> = rest.iter().take(BATCH).map(|p| p.frame.bytes()).collect();
            let sent = match &self.ports[port_id].socket {
                Some(socket) => socket.send(&batch),
                None => Err(io::ErrorKind::NotConnected.into()),
            };
            match sent {
                Ok(n) if n > 0 => {
                    let (gone, left) = rest.split_at(n);
                    gone.iter().for_each(|p| self.has_left(p.to, false));
                    rest = left;
                    retries = 0;
                }
                Err(error) if !is_passing(&error) || retries >= SEND_RETRIES => {
                    self.has_left(rest[0].to, true);
                    rest = &rest[1..];
                    retries = 0;
                }
                _ => {
                    retries += 1;
                    self.read_all(Duration::from_micros(100));
                }
            }
        }
        all.clear();
        self.ports[port_id].pending = all;
    }

    /// A frame for `to` was sent, or refused by the link.
    fn has_left(&mut self, to: Option<PortId>, refused: bool) {
        let Some(to) = to else {
            self.fidelity.lost_frames += u64::from(refused);
            return;
        };
        let port = &mut self.ports[to];
        if let Some(expected) = port.expected.get_mut(port.sent) {
            expected.refused = refused;
            port.sent += 1;
            self.outstanding += usize::from(!refused);
        }
    }

    /// Reads frames back before the kernel's backlog overflows.
    fn relieve(&mut self) {
        for _ in 0..OUTSTANDING_TRIES {
            if self.outstanding <= OUTSTANDING_LIMIT {
                return;
            }
            self.read_all(Duration::from_micros(100));
        }
    }

    /// Gives up the frame that is due next at a port.
    fn give_up(&mut self, port_id: PortId) {
        let port = &mut self.ports[port_id];
        if let Some(lost) = port.expected.pop_front() {
            if port.sent > 0 {
                port.sent -= 1;
                self.outstanding -= usize::from(!lost.refused).min(self.outstanding);
            }
            self.fidelity.lost_frames += 1;
        }
    }
}

/// Whether a send may succeed when tried again.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOBUFS | libc::EAGAIN | libc::EINTR | libc::ENOMEM)
    )
}

impl Medium for VethMedium {
    fn carry(&mut self, from: PortId, to: Option<PortId>, frame: Frame) {
        if let Some(to) = to {
            if self.port(to).in_memory {
                self.ports[to].ready.push_back(Some(frame));
                return;
            }
            let expected = Expected {
                length: frame.len(),
                hash: hash(frame.bytes()),
                refused: false,
            };
            let paced = self.slowdown.is_some();
            let port = self.port(to);
            port.expected.push_back(expected);
            if port.is_host && paced {
                port.held.push_back((from, frame));
                return;
            }
        }
        self.push_pending(from, Pending { to, frame });
        if self.port(from).pending.len() >= BATCH {
            self.flush();
        }
    }

    fn collect(&mut self, port: PortId) -> Option<Frame> {
        if let Some(frame) = self.port(port).ready.pop_front() {
            return frame;
        }
        if let Some((from, frame)) = self.port(port).held.pop_front() {
            let to = Some(port);
            self.push_pending(from, Pending { to, frame });
        }
        self.flush();
        for _ in 0..LOSS_WAITS {
            while self.read_port(port) > 0 {
                if let Some(frame) = self.ports[port].ready.pop_front() {
                    return frame;
                }
            }
            let due = self.ports[port].expected.front();
            if due.is_none_or(|due| due.refused) || self.ports[port].socket.is_none() {
                break;
            }
            self.read_all(LOSS_WAIT);
            if let Some(frame) = self.ports[port].ready.pop_front() {
                return frame;
            }
        }
        self.give_up(port);
        None
    }

    fn wait(&mut self, now: Time, next: Time) -> Wait {
        let free_running = self.slowdown.is_none() && next < Time::MAX;
        if free_running {
            let wall = Instant::now();
            if wall < self.next_foreign_poll {
                return self.take_foreign(now).unwrap_or(Wait::Ready);
            }
            self.next_foreign_poll = wall + FOREIGN_POLL;
            self.flush();
            self.read_all(Duration::ZERO);
            if let Some(foreign) = self.take_foreign(now) {
                return foreign;
            }
            return if wall >= self.deadline {
                Wait::OutOfTime(now)
            } else {
                Wait::Ready
            };
        }
        loop {
            if let Some(foreign) = self.take_foreign(now) {
                return foreign;
            }
            let wall = Instant::now();
            let due = self.origin.checked_add(self.wall_span(next));
            if let (Some(due), true) = (due, next < Time::MAX) {
                if wall >= due {
                    let late = wall - due;
                    if late > SLIP_GRAIN {
                        self.origin += late;
                        self.fidelity.slipped += late;
                    }
                    return Wait::Ready;
                }
            }
            if wall >= self.deadline {
                return Wait::OutOfTime(self.fabric_now(now).min(next));
            }
            self.flush();
            let until = due.map_or(self.deadline, |due| due.min(self.deadline));
            self.read_all(until.saturating_duration_since(Instant::now()));
        }
    }

    fn flush(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for port in dirty.drain(..) {
            self.send_pending(port);
        }
        self.dirty.append(&mut dirty);
    }
}
