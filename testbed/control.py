"""What the engines need of a control plane, and the one that needs no controller process: the subnet manager's pure
functions called directly."""

from collections.abc import Callable
from typing import Protocol

from controllers.deadlock import warning
from controllers.graph import Declared, Graph, Port
from controllers.routing import Routes, check_loop_free, ecmp
from controllers.rules import Changes, SwitchState, gate_rules, macs_of, open_rule
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


class RoutePlanner:
    """The subnet manager's knowledge: the graph, which ports are down, and what each switch has installed."""

    def __init__(self, declared: Declared, warn: Callable[[str], None]) -> None:
        self.graph: Graph = declared.graph()
        self._warn = warn
        self.macs = macs_of(declared.end_ports)
        self.states = {name: SwitchState() for name in declared.switches.values()}
        self.down: set[Port] = set()

    def plan(self) -> tuple[Graph, Routes]:
        """Routes over what is up.

        Raises:
            ControlError: they are not loop-free.
        """
        graph = self.graph.without(self.down)
        routes = ecmp(graph)
        if problems := check_loop_free(graph, routes):
            raise ControlError(problems)
        if text := warning(graph, routes):
            self._warn(text)
        return graph, routes

    def update(self) -> dict[str, Changes]:
        """What has to change at each switch to have these routes; switches without changes are left out."""
        _, routes = self.plan()
        changes = {name: state.update(routes.get(name, {}), self.macs) for name, state in self.states.items()}
        return {name: c for name, c in changes.items() if len(c)}

    def set_port(self, port: Port, up: bool) -> None:
        if up:
            self.down.discard(port)
        else:
            self.down.add(port)


class DirectControl:
    """The control plane of the `simulate` engine."""

    def __init__(
        self, built: BuiltFabric, declared: Declared, reaction_ps: int, warn: Callable[[str], None] = lambda line: None
    ) -> None:
        self.built = built
        self.planner = RoutePlanner(declared, warn)
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
        self._apply(self.planner.update())
        for name in self.planner.states:
            apply_changes(self._dataplane, self.built.node_of[name], Changes(flows=[open_rule()]), self._ids)

    def _apply(self, changes: dict[str, Changes]) -> None:
        for name, change in changes.items():
            apply_changes(self._dataplane, self.built.node_of[name], change, self._ids)

    def port_changed(self, changes: list[PortChange]) -> None:
        for node, port, up in changes:
            self.planner.set_port((self._names[node], port + 1), up)
        token = len(self._staged)
        self._staged[token] = self.planner.update()
        self._dataplane.schedule_break(self._dataplane.now_ps + self.reaction_ps, token)

    def take_effect(self, token: int) -> None:
        changes = self._staged[token]
        self._apply(changes)
        for name, change in changes.items():
            self._dataplane.note_reroute(self.built.node_of[name], len(change))

    def poll(self) -> None:
        """Nothing comes in from outside."""
