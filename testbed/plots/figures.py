"""The figures of a run folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from testbed.results.pauses import pause_order
from testbed.results.tables import Tables
from testbed.topology import Topology

MOST_SERIES = 8
MOST_PAUSE_ROWS = 24
_DPI = 120
Array = Any


def _figure(title: str, height: float = 4.2) -> tuple[Figure, Axes]:
    figure, axes = plt.subplots(figsize=(9, height), layout="constrained")
    axes.set_title(title, loc="left")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _time_unit(last_ns: float) -> tuple[float, str]:
    for factor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if last_ns >= factor:
            return factor, unit
    return 1.0, "ns"


def _legend_below(figure: Figure, title: str | None) -> None:
    """A legend that covers no line."""
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False, title=title, title_fontsize=8)


def _say_nothing_to_draw(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color="0.4", fontsize=12)
    axes.set_xticks([])
    axes.set_yticks([])


def _groups(table: pa.Table, keys: list[str]) -> dict[tuple[Any, ...], Array]:
    """Row numbers of each distinct combination of keys, in order of first appearance."""
    columns = [table[key].to_pylist() for key in keys]
    found: dict[tuple[Any, ...], list[int]] = {}
    for i, key in enumerate(zip(*columns, strict=True)):
        found.setdefault(key, []).append(i)
    return {key: np.array(rows) for key, rows in found.items()}


def _stepped(times: Array, values: Array, interval: float) -> tuple[Array, Array]:
    """A series whose missing rows mean zero: zeros are put in where a gap begins and ends."""
    out_t: list[float] = []
    out_v: list[float] = []
    last = -np.inf
    for t, v in zip(times, values, strict=True):
        if t - last > 1.5 * interval:
            if out_t:
                out_t.append(last + interval)
                out_v.append(0.0)
            out_t.append(max(0.0, t - interval))
            out_v.append(0.0)
        out_t.append(t)
        out_v.append(v)
        last = t
    if out_t:
        out_t.append(last + interval)
        out_v.append(0.0)
    return np.array(out_t), np.array(out_v)


def _queues(tables: Tables, interval_ns: float) -> Figure:
    figure, axes = _figure("Egress queue depth", 5.0)
    rows = tables.ports.filter(pc.greater(tables.ports["queue_bytes"], 0))
    if rows.num_rows == 0:
        _say_nothing_to_draw(axes, "no frame ever waited in a switch at a sampling time")
        return figure
    queue = rows["queue_bytes"].to_numpy()
    time_ns = rows["time_ns"].to_numpy()
    groups = _groups(rows, ["node", "port", "peer", "priority"])
    deepest = sorted(groups, key=lambda key: (-queue[groups[key]].max(), key))[:MOST_SERIES]
    factor, unit = _time_unit(time_ns.max())
    for node, port, peer, priority in deepest:
        index = groups[node, port, peer, priority]
        t, v = _stepped(time_ns[index], queue[index] / 1000, interval_ns)
        axes.plot(t / factor, v, lw=1.2, label=f"{node}:{port} to {peer}, priority {priority}")
    axes.set_xlabel(f"fabric time ({unit})")
    axes.set_ylabel("queue (KB)")
    axes.set_ylim(bottom=0)
    left = len(groups) - len(deepest)
    _legend_below(figure, f"deepest first; {left} shallower left out" if left > 0 else None)
    return figure


def _rates(tables: Tables, names: dict[tuple[str, int], str]) -> Figure:
    figure, axes = _figure("Sending rate allowed by congestion control", 5.0)
    table = tables.rates
    if table.num_rows == 0:
        _say_nothing_to_draw(axes, "no queue pair had congestion control")
        return figure
    time_ns, rate = table["time_ns"].to_numpy(), table["rate_bps"].to_numpy()
    factor, unit = _time_unit(time_ns.max())
    groups = _groups(table, ["node", "qp"])
    shown = list(groups)[: 2 * MOST_SERIES]
    for key in shown:
        index = groups[key]
        axes.plot(time_ns[index] / factor, rate[index] / 1e9, lw=1.0, label=names.get(key, f"{key[0]} QP {key[1]}"))
    axes.set_xlabel(f"fabric time ({unit})")
    axes.set_ylabel("rate (Gb/s)")
    axes.set_ylim(bottom=0)
    left = len(groups) - len(shown)
    _legend_below(figure, f"{left} queue pairs left out" if left > 0 else None)
    return figure


def _pauses(tables: Tables, end_ns: int) -> Figure:
    order = pause_order(tables, end_ns)
    shown = order[:MOST_PAUSE_ROWS]
    figure, axes = _figure("Pauses by link, in the order in which they began", 1.6 + 0.28 * max(len(shown), 6))
    if not shown:
        _say_nothing_to_draw(axes, "nobody paused anybody: no XOFF was sent in this run")
        return figure
    factor, unit = _time_unit(max(end for pause in shown for _, end in pause.spans))
    colours = plt.get_cmap("tab10")
    for row, pause in enumerate(shown):
        spans = [(start / factor, max(end - start, 1) / factor) for start, end in pause.spans]
        axes.broken_barh(spans, (row - 0.35, 0.7), facecolors=colours(pause.priority % 10))
    labels = [f"{p.by} pauses {p.whom} (priority {p.priority})" for p in shown]
    axes.set_yticks(range(len(shown)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel(f"fabric time ({unit})")
    left = len(order) - len(shown)
    if left > 0:
        axes.annotate(f"{left} later ones left out", (1, -0.02), xycoords="axes fraction", ha="right", va="top", fontsize=8)
    return figure


def _fct(tables: Tables) -> Figure:
    figure, axes = _figure("Flow completion time")
    flows = tables.flows.filter(pc.equal(tables.flows["status"], "success"))
    if flows.num_rows == 0:
        _say_nothing_to_draw(axes, "no message completed")
        return figure
    factor, unit = _time_unit(float(pc.max(flows["fct_ns"]).as_py()))
    groups = _groups(flows, ["label"])
    fct = flows["fct_ns"].to_numpy()
    for (label,), index in groups.items():
        values = np.sort(fct[index]) / factor
        share = np.arange(1, len(values) + 1) / len(values)
        axes.step(np.insert(values, 0, values[0]), np.insert(share, 0, 0), where="post", label=label or "messages")
    ideal = np.sort(flows["ideal_fct_ns"].to_numpy()) / factor
    share = np.arange(1, len(ideal) + 1) / len(ideal)
    axes.step(np.insert(ideal, 0, ideal[0]), np.insert(share, 0, 0), where="post", ls=":", c="0.4", label="idle fabric")
    axes.set_xlabel(f"completion time ({unit})")
    axes.set_ylabel("share of messages")
    axes.set_ylim(0, 1.02)
    axes.set_xlim(left=0)
    unfinished = tables.flows.num_rows - flows.num_rows
    axes.legend(frameon=False, fontsize=9, title=f"{unfinished} did not complete" if unfinished else None)
    return figure


def draw_all(folder: Path, tables: Tables, *, interval_ns: float, end_ns: int, title: str, invalid: bool) -> list[Path]:
    """Draws every figure into `folder` and returns the files. An INVALID run says so across each figure."""
    flows = tables.flows
    names = {
        (src, qp): f"{src} to {dst}" for src, dst, qp in zip(*(flows[c].to_pylist() for c in ("src", "dst", "qp")), strict=True)
    }
    makers: dict[str, Callable[[], Figure]] = {
        "queues": lambda: _queues(tables, interval_ns),
        "rates": lambda: _rates(tables, names),
        "pauses": lambda: _pauses(tables, end_ns),
        "fct": lambda: _fct(tables),
    }
    files: list[Path] = []
    for name, make in makers.items():
        figure = make()
        figure.suptitle(title, x=0.99, ha="right", fontsize=8, color="0.4")
        if invalid:
            figure.text(0.5, 0.5, "INVALID", fontsize=80, color="red", alpha=0.3, ha="center", va="center", rotation=25)
        path = folder / f"{name}.png"
        # No date or version in the file: the same run draws the same bytes.
        figure.savefig(path, dpi=_DPI, metadata={"Software": None})
        plt.close(figure)
        files.append(path)
    return files


def draw_topology(topology: Topology, path: Path) -> None:
    """Draws a topology by tiers."""
    tiers: dict[int, list[str]] = {-1: [h.name for h in topology.hosts]}
    for switch in topology.switches:
        tiers.setdefault(switch.tier, []).append(switch.name)
    widest = max(map(len, tiers.values()))
    figure, axes = plt.subplots(figsize=(min(4 + widest * 0.35, 40), 2 + 1.3 * len(tiers)), layout="constrained")
    place = {name: ((i + 0.5) * widest / len(names), tier) for tier, names in tiers.items() for i, name in enumerate(names)}
    for link in topology.links:
        (xa, ya), (xb, yb) = place[link.a.node], place[link.b.node]
        axes.plot([xa, xb], [ya, yb], c="0.7", lw=0.6, zorder=1)
    for tier, names in tiers.items():
        marker, colour = ("s", "tab:blue") if tier >= 0 else ("o", "tab:green")
        axes.scatter([place[n][0] for n in names], [tier] * len(names), marker=marker, c=colour, zorder=2, s=40)
        if len(names) <= 64:
            for name in names:
                axes.annotate(name, place[name], xytext=(0, 7), textcoords="offset points", ha="center", fontsize=7)
    axes.set_axis_off()
    axes.set_title(
        f"{topology.kind}: {len(topology.hosts)} hosts, {len(topology.switches)} switches, {len(topology.links)} links"
    )
    figure.savefig(path, dpi=_DPI, metadata={"Software": None})
    plt.close(figure)
