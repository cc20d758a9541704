"""The fabric as a subnet manager sees it: switches, their links, and end ports with LIDs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Port = tuple[str, int]
"""A switch's name and a port number, from 1."""


@dataclass(frozen=True)
class EndPort:
    """A NIC port: its addresses, and the switch port it hangs on."""

    name: str
    lid: int
    mac: str
    ip: str
    at: Port


@dataclass(frozen=True)
class Graph:
    """Switches, links between them in both directions, and end ports. Order carries no meaning."""

    switches: frozenset[str]
    links: Mapping[Port, Port]
    end_ports: tuple[EndPort, ...]
    neighbours: Mapping[str, tuple[tuple[int, str], ...]] = field(init=False)

    def __post_init__(self) -> None:
        found: dict[str, list[tuple[int, str]]] = {name: [] for name in self.switches}
        for (switch, port), (peer, _) in self.links.items():
            found[switch].append((port, peer))
        object.__setattr__(self, "neighbours", {name: tuple(sorted(ports)) for name, ports in found.items()})

    def without(self, ports: Iterable[Port]) -> "Graph":
        """The graph without the links at these ports (and the end ports on them)."""
        gone = set(ports)
        gone |= {self.links[p] for p in gone if p in self.links}
        return Graph(
            self.switches,
            {a: b for a, b in self.links.items() if a not in gone},
            tuple(e for e in self.end_ports if e.at not in gone),
        )


@dataclass(frozen=True)
class Declared:
    """A topology as it was declared: switches by datapath id, and every cable."""

    switches: Mapping[int, str]
    links: tuple[tuple[Port, Port], ...]
    end_ports: tuple[EndPort, ...]

    def to_json(self) -> dict[str, object]:
        """A value that `json.dump` takes."""
        return {
            "switches": {str(dpid): name for dpid, name in self.switches.items()},
            "links": [[list(a), list(b)] for a, b in self.links],
            "end_ports": [[e.name, e.lid, e.mac, e.ip, list(e.at)] for e in self.end_ports],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> "Declared":
        """Reads what `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        switches: Mapping[str, str] = data["switches"]  # type: ignore[assignment]
        links: list[list[list[object]]] = data["links"]  # type: ignore[assignment]
        ends: list[list[object]] = data["end_ports"]  # type: ignore[assignment]

        def port(value: object) -> Port:
            assert isinstance(value, list)
            return str(value[0]), int(value[1])

        return cls(
            {int(dpid): name for dpid, name in switches.items()},
            tuple((port(a), port(b)) for a, b in links),
            tuple(EndPort(str(n), int(lid), str(mac), str(ip), port(at)) for n, lid, mac, ip, at in ends),  # type: ignore[call-overload]
        )

    def graph(self) -> Graph:
        """The graph of a fabric wired just as declared."""
        links = dict(self.links) | {b: a for a, b in self.links}
        return Graph(frozenset(self.switches.values()), links, self.end_ports)


def compare(declared: Declared, found_links: Mapping[Port, Port], found_ends: Mapping[Port, str]) -> list[str]:
    """What is wired otherwise than declared, a sentence for each cable: missing, crossed or extra.

    `found_links` maps a switch port to the one its probe came in by; `found_ends` maps a switch port to the MAC address that
    answered there.
    """
    problems: list[str] = []
    wanted = dict(declared.links) | {b: a for a, b in declared.links}

    def name(port: Port) -> str:
        return f"{port[0]}:eth{port[1]}"

    for a, b in declared.links:
        got = found_links.get(a), found_links.get(b)
        if got == (b, a):
            continue
        crossed = [f"{name(p)} is joined to {name(q)}" for p, q in zip((a, b), got, strict=True) if q not in (None, a, b)]
        if crossed:
            problems.append(f"crossed: {name(a)} - {name(b)} was declared, but {' and '.join(crossed)}")
        else:
            problems.append(f"missing: {name(a)} - {name(b)} carries no probe in {_direction(a, b, found_links)}")
    problems += [
        f"extra: {name(a)} - {name(b)} was not declared"
        for a, b in sorted(found_links.items())
        if a not in wanted and b not in wanted and a < b
    ]
    macs = {e.mac: e for e in declared.end_ports}
    for end in declared.end_ports:
        mac = found_ends.get(end.at)
        if mac is None:
            problems.append(f"missing: {end.name} does not answer at {name(end.at)}")
        elif mac != end.mac:
            other = macs[mac].name if mac in macs else mac
            problems.append(f"crossed: {other} answers at {name(end.at)}, where {end.name} was declared")
    return problems


def _direction(a: Port, b: Port, found: Mapping[Port, Port]) -> str:
    if a not in found and b not in found:
        return "either direction"
    return "one direction"
