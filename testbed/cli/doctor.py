"""Checks of the machine."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from testbed.processes import die_with_parent


@dataclass(frozen=True)
class Check:
    """One check: what, whether it holds, and what to do if not."""

    name: str
    ok: bool
    remedy: str


def _packet_socket() -> bool:
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    except OSError:
        return False
    return True


def _veth() -> bool:
    if os.geteuid() != 0 or shutil.which("mnexec") is None:
        return False
    from testbed.emulation.network import make_link, namespace_path

    # In a namespace of its own, so that nothing is left on the machine.
    holder = subprocess.Popen(["mnexec", "-n", "sleep", "10"], preexec_fn=die_with_parent)
    own = Path("/proc/self/ns/net").stat().st_ino
    try:
        for _ in range(100):
            if Path(namespace_path(holder.pid)).stat().st_ino != own:
                make_link(holder.pid, "check0", None, holder.pid, "check1", None)
                return True
            time.sleep(0.01)
    except OSError:
        return False
    finally:
        holder.kill()
        holder.wait()
    return False


def examine() -> list[Check]:
    """Every check, in order."""

    def program(name: str, package: str, why: str) -> Check:
        return Check(f"{name} ({why})", shutil.which(name) is not None, f"sudo apt-get install {package}")

    sudo = "run it with sudo; without root only --engine simulate works"
    live: list[tuple[str, Callable[[], bool], str]] = [
        ("root (emulate)", lambda: os.geteuid() == 0, sudo),
        ("packet sockets (emulate)", _packet_socket, sudo),
        (
            "network namespaces and veth links (emulate)",
            _veth,
            "a kernel with CONFIG_NET_NS and CONFIG_VETH, and root",
        ),
    ]
    return [
        Check("Python 3.11 or later", sys.version_info >= (3, 11), "sudo apt-get install python3"),
        program("mnexec", "mininet", "namespaces of hosts"),
        program("ip", "iproute2", "the shell of hosts"),
        program("ping", "iputils-ping", "h1 ping h2"),
        program("tshark", "tshark", "reading captures; the tests"),
        *(Check(name, test(), remedy) for name, test, remedy in live),
    ]
