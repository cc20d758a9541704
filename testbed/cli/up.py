"""`testbed up`: a live fabric with Mininet's command line."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from testbed.cli import exit_codes
from testbed.control import ControlError
from testbed.fabric import BuiltFabric
from testbed.scenario import ScenarioError, load, make_plan

DEFAULT_SLOWDOWN = 1000.0
"""400 Gb/s then runs at 400 Mb/s on the wall, which hosts' own stacks can fill."""


def bring_up(path: Path, overrides: tuple[str, ...]) -> int:
    """Brings a scenario's fabric up and hands it to the person; returns the exit code."""
    from testbed.cli.execute import Engine, require_root

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        plan = make_plan(*load(path, overrides))
    except ScenarioError as error:
        console.print(str(error), markup=False)
        return exit_codes.USAGE
    if problem := require_root(Engine.EMULATE):
        console.print(problem.split(", or take")[0], markup=False)
        return exit_codes.USAGE
    from testbed.emulation.live import LiveFabric

    built = BuiltFabric(plan, live=True)
    slowdown = plan.scenario.run.slowdown
    pace = DEFAULT_SLOWDOWN if slowdown == "auto" else slowdown
    try:
        with LiveFabric(built, console.print) as live:
            live.control.open_fabric()
            built.dataplane.set_slowdown(pace)
            console.print(f"1 second of fabric time takes {pace:g} s here; type help, and exit to end")
            live.runtime.every_step = _telling(live.control.hear, console)
            live.runtime.start_loop()
            _command_line(live.net, built, live.runtime)
    except ControlError as error:
        for line in error.problems:
            console.print(f"failed: {line}", markup=False)
        return exit_codes.FAILED
    except (OSError, RuntimeError) as error:
        console.print(f"failed: {error} (`testbed doctor` checks this machine)", markup=False)
        return exit_codes.FAILED
    except KeyboardInterrupt:
        pass
    return exit_codes.DONE


def _telling(hear: Callable[[], None], console: Console) -> Callable[[], None]:
    """Listens to the controller; if it fails, says so once, and the fabric goes on with the routes that are in place."""
    gone = False

    def step() -> None:
        nonlocal gone
        if gone:
            return
        try:
            hear()
        except ControlError as error:
            gone = True
            console.print(f"the subnet manager is gone, routes stay as they are: {error}", markup=False)

    return step


def _command_line(net: Any, built: BuiltFabric, runtime: Any) -> None:
    from mininet.log import setLogLevel

    from testbed.cli.shell import FabricCLI

    setLogLevel("info")
    FabricCLI.fabric, FabricCLI.runtime = built, runtime
    FabricCLI(net, stdin=sys.stdin)
