"""A plan made live: controller process, Mininet network, and the control plane over OpenFlow."""

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from mininet.log import setLogLevel
from mininet.net import Mininet

from testbed.control import ControlError, PortChange
from testbed.emulation.network import Address, check_namespaces
from testbed.emulation.nodes import DEFAULT_PREFIX_LENGTH, FabricLink, FabricSwitch, RdmaHost
from testbed.emulation.runtime import LiveRuntime, PlannedPlaces
from testbed.engine import Interrupts
from testbed.fabric import BuiltFabric, declared
from testbed.processes import die_with_parent, mark_environment, start_time
from testbed.topology import Topology
from testbed.units import Duration

OPEN_TIMEOUT_S = 120.0
REACTION_TIMEOUT_S = 60.0
Report = Callable[[str], None]


def free_port() -> int:
    """A TCP port of loopback that nothing listens on."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ControllerProcess:
    """The subnet manager as a process of its own, with a pipe for its status lines."""

    def __init__(self, topology: Topology) -> None:
        self.port = free_port()
        self._folder = tempfile.TemporaryDirectory(prefix=f"testbed.p{os.getpid()}-{start_time(os.getpid())}.")
        declared_file = Path(self._folder.name) / "declared.json"
        declared_file.write_text(json.dumps(declared(topology).to_json()))
        self.log = Path(self._folder.name) / "controller.log"
        reader, writer = os.pipe()
        environment = os.environ | {"TESTBED_DECLARED": str(declared_file), "TESTBED_STATUS_FD": str(writer)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "controllers.launch", "--port", str(self.port), "controllers.subnet_manager"],
                env=environment,
                pass_fds=(writer,),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
                # Ctrl-C at the terminal is for the run, which ends its controller in its own time.
                start_new_session=True,
            )
        os.close(writer)
        self._status: IO[bytes] = os.fdopen(reader, "rb", buffering=0)
        os.set_blocking(reader, False)
        self._partial = b""

    def status(self) -> list[dict[str, Any]]:
        """Status lines since the last call.

        Raises:
            ControlError: the process has ended.
        """
        chunk = b""
        if select.select([self._status], [], [], 0)[0]:
            chunk = self._status.read(1 << 16) or b""
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        if not lines and self.process.poll() is not None:
            tail = self.log.read_text(errors="replace").strip().splitlines()[-5:]
            raise ControlError([f"the controller ended with status {self.process.returncode}", *tail])
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._status.close()
        self._folder.cleanup()


class OpenFlowControl:
    """The control plane of the `emulate` engine: what the agents hear from the controller.

    A change of a port is told to the controller while fabric time stands still; what it answers is kept until the reaction time
    has passed. It is done when every switch that reported has got a barrier request with the report's transaction id.
    """

    def __init__(self, built: BuiltFabric, runtime: LiveRuntime, controller: ControllerProcess, report: Report) -> None:
        self.built, self.runtime, self.controller, self.report = built, runtime, controller, report
        self.interrupts = Interrupts()
        self.reaction = built.plan.scenario.control.reaction
        self._staged: list[dict[int, list[Callable[[], None]]]] = []
        self.errors: list[str] = []

    def open_fabric(self) -> None:
        """Serves the agents until the controller has opened the fabric.

        Raises:
            ControlError: it failed to, or took too long.
        """
        deadline = time.monotonic() + OPEN_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.interrupts.requested:
                raise KeyboardInterrupt
            self.runtime.step()
            for line in self.controller.status():
                if self._hear(line) == "open":
                    return
        raise ControlError([f"the controller did not open the fabric within {OPEN_TIMEOUT_S:.0f} s"])

    def _hear(self, line: dict[str, Any]) -> str:
        event = str(line.pop("event"))
        if event == "failed":
            raise ControlError(list(line["problems"]))
        if event == "warning":
            if self.built.plan.lossless_mask:
                self.report(f"warning: {line['text']}")
            return event
        details = " ".join(f"{key}={value}" for key, value in line.items())
        self.report(f"subnet manager: {event} {details}".rstrip())
        if event == "error":
            self.errors.append(details)
        return event

    def port_changed(self, changes: list[PortChange]) -> None:
        agents = self.runtime.agents
        realtime = not isinstance(self.reaction, Duration)
        if not realtime:
            for agent in agents.values():
                agent.staged = []
        for node, _, _ in changes:
            agents[node].unconfirmed.clear()
        for node, port, _up in changes:
            agents[node].port_changed(port)
        if realtime:
            return
        deadline = time.monotonic() + REACTION_TIMEOUT_S
        while any(agents[node].unconfirmed for node, _, _ in changes) and not self.interrupts.requested:
            if not self.runtime.poll():
                time.sleep(0.0005)
            for line in self.controller.status():
                self._hear(line)
            if time.monotonic() > deadline:
                raise ControlError(["the controller did not finish its reaction to a port change"])
        self._staged.append({node: agent.staged or [] for node, agent in agents.items()})
        for agent in agents.values():
            agent.staged = None
        assert isinstance(self.reaction, Duration)
        dataplane = self.built.dataplane
        dataplane.schedule_break(dataplane.now_ps + self.reaction.ps, len(self._staged) - 1)

    def take_effect(self, token: int) -> None:
        for node, changes in sorted(self._staged[token].items()):
            for change in changes:
                change()
            if changes:
                self.built.dataplane.note_reroute(node, len(changes))
        self._staged[token] = {}

    def poll(self) -> None:
        self.runtime.poll()
        self.hear()

    def hear(self) -> None:
        """Takes in what the controller says of itself.

        Raises:
            ControlError: it has failed, or is gone.
        """
        for line in self.controller.status():
            self._hear(line)


class LiveFabric:
    """A plan's network, up. Leaving the context takes everything down again, whatever happened inside."""

    def __init__(self, built: BuiltFabric, report: Report) -> None:
        self.built, self.report = built, report
        self.runtime = LiveRuntime(built.dataplane, PlannedPlaces(built))
        self.runtime.log = report
        self.net: Any = None
        self.controller: ControllerProcess | None = None

    def __enter__(self) -> Self:
        check_namespaces()
        mark_environment()
        setLogLevel("warning")
        try:
            self.controller = ControllerProcess(self.built.topology)
            self._build_network()
            self.control = OpenFlowControl(self.built, self.runtime, self.controller, self.report)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _build_network(self) -> None:
        assert self.controller is not None
        topology = self.built.topology
        self.net = Mininet(topo=None, build=False, controller=None, autoSetMacs=False)
        nodes: dict[str, Any] = {}
        for host in topology.hosts:
            addresses = tuple(Address(f"eth{nic.index}", nic.ip, DEFAULT_PREFIX_LENGTH) for nic in topology.nics_of(host.name))
            nodes[host.name] = self.net.addHost(host.name, cls=RdmaHost, addresses=addresses, ip=None)
        for number, switch in enumerate(topology.switches, 1):
            nodes[switch.name] = self.net.addSwitch(switch.name, cls=FabricSwitch, dpid=f"{number:016x}", runtime=self.runtime)
        macs = {nic.ref: nic.mac for nic in topology.nics}
        in_memory = self.built.plan.scenario.run.links == "memory"
        for link in topology.links:
            ends = (link.a, link.b)
            if in_memory and all(end.node in topology.switch_names for end in ends):
                continue
            self.net.addLink(
                *[nodes[end.node] for end in ends],
                *[end.port for end in ends],
                cls=FabricLink,
                intfName1=topology.interface(link.a),
                intfName2=topology.interface(link.b),
                addr1=macs.get(link.a),
                addr2=macs.get(link.b),
                rate=link.rate,
                delay=link.delay,
            )
        for host in topology.hosts:
            nodes[host.name].config()
        address = _ControllerAddress(self.controller.port)
        for switch in topology.switches:
            nodes[switch.name].start([address])
        self.net.built = True
        self.report(f"{len(topology.hosts)} hosts, {len(topology.switches)} switches and {len(topology.links)} links are up")

    def close(self) -> None:
        """Takes everything down."""
        self.runtime.close()
        if self.net is not None:
            for node in [*self.net.hosts, *self.net.switches]:
                node.terminate()
            self.net = None
        if self.controller is not None:
            self.controller.close()
            self.controller = None


class _ControllerAddress:
    """What a FabricSwitch wants to know of a controller."""

    def __init__(self, port: int) -> None:
        self.port = port

    @staticmethod
    def IP() -> str:  # noqa: N802 - Mininet's name
        return "127.0.0.1"
