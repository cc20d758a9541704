"""InfiniBand extended transport headers for Scapy, which brings BTH, AETH and CNP (`scapy.contrib.roce`).

Importing this module binds them to the opcodes that carry them, so that ``Ether(frame)`` dissects any RC, UC or UD packet.
Layouts: IBTA specification volume 1, section 9.3. The field names are those of the specification.
"""

from scapy.contrib.roce import AETH, BTH
from scapy.fields import BitField, XBitField, XIntField, XLongField
from scapy.packet import Packet, bind_layers

RC_WRITE_MIDDLE = 0x07
CNP = 0x81
ROCE_UDP_PORT = 4791


class RETH(Packet):
    """RDMA extended transport header (16 bytes)."""

    name = "RETH"
    fields_desc = [XLongField("va", 0), XIntField("rkey", 0), XIntField("dlen", 0)]


class AtomicETH(Packet):
    """Atomic extended transport header (28 bytes)."""

    name = "AtomicETH"
    fields_desc = [XLongField("va", 0), XIntField("rkey", 0), XLongField("swap_add", 0), XLongField("cmp", 0)]


class AtomicAckETH(Packet):
    """What an atomic operation found in memory (8 bytes)."""

    name = "AtomicAckETH"
    fields_desc = [XLongField("orig_rem", 0)]


class DETH(Packet):
    """Datagram extended transport header (8 bytes)."""

    name = "DETH"
    fields_desc = [XIntField("qkey", 0), BitField("reserved", 0, 8), XBitField("sqpn", 0, 24)]


class ImmDt(Packet):
    """Immediate data (4 bytes)."""

    name = "ImmDt"
    fields_desc = [XIntField("imm", 0)]


class IETH(Packet):
    """Invalidate extended transport header (4 bytes)."""

    name = "IETH"
    fields_desc = [XIntField("rkey", 0)]


_RC, _UC, _UD = 0x00, 0x20, 0x60

for _class in (_RC, _UC):
    for _op in (0x06, 0x0A, 0x0B):
        bind_layers(BTH, RETH, opcode=_class + _op)
    for _op in (0x03, 0x05, 0x09):
        bind_layers(BTH, ImmDt, opcode=_class + _op)
bind_layers(BTH, RETH, opcode=0x0C)
for _op in (0x0D, 0x0F, 0x10, 0x12):
    bind_layers(BTH, AETH, opcode=_op)
for _op in (0x13, 0x14):
    bind_layers(BTH, AtomicETH, opcode=_op)
for _op in (0x16, 0x17):
    bind_layers(BTH, IETH, opcode=_op)
for _op in (0x04, 0x05):
    bind_layers(BTH, DETH, opcode=_UD + _op)


def _after_aeth(self: AETH, payload: bytes) -> type[Packet]:
    """An atomic acknowledgement goes on with AtomicAckETH; everything else with data."""
    if self.underlayer is not None and getattr(self.underlayer, "opcode", None) == 0x12:
        return AtomicAckETH
    following: type[Packet] = Packet.guess_payload_class(self, payload)
    return following


def _after_reth(self: RETH, payload: bytes) -> type[Packet]:
    if self.underlayer is not None and getattr(self.underlayer, "opcode", None) in (_RC + 0x0B, _UC + 0x0B):
        return ImmDt
    following: type[Packet] = Packet.guess_payload_class(self, payload)
    return following


def _after_deth(self: DETH, payload: bytes) -> type[Packet]:
    if self.underlayer is not None and getattr(self.underlayer, "opcode", None) == _UD + 0x05:
        return ImmDt
    following: type[Packet] = Packet.guess_payload_class(self, payload)
    return following


AETH.guess_payload_class = _after_aeth
RETH.guess_payload_class = _after_reth
DETH.guess_payload_class = _after_deth
