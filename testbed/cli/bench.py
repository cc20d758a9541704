"""Benchmarks: each figure stands beside the one it is compared with, from the same run."""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from testbed.control import DirectControl
from testbed.engine import Interrupts
from testbed.fabric import BuiltFabric, declared
from testbed.scenario import Plan
from testbed.scenario.load import Source
from testbed.scenario.plan import make_plan
from testbed.scenario.schema import FatTree, Permutation, RunSection, Scenario
from testbed.units import Duration, Size


@dataclass(frozen=True)
class Figure:
    """A measured figure, and its ratio to the first of its benchmark."""

    benchmark: str
    what: str
    value: float
    unit: str
    ratio: float


def _plan(k: int, size: str, links: str = "veth") -> Plan:
    """A permutation on a fat tree, sampled rarely so that the dataplane is what is measured."""
    run = RunSection(sample_interval=Duration.parse("1ms"), links=links)  # type: ignore[arg-type]
    traffic = (Permutation(pattern="permutation", size=Size.parse(size)),)
    scenario = Scenario(name="bench", topology=FatTree(kind="fat-tree", k=k), traffic=traffic, run=run)
    return make_plan(scenario, Source("benchmark", {}, {}))


def _hops(built: BuiltFabric) -> int:
    """Frames received by switches and NICs: packet hops."""
    dataplane = built.dataplane
    switches: int = sum(dataplane.node_counters(built.node_of[s.name])["rx_frames"] for s in built.topology.switches)
    nics: int = sum(dataplane.node_counters(node)["rx_packets"] for node in built.nic_nodes.values())
    return switches + nics


def _simulated(k: int, size: str) -> float:
    """Packet hops per second of one core, without set-up."""
    built = BuiltFabric(_plan(k, size), live=False)
    DirectControl(built, declared(built.topology), 0).open_fabric()
    built.dataplane.start(10**9)
    built.add_traffic()
    began = time.perf_counter()
    while built.dataplane.run(None, 1_000_000)[0] != "done":
        pass
    return _hops(built) / (time.perf_counter() - began)


def simulate() -> list[Figure]:
    """Packet hops per second in virtual time, and how they fall as the fabric outgrows the processor's caches."""
    rates = {k: _simulated(k, size) for k, size in ((4, "8MB"), (8, "4MB"), (16, "500KB"))}
    return [
        Figure("simulate", f"fat tree k={k}, permutation", rate, "packet hops/s", rate / rates[4]) for k, rate in rates.items()
    ]


def links() -> list[Figure]:
    """Packet hops per second live, with every link a veth and with links between switches in memory."""
    from testbed.emulation.run import emulate

    found: list[Figure] = []
    for kind in ("veth", "memory"):
        built = BuiltFabric(_plan(4, "2MB", kind), live=True)
        outcome = emulate(built, lambda *a: None, Interrupts(), lambda line: None)
        rate = _hops(built) / outcome.wall_time_s
        first = found[0].value if found else rate
        found.append(Figure("links", f"fat tree k=4 live, links: {kind}", rate, "packet hops/s", rate / first))
    return found


BENCHMARKS: dict[str, Callable[[], list[Figure]]] = {"simulate": simulate, "links": links}
NEED_ROOT = frozenset({"links"})


def run_benchmarks(names: list[str], as_json: bool) -> int:
    """Runs benchmarks and prints their figures; returns the exit code."""
    console = Console(stderr=True, highlight=False)
    figures: list[Figure] = []
    for name in names:
        if name in NEED_ROOT and os.geteuid() != 0:
            console.print(f"{name} needs root, and is left out: run it with sudo")
            continue
        console.print(f"measuring {name} ...")
        figures += BENCHMARKS[name]()
    if as_json:
        json.dump([asdict(f) for f in figures], sys.stdout, indent=2)
        print()
        return 0
    table = Table("benchmark", "what", "value", "unit", "ratio to the first", box=None, pad_edge=False)
    for f in figures:
        table.add_row(f.benchmark, f.what, f"{f.value:,.0f}", f.unit, f"{f.ratio:.2f}")
    Console(highlight=False).print(table)
    return 0
