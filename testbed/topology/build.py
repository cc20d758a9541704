"""The topologies of AI clusters."""

from collections import defaultdict

from testbed.topology.model import Host, Link, PortRef, Switch, Topology
from testbed.units import BitRate, Duration

DEFAULT_RATE = BitRate.parse("400Gbps")
DEFAULT_DELAY = Duration.parse("600ns")


class _Wiring:
    """Numbers the ports of nodes as they are wired."""

    def __init__(self, delay: Duration) -> None:
        self.delay = delay
        self.links: list[Link] = []
        self._next_port: defaultdict[str, int] = defaultdict(lambda: 1)

    def attach(self, host: str, nic: int, switch: str, rate: BitRate) -> None:
        self.links.append(Link(PortRef(host, nic), self._port(switch), rate, self.delay))

    def join(self, lower: str, upper: str, rate: BitRate) -> None:
        self.links.append(Link(self._port(lower), self._port(upper), rate, self.delay))

    def _port(self, switch: str) -> PortRef:
        number = self._next_port[switch]
        self._next_port[switch] += 1
        return PortRef(switch, number)


def leaf_spine(
    *,
    spines: int,
    leaves: int,
    hosts_per_leaf: int,
    host_rate: BitRate = DEFAULT_RATE,
    fabric_rate: BitRate = DEFAULT_RATE,
    delay: Duration = DEFAULT_DELAY,
) -> Topology:
    """Two tiers: every leaf is joined to every spine. Hosts h1, h2, ... fill the leaves in order."""
    wiring = _Wiring(delay)
    hosts = [f"h{i + 1}" for i in range(leaves * hosts_per_leaf)]
    for i, host in enumerate(hosts):
        wiring.attach(host, 0, f"leaf{i // hosts_per_leaf + 1}", host_rate)
    for leaf in range(1, leaves + 1):
        for spine in range(1, spines + 1):
            wiring.join(f"leaf{leaf}", f"spine{spine}", fabric_rate)
    switches = [Switch(f"leaf{i + 1}", 0) for i in range(leaves)]
    switches += [Switch(f"spine{i + 1}", 1) for i in range(spines)]
    return Topology("leaf-spine", tuple(map(Host, hosts)), tuple(switches), tuple(wiring.links))


def fat_tree(
    *,
    k: int,
    host_rate: BitRate = DEFAULT_RATE,
    fabric_rate: BitRate = DEFAULT_RATE,
    delay: Duration = DEFAULT_DELAY,
) -> Topology:
    """The k-ary fat tree of Al-Fares et al. (SIGCOMM 2008): k pods of k/2 edge and k/2 aggregation switches,
    (k/2)^2 cores, k^3/4 hosts. `edge2-1` is the first edge switch of pod 2; aggregation switch j of a pod is joined
    to the j-th group of k/2 cores.

    Raises:
        ValueError: k is odd or below 2.
    """
    if k < 2 or k % 2:
        raise ValueError("k of a fat tree is an even number, at least 2")
    half = k // 2
    wiring = _Wiring(delay)
    hosts = [f"h{i + 1}" for i in range(k * half * half)]
    for i, host in enumerate(hosts):
        pod, rest = divmod(i, half * half)
        wiring.attach(host, 0, f"edge{pod + 1}-{rest // half + 1}", host_rate)
    for pod in range(1, k + 1):
        for edge in range(1, half + 1):
            for agg in range(1, half + 1):
                wiring.join(f"edge{pod}-{edge}", f"agg{pod}-{agg}", fabric_rate)
    for pod in range(1, k + 1):
        for agg in range(1, half + 1):
            for core in range(1, half + 1):
                wiring.join(f"agg{pod}-{agg}", f"core{(agg - 1) * half + core}", fabric_rate)
    pairs = [(pod, i) for pod in range(1, k + 1) for i in range(1, half + 1)]
    switches = [Switch(f"edge{pod}-{i}", 0) for pod, i in pairs]
    switches += [Switch(f"agg{pod}-{i}", 1) for pod, i in pairs]
    switches += [Switch(f"core{i + 1}", 2) for i in range(half * half)]
    return Topology("fat-tree", tuple(map(Host, hosts)), tuple(switches), tuple(wiring.links))


def rail_optimized(
    *,
    nodes: int,
    gpus_per_node: int,
    leaves_per_rail: int = 1,
    spines: int,
    host_rate: BitRate = DEFAULT_RATE,
    fabric_rate: BitRate = DEFAULT_RATE,
    delay: Duration = DEFAULT_DELAY,
) -> Topology:
    """One NIC per GPU, and NIC i of every node on rail i: a rail is a group of leaf switches of its own, with spines
    between the rails. `n2.3` is NIC 3 of node 2, `rail3-1` the first leaf switch of rail 3. Nodes fill a rail's leaves in order.
    """
    wiring = _Wiring(delay)
    per_leaf = -(-nodes // leaves_per_rail)
    for node in range(nodes):
        for rail in range(gpus_per_node):
            wiring.attach(f"n{node + 1}", rail, f"rail{rail}-{node // per_leaf + 1}", host_rate)
    leaves = [f"rail{rail}-{leaf + 1}" for rail in range(gpus_per_node) for leaf in range(leaves_per_rail)]
    for leaf_name in leaves:
        for spine in range(1, spines + 1):
            wiring.join(leaf_name, f"spine{spine}", fabric_rate)
    switches = [Switch(name, 0) for name in leaves]
    switches += [Switch(f"spine{i + 1}", 1) for i in range(spines)]
    hosts = tuple(Host(f"n{i + 1}", gpus_per_node) for i in range(nodes))
    return Topology("rail-optimized", hosts, tuple(switches), tuple(wiring.links))
