"""The command line: `testbed run`, `demo`, `up`, `topo`, `bench`, `doctor`, `clean`."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from testbed.cli import exit_codes
from testbed.cli.execute import Engine, Options, execute
from testbed.experiments import demos
from testbed.scenario import ScenarioError

app = typer.Typer(
    help="An emulation testbed for the networks inside AI clusters.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
topo = typer.Typer(help="Look at topologies.", no_args_is_help=True)
app.add_typer(topo, name="topo")

EngineOption = Annotated[
    Engine, typer.Option("--engine", help="emulate: real packets on real links (needs root). simulate: virtual time.")
]
OutOption = Annotated[Path | None, typer.Option("--out", help="Run folder; default runs/NAME-DATE-TIME.")]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seed instead of the scenario's.", min=0)]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Set a key of the scenario, as in --set switch.pfc.enabled=false. May be repeated."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print summary.json on stdout, everything else on stderr.")]


def _fail_usage(message: str) -> typer.Exit:
    Console(stderr=True, highlight=False).print(message, markup=False, soft_wrap=True)
    return typer.Exit(exit_codes.USAGE)


@app.command()
def run(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML).")],
    engine: EngineOption = Engine.EMULATE,
    out: OutOption = None,
    seed: SeedOption = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a scenario file.

    Example: testbed run my.yaml --engine simulate --set nic.dcqcn.enabled=false
    """
    raise typer.Exit(execute(scenario, Options(engine, out, seed, tuple(set_ or ()), as_json)))


@app.command()
def demo(
    name: Annotated[str | None, typer.Argument(help="Name of a demo; without one, the list.")] = None,
    engine: EngineOption = Engine.EMULATE,
    out: OutOption = None,
    seed: SeedOption = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a shipped scenario with its commentary.

    Example: testbed demo pfc-storm --engine simulate
    """
    known = demos()
    if name is None:
        for title, path in known.items():
            typer.echo(f"{title:12} {_first_line(path)}")
        return
    if name not in known:
        raise _fail_usage(f"there is no demo {name!r}: demos are {', '.join(known)}")
    raise typer.Exit(execute(known[name], Options(engine, out, seed, tuple(set_ or ()), as_json, commentary=True)))


def _first_line(path: Path) -> str:
    from testbed.scenario import load

    scenario, _ = load(path)
    return " ".join(scenario.description.split(".")[0].split()) + "."


@app.command()
def up(
    scenario: Annotated[Path, typer.Argument(help="Scenario file, or the name of a demo.")],
    set_: SetOption = None,
) -> None:
    """Bring a live fabric up, with Mininet's command line to use it by hand.

    Mininet's commands (h1 ping h5, iperf, xterm) are all there; so are: queues, pause, fault, counters. Type help.
    The scenario's own traffic is not started.

    Example: sudo testbed up incast --set run.slowdown=1000
    """
    from testbed.cli.up import bring_up

    path = demos().get(str(scenario), scenario)
    raise typer.Exit(bring_up(path, tuple(set_ or ())))


@topo.command("show")
def topo_show(
    kind: Annotated[str, typer.Argument(help="fat-tree, leaf-spine, rail-optimized, or a scenario file.")],
    k: Annotated[int | None, typer.Option(help="fat-tree: ports of a switch.")] = None,
    spines: Annotated[int | None, typer.Option(help="leaf-spine, rail-optimized")] = None,
    leaves: Annotated[int | None, typer.Option(help="leaf-spine")] = None,
    hosts_per_leaf: Annotated[int | None, typer.Option(help="leaf-spine")] = None,
    nodes: Annotated[int | None, typer.Option(help="rail-optimized")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(help="rail-optimized: NICs of a node, one a rail")] = None,
    leaves_per_rail: Annotated[int | None, typer.Option(help="rail-optimized")] = None,
    png: Annotated[Path | None, typer.Option(help="Draw it into this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Show a topology: its size, its switches and their links.

    Example: testbed topo show fat-tree --k 16
    """
    from testbed.cli.topo import show

    sizes = {
        "k": k,
        "spines": spines,
        "leaves": leaves,
        "hosts_per_leaf": hosts_per_leaf,
        "nodes": nodes,
        "gpus_per_node": gpus_per_node,
        "leaves_per_rail": leaves_per_rail,
    }
    try:
        show(kind, {key: value for key, value in sizes.items() if value is not None}, png, as_json)
    except ScenarioError as error:
        raise _fail_usage(str(error)) from None


@app.command()
def bench(
    names: Annotated[list[str] | None, typer.Argument(help="Benchmarks to run; all of them without a name.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure this machine. Figures are to be read as ratios within one run: machines differ, and so do their moods.

    Example: sudo testbed bench simulate links
    """
    from testbed.cli.bench import BENCHMARKS, run_benchmarks

    wanted = names or list(BENCHMARKS)
    if unknown := [name for name in wanted if name not in BENCHMARKS]:
        raise _fail_usage(f"there is no benchmark {unknown[0]!r}: benchmarks are {', '.join(BENCHMARKS)}")
    raise typer.Exit(run_benchmarks(wanted, as_json))


@app.command()
def doctor() -> None:
    """Tell whether this machine can run the testbed; what is missing, and the command that mends it."""
    from testbed.cli.doctor import examine

    table = Table("check", "state", "remedy", box=None, pad_edge=False)
    checks = examine()
    for check in checks:
        table.add_row(check.name, "ok" if check.ok else "MISSING", "" if check.ok else check.remedy)
    Console(highlight=False).print(table)
    raise typer.Exit(exit_codes.DONE if all(c.ok for c in checks) else exit_codes.FAILED)


@app.command()
def clean() -> None:
    """Remove what a killed run left behind: its processes (by id, never by name) and its unfinished folders in runs/."""
    from testbed.cli.clean import clean_up

    for line in clean_up(Path("runs")):
        typer.echo(line)


def main(arguments: list[str] | None = None) -> Any:
    """Entry point of the `testbed` command."""
    os.umask(0o022)
    return app(args=arguments)


if __name__ == "__main__":
    sys.exit(main())
