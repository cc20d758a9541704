"""Links, addresses and offloads in network namespaces, over netlink."""

import ctypes
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pyroute2 import IPRoute, NetlinkError
from pyroute2.ethtool.ioctl import IoctlEthtool
from pyroute2.netns import setns

LINK_MTU = 9000
"""Every link takes jumbo frames, as AI fabrics do."""
ROCE_UDP_PORT = 4791
_SO_ATTACH_FILTER = 26
_BPF_RET = 0x06

T = TypeVar("T")


def check_namespaces() -> None:
    """Makes a network namespace as Mininet does, and drops it: Mininet itself would wait for ever for a shell that cannot start.

    Raises:
        OSError: it cannot be done here; the message says why.
    """
    try:
        done = subprocess.run(["mnexec", "-n", "true"], capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError:
        raise OSError("mnexec is not installed: sudo apt-get install mininet") from None
    if done.returncode != 0:
        raise OSError(f"mnexec cannot make a network namespace here: {done.stderr.strip()}")


def namespace_path(pid: int) -> str:
    return f"/proc/{pid}/ns/net"


def in_namespace(pid: int, work: Callable[[], T]) -> T:
    """Runs `work` in the network namespace of a process, in a thread of its own (a namespace belongs to a thread).

    Raises:
        OSError: there is no such namespace; and whatever `work` raises.
    """
    result: list[T] = []
    failure: list[BaseException] = []

    def enter() -> None:
        try:
            fd = os.open(namespace_path(pid), os.O_RDONLY | os.O_CLOEXEC)
            try:
                setns(fd)
            finally:
                os.close(fd)
            result.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if failure and isinstance(failure[0], NetlinkError):
        raise OSError(failure[0].code, f"netlink: {failure[0]}") from failure[0]
    if failure:
        raise failure[0]
    return result[0]


def silence_ipv6(pid: int) -> None:
    """Keeps the kernel from sending router solicitations and the like on links that are to carry the fabric's frames alone."""

    def work() -> None:
        for scope in ("all", "default"):
            path = Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6")
            if path.exists():
                path.write_text("1")

    in_namespace(pid, work)


def make_link(pid_a: int, name_a: str, mac_a: str | None, pid_b: int, name_b: str, mac_b: str | None) -> None:
    """Makes a veth pair whose ends are born in the namespaces of two processes."""
    peer: dict[str, object] = {"ifname": name_b, "mtu": LINK_MTU, "net_ns_pid": pid_b}
    if mac_b:
        peer["address"] = mac_b

    def work() -> None:
        with IPRoute() as netlink:
            own = {"address": mac_a} if mac_a else {}
            netlink.link("add", ifname=name_a, kind="veth", mtu=LINK_MTU, peer=peer, **own)

    in_namespace(pid_a, work)


def without_offloads(name: str) -> None:
    """Has the kernel finish checksums and segments before a frame leaves: what forwards it reads the bytes as they are."""
    tool = IoctlEthtool(name)
    try:
        features = tool.get_features()
        for feature in list(features.keys()):
            finished_later = any(part in feature for part in ("checksum", "segmentation", "gso"))
            if feature.startswith("tx-") and finished_later and features.is_available(feature):
                features.set_value(feature, False)
        tool.set_features(features)
    finally:
        tool.close()


def bring_up(pid: int, names: Iterable[str]) -> None:
    """Brings interfaces (and loopback) of a namespace up, offloads off."""

    def work() -> None:
        with IPRoute() as netlink:
            for name in ("lo", *names):
                (index,) = netlink.link_lookup(ifname=name)
                if name != "lo":
                    without_offloads(name)
                netlink.link("set", index=index, state="up")

    in_namespace(pid, work)


def mac_of(pid: int, name: str, wanted: str | None = None) -> str:
    """The MAC address of an interface, after setting it to `wanted` if that is given."""

    def work() -> str:
        with IPRoute() as netlink:
            (index,) = netlink.link_lookup(ifname=name)
            if wanted:
                netlink.link("set", index=index, address=wanted)
            return str(netlink.get_links(index)[0].get_attr("IFLA_ADDRESS"))

    return in_namespace(pid, work)


@dataclass(frozen=True)
class Address:
    """An IPv4 address of an interface."""

    interface: str
    ip: str
    prefix_length: int


def add_addresses(pid: int, addresses: Iterable[Address]) -> None:
    """Gives interfaces their addresses. The first one's prefix is routed; each other address leaves by its own interface."""

    def work() -> None:
        with IPRoute() as netlink:
            for i, address in enumerate(addresses):
                (index,) = netlink.link_lookup(ifname=address.interface)
                prefix_length = address.prefix_length if i == 0 else 32
                netlink.addr("add", index=index, address=address.ip, prefixlen=prefix_length)
                if i > 0:
                    table = 100 + i
                    network = f"{address.ip.split('.')[0]}.0.0.0/{address.prefix_length}"
                    netlink.route("add", dst=network, oif=index, prefsrc=address.ip, table=table, scope=253)
                    netlink.rule("add", src=address.ip, src_len=32, table=table, priority=100 + i)

    in_namespace(pid, work)


def roce_sink(pid: int) -> socket.socket:
    """A socket that takes UDP 4791 in a host's namespace and drops it, so that the host's kernel, which sees the NIC's packets
    too, does not answer them with ICMP port unreachable. Keep it open."""

    def work() -> socket.socket:
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        drop_all = struct.pack("HBBI", _BPF_RET, 0, 0, 0)
        program = (len(drop_all) // 8, drop_all)
        buffer = ctypes.create_string_buffer(program[1])
        sink.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", program[0], ctypes.addressof(buffer)))
        sink.bind(("0.0.0.0", ROCE_UDP_PORT))
        return sink

    return in_namespace(pid, work)
