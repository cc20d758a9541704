"""The tables of a run as Arrow: flows, ports, events, rates."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from testbed.fabric import BuiltFabric
from testbed.results.ideal import IdealFct
from testbed.topology import Nic, PortRef


@dataclass(frozen=True)
class Tables:
    """A run's tables, as `RESULTS` names their columns."""

    flows: pa.Table
    ports: pa.Table
    events: pa.Table
    rates: pa.Table
    totals: pa.Table
    histograms: pa.Table


class _Names:
    """Names of the dataplane's nodes and ports."""

    def __init__(self, built: BuiltFabric) -> None:
        topology = built.topology
        self.nodes = [""] * (max(built.node_of.values(), default=-1) + 1)
        for name, node in built.node_of.items():
            self.nodes[node] = name
        self.nic_of: dict[int, Nic] = {node: nic for nic, node in built.nic_nodes.items()}
        self._nic_at = {nic.ref: nic.name for nic in topology.nics}
        self._topology = topology

    def port(self, node: int, port: int) -> str:
        nic = self.nic_of.get(node)
        return f"eth{nic.index}" if nic else f"eth{port + 1}"

    def peer(self, node: int, port: int) -> str:
        nic = self.nic_of.get(node)
        ref = nic.ref if nic else PortRef(self.nodes[node], port + 1)
        peer = self._topology.peer(ref)
        return self._nic_at.get(peer, peer.node)


def _dictionary(codes: npt.NDArray[Any], names: list[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(names, pa.string()))


def _port_names(names: _Names, node: npt.NDArray[Any], port: npt.NDArray[Any]) -> tuple[Any, Any]:
    """Dictionary arrays of port and peer for columns of node and port numbers; port -1 is null."""
    keys = node.astype(np.int64) << 16 | (port.astype(np.int64) & 0xFFFF)
    unique, codes = np.unique(keys, return_inverse=True)
    none = 0xFFFF
    labels: list[str | None] = []
    peers: list[str | None] = []
    for key in unique.tolist():
        n, p = key >> 16, key & 0xFFFF
        labels.append(None if p == none else names.port(n, p))
        peers.append(None if p == none else names.peer(n, p))
    index = pa.array(codes.astype(np.int32))
    return tuple(pa.array(column, pa.string()).take(index).dictionary_encode() for column in (labels, peers))


def _flows(built: BuiltFabric) -> pa.Table:
    ideal = IdealFct(built.plan)
    messages = built.dataplane.messages()
    rows: list[dict[str, Any]] = []
    for flow, qpn, first in built.qp_flows:
        best = ideal.ns(flow.src, flow.dst, flow.size_bytes)
        for number in range(first, first + flow.messages):
            _, _, size, start_ps, end_ps, outcome, again, marked = messages[number]
            fct = None if end_ps is None else end_ps // 1000 - start_ps // 1000
            done = outcome == "success"
            rows.append(
                {
                    "flow": number,
                    "label": flow.label,
                    "src": flow.src.name,
                    "dst": flow.dst.name,
                    "qp": qpn,
                    "bytes": size,
                    "start_ns": start_ps // 1000,
                    "end_ns": None if end_ps is None else end_ps // 1000,
                    "fct_ns": fct if done else None,
                    "ideal_fct_ns": best,
                    "slowdown_ratio": fct / best if done and fct is not None else None,
                    "retransmitted_packets": again,
                    "ecn_marked_packets": marked,
                    "status": outcome or "unfinished",
                }
            )
    schema = pa.schema(
        [
            ("flow", pa.int64()),
            ("label", pa.string()),
            ("src", pa.string()),
            ("dst", pa.string()),
            ("qp", pa.int64()),
            ("bytes", pa.int64()),
            ("start_ns", pa.int64()),
            ("end_ns", pa.int64()),
            ("fct_ns", pa.int64()),
            ("ideal_fct_ns", pa.int64()),
            ("slowdown_ratio", pa.float64()),
            ("retransmitted_packets", pa.int64()),
            ("ecn_marked_packets", pa.int64()),
            ("status", pa.string()),
        ]
    )
    return pa.Table.from_pylist(rows, schema)


def _column(columns: dict[str, Any], name: str, dtype: str) -> npt.NDArray[Any]:
    return np.frombuffer(columns[name], dtype=dtype)


def _ports(built: BuiltFabric, names: _Names) -> pa.Table:
    columns = built.dataplane.port_columns()
    node, port = _column(columns, "node", "<u4"), _column(columns, "port", "<u2")
    labels, peers = _port_names(names, node, port)
    interval = _column(columns, "interval_ps", "<u8")
    data: dict[str, Any] = {
        "time_ns": pa.array((_column(columns, "time_ps", "<u8") // 1000).astype(np.int64)),
        "node": _dictionary(node, names.nodes),
        "port": labels,
        "peer": peers,
        "priority": pa.array(_column(columns, "priority", "u1").astype(np.int8)),
    }
    for name in ("queue_bytes", "ingress_bytes", "tx_bytes", "rx_bytes", "ecn_marked"):
        data[name] = pa.array(_column(columns, name, "<u8").astype(np.int64))
    data["paused"] = pa.array(_column(columns, "paused_ps", "<u8") / np.maximum(interval, 1))
    data["credits"] = pa.nulls(len(node), pa.int64())
    return pa.table(data)


def _detail(kind: str, reason: str, value: int) -> str:
    """What `detail` says: for a drop its reason and the frame's bytes, for the watchdog what it found, else the number."""
    if kind == "pfc_watchdog":
        return "storm" if value else "restored"
    return f"{reason} {value}" if reason else str(value)


def _events(built: BuiltFabric, names: _Names) -> pa.Table:
    columns = built.dataplane.event_columns()
    node, port = _column(columns, "node", "<u4"), _column(columns, "port", "<i8")
    labels, peers = _port_names(names, node, port)
    kinds = [kind.split(":")[0] for kind in columns["kinds"]]
    reasons = [kind.partition(":")[2] for kind in columns["kinds"]]
    codes = _column(columns, "kind", "u1")
    priority, flow = _column(columns, "priority", "<i8"), _column(columns, "flow", "<i8")
    values = _column(columns, "detail", "<u8").tolist()
    details = [_detail(kinds[c], reasons[c], v) for c, v in zip(codes.tolist(), values, strict=True)]
    unique_kinds = sorted(set(kinds))
    kind_codes = np.array([unique_kinds.index(k) for k in kinds], dtype=np.int32)
    return pa.table(
        {
            "time_ns": pa.array((_column(columns, "time_ps", "<u8") // 1000).astype(np.int64)),
            "kind": _dictionary(kind_codes[codes] if len(codes) else codes, unique_kinds),
            "node": _dictionary(node, names.nodes),
            "port": labels,
            "peer": peers,
            "priority": pa.array(priority, pa.int64(), mask=priority < 0),
            "flow": pa.array(flow, pa.int64(), mask=flow < 0),
            "detail": pa.array(details, pa.string()),
        }
    )


def _rates(built: BuiltFabric, names: _Names) -> pa.Table:
    columns = built.dataplane.rate_columns()
    node = _column(columns, "node", "<u4")
    return pa.table(
        {
            "time_ns": pa.array((_column(columns, "time_ps", "<u8") // 1000).astype(np.int64)),
            "node": _dictionary(node, names.nodes),
            "qp": pa.array(_column(columns, "qpn", "<u4").astype(np.int64)),
            "rate_bps": pa.array(_column(columns, "rate_bps", "<u8").astype(np.int64)),
            "alpha": pa.array(_column(columns, "alpha", "<f8")),
        }
    )


TOTALS = ("tx_frames", "tx_bytes", "rx_frames", "rx_bytes", "ecn_marked", "tx_pause", "rx_pause")
_KEYS = [("node", pa.string()), ("port", pa.string()), ("peer", pa.string()), ("priority", pa.int8())]


def _totals_and_histograms(built: BuiltFabric, names: _Names) -> tuple[pa.Table, pa.Table]:
    """Counters of every port and priority that was ever used, and what frames met in each egress queue.

    Bins of a histogram double: the first is zero alone, the others reach from `from` up to, not with, `to`.
    """
    totals: list[dict[str, Any]] = []
    bins: list[dict[str, Any]] = []
    for end in built.topology.link_at:
        node, port = built.locate(end)
        counters = built.dataplane.port_counters(node, port)
        label = {"node": names.nodes[node], "port": names.port(node, port), "peer": names.peer(node, port)}
        for priority in range(8):
            row: dict[str, Any] = {name: counters[name][priority] for name in TOTALS}
            row["paused_ns"] = counters["paused_ps"][priority] // 1000
            row["ingress_max_bytes"] = counters.get("ingress_max_bytes", [0] * 8)[priority]
            if not any(row.values()):
                continue
            key = {**label, "priority": priority}
            depths, waits = counters.get("histograms", [((0, []), (0, []))] * 8)[priority]
            row |= {"queue_max_bytes": depths[0], "wait_max_ns": waits[0]}
            totals.append(key | row)
            for what, (_, counts) in (("queue_bytes", depths), ("wait_ns", waits)):
                bins += [
                    key | {"what": what, "from": 1 << i >> 1, "to": 1 << i, "frames": count}
                    for i, count in enumerate(counts)
                    if count
                ]
    figures = (*TOTALS, "paused_ns", "ingress_max_bytes", "queue_max_bytes", "wait_max_ns")
    totals_schema = pa.schema([*_KEYS, *((name, pa.int64()) for name in figures)])
    bins_schema = pa.schema([*_KEYS, ("what", pa.string()), *((name, pa.int64()) for name in ("from", "to", "frames"))])
    return pa.Table.from_pylist(totals, totals_schema), pa.Table.from_pylist(bins, bins_schema)


def make_tables(built: BuiltFabric) -> Tables:
    """The tables of a run that is over."""
    names = _Names(built)
    totals, histograms = _totals_and_histograms(built, names)
    return Tables(_flows(built), _ports(built, names), _events(built, names), _rates(built, names), totals, histograms)
