"""Who paused whom, when: the spread of PFC through a run."""

from dataclasses import dataclass, field

from testbed.results.tables import Tables


@dataclass
class Pause:
    """The pauses of one link, direction and priority: `by` told `whom` to stop, in these spans of nanoseconds."""

    by: str
    port: str
    whom: str
    priority: int
    spans: list[tuple[int, int]] = field(default_factory=list)
    storm: bool = False

    @property
    def first_ns(self) -> int:
        return self.spans[0][0]


def pause_order(tables: Tables, end_ns: int) -> list[Pause]:
    """Every link that was paused, in the order in which the first XOFF was sent; a storming NIC counts from its fault. What is
    still paused when the run ends, at `end_ns`, counts up to there."""
    rows = tables.events.to_pylist()
    found: dict[tuple[str, str, int], Pause] = {}
    open_since: dict[tuple[str, str, int], int] = {}
    for row in rows:
        if row["kind"] not in ("pfc_xoff", "pfc_xon", "fault"):
            continue
        key = (row["node"], row["port"], row["priority"])
        pause = found.setdefault(key, Pause(row["node"], row["port"], row["peer"], row["priority"]))
        if row["kind"] == "pfc_xoff" or (row["kind"] == "fault" and row["detail"] != "0"):
            pause.storm |= row["kind"] == "fault"
            open_since.setdefault(key, row["time_ns"])
        elif key in open_since:
            pause.spans.append((open_since.pop(key), row["time_ns"]))
    for key, since in open_since.items():
        found[key].spans.append((since, max(end_ns, since)))
    return sorted((p for p in found.values() if p.spans), key=lambda p: (p.first_ns, p.by, p.port))


def tell(order: list[Pause], most: int = 20) -> list[str]:
    """Sentences of who paused whom, in order."""
    lines = [_sentence(i, pause) for i, pause in enumerate(order[:most], 1)]
    if len(order) > most:
        lines.append(f"... and {len(order) - most} more links later on (events.parquet has all)")
    return lines


def _sentence(number: int, pause: Pause) -> str:
    total_us = sum(end - start for start, end in pause.spans) / 1000
    verb = "storms at" if pause.storm else "pauses"
    times = "" if len(pause.spans) == 1 else f" in {len(pause.spans)} turns"
    start_us = pause.first_ns / 1000
    return (
        f"{number:3d}. {start_us:10.3f} us  {pause.by} {verb} {pause.whom} (priority {pause.priority}), {total_us:.1f} us{times}"
    )
