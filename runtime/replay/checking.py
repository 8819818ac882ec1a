"""Replays epochs whole and compares them with what the job did: finds code that does not repeat itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from holdfast.runtime.replay.epochs import Replayable
from holdfast.runtime.replay.player import Code, Player
from holdfast.runtime.replay.proof import Proof, proof
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
    with Player(code, epoch.start, epoch.manifest, epoch.done.at, epoch.span) as player:
        if begins_idle(epoch.start.stored, epoch.start.done, code.plan.sources, epoch.span):
            player.rest()
        number = player.play(epoch.span)
        seen(player)
        rows = lambda sink: player.rows(sink, number)
        compared = epoch.stored, epoch.manifest, player.stored(), number
        return proof(*compared, code.plan.sinks, rows, key_groups=epoch.key_groups)
