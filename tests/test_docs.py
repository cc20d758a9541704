"""Documentation is run, and held against the code."""

import re
import shlex
import subprocess
from typing import Any

import pytest

from testbed.experiments import demos
from testbed.scenario import load, make_plan
from testbed.scenario.load import _models_in
from testbed.scenario.schema import Scenario
from tests.conftest import REPOSITORY

README = (REPOSITORY / "README.md").read_text()
SCENARIO = (REPOSITORY / "docs" / "scenario.md").read_text()


def commands(text: str) -> list[str]:
    """Every `./lab` line of the fenced blocks, without its comment."""
    blocks = re.findall(r"```\n(.*?)```", text, re.S)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if "./lab" in line]


def test_the_readme_has_the_two_commands():
    assert commands(README)[:2] == ["sudo ./lab demo incast", "sudo ./lab test"]


@pytest.mark.parametrize("command", [c for c in commands(README) if "lab test" not in c])
@pytest.mark.live
def test_every_command_of_the_readme_works(command, tmp_path):
    words = [w for w in shlex.split(command) if w != "sudo"]
    words[0] = str(REPOSITORY / "lab")
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    expected = 1 if "dcqcn.enabled=false" in command else 0
    assert done.returncode == expected, done.stdout + done.stderr
    if expected:
        # Without DCQCN nothing is notified, and the demo says so.
        assert re.search(r"FAIL +CNPs reach the senders", done.stdout)


def test_the_readmes_scenario_is_valid(scenario):
    (text,) = re.findall(r"```yaml\n(.*?)```", README, re.S)
    plan = make_plan(*load(scenario(text)))
    assert len(plan.flows) == 4


def keys(model: Any, prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, field in model.model_fields.items():
        inner = _models_in(field.annotation)
        if not inner:
            found.add(name)
        for section in inner:
            found |= keys(section, f"{prefix}{name}.")
    return found


def test_every_key_of_the_schema_is_documented():
    documented = set(re.findall(r"`\.?([a-z_.]+)`", SCENARIO))
    documented = {part for key in documented for part in (key, key.split(".")[-1])}
    assert keys(Scenario) - documented == set()


@pytest.mark.parametrize("name", demos())
def test_every_demo_describes_itself_and_checks_what_it_shows(name):
    scenario, source = load(demos()[name])
    assert scenario.name == name
    assert len(scenario.description) > 100
    assert len(scenario.expect) >= 4
    make_plan(scenario, source)
