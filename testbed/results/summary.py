"""summary.json: the figures that people's scripts read."""

import platform
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa

from testbed import __version__
from testbed.engine import RunOutcome
from testbed.fabric import BuiltFabric
from testbed.results.tables import Tables
from testbed.scenario.schema import Expectation


def _percentile(values: Iterable[float], q: float) -> float | None:
    """The smallest value that at least a share `q` of the values does not exceed; `None` without values."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, int(np.ceil(q * len(ordered))) - 1)]


def _flow_figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    done = [r for r in rows if r["status"] == "success"]
    fct = [r["fct_ns"] for r in done]
    slow = [r["slowdown_ratio"] for r in done]
    moved = sum(r["bytes"] for r in done)
    span_ns = max((r["end_ns"] for r in done), default=0) - min((r["start_ns"] for r in done), default=0)
    return {
        "started": len(rows),
        "completed": len(done),
        "failed": sum(r["status"] not in ("success", "unfinished") for r in rows),
        "bytes": moved,
        "fct_p50_ns": _percentile(fct, 0.5),
        "fct_p99_ns": _percentile(fct, 0.99),
        "fct_max_ns": max(fct, default=None),
        "goodput_bps": round(moved * 8e9 / span_ns) if span_ns else 0,
        "slowdown_p50": _percentile(slow, 0.5),
        "slowdown_p99": _percentile(slow, 0.99),
    }


def _flows(flows: pa.Table) -> dict[str, Any]:
    rows = flows.to_pylist()
    figures = _flow_figures(rows)
    labels = sorted({r["label"] for r in rows if r["label"]})
    figures["labels"] = {label: _flow_figures([r for r in rows if r["label"] == label]) for label in labels}
    return figures


def _paused_ns(built: BuiltFabric, nodes: Iterable[tuple[int, int]]) -> int:
    dataplane = built.dataplane
    return sum(sum(dataplane.port_counters(node, port)["paused_ps"]) for node, ports in nodes for port in range(ports)) // 1000


def _switches(built: BuiltFabric) -> dict[str, Any]:
    topology = built.topology
    nodes = [(built.node_of[s.name], topology.switch_ports(s.name)) for s in topology.switches]
    counters = [built.dataplane.node_counters(node) for node, _ in nodes]

    def total(key: str) -> int:
        return sum(c[key] for c in counters)

    # What links lose is theirs, not the switches': it stands under `links`.
    reasons = [reason for reason in counters[0]["drops"] if reason != "link_loss"]
    drops = {reason: sum(c["drops"][reason] for c in counters) for reason in reasons}
    return {
        "rx_frames": total("rx_frames"),
        "tx_frames": total("tx_frames"),
        "ecn_marked": total("ecn_marked"),
        "pfc_xoff_sent": total("pfc_xoff_sent"),
        "pfc_xoff_switches": sum(c["pfc_xoff_sent"] > 0 for c in counters),
        "pfc_xon_sent": total("pfc_xon_sent"),
        "pfc_paused_ns": _paused_ns(built, nodes),
        "credit_stalled_ns": 0,
        "watchdog_trips": total("watchdog_trips"),
        "drops": drops,
        "drops_total": sum(drops.values()),
        "buffer_max_bytes": max(c["buffer_max_bytes"] for c in counters),
    }


def _nics(built: BuiltFabric) -> dict[str, Any]:
    nodes = list(built.nic_nodes.values())
    counters = [built.dataplane.node_counters(node) for node in nodes]
    keys = (
        "tx_packets",
        "rx_packets",
        "cnp_sent",
        "cnp_received",
        "naks",
        "timeouts",
        "retransmitted_packets",
        "out_of_order_packets",
        "icrc_errors",
        "malformed",
    )
    figures: dict[str, Any] = {key: sum(c[key] for c in counters) for key in keys}
    figures["pfc_paused_ns"] = _paused_ns(built, [(node, 1) for node in nodes])
    return figures


def _fidelity(built: BuiltFabric, outcome: RunOutcome) -> dict[str, Any]:
    figures = built.dataplane.fidelity()
    live = outcome.engine == "emulate"
    fabric_s = built.dataplane.now_ps / 1e12
    return {
        "slowdown_mean": outcome.wall_time_s / fabric_s if live and fabric_s else None,
        "slipped_wall_s": figures["slipped_s"],
        "emulator_lost_frames": figures["lost_frames"] + figures["overruns"],
        "foreign_frames": figures["foreign_frames"],
        "foreign_late_p99_ns": figures["foreign_late_p99_ns"],
        "foreign_not_taken": figures["foreign_not_taken"],
    }


def make_summary(built: BuiltFabric, outcome: RunOutcome, tables: Tables) -> dict[str, Any]:
    """The summary of a run that is over."""
    scenario = built.plan.scenario
    fidelity = _fidelity(built, outcome)
    return {
        "name": scenario.name,
        "engine": outcome.engine,
        "seed": scenario.seed,
        "complete": outcome.complete,
        "valid": fidelity["emulator_lost_frames"] == 0,
        "slowdown": outcome.slowdown,
        "fabric_time_ns": built.dataplane.now_ps // 1000,
        "wall_time_s": outcome.wall_time_s,
        "versions": {
            "testbed": __version__,
            "python": platform.python_version(),
            "scapy": version("scapy"),
            "os-ken": version("os-ken"),
            "mininet": version("mininet"),
        },
        "fidelity": fidelity,
        "flows": _flows(tables.flows),
        "switches": _switches(built),
        "nics": _nics(built),
        "links": dict(zip(("lost_frames", "corrupted_frames"), built.dataplane.link_counters(), strict=True)),
        "collectives": [],
        "conservation": built.dataplane.conservation(),
    }


def look_up(summary: dict[str, Any], metric: str) -> Any:
    """The value at a dotted path.

    Raises:
        KeyError: there is none.
    """
    value: Any = summary
    for key in metric.split("."):
        if not isinstance(value, dict) or key not in value:
            raise KeyError(metric)
        value = value[key]
    return value


def check_expectations(summary: dict[str, Any], expectations: Iterable[Expectation]) -> list[tuple[bool, str]]:
    """Whether each expectation holds, with a sentence that gives the figure."""
    verdicts: list[tuple[bool, str]] = []
    for expected in expectations:
        try:
            value = look_up(summary, expected.metric)
        except KeyError:
            verdicts.append((False, f"{expected.says}: summary.json has no {expected.metric}"))
            continue
        if expected.equals is not None:
            holds, wanted = value == expected.equals, f"= {expected.equals}"
        elif expected.above is not None:
            holds, wanted = value is not None and value > expected.above, f"> {expected.above:g}"
        else:
            limit = expected.below if expected.below is not None else 0.0
            holds, wanted = value is not None and value < limit, f"< {limit:g}"
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        verdicts.append((holds, f"{expected.says} ({expected.metric} is {shown}, expected {wanted})"))
    return verdicts
