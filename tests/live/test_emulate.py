"""The emulate engine: real packets, and the same results as the simulation."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from testbed.emulation.run import emulate
from testbed.engine import Interrupts
from testbed.fabric import BuiltFabric
from testbed.results import make_summary, make_tables
from tests.conftest import Finished, command_line, run_simulated
from tests.test_simulate import FAILOVER, TWO_HOSTS

pytestmark = pytest.mark.live

PERMUTATION = """\
name: permutation
topology: {kind: fat-tree, k: 4, host_rate: 100Gbps, fabric_rate: 100Gbps}
switch: {buffer: 1MB, ecn: {kmin: 50KB, kmax: 200KB}}
traffic: [{pattern: permutation, size: 500KB}]
"""


@pytest.fixture
def emulated(plan_of: Callable[..., Any]) -> Callable[..., Finished]:
    def run(text: str, *overrides: str, seed: int | None = None) -> Finished:
        plan = plan_of(text, *overrides, seed=seed)
        built = BuiltFabric(plan, live=True)
        outcome = emulate(built, lambda *a: None, Interrupts(), lambda line: None)
        tables = make_tables(built)
        return Finished(plan, built, tables, make_summary(built, outcome, tables))

    return run


def assert_same(live: Finished, simulated: Finished) -> None:
    """Event for event: the tables are equal, and the summary but for what is the engine's own."""
    assert live.summary["valid"]
    assert live.summary["fidelity"]["foreign_frames"] == 0
    for name in ("flows", "events", "ports", "rates", "totals", "histograms"):
        assert getattr(live.tables, name).equals(getattr(simulated.tables, name)), name
    own = {"engine", "wall_time_s", "fidelity", "slowdown"}
    assert {k: v for k, v in live.summary.items() if k not in own} == {k: v for k, v in simulated.summary.items() if k not in own}


@pytest.mark.parametrize(
    "text",
    ["incast", "pfc-storm", PERMUTATION, FAILOVER.replace("LINK", "agg1-1-core1")],
    ids=lambda t: t.split("\n")[0].split()[-1],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_both_engines_agree(emulated, text, seed):
    live = emulated(text, seed=seed)
    assert_same(live, run_simulated(live.plan))
    assert live.summary["flows"]["completed"] == live.summary["flows"]["started"]


@pytest.mark.parametrize(
    "override",
    [
        "switch.pfc.enabled=false",
        "nic.dcqcn.enabled=false",
        "run.slowdown=200",
        "switch.forwarding=cut-through",
        "switch.queues={3: {weight: 5}, 6: {weight: 1}}",
    ],
)
def test_both_engines_agree_on_variants(emulated, override):
    live = emulated("incast", override)
    assert_same(live, run_simulated(live.plan))


def test_both_engines_agree_on_a_watchdog(emulated):
    from tests.test_simulate import WATCHDOG

    live = emulated("pfc-storm", *WATCHDOG)
    assert live.summary["switches"]["watchdog_trips"] == 1
    assert_same(live, run_simulated(live.plan))


@pytest.mark.parametrize(
    "fault",
    [
        "kind: link-loss, link: leaf1-spine1, rate: 0.01",
        "kind: link-errors, link: leaf1-spine1, bit_error_rate: 0.0000002",
        "kind: link-delay, link: leaf1-spine1, added: 3us, until: 30us",
        "kind: link-rate, link: leaf1-spine1, rate: 40Gbps",
        "kind: link-flap, link: leaf1-spine1, at: 10us, down: 20us, up: 60us",
    ],
    ids=lambda f: f.split(",")[0].split()[-1],
)
@pytest.mark.parametrize("forwarding", ["store-and-forward", "cut-through"])
def test_both_engines_agree_on_faulty_links(emulated, fault, forwarding):
    text = TWO_HOSTS.replace("SIZE", "1MB") + f"faults: [{{{fault}}}]\nnic: {{timeout: 5}}\n"
    live = emulated(text, f"switch.forwarding={forwarding}")
    assert_same(live, run_simulated(live.plan))


def test_captures_are_the_same_bytes(cli, tmp_path):
    for engine in ("simulate", "emulate"):
        assert cli("demo", "incast", "--engine", engine, "--out", engine).code == 0
    for name in ("h16-leaf4.pcapng", "leaf4-spine1.pcapng"):
        live, simulated = ((tmp_path / engine / "captures" / name).read_bytes() for engine in ("emulate", "simulate"))
        assert live == simulated


def test_two_nodes_and_one_link(emulated):
    """The clock alone: nothing but two NICs and a switch."""
    live = emulated(TWO_HOSTS.replace("SIZE", "1MB").replace("leaves: 2, hosts_per_leaf: 1", "leaves: 1, hosts_per_leaf: 2"))
    (row,) = live.tables.flows.to_pylist()
    assert row["fct_ns"] == row["ideal_fct_ns"]


def test_both_engines_agree_on_a_busy_machine(emulated):
    busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        live = emulated("incast")
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert_same(live, run_simulated(live.plan))


def test_both_engines_agree_when_the_process_is_stopped_and_continued(plan_of, tmp_path):
    plan = plan_of("incast")
    out = tmp_path / "run"
    # Slow enough to be met in the middle.
    command = [*command_line(), "demo", "incast", "--out", str(out), "--set", "run.slowdown=600"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(3):
        time.sleep(1.2)
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        process.send_signal(signal.SIGCONT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    simulated = run_simulated(plan)
    for name in ("flows", "events", "ports"):
        assert pq.read_table(out / f"{name}.parquet").equals(getattr(simulated.tables, name)), name
    summary = json.loads((out / "summary.json").read_text())
    assert summary["valid"]
    assert summary["fidelity"]["slipped_wall_s"] > 1.0, "the clock slipped while the process stood still"
    assert summary["switches"] == simulated.summary["switches"]
    assert summary["nics"] == simulated.summary["nics"]


def test_a_number_paces_the_run(emulated):
    live = emulated(TWO_HOSTS.replace("SIZE", "1MB"), "run.slowdown=3000")
    assert live.summary["slowdown"] == 3000
    assert live.summary["fidelity"]["slowdown_mean"] >= 3000


def test_missing_and_crossed_cables_are_named_and_nothing_opens(plan_of, monkeypatch):
    """The subnet manager is told of another fabric than the one that is there."""
    from testbed.control import ControlError
    from testbed.emulation import live as live_module
    from testbed.fabric import declared

    def lie(topology):
        truth = declared(topology)
        (a, b), (c, d), *rest = truth.links
        swapped = ((a, d), (c, b), *rest)
        return type(truth)(truth.switches, swapped, truth.end_ports)

    monkeypatch.setattr(live_module, "declared", lie)
    plan = plan_of("incast")
    built = BuiltFabric(plan, live=True)
    with pytest.raises(ControlError) as caught:
        emulate(built, lambda *a: None, Interrupts(), lambda line: None)
    assert len(caught.value.problems) == 2
    assert all(p.startswith("crossed: leaf1:eth") for p in caught.value.problems)


def test_a_controllers_own_time_may_count(emulated):
    """With `realtime` the fabric goes on while the controller computes; its routes come when they come, and repair the run."""
    text = FAILOVER.replace("LINK", "agg1-1-core1") + "control: {reaction: realtime}\n"
    live = emulated(text, "run.slowdown=300")
    assert live.summary["flows"]["completed"] == 32
    assert live.summary["conservation"]["balanced"]
    rows = live.tables.ports.to_pylist()
    late = [r for r in rows if (r["node"], r["peer"]) == ("agg1-1", "core1") and r["tx_bytes"] and r["time_ns"] > 32_000]
    assert late == [], "nothing goes over a link that is down"


def test_a_rail_optimized_fabric_comes_up(emulated):
    text = """\
name: rails
topology: {kind: rail-optimized, nodes: 3, gpus_per_node: 4, spines: 2, host_rate: 100Gbps, fabric_rate: 100Gbps}
traffic: [{pattern: permutation, size: 100KB}]
"""
    live = emulated(text)
    assert_same(live, run_simulated(live.plan))


def processes_of(marker: str) -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and marker.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def wait_until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def interfaces() -> set[str]:
    return {p.name for p in Path("/sys/class/net").iterdir()}


def start_slow_run(tmp_path: Path) -> subprocess.Popen[str]:
    command = [*command_line(), "demo", "incast", "--out", str(tmp_path / "runs" / "killed"), "--set", "run.slowdown=20000"]
    return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_kill_9_leaves_nothing_and_touches_nothing(tmp_path, cli):
    before = interfaces()
    bystander = subprocess.Popen(["sleep", "60"])
    process = start_slow_run(tmp_path)
    mark = f"TESTBED_OWNER={process.pid}:"
    wait_until(lambda: len(processes_of(mark)) >= 23)  # 16 hosts, 6 switches, the controller
    time.sleep(0.5)
    process.kill()
    process.wait()
    wait_until(lambda: processes_of(mark) == [])
    done = cli("clean")
    assert done.code == 0
    assert "removed unfinished runs/.killed." in done.out
    assert f"removed unfinished /tmp/testbed.p{process.pid}-" in done.out
    assert list((tmp_path / "runs").iterdir()) == []
    assert interfaces() == before
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
    # A live run right after needs no cleaning.
    assert cli("demo", "incast").code == 0


def test_clean_ends_what_outlived_its_run(cli):
    """Something that a person started in a host and that lost its parent."""
    code = "import os, time; os.environ['TESTBED_OWNER'] = '1:0'; os.execvp('sleep', ['sleep', '60'])"
    orphan = subprocess.Popen(["python3", "-c", code])
    innocent = subprocess.Popen(["sleep", "60"])
    wait_until(lambda: orphan.pid in processes_of("TESTBED_OWNER=1:0"))
    reaper = threading.Thread(target=orphan.wait)
    reaper.start()
    assert f"ended process {orphan.pid}" in cli("clean").out
    reaper.join(10)
    assert orphan.poll() == -signal.SIGKILL
    assert innocent.poll() is None
    innocent.kill()
    innocent.wait()


def test_an_interrupt_cleans_up_and_marks_the_results_partial(tmp_path):
    process = start_slow_run(tmp_path)
    mark = f"TESTBED_OWNER={process.pid}:"
    wait_until(lambda: len(processes_of(mark)) >= 23)
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert processes_of(mark) == []
    summary = json.loads((tmp_path / "runs" / "killed" / "summary.json").read_text())
    assert summary["complete"] is False
    assert summary["conservation"]["balanced"]


def test_a_probe_forged_by_a_host_changes_nothing():
    from types import SimpleNamespace

    from controllers.graph import Graph
    from controllers.planner import RoutePlanner
    from controllers.subnet_manager import SubnetManager
    from traffic.lldp import Probe

    manager = SubnetManager.__new__(SubnetManager)
    manager.declared = SimpleNamespace(switches={1: "leaf1"})
    manager.datapaths = {"leaf1": SimpleNamespace(ports={5: None})}
    manager._found_links, manager._found_ends, manager.planner = {}, {}, None
    manager._learn(("spine1", 1), Probe(1, 5))
    manager._learn(("spine1", 2), Probe(1, 77))  # no such port
    assert manager._found_links == {("leaf1", 5): ("spine1", 1)}
    manager.planner = RoutePlanner(Graph(frozenset(), {}, ()), {}, lambda text: None)
    manager._learn(("leaf1", 1), Probe(1, 5))
    assert manager._found_links == {("leaf1", 5): ("spine1", 1)}


def test_emulate_needs_root_and_says_so(cli, tmp_path):
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--clear-groups", *command_line(), "demo", "incast"],
        cwd="/tmp",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "--engine simulate" in done.stderr
    assert "sudo" in done.stderr
