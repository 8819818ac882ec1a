"""Decides how far partitions may be read in event time while another partition of their source is behind.

Rows between the watermarks of two partitions are state: windows that cannot close, keys that cannot expire. So the
partition that is furthest behind limits the others: to its watermark, plus the largest recent gain of any partition in
a time window.

The gain of the slowest itself would not do: if two take turns at being the slowest, each would wait for the other, gain
less for that, and allow the other less.

Invariants
    - The partition that is furthest behind is never limited.
    - A partition limits others only if records are unread that existed when the window began. One that is live waits
      for records, whatever its event time is.
    - A partition whose event time does not advance for longer than its source's patience limits no other; the next one
      that is behind does.

Pure.
Source: DESIGN section 6 (alignment between partitions); docs/decisions/0048-event-time-alignment.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.model import NEVER_US

Place = tuple[str, int]
"""Source and partition."""
ALWAYS_LEFT = 1 << 62
"""How many records a partition of a boundless source has left."""


class PartitionProgress(NamedTuple):
    """How far a partition is read."""

    offset: int
    watermark: int | None
    """None: no record has been read yet."""
    left: int
    """How many records exist after the offset."""


class Group(NamedTuple):
    """Sources that are read together."""

    sources: frozenset[str]
    patience: float
    """How long event time may fail to advance in a partition that limits the others."""
    boundless: frozenset[str] = frozenset()
    """Those of the sources that always have more records, even if they report an end."""


class Limit(NamedTuple):
    """How far the partitions of a group may be read."""

    slowest: Place
    """It may be read on."""
    at_us: int
    """Partitions with later watermarks wait."""


@dataclass(frozen=True)
class Look:
    """Progress of the partitions as known at one time."""

    at: float
    partitions: Mapping[Place, PartitionProgress]


LATELY = 15
"""For how many windows a gain counts."""


@dataclass(frozen=True)
class Aligned:
    """The looks of a time window, and their results."""

    window: float
    looks: tuple[Look, ...] = ()
    gains: Mapping[Group, tuple[tuple[float, int], ...]] = field(default_factory=dict)
    """When a partition gained so much event time in a window, more than any has gained since; oldest first."""
    stands: Mapping[Place, tuple[int, float]] = field(default_factory=dict)
    """Watermarks of the partitions that are furthest behind, and since when they have not advanced."""
    limits: Mapping[Group, Limit] = field(default_factory=dict)
    """Those in force."""


def looked(state: Aligned, look: Look, groups: Iterable[Group]) -> Aligned:
    """Take a look; return the next state, whose limits hold until the next look.

    Looks of the same time, or of a later one, are forgotten: an epoch was begun again, or a rewind has gone back.
    """
    looks = (*(each for each in state.looks if each.at < look.at), look)
    first = max((i for i, each in enumerate(looks) if each.at <= look.at - state.window), default=0)
    looks = looks[first:]
    before = looks[0].partitions if looks[0].at <= look.at - state.window else {}
    gains = {group: _gained(state, look, before, group) for group in groups}
    stands: dict[Place, tuple[int, float]] = {}
    limits: dict[Group, Limit] = {}
    for group, group_gains in gains.items():
        slowest = _slowest(state, look, before, group, stands)
        if slowest is None:
            continue
        now_us = _time(look.partitions[slowest])
        if group_gains or now_us == NEVER_US:
            limits[group] = Limit(slowest, now_us + (group_gains[0][1] if group_gains else 0))
    return Aligned(state.window, looks, gains, stands, limits)


def _slowest(
    state: Aligned,
    look: Look,
    before: Mapping[Place, PartitionProgress],
    group: Group,
    stands: dict[Place, tuple[int, float]],
) -> Place | None:
    """Return the partition that limits the others, None if there is none; note those that do not advance."""
    behind = [place for place in look.partitions if place[0] in group.sources and _is_behind(place, look, before)]
    for place in sorted(behind, key=lambda place: (_time(look.partitions[place]), place)):
        now_us = _time(look.partitions[place])
        stood_us, since = state.stands.get(place, (now_us, look.at))
        since = since if stood_us == now_us and since <= look.at else look.at
        stands[place] = now_us, since
        if look.at - since <= group.patience:
            return place
    return None


def _gained(
    state: Aligned, look: Look, before: Mapping[Place, PartitionProgress], group: Group
) -> tuple[tuple[float, int], ...]:
    """Return the gains that count, with that of the window which ends now."""
    since = look.at - LATELY * state.window
    recent_gains = [(at, gain) for at, gain in state.gains.get(group, ()) if since <= at < look.at]
    timed = (place for place in look.partitions if place[0] in group.sources and place in before)
    known = [(_time(before[place]), _time(look.partitions[place])) for place in timed]
    gain = max((now - then for then, now in known if then != NEVER_US), default=None)
    if gain is None:
        return tuple(recent_gains)
    return (*(each for each in recent_gains if each[1] > gain), (look.at, max(0, gain)))


def _is_behind(place: Place, look: Look, before: Mapping[Place, PartitionProgress]) -> bool:
    """Return whether records are unread that existed when the window began; not known of a partition that is new."""
    if place not in before:
        return False
    then, now = before[place], look.partitions[place]
    return now.left > 0 and then.left > max(0, now.offset - then.offset)


def _time(reached: PartitionProgress) -> int:
    return NEVER_US if reached.watermark is None else reached.watermark
