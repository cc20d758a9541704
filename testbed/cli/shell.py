"""Mininet's command line with the fabric's own commands."""

import shlex
from typing import Any, ClassVar

from mininet.cli import CLI
from mininet.log import output

from testbed.fabric import BuiltFabric
from testbed.units import Duration


class FabricCLI(CLI):
    """Commands beside Mininet's: queues, pause, counters, fault."""

    prompt = "testbed> "
    fabric: ClassVar[BuiltFabric]
    runtime: ClassVar[Any]

    def _ports(self) -> list[tuple[str, str, int, int]]:
        """(label, peer, node, port) of every switch port."""
        topology = self.fabric.topology
        rows: list[tuple[str, str, int, int]] = []
        for ref in topology.link_at:
            if ref.node in topology.switch_names:
                node, port = self.fabric.locate(ref)
                rows.append((str(ref), topology.peer(ref).node, node, port))
        return rows

    def _counters(self, node: int, port: int) -> dict[str, Any]:
        counters: dict[str, Any] = self.runtime.call(lambda: self.fabric.dataplane.port_counters(node, port))
        return counters

    def do_queues(self, line: str) -> None:
        """queues: bytes that wait in each switch queue now."""
        empty = True
        for label, peer, node, port in self._ports():
            held = self._counters(node, port)["queue_bytes"]
            waiting = ", ".join(f"priority {p}: {n} B" for p, n in enumerate(held) if n)
            if waiting:
                empty = False
                output(f"{label} to {peer}: {waiting}\n")
        if empty:
            output("every queue is empty\n")

    def do_pause(self, line: str) -> None:
        """pause: pause frames received and sent by switch ports, and for how long they stopped."""
        quiet = True
        for label, peer, node, port in self._ports():
            c = self._counters(node, port)
            for priority in range(8):
                sent, got = c["tx_pause"][priority], c["rx_pause"][priority]
                if sent or got:
                    quiet = False
                    stopped_us = c["paused_ps"][priority] / 1e6
                    output(
                        f"{label} to {peer}, priority {priority}: sent {sent}, received {got}, stopped for {stopped_us:.1f} us\n"
                    )
        if quiet:
            output("nobody has paused anybody\n")

    def do_counters(self, line: str) -> None:
        """counters NODE: totals of a switch or NIC."""
        name = line.strip()
        if name not in self.fabric.node_of:
            output("usage: counters NODE, as in counters leaf1 or counters h1\n")
            return
        node = self.fabric.node_of[name]
        for key, value in self.runtime.call(lambda: self.fabric.dataplane.node_counters(node)).items():
            output(f"{key}: {value}\n")

    def do_fault(self, line: str) -> None:
        """fault storm NIC PRIORITY TIME | fault down LINK | fault up LINK: break something, and mend it."""
        words = shlex.split(line)
        try:
            if len(words) == 4 and words[0] == "storm":
                self._storm(words[1], int(words[2]), Duration.parse(words[3]))
            elif len(words) == 2 and words[0] in ("down", "up"):
                self._link(words[1], words[0] == "up")
            else:
                output("usage: fault storm h1 3 500us, or fault down leaf1-spine1, or fault up leaf1-spine1\n")
        except (ValueError, KeyError) as error:
            output(f"{error}\n")

    def _storm(self, name: str, priority: int, duration: Duration) -> None:
        nic = self.fabric.topology.nic_by_name[name]
        node, dataplane = self.fabric.nic_nodes[nic], self.fabric.dataplane

        def start() -> None:
            now = dataplane.now_ps
            dataplane.schedule_storm(now, now + duration.ps, node, priority, 65535)

        self.runtime.call(start)
        output(f"{name} storms for {duration}\n")

    def _link(self, name: str, up: bool) -> None:
        found = self.fabric.topology.links_named(name)
        if len(found) != 1:
            raise ValueError(f"{len(found)} links are called {name}")
        node, port = self.fabric.locate(found[0].a)
        dataplane = self.fabric.dataplane
        self.runtime.call(lambda: dataplane.schedule_link(dataplane.now_ps, node, port, up))
        output(f"{name} goes {'up' if up else 'down'}\n")
