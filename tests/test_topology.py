import networkx as nx
import pytest

from testbed.topology import AddressPlanError, Host, PortRef, Switch, Topology, fat_tree, leaf_spine, rail_optimized

TOPOLOGIES = {
    "fat tree k=4": fat_tree(k=4),
    "fat tree k=8": fat_tree(k=8),
    "leaf-spine": leaf_spine(spines=3, leaves=5, hosts_per_leaf=7),
    "rails": rail_optimized(nodes=6, gpus_per_node=8, leaves_per_rail=2, spines=4),
}


@pytest.mark.parametrize("k", [2, 4, 8, 16])
def test_fat_tree_has_the_published_counts(k):
    """Al-Fares et al., SIGCOMM 2008: k^3/4 hosts, 5k^2/4 switches, every port of every switch in use."""
    topology = fat_tree(k=k)
    assert len(topology.hosts) == k**3 // 4
    assert len(topology.switches) == 5 * k**2 // 4
    assert len(topology.links) == 3 * k**3 // 4
    assert {topology.switch_ports(s.name) for s in topology.switches} == {k}


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_nic_reaches_every_other(name):
    topology = TOPOLOGIES[name]
    graph = topology.graph
    assert nx.is_connected(nx.Graph(graph))
    assert len({nic.mac for nic in topology.nics}) == len({nic.ip for nic in topology.nics}) == len(topology.nics)
    for nic in topology.nics:
        assert topology.peer(nic.ref).node in topology.switch_names
        assert int(nic.mac.replace(":", ""), 16) & 0xFFFF == nic.lid


def test_full_bisection_paths_between_pods():
    """Two hosts of different pods have (k/2)^2 shortest paths."""
    topology = fat_tree(k=4)
    paths = list(nx.all_shortest_paths(nx.Graph(topology.graph), "h1", "h16"))
    assert len(paths) == 4
    assert {len(path) for path in paths} == {7}


def test_rails_keep_to_themselves():
    topology = TOPOLOGIES["rails"]
    for nic in topology.nics:
        assert topology.peer(nic.ref).node.startswith(f"rail{nic.index}-")


@pytest.mark.parametrize(
    "topology",
    [*TOPOLOGIES.values(), fat_tree(k=32), rail_optimized(nodes=1000, gpus_per_node=8, leaves_per_rail=32, spines=64)],
    ids=lambda t: f"{t.kind}-{len(t.switches)}",
)
def test_interface_names_fit_the_kernel_and_are_unique(topology):
    ends = [end for end in topology.link_at if end.node in topology.switch_names]
    names = [topology.interface(end) for end in ends]
    assert max(map(len, names)) <= 15
    assert len(set(names)) == len(names)


def test_long_names_are_shortened():
    switch = Switch("a-switch-with-a-long-name", 0)
    topology = Topology("custom", (), (switch,), ())
    assert topology.interface(PortRef(switch.name, 3)) == "sw1-eth3"


def test_the_address_plan_has_an_end():
    with pytest.raises(AddressPlanError, match="49151 unicast LIDs"):
        Topology("custom", (Host("h", 49_152),), (), ())


def test_links_are_found_by_either_name_and_by_port():
    topology = fat_tree(k=4)
    (link,) = topology.links_named("agg1-1-core1")
    assert topology.links_named("core1-agg1-1") == [link]
    assert topology.links_named(str(link.a)) == [link]
    assert topology.links_named("core1-core2") == []
