"""OpenFlow 1.3 messages as a switch reads and writes them.

Reading leans on os-ken's parsers of matches, instructions and actions. They trust lengths, and loop for ever on a zero one, so
every list of TLVs is walked here first. Section numbers are those of the OpenFlow Switch Specification 1.3.5.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as parser

VERSION = 4
HEADER = struct.Struct("!BBHI")
MAX_MESSAGE_BYTES = 0xFFFF
_MAX_MULTIPART_BYTES = 60_000
"""A reply above this goes out in several messages (section 7.3.5)."""
_MAX_RECORD_BYTES = 0xFFFF - 64
"""Longest flow or group mod, so that a statistics reply can hold the entry."""


class OpenFlowError(Exception):
    """A request that is answered with an error message: type and code of section 7.4.4."""

    def __init__(self, type_: int, code: int) -> None:
        super().__init__(type_, code)
        self.type, self.code = type_, code

    @classmethod
    def named(cls, name: str) -> "OpenFlowError":
        """From a name of the specification, such as OFPFMFC_TABLE_FULL."""
        return cls(_ERROR_TYPES[name.split("_")[0]], getattr(ofp, name))


_ERROR_TYPES = {
    "OFPBRC": ofp.OFPET_BAD_REQUEST,
    "OFPBAC": ofp.OFPET_BAD_ACTION,
    "OFPBIC": ofp.OFPET_BAD_INSTRUCTION,
    "OFPBMC": ofp.OFPET_BAD_MATCH,
    "OFPFMFC": ofp.OFPET_FLOW_MOD_FAILED,
    "OFPGMFC": ofp.OFPET_GROUP_MOD_FAILED,
}

Field = tuple[str, int, int | None]
Action = tuple[str, int]


@dataclass(frozen=True)
class FlowMod:
    """A flow mod (section 7.3.4.2), its match and instructions also as bytes, for statistics replies."""

    cookie: int
    cookie_mask: int
    table: int
    command: int
    idle_timeout: int
    hard_timeout: int
    priority: int
    buffer_id: int
    out_port: int
    out_group: int
    flags: int
    match: tuple[Field, ...]
    actions: tuple[Action, ...]
    goto_table: int | None
    match_bytes: bytes
    instruction_bytes: bytes


@dataclass(frozen=True)
class GroupMod:
    """A group mod (section 7.3.4.3); `bucket_bytes` is its tail as sent, for description replies."""

    command: int
    kind: int
    group: int
    buckets: tuple[tuple[int, tuple[Action, ...]], ...]
    bucket_bytes: bytes


@dataclass(frozen=True)
class PacketOut:
    """A packet-out (section 7.3.7)."""

    buffer_id: int
    in_port: int
    actions: tuple[Action, ...]
    data: bytes


@dataclass(frozen=True)
class FlowStatsRequest:
    """Which flows a statistics request is about (section 7.3.5.2)."""

    table: int
    out_port: int
    out_group: int
    cookie: int
    cookie_mask: int
    match: tuple[Field, ...]


def _tlvs(buf: bytes, offset: int, end: int, error: OpenFlowError) -> Iterator[tuple[int, int, int]]:
    """(type, offset, length) of each 8-byte-aligned TLV in a range; `error` where they do not fill it exactly."""
    while offset < end:
        if end - offset < 8:
            raise error
        kind, length = struct.unpack_from("!HH", buf, offset)
        if length < 8 or length % 8 or length > end - offset:
            raise error
        yield kind, offset, length
        offset += length


def _match(buf: bytes, offset: int) -> tuple[tuple[Field, ...], bytes, int]:
    """Fields, bytes and padded length of the match at `offset` (section 7.2.2)."""
    bad_length = OpenFlowError.named("OFPBMC_BAD_LEN")
    if len(buf) - offset < ofp.OFP_MATCH_SIZE:
        raise bad_length
    kind, length = struct.unpack_from("!HH", buf, offset)
    if kind != ofp.OFPMT_OXM:
        raise OpenFlowError.named("OFPBMC_BAD_TYPE")
    padded = -(-length // 8) * 8
    if length < 4 or padded > len(buf) - offset:
        raise bad_length
    at, end = offset + 4, offset + length
    while at < end:
        if end - at < 4 or buf[at + 3] == 0 or at + 4 + buf[at + 3] > end:
            raise bad_length
        at += 4 + buf[at + 3]
    body = bytes(buf[offset : offset + padded])
    try:
        parsed = parser.OFPMatch.parser(body, 0)
        fields = tuple(_field(name, value) for name, value in parsed.items())
    except OpenFlowError:
        raise
    except Exception:
        # os-ken raises whatever its field decoders meet.
        raise OpenFlowError.named("OFPBMC_BAD_VALUE") from None
    return fields, body, padded


def _number(name: str, value: Any) -> int:
    if isinstance(value, int):
        return value
    if name.startswith("eth_") or name.startswith("arp_"):
        return int(str(value).replace(":", ""), 16)
    return int(ip_address(value))


def _field(name: str, value: Any) -> Field:
    try:
        if isinstance(value, tuple):
            return name, _number(name, value[0]), _number(name, value[1])
        return name, _number(name, value), None
    except ValueError:
        raise OpenFlowError.named("OFPBMC_BAD_FIELD") from None


_SPECIAL_PORTS = {ofp.OFPP_CONTROLLER: ("controller", 0), ofp.OFPP_IN_PORT: ("in_port", 0)}


def _actions(buf: bytes, offset: int, end: int) -> tuple[Action, ...]:
    """The actions of a range. What the switch cannot do is refused, not ignored."""
    found: list[Action] = []
    for kind, at, length in _tlvs(buf, offset, end, OpenFlowError.named("OFPBAC_BAD_LEN")):
        wanted = {ofp.OFPAT_OUTPUT: 16, ofp.OFPAT_GROUP: 8, ofp.OFPAT_DEC_NW_TTL: 8}.get(kind)
        if wanted is None:
            raise OpenFlowError.named("OFPBAC_BAD_TYPE")
        if length != wanted:
            raise OpenFlowError.named("OFPBAC_BAD_LEN")
        action = parser.OFPAction.parser(buf, at)
        if kind == ofp.OFPAT_DEC_NW_TTL:
            found.append(("dec_ttl", 0))
        elif kind == ofp.OFPAT_GROUP:
            found.append(("group", action.group_id))
        elif action.port in _SPECIAL_PORTS:
            found.append(_SPECIAL_PORTS[action.port])
        elif 0 < action.port <= ofp.OFPP_MAX:
            found.append(("output", action.port))
        else:
            # Flooding among them: nothing floods here.
            raise OpenFlowError.named("OFPBAC_BAD_OUT_PORT")
    return tuple(found)


def _instructions(buf: bytes, offset: int, end: int) -> tuple[tuple[Action, ...], int | None]:
    actions: tuple[Action, ...] = ()
    goto: int | None = None
    for kind, at, length in _tlvs(buf, offset, end, OpenFlowError.named("OFPBIC_BAD_LEN")):
        if kind == ofp.OFPIT_APPLY_ACTIONS:
            actions = _actions(buf, at + 8, at + length)
        elif kind == ofp.OFPIT_GOTO_TABLE and length == 8:
            goto = buf[at + 4]
        elif kind == ofp.OFPIT_CLEAR_ACTIONS:
            # There is no action set to clear: write-actions is refused.
            continue
        elif kind in (ofp.OFPIT_WRITE_ACTIONS, ofp.OFPIT_WRITE_METADATA, ofp.OFPIT_METER):
            raise OpenFlowError.named("OFPBIC_UNSUP_INST")
        else:
            raise OpenFlowError.named("OFPBIC_UNKNOWN_INST")
    return actions, goto


def _need(buf: bytes, size: int) -> None:
    if len(buf) < size:
        raise OpenFlowError.named("OFPBRC_BAD_LEN")


def read_flow_mod(buf: bytes) -> FlowMod:
    """Reads a flow mod.

    Raises:
        OpenFlowError: with the error to answer.
    """
    _need(buf, ofp.OFP_FLOW_MOD_SIZE)
    fixed = struct.unpack_from(ofp.OFP_FLOW_MOD_PACK_STR0, buf, ofp.OFP_HEADER_SIZE)
    at = ofp.OFP_FLOW_MOD_SIZE - ofp.OFP_MATCH_SIZE
    fields, match_bytes, length = _match(buf, at)
    at += length
    actions, goto = _instructions(buf, at, len(buf))
    if len(buf) > _MAX_RECORD_BYTES:
        raise OpenFlowError.named("OFPBIC_BAD_LEN")
    tail: tuple[Any, ...] = (fields, actions, goto, match_bytes, bytes(buf[at:]))
    return FlowMod(*fixed, *tail)


def read_group_mod(buf: bytes) -> GroupMod:
    """Reads a group mod.

    Raises:
        OpenFlowError: with the error to answer.
    """
    _need(buf, ofp.OFP_GROUP_MOD_SIZE)
    command, kind, group = struct.unpack_from(ofp.OFP_GROUP_MOD_PACK_STR, buf, ofp.OFP_HEADER_SIZE)
    if len(buf) > _MAX_RECORD_BYTES:
        raise OpenFlowError.named("OFPGMFC_OUT_OF_BUCKETS")
    buckets: list[tuple[int, tuple[Action, ...]]] = []
    at = ofp.OFP_GROUP_MOD_SIZE
    while at < len(buf):
        if len(buf) - at < ofp.OFP_BUCKET_SIZE:
            raise OpenFlowError.named("OFPBRC_BAD_LEN")
        length, weight, _, _ = struct.unpack_from(ofp.OFP_BUCKET_PACK_STR, buf, at)
        if length < ofp.OFP_BUCKET_SIZE or length % 8 or length > len(buf) - at:
            raise OpenFlowError.named("OFPBRC_BAD_LEN")
        buckets.append((weight, _actions(buf, at + ofp.OFP_BUCKET_SIZE, at + length)))
        at += length
    return GroupMod(command, kind, group, tuple(buckets), bytes(buf[ofp.OFP_GROUP_MOD_SIZE :]))


def read_packet_out(buf: bytes) -> PacketOut:
    """Reads a packet-out.

    Raises:
        OpenFlowError: with the error to answer.
    """
    _need(buf, ofp.OFP_PACKET_OUT_SIZE)
    buffer_id, in_port, actions_len = struct.unpack_from(ofp.OFP_PACKET_OUT_PACK_STR, buf, ofp.OFP_HEADER_SIZE)
    end = ofp.OFP_PACKET_OUT_SIZE + actions_len
    _need(buf, end)
    actions = _actions(buf, ofp.OFP_PACKET_OUT_SIZE, end)
    return PacketOut(buffer_id, in_port, actions, bytes(buf[end:]))


def read_flow_stats_request(body: bytes) -> FlowStatsRequest:
    """Reads the body of a flow or aggregate statistics request.

    Raises:
        OpenFlowError: with the error to answer.
    """
    _need(body, ofp.OFP_FLOW_STATS_REQUEST_SIZE)
    table, out_port, out_group, cookie, mask = struct.unpack_from(ofp.OFP_FLOW_STATS_REQUEST_0_PACK_STR, body, 0)
    fields, _, _ = _match(body, ofp.OFP_FLOW_STATS_REQUEST_0_SIZE)
    return FlowStatsRequest(table, out_port, out_group, cookie, mask, fields)


# ---- Writing


def message(kind: int, xid: int, body: bytes = b"") -> bytes:
    """A message of the given type."""
    return HEADER.pack(VERSION, kind, HEADER.size + len(body), xid) + body


def hello(xid: int) -> bytes:
    """A hello whose version bitmap holds 1.3 alone (section 7.5.1)."""
    element = struct.pack("!HHI", ofp.OFPHET_VERSIONBITMAP, 8, 1 << VERSION)
    return message(ofp.OFPT_HELLO, xid, element)


def error(xid: int, fault: OpenFlowError, request: bytes) -> bytes:
    """An error message with the first 64 bytes of what it is about (section 7.4.4)."""
    return message(ofp.OFPT_ERROR, xid, struct.pack("!HH", fault.type, fault.code) + request[:64])


def features(xid: int, dpid: int, tables: int) -> bytes:
    """Switch features (section 7.3.1)."""
    capabilities = ofp.OFPC_FLOW_STATS | ofp.OFPC_TABLE_STATS | ofp.OFPC_PORT_STATS | ofp.OFPC_GROUP_STATS
    body = struct.pack(ofp.OFP_SWITCH_FEATURES_PACK_STR, dpid, 0, tables, 0, capabilities, 0)
    return message(ofp.OFPT_FEATURES_REPLY, xid, body)


def port(number: int, mac: bytes, name: str, up: bool, rate_bps: int) -> bytes:
    """A port description (section 7.2.1). Speeds are in kb/s, as far as 32 bits reach."""
    state = 0 if up else ofp.OFPPS_LINK_DOWN
    speed_kbps = min(rate_bps // 1000, 0xFFFFFFFF)
    text = name.encode()[: ofp.OFP_MAX_PORT_NAME_LEN - 1]
    return struct.pack(ofp.OFP_PORT_PACK_STR, number, mac, text, 0, state, ofp.OFPPF_OTHER, 0, 0, 0, speed_kbps, speed_kbps)


def port_status(xid: int, description: bytes) -> bytes:
    """A port has changed (section 7.4.3)."""
    return message(ofp.OFPT_PORT_STATUS, xid, struct.pack("!B7x", ofp.OFPPR_MODIFY) + description)


def packet_in(xid: int, port_no: int, reason: int, table: int, cookie: int, frame: bytes, max_bytes: int) -> bytes:
    """A packet-in (section 7.4.1). Nothing is buffered in the switch."""
    match = bytearray()
    parser.OFPMatch(in_port=port_no).serialize(match, 0)
    data = frame[:max_bytes]
    head = struct.pack("!IHBBQ", ofp.OFP_NO_BUFFER, len(frame), reason, table, cookie)
    return message(ofp.OFPT_PACKET_IN, xid, head + bytes(match) + b"\0\0" + data)


def multipart(xid: int, kind: int, records: list[bytes]) -> list[bytes]:
    """A multipart reply in as many messages as it takes (section 7.3.5)."""
    parts: list[list[bytes]] = [[]]
    size = 0
    for record in records:
        if size + len(record) > _MAX_MULTIPART_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(record)
        size += len(record)
    replies: list[bytes] = []
    for i, part in enumerate(parts):
        flags = ofp.OFPMPF_REPLY_MORE if i + 1 < len(parts) else 0
        body = struct.pack(ofp.OFP_MULTIPART_REPLY_PACK_STR, kind, flags) + b"".join(part)
        replies.append(message(ofp.OFPT_MULTIPART_REPLY, xid, body))
    return replies


def flow_stats(table: int, seconds: float, flow: FlowMod, packets: int, octets: int) -> bytes:
    """One flow of a flow statistics reply (section 7.3.5.2)."""
    length = ofp.OFP_FLOW_STATS_0_SIZE + len(flow.match_bytes) + len(flow.instruction_bytes)
    head = struct.pack(
        ofp.OFP_FLOW_STATS_0_PACK_STR,
        length,
        table,
        int(seconds),
        int(seconds % 1 * 1e9),
        flow.priority,
        flow.idle_timeout,
        flow.hard_timeout,
        flow.flags,
        flow.cookie,
        packets,
        octets,
    )
    return head + flow.match_bytes + flow.instruction_bytes
