"""Watermarks: the minimum over all inputs, for source partitions and input channels alike.

A source subtask takes the minimum over its partitions, a fragment over its input channels. A part that is over holds
nothing back. An idle part holds nothing back either while another part is active. If no part is active, the minimum is
taken over all parts that are not over, and is itself quiet or idle. A part that has reported the last watermark is
over: its siblings may be idle and still hold rows, which they emit at the last watermark.

A part reports that it is quiet long before it reports that it is idle. So when the first of several silent parts
becomes idle, the others no longer count as active. The output of windows does not depend on which part was first.

Invariants
    - A watermark never decreases, neither that of a part nor the minimum (P11).
    - The minimum does not depend on the order in which parts become quiet and then idle.
    - Once all parts are over, the minimum is the largest of their watermarks, whichever was over last.
    - A part that becomes idle and returns with a lower watermark does not lower the minimum; its records may be late.

Pure.
Source: Akidau et al., The Dataflow Model, 2015; PROTOCOL P11; docs/decisions/0006-watermarks.md.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.frozen import replace
from holdfast.model import LAST_US, NEVER_US, Watermark

__all__ = ["LAST_US", "NEVER_US", "Minimum", "Watermark", "begin", "joined", "reported"]

P = TypeVar("P", bound=Hashable)


@dataclass(frozen=True)
class Minimum(Generic[P]):
    """The last watermark of each part, and their minimum."""

    parts: Mapping[P, Watermark]
    now: Watermark


def begin(parts: Iterable[P]) -> Minimum[P]:
    """Return the minimum over parts that have reported nothing yet; without parts it is idle."""
    known = {part: Watermark(NEVER_US) for part in parts}
    return Minimum(known, Watermark(NEVER_US, idle=not known, over=not known))


def joined(state: Minimum[P], part: P) -> tuple[Minimum[P], bool]:
    """Add a part that has reported nothing; return the next state and whether the minimum changed.

    The minimum does not go back to where the part begins. It does not advance until the part reports.
    """
    assert part not in state.parts
    return reported(
        replace(state, parts={**state.parts, part: Watermark(NEVER_US, over=True)}), part, Watermark(NEVER_US)
    )


def reported(state: Minimum[P], part: P, watermark: Watermark) -> tuple[Minimum[P], bool]:
    """Take the watermark of a part; return the next state and whether the minimum changed."""
    at_us = max(state.parts[part].at_us, watermark.at_us)
    parts = {**state.parts, part: replace(watermark, at_us=at_us)}
    left = [each for each in parts.values() if not each.over and each.at_us != LAST_US]
    active = [each for each in left if not each.idle]
    alive = any(not each.quiet for each in active)
    holding = [each.at_us for each in (active if alive else left)]
    at_us = min(holding) if holding else max(each.at_us for each in parts.values())
    now = Watermark(max(state.now.at_us, at_us), not active, bool(active) and not alive, not left)
    return Minimum(parts, now), now != state.now
