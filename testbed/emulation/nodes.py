"""Mininet classes: ordinary nodes and links that a Mininet script of one's own can use too.

from mininet.net import Mininet
from mininet.node import RemoteController
from testbed.emulation import FabricLink, FabricSwitch, RdmaHost

net = Mininet(topo, host=RdmaHost, switch=FabricSwitch, link=FabricLink,
              controller=lambda name: RemoteController(name, ip="127.0.0.1", port=6653))
"""

import socket
from typing import Any, ClassVar

from mininet.link import Intf, Link
from mininet.node import Host, Switch

from testbed.emulation import network
from testbed.processes import die_with_parent
from testbed.topology.build import DEFAULT_DELAY, DEFAULT_RATE
from testbed.units import BitRate, Duration

DEFAULT_PREFIX_LENGTH = 8


class _FabricNode:
    """What hosts and switches share: a shell that dies with this process, so that its namespace goes with it."""

    pid: int

    def _popen(self, cmd: list[str], **params: Any) -> Any:
        params.setdefault("preexec_fn", die_with_parent)
        return super()._popen(cmd, **params)  # type: ignore[misc]


class RdmaHost(_FabricNode, Host):
    """A host with RDMA NICs: its interfaces belong to the host's own stack and to the dataplane's NICs at once."""

    def __init__(self, name: str, addresses: tuple[network.Address, ...] = (), **params: Any) -> None:
        """`addresses` go to its interfaces; without them Mininet's `ip` goes to the first."""
        self.addresses = addresses
        self._sink: socket.socket | None = None
        super().__init__(name, inNamespace=True, **params)

    def config(self, mac: str | None = None, ip: str | None = None, **params: Any) -> dict[str, Any]:
        """Brings the interfaces up; replaces Mininet's own, which runs several commands for each."""
        network.silence_ipv6(self.pid)
        names = [intf.name for intf in self.intfs.values()]
        for i, intf in enumerate(self.intfs.values()):
            if intf.mac is None or (mac and i == 0):
                intf.mac = network.mac_of(self.pid, intf.name, mac if i == 0 else None)
        network.bring_up(self.pid, names)
        addresses = self.addresses
        if not addresses and ip and names:
            address, _, length = ip.partition("/")
            addresses = (network.Address(names[0], address, int(length or DEFAULT_PREFIX_LENGTH)),)
        network.add_addresses(self.pid, addresses)
        for given in addresses:
            intf = self.nameToIntf[given.interface]
            intf.ip, intf.prefixLen = given.ip, str(given.prefix_length)
        self._sink = network.roce_sink(self.pid)
        return {}

    def terminate(self) -> None:
        if self._sink is not None:
            self._sink.close()
            self._sink = None
        super().terminate()


class FabricIntf(Intf):
    """An interface whose set-up is the node's business."""

    def config(self, **params: Any) -> dict[str, Any]:
        return {}


class FabricLink(Link):
    """A veth link of a given rate and delay, which the dataplane keeps: `rate` as in 400Gbps, `delay` as in 600ns."""

    def __init__(
        self,
        node1: Any,
        node2: Any,
        *args: Any,
        rate: BitRate | str = DEFAULT_RATE,
        delay: Duration | str = DEFAULT_DELAY,
        **params: Any,
    ) -> None:
        self.rate, self.delay = BitRate.parse(rate), Duration.parse(delay)
        params.setdefault("intf", FabricIntf)
        super().__init__(node1, node2, *args, **params)

    @classmethod
    def makeIntfPair(
        cls,
        intfname1: str,
        intfname2: str,
        addr1: str | None = None,
        addr2: str | None = None,
        node1: Any = None,
        node2: Any = None,
        deleteIntfs: bool = True,
    ) -> None:
        network.make_link(node1.pid, intfname1, addr1, node2.pid, intfname2, addr2)

    def stop(self) -> None:
        """Nothing to do: the link goes with the namespaces of its ends."""


class FabricSwitch(_FabricNode, Switch):
    """A switch of the fabric: the dataplane forwards, an OpenFlow 1.3 agent answers its controllers.

    All switches of a process share one network namespace, apart from the machine's own: its daemons do not see the links, and
    everything is gone when the process is.
    """

    _namespace_holder: ClassVar["FabricSwitch | None"] = None
    _numbers: ClassVar[int] = 0

    def __init__(self, name: str, runtime: Any = None, dpid: str | None = None, **params: Any) -> None:
        """`runtime` is the LiveRuntime to join; by default the one of this process."""
        self._runtime = runtime
        params["inNamespace"] = False  # it joins the shared one below
        super().__init__(name, dpid=dpid, **params)

    @property
    def runtime(self) -> Any:
        if self._runtime is None:
            from testbed.emulation.runtime import LiveRuntime

            self._runtime = LiveRuntime.shared()
        return self._runtime

    def defaultDpid(self, dpid: str | None = None) -> str:
        """Datapath ids without one given are numbered: names such as leaf1 and spine1 share their digits."""
        if dpid is None:
            FabricSwitch._numbers += 1
            dpid = f"{FabricSwitch._numbers:x}"
        return f"{int(dpid, 16):016x}"

    def startShell(self, mnopts: str | None = None) -> None:
        holder = FabricSwitch._namespace_holder
        if holder is not None and holder.shell is not None:
            super().startShell(f"-cda{holder.pid}")
            return
        super().startShell("-cdn")
        FabricSwitch._namespace_holder = self
        network.silence_ipv6(self.pid)

    def start(self, controllers: list[Any]) -> None:
        """Joins the fabric and connects to the controllers."""
        names = [intf.name for intf in self.intfs.values() if intf.name != "lo"]
        network.bring_up(self.pid, names)
        self.runtime.start_switch(self, [(c.IP(), c.port) for c in controllers])

    def stop(self, deleteIntfs: bool = True) -> None:
        """Leaves the fabric; the interfaces go with the namespace."""
        self.runtime.stop_switch(self)
        super().stop(deleteIntfs=False)

    def terminate(self) -> None:
        if FabricSwitch._namespace_holder is self:
            FabricSwitch._namespace_holder = None
        super().terminate()

    def connected(self) -> bool:
        """Whether a controller is connected."""
        return bool(self.runtime.is_connected(self))

    def attach(self, intf: Any) -> None:
        raise NotImplementedError("a fabric's links are made before it starts: add the link first, then start")

    detach = attach
