"""How long a message takes on an idle fabric: the yardstick of its slowdown."""

import itertools
from functools import cached_property, lru_cache

import networkx as nx

from testbed.scenario.plan import Plan
from testbed.topology import Link, Nic

MIN_FRAME_BYTES = 60
WIRE_OVERHEAD_BYTES = 24
HEADER_BYTES = 64
"""Preamble, check sequence and inter-packet gap (IEEE 802.3 clause 4.4.2)."""
_HEADERS_BYTES = 14 + 20 + 8 + 12 + 4
_RETH_BYTES, _AETH_BYTES = 16, 4


def frame_ps(rate_bps: int, frame_bytes: int) -> int:
    """Time that a frame occupies a link, rounded up to a picosecond."""
    bits = (max(frame_bytes, MIN_FRAME_BYTES) + WIRE_OVERHEAD_BYTES) * 8
    return -(-bits * 10**12 // rate_bps)


class IdealFct:
    """Ideal flow completion times of a plan: from posting to the acknowledgement, on a shortest path of an idle fabric.

    A frame of wire time F_i on link i takes sum(F_i + delay_i) and a pipeline latency in each switch; where a switch cuts through
    (and its output is no faster than its input), only the header's time instead of F_i. With F the first packet (it has an RETH),
    the last of n packets arrives (n - 2) max(F_i) + max(l_i) later, F_i being a full packet behind it and l_i the last one. The
    acknowledgement adds its own way back. Exact where all links of the path have one rate.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._path = lru_cache(maxsize=1 << 16)(self._find_path)

    def _find_path(self, src: Nic, dst: Nic) -> tuple[Link, ...]:
        topology = self.plan.topology
        first, last = topology.link_at[src.ref], topology.link_at[dst.ref]
        names = nx.shortest_path(self._switches, topology.peer(src.ref).node, topology.peer(dst.ref).node)
        between = (next(iter(self._switches.get_edge_data(a, b).values()))["link"] for a, b in itertools.pairwise(names))
        return (first, *between, last)

    @cached_property
    def _switches(self) -> nx.MultiGraph:
        return self.plan.topology.graph.subgraph(self.plan.topology.switch_names).copy()

    def ns(self, src: Nic, dst: Nic, size_bytes: int) -> int:
        """Ideal completion time in nanoseconds, rounded down."""
        path = self._path(src, dst)
        mtu = self.plan.scenario.nic.mtu
        packets = max(1, -(-size_bytes // mtu))
        last = size_bytes - (packets - 1) * mtu
        last_bytes = _HEADERS_BYTES + last + -last % 4
        if packets == 1:
            data = self._one_way(path, last_bytes + _RETH_BYTES)
        else:
            behind = max(frame_ps(link.rate.bps, _HEADERS_BYTES + mtu) for link in path)
            final = max(frame_ps(link.rate.bps, last_bytes) for link in path)
            data = self._one_way(path, _HEADERS_BYTES + _RETH_BYTES + mtu) + (packets - 2) * behind + final
        acknowledgement = self._one_way(path[::-1], _HEADERS_BYTES + _AETH_BYTES)
        return (data + acknowledgement) // 1000

    def _one_way(self, path: tuple[Link, ...], frame_bytes: int) -> int:
        """Time of one frame from its sender's first bit to its receiver's last, in ps."""
        switch = self.plan.scenario.switch
        begins = 0
        for i, link in enumerate(path):
            whole = begins + frame_ps(link.rate.bps, frame_bytes) + link.delay.ps
            if i + 1 == len(path):
                return whole
            cut = switch.forwarding == "cut-through" and path[i + 1].rate <= link.rate
            header = begins + link.delay.ps + -(-HEADER_BYTES * 8 * 10**12 // link.rate.bps)
            begins = (header if cut else whole) + switch.pipeline_latency.ps
        raise AssertionError("a path has links")
