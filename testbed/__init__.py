"""An emulation testbed for the networks inside AI clusters."""

__version__ = "0.1.0"
