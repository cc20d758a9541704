"""Checks of the machine."""

import os
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


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
    from testbed.processes import die_with_parent

    if os.geteuid() != 0:
        return False
    import subprocess

    from testbed.emulation.network import make_link

    # In a namespace of its own, so that nothing is left on the machine.
    holder = subprocess.Popen(["mnexec", "-n", "sleep", "10"], preexec_fn=die_with_parent)
    try:
        for _ in range(100):
            if Path(f"/proc/{holder.pid}/ns/net").stat().st_ino != Path("/proc/self/ns/net").stat().st_ino:
                make_link(holder.pid, "check0", None, holder.pid, "check1", None)
                return True
            import time

            time.sleep(0.01)
    except Exception:
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
            lambda: shutil.which("mnexec") is not None and _veth(),
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
