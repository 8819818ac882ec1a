"""Watermarks: the minimum over what comes in, for source partitions and input channels alike.

A source subtask takes the minimum over its partitions, a fragment over its input channels. Parts that are idle hold
nothing back; if all are, the minimum holds where it is and says that it is idle itself.

Invariants
    - A watermark never goes back, neither that of a part nor the minimum (P11).
    - A part that becomes idle and comes back lower does not pull the minimum back; its records may be late.

Pure.
Source: Akidau et al., The Dataflow Model, 2015; PROTOCOL P11; docs/design/0006-watermarks.md.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.frozen import replace
from holdfast.model import LAST_US, NEVER_US, Watermark

__all__ = ["LAST_US", "NEVER_US", "Minimum", "Watermark", "begin", "told"]

P = TypeVar("P", bound=Hashable)


@dataclass(frozen=True)
class Minimum(Generic[P]):
    """What each part said last, and what follows from it."""

    parts: Mapping[P, Watermark]
    now: Watermark


def begin(parts: Iterable[P]) -> Minimum[P]:
    """Return the minimum over parts that have said nothing yet; without parts it is idle."""
    known = {part: Watermark(NEVER_US) for part in parts}
    return Minimum(known, Watermark(NEVER_US, idle=not known))


def told(state: Minimum[P], part: P, watermark: Watermark) -> tuple[Minimum[P], bool]:
    """Take what a part says; return the next state and whether the minimum changed."""
    at_us = max(state.parts[part].at_us, watermark.at_us)
    parts = {**state.parts, part: replace(watermark, at_us=at_us)}
    active = [each.at_us for each in parts.values() if not each.idle]
    now = Watermark(max(state.now.at_us, min(active, default=NEVER_US)), idle=not active)
    return Minimum(parts, now), now != state.now
