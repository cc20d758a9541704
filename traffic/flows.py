"""Flow templates: the headers of a queue pair's packets, built by Scapy and stamped by the NIC at rate."""

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether

from traffic.layers import RC_WRITE_MIDDLE, ROCE_UDP_PORT

ECT0 = 0b10
_PKEY_DEFAULT = 0xFFFF


@dataclass(frozen=True)
class Endpoint:
    """A NIC port as packets name it: MAC address and IP address."""

    mac: str
    ip: str


def flow_label_to_udp_sport(flow_label: int) -> int:
    """UDP source port of a 20-bit flow label, as rdma-core's `rdma_flow_label_to_udp_sport` computes it."""
    return ((flow_label & 0x3FFF) ^ ((flow_label & 0xFC000) >> 14)) | 0xC000


def flow_label_of_qps(local_qpn: int, remote_qpn: int) -> int:
    """Flow label of a connection that was given none (rdma-core's `rdma_calc_flow_label`)."""
    v = (local_qpn * remote_qpn) & 0xFFFFFFFFFFFFFFFF
    v ^= v >> 20
    v ^= v >> 40
    return v & 0xFFFFF


def roce_template(
    src: Endpoint,
    dst: Endpoint,
    *,
    remote_qpn: int,
    udp_sport: int,
    dscp: int,
    ecn: int = ECT0,
    vlan: int | None = None,
    pcp: int = 0,
) -> bytes:
    """A RoCEv2 packet without payload (IBTA annex A17): Ethernet, IP, UDP, BTH and ICRC.

    Sequence number, opcode, lengths, checksum and ICRC are the NIC's to stamp.

    Raises:
        ValueError: the addresses are of different families, or not addresses.
    """
    a, b = ip_address(src.ip), ip_address(dst.ip)
    tos = dscp << 2 | ecn
    packet = Ether(src=src.mac, dst=dst.mac)
    if vlan is not None:
        packet /= Dot1Q(vlan=vlan, prio=pcp)
    match a, b:
        case IPv4Address(), IPv4Address():
            packet /= IP(src=src.ip, dst=dst.ip, tos=tos, ttl=64, flags="DF", id=0)
        case IPv6Address(), IPv6Address():
            packet /= IPv6(src=src.ip, dst=dst.ip, tc=tos, hlim=64)
        case _:
            raise ValueError(f"{src.ip} and {dst.ip} are of different address families")
    packet /= UDP(sport=udp_sport, dport=ROCE_UDP_PORT, chksum=0)
    packet /= BTH(opcode=RC_WRITE_MIDDLE, migreq=1, pkey=_PKEY_DEFAULT, dqpn=remote_qpn)
    return bytes(packet)
