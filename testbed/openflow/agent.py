"""An OpenFlow datapath, sans-IO: given the bytes of a controller's messages, it changes tables and returns the bytes to answer.

What is not supported is answered with the specification's error, never ignored.
"""

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from os_ken.ofproto import ofproto_v1_3 as ofp

from testbed import __version__
from testbed._dataplane import TABLES
from testbed._dataplane import OpenFlowError as Refused
from testbed.openflow import codec
from testbed.openflow.codec import OpenFlowError
from testbed.openflow.connection import Connection

_GROUP_KINDS = {ofp.OFPGT_ALL: "all", ofp.OFPGT_SELECT: "select", ofp.OFPGT_INDIRECT: "indirect"}
_SUPPORTED_GROUP_KINDS = sum(1 << kind for kind in _GROUP_KINDS)
_MAX_GROUPS = 1 << 18
_MAX_BUFFERED_CHANGES = 1 << 20


@dataclass
class PortInfo:
    """What the agent tells a controller of a port."""

    name: str
    mac: bytes
    rate_bps: int


class Agent:
    """The OpenFlow agent of one switch."""

    def __init__(self, dataplane: Any, node: int, dpid: int, name: str, ports: dict[int, PortInfo]) -> None:
        """`ports` maps OpenFlow port numbers (from 1) to what they are."""
        self.dataplane = dataplane
        self.node = node
        self.dpid = dpid
        self.name = name
        self.ports = ports
        self.connections: list[Connection] = []
        self.unconfirmed: set[int] = set()
        """Transaction ids of port-status messages that no barrier request has taken up yet (see `port_changed`)."""
        self.staged: list[Callable[[], None]] | None = None
        """While a reaction is under way: changes that wait for its fabric time."""
        self.log: Callable[[str], None] = lambda line: None
        self._flows: dict[int, tuple[codec.FlowMod, float]] = {}
        self._groups: dict[int, tuple[codec.GroupMod, float]] = {}
        self._last_flow = 0
        self._xid = 0
        self._miss_send_bytes = 128
        self._started = time.monotonic()

    # ---- Connections

    def connect(self, host: str, port: int) -> None:
        """Keeps a connection to a controller: tried again with back-off whenever it is not there."""
        self.connections.append(Connection(host, port, lambda: codec.hello(self._next_xid()), self.handle))

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        self.connections.clear()

    def _next_xid(self) -> int:
        self._xid = (self._xid + 1) & 0xFFFFFFFF
        return self._xid

    def _announce(self, data: bytes) -> None:
        for connection in self.connections:
            connection.send(data)

    # ---- Asynchronous messages

    def packet_in(self, port: int, table: int, cookie: int, reason: int, frame: bytes) -> None:
        """A frame goes to the controller, whole if an entry sends it there, cut short on a table miss."""
        limit = self._miss_send_bytes if reason == ofp.OFPR_NO_MATCH else codec.MAX_MESSAGE_BYTES - 128
        self._announce(codec.packet_in(self._next_xid(), port + 1, reason, table, cookie, frame, limit))

    def port_changed(self, port: int) -> None:
        """Port (index from 0) went up or down.

        A controller that wants fabric time to wait for its reaction ends it with a barrier request to this switch that carries
        the transaction id of the port-status message; until then the id stands in `unconfirmed`.
        """
        xid = self._next_xid()
        self.unconfirmed.add(xid)
        self._announce(codec.port_status(xid, self._describe(port + 1)))

    def _describe(self, number: int) -> bytes:
        info = self.ports[number]
        up = self.dataplane.port_counters(self.node, number - 1)["up"]
        return codec.port(number, info.mac, info.name, up, info.rate_bps)

    # ---- Requests

    def handle(self, request: bytes) -> list[bytes]:
        """Answers one whole message."""
        version, kind, _, xid = codec.HEADER.unpack_from(request)
        try:
            if version != codec.VERSION and kind != ofp.OFPT_HELLO:
                raise OpenFlowError.named("OFPBRC_BAD_VERSION")
            return self._dispatch(kind, xid, request)
        except OpenFlowError as fault:
            self.log(f"{self.name}: request of type {kind} refused: error type {fault.type} code {fault.code}")
            return [codec.error(xid, fault, request)]
        except Exception as error:
            # One controller's message must not end the fabric for all; what is wrong is ours to find in the log.
            self.log(f"{self.name}: request of type {kind} failed: {error!r}")
            return [codec.error(xid, OpenFlowError.named("OFPBRC_BAD_LEN"), request)]

    def _dispatch(self, kind: int, xid: int, request: bytes) -> list[bytes]:
        body = request[ofp.OFP_HEADER_SIZE :]
        match kind:
            case ofp.OFPT_HELLO:
                return self._hello(xid, request)
            case ofp.OFPT_ECHO_REQUEST:
                return [codec.message(ofp.OFPT_ECHO_REPLY, xid, body)]
            case ofp.OFPT_ECHO_REPLY | ofp.OFPT_ERROR:
                return []
            case ofp.OFPT_FEATURES_REQUEST:
                return [codec.features(xid, self.dpid, TABLES)]
            case ofp.OFPT_GET_CONFIG_REQUEST:
                return [codec.message(ofp.OFPT_GET_CONFIG_REPLY, xid, struct.pack("!HH", 0, self._miss_send_bytes))]
            case ofp.OFPT_SET_CONFIG:
                return self._set_config(body)
            case ofp.OFPT_BARRIER_REQUEST:
                self.unconfirmed.discard(xid)
                return [codec.message(ofp.OFPT_BARRIER_REPLY, xid)]
            case ofp.OFPT_FLOW_MOD:
                return self._change(xid, request, self._flow_mod, codec.read_flow_mod(request))
            case ofp.OFPT_GROUP_MOD:
                return self._change(xid, request, self._group_mod, codec.read_group_mod(request))
            case ofp.OFPT_PACKET_OUT:
                return self._packet_out(codec.read_packet_out(request))
            case ofp.OFPT_MULTIPART_REQUEST:
                return self._multipart(xid, body)
            case _:
                raise OpenFlowError.named("OFPBRC_BAD_TYPE")

    def _hello(self, xid: int, request: bytes) -> list[bytes]:
        """Negotiation: 1.3 has to be in the peer's bitmap, or its version at least 1.3 (section 6.3.1)."""
        version, bitmap = request[0], None
        at = ofp.OFP_HEADER_SIZE
        while len(request) - at >= 4:
            kind, length = struct.unpack_from("!HH", request, at)
            if length < 4:
                break
            if kind == ofp.OFPHET_VERSIONBITMAP and length >= 8 and len(request) - at >= 8:
                (bitmap,) = struct.unpack_from("!I", request, at + 4)
            at += -(-length // 8) * 8
        compatible = bitmap >> codec.VERSION & 1 if bitmap is not None else version >= codec.VERSION
        if compatible:
            return []
        return [codec.error(xid, OpenFlowError(ofp.OFPET_HELLO_FAILED, ofp.OFPHFC_INCOMPATIBLE), b"this is OpenFlow 1.3")]

    def _set_config(self, body: bytes) -> list[bytes]:
        if len(body) < 4:
            raise OpenFlowError.named("OFPBRC_BAD_LEN")
        _, self._miss_send_bytes = struct.unpack_from("!HH", body)
        return []

    def _change(self, xid: int, request: bytes, apply: Callable[[Any], list[bytes] | None], change: Any) -> list[bytes]:
        """Makes a change now, or keeps it for the reaction's fabric time."""
        if self.staged is None:
            return self._refusable(apply, change) or []
        if len(self.staged) >= _MAX_BUFFERED_CHANGES:
            raise OpenFlowError.named("OFPFMFC_TABLE_FULL")

        def later() -> None:
            try:
                self._refusable(apply, change)
            except OpenFlowError as fault:
                self.log(f"{self.name}: staged change refused: error type {fault.type} code {fault.code}")
                self._announce(codec.error(xid, fault, request))

        self.staged.append(later)
        return []

    @staticmethod
    def _refusable(apply: Callable[[Any], list[bytes] | None], change: Any) -> list[bytes] | None:
        try:
            return apply(change)
        except Refused as refused:
            raise OpenFlowError.named(str(refused)) from None

    # ---- Flows

    def _flow_mod(self, mod: codec.FlowMod) -> None:
        match mod.command:
            case ofp.OFPFC_ADD:
                self._add_flow(mod)
            case ofp.OFPFC_MODIFY | ofp.OFPFC_MODIFY_STRICT:
                self._modify_flows(mod)
            case ofp.OFPFC_DELETE | ofp.OFPFC_DELETE_STRICT:
                self._delete_flows(mod)
            case _:
                raise OpenFlowError.named("OFPFMFC_BAD_COMMAND")

    def _add_flow(self, mod: codec.FlowMod) -> None:
        if mod.idle_timeout or mod.hard_timeout:
            raise OpenFlowError.named("OFPFMFC_BAD_TIMEOUT")
        if mod.flags & ofp.OFPFF_SEND_FLOW_REM:
            raise OpenFlowError.named("OFPFMFC_BAD_FLAGS")
        if mod.buffer_id != ofp.OFP_NO_BUFFER:
            raise OpenFlowError.named("OFPBRC_BUFFER_UNKNOWN")
        self._last_flow += 1
        replaced = self.dataplane.flow_add(
            self.node,
            mod.table,
            mod.priority,
            mod.cookie,
            self._last_flow,
            list(mod.match),
            list(mod.actions),
            mod.goto_table,
        )
        if replaced is not None:
            self._flows.pop(replaced, None)
        self._flows[self._last_flow] = (mod, time.monotonic())

    def _modify_flows(self, mod: codec.FlowMod) -> None:
        strict = mod.priority if mod.command == ofp.OFPFC_MODIFY_STRICT else None
        changed = self.dataplane.flow_modify(
            self.node,
            mod.table,
            list(mod.match),
            strict,
            mod.cookie,
            mod.cookie_mask,
            list(mod.actions),
            mod.goto_table,
        )
        for flow_id in changed:
            old, since = self._flows[flow_id]
            fields = {**old.__dict__, "actions": mod.actions, "goto_table": mod.goto_table}
            fields["instruction_bytes"] = mod.instruction_bytes
            self._flows[flow_id] = (codec.FlowMod(**fields), since)

    def _delete_flows(self, mod: codec.FlowMod) -> None:
        strict = mod.priority if mod.command == ofp.OFPFC_DELETE_STRICT else None
        removed = self.dataplane.flow_delete(
            self.node,
            None if mod.table == ofp.OFPTT_ALL else mod.table,
            list(mod.match),
            strict,
            _wanted(mod.out_port, ofp.OFPP_ANY),
            _wanted(mod.out_group, ofp.OFPG_ANY),
            mod.cookie,
            mod.cookie_mask,
        )
        self._forget(removed)

    def _forget(self, flow_ids: list[int]) -> None:
        for flow_id in flow_ids:
            self._flows.pop(flow_id, None)

    # ---- Groups

    def _group_mod(self, mod: codec.GroupMod) -> None:
        if mod.command == ofp.OFPGC_DELETE:
            everything = mod.group == ofp.OFPG_ALL
            self._forget(self.dataplane.group_delete(self.node, None if everything else mod.group))
            if everything:
                self._groups.clear()
            self._groups.pop(mod.group, None)
            return
        if mod.command not in (ofp.OFPGC_ADD, ofp.OFPGC_MODIFY):
            raise OpenFlowError.named("OFPGMFC_BAD_COMMAND")
        if mod.group > ofp.OFPG_MAX:
            raise OpenFlowError.named("OFPGMFC_INVALID_GROUP")
        if mod.kind not in _GROUP_KINDS:
            raise OpenFlowError.named("OFPGMFC_BAD_TYPE")
        buckets = [(weight, list(actions)) for weight, actions in mod.buckets]
        modify = mod.command == ofp.OFPGC_MODIFY
        self.dataplane.group_set(self.node, mod.group, _GROUP_KINDS[mod.kind], buckets, modify)
        self._groups[mod.group] = (mod, time.monotonic())

    # ---- Packets

    def _packet_out(self, out: codec.PacketOut) -> list[bytes]:
        if out.buffer_id != ofp.OFP_NO_BUFFER:
            raise OpenFlowError.named("OFPBRC_BUFFER_UNKNOWN")
        in_port = out.in_port - 1 if 0 < out.in_port <= len(self.ports) else None
        try:
            self.dataplane.packet_out(self.node, in_port, list(out.actions), out.data)
        except Refused as refused:
            raise OpenFlowError.named(str(refused)) from None
        return []

    # ---- Multipart

    def _multipart(self, xid: int, body: bytes) -> list[bytes]:
        if len(body) < 8:
            raise OpenFlowError.named("OFPBRC_BAD_LEN")
        kind, flags = struct.unpack_from(ofp.OFP_MULTIPART_REQUEST_PACK_STR, body)
        if flags & ofp.OFPMPF_REQ_MORE:
            raise OpenFlowError.named("OFPBRC_MULTIPART_BUFFER_OVERFLOW")
        request = body[8:]
        makers: dict[int, Callable[[bytes], list[bytes]]] = {
            ofp.OFPMP_DESC: self._desc,
            ofp.OFPMP_FLOW: self._flow_stats,
            ofp.OFPMP_AGGREGATE: self._aggregate_stats,
            ofp.OFPMP_TABLE: self._table_stats,
            ofp.OFPMP_PORT_STATS: self._port_stats,
            ofp.OFPMP_GROUP: self._group_stats,
            ofp.OFPMP_GROUP_DESC: self._group_desc,
            ofp.OFPMP_GROUP_FEATURES: self._group_features,
            ofp.OFPMP_PORT_DESC: self._port_desc,
        }
        if kind not in makers:
            raise OpenFlowError.named("OFPBRC_BAD_MULTIPART")
        return codec.multipart(xid, kind, makers[kind](request))

    def _desc(self, request: bytes) -> list[bytes]:
        fields = (b"testbed", b"emulated switch", f"testbed {__version__}".encode(), b"none", self.name.encode()[:255])
        return [struct.pack(ofp.OFP_DESC_PACK_STR, *fields)]

    def _selected_flows(self, request: bytes) -> list[Any]:
        wanted = codec.read_flow_stats_request(request)
        table = None if wanted.table == ofp.OFPTT_ALL else wanted.table
        found: list[Any] = self.dataplane.flow_stats(
            self.node,
            table,
            list(wanted.match),
            _wanted(wanted.out_port, ofp.OFPP_ANY),
            _wanted(wanted.out_group, ofp.OFPG_ANY),
            wanted.cookie,
            wanted.cookie_mask,
        )
        return found

    def _flow_stats(self, request: bytes) -> list[bytes]:
        now = time.monotonic()
        records: list[bytes] = []
        for table, flow_id, _, _, packets, octets, _, _ in self._selected_flows(request):
            mod, since = self._flows[flow_id]
            records.append(codec.flow_stats(table, now - since, mod, packets, octets))
        return records

    def _aggregate_stats(self, request: bytes) -> list[bytes]:
        flows = self._selected_flows(request)
        packets, octets = sum(f[4] for f in flows), sum(f[5] for f in flows)
        return [struct.pack(ofp.OFP_AGGREGATE_STATS_REPLY_PACK_STR, packets, octets, len(flows))]

    def _table_stats(self, request: bytes) -> list[bytes]:
        counts = self.dataplane.table_counts(self.node)
        return [struct.pack(ofp.OFP_TABLE_STATS_PACK_STR, i, count, 0, 0) for i, count in enumerate(counts)]

    def _port_stats(self, request: bytes) -> list[bytes]:
        if len(request) < 4:
            raise OpenFlowError.named("OFPBRC_BAD_LEN")
        (wanted,) = struct.unpack_from("!I", request)
        if wanted != ofp.OFPP_ANY and wanted not in self.ports:
            raise OpenFlowError.named("OFPBRC_BAD_PORT")
        numbers = list(self.ports) if wanted == ofp.OFPP_ANY else [wanted]
        return [self._one_port_stats(number) for number in numbers]

    def _one_port_stats(self, number: int) -> bytes:
        c = self.dataplane.port_counters(self.node, number - 1)
        totals = [sum(c[key]) for key in ("rx_frames", "tx_frames", "rx_bytes", "tx_bytes")]
        seconds = time.monotonic() - self._started
        rest = (0,) * 8
        return struct.pack("!I4x12QII", number, *totals, *rest, int(seconds), int(seconds % 1 * 1e9))

    def _group_stats(self, request: bytes) -> list[bytes]:
        (wanted,) = struct.unpack_from("!I", request.ljust(4, b"\0"))
        now = time.monotonic()
        records: list[bytes] = []
        for group, _, packets, octets, buckets in self.dataplane.group_stats(self.node):
            if wanted not in (group, ofp.OFPG_ALL):
                continue
            since = self._groups[group][1]
            age = now - since
            length = 40 + 16 * len(buckets)
            head = struct.pack("!H2xII4xQQII", length, group, 0, packets, octets, int(age), int(age % 1 * 1e9))
            records.append(head + struct.pack("!QQ", 0, 0) * len(buckets))
        return records

    def _group_desc(self, request: bytes) -> list[bytes]:
        return [
            struct.pack("!HBxI", 8 + len(mod.bucket_bytes), mod.kind, group) + mod.bucket_bytes
            for group, (mod, _) in sorted(self._groups.items())
        ]

    def _group_features(self, request: bytes) -> list[bytes]:
        actions = 1 << ofp.OFPAT_OUTPUT | 1 << ofp.OFPAT_GROUP | 1 << ofp.OFPAT_DEC_NW_TTL
        capabilities = ofp.OFPGFC_SELECT_WEIGHT | ofp.OFPGFC_CHAINING | ofp.OFPGFC_CHAINING_CHECKS
        return [struct.pack("!II4I4I", _SUPPORTED_GROUP_KINDS, capabilities, *[_MAX_GROUPS] * 4, *[actions] * 4)]

    def _port_desc(self, request: bytes) -> list[bytes]:
        return [self._describe(number) for number in sorted(self.ports)]


def _wanted(value: int, any_value: int) -> int | None:
    return None if value == any_value else value
