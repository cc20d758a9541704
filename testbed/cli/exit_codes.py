"""Exit codes, which people's scripts rely on (docs/results.md)."""

DONE = 0
FAILED = 1
USAGE = 2
INVALID = 3
INTERRUPTED = 130
