"""What a control plane knows and does about routes, whoever carries it out: the subnet manager over OpenFlow, or the simulator
directly. Both call the same code, so that both engines have the same routes.
"""

from collections.abc import Callable, Mapping

from controllers.deadlock import warning
from controllers.graph import Graph, Port
from controllers.routing import Routes, check_loop_free, ecmp
from controllers.rules import Changes, SwitchState


class RouteError(Exception):
    """Routes are not loop-free; `problems` lists why."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class RoutePlanner:
    """The graph, which ports are down, and what each switch has installed."""

    def __init__(self, graph: Graph, macs: Mapping[int, str], warn: Callable[[str], None]) -> None:
        """`warn` is told of routes that allow a deadlock."""
        self.graph, self.macs, self._warn = graph, macs, warn
        self.states = {name: SwitchState() for name in sorted(graph.switches)}
        self.routes: Routes = {}
        """The routes of the last update."""
        self._down: set[Port] = set()

    def set_port(self, port: Port, up: bool) -> None:
        """A port went up or down. A cable that was found sound is taken for the same when its port comes back."""
        if up:
            self._down.discard(port)
        else:
            self._down.add(port)

    def update(self) -> dict[str, Changes]:
        """Computes routes over what is up; returns what has to change at each switch for them, if anything has.

        Raises:
            RouteError: they are not loop-free; nothing counts as changed then.
        """
        graph = self.graph.without(self._down)
        self.routes = ecmp(graph)
        if problems := check_loop_free(graph, self.routes):
            raise RouteError(problems)
        if text := warning(graph, self.routes):
            self._warn(text)
        changes = {name: state.update(self.routes.get(name, {}), self.macs) for name, state in self.states.items()}
        return {name: c for name, c in changes.items() if len(c)}
