"""LID assignment, as a pure function of what is there (IBTA specification volume 1, section 4.1.3)."""

from collections.abc import Iterable

from controllers.graph import EndPort

LID_UNICAST_MAX = 0xBFFF


class LidError(ValueError):
    """Two end ports hold one LID, or a LID is none, or there are not enough."""


def assign(end_ports: Iterable[EndPort], switches: Iterable[str]) -> dict[str, int]:
    """A LID for every end port and switch, by name.

    An end port has the LID that its MAC address holds in the last two bytes: switches forward by that address. Switches get the
    free LIDs above, in the order of their names, so that the same fabric always has the same LIDs.

    Raises:
        LidError: see there.
    """
    lids: dict[str, int] = {}
    holders: dict[int, str] = {}
    for end in end_ports:
        lid = int(end.mac.replace(":", "")[-4:], 16)
        if not 1 <= lid <= LID_UNICAST_MAX:
            raise LidError(f"{end.name} ({end.mac}) holds LID {lid}, which is no unicast LID")
        if lid in holders:
            raise LidError(f"{end.name} and {holders[lid]} both hold LID {lid}")
        lids[end.name] = lid
        holders[lid] = end.name
    following = max(holders, default=0) + 1
    for name in sorted(switches):
        if following > LID_UNICAST_MAX:
            raise LidError(f"no unicast LID is left for {name}")
        lids[name] = following
        following += 1
    return lids
