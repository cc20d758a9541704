"""Deadlock freedom of lossless routes, as a pure function (Dally and Seitz, IEEE ToC 1987): where the channel dependency graph
has no cycle, no cycle of full buffers can wait for itself.

A channel is a directed link between switches, named by the port that sends. Channel a depends on b if a packet that came by a may
go on by b: then a full buffer at the end of b stops a.
"""

from collections.abc import Mapping

from controllers.graph import Graph, Port
from controllers.routing import Routes

Dependencies = Mapping[Port, frozenset[Port]]


def channel_dependencies(graph: Graph, routes: Routes) -> Dependencies:
    """Every channel that routes use, with the channels it depends on.

    End ports of one switch share their routes but for the last hop, so that one of them stands for all.
    """
    found: dict[Port, set[Port]] = {}
    for lid in {end.at[0]: end.lid for end in graph.end_ports}.values():
        following = {
            switch: [(switch, port) for port in lids[lid] if (switch, port) in graph.links]
            for switch, lids in routes.items()
            if lid in lids
        }
        for channels in following.values():
            for channel in channels:
                found.setdefault(channel, set()).update(following.get(graph.links[channel][0], ()))
    return {channel: frozenset(after) for channel, after in found.items()}


def find_cycle(dependencies: Dependencies) -> list[Port] | None:
    """The channels of a cycle in order, or `None`. Iterative depth-first search; each channel is entered once."""
    done: set[Port] = set()
    for start in sorted(dependencies):
        if start in done:
            continue
        on_path: dict[Port, None] = {start: None}
        stack = [iter(sorted(dependencies[start]))]
        while stack:
            channel = next(stack[-1], None)
            if channel is None:
                stack.pop()
                done.add(on_path.popitem()[0])
            elif channel in on_path:
                path = list(on_path)
                return path[path.index(channel) :]
            elif channel not in done:
                on_path[channel] = None
                stack.append(iter(sorted(dependencies.get(channel, ()))))
    return None


def tell(cycle: list[Port]) -> str:
    """A sentence that names a cycle port by port."""
    names = [f"{switch}:eth{port}" for switch, port in cycle]
    return f"routes allow a deadlock: {' -> '.join([*names, names[0]])}"


def warning(graph: Graph, routes: Routes) -> str | None:
    """What there is to say against these routes, if anything."""
    cycle = find_cycle(channel_dependencies(graph, routes))
    return tell(cycle) if cycle else None
