//! What must hold for any fabric, any traffic and any bytes.

mod common;

use common::{dumbbell, switch_config, Setup, PRIORITY};
use dataplane::effect::{Effect, Effects, Outcome};
use dataplane::fabric::{Fabric, Node, Stop};
use dataplane::frame::Frame;
use dataplane::nic::Nic;
use dataplane::switch::{PortConfig, Switch};
use dataplane::time::{Rate, Time};
use dataplane::wire::{icrc_of_frame, Headers, Packet, Pause};
use proptest::prelude::*;

fn setups() -> impl Strategy<Value = Setup> {
    (
        (
            2u32..9,
            1u32..4,
            prop::sample::select(vec![25u64, 100, 400]),
        ),
        (
            prop::sample::select(vec![25u64, 100, 400]),
            100u64..2000,
            10_000u64..300_000,
            any::<bool>(),
            prop::sample::select(vec![0u64, 100, 700]),
        ),
        (
            0.03f64..2.0,
            any::<bool>(),
            prop::sample::select(vec![256u32, 1024, 4096]),
            0u64..1000,
        ),
    )
        .prop_map(
            |(
                (hosts, trunks, host_rate),
                (trunk_rate, delay, pool, cut_through, pipeline_ns),
                (alpha, dcqcn, mtu, seed),
            )| {
                Setup {
                    hosts,
                    host_rate_gbps: host_rate,
                    trunk_rate_gbps: trunk_rate,
                    trunks,
                    delay_ns: delay,
                    pool_bytes: pool,
                    headroom: 1.0,
                    lossless: true,
                    alpha,
                    dcqcn,
                    mtu,
                    seed,
                    timeout_exponent: 18,
                    cut_through,
                    pipeline_ns,
                }
            },
        )
}

type Messages = Vec<(u32, u32, u64, u64)>;

fn messages() -> impl Strategy<Value = Messages> {
    prop::collection::vec((0u32..8, 0u32..8, 1u64..1_000_000, 0u64..20_000), 1..12)
}

fn run(setup: &Setup, messages: &Messages) -> (Fabric, Stop) {
    let mut net = dumbbell(setup);
    for &(src, dst, bytes, start) in messages {
        let (src, dst) = (src % setup.hosts, dst % setup.hosts);
        if src != dst {
            net.message(src, dst, bytes, start);
        }
    }
    let stop = net.run();
    (net.fabric, stop)
}

fn drops(fabric: &Fabric) -> u64 {
    fabric.drops().iter().sum()
}

fn assert_balanced(fabric: &Fabric) {
    let c = fabric.conservation();
    assert_eq!(c.injected, c.delivered + c.dropped + c.in_flight, "{c:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn lossless_traffic_is_never_dropped_and_every_byte_arrives(setup in setups(), messages in messages()) {
        let (fabric, stop) = run(&setup, &messages);
        prop_assert_eq!(stop, Stop::Done);
        prop_assert_eq!(drops(&fabric), 0);
        assert_balanced(&fabric);
        for m in fabric.messages() {
            prop_assert_eq!(m.outcome, Some(Outcome::Success));
            prop_assert_eq!(m.retransmitted_packets, 0);
        }
        for node in fabric.nodes() {
            if let Node::Switch(switch) = node {
                prop_assert_eq!(switch.mmu().used_bytes(), 0);
            }
        }
    }

    #[test]
    fn without_pause_go_back_n_repairs_every_loss(mut setup in setups(), messages in messages()) {
        setup.lossless = false;
        setup.pool_bytes = 60_000;
        setup.headroom = 0.0;
        setup.timeout_exponent = 8;
        let (fabric, stop) = run(&setup, &messages);
        prop_assert_eq!(stop, Stop::Done);
        assert_balanced(&fabric);
        let sent_again: u32 = fabric.messages().iter().map(|m| m.retransmitted_packets).sum();
        for m in fabric.messages() {
            // Seven retries without progress are possible under this much loss, but nothing may hang.
            prop_assert!(m.outcome.is_some());
        }
        prop_assert!(drops(&fabric) == 0 || sent_again > 0);
    }

    #[test]
    fn the_same_seed_gives_the_same_run(setup in setups(), messages in messages()) {
        let (a, _) = run(&setup, &messages);
        let (b, _) = run(&setup, &messages);
        prop_assert_eq!(format!("{:?}", a.messages()), format!("{:?}", b.messages()));
        prop_assert_eq!(format!("{:?}", a.events), format!("{:?}", b.events));
        prop_assert_eq!(format!("{:?}", a.port_rows), format!("{:?}", b.port_rows));
    }
}

fn incast(headroom: f64) -> Fabric {
    let setup = Setup {
        hosts: 8,
        host_rate_gbps: 100,
        trunk_rate_gbps: 100,
        trunks: 2,
        delay_ns: 600,
        pool_bytes: 100_000,
        headroom,
        lossless: true,
        alpha: 0.5,
        dcqcn: false,
        mtu: 4096,
        seed: 1,
        timeout_exponent: 8,
        cut_through: false,
        pipeline_ns: 0,
    };
    let all: Messages = (1..8).map(|src| (src, 0, 300_000, 0)).collect();
    run(&setup, &all).0
}

fn xoff_sent(fabric: &Fabric) -> u64 {
    let count = |node: &Node| match node {
        Node::Switch(switch) => switch.counters.pfc_xoff_sent,
        Node::Nic(_) => 0,
    };
    fabric.nodes().map(count).sum()
}

#[test]
fn headroom_makes_the_difference() {
    let enough = incast(1.0);
    assert!(xoff_sent(&enough) > 0);
    assert_eq!(drops(&enough), 0);
    let none = incast(0.0);
    assert!(none.drops()[1] > 0, "drops in headroom: {:?}", none.drops());
    assert_balanced(&none);
    // Go-back-N mends even that.
    assert!(none
        .messages()
        .iter()
        .all(|m| m.outcome == Some(Outcome::Success)));
}

/// The frame with its ICRC put right, if it is RoCE at all: so that what lies behind the check is reached.
fn with_right_icrc(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Ok(headers) = Headers::parse(&bytes) {
        if let Some((expected, _)) = icrc_of_frame(&bytes, &headers) {
            let end = usize::from(headers.l3_end);
            bytes[end - 4..end].copy_from_slice(&expected.to_le_bytes());
        }
    }
    bytes
}

/// Bytes that are often nearly a packet: a real one, cut, with some bytes changed.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let mutated = (
        0usize..100,
        prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        any::<bool>(),
    )
        .prop_map(|(cut, changes, pause)| {
            let mut bytes = if pause {
                Pause::for_priority(PRIORITY, 100).emit([2, 0, 0, 0, 0, 1])
            } else {
                common::template(1, 2, 18, 0xc000)
            };
            bytes.truncate(cut);
            for (at, value) in changes {
                if !bytes.is_empty() {
                    let i = at.index(bytes.len());
                    bytes[i] = value;
                }
            }
            with_right_icrc(bytes)
        });
    prop_oneof![mutated, prop::collection::vec(any::<u8>(), 0..200)]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn what_is_parsed_is_rebuilt(bytes in frames()) {
        let _ = Headers::parse(&bytes);
        if let Ok(packet) = Packet::parse(&bytes) {
            prop_assert_eq!(packet.emit(), bytes);
        }
    }

    #[test]
    fn any_bytes_at_any_port_do_no_harm(all in prop::collection::vec(frames(), 1..30)) {
        let setup = Setup { hosts: 2, host_rate_gbps: 100, trunk_rate_gbps: 100, trunks: 1, delay_ns: 100, pool_bytes: 1_000_000, headroom: 1.0,
            lossless: true, alpha: 1.0, dcqcn: true, mtu: 1024, seed: 1, timeout_exponent: 10, cut_through: false, pipeline_ns: 0 };
        let mut switch = Switch::new(switch_config(&setup, 1));
        switch.add_port(Rate(100_000_000_000), &PortConfig::default());
        switch.add_port(Rate(100_000_000_000), &PortConfig::default());
        let mut nic = Nic::new(common::mac(1), Rate(100_000_000_000), Some(vec![0; 60]));
        nic.add_qp(common::qp_config(18, 18, common::template(2, 1, 18, 0xc000), &setup)).unwrap();
        let mut fx = Effects::new();
        nic.post(Time::ZERO, 0, 0, 10_000, &mut fx);
        for (i, bytes) in all.iter().enumerate() {
            let now = Time(i as u64 * 1000);
            let frame = Frame::new(bytes.clone());
            let malformed = frame.is_malformed();
            let before = switch.counters.drop_frames[6];
            switch.on_frame(now, (i % 2) as u16, frame.clone(), now, &mut fx);
            if malformed {
                prop_assert_eq!(switch.counters.drop_frames[6], before + 1);
            }
            nic.on_frame(now, frame, &mut fx);
        }
        // Without flows a switch sends nothing on.
        for effect in &fx {
            if let Effect::Transmit { frame, .. } = effect {
                prop_assert!(frame.len() >= 60 || frame.is_malformed());
            }
        }
        prop_assert_eq!(switch.queued_bytes(), 0);
    }
}

fn small() -> Setup {
    Setup {
        hosts: 2,
        host_rate_gbps: 100,
        trunk_rate_gbps: 100,
        trunks: 1,
        delay_ns: 600,
        pool_bytes: 1_000_000,
        headroom: 1.0,
        lossless: true,
        alpha: 1.0,
        dcqcn: false,
        mtu: 1024,
        seed: 1,
        timeout_exponent: 4,
        cut_through: false,
        pipeline_ns: 0,
    }
}

#[test]
fn a_first_fragment_is_no_malformed_datagram() {
    let mut bytes = common::template(1, 2, 18, 0xc000);
    bytes[20..22].copy_from_slice(&0x2000u16.to_be_bytes());
    bytes[38..40].copy_from_slice(&9000u16.to_be_bytes());
    bytes[24..26].fill(0);
    let sum = dataplane::wire::ipv4_checksum(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    assert!(Headers::parse(&bytes).is_ok());
    bytes[20..22].fill(0);
    bytes[24..26].fill(0);
    let sum = dataplane::wire::ipv4_checksum(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    assert!(
        Headers::parse(&bytes).is_err(),
        "a whole datagram may not be longer than its packet"
    );
}

/// Pause frames sent for each priority in a millisecond of storms, and data frames that got through beside them.
fn storms(priorities: &[u8], quanta: u16) -> (Vec<u64>, u64) {
    let mut net = dumbbell(&small());
    net.message(1, 0, 100_000_000, 0);
    assert!(net.fabric.start(None));
    for &priority in priorities {
        let control = dataplane::fabric::Control::StartStorm {
            node: net.hosts[1],
            priority,
            spec: dataplane::nic::StormSpec {
                quanta,
                interval: None,
                global: false,
            },
            until: Time::from_ns(1_000_000),
        };
        net.fabric.schedule(Time::ZERO, control);
    }
    net.fabric
        .run(&mut net.medium, Time::from_ns(1_000_000), 10_000_000);
    let Some(Node::Nic(nic)) = net.fabric.node(net.hosts[1]) else {
        unreachable!()
    };
    let sent = priorities
        .iter()
        .map(|&p| nic.tx().counters[usize::from(p)].tx_pause)
        .collect();
    (sent, nic.tx().counters[usize::from(PRIORITY)].tx_frames)
}

#[test]
fn storms_of_several_priorities_keep_their_own_time() {
    // Half of 65,535 quanta at 100 Gb/s is 167.8 us: six frames in a millisecond, for each.
    assert_eq!(storms(&[4, 5], 65_535).0, [6, 6]);
}

#[test]
fn the_smallest_quanta_leave_room_for_data() {
    let (sent, data) = storms(&[0, 1, 2, 4, 5, 6, 7], 1);
    assert!(sent.iter().all(|&n| n > 500), "{sent:?}");
    // Seven priorities of 84 bytes in each 1344: the data has the rest.
    let share = data as f64 * f64::from(1024 + 58 + 24) * 8.0 / 100_000.0 / 1000.0;
    assert!(share > 0.45, "{share}");
}

#[test]
fn a_queue_pair_in_error_times_out_no_more() {
    let mut net = dumbbell(&small());
    net.message(1, 0, 1_000_000, 0);
    assert!(net.fabric.start(None));
    let down = dataplane::fabric::Control::LinkState {
        node: net.hosts[0],
        port: 0,
        up: false,
    };
    net.fabric.schedule(Time::from_ns(10_000), down);
    while net.fabric.open_messages() > 0 {
        net.fabric
            .run(&mut net.medium, Time::from_ns(100_000_000), 1_000_000);
        net.fabric.take_port_changes();
    }
    net.fabric
        .run(&mut net.medium, Time::from_ns(100_000_000), 1_000_000);
    let Some(Node::Nic(nic)) = net.fabric.node(net.hosts[1]) else {
        unreachable!()
    };
    assert_eq!(nic.counters.timeouts, 8, "seven retries and the last");
    assert_eq!(
        net.fabric.messages()[0].outcome,
        Some(Outcome::RetryExceeded)
    );
}
