//! Small fabrics for the tests.
#![allow(dead_code)]

use dataplane::fabric::{Fabric, Node, Stop};
use dataplane::medium::MemoryMedium;
use dataplane::nic::{DcqcnParams, Nic, QpConfig};
use dataplane::switch::{
    Action, Bucket, EcnProfile, Field, Flow, GroupKind, Match, MmuConfig, Output, PortConfig,
    Switch, SwitchConfig, Threshold,
};
use dataplane::time::{Rate, Time};
use dataplane::wire::{
    ipv4_checksum, Bth, Ethernet, ExtendedHeaders, Ipv4, MacAddr, Network, Opcode, Packet, Payload,
    Roce, Udp, ETHERTYPE_IPV4, IP_PROTO_UDP, ROCE_UDP_PORT,
};

pub const PRIORITY: u8 = 3;

pub fn mac(n: u32) -> MacAddr {
    [2, 0, 0, 0, (n >> 8) as u8, n as u8]
}

pub fn template(src: u32, dst: u32, remote_qpn: u32, sport: u16) -> Vec<u8> {
    let ip = |n: u32| (0x0a00_0000 | n).to_be_bytes();
    let mut header = Ipv4 {
        tos: 26 << 2 | 2,
        total_bytes: 20 + 8 + 12 + 4,
        id: 0,
        flags_fragment: 0x4000,
        ttl: 64,
        protocol: IP_PROTO_UDP,
        checksum: 0,
        src: ip(src),
        dst: ip(dst),
        options: vec![],
    };
    let roce = Roce {
        bth: Bth {
            opcode: Opcode::WRITE_MIDDLE,
            flags: 0x40,
            pkey: 0xffff,
            congestion: 0,
            dest_qp: remote_qpn,
            ack_request: 0,
            psn: 0,
        },
        ext: ExtendedHeaders::default(),
        payload: &[],
        icrc: 0,
    };
    let build = |header: &Ipv4| {
        Packet {
            ethernet: Ethernet {
                dst: mac(dst),
                src: mac(src),
                vlan: None,
                ethertype: ETHERTYPE_IPV4,
            },
            payload: Payload::Roce {
                network: Network::Ipv4(header.clone()),
                udp: Udp {
                    src_port: sport,
                    dst_port: ROCE_UDP_PORT,
                    length_bytes: 24,
                    checksum: 0,
                },
                roce,
            },
            trailer: &[],
        }
        .emit()
    };
    header.checksum = ipv4_checksum(&build(&header)[14..34]);
    build(&header)
}

pub fn dcqcn() -> DcqcnParams {
    const US: u64 = 1_000_000;
    DcqcnParams {
        g: 1.0 / 256.0,
        alpha_timer: Time(55 * US),
        min_cut_interval: Time(50 * US),
        increase_timer: Time(55 * US),
        byte_counter: 10_000_000,
        fast_recovery_steps: 5,
        rate_ai: Rate(40_000_000),
        rate_hai: Rate(200_000_000),
        min_rate: Rate(1_000_000),
    }
}

#[derive(Clone, Debug)]
pub struct Setup {
    pub hosts: u32,
    pub host_rate_gbps: u64,
    pub trunk_rate_gbps: u64,
    pub trunks: u32,
    pub delay_ns: u64,
    /// What a switch's buffer has beside the headroom and reserve of its ports.
    pub pool_bytes: u64,
    /// Share of the headroom that the ports need, 1.0 for all of it.
    pub headroom: f64,
    pub lossless: bool,
    pub alpha: f64,
    pub dcqcn: bool,
    pub mtu: u32,
    pub seed: u64,
    pub timeout_exponent: u8,
    pub cut_through: bool,
    pub pipeline_ns: u64,
}

impl Setup {
    /// Both ways on the cable, three frames, and a pause frame of each priority (see `headroom_bytes` of the scenario's plan).
    pub fn headroom_bytes(&self, rate_gbps: u64) -> u64 {
        let needed = 2 * rate_gbps * self.delay_ns / 8
            + 3 * (u64::from(self.mtu) + 102)
            + 8 * 84
            + rate_gbps * self.pipeline_ns / 8;
        (needed as f64 * self.headroom) as u64
    }

    /// Headroom and reserve of all ports of a switch with every host on it.
    fn reserved_everywhere(&self) -> u64 {
        let hosts = u64::from(self.hosts).div_ceil(2);
        let trunks = u64::from(self.trunks);
        hosts * self.headroom_bytes(self.host_rate_gbps)
            + trunks * self.headroom_bytes(self.trunk_rate_gbps)
            + (hosts + trunks) * 4096
    }
}

pub struct Net {
    pub fabric: Fabric,
    pub medium: MemoryMedium,
    pub hosts: Vec<u32>,
    pub switches: [u32; 2],
    qpns: Vec<u32>,
    setup: Setup,
}

pub fn switch_config(setup: &Setup, n: u8) -> SwitchConfig {
    SwitchConfig {
        mac: [2, 1, 0, 0, 0, n],
        mmu: MmuConfig {
            buffer_bytes: setup.pool_bytes + setup.reserved_everywhere(),
            lossless: if setup.lossless { 1 << PRIORITY } else { 0 },
            reserved_bytes: 4096,
            threshold: Threshold::Dynamic(setup.alpha),
            xon_offset_bytes: 3000,
            lossy_alpha: 1.0,
            cell_bytes: 1,
        },
        pfc: setup.lossless,
        pfc_quanta: 65_535,
        dscp_map: default_dscp_map(),
        pcp_map: [0, 1, 2, 3, 4, 5, 6, 7],
        seed: setup.seed + u64::from(n),
        watchdog: None,
        cut_through: setup.cut_through,
        pipeline_latency: Time::from_ns(setup.pipeline_ns),
    }
}

/// Two switches joined by parallel trunks, half of the hosts on each; ECMP over the trunks.
pub fn dumbbell(setup: &Setup) -> Net {
    let mut fabric = Fabric::new();
    let delay = Time::from_ns(setup.delay_ns);
    let host_rate = Rate(setup.host_rate_gbps * 1_000_000_000);
    let trunk_rate = Rate(setup.trunk_rate_gbps * 1_000_000_000);
    let hosts: Vec<u32> = (0..setup.hosts)
        .map(|n| fabric.add_node(Node::Nic(Nic::new(mac(n + 1), host_rate, None))))
        .collect();
    let switches =
        [1, 2].map(|n| fabric.add_node(Node::Switch(Switch::new(switch_config(setup, n)))));
    let port_config = |rate: Rate| {
        let mut config = PortConfig {
            headroom_bytes: setup.headroom_bytes(rate.0 / 1_000_000_000),
            ..PortConfig::default()
        };
        config.ecn[usize::from(PRIORITY)] = Some(EcnProfile {
            kmin_bytes: 20_000,
            kmax_bytes: 100_000,
            pmax: 0.2,
            ..EcnProfile::default()
        });
        config
    };
    let mut at = Vec::new();
    for (i, &host) in hosts.iter().enumerate() {
        fabric
            .add_port(host, host_rate, &PortConfig::default())
            .unwrap();
        let side = i % 2;
        let (port, _) = fabric
            .add_port(switches[side], host_rate, &port_config(host_rate))
            .unwrap();
        fabric.connect((host, 0), (switches[side], port), delay);
        at.push((side, port));
    }
    let mut trunks = [vec![], vec![]];
    for _ in 0..setup.trunks {
        let ends = switches.map(|s| {
            fabric
                .add_port(s, trunk_rate, &port_config(trunk_rate))
                .unwrap()
                .0
        });
        fabric.connect((switches[0], ends[0]), (switches[1], ends[1]), delay);
        trunks[0].push(ends[0]);
        trunks[1].push(ends[1]);
    }
    for side in 0..2 {
        let Some(Node::Switch(switch)) = fabric.node_mut(switches[side]) else {
            unreachable!()
        };
        let buckets = trunks[side]
            .iter()
            .map(|&port| Bucket {
                weight: 1,
                actions: [Action::Output(Output::Port(port))].into(),
            })
            .collect();
        switch
            .tables
            .set_group(1, GroupKind::Select, buckets, false)
            .unwrap();
        for (i, &(home, port)) in at.iter().enumerate() {
            let mut matching = Match::default();
            let value = mac(i as u32 + 1)
                .iter()
                .fold(0u128, |v, &b| v << 8 | u128::from(b));
            matching.require(Field::EthDst, value, None);
            let action = if home == side {
                Action::Output(Output::Port(port))
            } else {
                Action::Group(1)
            };
            let flow = Flow {
                priority: 10,
                matching,
                cookie: 0,
                actions: [action].into(),
                goto_table: None,
                id: i as u64,
                packets: 0.into(),
                bytes: 0.into(),
            };
            switch.tables.add_flow(0, flow).unwrap();
        }
    }
    Net {
        fabric,
        medium: MemoryMedium::default(),
        qpns: vec![17; hosts.len()],
        hosts,
        switches,
        setup: setup.clone(),
    }
}

impl Net {
    pub fn message(&mut self, src: u32, dst: u32, bytes: u64, start_ns: u64) {
        let ends = [src, dst];
        let qpns = ends.map(|e| {
            self.qpns[e as usize] += 1;
            self.qpns[e as usize]
        });
        let indexes = [0, 1].map(|side| {
            let (me, peer) = (ends[side], ends[1 - side]);
            let template = template(me + 1, peer + 1, qpns[1 - side], 0xc000 + qpns[0] as u16);
            let mut config = qp_config(qpns[side], qpns[1 - side], template, &self.setup);
            config.start_psn += side as u32;
            config.peer_start_psn += 1 - side as u32;
            self.fabric
                .add_qp(self.hosts[me as usize], config)
                .unwrap()
                .unwrap()
        });
        let nodes = ends.map(|e| self.hosts[e as usize]);
        self.fabric
            .pair_qps((nodes[0], indexes[0]), (nodes[1], indexes[1]));
        self.fabric
            .add_message(nodes[0], indexes[0], bytes, Time::from_ns(start_ns));
    }

    pub fn run(&mut self) -> Stop {
        assert!(self.fabric.start(Some(Time::from_ns(1000))));
        let stop = self
            .fabric
            .run(&mut self.medium, Time::from_ns(20_000_000_000), 50_000_000);
        self.fabric.finish();
        stop
    }
}

pub fn qp_config(qpn: u32, peer_qpn: u32, template: Vec<u8>, setup: &Setup) -> QpConfig {
    QpConfig {
        qpn,
        peer_qpn,
        template,
        mtu_bytes: setup.mtu,
        // Near the top, so that the 24-bit sequence numbers wrap.
        start_psn: 0xff_fff0,
        peer_start_psn: 0xff_fff0,
        priority: PRIORITY,
        timeout_exponent: setup.timeout_exponent,
        retry_count: 7,
        ack_every_packets: 16,
        dcqcn: setup.dcqcn.then(dcqcn),
        cnp_interval: Time(50_000_000),
        cnp_dscp: 48,
        cnp_priority: 6,
        remote_address: 0x1000,
        rkey: 1,
    }
}

/// As in the scenario file's defaults: DSCP 26 to priority 3, DSCP 48 (CNP) to priority 6, the rest to 0.
fn default_dscp_map() -> [u8; 64] {
    let mut map = [0; 64];
    map[26] = 3;
    map[48] = 6;
    map
}
