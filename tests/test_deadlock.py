"""Channel dependencies against networkx, and where cycles come from."""

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.deadlock import channel_dependencies, find_cycle, tell
from controllers.graph import EndPort, Graph
from controllers.routing import ecmp
from testbed.fabric import declared
from testbed.topology import fat_tree, leaf_spine, rail_optimized


def witness(dependencies) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(dependencies)
    graph.add_edges_from((a, b) for a, after in dependencies.items() for b in after)
    return graph


def ring(n: int) -> Graph:
    """n switches in a ring, a host on each: port 1 is the host's, 2 leads to the next switch, 3 to the one before."""
    names = [f"s{i}" for i in range(n)]
    links = {(names[i], 2): (names[(i + 1) % n], 3) for i in range(n)}
    links |= {b: a for a, b in links.items()}
    ends = tuple(EndPort(f"h{i}", i + 1, f"02:00:00:00:00:{i + 1:02x}", f"10.0.0.{i + 1}", (names[i], 1)) for i in range(n))
    return Graph(frozenset(names), links, ends)


@pytest.mark.parametrize(
    "topology",
    [
        fat_tree(k=4),
        fat_tree(k=8),
        leaf_spine(spines=2, leaves=4, hosts_per_leaf=2),
        rail_optimized(nodes=4, gpus_per_node=4, spines=2),
    ],
    ids=lambda t: f"{t.kind}-{len(t.switches)}",
)
def test_shortest_paths_of_whole_fabrics_are_free_of_cycles(topology):
    graph = declared(topology).graph()
    dependencies = channel_dependencies(graph, ecmp(graph))
    assert find_cycle(dependencies) is None
    assert nx.is_directed_acyclic_graph(witness(dependencies))


def test_a_ring_has_a_cycle_and_it_is_named():
    graph = ring(5)
    dependencies = channel_dependencies(graph, ecmp(graph))
    cycle = find_cycle(dependencies)
    assert cycle is not None
    assert sorted(cycle) in ([(f"s{i}", 2) for i in range(5)], [(f"s{i}", 3) for i in range(5)])
    for a, b in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        assert b in dependencies[a]
    assert tell(cycle).startswith("routes allow a deadlock: s")


@settings(deadline=None, max_examples=60)
@given(st.sets(st.integers(0, 47), max_size=14))
def test_networkx_agrees_with_links_missing(gone):
    graph = declared(fat_tree(k=4)).graph()
    ports = sorted(graph.links)
    graph = graph.without(ports[i % len(ports)] for i in gone)
    dependencies = channel_dependencies(graph, ecmp(graph))
    assert (find_cycle(dependencies) is None) == nx.is_directed_acyclic_graph(witness(dependencies))


def test_missing_links_can_make_shortest_paths_cyclic():
    """Detours go down and up again; enough of them close a cycle. This is why operators restrict them."""
    graph = declared(fat_tree(k=4)).graph()
    cut = [
        ("agg1-1", 3),
        ("agg1-1", 4),
        ("agg2-2", 3),
        ("agg2-2", 4),
        ("edge1-1", 3),
        ("edge2-1", 3),
        ("edge3-1", 4),
        ("agg3-1", 3),
    ]
    found = [find_cycle(channel_dependencies(g, ecmp(g))) for i in range(len(cut)) if (g := graph.without(cut[: i + 1]))]
    assert any(found), "none of these closed a cycle"
