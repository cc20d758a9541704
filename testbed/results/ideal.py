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

    Packet k begins on link i at B_i(k) = max(A_i(k), B_i(k-1) + F_i(k-1)), where F is a packet's time on the link and A_i(k) its
    arrival there: when it is whole, or its header is in where the switch cuts through (its output no faster than its input), plus
    the pipeline. Between the second packet and the last but one all are full, arrivals are convex in k: the maximum is reached
    at an end; so four packets stand for any number, and the result is exact.
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
        head = _HEADERS_BYTES + _RETH_BYTES
        if packets == 1:
            sizes = [head + last + -last % 4]
        else:
            full = min(packets - 2, 2)
            sizes = [head + mtu, *[_HEADERS_BYTES + mtu] * full, _HEADERS_BYTES + last + -last % 4]
        data = self._last_arrival(path, sizes, packets - len(sizes))
        acknowledgement = self._last_arrival(path[::-1], [_HEADERS_BYTES + _AETH_BYTES], 0)
        return (data + acknowledgement) // 1000

    def _last_arrival(self, path: tuple[Link, ...], sizes: list[int], left_out: int) -> int:
        """When the last of these frames is whole at the far end, in ps; `left_out` full ones come before the third."""
        switch = self.plan.scenario.switch
        arrivals = [0] * len(sizes)
        for i, link in enumerate(path):
            times = [frame_ps(link.rate.bps, size) for size in sizes]
            begins: list[int] = []
            for k, arrival in enumerate(arrivals):
                free = begins[-1] + times[k - 1] if begins else 0
                begins.append(max(arrival, free + (left_out * times[1] if k == 2 else 0)))
            whole = [b + t + link.delay.ps for b, t in zip(begins, times, strict=True)]
            if i + 1 == len(path):
                return whole[-1]
            if switch.forwarding == "cut-through" and path[i + 1].rate <= link.rate:
                header = -(-HEADER_BYTES * 8 * 10**12 // link.rate.bps)
                whole = [b + header + link.delay.ps for b in begins]
            arrivals = [w + switch.pipeline_latency.ps for w in whole]
        raise AssertionError("a path has links")
