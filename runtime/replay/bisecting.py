"""The first checkpoint at which a condition on the state fails, by halving, and the record after which it fails.

Invariants
    - The condition holds at the checkpoint before the one that is found, and fails there.
    - At most one checkpoint in each half is read: twelve for 3,600 epochs.

Source: docs/decisions/0130-replay.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from holdfast.checkpoint.joblog import Completed
from holdfast.errors import ConfigError, Where
from holdfast.model import Epoch
from holdfast.runtime.inspect.reading import reading_of
from holdfast.runtime.inspect.stored import Stored
from holdfast.runtime.operators.contract import is_part
from holdfast.runtime.replay.epochs import Replayable, replayable
from holdfast.runtime.replay.player import Code, Player, Start
from holdfast.runtime.replay.reads import Reads
from holdfast.runtime.replay.sources import NOT_REPLAYED
from holdfast.runtime.replay.spans import Range, Span, cut, offsets_in

Frames = Mapping[str, pl.DataFrame]
"""The state of each operator, by its name."""


@dataclass(frozen=True)
class ConditionFailure:
    """A row for which the condition fails; both are None if the condition is a function of the whole state."""

    operator: str | None
    row: dict[str, Any] | None


Condition = Callable[[Frames], ConditionFailure | None]
"""Returns the first failure; None: the condition holds."""


@dataclass(frozen=True)
class BisectResult:
    """The first checkpoint that fails.

    Args:
        good: The checkpoint before it.
        failure: The first row for which the condition fails there.
        read: Number of checkpoints that were read.
        changed: Whether the job's code changed between the two.
    """

    good: Epoch
    bad: Epoch
    at: int
    failure: ConditionFailure
    read: int
    changed: bool


@dataclass(frozen=True)
class Culprit:
    """The record after which the condition fails; `at` is None if time alone made it fail."""

    at: Range | None
    record: dict[str, Any] | None
    failure: ConditionFailure


def expression(text: str) -> Condition:
    """Return the condition that each row meets, of every operator that has the columns, as a Polars SQL expression.

    Raises:
        ConfigError: it is not an expression, or names no column.
    """
    try:
        predicate = pl.sql_expr(text)
        columns = set(predicate.meta.root_names())
    except pl.exceptions.PolarsError as error:
        raise _wrong(f"{text!r} is not an expression: {error}", "give one such as 'turnover < 1000000'") from error
    if not columns:
        raise _wrong(f"{text!r} names no column", "name columns of an operator, such as 'turnover < 1000000'")

    def failure(frames: Frames) -> ConditionFailure | None:
        having = {name: frame for name, frame in frames.items() if columns <= set(frame.columns)}
        if not having:
            known = "; ".join(f"{name}: {', '.join(frame.columns)}" for name, frame in sorted(frames.items()))
            raise _wrong(f"no operator has the columns {', '.join(sorted(columns))}", f"columns are {known}")
        for name, frame in having.items():
            try:
                wrong = frame.filter(~predicate.fill_null(True))
            except pl.exceptions.PolarsError as error:
                raise _wrong(
                    f"{text!r} cannot be computed: {error}", "compare columns with values of their type"
                ) from error
            if wrong.height:
                return ConditionFailure(name, wrong.row(0, named=True))
        return None

    return failure


def function(check: Callable[[Frames], object]) -> Condition:
    """Return the condition that a user's function of all state is true."""
    return lambda frames: None if check(frames) else ConditionFailure(None, None)


def first_bad(stored: Stored, condition: Condition, good: Completed, bad: Completed) -> BisectResult:
    """Return the first checkpoint at which the condition fails, given one at which it holds and one at which it fails.

    Raises:
        ConfigError: it fails at the first of them, or holds at the last.
        Damaged, Unavailable: a checkpoint cannot be read.
    """
    checkpoints = [done for done in stored.job.completed if good.body.epoch <= done.body.epoch <= bad.body.epoch]
    if (failure := condition(frames_of(stored, good.body.epoch))) is not None:
        raise _not_between(
            stored, f"it fails already at epoch {good.body.epoch}, the oldest one: {_shown(failure)}", "--good"
        )
    if (failure := condition(frames_of(stored, bad.body.epoch))) is None:
        raise _not_between(stored, f"it holds at epoch {bad.body.epoch}, the newest one", "--bad")
    low, high, read_count = 0, len(checkpoints) - 1, 2
    while high - low > 1:
        middle = (low + high) // 2
        found = condition(frames_of(stored, checkpoints[middle].body.epoch))
        read_count += 1
        low, high, failure = (middle, high, failure) if found is None else (low, middle, found)
    shapes = [stored.repository.load_manifest(checkpoints[at].body.manifest).shape for at in (low, high)]
    last = checkpoints[high]
    return BisectResult(
        checkpoints[low].body.epoch, last.body.epoch, last.at, failure, read_count, shapes[0] != shapes[1]
    )


def culprit(code: Code, stored: Stored, found: BisectResult, condition: Condition) -> Culprit | None:
    """Return the record after which the condition fails; None if it holds in the replay, to the end.

    Raises:
        ConfigError, Damaged, Unavailable: the epoch cannot be replayed.
        JobFailed: the job's code fails.
    """
    epoch = replayable(stored, str(found.bad))
    code.check(epoch.span, epoch.manifest)
    return _first(code, epoch, epoch.start, epoch.done.at, epoch.span, condition, epoch.reads())


def frames_of(stored: Stored, epoch: Epoch) -> Frames:
    """Return the state of all operators at a checkpoint."""
    done = stored.job.checkpoint(epoch)
    assert done is not None
    manifest = stored.repository.load_manifest(done.body.manifest)
    names = [each.name for each in manifest.operators if not each.dropped and not is_part(each.name)]
    return {name: _frame(stored, name, epoch) for name in names}


def _frame(stored: Stored, operator: str, epoch: Epoch) -> pl.DataFrame:
    reading = reading_of(stored, operator, str(epoch))
    frame = pl.from_arrow(pa.Table.from_batches(reading.batches(), reading.view.schema))
    assert isinstance(frame, pl.DataFrame)
    return frame


def _first(
    code: Code,
    epoch: Replayable,
    start: Start,
    ends_at: int,
    span: Span,
    condition: Condition,
    reads: Reads | None,
) -> Culprit | None:
    with Player(code, start, epoch.manifest, ends_at, span, reads=reads) as player:
        begins = before = player.base
        for piece in cut(span) if reads is None else reads.cut(span):
            piece_epoch, replay_job = player.play(piece), player.stored()
            failure = condition(frames_of(replay_job, piece_epoch))
            if failure is None:
                before = piece_epoch
                continue
            if offsets_in(piece) > 1:
                again = start if before == begins else Start(replay_job, replay_job.job.checkpoint(before))
                done = replay_job.job.checkpoint(piece_epoch)
                assert done is not None, "it was played"
                return _first(code, epoch, again, done.at, piece, condition, reads)
            at = next((each for each in piece if each.offsets), None)
            return Culprit(at, None if at is None else code.record(at), failure)
    return None


def _shown(failure: ConditionFailure) -> str:
    return "the function is false" if failure.operator is None else f"{failure.operator} has {failure.row}"


def _wrong(what: str, next_step: str) -> ConfigError:
    return ConfigError(what, not_done=NOT_REPLAYED, next_step=next_step)


def _not_between(stored: Stored, what: str, flag: str) -> ConfigError:
    return ConfigError(
        f"the condition does not change between the checkpoints: {what}",
        not_done=NOT_REPLAYED,
        next_step=f"give another checkpoint with {flag}; holdfast checkpoints list {stored.name} shows all of them",
        where=Where(job=stored.name),
    )
