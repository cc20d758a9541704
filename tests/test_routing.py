"""Routing against networkx; verification and comparison against faults put in on purpose."""

from dataclasses import replace

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.graph import Graph, compare
from controllers.lids import LidError, assign
from controllers.routing import check_loop_free, distances, ecmp
from controllers.rules import SwitchState
from testbed.fabric import declared
from testbed.topology import fat_tree, leaf_spine, rail_optimized

TOPOLOGIES = {
    "fat-tree": fat_tree(k=4),
    "leaf-spine": leaf_spine(spines=2, leaves=3, hosts_per_leaf=2),
    "rails": rail_optimized(nodes=3, gpus_per_node=2, spines=2),
}


def as_networkx(graph: Graph) -> nx.Graph:
    found = nx.Graph()
    found.add_nodes_from(graph.switches)
    found.add_edges_from((a[0], b[0]) for a, b in graph.links.items())
    return found


def assert_all_shortest_paths(graph: Graph) -> None:
    witness = as_networkx(graph)
    routes = ecmp(graph)
    assert check_loop_free(graph, routes) == []
    for end in graph.end_ports:
        lengths = nx.single_source_shortest_path_length(witness, end.at[0])
        assert distances(graph, end.at[0]) == lengths
        for switch in graph.switches:
            if switch not in lengths:
                assert end.lid not in routes[switch]
                continue
            if switch == end.at[0]:
                assert routes[switch][end.lid] == (end.at[1],)
                continue
            nearer = tuple(
                sorted(port for (s, port), (peer, _) in graph.links.items() if s == switch and lengths[peer] < lengths[switch])
            )
            assert routes[switch][end.lid] == nearer


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_ecmp_has_every_shortest_path(name):
    assert_all_shortest_paths(declared(TOPOLOGIES[name]).graph())


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(sorted(TOPOLOGIES)), st.sets(st.integers(0, 31), max_size=12))
def test_ecmp_with_links_missing(name, gone):
    graph = declared(TOPOLOGIES[name]).graph()
    ports = sorted(graph.links)
    assert_all_shortest_paths(graph.without(ports[i % len(ports)] for i in gone))


def test_lids_are_those_of_the_macs_and_the_same_every_time():
    wanted = declared(TOPOLOGIES["rails"])
    lids = assign(wanted.end_ports, wanted.switches.values())
    assert lids == assign(reversed(wanted.end_ports), reversed(list(wanted.switches.values())))
    assert len(set(lids.values())) == len(wanted.end_ports) + len(wanted.switches)
    assert all(lids[e.name] == e.lid for e in wanted.end_ports)
    twice = (*wanted.end_ports, replace(wanted.end_ports[0], name="again"))
    with pytest.raises(LidError, match=r"again and n1\.0 both hold LID 1"):
        assign(twice, [])
    with pytest.raises(LidError, match="no unicast LID"):
        assign([replace(wanted.end_ports[0], mac="02:00:00:00:ff:ff")], [])


def test_a_loop_is_named():
    graph = declared(TOPOLOGIES["leaf-spine"]).graph()
    routes = {switch: dict(lids) for switch, lids in ecmp(graph).items()}
    # spine1 sends LID 1 (on leaf1) to leaf2, which sends it back up.
    to_leaf2 = next(port for (s, port), (peer, _) in graph.links.items() if s == "spine1" and peer == "leaf2")
    routes["spine1"][1] = (to_leaf2,)
    problems = check_loop_free(graph, routes)
    assert any("loop" in p and "spine1" in p and "leaf2" in p for p in problems)


def test_dead_ends_are_named():
    graph = declared(TOPOLOGIES["leaf-spine"]).graph()
    routes = {switch: dict(lids) for switch, lids in ecmp(graph).items()}
    del routes["spine1"][1]
    routes["leaf1"][2] = (99,)
    problems = check_loop_free(graph, routes)
    assert any("spine1, which has no route" in p for p in problems)
    assert any("out of port 99" in p for p in problems)


def test_cables_are_compared_and_each_fault_is_named():
    wanted = declared(TOPOLOGIES["leaf-spine"])
    graph = wanted.graph()
    links = dict(graph.links)
    ends = {e.at: e.mac for e in wanted.end_ports}
    assert compare(wanted, links, ends) == []

    def without(*ports):
        return {a: b for a, b in links.items() if a not in ports and b not in ports}

    (first, first_peer), (second, second_peer) = list(wanted.links)[:2]
    missing = compare(wanted, without(first), ends)
    assert missing == [
        f"missing: {first[0]}:eth{first[1]} - {first_peer[0]}:eth{first_peer[1]} carries no probe in either direction"
    ]
    crossed = without(first, second)
    for a, b in ((first, second_peer), (second, first_peer)):
        crossed |= {a: b, b: a}
    problems = compare(wanted, crossed, ends)
    assert len(problems) == 2
    assert all(p.startswith("crossed: ") for p in problems)
    one_way = {a: b for a, b in links.items() if a != first}
    assert "one direction" in compare(wanted, one_way, ends)[0]
    a, b = wanted.end_ports[:2]
    swapped = ends | {a.at: b.mac, b.at: a.mac}
    assert [p.split(":")[0] for p in compare(wanted, links, swapped)] == ["crossed", "crossed"]
    del swapped[a.at]
    assert f"missing: {a.name} does not answer" in compare(wanted, links, swapped)[0]


@given(
    st.lists(
        st.dictionaries(
            st.integers(1, 6), st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True).map(lambda p: tuple(sorted(p)))
        ),
        max_size=6,
    )
)
def test_changes_lead_from_any_routes_to_any_others(steps):
    """The changes, put into a plain model of a switch, give the routes asked for; no group is used before it is there."""
    macs = {lid: f"02:00:00:00:00:{lid:02x}" for lid in range(1, 7)}
    state = SwitchState()
    groups: dict[int, tuple[int, ...]] = {}
    table: dict[int, tuple[str, int]] = {}
    for routes in steps:
        changes = state.update(routes, macs)
        for group in changes.groups:
            assert group.group not in groups
            groups[group.group] = group.ports
        for rule in changes.flows:
            assert rule.action is not None
            assert rule.action[0] == "output" or rule.action[1] in groups
            table[rule.match[0][1] & 0xFF] = rule.action
        for rule in changes.removed_flows:
            del table[rule.match[0][1] & 0xFF]
        for group_id in changes.removed_groups:
            assert ("group", group_id) not in table.values()
            del groups[group_id]
        assert {lid: groups[v] if kind == "group" else (v,) for lid, (kind, v) in table.items()} == routes
        assert len(state.update(routes, macs)) == 0
