"""The subnet manager: an os-ken application that finds the fabric, routes it, verifies the routes, and only then opens it.

1. Every declared switch connects; each gets the gate (see `controllers.rules`): probes and ARP go to the controller, all else
   is dropped.
2. LLDP rounds: a probe out of every port. Probes that come in elsewhere show the links between switches, NICs' answers the end
   ports.
3. What was found is held against what was declared; every missing, crossed or extra cable is named, and stops the opening.
4. Every end port and switch gets its LID. Routes are computed, installed, read back from the switches, and followed: no loop, no
   dead end. Then the gate is opened.
5. When a port goes down or comes back, routes are computed anew and the differences installed. The last message of a reaction
   is a barrier request to the switch that reported, with the transaction id of its report: who waits for it knows that all is in
   place.

ARP is answered from what was declared, so that nothing floods.
"""

import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from os_ken.base.app_manager import OSKenApp
from os_ken.controller import ofp_event
from os_ken.controller.controller import Datapath
from os_ken.controller.handler import DEAD_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from os_ken.lib import hub
from os_ken.lib.packet import arp, ethernet, packet
from os_ken.ofproto import ofproto_v1_3

from controllers.graph import Declared, Graph, Port, compare
from controllers.lids import LidError, assign
from controllers.planner import RouteError, RoutePlanner
from controllers.routing import check_loop_free
from controllers.rules import (
    ETHERTYPE_ARP,
    ETHERTYPE_LLDP,
    GATE_TABLE,
    ROUTE_TABLE,
    Changes,
    FlowRule,
    gate_rules,
    open_rule,
)
from traffic.lldp import NicAnswer, Probe, parse, probe

LOG = logging.getLogger("subnet_manager")

PROBE_ROUNDS = 3
PROBE_QUIET_S = 1.0
"""A round is over when nothing new has come for so long, or everything declared was found."""
CONNECT_TIMEOUT_S = 60.0
BARRIER_TIMEOUT_S = 30.0
BARRIERS_EVERY = 2000
"""Messages to one switch between two barriers, so that its queue stays short."""


class SubnetManagerError(Exception):
    """The fabric cannot be opened; `problems` says why."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class SubnetManager(OSKenApp):
    """See the module. Settings come from the environment: TESTBED_DECLARED names the declared topology (JSON),
    TESTBED_STATUS_FD a descriptor for status lines (JSON, one an event)."""

    OFP_VERSIONS: ClassVar[list[int]] = [ofproto_v1_3.OFP_VERSION]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.declared = Declared.from_json(json.loads(Path(os.environ["TESTBED_DECLARED"]).read_text()))
        self._status = os.fdopen(int(os.environ["TESTBED_STATUS_FD"]), "w", buffering=1)
        self.lids: dict[str, int] = {}
        self.macs: dict[int, str] = {}
        self.mac_of_ip = {e.ip: e.mac for e in self.declared.end_ports}
        self.planner: RoutePlanner | None = None
        """Once the fabric was discovered."""
        self.datapaths: dict[str, Datapath] = {}
        self._found_links: dict[Port, Port] = {}
        self._found_ends: dict[Port, str] = {}
        self._found_at = time.monotonic()
        self._port_events: queue.Queue[tuple[str, int, bool, int]] = queue.Queue()
        self._barriers: dict[tuple[str, int], threading.Event] = {}
        self._flow_replies: dict[str, list[Any]] = {}
        self._group_replies: dict[str, list[Any]] = {}
        self._reply_done: dict[tuple[str, str], threading.Event] = {}

    def start(self) -> Any:
        super().start()
        return hub.spawn(self._main)

    # ---- Main line

    def _main(self) -> None:
        try:
            self._open_fabric()
            while True:
                self._react(*self._port_events.get())
        except SubnetManagerError as error:
            self.report("failed", problems=error.problems)
        except Exception as error:
            LOG.exception("subnet manager failed")
            self.report("failed", problems=[f"internal error: {error!r}"])

    def report(self, event: str, **details: Any) -> None:
        """Writes a status line; a reader that is gone is nobody to tell."""
        try:
            self._status.write(json.dumps({"event": event, **details}) + "\n")
        except (BrokenPipeError, ValueError):
            LOG.warning("nobody reads the status line %s", event)

    def _open_fabric(self) -> None:
        self._wait_for_switches()
        names = list(self.datapaths)
        for name in names:
            self._send_changes(name, Changes(flows=gate_rules()))
        self._barrier(names)
        self.report("connected", switches=len(names))
        self._discover()
        self.report("discovered", links=len(self._found_links) // 2, end_ports=len(self._found_ends))
        try:
            self.lids = assign(self.declared.end_ports, names)
        except LidError as error:
            raise SubnetManagerError([str(error)]) from None
        self.macs = {self.lids[e.name]: e.mac for e in self.declared.end_ports}
        end_ports = tuple(replace(e, lid=self.lids[e.name]) for e in self.declared.end_ports)
        graph = Graph(frozenset(names), dict(self._found_links), end_ports)
        self.planner = RoutePlanner(graph, self.macs, lambda text: self.report("warning", text=text))
        self._install_routes()
        self._verify(self.planner)
        for name in names:
            self._send_changes(name, Changes(flows=[open_rule()]))
        self._barrier(names)
        self.report("open", lids=len(self.lids))

    def _wait_for_switches(self) -> None:
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        wanted = set(self.declared.switches.values())
        while missing := wanted - self.datapaths.keys():
            if time.monotonic() > deadline:
                raise SubnetManagerError([f"missing: switch {name} did not connect" for name in sorted(missing)])
            time.sleep(0.01)

    # ---- Discovery

    def _discover(self) -> None:
        problems: list[str] = []
        for _ in range(PROBE_ROUNDS):
            self._send_probes()
            self._found_at = time.monotonic()
            while time.monotonic() - self._found_at < PROBE_QUIET_S:
                if not compare(self.declared, self._found_links, self._found_ends):
                    return
                time.sleep(0.02)
            problems = compare(self.declared, self._found_links, self._found_ends)
        if problems:
            raise SubnetManagerError(problems)

    def _send_probes(self) -> None:
        dpids = {name: dpid for dpid, name in self.declared.switches.items()}
        for name, datapath in list(self.datapaths.items()):
            for number, port in sorted(datapath.ports.items()):
                if number <= ofproto_v1_3.OFPP_MAX:
                    self._packet_out(datapath, number, probe(dpids[name], number, port.hw_addr))

    def _packet_out(self, datapath: Datapath, port: int, frame: bytes) -> None:
        p = datapath.ofproto_parser
        datapath.send_msg(
            p.OFPPacketOut(
                datapath=datapath,
                buffer_id=ofproto_v1_3.OFP_NO_BUFFER,
                in_port=ofproto_v1_3.OFPP_CONTROLLER,
                actions=[p.OFPActionOutput(port)],
                data=frame,
            )
        )

    @set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)
    def packet_in(self, ev: Any) -> None:
        """A frame that the gate sends here: a probe, a NIC's answer, or an ARP request."""
        message = ev.msg
        name = self.declared.switches.get(message.datapath.id)
        if name is None or len(message.data) < 14:
            return
        port = (name, message.match["in_port"])
        ethertype = int.from_bytes(message.data[12:14], "big")
        if ethertype == ETHERTYPE_LLDP:
            self._learn(port, parse(bytes(message.data)))
        elif ethertype == ETHERTYPE_ARP:
            self._answer_arp(message.datapath, port[1], bytes(message.data))

    def _learn(self, at: Port, found: Probe | NicAnswer | None) -> None:
        if self.planner is not None:
            return  # The fabric is open: hosts could forge probes.
        if isinstance(found, Probe):
            sender = self.declared.switches.get(found.dpid)
            if sender is None or sender not in self.datapaths or found.port not in self.datapaths[sender].ports:
                return
            if self._found_links.get((sender, found.port)) != at:
                self._found_links[(sender, found.port)] = at
                self._found_at = time.monotonic()
        elif isinstance(found, NicAnswer) and self._found_ends.get(at) != found.mac:
            self._found_ends[at] = found.mac
            self._found_at = time.monotonic()

    def _answer_arp(self, datapath: Datapath, port: int, frame: bytes) -> None:
        try:
            request = packet.Packet(frame).get_protocol(arp.arp)
        except Exception:  # any bytes may claim to be ARP, and os-ken's parsers raise whatever they meet
            return
        if request is None or request.opcode != arp.ARP_REQUEST:
            return
        mac = self.mac_of_ip.get(request.dst_ip)
        if mac is None:
            return
        answer = packet.Packet()
        answer.add_protocol(ethernet.ethernet(request.src_mac, mac, ETHERTYPE_ARP))
        answer.add_protocol(arp.arp_ip(arp.ARP_REPLY, mac, request.dst_ip, request.src_mac, request.src_ip))
        answer.serialize()
        self._packet_out(datapath, port, bytes(answer.data))

    # ---- Routes

    def _install_routes(self) -> None:
        """Installs what differs from the routes in force; returns when every switch concerned has confirmed."""
        if self.planner is None:
            raise SubnetManagerError(["no fabric was discovered"])
        try:
            changes = self.planner.update()
        except RouteError as error:
            raise SubnetManagerError(error.problems) from None
        for name, change in changes.items():
            self._send_changes(name, change)
        self._barrier(changes)

    def _verify(self, planner: RoutePlanner) -> None:
        """Reads every switch's routes back and follows them."""
        wanted = planner.routes
        found = {name: self._read_back(name) for name in planner.states}
        problems = check_loop_free(planner.graph, found)
        problems += [
            f"{name}: {len(found[name])} routes were read back, {len(wanted[name])} installed"
            for name in sorted(found)
            if found[name] != wanted[name]
        ]
        if problems:
            raise SubnetManagerError(problems)
        self.report("verified", switches=len(found))

    def _read_back(self, name: str) -> dict[int, tuple[int, ...]]:
        datapath = self.datapaths[name]
        p = datapath.ofproto_parser
        self._flow_replies[name], self._group_replies[name] = [], []
        for kind, request in (
            ("groups", p.OFPGroupDescStatsRequest(datapath, 0)),
            (
                "flows",
                p.OFPFlowStatsRequest(datapath, 0, ROUTE_TABLE, ofproto_v1_3.OFPP_ANY, ofproto_v1_3.OFPG_ANY, 0, 0, p.OFPMatch()),
            ),
        ):
            done = self._reply_done[name, kind] = threading.Event()
            datapath.send_msg(request)
            if not done.wait(BARRIER_TIMEOUT_S):
                raise SubnetManagerError([f"{name} does not answer a request for its {kind}"])
        groups = {g.group_id: tuple(b.actions[0].port for b in g.buckets) for g in self._group_replies[name]}
        lids = {mac: lid for lid, mac in self.macs.items()}
        routes: dict[int, tuple[int, ...]] = {}
        for flow in self._flow_replies[name]:
            action = flow.instructions[0].actions[0]
            ports = (action.port,) if action.type == ofproto_v1_3.OFPAT_OUTPUT else groups.get(action.group_id, ())
            routes[lids[flow.match["eth_dst"]]] = ports
        return routes

    @set_ev_cls(ofp_event.EventOFPFlowStatsReply, MAIN_DISPATCHER)
    def flow_stats(self, ev: Any) -> None:
        self._collect(ev, "flows", self._flow_replies)

    @set_ev_cls(ofp_event.EventOFPGroupDescStatsReply, MAIN_DISPATCHER)
    def group_desc(self, ev: Any) -> None:
        self._collect(ev, "groups", self._group_replies)

    def _collect(self, ev: Any, kind: str, replies: dict[str, list[Any]]) -> None:
        name = self.declared.switches.get(ev.msg.datapath.id)
        if name is None or name not in replies:
            return
        replies[name].extend(ev.msg.body)
        done = self._reply_done.get((name, kind))
        if done is not None and not ev.msg.flags & ofproto_v1_3.OFPMPF_REPLY_MORE:
            done.set()

    # ---- Reaction

    @set_ev_cls(ofp_event.EventOFPPortStatus, MAIN_DISPATCHER)
    def port_status(self, ev: Any) -> None:
        """A port went down or came back."""
        name = self.declared.switches.get(ev.msg.datapath.id)
        if name is not None:
            up = not ev.msg.desc.state & ofproto_v1_3.OFPPS_LINK_DOWN
            self._port_events.put((name, ev.msg.desc.port_no, up, ev.msg.xid))

    def _react(self, name: str, port: int, up: bool, xid: int) -> None:
        if self.planner is not None:
            self.planner.set_port((name, port), up)
        self._install_routes()
        self.report("rerouted", switch=name, port=port, up=up)
        datapath = self.datapaths.get(name)
        if datapath is not None:
            request = datapath.ofproto_parser.OFPBarrierRequest(datapath)
            request.xid = xid
            datapath.send_msg(request)

    # ---- Messages

    def _send_changes(self, name: str, changes: Changes) -> None:
        datapath = self.datapaths.get(name)
        if datapath is None:
            raise SubnetManagerError([f"switch {name} is gone"])
        p, o = datapath.ofproto_parser, ofproto_v1_3
        messages: list[Any] = [
            p.OFPGroupMod(
                datapath,
                o.OFPGC_ADD,
                o.OFPGT_SELECT,
                group.group,
                [p.OFPBucket(weight=1, actions=[p.OFPActionOutput(port)]) for port in group.ports],
            )
            for group in changes.groups
        ]
        messages += [self._flow_mod(datapath, rule, o.OFPFC_ADD) for rule in changes.flows]
        messages += [self._flow_mod(datapath, rule, o.OFPFC_DELETE_STRICT) for rule in changes.removed_flows]
        messages += [p.OFPGroupMod(datapath, o.OFPGC_DELETE, o.OFPGT_SELECT, g, []) for g in changes.removed_groups]
        for i, message in enumerate(messages, 1):
            datapath.send_msg(message)
            if i % BARRIERS_EVERY == 0:
                self._barrier([name])

    @staticmethod
    def _flow_mod(datapath: Datapath, rule: FlowRule, command: int) -> Any:
        p, o = datapath.ofproto_parser, ofproto_v1_3
        instructions: list[Any] = []
        if rule.action is not None:
            kind, value = rule.action
            action = {
                "output": lambda: p.OFPActionOutput(value),
                "group": lambda: p.OFPActionGroup(value),
                "controller": lambda: p.OFPActionOutput(o.OFPP_CONTROLLER, o.OFPCML_NO_BUFFER),
            }[kind]()
            instructions.append(p.OFPInstructionActions(o.OFPIT_APPLY_ACTIONS, [action]))
        if rule.goto is not None:
            instructions.append(p.OFPInstructionGotoTable(rule.goto))
        fields = {name: value.to_bytes(6, "big").hex(":") if name.startswith("eth_d") else value for name, value in rule.match}
        return p.OFPFlowMod(
            datapath=datapath,
            table_id=rule.table,
            command=command,
            priority=rule.priority,
            out_port=o.OFPP_ANY,
            out_group=o.OFPG_ANY,
            match=p.OFPMatch(**fields),
            instructions=instructions if command == o.OFPFC_ADD else [],
        )

    def _barrier(self, names: Iterable[str]) -> None:
        """Sends a barrier request to each switch and waits for the replies."""
        waiting: list[tuple[str, threading.Event]] = []
        for name in names:
            datapath = self.datapaths.get(name)
            if datapath is None:
                raise SubnetManagerError([f"switch {name} is gone"])
            request = datapath.ofproto_parser.OFPBarrierRequest(datapath)
            datapath.set_xid(request)
            done = self._barriers[name, request.xid] = threading.Event()
            waiting.append((name, done))
            datapath.send_msg(request)
        for name, done in waiting:
            if not done.wait(BARRIER_TIMEOUT_S):
                raise SubnetManagerError([f"switch {name} does not answer a barrier request"])

    @set_ev_cls(ofp_event.EventOFPBarrierReply, MAIN_DISPATCHER)
    def barrier_reply(self, ev: Any) -> None:
        name = self.declared.switches.get(ev.msg.datapath.id)
        done = self._barriers.pop((name or "", ev.msg.xid), None)
        if done is not None:
            done.set()

    @set_ev_cls(ofp_event.EventOFPErrorMsg, MAIN_DISPATCHER)
    def error(self, ev: Any) -> None:
        name = self.declared.switches.get(ev.msg.datapath.id, "?")
        self.report("error", switch=name, type=ev.msg.type, code=ev.msg.code)

    @set_ev_cls(ofp_event.EventOFPStateChange, [MAIN_DISPATCHER, DEAD_DISPATCHER])
    def state_change(self, ev: Any) -> None:
        """A switch has connected, or is gone."""
        datapath = ev.datapath
        name = self.declared.switches.get(datapath.id)
        if name is None:
            return
        if ev.state == MAIN_DISPATCHER:
            self.datapaths[name] = datapath
        elif self.datapaths.get(name) is datapath:
            del self.datapaths[name]


assert GATE_TABLE == 0, "packets enter an OpenFlow pipeline at table 0"

if __name__ == "__main__":
    sys.exit("start it with `testbed`, or with `python -m controllers.launch controllers.subnet_manager`")
