"""The scenario file's schema. Every default stands beside its key; unknown keys are refused; a value once read is frozen."""

from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from testbed.units import BitRate, Duration, Size


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _ratio(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("write a number or a fraction, as in 1/8")
    try:
        return float(Fraction(value))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise ValueError(f"{value!r} is neither a number nor a fraction, as in 1/8") from None


def _above_zero(value: Any) -> Any:
    if value <= 0:
        raise ValueError("must be above zero")
    return value


Ratio = Annotated[float, BeforeValidator(_ratio), Field(ge=0, allow_inf_nan=False)]
PositiveRatio = Annotated[Ratio, AfterValidator(_above_zero)]
PositiveRate = Annotated[BitRate, AfterValidator(_above_zero)]
PositiveSize = Annotated[Size, AfterValidator(_above_zero)]
PositiveDuration = Annotated[Duration, AfterValidator(_above_zero)]
Priority = Annotated[int, Field(ge=0, le=7)]
Dscp = Annotated[int, Field(ge=0, le=63)]
Count = Annotated[int, Field(ge=1, le=100_000)]


# ---- Topology


class _Links(Section):
    host_rate: PositiveRate = BitRate.parse("400Gbps")
    fabric_rate: PositiveRate = BitRate.parse("400Gbps")
    delay: PositiveDuration = Duration.parse("600ns")  # one way, of every link


class LeafSpine(_Links):
    kind: Literal["leaf-spine"]
    spines: Count = 2
    leaves: Count = 4
    hosts_per_leaf: Count = 4


class FatTree(_Links):
    kind: Literal["fat-tree"]
    k: Annotated[int, Field(ge=2, le=64, multiple_of=2)] = 4


class RailOptimized(_Links):
    kind: Literal["rail-optimized"]
    nodes: Count = 4
    gpus_per_node: Annotated[int, Field(ge=1, le=64)] = 8
    leaves_per_rail: Count = 1
    spines: Count = 2


TopologySection = Annotated[LeafSpine | FatTree | RailOptimized, Field(discriminator="kind")]


# ---- Switch


class Pfc(Section):
    enabled: bool = True  # false makes every priority lossy
    alpha: PositiveRatio = 1 / 8  # dynamic threshold: alpha x free shared buffer (HPCC's switches)
    xoff: Size | None = None  # static threshold instead of alpha
    xon_offset: Size = Size.parse("3KB")  # resume so far below the threshold
    reserved: Size = Size.parse("4KB")  # of each lossless ingress priority
    headroom: Size | Literal["auto"] = "auto"  # auto: from rate, delay and MTU (docs/scenario.md)
    quanta: Annotated[int, Field(ge=1, le=65535)] = 65535  # of each XOFF
    response_delay: Duration = Duration(0)  # from a pause frame's last bit to its effect, at switches and NICs
    ignored_by: tuple[str, ...] = ()  # mis-set nodes, switches or hosts, that do not obey pause frames


class Ecn(Section):
    enabled: bool = True
    # hpcc: Kmin 100 KB, Kmax 400 KB, both x rate/25G, Pmax 20 %; paper-40g: 5 KB, 200 KB, 1 %;
    # ns3-rdma: 40 KB, 1000 KB, 100 %; azure-lossless (SONiC): 1 MiB, 2 MiB, 5 %
    profile: Literal["hpcc", "paper-40g", "ns3-rdma", "azure-lossless"] = "hpcc"
    kmin: Size | None = None  # instead of the profile's
    kmax: Size | None = None
    pmax: Annotated[Ratio, Field(le=1)] | None = None
    at: Literal["enqueue", "dequeue"] = "enqueue"  # when the queue is looked at
    weight: Annotated[PositiveRatio, Field(le=1)] = 1.0  # of the newest length in the moving average; 1: instantaneous
    drop_not_ect: bool = False  # WRED: drop packets that are not ECN-capable where others are marked


class Queue(Section):
    """How an egress queue is served: strictly before the weighted ones, or by deficit-weighted round robin among them."""

    weight: Annotated[int, Field(ge=1, le=1000)] | None = None  # none: strict priority
    max_rate: PositiveRate | None = None  # a shaper, if set
    burst: PositiveSize = Size.parse("16KB")  # of the shaper


class Watchdog(Section):
    """The PFC watchdog of every lossless queue, by the names and defaults of SONiC's `pfcwd start_default`."""

    enabled: bool = False
    detection_time: PositiveDuration = Duration.parse("200ms")
    restoration_time: PositiveDuration = Duration.parse("200ms")
    poll_interval: PositiveDuration = Duration.parse("200ms")
    action: Literal["drop", "forward", "alert"] = "drop"


class SwitchSection(Section):
    buffer: PositiveSize = Size.parse("16MB")
    forwarding: Literal["store-and-forward", "cut-through"] = "store-and-forward"
    pipeline_latency: Duration = Duration(0)  # from a frame's arrival (its header's, if it is cut through) to its egress queue
    lossless: tuple[Priority, ...] = (3,)
    lossy_alpha: PositiveRatio = 1.0
    cell: PositiveSize = Size.parse("1B")
    queues: dict[Priority, Queue] = {}  # priorities left out are strict and unshaped
    pfc: Pfc = Pfc()
    ecn: Ecn = Ecn()
    watchdog: Watchdog = Watchdog()
    dscp_to_priority: dict[Dscp, Priority] = {26: 3, 48: 6}  # of IP packets; the rest goes to 0
    pcp_to_priority: dict[Priority, Priority] = {}  # of other frames with an 802.1Q tag; the rest keeps its number


# ---- NIC


class Dcqcn(Section):
    enabled: bool = True
    profile: Literal["paper-40g", "ns3-rdma", "hpcc"] = "paper-40g"
    # Each instead of the profile's:
    g: Annotated[Ratio, Field(le=1)] | None = None
    alpha_timer: PositiveDuration | None = None
    min_cut_interval: Duration | None = None
    increase_timer: PositiveDuration | None = None
    byte_counter: Size | None = None
    fast_recovery_steps: Annotated[int, Field(ge=0, le=1000)] | None = None
    rate_ai: BitRate | None = None
    rate_hai: BitRate | None = None
    min_rate: PositiveRate | None = None
    cnp_interval: Duration | None = None


class NicSection(Section):
    mtu: Literal[256, 512, 1024, 2048, 4096] = 4096  # path MTU of queue pairs (IBTA), bytes of payload
    dscp: Dscp = 26
    cnp_dscp: Dscp = 48
    ecn: Literal["ect0", "ect1", "not-ect"] = "ect0"  # of data and acknowledgements
    ack_every: Count = 16  # packets; the last of a message always asks for one
    timeout: Annotated[int, Field(ge=0, le=31)] = 14  # local ack timeout 4.096 us x 2^n; 0 is never
    retry_count: Annotated[int, Field(ge=0, le=7)] = 7
    dcqcn: Dcqcn = Dcqcn()


# ---- Traffic


class _Pattern(Section):
    size: PositiveSize
    qps: Annotated[int, Field(ge=1, le=1024)] = 1  # queue pairs of each pair of hosts, each with its own messages
    messages: Count = 1  # of each queue pair, posted at once, one after another
    start: Duration = Duration(0)
    dscp: Dscp | None = None  # instead of nic.dscp
    label: Annotated[str, Field(pattern=r"^[a-z0-9_-]{1,32}$")] | None = None


class Incast(_Pattern):
    pattern: Literal["incast"]
    senders: tuple[str, ...]
    receiver: str


class Permutation(_Pattern):
    """Every NIC of `hosts` sends to another, each receives from one: a random derangement drawn with the seed."""

    pattern: Literal["permutation"]
    hosts: tuple[str, ...] | Literal["all"] = "all"


class Pairwise(_Pattern):
    pattern: Literal["pairwise"]
    pairs: tuple[tuple[str, str], ...]


PatternSection = Annotated[Incast | Permutation | Pairwise, Field(discriminator="pattern")]


# ---- Faults


class PfcStorm(Section):
    """A malfunctioning NIC sends pause frames without end (Guo et al., SIGCOMM 2016)."""

    kind: Literal["pfc-storm"]
    enabled: bool = True
    nic: str
    priorities: tuple[Priority, ...] = (3,)
    at: Duration = Duration(0)
    duration: PositiveDuration
    quanta: Annotated[int, Field(ge=1, le=65535)] = 65535
    interval: PositiveDuration | None = None  # between pause frames; none: each before the last expires. A longer one leaves gaps
    frame: Literal["pfc", "pause"] = "pfc"  # pause: 802.3x, which stops the whole link


class LinkDown(Section):
    kind: Literal["link-down"]
    enabled: bool = True
    link: str  # as in leaf1-spine2, or a port as in leaf1:eth5
    at: PositiveDuration
    up_at: PositiveDuration | None = None


class _LinkFault(Section):
    enabled: bool = True
    link: str
    at: Duration = Duration(0)
    until: PositiveDuration | None = None  # none: to the end of the run


class LinkFlap(Section):
    """Down and up again, several times."""

    kind: Literal["link-flap"]
    enabled: bool = True
    link: str
    at: PositiveDuration
    down: PositiveDuration
    up: PositiveDuration
    times: Annotated[int, Field(ge=1, le=1000)] = 3


class LinkLoss(_LinkFault):
    """Frames are lost, in both directions: each with a probability, or every n-th."""

    kind: Literal["link-loss"]
    rate: Annotated[Ratio, Field(le=1)] | None = None
    every: Annotated[int, Field(ge=1)] | None = None


class LinkErrors(_LinkFault):
    """Bits are flipped with a probability; the frame fails its check sequence at the next switch or NIC that has it whole."""

    kind: Literal["link-errors"]
    bit_error_rate: Annotated[Ratio, Field(le=0.5)]


class LinkDelay(_LinkFault):
    kind: Literal["link-delay"]
    added: PositiveDuration


class LinkRate(_LinkFault):
    """The link runs at a lower (or higher) rate."""

    kind: Literal["link-rate"]
    rate: PositiveRate


FaultSection = Annotated[
    PfcStorm | LinkDown | LinkFlap | LinkLoss | LinkErrors | LinkDelay | LinkRate, Field(discriminator="kind")
]
LinkFault = LinkDown | LinkFlap | LinkLoss | LinkErrors | LinkDelay | LinkRate


# ---- Control, run, checks


class ControlSection(Section):
    reaction: Duration | Literal["realtime"] = Duration.parse("50us")  # from an event to the new routes in force


class RunSection(Section):
    limit: PositiveDuration = Duration.parse("100ms")  # the run ends then, whether or not its messages have
    sample_interval: PositiveDuration = Duration.parse("1us")
    links: Literal["veth", "memory"] = "veth"  # emulate: memory keeps links between switches inside the process; hosts have veths
    slowdown: Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["auto"] = "auto"


class Expectation(Section):
    """What must be true of the summary: a dotted path of summary.json and one comparison."""

    metric: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]+$")]
    equals: int | float | bool | None = None
    above: float | None = None
    below: float | None = None
    says: str


class Scenario(Section):
    """A whole scenario file."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")]
    description: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    topology: TopologySection
    switch: SwitchSection = SwitchSection()
    nic: NicSection = NicSection()
    traffic: tuple[PatternSection, ...] = ()
    faults: tuple[FaultSection, ...] = ()
    control: ControlSection = ControlSection()
    run: RunSection = RunSection()
    captures: tuple[str, ...] = ()
    expect: tuple[Expectation, ...] = ()
