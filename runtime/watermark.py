"""Watermarks: the minimum over what comes in, for source partitions and input channels alike.

A source subtask takes the minimum over its partitions, a fragment over its input channels. A part that is over holds
nothing back. One that is idle holds nothing back either where another one shows life; if none does, the minimum is that
of all parts that are not over, and says that it is quiet or idle itself.

A part tells that it is quiet long before it tells that it is idle. So of parts that fall silent together none is taken
for alive when the first of them becomes idle, and what windows give does not depend on which one that is.

Invariants
    - A watermark never goes back, neither that of a part nor the minimum (P11).
    - In whatever order parts become quiet and then idle, the minimum comes out the same.
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
    return Minimum(known, Watermark(NEVER_US, idle=not known, over=not known))


def told(state: Minimum[P], part: P, watermark: Watermark) -> tuple[Minimum[P], bool]:
    """Take what a part says; return the next state and whether the minimum changed."""
    at_us = max(state.parts[part].at_us, watermark.at_us)
    parts = {**state.parts, part: replace(watermark, at_us=at_us)}
    left = [each for each in parts.values() if not each.over]
    active = [each for each in left if not each.idle]
    alive = any(not each.quiet for each in active)
    lowest = min((each.at_us for each in (active if alive else left)), default=NEVER_US)
    now = Watermark(max(state.now.at_us, lowest), not active, bool(active) and not alive, not left)
    return Minimum(parts, now), now != state.now
