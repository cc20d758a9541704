"""Running a plan on the `emulate` engine."""

from testbed.emulation.live import LiveFabric, Report
from testbed.engine import Interrupts, Progress, RunOutcome, drive
from testbed.fabric import BuiltFabric


def emulate(built: BuiltFabric, progress: Progress, interrupts: Interrupts, report: Report) -> RunOutcome:
    """Runs a plan as real packets on real links.

    Raises:
        ControlError: the controller did not open the fabric.
        OSError: links or sockets could not be made.
    """
    slowdown = built.plan.scenario.run.slowdown
    paced = None if slowdown == "auto" else slowdown
    with LiveFabric(built, report) as live:
        live.control.interrupts = interrupts
        live.control.open_fabric()
        built.dataplane.set_slowdown(paced)
        complete, wall_time_s = drive(built, live.control, progress, interrupts)
        return RunOutcome("emulate", complete, wall_time_s, paced)
