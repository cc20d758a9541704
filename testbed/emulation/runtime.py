"""What makes switches and NICs live: the dataplane on packet sockets, an OpenFlow agent for each switch, and the loop that
serves both."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ClassVar, Protocol

from testbed._dataplane import Fabric
from testbed.emulation.network import namespace_path
from testbed.fabric import BuiltFabric, ecn_specs, mac_bytes, switch_spec
from testbed.openflow.agent import Agent, PortInfo
from testbed.scenario.plan import MTU_OVERHEAD_BYTES, headroom_bytes
from testbed.scenario.schema import SwitchSection
from testbed.topology import PortRef
from testbed.units import BitRate, Duration

IDLE_MS = 2
"""How long the dataplane may wait for frames before the agents are served again."""
BUSY_EVENTS = 20_000
_IDLE_RATE = BitRate.parse("1Gbps")
SHARED_SLOWDOWN = 1000.0


class _Places(Protocol):
    """Where Mininet's nodes are in the dataplane."""

    def place(self, runtime: "LiveRuntime", switch: Any) -> tuple[int, dict[int, PortInfo]]:
        """Node number of a switch that starts, sockets attached, and its ports by OpenFlow number."""
        ...


class LiveRuntime:
    """A live dataplane with its agents. `step` serves them once; `start_loop` does so in a thread."""

    _shared: ClassVar["LiveRuntime | None"] = None

    def __init__(self, dataplane: Any, places: _Places) -> None:
        self.dataplane = dataplane
        self.agents: dict[int, Agent] = {}
        self._agent_of: dict[str, Agent] = {}
        self._places = places
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._calls: queue.Queue[tuple[Callable[[], Any], Future[Any]]] = queue.Queue()
        self.log: Callable[[str], None] = lambda line: None
        self.every_step: Callable[[], None] = lambda: None
        """Called in the loop's thread after each step."""
        self.failure: Exception | None = None

    @classmethod
    def shared(cls) -> "LiveRuntime":
        """The runtime of a Mininet script of one's own: built as switches start, served by a thread of its own, with
        hosts' stacks in mind at a slowdown of 1000."""
        if cls._shared is None:
            cls._shared = cls(Fabric(True), _GrowingPlaces())
            cls._shared.dataplane.set_slowdown(SHARED_SLOWDOWN)
        return cls._shared

    # ---- Mininet's side

    def start_switch(self, switch: Any, controllers: list[tuple[str, int]]) -> None:
        """A FabricSwitch starts: its ports get sockets, its agent connects."""

        def work() -> None:
            node, ports = self._places.place(self, switch)
            agent = Agent(self.dataplane, node, int(switch.dpid, 16), switch.name, ports)
            agent.log = self.log
            for host, port in controllers:
                agent.connect(host, port)
            self.agents[node] = agent
            self._agent_of[switch.name] = agent

        self.call(work)
        if self is LiveRuntime._shared and self._thread is None:
            self.start_loop()

    def stop_switch(self, switch: Any) -> None:
        """A FabricSwitch stops."""
        agent = self._agent_of.pop(switch.name, None)
        if agent is None:
            return

        def work() -> None:
            agent.close()
            self.agents.pop(agent.node, None)
            for number in agent.ports:
                self.dataplane.detach(agent.node, number - 1)

        self.call(work)
        if self is LiveRuntime._shared and not self.agents:
            self.stop_loop()
            LiveRuntime._shared = None

    def is_connected(self, switch: Any) -> bool:
        agent = self._agent_of.get(switch.name)
        return agent is not None and any(c.connected for c in agent.connections)

    # ---- The loop

    def call(self, work: Callable[[], Any]) -> Any:
        """Runs something that touches the dataplane: in the loop's thread if there is one.

        Raises:
            RuntimeError: the loop has failed; and whatever `work` raises.
        """
        thread = self._thread
        if thread is None or threading.current_thread() is thread:
            return work()
        future: Future[Any] = Future()
        self._calls.put((work, future))
        while True:
            try:
                return future.result(timeout=1)
            except TimeoutError:
                if not thread.is_alive() and not future.done():
                    raise RuntimeError(f"the fabric has stopped: {self.failure!r}") from self.failure

    def start_loop(self) -> None:
        """Serves dataplane and agents in a thread."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._loop, name="fabric", daemon=True)
        self._thread.start()

    def stop_loop(self) -> None:
        thread, self._thread = self._thread, None
        self._stopping.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _loop(self) -> None:
        try:
            while not self._stopping.is_set():
                while not self._calls.empty():
                    work, future = self._calls.get()
                    try:
                        future.set_result(work())
                    except BaseException as error:
                        future.set_exception(error)
                self.step()
                self.every_step()
        except Exception as error:
            self.failure = error
            self.log(f"the fabric has stopped: {error!r}")

    def step(self) -> None:
        """Runs the dataplane for a moment, then the agents."""
        stop, _ = self.dataplane.run(None, BUSY_EVENTS, IDLE_MS)
        if stop == "port":
            for node, port, _up in self.dataplane.take_port_changes():
                self.agents[node].port_changed(port)
        self.poll()

    def poll(self) -> bool:
        """Serves the agents; true if any controller had something to say."""
        for node, port, table, cookie, reason, frame in self.dataplane.take_packet_ins():
            if node in self.agents:
                self.agents[node].packet_in(port, table, cookie, reason, bytes(frame))
        busy = False
        for agent in self.agents.values():
            for connection in agent.connections:
                busy |= connection.poll()
        return busy

    def close(self) -> None:
        self.stop_loop()
        for agent in self.agents.values():
            agent.close()
        self.agents.clear()


class PlannedPlaces:
    """Places of a plan's nodes: the dataplane was built beforehand."""

    def __init__(self, built: BuiltFabric) -> None:
        self.built = built

    def place(self, runtime: LiveRuntime, switch: Any) -> tuple[int, dict[int, PortInfo]]:
        built, topology = self.built, self.built.topology
        node = built.node_of[switch.name]
        ports: dict[int, PortInfo] = {}
        for number in range(1, topology.switch_ports(switch.name) + 1):
            ref = PortRef(switch.name, number)
            link = topology.link_at[ref]
            mac = mac_bytes(switch_port_mac(node, number))
            ports[number] = PortInfo(topology.interface(ref), mac, link.rate.bps)
            intf = switch.intfs.get(number)
            if intf is None:
                built.dataplane.keep_in_memory(node, number - 1)
                continue
            built.dataplane.attach(node, number - 1, intf.name, namespace_path(switch.pid))
            peer = topology.peer(ref)
            if peer.node not in topology.switch_names:
                host_intf = far_end(intf)
                nic_node, _ = built.locate(peer)
                built.dataplane.attach(nic_node, 0, host_intf.name, namespace_path(host_intf.node.pid))
        return node, ports


def far_end(intf: Any) -> Any:
    """The interface at the other end of an interface's link."""
    return intf.link.intf2 if intf.link.intf1 is intf else intf.link.intf1


def switch_port_mac(node: int, number: int) -> str:
    """MAC address of a switch port, for probes."""
    return f"02:01:{node >> 8 & 255:02x}:{node & 255:02x}:{number >> 8 & 255:02x}:{number & 255:02x}"


class _GrowingPlaces:
    """Places for a Mininet script of one's own: nodes come as switches start, with the scenario schema's defaults."""

    def __init__(self) -> None:
        self._section = SwitchSection()
        self._nodes: dict[str, int] = {}

    def place(self, runtime: LiveRuntime, switch: Any) -> tuple[int, dict[int, PortInfo]]:
        dataplane = runtime.dataplane
        mask = sum(1 << p for p in self._section.lossless)
        node = dataplane.add_switch(switch_spec(self._section, len(self._nodes) + 1, 1, mask))
        self._nodes[switch.name] = node
        intfs = {number: intf for number, intf in switch.intfs.items() if intf.name != "lo"}
        ports: dict[int, PortInfo] = {}
        for number in range(1, max(intfs, default=0) + 1):
            link = intfs[number].link if number in intfs else None
            rate = getattr(link, "rate", _IDLE_RATE)
            delay = getattr(link, "delay", None)
            headroom = headroom_bytes(rate, delay or Duration(0), 4096 + MTU_OVERHEAD_BYTES, Duration(0))
            dataplane.add_port(node, rate.bps, headroom, ecn_specs(self._section, rate))
            if link is not None:
                ports[number] = PortInfo(intfs[number].name, mac_bytes(switch_port_mac(node, number)), rate.bps)
        for number, intf in intfs.items():
            self._join(dataplane, switch, node, number, intf)
        return node, ports

    def _join(self, dataplane: Any, switch: Any, node: int, number: int, intf: Any) -> None:
        from testbed.emulation.nodes import FabricLink, FabricSwitch, RdmaHost

        dataplane.attach(node, number - 1, intf.name, namespace_path(switch.pid))
        link = intf.link
        if not isinstance(link, FabricLink):
            return
        other = far_end(intf)
        peer: tuple[int, int] | None = None
        if isinstance(other.node, FabricSwitch) and other.node.name in self._nodes:
            peer = (self._nodes[other.node.name], other.node.ports[other] - 1)
        elif isinstance(other.node, RdmaHost):
            nic = dataplane.add_nic(list(mac_bytes(other.mac)), None)
            dataplane.add_port(nic, link.rate.bps)
            dataplane.attach(nic, 0, other.name, namespace_path(other.node.pid))
            peer = (nic, 0)
        if peer is not None:
            dataplane.connect((node, number - 1), peer, link.delay.ps)
