"""Mininet's command line with the fabric's own commands."""

import shlex
from collections.abc import Callable
from fractions import Fraction
from typing import Any, ClassVar

from mininet.cli import CLI
from mininet.log import output

from testbed.fabric import BuiltFabric
from testbed.units import BitRate, Duration


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
        """fault storm NIC PRIORITY TIME | down LINK | up LINK | loss LINK RATE | errors LINK BIT-ERROR-RATE | delay LINK TIME |
        rate LINK RATE | mend LINK: break something, and mend it."""
        match shlex.split(line):
            case ["storm", nic, priority, duration]:
                self._try(lambda: self._storm(nic, int(priority), Duration.parse(duration)))
            case ["down" | "up" as state, link]:
                self._try(lambda: self._link(link, state == "up"))
            case ["loss", link, share]:
                self._try(lambda: self._impair(link, "loss_rate", float(Fraction(share))))
            case ["errors", link, share]:
                self._try(lambda: self._impair(link, "bit_error_rate", float(Fraction(share))))
            case ["delay", link, time]:
                self._try(lambda: self._impair(link, "added_delay_ps", Duration.parse(time).ps))
            case ["rate", link, rate]:
                self._try(lambda: self._impair(link, "rate_bps", BitRate.parse(rate).bps))
            case ["mend", link]:
                for kind in ("loss_rate", "bit_error_rate", "added_delay_ps", "rate_bps"):
                    if not self._try(lambda kind=kind: self._impair(link, kind, 0)):  # type: ignore[misc]
                        return
            case _:
                output(
                    "usage: fault storm h1 3 500us, fault down|up|mend leaf1-spine1, fault loss leaf1-spine1 1/100, "
                    "fault errors leaf1-spine1 1e-7, fault delay leaf1-spine1 5us, fault rate leaf1-spine1 40Gbps\n"
                )

    @staticmethod
    def _try(work: Callable[[], None]) -> bool:
        """Does something that a person asked for; tells what is wrong with it. Returns whether it was done."""
        try:
            work()
        except (ValueError, KeyError, ZeroDivisionError) as error:
            output(f"{error}\n")
            return False
        return True

    def _impair(self, name: str, kind: str, value: float) -> None:
        node, port = self._locate(name)
        dataplane = self.fabric.dataplane
        self.runtime.call(lambda: dataplane.schedule_impairment(dataplane.now_ps, node, port, kind, value, 1))
        output(f"{name}: {kind} is {value:g} now\n")

    def _locate(self, name: str) -> tuple[int, int]:
        found = self.fabric.topology.links_named(name)
        if len(found) != 1:
            raise ValueError(f"{len(found)} links are called {name}")
        return self.fabric.locate(found[0].a)

    def _storm(self, name: str, priority: int, duration: Duration) -> None:
        nic = self.fabric.topology.nic_by_name[name]
        node, dataplane = self.fabric.nic_nodes[nic], self.fabric.dataplane

        def start() -> None:
            now = dataplane.now_ps
            dataplane.schedule_storm(now, now + duration.ps, node, priority, 65535)

        self.runtime.call(start)
        output(f"{name} storms for {duration}\n")

    def _link(self, name: str, up: bool) -> None:
        node, port = self._locate(name)
        dataplane = self.fabric.dataplane
        self.runtime.call(lambda: dataplane.schedule_link(dataplane.now_ps, node, port, up))
        output(f"{name} goes {'up' if up else 'down'}\n")
