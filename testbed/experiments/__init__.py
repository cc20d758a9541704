"""Scenario files that ship."""

from pathlib import Path


def demos() -> dict[str, Path]:
    """The demos by name."""
    folder = Path(__file__).parent
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
