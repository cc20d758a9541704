"""The switch side of OpenFlow 1.3: each switch of the fabric is a datapath that any Ryu or os-ken controller can drive."""

from testbed.openflow.agent import Agent
from testbed.openflow.connection import Connection

__all__ = ["Agent", "Connection"]
