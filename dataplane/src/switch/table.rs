//! Flow tables and groups of OpenFlow 1.3 (specification 1.3.5, sections 5.1 to 5.6).
//!
//! Lookup is a tuple space search: entries that match on the same fields share one hash table, and the tables are
//! tried in order of their highest priority, so that the cost follows the number of distinct masks and not of entries.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::effect::Port;
use crate::frame::Frame;
use crate::wire::{Kind, IP_PROTO_TCP, IP_PROTO_UDP};

/// Number of flow tables of a switch.
pub const TABLES: u8 = 4;
/// Most entries of all tables of a switch together.
pub const MAX_FLOWS: usize = 1 << 20;
/// Most groups of a switch.
pub const MAX_GROUPS: usize = 1 << 18;
/// Most buckets of one group.
pub const MAX_BUCKETS: usize = 1024;
/// Most different sets of match fields of one table: a lookup tries each.
pub const MAX_MASKS: usize = 256;
/// How many groups may be chained.
const GROUP_DEPTH: u8 = 4;
/// Most actions that one frame sets off, however groups are nested.
const MAX_STEPS: u32 = 4096;

const WORDS: usize = 9;

/// The match fields of a frame, or of an entry's value or mask, packed into words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Key([u64; WORDS]);

impl Hash for Key {
    /// Words that are zero, which is most of them under a mask, cost nothing.
    fn hash<H: Hasher>(&self, state: &mut H) {
        for (i, &word) in self.0.iter().enumerate() {
            if word != 0 {
                state.write_u64(word.wrapping_add(i as u64));
            }
        }
    }
}

/// A match field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Field {
    InPort,
    EthDst,
    EthSrc,
    EthType,
    VlanVid,
    VlanPcp,
    IpDscp,
    IpEcn,
    IpProto,
    Ipv4Src,
    Ipv4Dst,
    Ipv6Src,
    Ipv6Dst,
    TcpSrc,
    TcpDst,
    UdpSrc,
    UdpDst,
}

impl Field {
    /// The field of an OXM name (specification table 12), if it is supported.
    pub fn from_oxm(name: &str) -> Option<Field> {
        Some(match name {
            "in_port" => Field::InPort,
            "eth_dst" => Field::EthDst,
            "eth_src" => Field::EthSrc,
            "eth_type" => Field::EthType,
            "vlan_vid" => Field::VlanVid,
            "vlan_pcp" => Field::VlanPcp,
            "ip_dscp" => Field::IpDscp,
            "ip_ecn" => Field::IpEcn,
            "ip_proto" => Field::IpProto,
            "ipv4_src" => Field::Ipv4Src,
            "ipv4_dst" => Field::Ipv4Dst,
            "ipv6_src" => Field::Ipv6Src,
            "ipv6_dst" => Field::Ipv6Dst,
            "tcp_src" => Field::TcpSrc,
            "tcp_dst" => Field::TcpDst,
            "udp_src" => Field::UdpSrc,
            "udp_dst" => Field::UdpDst,
            _ => return None,
        })
    }

    /// Width in bits.
    pub fn bits(self) -> u32 {
        match self {
            Field::InPort | Field::Ipv4Src | Field::Ipv4Dst => 32,
            Field::EthDst | Field::EthSrc => 48,
            Field::EthType | Field::TcpSrc | Field::TcpDst | Field::UdpSrc | Field::UdpDst => 16,
            Field::VlanVid => 13,
            Field::VlanPcp => 3,
            Field::IpDscp => 6,
            Field::IpEcn => 2,
            Field::IpProto => 8,
            Field::Ipv6Src | Field::Ipv6Dst => 128,
        }
    }
}

impl Key {
    /// Sets a field; bits above its width are ignored.
    pub fn set(&mut self, field: Field, value: u128) {
        let low = value as u64;
        let w = &mut self.0;
        match field {
            Field::EthDst => w[0] |= low & 0xffff_ffff_ffff,
            Field::EthType => w[0] |= (low & 0xffff) << 48,
            Field::EthSrc => w[1] |= low & 0xffff_ffff_ffff,
            Field::VlanVid => w[1] |= (low & 0x1fff) << 48,
            Field::VlanPcp => w[1] |= (low & 7) << 61,
            Field::InPort => w[2] |= low & 0xffff_ffff,
            Field::IpProto => w[2] |= (low & 0xff) << 32,
            Field::IpDscp => w[2] |= (low & 63) << 40,
            Field::IpEcn => w[2] |= (low & 3) << 46,
            // TCP and UDP ports share their place: an entry on a port has to match on the protocol too.
            Field::TcpSrc | Field::UdpSrc => w[2] |= (low & 0xffff) << 48,
            Field::TcpDst | Field::UdpDst => w[3] |= low & 0xffff,
            Field::Ipv4Src => w[4] |= low & 0xffff_ffff,
            Field::Ipv4Dst => w[6] |= low & 0xffff_ffff,
            Field::Ipv6Src => {
                w[4] |= low;
                w[5] |= (value >> 64) as u64;
            }
            Field::Ipv6Dst => {
                w[6] |= low;
                w[7] |= (value >> 64) as u64;
            }
        }
    }

    /// The key of a frame that came in by `port`.
    pub fn of(frame: &Frame, port: Port) -> Key {
        let h = frame.headers();
        let mut key = Key::default();
        key.set(Field::InPort, u128::from(port) + 1);
        key.set(Field::EthDst, mac_value(h.dst));
        key.set(Field::EthSrc, mac_value(h.src));
        key.set(Field::EthType, u128::from(h.ethertype));
        if let Some(tci) = h.vlan_tci {
            // OFPVID_PRESENT
            key.set(Field::VlanVid, u128::from(tci & 0xfff) | 0x1000);
            key.set(Field::VlanPcp, u128::from(tci >> 13));
        }
        if h.kind == Kind::Ip {
            key.set(Field::IpProto, u128::from(h.protocol));
            key.set(Field::IpDscp, u128::from(h.dscp()));
            key.set(Field::IpEcn, u128::from(h.tos & 3));
            key.set(Field::Ipv6Src, h.ip_src);
            key.set(Field::Ipv6Dst, h.ip_dst);
            if matches!(h.protocol, IP_PROTO_TCP | IP_PROTO_UDP) {
                key.set(Field::UdpSrc, u128::from(h.src_port));
                key.set(Field::UdpDst, u128::from(h.dst_port));
            }
        }
        key
    }

    fn masked(&self, mask: &Key) -> Key {
        Key(std::array::from_fn(|i| self.0[i] & mask.0[i]))
    }
}

fn mac_value(mac: [u8; 6]) -> u128 {
    mac.iter().fold(0, |value, &b| value << 8 | u128::from(b))
}

/// A match: the fields under `mask` must equal `value`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    value: Key,
    mask: Key,
}

impl Match {
    /// Adds a condition on a field; `mask` of `None` means every bit.
    pub fn require(&mut self, field: Field, value: u128, mask: Option<u128>) {
        let ones = u128::MAX >> (128 - field.bits());
        let mask = mask.unwrap_or(ones) & ones;
        self.value.set(field, value & mask);
        self.mask.set(field, mask);
    }

    /// Whether every frame that `narrower` matches is matched by this too (non-strict deletion, section 6.4).
    fn covers(&self, narrower: &Match) -> bool {
        narrower.mask.masked(&self.mask) == self.mask
            && narrower.value.masked(&self.mask) == self.value
    }
}

/// Where an action sends a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Output {
    Port(Port),
    /// Back out of the port it came in by.
    InPort,
    Controller,
}

/// An action of an entry or bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Action {
    Output(Output),
    Group(u32),
    DecTtl,
}

/// A flow entry.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Flow {
    pub priority: u16,
    pub matching: Match,
    pub cookie: u64,
    pub actions: Arc<[Action]>,
    pub goto_table: Option<u8>,
    /// Number the switch's user knows the entry by.
    pub id: u64,
    /// Counters; atomic so that a lookup needs no second, writing, search.
    pub packets: AtomicU64,
    pub bytes: AtomicU64,
}

/// How a group chooses among its buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// Every bucket gets a copy.
    All,
    /// The one bucket.
    Indirect,
    /// One bucket, by weight, chosen by the switch's seeded hash over the 5-tuple (section 5.6.1).
    Select,
}

/// A bucket: its weight and what it does.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Bucket {
    pub weight: u16,
    pub actions: Arc<[Action]>,
}

/// A group entry.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Group {
    pub kind: GroupKind,
    pub buckets: Vec<Bucket>,
    pub packets: u64,
    pub bytes: u64,
}

/// Why a change of a table was refused. The names are those of OpenFlow's error codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum TableError {
    #[error("OFPFMFC_BAD_TABLE_ID")]
    BadTableId,
    #[error("OFPFMFC_TABLE_FULL")]
    TableFull,
    #[error("OFPFMFC_OVERLAP")]
    Overlap,
    #[error("OFPBIC_BAD_TABLE_ID")]
    BadGotoTable,
    #[error("OFPBAC_BAD_OUT_PORT")]
    BadOutPort,
    #[error("OFPBAC_BAD_OUT_GROUP")]
    BadOutGroup,
    #[error("OFPGMFC_GROUP_EXISTS")]
    GroupExists,
    #[error("OFPGMFC_UNKNOWN_GROUP")]
    UnknownGroup,
    #[error("OFPGMFC_INVALID_GROUP")]
    InvalidGroup,
    #[error("OFPGMFC_OUT_OF_GROUPS")]
    OutOfGroups,
    #[error("OFPGMFC_OUT_OF_BUCKETS")]
    OutOfBuckets,
    #[error("OFPGMFC_LOOP")]
    GroupLoop,
    #[error("OFPGMFC_CHAINING_UNSUPPORTED")]
    ChainTooDeep,
}

/// Multiplicative hashing with a fixed key: the order of entries never depends on it, only speed does.
#[derive(Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
}

/// The entries of one table that share a mask.
#[derive(Debug)]
struct Tuple {
    mask: Key,
    max_priority: u16,
    /// Entries of equal value, highest priority first; of equal priority there is only one.
    entries: HashMap<Key, Vec<Flow>, BuildHasherDefault<KeyHasher>>,
}

/// One flow table.
#[derive(Debug, Default)]
struct Table {
    tuples: Vec<Tuple>,
    flows: usize,
}

impl Table {
    fn lookup(&self, key: &Key) -> Option<&Flow> {
        let mut best: Option<&Flow> = None;
        for tuple in &self.tuples {
            if best.is_some_and(|flow| flow.priority >= tuple.max_priority) {
                break;
            }
            let found = tuple.entries.get(&key.masked(&tuple.mask));
            if let Some(flow) = found.and_then(|flows| flows.first()) {
                if best.is_none_or(|best| flow.priority > best.priority) {
                    best = Some(flow);
                }
            }
        }
        best
    }

    /// Adds an entry; returns the id of the one it replaces.
    fn add(&mut self, flow: Flow) -> Option<u64> {
        let mask = flow.matching.mask;
        let tuple = match self.tuples.iter_mut().find(|t| t.mask == mask) {
            Some(tuple) => tuple,
            None => {
                self.tuples.push(Tuple {
                    mask,
                    max_priority: 0,
                    entries: HashMap::default(),
                });
                self.tuples.last_mut().expect("just pushed")
            }
        };
        tuple.max_priority = tuple.max_priority.max(flow.priority);
        let flows = tuple.entries.entry(flow.matching.value).or_default();
        let replaced = match flows.iter_mut().find(|f| f.priority == flow.priority) {
            Some(old) => Some(std::mem::replace(old, flow).id),
            None => {
                flows.push(flow);
                flows.sort_by_key(|f| std::cmp::Reverse(f.priority));
                self.flows += 1;
                None
            }
        };
        self.tuples
            .sort_by_key(|t| std::cmp::Reverse(t.max_priority));
        replaced
    }

    fn retain(&mut self, mut keep: impl FnMut(&mut Flow) -> bool) {
        let mut flows = 0;
        for tuple in &mut self.tuples {
            tuple.max_priority = 0;
            for entries in tuple.entries.values_mut() {
                entries.retain_mut(&mut keep);
                flows += entries.len();
                if let Some(first) = entries.first() {
                    tuple.max_priority = tuple.max_priority.max(first.priority);
                }
            }
            tuple.entries.retain(|_, entries| !entries.is_empty());
        }
        self.tuples.retain(|t| !t.entries.is_empty());
        self.tuples
            .sort_by_key(|t| std::cmp::Reverse(t.max_priority));
        self.flows = flows;
    }

    fn iter(&self) -> impl Iterator<Item = &Flow> {
        self.tuples
            .iter()
            .flat_map(|t| t.entries.values().flatten())
    }
}

/// Which flows a modify, delete or statistics request is about.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct FlowFilter {
    pub matching: Match,
    /// Exactly this match at this priority, instead of everything the match covers.
    pub strict_priority: Option<u16>,
    pub output: Option<Output>,
    pub out_group: Option<u32>,
    pub cookie: u64,
    pub cookie_mask: u64,
}

impl FlowFilter {
    fn accepts(&self, flow: &Flow) -> bool {
        let matches = match self.strict_priority {
            Some(priority) => flow.priority == priority && flow.matching == self.matching,
            None => self.matching.covers(&flow.matching),
        };
        let outputs = |wanted: Action| flow.actions.contains(&wanted);
        matches
            && flow.cookie & self.cookie_mask == self.cookie & self.cookie_mask
            && self
                .output
                .is_none_or(|output| outputs(Action::Output(output)))
            && self.out_group.is_none_or(|g| outputs(Action::Group(g)))
    }
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Destination {
    pub output: Output,
    pub dec_ttl: u8,
}

/// What a lookup came to.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct Verdict {
    pub destinations: SmallVec<[Destination; 2]>,
    /// Table and cookie of the last entry that matched.
    pub table: u8,
    pub cookie: u64,
    /// Whether the entry is a table-miss entry (priority 0, matching everything).
    pub is_table_miss: bool,
    steps: u32,
}

/// The flow tables and groups of a switch.
#[derive(Debug)]
pub struct Tables {
    tables: Vec<Table>,
    groups: BTreeMap<u32, Group>,
    ports: Port,
    hash_seed: u64,
}

impl Tables {
    /// Empty tables: every frame is dropped. `hash_seed` makes this switch's ECMP hash its own.
    pub fn new(hash_seed: u64) -> Tables {
        Tables {
            tables: (0..TABLES).map(|_| Table::default()).collect(),
            groups: BTreeMap::new(),
            ports: 0,
            hash_seed,
        }
    }

    /// Sets how many ports there are, so that outputs can be checked.
    pub fn set_ports(&mut self, ports: Port) {
        self.ports = ports;
    }

    /// Whether everything that actions refer to is there.
    ///
    /// # Errors
    /// [`TableError::BadOutPort`] or [`TableError::BadOutGroup`].
    pub fn check_actions(&self, actions: &[Action]) -> Result<(), TableError> {
        for action in actions {
            match *action {
                Action::Output(Output::Port(port)) if port >= self.ports => {
                    return Err(TableError::BadOutPort)
                }
                Action::Group(id) if !self.groups.contains_key(&id) => {
                    return Err(TableError::BadOutGroup)
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Adds a flow entry; one of the same match and priority is replaced (section 6.4), and its id returned.
    ///
    /// # Errors
    /// [`TableError`] where the table does not exist or is full, or the entry refers to what is not there.
    pub fn add_flow(&mut self, table: u8, flow: Flow) -> Result<Option<u64>, TableError> {
        if table >= TABLES {
            return Err(TableError::BadTableId);
        }
        if flow.goto_table.is_some_and(|t| t <= table || t >= TABLES) {
            return Err(TableError::BadGotoTable);
        }
        self.check_actions(&flow.actions)?;
        if self.tables.iter().map(|t| t.flows).sum::<usize>() >= MAX_FLOWS {
            return Err(TableError::TableFull);
        }
        let table = &mut self.tables[usize::from(table)];
        let mask = flow.matching.mask;
        if table.tuples.len() >= MAX_MASKS && !table.tuples.iter().any(|t| t.mask == mask) {
            return Err(TableError::TableFull);
        }
        Ok(table.add(flow))
    }

    /// Gives the flows that the filter accepts new actions; returns their ids.
    ///
    /// # Errors
    /// As [`Tables::add_flow`].
    pub fn modify_flows(
        &mut self,
        table: u8,
        filter: &FlowFilter,
        actions: &[Action],
        goto_table: Option<u8>,
    ) -> Result<Vec<u64>, TableError> {
        if table >= TABLES {
            return Err(TableError::BadTableId);
        }
        if goto_table.is_some_and(|t| t <= table || t >= TABLES) {
            return Err(TableError::BadGotoTable);
        }
        self.check_actions(actions)?;
        let mut changed = Vec::new();
        self.tables[usize::from(table)].retain(|flow| {
            if filter.accepts(flow) {
                flow.actions = actions.into();
                flow.goto_table = goto_table;
                changed.push(flow.id);
            }
            true
        });
        changed.sort_unstable();
        Ok(changed)
    }

    /// Removes flows from one table, or from all where `table` is `None`; returns the ids of those removed.
    ///
    /// # Errors
    /// [`TableError::BadTableId`].
    pub fn delete_flows(
        &mut self,
        table: Option<u8>,
        filter: &FlowFilter,
    ) -> Result<Vec<u64>, TableError> {
        if table.is_some_and(|t| t >= TABLES) {
            return Err(TableError::BadTableId);
        }
        let mut removed = Vec::new();
        for (i, t) in self.tables.iter_mut().enumerate() {
            if table.is_none_or(|wanted| usize::from(wanted) == i) {
                t.retain(|flow| {
                    let goes = filter.accepts(flow);
                    if goes {
                        removed.push(flow.id);
                    }
                    !goes
                });
            }
        }
        removed.sort_unstable();
        Ok(removed)
    }

    /// The flows that the filter accepts with their tables, by table and id.
    pub fn flows(&self, table: Option<u8>, filter: &FlowFilter) -> Vec<(u8, &Flow)> {
        let mut found: Vec<(u8, &Flow)> = (0..TABLES)
            .filter(|&t| table.is_none_or(|wanted| wanted == t))
            .flat_map(|t| self.tables[usize::from(t)].iter().map(move |f| (t, f)))
            .filter(|(_, f)| filter.accepts(f))
            .collect();
        found.sort_by_key(|(t, f)| (*t, f.id));
        found
    }

    /// Adds a group, or replaces an existing one where `modify` is set.
    ///
    /// # Errors
    /// [`TableError`] where it exists (or does not), has too many buckets, refers to what is not there, or would
    /// close a loop of groups.
    pub fn set_group(
        &mut self,
        id: u32,
        kind: GroupKind,
        buckets: Vec<Bucket>,
        modify: bool,
    ) -> Result<(), TableError> {
        match (self.groups.contains_key(&id), modify) {
            (true, false) => return Err(TableError::GroupExists),
            (false, true) => return Err(TableError::UnknownGroup),
            _ => {}
        }
        if !modify && self.groups.len() >= MAX_GROUPS {
            return Err(TableError::OutOfGroups);
        }
        if buckets.len() > MAX_BUCKETS {
            return Err(TableError::OutOfBuckets);
        }
        if kind == GroupKind::Indirect && buckets.len() != 1 {
            return Err(TableError::InvalidGroup);
        }
        for bucket in &buckets {
            self.check_actions(&bucket.actions)?;
        }
        self.check_chain(id, &buckets)?;
        let group = Group {
            kind,
            buckets,
            packets: 0,
            bytes: 0,
        };
        self.groups.insert(id, group);
        Ok(())
    }

    /// Groups may be chained as deep as a lookup follows them, and never in a loop. What lies above a group that is used by
    /// others was checked with it as it is, so a change may not make it deeper.
    fn check_chain(&self, id: u32, buckets: &[Bucket]) -> Result<(), TableError> {
        let mut known = BTreeMap::new();
        let height = self
            .height_over(buckets, id, GROUP_DEPTH, &mut known)
            .ok_or(TableError::GroupLoop)?;
        let Some(old) = self.groups.get(&id) else {
            return Ok(());
        };
        let old_height = self.height_over(&old.buckets, id, GROUP_DEPTH, &mut known);
        if old_height.is_some_and(|old| height > old) && self.is_chained_to(id) {
            return Err(TableError::ChainTooDeep);
        }
        Ok(())
    }

    /// How many groups are chained in a group of these buckets, itself included; `None` if that leads back to `id` or deeper than `most`.
    fn height_over(
        &self,
        buckets: &[Bucket],
        id: u32,
        most: u8,
        known: &mut BTreeMap<u32, u8>,
    ) -> Option<u8> {
        let mut below = 0;
        for action in buckets.iter().flat_map(|b| b.actions.iter()) {
            let Action::Group(next) = *action else {
                continue;
            };
            if next == id || most <= 1 {
                return None;
            }
            let height = match (known.get(&next), self.groups.get(&next)) {
                (Some(&height), _) => height,
                (None, None) => continue,
                (None, Some(group)) => {
                    let height = self.height_over(&group.buckets, id, most - 1, known)?;
                    known.insert(next, height);
                    height
                }
            };
            below = below.max(height);
        }
        (below < most).then_some(below + 1)
    }

    fn is_chained_to(&self, id: u32) -> bool {
        self.groups
            .values()
            .flat_map(|g| g.buckets.iter().flat_map(|b| b.actions.iter()))
            .any(|a| *a == Action::Group(id))
    }

    /// Removes a group (every group for `None`) and the flows that use it; returns those flows' ids.
    pub fn delete_group(&mut self, id: Option<u32>) -> Vec<u64> {
        match id {
            Some(id) => drop(self.groups.remove(&id)),
            None => self.groups.clear(),
        }
        let groups = &self.groups;
        let mut removed = Vec::new();
        for table in &mut self.tables {
            table.retain(|flow| {
                let uses = flow
                    .actions
                    .iter()
                    .any(|a| matches!(a, Action::Group(g) if !groups.contains_key(g)));
                if uses {
                    removed.push(flow.id);
                }
                !uses
            });
        }
        removed.sort_unstable();
        removed
    }

    /// Every group by number.
    pub fn groups(&self) -> &BTreeMap<u32, Group> {
        &self.groups
    }

    /// Number of flows in each table.
    pub fn flow_counts(&self) -> Vec<usize> {
        self.tables.iter().map(|t| t.flows).collect()
    }

    /// Sends a frame through the tables; `None` where no entry matched.
    pub fn lookup(&mut self, frame: &Frame, in_port: Port) -> Option<Verdict> {
        let key = Key::of(frame, in_port);
        let mut verdict = Verdict::default();
        let mut table = 0;
        let mut dec_ttl = 0;
        let mut matched = false;
        while let Some(flow) = self.tables[usize::from(table)].lookup(&key) {
            matched = true;
            flow.packets.fetch_add(1, Relaxed);
            flow.bytes.fetch_add(frame.len() as u64, Relaxed);
            verdict.table = table;
            verdict.cookie = flow.cookie;
            verdict.is_table_miss = flow.priority == 0 && flow.matching == Match::default();
            let next = flow.goto_table;
            let actions = Arc::clone(&flow.actions);
            dec_ttl = self.apply(&actions, frame, dec_ttl, &mut verdict, GROUP_DEPTH);
            match next {
                Some(next) => table = next,
                None => break,
            }
        }
        matched.then_some(verdict)
    }

    /// Carries out a list of actions that came from elsewhere (packet-out).
    pub fn apply_list(&mut self, actions: &[Action], frame: &Frame) -> Verdict {
        let mut verdict = Verdict::default();
        self.apply(actions, frame, 0, &mut verdict, GROUP_DEPTH);
        verdict
    }

    /// Carries out actions; returns by how much the TTL is lower after them.
    fn apply(
        &mut self,
        actions: &[Action],
        frame: &Frame,
        mut dec_ttl: u8,
        verdict: &mut Verdict,
        depth: u8,
    ) -> u8 {
        for action in actions {
            verdict.steps += 1;
            if verdict.steps > MAX_STEPS {
                break;
            }
            match *action {
                Action::DecTtl => dec_ttl = dec_ttl.saturating_add(1),
                Action::Output(output) => {
                    verdict.destinations.push(Destination { output, dec_ttl })
                }
                Action::Group(id) if depth > 0 => {
                    self.apply_group(id, frame, dec_ttl, verdict, depth - 1);
                }
                Action::Group(_) => {}
            }
        }
        dec_ttl
    }

    fn apply_group(
        &mut self,
        id: u32,
        frame: &Frame,
        dec_ttl: u8,
        verdict: &mut Verdict,
        depth: u8,
    ) {
        let seed = self.hash_seed;
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        group.packets += 1;
        group.bytes += frame.len() as u64;
        let buckets = match group.kind {
            GroupKind::All | GroupKind::Indirect => 0..group.buckets.len(),
            GroupKind::Select => match choose(&group.buckets, ecmp_hash(frame, seed)) {
                Some(i) => i..i + 1,
                None => return,
            },
        };
        for i in buckets {
            let Some(actions) = self
                .groups
                .get(&id)
                .map(|g| Arc::clone(&g.buckets[i].actions))
            else {
                return;
            };
            self.apply(&actions, frame, dec_ttl, verdict, depth);
        }
    }
}

/// The bucket whose share of the weights holds `hash`.
fn choose(buckets: &[Bucket], hash: u64) -> Option<usize> {
    let total: u64 = buckets.iter().map(|b| u64::from(b.weight)).sum();
    let mut point = ((u128::from(hash) * u128::from(total)) >> 64) as u64;
    buckets.iter().position(|b| {
        let weight = u64::from(b.weight);
        let here = point < weight;
        point = point.saturating_sub(weight);
        here
    })
}

/// The hash of ECMP: SplitMix64's finalizer (Steele et al., OOPSLA 2014) over source, destination, protocol and
/// ports, mixed with the switch's seed. Frames without IP hash over their MAC addresses.
pub fn ecmp_hash(frame: &Frame, seed: u64) -> u64 {
    let h = frame.headers();
    let (src, dst) = match h.kind {
        Kind::Ip => (h.ip_src, h.ip_dst),
        _ => (mac_value(h.src), mac_value(h.dst)),
    };
    let ports = u64::from(h.protocol) << 32 | u64::from(h.src_port) << 16 | u64::from(h.dst_port);
    [
        src as u64,
        (src >> 64) as u64,
        dst as u64,
        (dst >> 64) as u64,
        ports,
    ]
    .iter()
    .fold(mix(seed), |hash, &word| mix(hash ^ word))
}

/// SplitMix64's step: a bijection whose output bits all depend on all input bits.
pub fn mix(word: u64) -> u64 {
    let z = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}
