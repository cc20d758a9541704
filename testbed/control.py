"""What the engines need of a control plane, and the one that needs no controller process: the subnet manager's pure
functions called directly."""

from collections.abc import Callable
from typing import Protocol

from controllers.graph import Declared
from controllers.planner import RouteError, RoutePlanner
from controllers.rules import Changes, gate_rules, macs_of, open_rule
from testbed._dataplane import Fabric
from testbed.fabric import BuiltFabric, FlowIds, apply_changes

PortChange = tuple[int, int, bool]
"""Node number, port index from 0, up."""


class ControlError(Exception):
    """The fabric cannot be opened, or a controller did not do its part. `problems` lists why."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class ControlPlane(Protocol):
    """Opens the fabric, and reacts to ports that go down and up.

    An event at fabric time t takes effect at t + reaction: `port_changed` prepares it and sets a breakpoint, `take_effect`
    puts it in force when the dataplane stops there.
    """

    def open_fabric(self) -> None: ...

    def port_changed(self, changes: list[PortChange]) -> None: ...

    def take_effect(self, token: int) -> None: ...

    def poll(self) -> None: ...


class DirectControl:
    """The control plane of the `simulate` engine."""

    def __init__(
        self, built: BuiltFabric, declared: Declared, reaction_ps: int, warn: Callable[[str], None] = lambda line: None
    ) -> None:
        self.built = built
        self.planner = RoutePlanner(declared.graph(), macs_of(declared.end_ports), warn)
        self.reaction_ps = reaction_ps
        self._ids = FlowIds()
        self._staged: dict[int, dict[str, Changes]] = {}
        self._names = {node: name for name, node in built.node_of.items()}

    @property
    def _dataplane(self) -> Fabric:
        return self.built.dataplane

    def open_fabric(self) -> None:
        for name in self.planner.states:
            apply_changes(self._dataplane, self.built.node_of[name], Changes(flows=gate_rules()), self._ids)
        self._apply(self._update())
        for name in self.planner.states:
            apply_changes(self._dataplane, self.built.node_of[name], Changes(flows=[open_rule()]), self._ids)

    def _update(self) -> dict[str, Changes]:
        try:
            return self.planner.update()
        except RouteError as error:
            raise ControlError(error.problems) from None

    def _apply(self, changes: dict[str, Changes]) -> None:
        for name, change in changes.items():
            apply_changes(self._dataplane, self.built.node_of[name], change, self._ids)

    def port_changed(self, changes: list[PortChange]) -> None:
        for node, port, up in changes:
            self.planner.set_port((self._names[node], port + 1), up)
        token = len(self._staged)
        self._staged[token] = self._update()
        self._dataplane.schedule_break(self._dataplane.now_ps + self.reaction_ps, token)

    def take_effect(self, token: int) -> None:
        changes = self._staged[token]
        self._apply(changes)
        # By node number, as events of one time go everywhere.
        for node, count in sorted((self.built.node_of[name], len(change)) for name, change in changes.items()):
            self._dataplane.note_reroute(node, count)

    def poll(self) -> None:
        """Nothing comes in from outside."""
