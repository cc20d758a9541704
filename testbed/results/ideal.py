"""How long a message takes on an idle fabric: the yardstick of its slowdown."""

import itertools
from functools import cached_property, lru_cache

import networkx as nx

from testbed.scenario.plan import Plan
from testbed.topology import Link, Nic

MIN_FRAME_BYTES = 60
WIRE_OVERHEAD_BYTES = 24
"""Preamble, check sequence and inter-packet gap (IEEE 802.3 clause 4.4.2)."""
_HEADERS_BYTES = 14 + 20 + 8 + 12 + 4
_RETH_BYTES, _AETH_BYTES = 16, 4


def frame_ps(rate_bps: int, frame_bytes: int) -> int:
    """Time that a frame occupies a link, rounded up to a picosecond."""
    bits = (max(frame_bytes, MIN_FRAME_BYTES) + WIRE_OVERHEAD_BYTES) * 8
    return -(-bits * 10**12 // rate_bps)


class IdealFct:
    """Ideal flow completion times of a plan: from posting to the acknowledgement, on a shortest path, store-and-forward.

    With A_i the time of the first packet on link i (it has an RETH), F_i that of a full one behind it, l_i that of the last one,
    n packets: the last arrives after sum(A_i) + (n - 2) max(F_i) + max(l_i), plus the delays, for n >= 2, and after sum(l_i) plus
    the delays for n = 1; the acknowledgement adds its own way back. Exact where all links of the path have one rate.
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
        delays = sum(link.delay.ps for link in path)

        def times(frame_bytes: int) -> list[int]:
            return [frame_ps(link.rate.bps, frame_bytes) for link in path]

        reth = _RETH_BYTES if packets == 1 else 0
        last_times = times(_HEADERS_BYTES + reth + last + -last % 4)
        if packets == 1:
            data = sum(last_times)
        else:
            first = times(_HEADERS_BYTES + _RETH_BYTES + mtu)
            data = sum(first) + (packets - 2) * max(times(_HEADERS_BYTES + mtu)) + max(last_times)
        acknowledgement = sum(times(_HEADERS_BYTES + _AETH_BYTES))
        return (data + acknowledgement + 2 * delays) // 1000
