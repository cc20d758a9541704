"""Packets: ours against Scapy's, and against captures of a real stack."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.contrib.roce import AETH, BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw
from scapy.utils import rdpcap

from testbed._dataplane import check_icrc, rebuild
from tests.conftest import FIXTURES
from traffic.flows import Endpoint, flow_label_of_qps, flow_label_to_udp_sport, roce_template
from traffic.layers import DETH, IETH, RETH, AtomicAckETH, AtomicETH, ImmDt
from traffic.lldp import NicAnswer, Probe, nic_lldp, parse, probe
from traffic.patterns import derangement

CAPTURES = sorted((FIXTURES / "soft-roce").glob("*.pcap"))


@pytest.mark.parametrize("path", CAPTURES, ids=lambda p: p.stem)
def test_real_packets_are_confirmed_and_rebuilt(path):
    packets = rdpcap(str(path))
    assert packets
    for packet in packets:
        frame = bytes(packet)
        expected, carried = check_icrc(frame)
        assert expected == carried
        assert rebuild(frame) == frame


@pytest.mark.parametrize("path", CAPTURES, ids=lambda p: p.stem)
def test_scapy_layers_dissect_and_build_real_packets(path):
    for packet in rdpcap(str(path)):
        frame = bytes(packet)
        dissected = Ether(frame)
        opcode = dissected[BTH].opcode
        headers = {
            0x06: RETH, 0x0A: RETH, 0x0C: RETH, 0x0D: AETH, 0x0F: AETH, 0x10: AETH, 0x11: AETH, 0x12: AtomicAckETH,
            0x13: AtomicETH, 0x14: AtomicETH, 0x64: DETH,
        }  # fmt: skip
        if opcode in headers:
            assert dissected.haslayer(headers[opcode]), hex(opcode)
        # Scapy's own ICRC, computed anew over what our layers took apart.
        dissected[BTH].icrc = None
        assert bytes(Ether(bytes(dissected))) == frame


def test_immediate_and_invalidate_headers():
    for opcode, layer in ((0x05, ImmDt), (0x09, ImmDt), (0x16, IETH), (0x17, IETH)):
        frame = bytes(Ether() / IP() / UDP(dport=4791) / BTH(opcode=opcode) / layer() / Raw(b"data"))
        dissected = Ether(frame)
        assert dissected.haslayer(layer)
        assert rebuild(frame) == frame
    both = Ether(bytes(Ether() / IP() / UDP(dport=4791) / BTH(opcode=0x0B) / RETH(dlen=4) / ImmDt(imm=7) / Raw(b"data")))
    assert both[ImmDt].imm == 7


ENDS = (Endpoint("02:00:00:00:00:01", "10.0.0.1"), Endpoint("02:00:00:00:00:02", "10.0.0.2"))


@pytest.mark.parametrize("vlan", [None, 7])
@pytest.mark.parametrize("family", [4, 6])
def test_templates_carry_what_was_asked_for(family, vlan):
    ends = ENDS if family == 4 else (Endpoint(ENDS[0].mac, "fd00::1"), Endpoint(ENDS[1].mac, "fd00::2"))
    frame = roce_template(*ends, remote_qpn=0x123456, udp_sport=0xC123, dscp=26, vlan=vlan, pcp=3)
    packet = Ether(frame)
    tos = packet[IP].tos if family == 4 else packet[IPv6].tc
    assert (tos >> 2, tos & 3) == (26, 2)
    assert (packet[UDP].sport, packet[UDP].dport, packet[UDP].chksum) == (0xC123, 4791, 0)
    assert packet[BTH].dqpn == 0x123456
    assert packet.haslayer(Dot1Q) == (vlan is not None)
    expected, carried = check_icrc(frame)
    assert expected == carried
    assert rebuild(frame) == frame


def test_templates_refuse_mixed_families():
    with pytest.raises(ValueError, match="different address families"):
        roce_template(ENDS[0], Endpoint(ENDS[1].mac, "fd00::2"), remote_qpn=1, udp_sport=0xC000, dscp=0)


def test_udp_source_port_follows_rdma_core():
    # Worked by hand from rdma-core's formula.
    assert flow_label_to_udp_sport(0) == 0xC000
    assert flow_label_to_udp_sport(0xFFFFF) == (0x3FFF ^ 0x3F) | 0xC000
    assert flow_label_of_qps(0x11, 0x12) == 0x132


@given(st.integers(0, 0xFFFFF))
def test_udp_source_port_is_ephemeral(label):
    assert 0xC000 <= flow_label_to_udp_sport(label) <= 0xFFFF


def test_lldp_round_trip():
    assert parse(probe(3, 70000, "02:00:00:00:00:09")) == Probe(3, 70000)
    answer = NicAnswer("n1.3", "02:00:00:00:00:09", "10.0.0.9")
    assert parse(nic_lldp(answer.name, answer.mac, answer.ip)) == answer


@given(st.binary(max_size=120))
def test_lldp_of_strangers_is_nothing(data):
    frame = bytes.fromhex("0180c200000e02000000000188cc") + data
    assert parse(frame) is None or isinstance(parse(frame), Probe | NicAnswer)


@given(st.integers(2, 40), st.integers())
def test_derangements_move_everything(n, seed):
    order = derangement(n, random.Random(seed))
    assert sorted(order) == list(range(n))
    assert all(i != j for i, j in enumerate(order))
