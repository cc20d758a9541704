"""LLDP frames (IEEE 802.1AB): a subnet manager's probes, and a NIC's answer to them."""

import struct
from dataclasses import dataclass
from ipaddress import ip_address

from scapy.contrib.lldp import (
    LLDPDU,
    LLDPDUChassisID,
    LLDPDUEndOfLLDPDU,
    LLDPDUManagementAddress,
    LLDPDUPortID,
    LLDPDUSystemName,
    LLDPDUTimeToLive,
)
from scapy.error import Scapy_Exception
from scapy.layers.l2 import Ether

NEAREST_BRIDGE = "01:80:c2:00:00:0e"
_TTL_S = 120
_CHASSIS_MAC, _CHASSIS_LOCAL = 4, 7
_PORT_MAC, _PORT_LOCAL = 3, 7
_DPID_PREFIX = b"dpid:"


@dataclass(frozen=True)
class Probe:
    """A subnet manager's probe: the switch port that it was sent out of."""

    dpid: int
    port: int


@dataclass(frozen=True)
class NicAnswer:
    """A NIC's answer: who it is."""

    name: str
    mac: str
    ip: str


def probe(dpid: int, port: int, src_mac: str) -> bytes:
    """A probe, with the chassis and port ids that os-ken's own discovery uses."""
    frame = (
        Ether(dst=NEAREST_BRIDGE, src=src_mac)
        / LLDPDUChassisID(subtype=_CHASSIS_LOCAL, id=_DPID_PREFIX + f"{dpid:016x}".encode())
        / LLDPDUPortID(subtype=_PORT_LOCAL, id=struct.pack("!I", port))
        / LLDPDUTimeToLive(ttl=_TTL_S)
        / LLDPDUEndOfLLDPDU()
    )
    return bytes(frame)


def nic_lldp(name: str, mac: str, ip: str) -> bytes:
    """What a NIC answers: its MAC address, name and IP address."""
    frame = (
        Ether(dst=NEAREST_BRIDGE, src=mac)
        / LLDPDUChassisID(subtype=_CHASSIS_MAC, id=mac)
        / LLDPDUPortID(subtype=_PORT_MAC, id=mac)
        / LLDPDUTimeToLive(ttl=_TTL_S)
        / LLDPDUSystemName(system_name=name.encode())
        / LLDPDUManagementAddress(
            management_address_subtype=1,
            management_address=ip_address(ip).packed,
            interface_numbering_subtype=2,
            interface_number=1,
        )
        / LLDPDUEndOfLLDPDU()
    )
    return bytes(frame)


def parse(frame: bytes) -> Probe | NicAnswer | None:
    """Reads either kind; `None` for anyone else's LLDP, or no LLDP at all."""
    try:
        packet = Ether(frame)
        chassis = packet.getlayer(LLDPDUChassisID)
        if chassis is None or not packet.haslayer(LLDPDU):
            return None
        if chassis.subtype == _CHASSIS_LOCAL:
            return _parse_probe(packet, bytes(chassis.id))
        name, address = packet[LLDPDUSystemName], packet[LLDPDUManagementAddress]
        ip = str(ip_address(bytes(address.management_address)))
        return NicAnswer(bytes(name.system_name).decode(), str(chassis.id), ip)
    except (Scapy_Exception, ValueError, IndexError, struct.error, TypeError, AttributeError):
        return None


def _parse_probe(packet: Ether, chassis: bytes) -> Probe | None:
    if not chassis.startswith(_DPID_PREFIX):
        return None
    (port,) = struct.unpack("!I", bytes(packet[LLDPDUPortID].id))
    return Probe(int(chassis[len(_DPID_PREFIX) :], 16), port)
