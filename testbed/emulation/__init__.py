"""The `emulate` engine: Mininet's hosts and veth links, every frame a real packet."""

from testbed.emulation.nodes import FabricLink, FabricSwitch, RdmaHost
from testbed.emulation.runtime import LiveRuntime

__all__ = ["FabricLink", "FabricSwitch", "LiveRuntime", "RdmaHost"]
