"""Running a scenario from the command line: checks, progress, results, verdict."""

import contextlib
import enum
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from testbed.cli import exit_codes
from testbed.control import ControlError
from testbed.engine import Interrupts, RunOutcome
from testbed.fabric import BuiltFabric
from testbed.plots import draw_all
from testbed.results import FolderError, RunFolder, check_expectations, make_summary, make_tables
from testbed.results.pauses import pause_order, tell
from testbed.results.tables import Tables
from testbed.scenario import Plan, ScenarioError, dump, load, make_plan


class Engine(enum.StrEnum):
    EMULATE = "emulate"
    SIMULATE = "simulate"


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    engine: Engine
    out: Path | None = None
    seed: int | None = None
    overrides: tuple[str, ...] = ()
    as_json: bool = False
    commentary: bool = False


class _Talk:
    """What the run says: to the person, and to log.txt."""

    def __init__(self, as_json: bool) -> None:
        self.console = Console(stderr=as_json, highlight=False)
        self.lines: list[str] = []

    def say(self, text: str, style: str | None = None) -> None:
        self.lines.append(text)
        self.console.print(text, markup=False, style=style, soft_wrap=True)

    def hear(self, text: str) -> None:
        """What the engine says: for the log alone, but for warnings."""
        if text.startswith("warning:"):
            self.say(text, "yellow")
        else:
            self.lines.append(text)


def require_root(engine: Engine) -> str | None:
    """Why this engine cannot run as this user; `None` if it can."""
    if engine is Engine.EMULATE and os.geteuid() != 0:
        return (
            "--engine emulate makes network namespaces and links, which needs root: "
            "run it with sudo, or take --engine simulate, which needs no privilege"
        )
    return None


def execute(path: Path, options: Options) -> int:
    """Runs a scenario file; returns the exit code."""
    talk = _Talk(options.as_json)
    errors = Console(stderr=True, highlight=False)
    try:
        scenario, source = load(path, options.overrides, options.seed)
        plan = make_plan(scenario, source)
        if options.engine is Engine.SIMULATE and scenario.control.reaction == "realtime":
            message = "realtime lets a controller's own time count, and needs one: use --engine emulate, or give a time"
            raise ScenarioError([source.problem(("control", "reaction"), message)])
        if problem := require_root(options.engine):
            errors.print(problem, markup=False, soft_wrap=True)
            return exit_codes.USAGE
        folder = RunFolder(options.out, scenario.name)
    except (ScenarioError, FolderError) as error:
        errors.print(str(error), markup=False, soft_wrap=True)
        return exit_codes.USAGE
    with folder:
        try:
            return _run(plan, options, folder, talk)
        except ControlError as error:
            for problem in error.problems:
                errors.print(f"failed: {problem}", markup=False, soft_wrap=True)
        except (OSError, RuntimeError, ValueError) as error:
            errors.print(f"failed: {error} (`testbed doctor` checks this machine)", markup=False, soft_wrap=True)
        except KeyboardInterrupt:
            errors.print("interrupted before the run began; nothing is left behind")
            return exit_codes.INTERRUPTED
    return exit_codes.FAILED


def _run(plan: Plan, options: Options, folder: RunFolder, talk: _Talk) -> int:
    scenario = plan.scenario
    if options.commentary:
        talk.say(scenario.description.strip())
    built = BuiltFabric(plan, live=options.engine is Engine.EMULATE)
    for link in plan.captures:
        node, port = built.locate(link.a)
        names = (f"{link.a.node}-eth{link.a.port}", f"{link.b.node}-eth{link.b.port}")
        built.dataplane.capture(node, port, folder.path / "captures" / f"{link.name}.pcapng", names)
    folder.write_text("scenario.yaml", dump(scenario))
    interrupts = Interrupts()
    with interrupts.watching():
        outcome = _engine(built, options.engine, interrupts, talk)
        built.dataplane.close_captures()
        return _finish(built, outcome, options, folder, talk)


def _engine(built: BuiltFabric, engine: Engine, interrupts: Interrupts, talk: _Talk) -> RunOutcome:
    total = sum(flow.messages for flow in built.plan.flows)
    with _progress(talk, total) as update:
        if engine is Engine.EMULATE:
            from testbed.emulation.run import emulate

            return emulate(built, update, interrupts, talk.hear)
        from testbed.simulation import simulate

        return simulate(built, update, interrupts, talk.hear)


@contextlib.contextmanager
def _progress(talk: _Talk, total: int) -> Iterator[Any]:
    """A progress bar on a terminal; elsewhere a line every few seconds."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("running", total=total or None, text="setting up")

            def show(now_ps: int, ended: int, all_: int) -> None:
                bar.update(task, completed=ended, text=f"{ended}/{all_} messages, fabric time {now_ps / 1e6:.1f} us")

            yield show
        return
    last = time.monotonic()

    def print_line(now_ps: int, ended: int, all_: int) -> None:
        nonlocal last
        if time.monotonic() - last > 5:
            last = time.monotonic()
            print(f"... {ended}/{all_} messages, fabric time {now_ps / 1e6:.1f} us", file=sys.stderr, flush=True)

    yield print_line


def _finish(built: BuiltFabric, outcome: RunOutcome, options: Options, folder: RunFolder, talk: _Talk) -> int:
    tables = make_tables(built)
    summary = make_summary(built, outcome, tables)
    for name in ("flows", "ports", "events", "rates", "totals", "histograms"):
        folder.write_table(f"{name}.parquet", getattr(tables, name))
    folder.write_json("summary.json", summary)
    interval_ns = built.plan.scenario.run.sample_interval.ns
    title = f"{summary['name']}, {summary['engine']}, seed {summary['seed']}"
    end_ns = summary["fabric_time_ns"]
    invalid = not summary["valid"]
    draw_all(folder.path / "plots", tables, interval_ns=interval_ns, end_ns=end_ns, title=title, invalid=invalid)
    _tell(summary, tables, talk)
    kept = built.plan.scenario.expect if outcome.complete else ()
    verdicts = check_expectations(summary, kept)
    for holds, sentence in verdicts:
        talk.say(f"{'ok  ' if holds else 'FAIL'}  {sentence}", None if holds else "red")
    folder.write_text("log.txt", "\n".join(talk.lines) + "\n")
    final = folder.commit()
    talk.say(f"results: {final}/  (summary.json, *.parquet, captures/, plots/)")
    if options.as_json:
        sys.stdout.write((final / "summary.json").read_text())
    if not outcome.complete:
        talk.say("interrupted: the results are partial")
        return exit_codes.INTERRUPTED
    if not summary["valid"]:
        return exit_codes.INVALID
    return exit_codes.DONE if all(holds for holds, _ in verdicts) else exit_codes.FAILED


def _tell(summary: dict[str, Any], tables: Tables, talk: _Talk) -> None:
    """The run in a few lines."""
    flows, switches, nics = summary["flows"], summary["switches"], summary["nics"]
    talk.say(f"{summary['engine']}: {summary['fabric_time_ns'] / 1000:.1f} us of fabric time in {summary['wall_time_s']:.2f} s")
    talk.say(
        f"messages: {flows['completed']} of {flows['started']} completed, {flows['failed']} failed, "
        f"goodput {flows['goodput_bps'] / 1e9:.1f} Gb/s"
        + (f", FCT p99 {flows['fct_p99_ns'] / 1000:.1f} us" if flows["fct_p99_ns"] is not None else "")
    )
    talk.say(
        f"switches: {switches['ecn_marked']} packets ECN-marked, {switches['pfc_xoff_sent']} XOFF sent, "
        f"{switches['drops_total']} frames dropped, buffer at most {switches['buffer_max_bytes'] / 1000:.0f} KB"
    )
    talk.say(
        f"NICs: {nics['cnp_received']} CNPs received, {nics['retransmitted_packets']} packets retransmitted, "
        f"{nics['timeouts']} timeouts, paused for {nics['pfc_paused_ns'] / 1000:.1f} us together"
    )
    if order := pause_order(tables, summary["fabric_time_ns"]):
        talk.say("who paused whom, in order of the first XOFF:")
        for line in tell(order):
            talk.say(line)
    fidelity = summary["fidelity"]
    if fidelity["slowdown_mean"] is not None:
        talk.say(
            f"fidelity: {fidelity['slowdown_mean']:.0f} wall seconds per fabric second, clock slipped "
            f"{fidelity['slipped_wall_s']:.3f} s, {fidelity['emulator_lost_frames']} frames lost by the emulator, "
            f"{fidelity['foreign_frames']} foreign frames"
        )
    if not summary["valid"]:
        talk.say("INVALID: the emulator lost frames of its own; do not trust these figures", "bold red")
