"""The switch side of OpenFlow against os-ken's own parser, and against anything else that may come over a connection."""

import contextlib
import socket
import struct
import time
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from os_ken.ofproto import ofproto_parser, ofproto_v1_3
from os_ken.ofproto import ofproto_v1_3_parser as p
from os_ken.ofproto.ofproto_protocol import ProtocolDesc

from testbed._dataplane import Fabric
from testbed.fabric import switch_spec
from testbed.openflow import codec
from testbed.openflow.agent import Agent, PortInfo
from testbed.openflow.connection import Connection
from testbed.scenario.schema import SwitchSection

o = ofproto_v1_3
DPID = 0x2A


class Peer(ProtocolDesc):
    """What os-ken's messages want to know of a datapath."""

    def __init__(self):
        super().__init__(version=o.OFP_VERSION)


def make_agent(ports=4):
    fabric = Fabric()
    node = fabric.add_switch(switch_spec(SwitchSection(), 1, 1, 1 << 3))
    for _ in range(ports):
        fabric.add_port(node, 10**11)
    return Agent(fabric, node, DPID, "leaf1", {i + 1: PortInfo(f"leaf1-eth{i + 1}", bytes(6), 10**11) for i in range(ports)})


def ask(agent, message):
    """Sends one of os-ken's messages; returns the answers as os-ken parses them."""
    message.xid = message.xid or 7
    message.serialize()
    return [read(data) for data in agent.handle(bytes(message.buf))]


def read(data):
    version, kind, length, xid = ofproto_parser.header(data)
    assert length == len(data)
    return ofproto_parser.msg(Peer(), version, kind, length, xid, data)


def output(*ports):
    return [p.OFPInstructionActions(o.OFPIT_APPLY_ACTIONS, [p.OFPActionOutput(port) for port in ports])]


def flow_mod(command=o.OFPFC_ADD, instructions=None, match=None, **fields):
    fields = {"priority": 10, "out_port": o.OFPP_ANY, "out_group": o.OFPG_ANY, **fields}
    return p.OFPFlowMod(Peer(), command=command, match=match or p.OFPMatch(), instructions=instructions or [], **fields)


def flows(agent, **fields):
    fields = {"table_id": o.OFPTT_ALL, "out_port": o.OFPP_ANY, "out_group": o.OFPG_ANY, "match": p.OFPMatch(), **fields}
    answers = ask(agent, p.OFPFlowStatsRequest(Peer(), 0, **fields))
    return [flow for answer in answers for flow in answer.body]


def expect_error(answers, type_, code):
    (error,) = answers
    assert isinstance(error, p.OFPErrorMsg)
    assert (error.type, error.code) == (type_, code)


def test_features_and_ports():
    agent = make_agent()
    (features,) = ask(agent, p.OFPFeaturesRequest(Peer()))
    assert features.datapath_id == DPID
    assert features.n_tables == 4
    (description,) = ask(agent, p.OFPPortDescStatsRequest(Peer(), 0))
    assert [port.port_no for port in description.body] == [1, 2, 3, 4]
    assert description.body[0].name == b"leaf1-eth1"
    assert description.body[0].curr_speed == 10**8
    (desc,) = ask(agent, p.OFPDescStatsRequest(Peer(), 0))
    assert desc.body.dp_desc == b"leaf1"


def test_echo_barrier_and_configuration():
    agent = make_agent()
    (echo,) = ask(agent, p.OFPEchoRequest(Peer(), b"hello"))
    assert echo.data == b"hello"
    (barrier,) = ask(agent, p.OFPBarrierRequest(Peer()))
    assert isinstance(barrier, p.OFPBarrierReply)
    assert ask(agent, p.OFPSetConfig(Peer(), 0, 64)) == []
    (config,) = ask(agent, p.OFPGetConfigRequest(Peer()))
    assert config.miss_send_len == 64


def test_flows_are_added_replaced_modified_and_deleted():
    agent = make_agent()
    match = p.OFPMatch(eth_type=0x0800, ipv4_dst=("10.0.0.0", "255.255.0.0"))
    assert ask(agent, flow_mod(match=match, instructions=output(1), cookie=5)) == []
    assert ask(agent, flow_mod(match=match, instructions=output(2), cookie=6)) == []
    (flow,) = flows(agent)
    assert (flow.cookie, flow.priority, flow.table_id) == (6, 10, 0)
    assert flow.match["ipv4_dst"] == ("10.0.0.0", "255.255.0.0")
    assert flow.instructions[0].actions[0].port == 2
    assert ask(agent, flow_mod(o.OFPFC_MODIFY, match=match, instructions=output(3))) == []
    assert flows(agent)[0].instructions[0].actions[0].port == 3
    assert flows(agent, out_port=2) == []
    assert len(flows(agent, out_port=3)) == 1
    assert len(flows(agent, cookie=6, cookie_mask=0xFF)) == 1
    assert flows(agent, cookie=7, cookie_mask=0xFF) == []
    ask(agent, flow_mod(o.OFPFC_DELETE_STRICT, match=match, priority=11))
    assert len(flows(agent)) == 1
    ask(agent, flow_mod(o.OFPFC_DELETE, match=p.OFPMatch(eth_type=0x0800)))
    assert flows(agent) == []
    (aggregate,) = ask(agent, p.OFPAggregateStatsRequest(Peer(), 0, o.OFPTT_ALL, o.OFPP_ANY, o.OFPG_ANY, 0, 0, p.OFPMatch()))
    assert aggregate.body.flow_count == 0


def test_groups():
    agent = make_agent()
    buckets = [p.OFPBucket(weight=1, actions=[p.OFPActionOutput(port)]) for port in (1, 2)]
    assert ask(agent, p.OFPGroupMod(Peer(), o.OFPGC_ADD, o.OFPGT_SELECT, 9, buckets)) == []
    expect_error(
        ask(agent, p.OFPGroupMod(Peer(), o.OFPGC_ADD, o.OFPGT_SELECT, 9, buckets)),
        o.OFPET_GROUP_MOD_FAILED,
        o.OFPGMFC_GROUP_EXISTS,
    )
    (description,) = ask(agent, p.OFPGroupDescStatsRequest(Peer(), 0))
    assert [b.actions[0].port for b in description.body[0].buckets] == [1, 2]
    (stats,) = ask(agent, p.OFPGroupStatsRequest(Peer(), 0, o.OFPG_ALL))
    assert stats.body[0].group_id == 9
    (features,) = ask(agent, p.OFPGroupFeaturesStatsRequest(Peer(), 0))
    assert features.body.types & 1 << o.OFPGT_SELECT
    group = [p.OFPInstructionActions(o.OFPIT_APPLY_ACTIONS, [p.OFPActionGroup(9)])]
    assert ask(agent, flow_mod(instructions=group)) == []
    # The flow goes with its group.
    assert ask(agent, p.OFPGroupMod(Peer(), o.OFPGC_DELETE, o.OFPGT_SELECT, 9, [])) == []
    assert flows(agent) == []
    expect_error(ask(agent, flow_mod(instructions=group)), o.OFPET_BAD_ACTION, o.OFPBAC_BAD_OUT_GROUP)


def test_groups_that_would_loop_are_refused():
    agent = make_agent()

    def bucket(group):
        return [p.OFPBucket(weight=1, actions=[p.OFPActionGroup(group)])]

    ask(agent, p.OFPGroupMod(Peer(), o.OFPGC_ADD, o.OFPGT_ALL, 1, [p.OFPBucket(actions=[p.OFPActionOutput(1)])]))
    ask(agent, p.OFPGroupMod(Peer(), o.OFPGC_ADD, o.OFPGT_ALL, 2, bucket(1)))
    loop = p.OFPGroupMod(Peer(), o.OFPGC_MODIFY, o.OFPGT_ALL, 1, bucket(2))
    expect_error(ask(agent, loop), o.OFPET_GROUP_MOD_FAILED, o.OFPGMFC_LOOP)


@pytest.mark.parametrize(
    ("message", "type_", "code"),
    [
        (flow_mod(instructions=output(99)), o.OFPET_BAD_ACTION, o.OFPBAC_BAD_OUT_PORT),
        (flow_mod(instructions=output(o.OFPP_FLOOD)), o.OFPET_BAD_ACTION, o.OFPBAC_BAD_OUT_PORT),
        (flow_mod(table_id=200), o.OFPET_FLOW_MOD_FAILED, o.OFPFMFC_BAD_TABLE_ID),
        (flow_mod(idle_timeout=5), o.OFPET_FLOW_MOD_FAILED, o.OFPFMFC_BAD_TIMEOUT),
        (flow_mod(flags=o.OFPFF_SEND_FLOW_REM), o.OFPET_FLOW_MOD_FAILED, o.OFPFMFC_BAD_FLAGS),
        (flow_mod(command=77), o.OFPET_FLOW_MOD_FAILED, o.OFPFMFC_BAD_COMMAND),
        (flow_mod(match=p.OFPMatch(mpls_label=3)), o.OFPET_BAD_MATCH, o.OFPBMC_BAD_FIELD),
        (flow_mod(instructions=[p.OFPInstructionGotoTable(0)]), o.OFPET_BAD_INSTRUCTION, o.OFPBIC_BAD_TABLE_ID),
        (flow_mod(instructions=[p.OFPInstructionMeter(1)]), o.OFPET_BAD_INSTRUCTION, o.OFPBIC_UNSUP_INST),
        (
            flow_mod(instructions=[p.OFPInstructionActions(o.OFPIT_APPLY_ACTIONS, [p.OFPActionPopVlan()])]),
            o.OFPET_BAD_ACTION,
            o.OFPBAC_BAD_TYPE,
        ),
        (p.OFPMeterMod(Peer()), o.OFPET_BAD_REQUEST, o.OFPBRC_BAD_TYPE),
        (p.OFPTableFeaturesStatsRequest(Peer(), 0, []), o.OFPET_BAD_REQUEST, o.OFPBRC_BAD_MULTIPART),
        (p.OFPPortStatsRequest(Peer(), 0, 99), o.OFPET_BAD_REQUEST, o.OFPBRC_BAD_PORT),
        (p.OFPGroupMod(Peer(), o.OFPGC_ADD, o.OFPGT_FF, 1, []), o.OFPET_GROUP_MOD_FAILED, o.OFPGMFC_BAD_TYPE),
    ],
    ids=lambda v: getattr(v, "__class__", type(v)).__name__ if not isinstance(v, int) else str(v),
)
def test_what_is_not_supported_is_refused_by_name(message, type_, code):
    expect_error(ask(make_agent(), message), type_, code)


def test_a_mod_too_long_to_be_told_again_is_refused():
    actions = [p.OFPActionOutput(1)] * 4091
    mod = flow_mod(instructions=[p.OFPInstructionActions(o.OFPIT_APPLY_ACTIONS, actions)])
    agent = make_agent()
    expect_error(ask(agent, mod), o.OFPET_BAD_INSTRUCTION, o.OFPBIC_BAD_LEN)
    assert flows(agent) == []


def test_chains_of_groups_are_as_deep_as_they_are_followed():
    agent = make_agent()

    def add(group, actions, command=o.OFPGC_ADD):
        return ask(agent, p.OFPGroupMod(Peer(), command, o.OFPGT_ALL, group, [p.OFPBucket(actions=actions)]))

    assert add(1, [p.OFPActionOutput(1)]) == []
    for group in (2, 3, 4):
        assert add(group, [p.OFPActionGroup(group - 1)]) == []
    expect_error(add(5, [p.OFPActionGroup(4)]), o.OFPET_GROUP_MOD_FAILED, o.OFPGMFC_LOOP)
    assert add(9, [p.OFPActionOutput(2)]) == []
    deeper = add(1, [p.OFPActionGroup(9)], o.OFPGC_MODIFY)
    expect_error(deeper, o.OFPET_GROUP_MOD_FAILED, o.OFPGMFC_CHAINING_UNSUPPORTED)
    # The deepest chain that is allowed is followed to its end.
    frame = bytes.fromhex("020000000001020000000002") + b"\x88\xb5" + bytes(46)
    assert ask(agent, p.OFPPacketOut(Peer(), o.OFP_NO_BUFFER, o.OFPP_CONTROLLER, [p.OFPActionGroup(4)], frame)) == []
    assert agent.dataplane.port_counters(agent.node, 0)["tx_frames"][0] == 1


def test_nobody_sends_pause_frames_across_a_switch():
    agent = make_agent()
    pause = bytes.fromhex("0180c2000001020000000009 8808 0101 0008".replace(" ", "")) + bytes(42)
    out = p.OFPPacketOut(Peer(), o.OFP_NO_BUFFER, o.OFPP_CONTROLLER, [p.OFPActionOutput(1)], pause)
    assert ask(agent, out) == []
    assert agent.dataplane.node_counters(agent.node)["drops"]["malformed"] == 1
    assert agent.dataplane.conservation()["balanced"]


def test_packets_out_and_in():
    agent = make_agent()
    sent: list[bytes] = []
    agent.connections.append(SimpleNamespace(send=sent.append))
    frame = bytes.fromhex("020000000001020000000002") + b"\x88\xb5" + bytes(46)
    table = [p.OFPInstructionActions(o.OFPIT_APPLY_ACTIONS, [p.OFPActionOutput(o.OFPP_CONTROLLER, o.OFPCML_NO_BUFFER)])]
    ask(agent, flow_mod(match=p.OFPMatch(in_port=2), instructions=table, cookie=0x77))
    out = p.OFPPacketOut(Peer(), o.OFP_NO_BUFFER, o.OFPP_CONTROLLER, [p.OFPActionOutput(1)], frame)
    assert ask(agent, out) == []
    agent.dataplane.run()
    assert agent.dataplane.port_counters(agent.node, 0)["tx_frames"][0] == 1
    # What comes in by port 2 goes to the controller.
    fabric, node = agent.dataplane, agent.node
    nic = fabric.add_nic([2, 0, 0, 0, 0, 9], None)
    fabric.add_port(nic, 10**11)
    agent.packet_in(1, 0, 0x77, o.OFPR_ACTION, frame)
    (message,) = (read(data) for data in sent)
    assert message.match["in_port"] == 2
    assert (message.cookie, message.reason, message.data) == (0x77, o.OFPR_ACTION, frame)
    (stats,) = ask(agent, p.OFPPortStatsRequest(Peer(), 0, o.OFPP_ANY))
    assert [s.tx_packets for s in stats.body] == [1, 0, 0, 0]
    assert node == agent.node


def test_long_replies_are_split():
    agent = make_agent()
    for i in range(3000):
        ask(agent, flow_mod(match=p.OFPMatch(eth_dst=f"02:00:00:00:{i >> 8:02x}:{i & 255:02x}"), instructions=output(1)))
    answers = ask(agent, p.OFPFlowStatsRequest(Peer(), 0, o.OFPTT_ALL, o.OFPP_ANY, o.OFPG_ANY, 0, 0, p.OFPMatch()))
    assert len(answers) > 1
    assert [a.flags & o.OFPMPF_REPLY_MORE for a in answers] == [1] * (len(answers) - 1) + [0]
    assert sum(len(a.body) for a in answers) == 3000


def test_a_report_is_confirmed_by_a_barrier_of_its_id():
    agent = make_agent()
    sent: list[bytes] = []
    agent.connections.append(SimpleNamespace(send=sent.append))
    agent.port_changed(0)
    status = read(sent[0])
    assert isinstance(status, p.OFPPortStatus)
    assert agent.unconfirmed == {status.xid}
    other = p.OFPBarrierRequest(Peer())
    other.xid = status.xid + 1
    ask(agent, other)
    assert agent.unconfirmed
    mine = p.OFPBarrierRequest(Peer())
    mine.xid = status.xid
    ask(agent, mine)
    assert not agent.unconfirmed


def test_negotiation_wants_version_1_3():
    agent = make_agent()
    assert agent.handle(struct.pack("!BBHI", 4, 0, 8, 1)) == []
    assert agent.handle(struct.pack("!BBHI", 5, 0, 8, 1)) == []
    (answer,) = agent.handle(struct.pack("!BBHI", 1, 0, 8, 1))
    assert read(answer).type == o.OFPET_HELLO_FAILED
    (answer,) = agent.handle(struct.pack("!BBHI", 1, o.OFPT_ECHO_REQUEST, 8, 1))
    assert read(answer).code == o.OFPBRC_BAD_VERSION


def seeds():
    """Real messages, to be damaged."""
    everything = [
        flow_mod(match=p.OFPMatch(in_port=1, eth_type=0x0800, ipv4_dst="10.0.0.1"), instructions=output(1, 2)),
        p.OFPGroupMod(Peer(), o.OFPGC_ADD, o.OFPGT_SELECT, 1, [p.OFPBucket(weight=1, actions=[p.OFPActionOutput(1)])] * 2),
        p.OFPPacketOut(Peer(), o.OFP_NO_BUFFER, 1, [p.OFPActionOutput(2)], bytes(60)),
        p.OFPFlowStatsRequest(Peer(), 0, o.OFPTT_ALL, o.OFPP_ANY, o.OFPG_ANY, 0, 0, p.OFPMatch(in_port=1)),
        p.OFPPortStatsRequest(Peer(), 0, o.OFPP_ANY),
    ]
    for message in everything:
        message.xid = 1
        message.serialize()
    return [bytes(m.buf) for m in everything]


SEEDS = seeds()


@settings(max_examples=1500, deadline=None)
@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.integers(1, 200), st.integers(0, 255)), max_size=8),
    st.integers(8, 200),
)
def test_damaged_messages_are_answered_and_do_no_harm(seed, changes, length):
    data = bytearray(seed[:length])
    for at, value in changes:
        if at < len(data):
            data[at] = value
    data[2:4] = len(data).to_bytes(2, "big")
    agent = make_agent()
    for answer in agent.handle(bytes(data)):
        assert len(answer) == int.from_bytes(answer[2:4], "big")
    agent.dataplane.run(budget_events=1000)
    # It still works.
    assert len(ask(agent, p.OFPFeaturesRequest(Peer()))) == 1


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 40), st.binary(max_size=120))
def test_any_bytes_are_answered(kind, body):
    make_agent().handle(struct.pack("!BBHI", codec.VERSION, kind, 8 + len(body), 1) + body)


class TestConnection:
    @staticmethod
    def until(condition, connection, timeout_s=10):
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end
            connection.poll()
            time.sleep(0.001)

    def test_it_comes_back_when_the_controller_does(self):
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = first.getsockname()[1]
            connection = Connection("127.0.0.1", port, lambda: b"hello", lambda request: [request])
            first.setblocking(False)
            accepted: list[socket.socket] = []

            def accept(server):
                try:
                    accepted.append(server.accept()[0])
                except BlockingIOError:
                    return False
                return True

            self.until(lambda: accept(first), connection)
            self.until(lambda: connection.connected, connection)
            request = struct.pack("!BBHI", 4, 2, 12, 1) + b"data"
            # Piece by piece.
            accepted[0].send(request[:5])
            connection.poll()
            accepted[0].send(request[5:] + request)
            accepted[0].setblocking(False)
            got = bytearray()

            def receive():
                with contextlib.suppress(BlockingIOError):
                    got.extend(accepted[0].recv(1000))
                return bytes(got) == b"hello" + request * 2

            self.until(receive, connection)
            accepted[0].close()
            self.until(lambda: not connection.connected, connection)
        with socket.create_server(("127.0.0.1", port)) as second:
            second.setblocking(False)
            self.until(lambda: accept(second), connection)
            self.until(lambda: connection.connected, connection)
            accepted[-1].close()
        connection.close()

    def test_garbage_ends_the_connection(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            connection = Connection("127.0.0.1", server.getsockname()[1], lambda: b"", lambda request: [])
            self.until(lambda: connection.connected, connection)
            peer, _ = server.accept()
            peer.send(struct.pack("!BBHI", 4, 2, 3, 1))
            self.until(lambda: not connection.connected, connection)
            peer.close()
        connection.close()

    def test_a_controller_that_sends_without_end_is_read_as_fast_as_it_is_handled(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            handled: list[bytes] = []
            connection = Connection("127.0.0.1", server.getsockname()[1], lambda: b"", lambda m: handled.append(m) or [])
            self.until(lambda: connection.connected, connection)
            peer, _ = server.accept()
            peer.setblocking(False)
            small = struct.pack("!BBHI", 4, o.OFPT_ECHO_REPLY, 8, 1) * 8000
            for _ in range(200):
                with contextlib.suppress(BlockingIOError):
                    peer.send(small)
                connection.poll()
                assert len(connection._received) < 200_000
            assert len(handled) == 200 * 512
            peer.close()
        connection.close()

    def test_a_controller_that_does_not_read_is_dropped(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            connection = Connection("127.0.0.1", server.getsockname()[1], lambda: b"", lambda request: [])
            self.until(lambda: connection.connected, connection)
            peer, _ = server.accept()
            for _ in range(1000):
                connection.send(bytes(60_000))
            assert not connection.connected
            peer.close()
        connection.close()
