//! The memory management unit: who may use how much of the shared buffer.
//!
//! Every ingress port and priority (a *priority group*) fills first its reserve, then the shared pool up to a
//! threshold, then, if the priority is lossless, its headroom. The threshold is static or dynamic:
//! `alpha x (pool - pool used)`. When a lossless group reaches its threshold it asks for XOFF; it asks for XON when
//! its shared use is `xon_offset` below the threshold and its headroom is empty again. Lossy traffic is limited at
//! egress: a queue may hold `alpha x (pool - pool used)`. (HPCC's `switch-mmu`, and the buffer model of SONiC.)

use crate::tx::PRIORITIES;

/// The threshold of a priority group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// So many bytes.
    Static(u64),
    /// Alpha times what is free of the shared pool.
    Dynamic(f64),
}

/// Buffer settings of a switch.
#[derive(Clone, Debug)]
pub struct MmuConfig {
    /// The whole packet buffer.
    pub buffer_bytes: u64,
    /// Priorities that are lossless, as a bit mask.
    pub lossless: u8,
    /// Reserve of each lossless group.
    pub reserved_bytes: u64,
    /// Threshold of each lossless group.
    pub threshold: Threshold,
    /// How far below the threshold a group has to come before XON.
    pub xon_offset_bytes: u64,
    /// Alpha of lossy egress queues.
    pub lossy_alpha: f64,
    /// Unit in which frames are accounted for, at least 1.
    pub cell_bytes: u64,
}

/// What admission decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Admission {
    Admitted,
    /// The shared buffer, or the lossy queue's share of it, is full.
    BufferFull,
    /// A lossless group's headroom is full: the peer did not stop in time.
    HeadroomFull,
}

/// What one ingress port and priority holds.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    reserved: u64,
    shared: u64,
    headroom: u64,
    headroom_limit: u64,
    max: u64,
    xoff: bool,
}

/// State of the shared buffer.
#[derive(Debug)]
pub struct Mmu {
    config: MmuConfig,
    groups: Vec<[Group; PRIORITIES]>,
    pool_bytes: u64,
    pool_used: u64,
    used: u64,
    max_used: u64,
}

impl Mmu {
    /// An empty buffer; ports are added by [`Mmu::add_port`].
    pub fn new(config: MmuConfig) -> Mmu {
        Mmu {
            pool_bytes: config.buffer_bytes,
            config,
            groups: Vec::new(),
            pool_used: 0,
            used: 0,
            max_used: 0,
        }
    }

    /// Adds a port whose lossless groups have `headroom_bytes` each; reserve and headroom are taken from the pool.
    pub fn add_port(&mut self, headroom_bytes: u64) {
        let mut groups = [Group::default(); PRIORITIES];
        for (priority, group) in groups.iter_mut().enumerate() {
            if self.is_lossless(priority) {
                group.headroom_limit = headroom_bytes;
                let taken = headroom_bytes.saturating_add(self.config.reserved_bytes);
                self.pool_bytes = self.pool_bytes.saturating_sub(taken);
            }
        }
        self.groups.push(groups);
    }

    /// Whether a priority is lossless here.
    pub fn is_lossless(&self, priority: usize) -> bool {
        self.config.lossless & 1 << priority != 0
    }

    fn cells(&self, frame_bytes: usize) -> u64 {
        (frame_bytes as u64).next_multiple_of(self.config.cell_bytes.max(1))
    }

    fn free_share(&self, alpha: f64) -> u64 {
        (alpha * self.pool_bytes.saturating_sub(self.pool_used) as f64) as u64
    }

    fn threshold(&self) -> u64 {
        match self.config.threshold {
            Threshold::Static(bytes) => bytes,
            Threshold::Dynamic(alpha) => self.free_share(alpha),
        }
    }

    /// Takes room for a frame that came in by `port` and will wait in an egress queue that holds `queue_bytes`.
    pub fn admit(
        &mut self,
        port: usize,
        priority: usize,
        frame_bytes: usize,
        queue_bytes: u64,
    ) -> Admission {
        let size = self.cells(frame_bytes);
        let lossless = self.is_lossless(priority);
        let threshold = self.threshold();
        let pool_free = self.pool_bytes.saturating_sub(self.pool_used);
        let lossy_limit = self.free_share(self.config.lossy_alpha);
        let reserve = if lossless {
            self.config.reserved_bytes
        } else {
            0
        };
        let group = &mut self.groups[port][priority];
        if group.headroom == 0 && group.reserved + size <= reserve {
            group.reserved += size;
        } else if !lossless {
            if size > pool_free || queue_bytes + size > lossy_limit {
                return Admission::BufferFull;
            }
            group.shared += size;
            self.pool_used += size;
        } else if group.headroom == 0 && group.shared + size <= threshold && size <= pool_free {
            group.shared += size;
            self.pool_used += size;
        } else if group.headroom + size <= group.headroom_limit {
            group.headroom += size;
        } else {
            return Admission::HeadroomFull;
        }
        group.max = group
            .max
            .max(group.reserved + group.shared + group.headroom);
        self.used += size;
        self.max_used = self.max_used.max(self.used);
        Admission::Admitted
    }

    /// Gives back the room of a frame that has left: headroom first, then shared, then reserve.
    pub fn release(&mut self, port: usize, priority: usize, frame_bytes: usize) {
        let size = self.cells(frame_bytes);
        let group = &mut self.groups[port][priority];
        let from_headroom = size.min(group.headroom);
        group.headroom -= from_headroom;
        let from_shared = (size - from_headroom).min(group.shared);
        group.shared -= from_shared;
        group.reserved -= size - from_headroom - from_shared;
        self.pool_used -= from_shared;
        self.used -= size;
    }

    /// Whether a group that was not stopped has reached its threshold now; it counts as stopped from here on.
    pub fn turns_xoff(&mut self, port: usize, priority: usize) -> bool {
        let threshold = self.threshold();
        let lossless = self.is_lossless(priority);
        let group = &mut self.groups[port][priority];
        let turns =
            lossless && !group.xoff && (group.headroom > 0 || group.shared >= threshold.max(1));
        group.xoff |= turns;
        turns
    }

    /// Whether a stopped group may go on now; it counts as running from here on.
    pub fn turns_xon(&mut self, port: usize, priority: usize) -> bool {
        let resume_at = self
            .threshold()
            .saturating_sub(self.config.xon_offset_bytes);
        let group = &mut self.groups[port][priority];
        let turns = group.xoff && group.headroom == 0 && group.shared <= resume_at;
        group.xoff &= !turns;
        turns
    }

    /// Whether a group is stopped.
    pub fn is_xoff(&self, port: usize, priority: usize) -> bool {
        self.groups[port][priority].xoff
    }

    /// Forgets that a port's groups are stopped: its link is gone.
    pub fn clear_xoff(&mut self, port: usize) {
        for group in &mut self.groups[port] {
            group.xoff = false;
        }
    }

    /// Bytes that a port's priority holds.
    pub fn ingress_bytes(&self, port: usize, priority: usize) -> u64 {
        let group = &self.groups[port][priority];
        group.reserved + group.shared + group.headroom
    }

    /// Most bytes that a port's priority ever held: who filled the buffer.
    pub fn max_ingress_bytes(&self, port: usize, priority: usize) -> u64 {
        self.groups[port][priority].max
    }

    /// Bytes in use now.
    pub fn used_bytes(&self) -> u64 {
        self.used
    }

    /// Most bytes ever in use.
    pub fn max_used_bytes(&self) -> u64 {
        self.max_used
    }

    /// Forgets the highest marks.
    pub fn reset_max(&mut self) {
        self.max_used = self.used;
        for group in self.groups.iter_mut().flatten() {
            group.max = 0;
        }
    }
}
