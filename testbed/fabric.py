"""A plan put into the dataplane: the same for both engines."""

import random
from collections.abc import Mapping
from typing import Any

from controllers.graph import Declared, EndPort
from controllers.rules import Changes, FlowRule
from testbed._dataplane import Fabric
from testbed.scenario.plan import Flow, Plan, line_rate
from testbed.scenario.profiles import EcnSpec, cnp_interval_ps, dcqcn_spec, ecn_spec
from testbed.scenario.schema import (
    LinkDelay,
    LinkDown,
    LinkErrors,
    LinkFault,
    LinkFlap,
    LinkLoss,
    LinkRate,
    PfcStorm,
    SwitchSection,
)
from testbed.topology import Link, Nic, PortRef, Topology
from testbed.units import BitRate
from traffic.flows import Endpoint, flow_label_of_qps, flow_label_to_udp_sport, roce_template
from traffic.lldp import nic_lldp

FIRST_QPN = 0x11
"""Queue pairs 0 and 1 are for management (IBTA section 3.9); rdma-core's devices begin around here."""
REMOTE_ADDRESS = 0x10000


def declared(topology: Topology) -> Declared:
    """The topology as the subnet manager is told of it; datapath ids number the switches from 1."""
    end_ports = tuple(EndPort(n.name, n.lid, n.mac, n.ip, _port(topology.peer(n.ref))) for n in topology.nics)
    links = tuple((_port(link.a), _port(link.b)) for link in topology.links if link.a.node in topology.switch_names)
    return Declared({i + 1: s.name for i, s in enumerate(topology.switches)}, links, end_ports)


def _port(ref: PortRef) -> tuple[str, int]:
    return ref.node, ref.port


def mac_bytes(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


def queue_specs(section: SwitchSection) -> dict[int, tuple[int | None, tuple[int, int] | None]]:
    """How a switch's egress queues are served, as the dataplane takes it."""
    return {
        priority: (queue.weight, (queue.max_rate.bps, queue.burst.bytes) if queue.max_rate else None)
        for priority, queue in section.queues.items()
    }


def ecn_specs(section: SwitchSection, rate: BitRate) -> dict[int, EcnSpec]:
    """Marking of a switch's lossless queues on links of the given rate, as the dataplane takes it."""
    spec = ecn_spec(section.ecn, rate)
    return dict.fromkeys(sorted(set(section.lossless)), spec) if spec else {}


def _watchdog(section: SwitchSection) -> tuple[int, int, int, str] | None:
    dog = section.watchdog
    if not dog.enabled:
        return None
    return dog.detection_time.ps, dog.restoration_time.ps, dog.poll_interval.ps, dog.action


def switch_spec(section: SwitchSection, number: int, seed: int, lossless_mask: int) -> dict[str, Any]:
    """A switch's settings as the dataplane takes them. Each switch has a seed of its own, drawn from the run's."""
    dscp_map = [0] * 64
    for dscp, priority in section.dscp_to_priority.items():
        dscp_map[dscp] = priority
    pfc = section.pfc
    return {
        "mac": list(mac_bytes(f"02:00:01:00:{number >> 8:02x}:{number & 255:02x}")),
        "seed": random.Random(f"switch {seed} {number}").getrandbits(64),
        "buffer_bytes": section.buffer.bytes,
        "lossless": lossless_mask,
        "reserved_bytes": pfc.reserved.bytes,
        "xoff_bytes": None if pfc.xoff is None else pfc.xoff.bytes,
        "alpha": pfc.alpha,
        "xon_offset_bytes": pfc.xon_offset.bytes,
        "lossy_alpha": section.lossy_alpha,
        "cell_bytes": section.cell.bytes,
        "cut_through": section.forwarding == "cut-through",
        "pipeline_latency_ps": section.pipeline_latency.ps,
        "watchdog": _watchdog(section),
        "pfc": pfc.enabled,
        "pfc_quanta": pfc.quanta,
        "dscp_map": dscp_map,
        "pcp_map": [section.pcp_to_priority.get(pcp, pcp) for pcp in range(8)],
    }


def impairment_of(fault: LinkLoss | LinkErrors | LinkDelay | LinkRate) -> tuple[str, float]:
    """A link fault as the dataplane takes it: what is wrong, and by how much."""
    match fault:
        case LinkLoss(every=int(every)):
            return "loss_every", float(every)
        case LinkLoss():
            return "loss_rate", fault.rate or 0.0
        case LinkErrors():
            return "bit_error_rate", fault.bit_error_rate
        case LinkDelay():
            return "added_delay_ps", float(fault.added.ps)
        case _:
            return "rate_bps", float(fault.rate.bps)


class BuiltFabric:
    """The dataplane of a plan: nodes by name, flows and faults ready to start."""

    def __init__(self, plan: Plan, *, live: bool) -> None:
        self.plan = plan
        self.dataplane = Fabric(live)
        self.node_of: dict[str, int] = {}
        self.nic_nodes: dict[Nic, int] = {}
        self.qp_flows: list[tuple[Flow, int, int]] = []
        """Of each flow: itself, its requester's queue pair number, and the number of its first message."""
        self._qps_of_nic: dict[Nic, int] = {}
        self._build()

    @property
    def topology(self) -> Topology:
        return self.plan.topology

    def _build(self) -> None:
        for nic in self.topology.nics:
            node = self.dataplane.add_nic(list(mac_bytes(nic.mac)), nic_lldp(nic.name, nic.mac, nic.ip))
            self.dataplane.add_port(node, line_rate(self.plan, nic).bps)
            self.nic_nodes[nic] = node
            self.node_of[nic.name] = node
        switch_section = self.plan.scenario.switch
        for number, switch in enumerate(self.topology.switches, 1):
            spec = switch_spec(switch_section, number, self.plan.scenario.seed, self.plan.lossless_mask)
            node = self.dataplane.add_switch(spec)
            self.node_of[switch.name] = node
            self._add_ports(node, switch.name)
        pfc = switch_section.pfc
        for end in self.topology.link_at:
            node, port = self.locate(end)
            names = {end.node} | {nic.name for nic in self.topology.nics_of(end.node) if nic.index == end.port}
            ignores = not names.isdisjoint(pfc.ignored_by)
            if ignores or pfc.response_delay.ps:
                self.dataplane.set_pause_response(node, port, pfc.response_delay.ps, ignores)
        for link in self.topology.links:
            self.dataplane.connect(self.locate(link.a), self.locate(link.b), link.delay.ps)

    def _add_ports(self, node: int, name: str) -> None:
        section = self.plan.scenario.switch
        for number in range(1, self.topology.switch_ports(name) + 1):
            link = self.topology.link_at[PortRef(name, number)]
            ecn = ecn_specs(section, link.rate)
            self.dataplane.add_port(node, link.rate.bps, self.plan.headroom_bytes(link), ecn, queue_specs(section))

    def locate(self, ref: PortRef) -> tuple[int, int]:
        """Node number and port index of a port in the dataplane."""
        if ref.node in self.topology.switch_names:
            return self.node_of[ref.node], ref.port - 1
        nic = self.topology.nics_of(ref.node)[ref.port]
        return self.nic_nodes[nic], 0

    def add_traffic(self) -> None:
        """Connects a queue pair for each flow, posts its messages, and plans the faults. Call once the run has begun."""
        for flow in self.plan.flows:
            self._add_flow(flow)
        for storm, nic in self.plan.storms:
            self._add_storm(storm, nic)
        for number, (fault, link) in enumerate(self.plan.link_faults):
            self._add_link_fault(number, fault, link)

    def _add_storm(self, storm: PfcStorm, nic: Nic) -> None:
        at, until = storm.at.ps, storm.at.ps + storm.duration.ps
        interval_ps = storm.interval.ps if storm.interval else 0
        everything = storm.frame == "pause"
        # One kind of frame stops the whole link, the other one priority.
        for priority in storm.priorities[:1] if everything else storm.priorities:
            self.dataplane.schedule_storm(at, until, self.nic_nodes[nic], priority, storm.quanta, interval_ps, everything)

    def _add_link_fault(self, number: int, fault: LinkFault, link: Link) -> None:
        node, port = self.locate(link.a)
        dataplane = self.dataplane
        if isinstance(fault, LinkDown):
            dataplane.schedule_link(fault.at.ps, node, port, False)
            if fault.up_at is not None:
                dataplane.schedule_link(fault.up_at.ps, node, port, True)
            return
        if isinstance(fault, LinkFlap):
            for i in range(fault.times):
                at = fault.at.ps + i * (fault.down.ps + fault.up.ps)
                dataplane.schedule_link(at, node, port, False)
                dataplane.schedule_link(at + fault.down.ps, node, port, True)
            return
        kind, value = impairment_of(fault)
        seed = random.Random(f"link fault {self.plan.scenario.seed} {number}").getrandbits(63)
        dataplane.schedule_impairment(fault.at.ps, node, port, kind, value, seed)
        if fault.until is not None:
            dataplane.schedule_impairment(fault.until.ps, node, port, kind, 0.0, seed)

    def _add_flow(self, flow: Flow) -> None:
        qpns = [self._next_qpn(flow.src), self._next_qpn(flow.dst)]
        seed = f"psn {self.plan.scenario.seed} {len(self.qp_flows)}"
        psns = [random.Random(f"{seed} {side}").getrandbits(24) for side in (0, 1)]
        ends = [flow.src, flow.dst]
        indexes = [self._add_qp(ends, qpns, psns, side, flow.dscp) for side in (0, 1)]
        nodes = [self.nic_nodes[nic] for nic in ends]
        self.dataplane.pair_qps((nodes[0], indexes[0]), (nodes[1], indexes[1]))
        first = -1
        for i in range(flow.messages):
            message = self.dataplane.add_message(nodes[0], indexes[0], flow.size_bytes, flow.start.ps)
            first = message if i == 0 else first
        self.qp_flows.append((flow, qpns[0], first))

    def _next_qpn(self, nic: Nic) -> int:
        used = self._qps_of_nic.get(nic, 0)
        self._qps_of_nic[nic] = used + 1
        return FIRST_QPN + used

    def _add_qp(self, ends: list[Nic], qpns: list[int], psns: list[int], side: int, dscp: int) -> int:
        nic, peer = ends[side], ends[1 - side]
        section = self.plan.scenario.nic
        sport = flow_label_to_udp_sport(flow_label_of_qps(qpns[side], qpns[1 - side]))
        priorities: Mapping[int, int] = self.plan.scenario.switch.dscp_to_priority
        template = roce_template(
            Endpoint(nic.mac, nic.ip),
            Endpoint(peer.mac, peer.ip),
            remote_qpn=qpns[1 - side],
            udp_sport=sport,
            dscp=dscp,
            ecn={"ect0": 0b10, "ect1": 0b01, "not-ect": 0}[section.ecn],
        )
        return self.dataplane.add_qp(
            self.nic_nodes[nic],
            {
                "qpn": qpns[side],
                "peer_qpn": qpns[1 - side],
                "template": template,
                "mtu_bytes": section.mtu,
                "start_psn": psns[side],
                "peer_start_psn": psns[1 - side],
                "priority": priorities.get(dscp, 0),
                "timeout_exponent": section.timeout,
                "retry_count": section.retry_count,
                "ack_every_packets": section.ack_every,
                "dcqcn": dcqcn_spec(section.dcqcn, line_rate(self.plan, nic)),
                "cnp_interval_ps": cnp_interval_ps(section.dcqcn),
                "cnp_dscp": section.cnp_dscp,
                "cnp_priority": priorities.get(section.cnp_dscp, 0),
                "remote_address": REMOTE_ADDRESS,
                "rkey": qpns[1 - side] << 8 | 1,
            },
        )


def apply_changes(dataplane: Fabric, node: int, changes: Changes, flow_ids: "FlowIds") -> None:
    """Puts a switch's changes into its tables, as the OpenFlow agent does with the messages made from them."""
    for group in changes.groups:
        dataplane.group_set(node, group.group, "select", [(1, [("output", port)]) for port in group.ports])
    for rule in changes.flows:
        actions = [rule.action] if rule.action else []
        dataplane.flow_add(node, rule.table, rule.priority, 0, flow_ids.next(), _match(rule), actions, rule.goto)
    for rule in changes.removed_flows:
        dataplane.flow_delete(node, rule.table, _match(rule), rule.priority, None, None, 0, 0)
    for group_id in changes.removed_groups:
        dataplane.group_delete(node, group_id)


def _match(rule: FlowRule) -> list[tuple[str, int, int | None]]:
    return [(name, value, None) for name, value in rule.match]


class FlowIds:
    """Numbers for flow entries."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        self._last += 1
        return self._last
