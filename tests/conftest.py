"""Helpers for all tests."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testbed.engine import Interrupts
from testbed.fabric import BuiltFabric
from testbed.results import make_summary, make_tables
from testbed.results.tables import Tables
from testbed.scenario import Plan, load, make_plan
from testbed.simulation import simulate

REPOSITORY = Path(__file__).parent.parent
FIXTURES = Path(__file__).parent / "fixtures"
EXPERIMENTS = REPOSITORY / "testbed" / "experiments"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Live tests need root; without it they are skipped, and say so."""
    if os.geteuid() != 0:
        skip = pytest.mark.skip(reason="needs root: builds links in network namespaces")
        for item in items:
            if "live" in item.keywords:
                item.add_marker(skip)


@dataclass
class Finished:
    """A run that is over."""

    plan: Plan
    built: BuiltFabric
    tables: Tables
    summary: dict[str, Any]


def run_simulated(plan: Plan) -> Finished:
    built = BuiltFabric(plan, live=False)
    outcome = simulate(built, lambda *a: None, Interrupts())
    tables = make_tables(built)
    return Finished(plan, built, tables, make_summary(built, outcome, tables))


@pytest.fixture
def scenario(tmp_path: Path) -> Callable[..., Path]:
    """Writes a scenario file and returns its path."""

    def write(text: str, name: str = "scenario.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture
def plan_of(scenario: Callable[..., Path]) -> Callable[..., Plan]:
    """A plan of a scenario's text, or of a demo's name, with overrides."""

    def make(text: str, *overrides: str, seed: int | None = None) -> Plan:
        path = scenario(text) if "\n" in text else EXPERIMENTS / f"{text}.yaml"
        return make_plan(*load(path, overrides, seed))

    return make


@pytest.fixture
def simulated(plan_of: Callable[..., Plan]) -> Callable[..., Finished]:
    """Runs a scenario's text, or a demo, in virtual time."""

    def run(text: str, *overrides: str, seed: int | None = None) -> Finished:
        return run_simulated(plan_of(text, *overrides, seed=seed))

    return run


@dataclass
class Completed:
    """A command line that has ended."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.out)
        return value


def command_line() -> list[str]:
    return [sys.executable, "-m", "testbed"]


@pytest.fixture
def cli(tmp_path: Path) -> Callable[..., Completed]:
    """Runs `testbed WORDS...` in an empty folder."""

    def run(*words: str | Path, stdin: str = "", timeout_s: float = 300) -> Completed:
        done = subprocess.run(
            [*command_line(), *map(str, words)],
            cwd=tmp_path,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return Completed(done.returncode, done.stdout, done.stderr)

    return run
