"""Named parameter profiles. The field has no one default; each of these names its source."""

from typing import Any

from testbed.scenario.schema import Dcqcn, Ecn
from testbed.units import BitRate

_US = 1_000_000  # picoseconds
_REFERENCE_BPS = 25e9


def dcqcn_spec(section: Dcqcn, line: BitRate) -> dict[str, Any] | None:
    """Reaction-point parameters for a NIC of the given line rate, as the dataplane takes them; `None` if switched off."""
    if not section.enabled:
        return None
    scale = line.bps / _REFERENCE_BPS
    profiles: dict[str, dict[str, Any]] = {
        # Zhu et al., SIGCOMM 2015, for 40 Gb/s. It has no hyper increase of its own: that of the author's simulator.
        "paper-40g": {
            "g": 1 / 256,
            "alpha_timer": 55 * _US,
            "min_cut_interval": 50 * _US,
            "increase_timer": 55 * _US,
            "byte_counter": 10_000_000,
            "fast_recovery_steps": 5,
            "rate_ai": 40_000_000,
            "rate_hai": 200_000_000,
            "min_rate": 1_000_000,
        },
        # The author's ns-3 simulator.
        "ns3-rdma": {
            "g": 1 / 256,
            "alpha_timer": 55 * _US,
            "min_cut_interval": 50 * _US,
            "increase_timer": 60 * _US,
            "byte_counter": 300_000_000,
            "fast_recovery_steps": 5,
            "rate_ai": 40_000_000,
            "rate_hai": 200_000_000,
            "min_rate": 1_000_000,
        },
        # The HPCC artifact (Li et al., SIGCOMM 2019), whose increments go with the line rate.
        "hpcc": {
            "g": 1 / 256,
            "alpha_timer": 1 * _US,
            "min_cut_interval": 4 * _US,
            "increase_timer": 300 * _US,
            "byte_counter": 0,
            "fast_recovery_steps": 1,
            "rate_ai": round(5_000_000 * scale),
            "rate_hai": round(50_000_000 * scale),
            "min_rate": 100_000_000,
        },
    }
    chosen = profiles[section.profile]
    for key in chosen:
        value = getattr(section, key)
        if value is not None:
            chosen[key] = value if key in ("g", "fast_recovery_steps") else int(value)
    return {
        "g": float(chosen["g"]),
        "alpha_timer_ps": chosen["alpha_timer"],
        "min_cut_interval_ps": chosen["min_cut_interval"],
        "increase_timer_ps": chosen["increase_timer"],
        "byte_counter_bytes": chosen["byte_counter"],
        "fast_recovery_steps": chosen["fast_recovery_steps"],
        "rate_ai_bps": chosen["rate_ai"],
        "rate_hai_bps": chosen["rate_hai"],
        "min_rate_bps": min(chosen["min_rate"], line.bps),
    }


def cnp_interval_ps(section: Dcqcn) -> int:
    """Least time between two CNPs of a queue pair: 50 us in the paper; the reduce period of 4 us in HPCC's settings."""
    if section.cnp_interval is not None:
        return section.cnp_interval.ps
    return {"paper-40g": 50 * _US, "ns3-rdma": 50 * _US, "hpcc": 4 * _US}[section.profile]


EcnSpec = tuple[int, int, float, bool, float, bool]


def ecn_spec(section: Ecn, rate: BitRate) -> EcnSpec | None:
    """A queue's marking as the dataplane takes it; `None` if switched off."""
    profile = ecn_profile(section, rate)
    if profile is None:
        return None
    return (*profile, section.at == "dequeue", section.weight, section.drop_not_ect)


def ecn_profile(section: Ecn, rate: BitRate) -> tuple[int, int, float] | None:
    """(Kmin bytes, Kmax bytes, Pmax) of a queue on links of the given rate; `None` if switched off."""
    if not section.enabled:
        return None
    scale = rate.bps / _REFERENCE_BPS
    kmin, kmax, pmax = {
        "paper-40g": (5_000, 200_000, 0.01),
        "ns3-rdma": (40_000, 1_000_000, 1.0),
        "hpcc": (round(100_000 * scale), round(400_000 * scale), 0.2),
        "azure-lossless": (1 << 20, 1 << 21, 0.05),
    }[section.profile]
    return (
        kmin if section.kmin is None else section.kmin.bytes,
        kmax if section.kmax is None else section.kmax.bytes,
        pmax if section.pmax is None else section.pmax,
    )
