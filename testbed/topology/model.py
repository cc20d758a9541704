"""What a topology is: hosts with NICs, switches, links, and the addresses that go with them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address

import networkx as nx

from testbed.units import BitRate, Duration

LID_UNICAST_MAX = 0xBFFF
"""Highest unicast LID (IBTA specification volume 1, section 4.1.3)."""
INTERFACE_NAME_MAX = 15
"""Longest interface name of the Linux kernel (IFNAMSIZ less the terminating zero)."""
_NETWORK = int(IPv4Address("10.0.0.0"))


class AddressPlanError(ValueError):
    """More NICs and switches than there are unicast LIDs."""


@dataclass(frozen=True, order=True)
class PortRef:
    """A port: the node's name, and its number there (switches from 1, hosts' NICs from 0)."""

    node: str
    port: int

    def __str__(self) -> str:
        return f"{self.node}:eth{self.port}"


@dataclass(frozen=True)
class Switch:
    """A switch; `tier` 0 is where hosts are."""

    name: str
    tier: int


@dataclass(frozen=True)
class Host:
    """A host with so many NICs."""

    name: str
    nics: int = 1


@dataclass(frozen=True)
class Link:
    """A full-duplex link; the delay is one way."""

    a: PortRef
    b: PortRef
    rate: BitRate
    delay: Duration

    @property
    def name(self) -> str:
        return f"{self.a.node}-{self.b.node}"


@dataclass(frozen=True)
class Nic:
    """A NIC with the addresses that the plan gives it: number n has LID n, MAC 02:00:00:00 + n, IP 10.0.0.0 + n."""

    name: str
    host: str
    index: int
    lid: int

    @property
    def mac(self) -> str:
        return f"02:00:00:00:{self.lid >> 8:02x}:{self.lid & 255:02x}"

    @property
    def ip(self) -> str:
        return str(IPv4Address(_NETWORK + self.lid))

    @property
    def ref(self) -> PortRef:
        return PortRef(self.host, self.index)


@dataclass(frozen=True)
class Topology:
    """A fabric. The order of hosts, switches and links is part of the value: nodes are numbered by it."""

    kind: str
    hosts: tuple[Host, ...]
    switches: tuple[Switch, ...]
    links: tuple[Link, ...]

    def __post_init__(self) -> None:
        names = [h.name for h in self.hosts] + [s.name for s in self.switches]
        if len(set(names)) != len(names):
            raise ValueError("two nodes have one name")
        total = sum(h.nics for h in self.hosts) + len(self.switches)
        if total > LID_UNICAST_MAX:
            raise AddressPlanError(f"{total} NICs and switches, but the address plan has {LID_UNICAST_MAX} unicast LIDs")
        ends = [end for link in self.links for end in (link.a, link.b)]
        if len(set(ends)) != len(ends):
            raise ValueError("two links share a port")

    @cached_property
    def nics(self) -> tuple[Nic, ...]:
        """Every NIC, numbered by host and index."""
        found: list[Nic] = []
        for host in self.hosts:
            for index in range(host.nics):
                name = host.name if host.nics == 1 else f"{host.name}.{index}"
                found.append(Nic(name, host.name, index, len(found) + 1))
        return tuple(found)

    @cached_property
    def nic_by_name(self) -> dict[str, Nic]:
        return {nic.name: nic for nic in self.nics}

    @cached_property
    def link_at(self) -> dict[PortRef, Link]:
        return {end: link for link in self.links for end in (link.a, link.b)}

    @cached_property
    def switch_names(self) -> frozenset[str]:
        return frozenset(s.name for s in self.switches)

    def peer(self, ref: PortRef) -> PortRef:
        """The port at the other end of the link at `ref`.

        Raises:
            KeyError: no link is there.
        """
        link = self.link_at[ref]
        return link.b if link.a == ref else link.a

    def switch_ports(self, name: str) -> int:
        """Highest port number in use of a switch."""
        return self._port_counts.get(name, 0)

    @cached_property
    def _port_counts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for end in self.link_at:
            if end.node in self.switch_names:
                counts[end.node] = max(counts.get(end.node, 0), end.port)
        return counts

    def links_named(self, name: str) -> list[Link]:
        """Links called `A-B` or `B-A`, or the one at a port written `NODE:ethN`."""
        return self._links_by_name.get(name, [])

    @cached_property
    def _links_by_name(self) -> dict[str, list[Link]]:
        index: dict[str, list[Link]] = {}
        for link in self.links:
            names = {f"{a}-{b}" for a, b in self._name_pairs(link)} | {str(link.a), str(link.b)}
            for name in names:
                index.setdefault(name, []).append(link)
        return index

    def _name_pairs(self, link: Link) -> Iterator[tuple[str, str]]:
        names = [self._end_names(link.a), self._end_names(link.b)]
        for a in names[0]:
            for b in names[1]:
                yield a, b
                yield b, a

    def _end_names(self, end: PortRef) -> list[str]:
        nics = [n.name for n in self.nics_of(end.node) if n.index == end.port]
        return nics or [end.node]

    def nics_of(self, host: str) -> list[Nic]:
        return self._nics_by_host.get(host, [])

    @cached_property
    def _nics_by_host(self) -> dict[str, list[Nic]]:
        index: dict[str, list[Nic]] = {}
        for nic in self.nics:
            index.setdefault(nic.host, []).append(nic)
        return index

    @cached_property
    def graph(self) -> nx.MultiGraph:
        """Nodes by name with `kind` and `tier`, links with their value under `link`."""
        graph = nx.MultiGraph()
        graph.add_nodes_from((h.name, {"kind": "host", "tier": -1}) for h in self.hosts)
        graph.add_nodes_from((s.name, {"kind": "switch", "tier": s.tier}) for s in self.switches)
        graph.add_edges_from((link.a.node, link.b.node, {"link": link}) for link in self.links)
        return graph

    def interface(self, ref: PortRef) -> str:
        """Kernel name of a port: readable where it fits into the kernel's 15 characters, else by the switch's number."""
        if ref.node not in self.switch_names:
            return f"eth{ref.port}"
        name = f"{ref.node}-eth{ref.port}"
        if len(name) <= INTERFACE_NAME_MAX:
            return name
        return f"sw{self._switch_numbers[ref.node]:x}-eth{ref.port}"

    @cached_property
    def _switch_numbers(self) -> dict[str, int]:
        return {s.name: i + 1 for i, s in enumerate(self.switches)}
