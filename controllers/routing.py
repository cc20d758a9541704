"""Routing engines: pure functions of the graph. So far one: all shortest paths, as groups (ECMP)."""

from collections import deque
from collections.abc import Mapping

from controllers.graph import Graph

Routes = Mapping[str, Mapping[int, tuple[int, ...]]]
"""For each switch and LID the ports on which to go on, in ascending order; a LID that cannot be reached is left out."""


def distances(graph: Graph, target: str) -> dict[str, int]:
    """Hops from every switch that can reach `target` to it."""
    hops = {target: 0}
    queue = deque([target])
    while queue:
        here = queue.popleft()
        for _, peer in graph.neighbours[here]:
            if peer not in hops:
                hops[peer] = hops[here] + 1
                queue.append(peer)
    return hops


def ecmp(graph: Graph) -> Routes:
    """All shortest paths from every switch to every end port.

    Cost: one breadth-first search for each switch that has end ports.
    """
    routes: dict[str, dict[int, tuple[int, ...]]] = {name: {} for name in graph.switches}
    by_switch: dict[str, list[tuple[int, int]]] = {}
    for end in graph.end_ports:
        by_switch.setdefault(end.at[0], []).append((end.lid, end.at[1]))
    for target, ends in by_switch.items():
        for lid, port in ends:
            routes[target][lid] = (port,)
        hops = distances(graph, target)
        for switch, distance in hops.items():
            if switch == target:
                continue
            ports = tuple(port for port, peer in graph.neighbours[switch] if hops.get(peer) == distance - 1)
            routes[switch].update((lid, ports) for lid, _ in ends)
    return routes


def check_loop_free(graph: Graph, routes: Routes) -> list[str]:
    """Follows every port of every route; returns what is wrong: loops, dead ends, wrong ends. Empty means verified.

    For each LID the walk colours switches as a depth-first search does, so that each is followed once.
    """
    problems: list[str] = []
    for end in graph.end_ports:
        done: set[str] = set()
        for start in sorted(graph.switches):
            if end.lid in routes.get(start, {}):
                problems += _follow(graph, routes, end.lid, end.at, start, done)
    return problems


def _follow(graph: Graph, routes: Routes, lid: int, goal: tuple[str, int], start: str, done: set[str]) -> list[str]:
    """Walks all choices from `start`, iteratively; `done` holds the switches from which every choice is sound."""
    if start in done:
        return []
    problems: list[str] = []
    on_path: dict[str, None] = {start: None}
    stack = [(start, iter(routes[start].get(lid, ())))]
    while stack:
        here, ports = stack[-1]
        port = next(ports, None)
        if port is None:
            done.add(here)
            del on_path[here]
            stack.pop()
            continue
        if (here, port) == goal:
            continue
        following = graph.links.get((here, port))
        if following is None:
            problems.append(f"LID {lid}: {here} sends it out of port {port}, where it does not live and no switch is")
            continue
        peer = following[0]
        if peer in on_path:
            names = list(on_path)
            loop = " -> ".join([*names[names.index(peer) :], peer])
            problems.append(f"LID {lid}: loop {loop}")
        elif peer not in done:
            if lid not in routes.get(peer, {}):
                problems.append(f"LID {lid}: {here} sends it to {peer}, which has no route for it")
                continue
            on_path[peer] = None
            stack.append((peer, iter(routes[peer][lid])))
    return problems
