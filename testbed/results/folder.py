"""The run folder: written under a temporary name, renamed when whole."""

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from testbed.processes import start_time


class FolderError(Exception):
    """The folder asked for cannot be used."""


class RunFolder:
    """Collects a run's files in a temporary folder beside the final one; `commit` renames it.

    Without `commit` (the run failed, or the process was killed) nothing stands under the final name.
    """

    def __init__(self, out: Path | None, name: str) -> None:
        """
        Raises:
            FolderError: `out` exists and is not an empty folder, or its parent cannot be written.
        """
        self.final = out or Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        if not self.final.name or self.final.name == "..":
            self.final = self.final.resolve()
        try:
            if self.final.is_symlink() or (self.final.exists() and not self.final.is_dir()):
                raise FolderError(f"{self.final} is not a folder: name another with --out")
            if self.final.is_dir() and any(self.final.iterdir()):
                raise FolderError(f"{self.final} is there already and not empty: name another folder with --out")
            missing = [p for p in (self.final.parent, *self.final.parent.parents) if not p.exists()]
            self.final.parent.mkdir(parents=True, exist_ok=True)
            _give_to_invoker(missing)
            owner = f"p{os.getpid()}-{start_time(os.getpid())}"
            self.path = Path(tempfile.mkdtemp(prefix=f".{self.final.name}.{owner}.", dir=self.final.parent))
        except OSError as error:
            raise FolderError(f"{self.final.parent} cannot be written: {error.strerror}") from None
        for sub in ("captures", "plots"):
            (self.path / sub).mkdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.path.exists():
            shutil.rmtree(self.path, ignore_errors=True)

    def write_text(self, name: str, text: str) -> None:
        (self.path / name).write_text(text, encoding="utf-8")

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        self.write_text(name, json.dumps(value, indent=2) + "\n")

    def write_table(self, name: str, table: pa.Table) -> None:
        pq.write_table(table, self.path / name, compression="zstd")

    def commit(self) -> Path:
        """Renames the folder to its final name and returns it."""
        umask = os.umask(0)
        os.umask(umask)
        self.path.chmod(0o777 & ~umask)
        with contextlib.suppress(OSError):
            self.final.rmdir()
        if self.final.exists():
            # Another run of the same second took the name.
            self.final = self.final.with_name(f"{self.final.name}-{self.path.name.rsplit('.', 1)[-1]}")
        _give_to_invoker([self.path, *self.path.rglob("*")])
        self.path.rename(self.final)
        return self.final


def _give_to_invoker(made: Iterable[Path]) -> None:
    """Under sudo, what a run makes belongs to the person who started it."""
    uid = os.environ.get("SUDO_UID", "")
    if os.geteuid() != 0 or not uid.isdecimal():
        return
    gid = int(os.environ.get("SUDO_GID", uid))
    for path in made:
        os.chown(path, int(uid), gid, follow_symlinks=False)
