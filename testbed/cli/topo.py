"""Showing topologies."""

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table

from testbed.scenario.load import Problem, ScenarioError, load
from testbed.scenario.plan import build_topology, make_plan
from testbed.scenario.schema import Scenario, TopologySection
from testbed.topology import AddressPlanError, Topology

KINDS = ("fat-tree", "leaf-spine", "rail-optimized")
MOST_ROWS = 40


def topology_of(kind: str, sizes: dict[str, int]) -> Topology:
    """The topology of a kind with sizes, or of a scenario file.

    Raises:
        ScenarioError: there is no such kind or file, or the sizes do not fit it.
    """
    if kind not in KINDS and kind != "rail":
        path = Path(kind)
        if path.suffix not in (".yaml", ".yml"):
            kinds = ", ".join(KINDS)
            raise ScenarioError([Problem((), f"is neither a kind of topology ({kinds}) nor a scenario file", None, kind)])
        return make_plan(*load(path)).topology
    section = {"kind": "rail-optimized" if kind == "rail" else kind, **sizes}
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(TopologySection)
        scenario = Scenario(name="show", topology=adapter.validate_python(section))
        return build_topology(scenario)
    except ValidationError as error:
        first = error.errors()[0]
        option = str(first["loc"][-1]).replace("_", "-")
        reason = f"{kind} does not take it" if first["type"] == "extra_forbidden" else first["msg"]
        raise ScenarioError([Problem((), reason, None, f"--{option}")]) from None
    except AddressPlanError as error:
        raise ScenarioError([Problem((), str(error), None, kind)]) from None


def figures(topology: Topology) -> dict[str, Any]:
    """Counts of a topology."""
    tiers: dict[int, int] = {}
    for switch in topology.switches:
        tiers[switch.tier] = tiers.get(switch.tier, 0) + 1
    return {
        "kind": topology.kind,
        "hosts": len(topology.hosts),
        "nics": len(topology.nics),
        "switches": len(topology.switches),
        "switches_by_tier": {str(tier): count for tier, count in sorted(tiers.items())},
        "links": len(topology.links),
    }


def show(kind: str, sizes: dict[str, int], png: Path | None, as_json: bool) -> None:
    """Prints a topology, and draws it if asked to."""
    topology = topology_of(kind, sizes)
    counts = figures(topology)
    console = Console(highlight=False, soft_wrap=True)
    if as_json:
        print(json.dumps(counts, indent=2))
    else:
        tiers = ", ".join(f"{count} in tier {tier}" for tier, count in counts["switches_by_tier"].items())
        console.print(
            f"{topology.kind}: {counts['hosts']} hosts with {counts['nics']} NICs, "
            f"{counts['switches']} switches ({tiers}), {counts['links']} links"
        )
        console.print(_table(topology))
        if len(topology.switches) > MOST_ROWS:
            console.print(f"... and {len(topology.switches) - MOST_ROWS} switches more")
    if png is not None:
        from testbed.plots import draw_topology

        try:
            draw_topology(topology, png)
        except OSError as error:
            raise ScenarioError([Problem((), f"cannot be written: {error.strerror}", None, str(png))]) from None
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"drawn: {png}")


def _table(topology: Topology) -> Table:
    table = Table("switch", "tier", "ports", "interfaces", "joined to", box=None, pad_edge=False)
    peers: dict[str, list[str]] = {}
    for link in topology.links:
        for end, other in ((link.a, link.b), (link.b, link.a)):
            if end.node in topology.switch_names:
                peers.setdefault(end.node, []).append(other.node)
    for switch in topology.switches[:MOST_ROWS]:
        names = list(dict.fromkeys(peers.get(switch.name, [])))
        shown = " ".join(names[:8]) + (f" ... ({len(names)})" if len(names) > 8 else "")
        first = next(end for end in topology.link_at if end.node == switch.name)
        interface = topology.interface(first)
        ports = len(peers.get(switch.name, []))
        table.add_row(switch.name, str(switch.tier), str(ports), f"{interface} ...", shown)
    return table
