"""The MMU against an oracle, written plainly from docs/mmu.md and in nothing like the way the switch does it."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from testbed._dataplane import Mmu
from testbed.fabric import switch_spec
from testbed.scenario.schema import Pfc, SwitchSection
from testbed.units import Size

LOSSLESS = 3
LOSSY = 0


@dataclass
class Oracle:
    """Every frame is remembered with the account it is on; sums are taken anew each time."""

    buffer: int
    reserved: int
    headroom: list[int]
    alpha: float | None
    xoff: int
    xon_offset: int
    lossy_alpha: float
    cell: int
    accounts: dict[tuple[int, int, str], int] = field(default_factory=dict)
    stopped: set[tuple[int, int]] = field(default_factory=set)

    def held(self, port: int, priority: int, account: str) -> int:
        return self.accounts.get((port, priority, account), 0)

    def pool(self) -> int:
        return max(0, self.buffer - sum(h + self.reserved for h in self.headroom))

    def free(self) -> int:
        used = sum(size for (_, _, account), size in self.accounts.items() if account == "shared")
        return max(0, self.pool() - used)

    def threshold(self) -> int:
        return self.xoff if self.alpha is None else int(self.alpha * self.free())

    def take(self, port: int, priority: int, account: str, size: int) -> str:
        self.accounts[port, priority, account] = self.held(port, priority, account) + size
        return "admitted"

    def admit(self, port: int, priority: int, frame: int, queue: int) -> str:
        size = -(-frame // self.cell) * self.cell
        shared = self.held(port, priority, "shared")
        headroom = self.held(port, priority, "headroom")
        if priority != LOSSLESS:
            fits = size <= self.free() and queue + size <= int(self.lossy_alpha * self.free())
            return self.take(port, priority, "shared", size) if fits else "buffer"
        if headroom == 0 and self.held(port, priority, "reserved") + size <= self.reserved:
            return self.take(port, priority, "reserved", size)
        if headroom == 0 and shared + size <= self.threshold() and size <= self.free():
            return self.take(port, priority, "shared", size)
        if headroom + size <= self.headroom[port]:
            return self.take(port, priority, "headroom", size)
        return "headroom"

    def release(self, port: int, priority: int, frame: int) -> None:
        rest = -(-frame // self.cell) * self.cell
        for account in ("headroom", "shared", "reserved"):
            part = min(rest, self.held(port, priority, account))
            self.accounts[port, priority, account] = self.held(port, priority, account) - part
            rest -= part
        assert rest == 0

    def turns_xoff(self, port: int, priority: int) -> bool:
        full = self.held(port, priority, "headroom") > 0 or self.held(port, priority, "shared") >= max(1, self.threshold())
        turns = priority == LOSSLESS and full and (port, priority) not in self.stopped
        if turns:
            self.stopped.add((port, priority))
        return turns

    def turns_xon(self, port: int, priority: int) -> bool:
        low = self.held(port, priority, "shared") <= max(0, self.threshold() - self.xon_offset)
        turns = (port, priority) in self.stopped and self.held(port, priority, "headroom") == 0 and low
        if turns:
            self.stopped.discard((port, priority))
        return turns


@st.composite
def settings_of_a_switch(draw):
    ports = draw(st.integers(1, 4))
    return {
        "buffer": draw(st.integers(20_000, 400_000)),
        "reserved": draw(st.sampled_from([0, 1500, 4096])),
        "headroom": [draw(st.integers(0, 20_000)) for _ in range(ports)],
        "alpha": draw(st.sampled_from([None, 1 / 16, 1 / 8, 1 / 2, 1.0, 4.0])),
        "xoff": draw(st.integers(1, 60_000)),
        "xon_offset": draw(st.sampled_from([0, 3000, 10_000])),
        "lossy_alpha": draw(st.sampled_from([1 / 8, 1.0, 8.0])),
        "cell": draw(st.sampled_from([1, 80, 208, 254])),
    }


arrivals = st.lists(
    st.tuples(st.booleans(), st.integers(0, 3), st.sampled_from([LOSSLESS, LOSSY]), st.integers(60, 9000)),
    min_size=1,
    max_size=300,
)


@settings(deadline=None, max_examples=300)
@given(settings_of_a_switch(), arrivals)
def test_every_admission_and_every_xoff_and_xon_agree(chosen, events):
    oracle = Oracle(**chosen)
    pfc = Pfc(
        alpha=chosen["alpha"] or 1,
        xoff=None if chosen["alpha"] else Size(chosen["xoff"]),
        xon_offset=Size(chosen["xon_offset"]),
        reserved=Size(chosen["reserved"]),
    )
    section = SwitchSection(buffer=Size(chosen["buffer"]), lossy_alpha=chosen["lossy_alpha"], cell=Size(chosen["cell"]), pfc=pfc)
    mmu = Mmu(switch_spec(section, 1, 1, 1 << LOSSLESS), chosen["headroom"])
    inside: list[tuple[int, int, int]] = []
    for leaves, port, priority, frame in events:
        if leaves and inside:
            port, priority, frame = inside.pop(0)
            oracle.release(port, priority, frame)
            mmu.release(port, priority, frame)
            assert mmu.turns_xon(port, priority) == oracle.turns_xon(port, priority)
            continue
        port %= len(chosen["headroom"])
        queue = sum(f for _, p, f in inside if p == priority)
        verdict = oracle.admit(port, priority, frame, queue)
        assert mmu.admit(port, priority, frame, queue) == verdict
        if verdict == "admitted":
            inside.append((port, priority, frame))
            assert mmu.turns_xoff(port, priority) == oracle.turns_xoff(port, priority)
        assert mmu.used_bytes == sum(oracle.accounts.values())
