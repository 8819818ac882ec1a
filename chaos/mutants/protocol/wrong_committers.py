"""Wrong versions of sinks with one committer; chaos/mutants/mutants.py names the rule that each negates.

Source: PROTOCOL P16, P18, P20, P23; docs/decisions/0056-one-committer.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from msgspec.structs import replace

from holdfast.checkpoint.manifest import SubtaskPart
from holdfast.runtime.driver.events import Send
from holdfast.runtime.driver.state import Master

Right = Callable[..., Any]
"""The function that a mutant replaces."""


def drops_the_last_writer(right: Right) -> Right:
    def gathered(parts: Iterable[SubtaskPart], sinks: Collection[str]) -> Any:
        *others, last = sorted(parts, key=lambda part: part.subtask)
        if others:
            last = replace(last, staged={sink: found for sink, found in last.staged.items() if sink not in sinks})
        return right((*others, last), sinks)

    return gathered


def waits_for_no_other_writers(_: Right) -> Right:
    return lambda base, sinks: []


def hands_over_the_newest(right: Right) -> Right:
    def hand_over(state: Master) -> list[Send]:
        found = right(state)
        return [Send(each.worker, replace(each.message, pending=each.message.pending[-1:])) for each in found]

    return hand_over


def sweeps_all_before(right: Right) -> Right:
    return lambda sink, name, deploy: right(sink, name, replace(deploy, base_epoch=0))
