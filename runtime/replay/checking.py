"""Replays epochs whole and compares them with what the job did: finds code that does not repeat itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from holdfast.errors import ConfigError
from holdfast.runtime.replay.epochs import Replayable
from holdfast.runtime.replay.player import Code, Player
from holdfast.runtime.replay.proof import Proof, proof
from holdfast.runtime.replay.script import Script
from holdfast.runtime.replay.silence import begins_idle


def checked(code: Code, epochs: Iterable[Replayable]) -> Iterator[Proof]:
    """Yield the comparison of each epoch.

    Raises:
        ConfigError, Damaged, Unavailable: what is needed cannot be read.
        JobFailed: the job's code fails.
    """
    for epoch in epochs:
        yield replayed(code, epoch)


def replayed(code: Code, epoch: Replayable, seen: Callable[[Player], None] = lambda _: None) -> Proof:
    """Replay one epoch whole, and compare. Raises as `checked`.

    Args:
        seen: Called with the job in memory behind the epoch.
    """
    code.check(epoch.span, epoch.manifest)
    unlike = None
    if (script := epoch.script()) is not None:
        try:
            return _replayed(code, epoch, seen, script)
        except ConfigError:
            if (unlike := script.unlike) is None:
                raise
    return replace(_replayed(code, epoch, seen, None), unlike=unlike)


def _replayed(code: Code, epoch: Replayable, seen: Callable[[Player], None], script: Script | None) -> Proof:
    with Player(code, epoch.start, epoch.manifest, epoch.done.at, epoch.span, script) as player:
        if script is None and begins_idle(epoch.start.stored, epoch.start.done, code.plan.sources, epoch.span):
            player.rest()
        numbers = [player.play(epoch.span)] if script is None else player.follow(epoch.span)
        seen(player)
        rows = lambda sink: [batch for number in numbers for batch in player.rows(sink, number)]
        compared = epoch.stored, epoch.manifest, player.stored(), numbers, code.plan.sinks, rows
        return proof(*compared, key_groups=epoch.key_groups, in_order=script is not None)
