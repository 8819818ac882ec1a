"""Standbys that are sent the wrong state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.frozen import replace
from holdfast.runtime.driver import standbys
from holdfast.runtime.driver.events import Effect, Send
from holdfast.runtime.driver.state import Deployed, Hosted, Master
from holdfast.runtime.wire import messages as m
from holdfast.runtime.worker import following

Right = Callable[..., Any]


def _bare(hosted: Hosted) -> m.Heartbeat:
    return msgspec.structs.replace(hosted.heartbeat, copies=())


def runs_ahead(right: Right) -> Right:
    """Standbys are sent the state of an epoch when its manifest is made, before it is completed."""

    def follow(state: Master) -> list[Effect]:
        phase = state.phase
        effects: list[Effect] = right(state)
        closing = phase.closing if isinstance(phase, Deployed) else None
        if not isinstance(phase, Deployed) or closing is None or closing.manifest is None:
            return effects
        bare = {worker: replace(hosted, heartbeat=_bare(hosted)) for worker, hosted in state.workers.items()}
        early = right(replace(state, phase=replace(phase, last=closing.manifest), workers=bare))
        epoch = closing.manifest.epoch
        ahead = [
            Send(each.worker, msgspec.structs.replace(each.message, base_epoch=epoch, lineage={epoch: "0"}))
            for each in early
            if isinstance(each, Send) and isinstance(each.message, m.Follow)
        ]
        return [*effects, *ahead]

    return follow


def leaves_out_the_newest(right: Right) -> Right:
    """A standby absorbs all new segments but the newest, and considers its copy complete."""

    def opened_beyond(*which: Any, **more: Any) -> Any:
        found = right(*which, **more)
        return None if found is None else replace(found, stored=found.stored[:-1])

    return opened_beyond


VERSIONS: tuple[tuple[str, str, str, tuple[Any, str, Callable[[Right], Right]]], ...] = (
    ("standby-ahead-of-commit", "DESIGN 4.5", "a standby follows an epoch before its record is in the log",
     (standbys, "follow", runs_ahead)),
    ("standby-leaves-out-a-segment", "DESIGN 5", "a standby considers its copy complete without the newest segment",
     (following, "opened_beyond", leaves_out_the_newest)),
)  # fmt: skip
"""Name, rules, wrong behaviour, replaced code."""
