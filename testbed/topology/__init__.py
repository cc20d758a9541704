"""Topologies: one value that both engines, the controller and the plots use."""

from testbed.topology.build import fat_tree, leaf_spine, rail_optimized
from testbed.topology.model import AddressPlanError, Host, Link, Nic, PortRef, Switch, Topology

__all__ = [
    "AddressPlanError",
    "Host",
    "Link",
    "Nic",
    "PortRef",
    "Switch",
    "Topology",
    "fat_tree",
    "leaf_spine",
    "rail_optimized",
]
