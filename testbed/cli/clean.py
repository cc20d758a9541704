"""Removing what a killed run left behind. Namespaces and links go with their processes; those and unfinished folders are left."""

import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from testbed.processes import orphans, start_time

_OWNED = re.compile(r"^\.?.+\.p(\d+)-(\d+)\.[a-z0-9_]{8}$")


def clean_up(runs: Path) -> Iterator[str]:
    """Ends orphans and removes unfinished run folders; yields a line for each thing done."""
    found = sorted(orphans())
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        except PermissionError:
            yield f"process {pid} is another user's: run it with sudo"
            continue
        yield f"ended process {pid}"
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(start_time(pid) for pid in found):
        time.sleep(0.01)
    for folder in [*_unfinished(runs, ".*"), *_unfinished(Path(tempfile.gettempdir()), "testbed.p*")]:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            yield f"{folder} cannot be removed ({error.strerror}): run it with sudo"
            continue
        yield f"removed unfinished {folder}"
    yield "nothing else of a killed run is left"


def _unfinished(parent: Path, pattern: str) -> list[Path]:
    """Folders whose names say that a process which is gone made them."""
    if not parent.is_dir():
        return []
    matches = ((folder, _OWNED.match(folder.name)) for folder in sorted(parent.glob(pattern)))
    return [f for f, m in matches if m and f.is_dir() and not f.is_symlink() and start_time(int(m[1])) != m[2]]
