"""The run loop, the same for both engines."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from testbed.control import ControlPlane
from testbed.fabric import BuiltFabric

Progress = Callable[[int, int, int], None]
"""Called now and then with fabric time in ps, messages ended, messages in all."""
BUDGET_EVENTS = 200_000
BUDGET_MS = 50
_START_TRIES = 1000


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended."""

    engine: str
    complete: bool
    wall_time_s: float
    slowdown: float | None


class Interrupts:
    """Turns the first SIGINT or SIGTERM into a request to stop, so that everything is put away in order."""

    def __init__(self) -> None:
        self.requested = False

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    @contextmanager
    def watching(self) -> Iterator["Interrupts"]:
        """Installs the handlers; does nothing outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        # What is ignored stays so: under nohup, a run outlives the terminal.
        wanted = [s for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) != signal.SIG_IGN]
        before = {s: signal.signal(s, self._handle) for s in wanted}
        try:
            yield self
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)


def drive(built: BuiltFabric, control: ControlPlane, progress: Progress, interrupts: Interrupts) -> tuple[bool, float]:
    """Runs an opened fabric from fabric time zero to the end of its traffic, or to the scenario's limit.

    Returns whether it came to its end, and the wall time in seconds.
    """
    dataplane: Any = built.dataplane
    run = built.plan.scenario.run
    for _ in range(_START_TRIES):
        if dataplane.start(run.sample_interval.ps):
            break
        dataplane.run(budget_ms=BUDGET_MS, budget_events=BUDGET_EVENTS)
    else:
        raise RuntimeError("frames of the set-up are still under way: the fabric does not come to rest")
    built.add_traffic()
    total = dataplane.open_messages
    began = time.monotonic()
    complete = False
    while not interrupts.requested:
        stop, token = dataplane.run(run.limit.ps, BUDGET_EVENTS, BUDGET_MS)
        if stop == "port":
            control.port_changed(dataplane.take_port_changes())
        elif stop == "break":
            control.take_effect(token)
        elif stop in ("done", "until"):
            complete = True
            break
        control.poll()
        progress(dataplane.now_ps, total - dataplane.open_messages, total)
    dataplane.finish()
    return complete, time.monotonic() - began
