"""From routes to the entries of a switch, as plain values: an OpenFlow adapter sends them, the simulator sets them directly.

Table 0 is the gate: LLDP and ARP go to the controller, and, once the routes are verified, everything else to table 1.
Table 1 forwards by destination MAC address, which holds the LID: one entry for each LID, to a port or to a group of all
ports on shortest paths.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from controllers.graph import EndPort

GATE_TABLE, ROUTE_TABLE = 0, 1
GATE_PRIORITY, OPEN_PRIORITY, ROUTE_PRIORITY = 100, 1, 10
ETHERTYPE_LLDP, ETHERTYPE_ARP = 0x88CC, 0x0806


@dataclass(frozen=True)
class FlowRule:
    """A flow entry: exact-match fields by OXM name, and either an output, a group, the controller or the next table."""

    table: int
    priority: int
    match: tuple[tuple[str, int], ...]
    action: tuple[str, int] | None
    goto: int | None = None


@dataclass(frozen=True)
class GroupRule:
    """A select group over ports of equal weight."""

    group: int
    ports: tuple[int, ...]


@dataclass
class Changes:
    """What to change at one switch, in this order: groups to add, flows to add (replacing), flows and groups to remove."""

    groups: list[GroupRule] = field(default_factory=list)
    flows: list[FlowRule] = field(default_factory=list)
    removed_flows: list[FlowRule] = field(default_factory=list)
    removed_groups: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.groups) + len(self.flows) + len(self.removed_flows) + len(self.removed_groups)


def gate_rules() -> list[FlowRule]:
    """What a switch needs before it is opened: probes and ARP go to the controller, everything else is dropped."""
    return [
        FlowRule(GATE_TABLE, GATE_PRIORITY, (("eth_type", kind),), ("controller", 0)) for kind in (ETHERTYPE_LLDP, ETHERTYPE_ARP)
    ]


def open_rule() -> FlowRule:
    """Lets traffic through to the routes."""
    return FlowRule(GATE_TABLE, OPEN_PRIORITY, (), None, ROUTE_TABLE)


def mac_to_int(mac: str) -> int:
    return int(mac.replace(":", ""), 16)


class SwitchState:
    """The routes installed at one switch, and which group stands for which ports."""

    def __init__(self) -> None:
        self.routes: dict[int, tuple[int, ...]] = {}
        self.groups: dict[tuple[int, ...], int] = {}
        self._next_group = 1

    def update(self, routes: Mapping[int, tuple[int, ...]], macs: Mapping[int, str]) -> Changes:
        """Moves to new routes; returns the least that has to change."""
        changes = Changes()
        wanted = {ports for ports in routes.values() if len(ports) > 1}
        for ports in sorted(wanted - self.groups.keys()):
            self.groups[ports] = self._next_group
            changes.groups.append(GroupRule(self._next_group, ports))
            self._next_group += 1
        for lid, ports in sorted(routes.items()):
            if self.routes.get(lid) != ports:
                changes.flows.append(self._rule(macs[lid], ports))
        for lid in sorted(self.routes.keys() - routes.keys()):
            changes.removed_flows.append(self._rule(macs[lid], self.routes[lid]))
        for ports in sorted(self.groups.keys() - wanted):
            changes.removed_groups.append(self.groups.pop(ports))
        self.routes = dict(routes)
        return changes

    def _rule(self, mac: str, ports: tuple[int, ...]) -> FlowRule:
        action = ("output", ports[0]) if len(ports) == 1 else ("group", self.groups.get(ports, 0))
        return FlowRule(ROUTE_TABLE, ROUTE_PRIORITY, (("eth_dst", mac_to_int(mac)),), action)


def macs_of(end_ports: Iterable[EndPort]) -> dict[int, str]:
    return {e.lid: e.mac for e in end_ports}
