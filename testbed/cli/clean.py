"""Removing what a killed run left behind. Namespaces and links go with their processes; those and unfinished folders are left."""

import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from testbed.processes import orphans, start_time

_UNFINISHED = re.compile(r"^\..+\.p(\d+)-(\d+)\.[a-z0-9_]{8}$")


def clean_up(runs: Path) -> Iterator[str]:
    """Ends orphans and removes unfinished run folders; yields a line for each thing done."""
    found = sorted(orphans())
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        yield f"ended process {pid}"
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(start_time(pid) for pid in found):
        time.sleep(0.01)
    for folder in sorted(runs.glob(".*")) if runs.is_dir() else []:
        match = _UNFINISHED.match(folder.name)
        if match and folder.is_dir() and start_time(int(match[1])) != match[2]:
            shutil.rmtree(folder)
            yield f"removed unfinished {folder}"
    yield "nothing of a killed run is left"
