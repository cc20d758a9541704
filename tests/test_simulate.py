"""The simulate engine: what the demos must show, determinism, closed forms, size."""

import filecmp
import itertools

import pytest

from testbed.results.ideal import frame_ps
from testbed.results.pauses import pause_order

TWO_HOSTS = """\
name: two
topology: {kind: leaf-spine, spines: 1, leaves: 2, hosts_per_leaf: 1, host_rate: 100Gbps, fabric_rate: 100Gbps, delay: 1us}
traffic:
  - {pattern: pairwise, pairs: [[h1, h2]], size: SIZE}
"""


@pytest.mark.parametrize("size", [1, 4, 1000, 4096, 4097, 8192, 100_000, 1_000_000, 1_002_003])
def test_a_lone_message_takes_exactly_the_ideal_time(simulated, size):
    """Closed form of store-and-forward over four links of one rate, for any number of packets."""
    run = simulated(TWO_HOSTS.replace("SIZE", f"{size}B"))
    (row,) = run.tables.flows.to_pylist()
    assert row["status"] == "success"
    assert row["fct_ns"] == row["ideal_fct_ns"]


@pytest.mark.parametrize("size", [1, 1000, 4096, 100_000])
@pytest.mark.parametrize("forwarding", ["store-and-forward", "cut-through"])
@pytest.mark.parametrize("pipeline", ["0ns", "450ns"])
def test_latency_follows_the_formula(simulated, size, forwarding, pipeline):
    """Port to port, for every frame size, cut-through and store-and-forward."""
    text = TWO_HOSTS.replace("SIZE", f"{size}B")
    run = simulated(text, f"switch.forwarding={forwarding}", f"switch.pipeline_latency={pipeline}")
    (row,) = run.tables.flows.to_pylist()
    assert row["fct_ns"] == row["ideal_fct_ns"]


def test_cut_through_by_hand(simulated):
    """One packet of 1,000 bytes over four links at 80 ps a byte, three switches of 450 ns: each adds 64 bytes and its
    pipeline; the last link the whole frame. The acknowledgement (62 + 24 bytes) comes back the same way."""
    run = simulated(TWO_HOSTS.replace("SIZE", "1000B"), "switch.forwarding=cut-through", "switch.pipeline_latency=450ns")
    (row,) = run.tables.flows.to_pylist()
    way = 3 * (64 * 80 + 450_000) + 4 * 10**6
    assert row["fct_ns"] == (2 * way + (1000 + 74 + 24) * 80 + (62 + 24) * 80) // 1000


@pytest.mark.parametrize("size", [2000, 4097, 8193, 12289, 100_001, 1_000_000])
@pytest.mark.parametrize("rates", [("100Gbps", "400Gbps"), ("400Gbps", "100Gbps")])
@pytest.mark.parametrize("forwarding", ["store-and-forward", "cut-through"])
def test_latency_over_unequal_rates(simulated, rates, forwarding, size):
    text = TWO_HOSTS.replace("SIZE", f"{size}B").replace("host_rate: 100Gbps", f"host_rate: {rates[0]}")
    text = text.replace("fabric_rate: 100Gbps", f"fabric_rate: {rates[1]}")
    (row,) = simulated(text, f"switch.forwarding={forwarding}").tables.flows.to_pylist()
    assert row["fct_ns"] == row["ideal_fct_ns"]


def test_the_ideal_time_by_hand(simulated):
    """One packet of 1,000 bytes: four hops of 1,000 + 74 + 24 bytes and four of 62 + 24, at 80 ps a byte, and eight delays."""
    run = simulated(TWO_HOSTS.replace("SIZE", "1000B"))
    (row,) = run.tables.flows.to_pylist()
    assert row["fct_ns"] == (4 * (1000 + 14 + 20 + 8 + 12 + 16 + 4 + 24) * 80 + 4 * (62 + 24) * 80 + 8 * 10**6) // 1000
    assert frame_ps(100 * 10**9, 10) == 84 * 80


def test_incast_with_pfc_and_dcqcn(simulated):
    run = simulated("incast")
    s = run.summary
    assert s["switches"]["drops_total"] == 0
    assert s["switches"]["ecn_marked"] > 0
    assert s["nics"]["cnp_sent"] == s["nics"]["cnp_received"] > 0
    assert s["switches"]["pfc_xoff_sent"] == s["switches"]["pfc_xon_sent"] > 0
    assert s["flows"]["completed"] == s["flows"]["started"] == 16
    assert s["conservation"]["balanced"]
    assert s["conservation"]["in_flight_bytes"] == 0
    assert s["valid"]
    marked = sum(run.tables.flows["ecn_marked_packets"].to_pylist())
    assert 0 < marked <= s["switches"]["ecn_marked"]


def test_incast_without_pfc_drops_and_repairs(simulated):
    s = simulated("incast", "switch.pfc.enabled=false").summary
    assert s["switches"]["drops"]["buffer"] > 0
    assert s["switches"]["pfc_xoff_sent"] == 0
    assert s["nics"]["retransmitted_packets"] > 0
    assert s["nics"]["naks"] > 0
    assert s["flows"]["completed"] == 16
    assert s["conservation"]["balanced"]


def test_incast_without_dcqcn_pauses_more(simulated):
    def paused(summary):
        return summary["switches"]["pfc_paused_ns"] + summary["nics"]["pfc_paused_ns"]

    s = simulated("incast", "nic.dcqcn.enabled=false").summary
    assert s["switches"]["drops_total"] == 0
    assert s["nics"]["cnp_sent"] == 0
    assert s["flows"]["completed"] == 16
    assert paused(s) > paused(simulated("incast").summary)


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_a_storm_spreads_as_the_topology_says(simulated, seed):
    """The pauses start at the broken NIC and go upstream, each node after one that it sends to."""
    run = simulated("pfc-storm", seed=seed)
    order = pause_order(run.tables, run.summary["fabric_time_ns"])
    assert (order[0].by, order[0].whom) == ("h16", "leaf4")
    stopped = {order[0].whom}
    for pause in order[1:]:
        assert pause.by in stopped, "a switch pauses only when something it sends to has paused it"
        stopped.add(pause.whom)
    assert {"leaf1", "h1", "h2"} <= stopped
    assert stopped & {"spine1", "spine2"}, "how many of the spines depends on the hash"
    assert {"leaf2", "leaf3", "h6", "h9"} & stopped == set()
    labels = run.summary["flows"]["labels"]
    quiet = simulated("pfc-storm", "faults.0.enabled=false", seed=seed).summary
    assert labels["victim"]["goodput_bps"] < quiet["flows"]["labels"]["victim"]["goodput_bps"] / 2
    assert labels["bystander"] == quiet["flows"]["labels"]["bystander"]
    assert quiet["switches"]["pfc_xoff_sent"] == 0


def test_one_seed_one_result(cli, tmp_path):
    for folder in ("a", "b"):
        assert cli("demo", "incast", "--engine", "simulate", "--out", folder).code == 0
    names = [f"{n}.parquet" for n in ("flows", "ports", "events", "rates", "totals", "histograms")] + ["scenario.yaml"]
    names += [f"captures/{n}.pcapng" for n in ("h16-leaf4", "leaf4-spine1")] + [f"plots/{n}.png" for n in ("queues", "fct")]
    for name in names:
        assert filecmp.cmp(tmp_path / "a" / name, tmp_path / "b" / name, shallow=False), name
    different = [
        line
        for line in zip(*((tmp_path / f / "summary.json").read_text().splitlines() for f in ("a", "b")), strict=True)
        if line[0] != line[1]
    ]
    assert all('"wall_time_s"' in a for a, _ in different)


def test_two_seeds_two_results(simulated):
    one, two = (simulated("incast", seed=seed).tables for seed in (1, 2))
    assert not one.flows.equals(two.flows)
    assert not one.events.equals(two.events)


FAILOVER = """\
name: failover
topology: {kind: fat-tree, k: 4, host_rate: 100Gbps, fabric_rate: 100Gbps}
nic: {timeout: 8}
traffic:
  - {pattern: permutation, size: 1MB}
  - {pattern: permutation, size: 1MB}
faults:
  - {kind: link-down, link: LINK, at: 30us}
"""
UPLINKS = ["agg1-1-core1", "edge2-1-agg2-1", "edge3-2-agg3-2", "agg4-2-core4"]


@pytest.mark.parametrize("link", UPLINKS)
def test_a_link_goes_down_and_every_message_completes(simulated, link):
    run = simulated(FAILOVER.replace("LINK", link))
    s = run.summary
    assert s["flows"]["completed"] == 32
    assert s["conservation"]["balanced"]
    events = run.tables.events.to_pylist()
    (down_ns,) = {e["time_ns"] for e in events if e["kind"] == "link_down"}
    rerouted = {e["time_ns"] for e in events if e["kind"] == "reroute"}
    assert down_ns == 30_000
    assert rerouted == {80_000}, "the new routes are in force one reaction time later"
    lost = [(e["detail"].split()[0], e["time_ns"]) for e in events if e["kind"] == "drop"]
    assert {reason for reason, _ in lost} <= {"link_down", "no_route"}
    assert all(30_000 <= t <= 80_000 for reason, t in lost if reason == "link_down"), "frames are lost until the routes change"
    # A frame that was queued for a switch whose new route leads back to where it came from is dropped, as OpenFlow has it.
    assert all(t > 80_000 for reason, t in lost if reason == "no_route")


def test_a_link_comes_back(simulated):
    text = FAILOVER.replace("LINK, at: 30us", "agg1-1-core1, at: 30us, up_at: 150us")
    run = simulated(text)
    assert run.summary["flows"]["completed"] == 32
    rerouted = {e["time_ns"] for e in run.tables.events.to_pylist() if e["kind"] == "reroute"}
    assert rerouted == {80_000, 200_000}
    ports = run.tables.ports.to_pylist()
    used = [r["time_ns"] for r in ports if r["node"] == "agg1-1" and r["peer"] == "core1" and r["tx_bytes"]]
    assert not [t for t in used if 32_000 < t < 200_000]
    assert [t for t in used if t > 200_000]


def test_a_host_that_is_cut_off_fails_its_messages_and_says_so(simulated):
    text = (
        TWO_HOSTS.replace("SIZE", "1MB")
        + "faults: [{kind: link-down, link: h2-leaf2, at: 5us}]\nnic: {timeout: 4, retry_count: 2}\n"
    )
    run = simulated(text)
    (row,) = run.tables.flows.to_pylist()
    assert row["status"] == "retry_exceeded"
    retries = [e for e in run.tables.events.to_pylist() if e["kind"] == "retry"]
    assert len(retries) == 3, "two retries, and the timeout that ends it"
    # 4.096 us x 2^4 between them.
    assert {b["time_ns"] - a["time_ns"] for a, b in itertools.pairwise(retries)} == {65_536}
    assert run.summary["flows"]["failed"] == 1


def test_the_limit_ends_a_run(simulated):
    s = simulated(TWO_HOSTS.replace("SIZE", "10MB"), "run.limit=20us").summary
    assert s["fabric_time_ns"] == 20_000
    assert s["flows"]["completed"] == 0
    assert s["conservation"]["balanced"]
    assert s["conservation"]["in_flight_bytes"] > 0


def test_realtime_reaction_needs_a_controller(cli, scenario):
    path = scenario(TWO_HOSTS.replace("SIZE", "1KB"))
    done = cli("run", path, "--engine", "simulate", "--set", "control.reaction=realtime")
    assert done.code == 2
    assert "--set control.reaction=realtime: control.reaction: realtime lets" in done.err


def test_a_thousand_hosts(cli, scenario):
    """k = 16: it loads, is shown, and runs a short permutation."""
    assert "1024 hosts" in cli("topo", "show", "fat-tree", "--k", "16").out
    path = scenario("name: big\ntopology: {kind: fat-tree, k: 16}\ntraffic: [{pattern: permutation, size: 16KB}]\n")
    done = cli("run", path, "--engine", "simulate", "--json")
    assert done.code == 0, done.err
    assert done.json()["flows"]["completed"] == 1024
    assert done.json()["conservation"]["balanced"]


def test_series_balance_with_counters(simulated):
    """What ports.parquet says of each port, summed over time, is what the counters say."""
    run = simulated("incast")
    dataplane, topology = run.built.dataplane, run.built.topology
    sent: dict[tuple[str, str], int] = {}
    for row in run.tables.ports.to_pylist():
        key = (row["node"], row["port"])
        sent[key] = sent.get(key, 0) + row["tx_bytes"]
    for end in topology.link_at:
        if end.node in topology.switch_names:
            node, port = run.built.locate(end)
            counters = dataplane.port_counters(node, port)
            assert sent.get((end.node, f"eth{end.port}"), 0) == sum(counters["tx_bytes"])


def test_pause_in_the_series_is_pause_in_the_summary(simulated):
    run = simulated("pfc-storm")
    interval_ns = run.plan.scenario.run.sample_interval.ns
    names = run.built.topology.switch_names
    rows = run.tables.ports.to_pylist()
    last = max(r["time_ns"] for r in rows)
    total = sum(r["paused"] * interval_ns for r in rows if r["node"] in names and r["time_ns"] != last)
    assert total == pytest.approx(run.summary["switches"]["pfc_paused_ns"], rel=0.01)


SHARED_LINK = """\
name: shares
topology: {kind: leaf-spine, spines: 1, leaves: 2, hosts_per_leaf: 3, host_rate: 100Gbps, fabric_rate: 100Gbps}
switch:
  buffer: 8MB
  lossless: [3, 4]
  dscp_to_priority: {26: 3, 30: 4, 48: 6}
  queues: QUEUES
  ecn: {enabled: false}
nic: {dcqcn: {enabled: false}}
traffic:
  - {pattern: pairwise, pairs: [[h1, h4]], size: 4MB, label: three}
  - {pattern: pairwise, pairs: [[h2, h5]], size: 4MB, dscp: 30, label: four}
run: {limit: 200us}
"""


def shares(run) -> dict[int, int]:
    """Bytes that each priority sent over the shared link."""
    sent: dict[int, int] = {}
    for row in run.tables.ports.to_pylist():
        if (row["node"], row["peer"]) == ("leaf1", "spine1"):
            sent[row["priority"]] = sent.get(row["priority"], 0) + row["tx_bytes"]
    return sent


@pytest.mark.parametrize(("three", "four"), [(1, 1), (3, 1), (10, 90)])
def test_weighted_queues_share_a_link_by_their_weights(simulated, three, four):
    run = simulated(SHARED_LINK.replace("QUEUES", f"{{3: {{weight: {three}}}, 4: {{weight: {four}}}}}"))
    sent = shares(run)
    total = sent[3] + sent[4]
    assert total == pytest.approx(100e9 / 8 * 200e-6, rel=0.05)
    assert sent[3] / total == pytest.approx(three / (three + four), abs=3 * 4200 / total)
    assert run.summary["switches"]["drops_total"] == 0


def test_a_strict_queue_starves_the_lower_one(simulated):
    sent = shares(simulated(SHARED_LINK.replace("QUEUES", "{}")))
    assert sent[3] < 0.03 * sent[4]


def test_a_shaped_queue_keeps_its_rate(simulated):
    sent = shares(simulated(SHARED_LINK.replace("QUEUES", "{4: {max_rate: 30Gbps, burst: 8KB}}")))
    assert sent[4] == pytest.approx(30e9 / 8 * 200e-6, rel=0.03)
    assert sent[3] + sent[4] == pytest.approx(100e9 / 8 * 200e-6, rel=0.05)


WATCHDOG = [
    "switch.watchdog.enabled=true",
    "switch.watchdog.detection_time=100us",
    "switch.watchdog.restoration_time=100us",
    "switch.watchdog.poll_interval=50us",
    "nic.timeout=8",
]


def watchdog_events(run):
    rows = [r for r in run.tables.events.to_pylist() if r["kind"] == "pfc_watchdog"]
    return [(r["node"], r["peer"], r["detail"], r["time_ns"]) for r in rows]


def test_a_watchdog_contains_a_storm(simulated):
    """The switch at the broken NIC notices two polls after the queue stuck, drops what goes there, and frees everybody else."""
    run = simulated("pfc-storm", *WATCHDOG)
    (storm, restored) = watchdog_events(run)
    assert storm[:3] == ("leaf4", "h16", "storm")
    assert restored[:3] == ("leaf4", "h16", "restored")
    # Polls begin with the first pause, at 20 us and what the pause frame takes; the third sees what the first two saw.
    assert 120_000 <= storm[3] <= 175_000
    # The storm ends at 1,020 us, its last pause up to 335 us later.
    assert 1_020_000 + 100_000 <= restored[3] <= 1_020_000 + 335_000 + 250_000
    s = run.summary
    assert s["switches"]["watchdog_trips"] == 1
    assert s["switches"]["drops"]["watchdog"] > 0
    assert s["switches"]["drops_total"] == s["switches"]["drops"]["watchdog"]
    assert s["conservation"]["balanced"]
    assert s["flows"]["labels"]["victim"]["goodput_bps"] > 48e9, "the victim is freed"
    without = simulated("pfc-storm").summary
    assert without["switches"]["watchdog_trips"] == 0
    assert without["flows"]["labels"]["victim"]["goodput_bps"] < 48e9


def test_a_watchdog_that_forwards_drops_nothing(simulated):
    run = simulated("pfc-storm", *WATCHDOG, "switch.watchdog.action=forward")
    assert run.summary["switches"]["drops_total"] == 0
    assert run.summary["flows"]["completed"] == run.summary["flows"]["started"]
    quick = run.summary["flows"]["labels"]["to-storm"]["fct_max_ns"]
    assert quick < simulated("pfc-storm").summary["flows"]["labels"]["to-storm"]["fct_max_ns"]


def test_a_watchdog_that_alerts_changes_nothing(simulated):
    run = simulated("pfc-storm", *WATCHDOG, "switch.watchdog.action=alert", "nic.timeout=16")
    plain = simulated("pfc-storm")
    assert run.tables.flows.equals(plain.tables.flows)
    assert {event[2] for event in watchdog_events(run)} == {"storm", "restored"}


def test_a_pause_that_ends_in_time_is_no_storm(simulated):
    assert watchdog_events(simulated("incast", *WATCHDOG)) == []


def faulty(simulated, fault: str, *overrides: str, size: str = "1MB"):
    text = TWO_HOSTS.replace("SIZE", size) + f"faults: [{fault}]\nnic: {{timeout: 5}}\n"
    run = simulated(text, *overrides)
    assert run.summary["conservation"]["balanced"]
    return run


def test_lost_frames_are_repaired_and_counted(simulated):
    run = faulty(simulated, "{kind: link-loss, link: leaf1-spine1, every: 50}")
    s = run.summary
    assert s["flows"]["completed"] == 1
    assert s["links"]["lost_frames"] > 4
    assert s["nics"]["retransmitted_packets"] > s["links"]["lost_frames"]
    assert s["switches"]["drops_total"] == 0
    drops = [e for e in run.tables.events.to_pylist() if e["kind"] == "drop"]
    assert len(drops) == s["links"]["lost_frames"]
    assert {(e["node"], e["detail"].split()[0]) for e in drops} <= {("leaf1", "link_loss"), ("spine1", "link_loss")}


def test_a_lossy_link_is_mended(simulated):
    run = faulty(simulated, "{kind: link-loss, link: leaf1-spine1, rate: 1, at: 20us, until: 60us}")
    times = [e["time_ns"] for e in run.tables.events.to_pylist() if e["kind"] == "drop"]
    assert times
    assert min(times) >= 20_000
    assert max(times) < 60_000
    assert run.summary["flows"]["completed"] == 1


@pytest.mark.parametrize("forwarding", ["store-and-forward", "cut-through"])
def test_bit_errors_are_found_where_the_check_sequence_is_looked_at(simulated, forwarding):
    fault = "{kind: link-errors, link: leaf1-spine1, bit_error_rate: 0.0000005}"
    s = faulty(simulated, fault, f"switch.forwarding={forwarding}").summary
    assert s["flows"]["completed"] == 1
    spoiled = s["links"]["corrupted_frames"]
    assert spoiled > 2
    at_switches, at_nics = s["switches"]["drops"]["malformed"], s["nics"]["malformed"]
    if forwarding == "store-and-forward":
        assert (at_switches, at_nics) == (spoiled, 0)
    else:
        # A flipped address bit may also lead nowhere.
        assert at_nics > 0
        assert at_nics + at_switches + s["switches"]["drops"]["no_route"] == spoiled


def test_added_delay_adds_up_exactly(simulated):
    plain = faulty(simulated, "{kind: link-delay, link: leaf1-spine1, added: 5us, enabled: false}", size="4KB")
    late = faulty(simulated, "{kind: link-delay, link: leaf1-spine1, added: 5us}", size="4KB")
    (a,), (b,) = (run.tables.flows["fct_ns"].to_pylist() for run in (plain, late))
    assert b - a == 2 * 5_000, "once with the data, once with the acknowledgement"


def test_a_delay_that_shrinks_reorders_nothing(simulated):
    run = faulty(simulated, "{kind: link-delay, link: leaf1-spine1, added: 30us, until: 50us}")
    assert run.summary["nics"]["out_of_order_packets"] == 0
    assert run.summary["nics"]["naks"] == 0


def test_a_degraded_link_halves_the_goodput(simulated):
    plain = faulty(simulated, "{kind: link-rate, link: leaf1-spine1, rate: 50Gbps, enabled: false}")
    slow = faulty(simulated, "{kind: link-rate, link: leaf1-spine1, rate: 50Gbps}", "nic.dcqcn.enabled=false")
    (a,), (b,) = (run.tables.flows["fct_ns"].to_pylist() for run in (plain, slow))
    assert b / a == pytest.approx(2, rel=0.1)


def test_a_flapping_link_is_routed_around_and_back(simulated):
    text = FAILOVER.split("faults:")[0]
    text += (
        "faults: [{kind: link-flap, link: agg1-1-core1, at: 20us, down: 30us, up: 30us, times: 3}]\ncontrol: {reaction: 5us}\n"
    )
    run = simulated(text)
    assert run.summary["flows"]["completed"] == 32
    events = run.tables.events.to_pylist()
    assert [sum(e["kind"] == kind for e in events) for kind in ("link_down", "link_up")] == [6, 6], "both ends, three times"
    assert len({e["time_ns"] for e in events if e["kind"] == "reroute"}) == 6


FAN_IN = """\
name: fan-in
topology: {kind: leaf-spine, spines: 1, leaves: 1, hosts_per_leaf: HOSTS, host_rate: 100Gbps, delay: 600ns}
switch:
  buffer: 16MB
  pfc: {xoff: 100KB, xon_offset: 10KB, reserved: 0B}
  ecn: {enabled: false}
nic: {dcqcn: {enabled: false}}
traffic: [{pattern: incast, senders: [SENDERS], receiver: h1, size: 8MB}]
run: {limit: 600us}
"""


@pytest.mark.parametrize("n", [2, 4, 8])
def test_an_incast_follows_its_closed_forms(simulated, n):
    """n senders at rate R into one port of rate R: each ingress fills at R (1 - 1/n), so XOFF comes after X / (R (1 - 1/n)); from
    then on each sender gets 1/n of the port, and is paused for 1 - 1/n of the time."""
    senders = ", ".join(f"h{i + 2}" for i in range(n))
    run = simulated(FAN_IN.replace("HOSTS", str(n + 1)).replace("SENDERS", senders))
    rate = 100e9 / 8
    frame = 4096 + 58 + 24
    payload_share = (4096 + 58) / frame
    events = run.tables.events.to_pylist()
    first_ns = min(e["time_ns"] for e in events if e["kind"] == "pfc_xoff")
    fill_ns = 100_000 / (rate * payload_share * (1 - 1 / n)) * 1e9
    assert first_ns == pytest.approx(600 + fill_ns, abs=3 * frame / rate * 1e9)
    interval_ns = run.plan.scenario.run.sample_interval.ns
    paused: dict[str, float] = {}
    for row in run.tables.ports.to_pylist():
        if row["node"].startswith("h") and row["node"] != "h1" and 100_000 < row["time_ns"] <= 600_000:
            paused[row["node"]] = paused.get(row["node"], 0) + row["paused"] * interval_ns
    assert len(paused) == n
    for share in paused.values():
        assert share / 500_000 == pytest.approx(1 - 1 / n, abs=0.03)
    # Peak: the threshold of every ingress, and what comes in before its sender stops: two delays and two frames, the pause frame
    # waiting for one more.
    s = run.summary["switches"]
    assert s["drops_total"] == 0
    most = n * (100_000 + rate * 2 * 600e-9 + 4 * frame)
    assert n * 100_000 <= s["buffer_max_bytes"] <= most


def test_marking_at_dequeue_and_by_average(simulated):
    plain = simulated("incast").summary
    late = simulated("incast", "switch.ecn.at=dequeue").summary
    slow = simulated("incast", "switch.ecn.weight=0.002").summary
    for s in (late, slow):
        assert s["flows"]["completed"] == 16
        assert s["switches"]["ecn_marked"] > 0
        assert s["switches"]["ecn_marked"] != plain["switches"]["ecn_marked"]


def test_what_is_not_ecn_capable_is_never_marked(simulated):
    s = simulated("incast", "nic.ecn=not-ect").summary
    assert s["switches"]["ecn_marked"] == 0
    assert s["switches"]["drops_total"] == 0
    wred = simulated("incast", "nic.ecn=not-ect", "switch.ecn.drop_not_ect=true").summary
    assert wred["switches"]["ecn_marked"] == 0
    assert wred["switches"]["drops"]["buffer"] > 0
    assert wred["conservation"]["balanced"]


def test_a_steady_queue_is_marked_by_the_red_line(simulated):
    """Without congestion control two senders hold a port's queue between XOFF and XON; what is marked follows Pmax there."""
    text = FAN_IN.replace("HOSTS", "3").replace("SENDERS", "h2, h3").replace("ecn: {enabled: false}", "ecn: ECN")
    # Kmin below and Kmax far above the queue of some 200 KB: p = 0.5 (q - 0) / 1000 KB.
    run = simulated(text.replace("ECN", "{kmin: 0B, kmax: 1000KB, pmax: 0.5}"))
    rows = [r for r in run.tables.ports.to_pylist() if (r["node"], r["peer"], r["priority"]) == ("leaf1", "h1", 3)]
    steady = [r for r in rows if r["time_ns"] > 100_000]
    sent = sum(r["tx_bytes"] for r in steady) / (4096 + 58)
    marked = sum(r["ecn_marked"] for r in steady)
    mean_queue = sum(r["queue_bytes"] for r in steady) / len(steady)
    expected = sent * 0.5 * mean_queue / 1e6
    # Binomial: three standard deviations, and a little for the queue between two samples.
    assert abs(marked - expected) < 3 * expected**0.5 + 0.03 * expected


def paused_share(run, node: str, peer: str, start_ns: int, end_ns: int) -> dict[int, float]:
    """By priority: the share of a window for which a port was paused."""
    interval_ns = run.plan.scenario.run.sample_interval.ns
    found: dict[int, float] = {}
    for row in run.tables.ports.to_pylist():
        if (row["node"], row["peer"]) == (node, peer) and start_ns < row["time_ns"] <= end_ns:
            found[row["priority"]] = found.get(row["priority"], 0) + row["paused"] * interval_ns / (end_ns - start_ns)
    return found


def test_a_gappy_storm_leaves_gaps(simulated):
    """1,000 quanta are 5.12 us at 100 Gb/s; every 10 us, that is 51.2 % of the time."""
    run = simulated("pfc-storm", "faults.0.quanta=1000", "faults.0.interval=10us")
    assert paused_share(run, "leaf4", "h16", 100_000, 1_000_000) == {3: pytest.approx(0.512, abs=0.005)}


def test_a_gapless_storm_leaves_none(simulated):
    run = simulated("pfc-storm", "faults.0.quanta=1000")
    assert paused_share(run, "leaf4", "h16", 100_000, 1_000_000) == {3: pytest.approx(1)}


def test_a_storm_of_several_priorities(simulated):
    run = simulated("pfc-storm", "faults.0.priorities=[3, 5]")
    assert paused_share(run, "leaf4", "h16", 100_000, 1_000_000) == {3: pytest.approx(1), 5: pytest.approx(1)}


def test_classic_pause_frames_stop_the_whole_link(simulated):
    run = simulated("pfc-storm", "faults.0.frame=pause")
    assert paused_share(run, "leaf4", "h16", 100_000, 1_000_000) == {p: pytest.approx(1) for p in range(8)}


def test_a_response_delay_needs_its_headroom(simulated):
    text = FAN_IN.replace("HOSTS", "5").replace("SENDERS", "h2, h3, h4, h5")
    late = simulated(text, "switch.pfc.response_delay=3us").summary["switches"]
    at_once = simulated(text).summary["switches"]
    assert late["drops_total"] == 0, "auto knows of the delay"
    # Four senders go on for 3 us at 100 Gb/s each, while one port of 100 Gb/s drains.
    assert late["buffer_max_bytes"] - at_once["buffer_max_bytes"] == pytest.approx(3 * 3e-6 * 100e9 / 8, rel=0.05)
    enough_without = "switch.pfc.headroom=29000B"
    assert simulated(text, enough_without).summary["switches"]["drops_total"] == 0
    short = simulated(text, enough_without, "switch.pfc.response_delay=3us").summary
    assert short["switches"]["drops"]["headroom"] > 0
    assert short["conservation"]["balanced"]


def test_a_sender_that_ignores_pfc_overruns_the_headroom_and_is_the_only_one(simulated):
    text = FAN_IN.replace("HOSTS", "4").replace("SENDERS", "h2, h3, h4")
    run = simulated(text, "switch.pfc.ignored_by=[h3]")
    drops = [e for e in run.tables.events.to_pylist() if e["kind"] == "drop"]
    assert drops
    assert {(e["node"], e["peer"], e["detail"].split()[0]) for e in drops} == {("leaf1", "h3", "headroom")}
    assert paused_share(run, "h3", "leaf1", 100_000, 500_000).get(3, 0) == 0
    assert paused_share(run, "h2", "leaf1", 100_000, 500_000)[3] > 0.3


def test_totals_and_histograms_agree_with_the_counters(simulated):
    run = simulated("incast")
    totals = run.tables.totals.to_pylist()
    switches = run.built.topology.switch_names
    s = run.summary["switches"]
    assert sum(t["ecn_marked"] for t in totals if t["node"] in switches) == s["ecn_marked"]
    assert sum(t["paused_ns"] for t in totals if t["node"] in switches) == pytest.approx(s["pfc_paused_ns"], abs=100)
    # Who filled the buffer: at leaf4 it came from the two spines.
    held = {t["peer"]: t["ingress_max_bytes"] for t in totals if t["node"] == "leaf4" and t["priority"] == 3}
    assert {"spine1", "spine2"} == {peer for peer, most in held.items() if most > 100_000}
    bins = run.tables.histograms.to_pylist()
    for total in totals:
        if total["node"] not in switches or not total["tx_frames"]:
            continue
        key = ("node", "port", "priority")
        own = [b for b in bins if all(b[k] == total[k] for k in key)]
        for what, most in (("queue_bytes", total["queue_max_bytes"]), ("wait_ns", total["wait_max_ns"])):
            mine = [b for b in own if b["what"] == what]
            assert sum(b["frames"] for b in mine) == total["tx_frames"]
            top = max(mine, key=lambda b: b["to"])
            assert top["from"] <= most < max(top["to"], 1)


def test_on_an_idle_fabric_no_frame_waits(simulated):
    run = simulated(TWO_HOSTS.replace("SIZE", "1000B"))
    waits = [b for b in run.tables.histograms.to_pylist() if b["what"] == "wait_ns"]
    assert {(b["from"], b["to"]) for b in waits} == {(0, 1)}
