"""Processes of a live run: marked, bound to their parent's life, and found again if they outlive it."""

import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path

MARK = "TESTBED_OWNER"
"""Environment variable of every process a live run starts: process id and start time of the run."""
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """For `preexec_fn`: the kernel kills the child when the thread that started it ends, also by kill -9."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start_time(pid: int) -> str | None:
    """Start time of a process in clock ticks, which with its id names it for good; `None` if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]


def mark_environment() -> None:
    """Marks this process's environment, which its children inherit."""
    os.environ[MARK] = f"{os.getpid()}:{start_time(os.getpid())}"


def orphans() -> Iterator[int]:
    """Processes that carry the mark of a run which is gone."""
    prefix = f"{MARK}=".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for variable in environment:
            if not variable.startswith(prefix):
                continue
            owner, _, since = variable[len(prefix) :].decode(errors="replace").partition(":")
            if owner.isdecimal() and int(owner) != int(entry.name) and start_time(int(owner)) != since:
                yield int(entry.name)
