"""From a valid scenario to what runs: the topology, every message, every fault, every check between sections made."""

import random
from dataclasses import dataclass

from testbed.scenario.load import Problem, ScenarioError, Source
from testbed.scenario.profiles import ecn_profile
from testbed.scenario.schema import (
    FatTree,
    Incast,
    LeafSpine,
    LinkDown,
    LinkFault,
    LinkFlap,
    LinkLoss,
    Pairwise,
    Permutation,
    PfcStorm,
    RailOptimized,
    Scenario,
)
from testbed.topology import AddressPlanError, Link, Nic, Topology, fat_tree, leaf_spine, rail_optimized
from testbed.topology.model import LID_UNICAST_MAX
from testbed.units import BitRate, Duration, Size
from traffic.patterns import derangement

MTU_OVERHEAD_BYTES = 14 + 4 + 20 + 8 + 12 + 16 + 4
"""Headers around a full RDMA WRITE payload: Ethernet, tag, IPv4, UDP, BTH, RETH, ICRC."""


WIRE_OVERHEAD_BYTES, PAUSE_WIRE_BYTES = 24, 84
"""What a frame takes on the medium beside its bytes, and what a pause frame takes in all (IEEE 802.3 clause 4.4.2)."""


@dataclass(frozen=True)
class Flow:
    """A queue pair's messages: who sends to whom, how much, from when."""

    src: Nic
    dst: Nic
    size_bytes: int
    messages: int
    start: Duration
    dscp: int
    label: str | None


@dataclass(frozen=True)
class Plan:
    """Everything that a run needs, resolved."""

    scenario: Scenario
    topology: Topology
    flows: tuple[Flow, ...]
    storms: tuple[tuple[PfcStorm, Nic], ...]
    link_faults: tuple[tuple[LinkFault, Link], ...]
    captures: tuple[Link, ...]

    @property
    def frame_bytes(self) -> int:
        """Largest frame of the scenario's own traffic."""
        return self.scenario.nic.mtu + MTU_OVERHEAD_BYTES

    @property
    def lossless_mask(self) -> int:
        """Lossless priorities as bits. Without PFC nothing can be lossless."""
        switch = self.scenario.switch
        return sum(1 << p for p in set(switch.lossless)) if switch.pfc.enabled else 0

    @property
    def slack(self) -> Duration:
        """How much longer than on the cable frames keep coming: the pipeline, and the peer's response to a pause frame."""
        switch = self.scenario.switch
        return Duration(switch.pipeline_latency.ps + switch.pfc.response_delay.ps)

    def headroom_bytes(self, link: Link) -> int:
        """Headroom of a lossless priority at a port of this link: what may still arrive once XOFF is called for.

        After IEEE 802.1Qbb annex O and SONiC's buffer calculation: the cable both ways (2 x rate x delay), the frame that reached
        the threshold, the one in our transmitter that the pause frame waits for, the one in the peer's that it cannot stop, and
        pause frames of the eight priorities, what is in the pipeline on its way to the buffer, and what the peer sends until it
        responds.
        """
        configured = self.scenario.switch.pfc.headroom
        if configured != "auto":
            return configured.bytes
        return headroom_bytes(link.rate, link.delay, self.frame_bytes, self.slack)


def headroom_bytes(rate: BitRate, delay: Duration, frame_bytes: int, slack: Duration) -> int:
    """The sum described at `Plan.headroom_bytes`."""
    on_the_cable = rate.bps * (2 * delay.ps + slack.ps) // (8 * 10**12)
    return on_the_cable + 3 * (frame_bytes + WIRE_OVERHEAD_BYTES) + 8 * PAUSE_WIRE_BYTES


def node_count(section: LeafSpine | FatTree | RailOptimized) -> int:
    """NICs and switches of a topology, before anything of that size is built."""
    if isinstance(section, LeafSpine):
        return section.leaves * (section.hosts_per_leaf + 1) + section.spines
    if isinstance(section, FatTree):
        return section.k**3 // 4 + 5 * section.k**2 // 4
    return section.gpus_per_node * (section.nodes + section.leaves_per_rail) + section.spines


def build_topology(scenario: Scenario) -> Topology:
    """The topology value of a scenario.

    Raises:
        AddressPlanError: more NICs than the address plan holds.
    """
    section = scenario.topology
    if (total := node_count(section)) > LID_UNICAST_MAX:
        raise AddressPlanError(f"{total} NICs and switches, but the address plan has {LID_UNICAST_MAX} unicast LIDs")
    links = {"host_rate": section.host_rate, "fabric_rate": section.fabric_rate}
    if isinstance(section, LeafSpine):
        return leaf_spine(
            spines=section.spines,
            leaves=section.leaves,
            hosts_per_leaf=section.hosts_per_leaf,
            delay=section.delay,
            **links,
        )
    if isinstance(section, FatTree):
        return fat_tree(k=section.k, delay=section.delay, **links)
    return rail_optimized(
        nodes=section.nodes,
        gpus_per_node=section.gpus_per_node,
        leaves_per_rail=section.leaves_per_rail,
        spines=section.spines,
        delay=section.delay,
        **links,
    )


class _Planner:
    """Resolves names and checks sections against each other, collecting problems."""

    def __init__(self, scenario: Scenario, source: Source) -> None:
        self.scenario = scenario
        self.source = source
        self.problems: list[Problem] = []

    def fail(self, path: tuple[str | int, ...], message: str) -> None:
        self.problems.append(self.source.problem(path, message))

    def plan(self) -> Plan:
        try:
            self.topology = build_topology(self.scenario)
        except AddressPlanError as error:
            self.fail(("topology",), f"{error}: make the topology smaller")
            raise ScenarioError(self.problems) from None
        self._check_buffer()
        flows = [flow for i in range(len(self.scenario.traffic)) for flow in self._flows(i)]
        storms, link_faults = self._faults()
        captures = [link for i, name in enumerate(self.scenario.captures) if (link := self._link(("captures", i), name))]
        self._check_expectations()
        for i, name in enumerate(self.scenario.switch.pfc.ignored_by):
            if name not in self.topology.switch_names:
                self._nic(("switch", "pfc", "ignored_by", i), name)
        if self.problems:
            raise ScenarioError(self.problems)
        return Plan(
            self.scenario,
            self.topology,
            tuple(flows),
            tuple(storms),
            tuple(link_faults),
            tuple(dict.fromkeys(captures)),
        )

    def _check_buffer(self) -> None:
        switch = self.scenario.switch
        pfc = switch.pfc
        for key, size in (("xoff", pfc.xoff), ("xon_offset", pfc.xon_offset), ("reserved", pfc.reserved)):
            if size is not None:
                self._check_below_buffer(("switch", "pfc", key), size.bytes, "threshold" if key == "xoff" else key)
        self._check_below_buffer(("switch", "cell"), switch.cell.bytes, "cell")
        for rate in {self.scenario.topology.host_rate, self.scenario.topology.fabric_rate}:
            self._check_ecn(rate)
        self._check_headroom()

    def _check_below_buffer(self, path: tuple[str | int, ...], size_bytes: int, what: str) -> None:
        buffer = self.scenario.switch.buffer
        if size_bytes > buffer.bytes:
            self.fail(path, f"{what} {Size(size_bytes)} is above the buffer of {buffer}: lower it, or enlarge switch.buffer")

    def _check_ecn(self, rate: BitRate) -> None:
        ecn = self.scenario.switch.ecn
        profile = ecn_profile(ecn, rate)
        if profile is None:
            return
        for key, size_bytes in (("kmin", profile[0]), ("kmax", profile[1])):
            own = getattr(ecn, key) is not None
            path = ("switch", "ecn", key) if own else ("switch", "ecn", "profile")
            name = "threshold" if own else f"at {rate}, {key} of profile {ecn.profile}"
            self._check_below_buffer(path, size_bytes, name)
        if profile[0] > profile[1]:
            self.fail(("switch", "ecn"), f"at {rate}, Kmin ({profile[0]} B) is above Kmax ({profile[1]} B): exchange them")

    def _check_headroom(self) -> None:
        switch = self.scenario.switch
        plan = Plan(self.scenario, self.topology, (), (), (), ())
        priorities = plan.lossless_mask.bit_count()
        if not priorities:
            return
        needed: dict[str, int] = {}
        for end, link in self.topology.link_at.items():
            if end.node in self.topology.switch_names:
                own = plan.headroom_bytes(link) + switch.pfc.reserved.bytes
                needed[end.node] = needed.get(end.node, 0) + priorities * own
        name, most = max(needed.items(), key=lambda item: item[1])
        if most >= switch.buffer.bytes:
            self.fail(
                ("switch", "buffer"),
                f"headroom and reserve of {name}'s ports take {most} B, and the buffer has {switch.buffer.bytes} B: "
                "enlarge it, or set switch.pfc.headroom",
            )

    def _nic(self, path: tuple[str | int, ...], name: str) -> Nic | None:
        nic = self.topology.nic_by_name.get(name)
        if nic is None:
            nics = self.topology.nics
            self.fail(path, f"there is no host {name!r} here: hosts are {nics[0].name} to {nics[-1].name}")
        return nic

    def _link(self, path: tuple[str | int, ...], name: str) -> Link | None:
        found = self.topology.links_named(name)
        if not found:
            example = self.topology.links[-1].name
            self.fail(path, f"there is no link {name!r} here: write it as in {example}, or a port as in leaf1:eth1")
            return None
        if len(found) > 1:
            self.fail(path, f"{len(found)} links are called {name!r}: name one of their ports, as in {found[0].a}")
        return found[0]

    def _pairs(self, index: int) -> list[tuple[Nic, Nic]]:
        section = self.scenario.traffic[index]
        path: tuple[str | int, ...] = ("traffic", index)
        wanted: list[tuple[Nic | None, Nic | None]]
        if isinstance(section, Incast):
            receiver = self._nic((*path, "receiver"), section.receiver)
            wanted = [(self._nic((*path, "senders", i), s), receiver) for i, s in enumerate(section.senders)]
        elif isinstance(section, Pairwise):
            wanted = [
                (self._nic((*path, "pairs", i), a), self._nic((*path, "pairs", i), b)) for i, (a, b) in enumerate(section.pairs)
            ]
        else:
            wanted = list(self._permutation(section, path))
        pairs = [(a, b) for a, b in wanted if a and b]
        for a, b in pairs:
            if a == b:
                self.fail(path, f"{a.name} cannot send to itself: name another host")
        return pairs

    def _permutation(self, section: Permutation, path: tuple[str | int, ...]) -> list[tuple[Nic | None, Nic | None]]:
        if section.hosts == "all":
            nics: list[Nic | None] = list(self.topology.nics)
        else:
            nics = [self._nic((*path, "hosts", i), name) for i, name in enumerate(section.hosts)]
        if len(set(nics)) < 2:
            self.fail(path, "a permutation needs at least two different hosts")
            return []
        rng = random.Random(f"permutation {self.scenario.seed} {path[1]}")
        return [(nics[i], nics[j]) for i, j in enumerate(derangement(len(nics), rng))]

    def _flows(self, index: int) -> list[Flow]:
        section = self.scenario.traffic[index]
        dscp = self.scenario.nic.dscp if section.dscp is None else section.dscp
        return [
            Flow(src, dst, section.size.bytes, section.messages, section.start, dscp, section.label)
            for src, dst in self._pairs(index)
            for _ in range(section.qps)
        ]

    def _faults(self) -> tuple[list[tuple[PfcStorm, Nic]], list[tuple[LinkFault, Link]]]:
        storms: list[tuple[PfcStorm, Nic]] = []
        links: list[tuple[LinkFault, Link]] = []
        for i, fault in enumerate(self.scenario.faults):
            if isinstance(fault, PfcStorm):
                if (nic := self._nic(("faults", i, "nic"), fault.nic)) and fault.enabled:
                    storms.append((fault, nic))
                continue
            self._check_link_fault(i, fault)
            if (link := self._link(("faults", i, "link"), fault.link)) and fault.enabled:
                links.append((fault, link))
        return storms, links

    def _check_link_fault(self, index: int, fault: LinkFault) -> None:
        if isinstance(fault, LinkDown):
            if fault.up_at is not None and fault.up_at <= fault.at:
                self.fail(("faults", index, "up_at"), "is not after at: the link has to go down first")
        elif not isinstance(fault, LinkFlap) and fault.until is not None and fault.until <= fault.at:
            self.fail(("faults", index, "until"), "is not after at")
        if isinstance(fault, LinkLoss) and (fault.rate is None) == (fault.every is None):
            self.fail(("faults", index), "needs exactly one of rate, every")

    def _check_expectations(self) -> None:
        for i, expectation in enumerate(self.scenario.expect):
            given = [c for c in (expectation.equals, expectation.above, expectation.below) if c is not None]
            if len(given) != 1:
                self.fail(("expect", i), "needs exactly one of equals, above, below")


def make_plan(scenario: Scenario, source: Source) -> Plan:
    """Resolves a scenario.

    Raises:
        ScenarioError: with every contradiction found, each with its file and line.
    """
    return _Planner(scenario, source).plan()


def line_rate(plan: Plan, nic: Nic) -> BitRate:
    """Rate of a NIC's link."""
    return plan.topology.link_at[nic.ref].rate
