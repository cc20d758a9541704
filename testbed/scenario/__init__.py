"""Scenario files: the schema, and the checks that run before anything starts."""

from testbed.scenario.load import ScenarioError, dump, load
from testbed.scenario.plan import Flow, Plan, make_plan
from testbed.scenario.schema import Scenario

__all__ = ["Flow", "Plan", "Scenario", "ScenarioError", "dump", "load", "make_plan"]
