"""Replays two versions of a job's code on the same checkpoint and records, and compares their results.

Each version is a job in memory, as in every replay; its state continues from epoch to epoch, as after a deploy. The
results of the former version are also compared with the checkpoints, to show that differences come from the new code.

Invariants
    - Both versions read the same records, up to the same offsets, epoch by epoch.
    - The job is only read.

Source: docs/decisions/0132-shadow.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Self

import msgspec
import pyarrow as pa

from holdfast.errors import ConfigError, JobFailed, Where
from holdfast.model import Epoch
from holdfast.runtime.inspect.reading import StateReading, reading_of
from holdfast.runtime.inspect.stored import Stored
from holdfast.runtime.operators.contract import is_part
from holdfast.runtime.plan.kept_state import with_identities
from holdfast.runtime.plan.model import SinkSpec
from holdfast.runtime.replay.contrast import ColumnChanges, Contrast, GivenRows, Row
from holdfast.runtime.replay.following import ChainedEpoch, EpochChain
from holdfast.runtime.replay.player import Code, Player, Start
from holdfast.runtime.replay.proof import Difference, proof
from holdfast.runtime.replay.silence import begins_idle
from holdfast.runtime.replay.sources import NOT_REPLAYED
from holdfast.runtime.replay.spans import Span
from holdfast.runtime.replay.states import apart, contrast_of, values_of
from holdfast.runtime.rows.dead_letters import DLQ

Modules = Callable[[], AbstractContextManager[object]]
UNLIKE_ANYWAY = ("error",)
"""Columns of dead letters whose text depends on where the code was loaded from."""
TOGETHER_MAX = 200
"""Epochs that one job in memory replays; then the next one goes on, so that memory does not grow without end."""


@dataclass(frozen=True)
class _PlayedEpoch:
    """An epoch as it was replayed.

    Args:
        epoch: That of the job.
        number: That of the job in memory.
    """

    epoch: Epoch
    number: Epoch


class PlayedVersion:
    """One version of the code, at work."""

    def __init__(
        self, code: Code, chain: EpochChain, modules: Modules = nullcontext, drop_state: Sequence[str] = ()
    ) -> None:
        """Raises ConfigError: the code cannot read the state of the checkpoint."""
        self._modules = modules
        known = () if chain.first is None else chain.first.operators
        try:
            plan, operators = with_identities(code.plan, known, drop_state)
        except ConfigError as error:
            error.not_done = NOT_REPLAYED
            raise
        self.code = replace(code, plan=plan)
        self.played: list[_PlayedEpoch] = []
        """By the present job in memory."""
        self._chain, self._operators = chain, operators
        self._names = {spec.name for spec in plan.sources}
        self._player: Player | None = None
        self._partitions: set[tuple[str, int]] = set()

    def close(self) -> None:
        """End the job in memory."""
        if self._player is not None:
            self._player.__exit__()

    @property
    def stored(self) -> Stored:
        """The job in memory."""
        assert self._player is not None, "an epoch was played"
        return self._player.stored()

    def play(self, link: ChainedEpoch) -> Epoch:
        """Replay an epoch. Raises ConfigError, Damaged, Unavailable, JobFailed."""
        epoch = link.epoch
        span: Span = tuple(each for each in epoch.span if each.source in self._names)
        self.code.check(span, epoch.manifest)
        try:
            with self._modules():
                number = self._at(link, span).play(span, epoch.done.at)
        except JobFailed as error:
            error.not_done = "the replay was not completed; the job was only read"
            error.next_step = (
                'correct the code, or leave such rows out with on_error="dlq" or on_error="drop"; then retry'
            )
            raise
        self.played.append(_PlayedEpoch(epoch.manifest.epoch, number))
        return number

    def taken(self, sink: str, number: Epoch) -> list[pa.RecordBatch]:
        """Return the rows that an epoch gave a sink, once."""
        assert self._player is not None
        return self._player.sinks[sink].rows.pop(number, []) if sink in self._player.sinks else []

    def rows(self, sink: str, number: Epoch) -> list[pa.RecordBatch]:
        """Return the rows that an epoch gave a sink."""
        assert self._player is not None
        return self._player.rows(sink, number)

    def reading(self, operator: str) -> StateReading | None:
        """Return the state of an operator now; None if this version has none of it."""
        memory = self.stored
        manifest = memory.repository.load_manifest(memory.job.completed[-1].body.manifest)
        if all(each.dropped or each.name != operator for each in manifest.operators):
            return None
        return reading_of(memory, operator)

    def states(self, operator: str, typed: str, key: Row) -> dict[Epoch, tuple[Row | None, bool]]:
        """Return the values of a key after each epoch, and whether the epoch changed them.

        There are none if this version has no such operator.
        """
        if self.reading(operator) is None:
            return {each.epoch: (None, False) for each in self.played}
        changes, states, last = values_of(self.stored, operator, typed, key), {}, None
        first = min(self.played, key=lambda each: each.number).number
        for number in sorted(changes):
            last = changes[number] if number < first else last
        for each in self.played:
            last = changes.get(each.number, last)
            states[each.epoch] = last, each.number in changes
        return states

    def _at(self, link: ChainedEpoch, span: Span) -> Player:
        """Return the job in memory that plays an epoch: the same one, as long as no partition is new to it."""
        partitions = {(each.source, each.partition) for each in span}
        if self._player is not None and partitions <= self._partitions and len(self.played) < TOGETHER_MAX:
            return self._player
        start = self._chain.start
        if self._player is not None:
            memory = self._player.stored()
            start = Start(memory, memory.job.checkpoint(self._player.base))
            self._player.__exit__()
        end = msgspec.structs.replace(link.epoch.manifest, operators=self._operators)
        self._player = Player(self.code, start, end, link.epoch.done.at, span).__enter__()
        self._partitions, self.played = partitions, []
        if start is self._chain.start and begins_idle(start.stored, start.done, self.code.plan.sources, span):
            self._player.rest()
        return self._player


@dataclass
class ShadowTotals:
    """The epochs replayed so far.

    Args:
        differences: Those of the former version from the checkpoints, by epoch.
        unknown: Why some of it was not compared with the checkpoints; None if all was.
    """

    epochs: list[Epoch] = field(default_factory=list)
    records: int = 0
    differences: list[tuple[Epoch, Difference]] = field(default_factory=list)
    unknown: str | None = None


class Shadow:
    """Both versions, epoch by epoch; a context manager.

    Args:
        before: The code as it runs.
        after: The changed code.
        drop_state: State that the changed code gives up, as for `holdfast run --drop-state`.
        modules: Enters the modules of either, so that each finds its own.
    """

    def __init__(
        self,
        before: Code,
        after: Code,
        chain: EpochChain,
        drop_state: Sequence[str] = (),
        modules: tuple[Modules, Modules] = (nullcontext, nullcontext),
    ) -> None:
        _check_sources(before, after)
        self.totals = ShadowTotals()
        self._chain, self._from_nothing = chain, chain.first is None
        self.before = PlayedVersion(before, chain, modules[0])
        self.after = PlayedVersion(after, chain, modules[1], drop_state)
        self._sinks = {name: self._given(name) for name in _names(before.plan.sinks, after.plan.sinks)}

    def __enter__(self) -> Self:
        return self

    @property
    def begins_with(self) -> Epoch | None:
        """Return the epoch of the checkpoint with which it began; None if the job began there."""
        return None if self._chain.first is None else self._chain.first.epoch

    def __exit__(self, *_: object) -> None:
        self.before.close()
        self.after.close()

    def play(self, link: ChainedEpoch, *, prove_state: bool = True) -> None:
        """Replay an epoch with both. Raises ConfigError, Damaged, Unavailable, JobFailed.

        Args:
            prove_state: Whether the state of the former version is compared with the checkpoint, not its rows alone.
        """
        numbers = self.before.play(link), self.after.play(link)
        epoch = link.epoch.manifest.epoch
        self._prove(link, numbers[0], prove_state)
        for name, rows in self._sinks.items():
            rows.take(epoch, self.before.taken(name, numbers[0]), self.after.taken(name, numbers[1]))
        self.totals.epochs.append(epoch)
        self.totals.records += link.epoch.records

    def compared(self, limit: int) -> list[Contrast]:
        """Return what differs now, by sink and operator.

        Args:
            limit: How many differences of each are shown side by side.
        """
        return [*(self._sink(name, limit) for name in self._sinks), *self._operators(limit)]

    def since(self, contrast: Contrast, typed: str, key: Row) -> tuple[Epoch, bool] | None:
        """Return the first epoch after which a key of an operator differs; None if none shows it.

        With it, whether the new version changed the key in that epoch; else the former one did.

        Args:
            typed: The key, as a user types it.
        """
        ones, others = (each.states(contrast.name, typed, key) for each in (self.before, self.after))
        for epoch, (one, _) in ones.items():
            if epoch in others and apart(one, others[epoch][0]):
                return epoch, others[epoch][1]
        return None

    def _prove(self, link: ChainedEpoch, number: Epoch, state: bool) -> None:
        """Compare what the former version did with the checkpoint."""
        epoch, version = link.epoch, self.before
        if not link.is_whole:
            self.totals.unknown = "checkpoints between those that were replayed have expired"
            return
        rows = lambda sink: version.rows(sink, number)
        stored, specs = epoch.start.stored, version.code.plan.sinks
        given = proof(stored, epoch.manifest, version.stored, [number], specs, rows, state=state)
        self.totals.differences += [(epoch.manifest.epoch, each) for each in given.differences]
        self.totals.unknown = self.totals.unknown or given.unknown

    def _specs(self, name: str) -> list[SinkSpec]:
        both = (self.before.code.plan.sinks, self.after.code.plan.sinks)
        return [spec for specs in both for spec in specs if spec.name == name]

    def _given(self, name: str) -> GivenRows:
        specs = self._specs(name)
        keys = {spec.upsert_key or spec.sink.key for spec in specs}
        names = [n for n in specs[0].schema.names if n in specs[-1].schema.names]
        names = [n for n in names if name != DLQ or n not in UNLIKE_ANYWAY]
        key = keys.pop() if len(keys) == 1 else None
        return GivenRows(None if key is None else tuple(key), names, from_nothing=self._from_nothing)

    def _sink(self, name: str, limit: int) -> Contrast:
        specs = self._specs(name)
        contrast = Contrast("sink", name, columns=ColumnChanges.of(specs[0].schema.names, specs[-1].schema.names))
        if len(specs) == 1:
            contrast.is_in = "before" if any(spec.name == name for spec in self.before.code.plan.sinks) else "after"
        self._sinks[name].fill(contrast, limit)
        return contrast

    def _operators(self, limit: int) -> list[Contrast]:
        plans = (self.before.code.plan, self.after.code.plan)
        names = dict.fromkeys(spec.name for plan in plans for spec in plan.operators if not is_part(spec.name))
        return [contrast_of(n, self.before.reading(n), self.after.reading(n), limit) for n in names]


def _names(before: Sequence[SinkSpec], after: Sequence[SinkSpec]) -> list[str]:
    return list(dict.fromkeys(spec.name for specs in (before, after) for spec in specs))


def _check_sources(before: Code, after: Code) -> None:
    """Refuse new code with a source that the job has never read: no epoch says how far."""
    known = {spec.name for spec in before.plan.sources}
    for spec in after.plan.sources:
        if spec.name not in known:
            raise ConfigError(
                f"the new code has a source {spec.name!r}, which the job does not read: its epochs do not say which "
                "records of it they would have taken",
                not_done=NOT_REPLAYED,
                next_step="try it without the source, or on a fork of the job: holdfast fork",
                where=Where(job=before.plan.app, source=spec.name),
            )
