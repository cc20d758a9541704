"""The `simulate` engine: virtual time, no root, the same bytes for the same seed."""

from collections.abc import Callable

from testbed.control import ControlError, DirectControl
from testbed.engine import Interrupts, Progress, RunOutcome, drive
from testbed.fabric import BuiltFabric, declared
from testbed.scenario.plan import Plan
from testbed.units import Duration

__all__ = ["simulate"]


def simulate(
    built: BuiltFabric, progress: Progress, interrupts: Interrupts, report: Callable[[str], None] = lambda line: None
) -> RunOutcome:
    """Runs a plan in virtual time.

    Raises:
        ControlError: the routes are not loop-free, or the scenario asks for a controller's own time.
    """
    plan: Plan = built.plan
    reaction = plan.scenario.control.reaction
    if not isinstance(reaction, Duration):
        raise ControlError(["control.reaction: realtime needs a controller of its own: use --engine emulate"])
    lossless = plan.lossless_mask != 0
    warn = (lambda line: report(f"warning: {line}")) if lossless else (lambda line: None)
    control = DirectControl(built, declared(plan.topology), reaction.ps, warn)
    control.open_fabric()
    complete, wall_time_s = drive(built, control, progress, interrupts)
    return RunOutcome("simulate", complete, wall_time_s, None)
