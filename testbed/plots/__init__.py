"""Figures of a run: drawn from its tables, never from anything else."""

from testbed.plots.figures import draw_all, draw_topology

__all__ = ["draw_all", "draw_topology"]
