"""Find patterns in the rows of each key, in the order of event time.

When a row arrives, the expressions of all conditions are computed for its whole batch. The row is kept until the
watermark has passed it; then no earlier row can come, and the automaton of its key takes it. A row that meets no
condition is not kept at all, unless it could end a partial match by being in between.

Python works on rows only of keys that have a partial match, or a row with which one may begin.

Invariants
    - A match depends on the rows of its key and their times; on the order of arrival only among rows of one time.
    - Nothing is kept of a partial match once event time has reached its end, `within` after its first row.
    - A row that fails changes nothing: with "drop" and "dlq" the automaton never sees it. A row fails if a function of
      the user does, or if its key would have more partial matches than the limit; which rows these are depends on the
      rows of the key and their order alone, not on batches.

Pure, as far as the user's functions are.
Source: docs/decisions/0069-patterns.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pyarrow as pa

from holdfast.errors import JobFailed, Where
from holdfast.runtime.operators.contract import (
    ROUNDS,
    Description,
    KeyedStep,
    Needed,
    Operator,
    OperatorContext,
    TableDraft,
    part_name,
)
from holdfast.runtime.operators.differences import Found, columns_text, compare_kept, compare_keys, typed
from holdfast.runtime.operators.event_clock import CLOCK_TABLE, EventClock, time_not_held
from holdfast.runtime.operators.patterns.automaton import NONE, Automaton, Partial, PatternRow, TooManyPartials
from holdfast.runtime.operators.patterns.conditions import MatchFunctionFailed, PatternCondition, called
from holdfast.runtime.operators.patterns.kept import ENDS, FITS, ROWS, Loaded, Partials, Slots, StoredRows, drafts
from holdfast.runtime.operators.patterns.results import Complete, MatchResult, SeenRows, batch_of_columns
from holdfast.runtime.operators.side import LATE
from holdfast.runtime.operators.windows.merging import grouped
from holdfast.runtime.rows.dead_letters import DeadLetter, OnError, encode_row, reported
from holdfast.runtime.rows.expressions import Use
from holdfast.runtime.rows.forms import code_of
from holdfast.runtime.rows.frames import never_single
from holdfast.runtime.rows.rows import WrongRow, batch_of_rows
from holdfast.runtime.time.windows import TIME_FIRST_US, TIME_LAST_US, micros_of, outside, span
from holdfast.runtime.wire.messages import OperatorProgress
from holdfast.runtime.wire.vitals import FUNCTION
from holdfast.state.keys.batch import Keys, KeyType

PIECE_ROWS = 16_384
"""Rows, or partial matches, that are worked on together."""
KEY_SHOWN = 60
"""Characters of a key in messages."""
CORRECT_IT = "correct the function"


@dataclass(frozen=True, eq=False)
class Match(KeyedStep):
    """Emit a row for every match of a pattern."""

    operator: str
    keys: tuple[str, ...]
    time: str
    """Column with the event time."""
    columns: tuple[str, ...]
    """Columns of the rows that functions see or results are made of, in order."""
    automaton: Automaton
    conditions: tuple[PatternCondition, ...]
    row_type: type | None
    result: MatchResult
    delayed: bool
    """Whether the result's event time may be that of any row of the match."""
    on_error: OnError
    use: Use

    kind: ClassVar[str] = "match"
    keeps: ClassVar[str] = "the rows and partial matches of a pattern"

    @property
    def functions(self) -> list[Callable[..., Any]]:
        """All functions that it calls."""
        found = [function for condition in self.conditions for function, _ in condition.functions]
        return found if self.result.select is None else [*found, self.result.select]

    def keyed_by(self, port: int) -> tuple[str, ...]:
        return self.keys

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        used = {name for each in self.conditions for e in each.expressions for name in e.meta.root_names()}
        used |= needed.get(LATE, frozenset())
        return tuple(
            dict.fromkeys((*self.keys, self.time, *self.columns, *(name for name in given.names if name in used)))
        )

    def compared(self, port: int) -> tuple[str, ...]:
        return (self.time,)

    def times_held(self) -> tuple[int, int]:
        return TIME_FIRST_US, TIME_LAST_US - self.automaton.within_us

    def delay_us(self) -> int:
        return self.automaton.within_us if self.delayed else 0

    @property
    def kept(self) -> list[str]:
        """The columns of a row that are kept beside its key and its time."""
        return [name for name in self.columns if name not in (*self.keys, self.time)]

    def tables(self, given: Sequence[pa.Schema]) -> tuple[TableDraft, ...]:
        return *drafts(given[0], self.keys, self.kept), CLOCK_TABLE

    def identity(self, column: Description) -> dict[str, Any]:
        key, rows = ([column(name) for name in names] for names in (self.keys, self.kept))
        computed = [condition.step for condition in self.conditions if condition.expressions]
        bound = {"within_us": self.automaton.within_us, "pattern": self.automaton.identity(), "computed": computed}
        of_rows = {"event_time": column(self.time), "rows": rows, "suffix": 1, "times": [ENDS.name]}
        return {"keeps": self.keeps, "key": key} | bound | of_rows

    def compare(self, found: Found, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        compare_keys(found, before["key"], now["key"])
        old, new = before["event_time"], now["event_time"]
        if typed(old) != typed(new):
            found.refuse(f"had the event time {columns_text([old])} and now has {columns_text([new])}")
        else:
            found.compare_provenance("event time", old, new)
        compare_kept(found, "column", before["rows"], now["rows"])
        if (was := before["within_us"]) != (given := now["within_us"]):
            found.refuse(f"had within={span(was)!r} and now has {span(given)!r}")
        if before["pattern"] != now["pattern"]:
            found.refuse("had a pattern of other steps", ", so it cannot continue its partial matches")
        elif first := sorted(set(now["computed"]) - set(before["computed"])):
            # The bit of such a step is set in every row that waits: its functions would decide, and now do not.
            found.refuse(
                f"had no expression in the condition of step {first[0]!r} and now has one",
                ", which was not computed for the rows that wait",
            )

    def text(self) -> str:
        steps = ", ".join(condition.step for condition in self.conditions)
        within = f"within {span(self.automaton.within_us)}"
        text = f"match {self.operator} by {', '.join(self.keys)}: {steps} {within}, skip {self.automaton.skip}"
        return text if self.on_error == "fail" else f"{text}, on error: {self.on_error}"

    def code(self) -> list[str] | None:
        functions = self.functions
        return [self.on_error, *map(code_of, functions)] if functions else None

    def busy_with(self) -> tuple[str, ...]:
        return (self.operator,) if self.functions else ()

    def open(self, ctx: OperatorContext) -> Operator:
        return MatchOperator(self, ctx)


class MatchOperator(Operator):
    """One operator on one subtask."""

    def __init__(self, step: Match, ctx: OperatorContext) -> None:
        self._step, self._ctx, self._schema = step, ctx, ctx.placed[0].schema
        self._automaton, self._held = step.automaton, step.times_held()
        self.name = step.operator
        self.mark = FUNCTION + step.operator if step.functions else f"operator: {step.operator}"
        self._keys = KeyType.of(ctx.given.field(name) for name in step.keys)
        self._clock = EventClock(step.operator, ctx)
        self._rows = StoredRows(ctx.table(part_name(step.operator, ROWS)), step.keys, step.time, ctx.given)
        self._partials = Partials(ctx.table(step.operator), self._rows, step.automaton.within_us)
        self._seen = SeenRows(self._rows, step.columns, ctx.given, step.row_type, step.automaton.stages)
        functions = [each for condition in step.conditions for each in condition.functions]
        self._asks, self._asks_matches = bool(functions), any(matches for _, matches in functions)
        self._pace, self._pace_of_ends = ctx.time_slice.pace(), ctx.time_slice.pace()
        self.rows_in = self.rows_out = self.late = self.dropped = self.dlq = 0

    # Rows that arrive

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        """Keep the rows until the watermark has passed them; emit late rows.

        Raises:
            JobFailed: an expression cannot be computed, or no state can hold an event time, which then comes from a
                function.
        """
        self.rows_in += batch.num_rows
        step = self._step
        times = micros_of(batch.column(step.time))
        if (wrong := outside(times, self._held)) is not None:
            raise time_not_held("operator", step.operator, step.time, int(times[wrong.argmax()]), self._ctx.job)
        late = times < self._clock.of(lambda: self._keys.encode([batch.column(name) for name in step.keys]))
        if late.any():
            self.late += int(late.sum())
            if self._ctx.wanted(LATE):
                self._ctx.emit(batch.filter(pa.array(late)), LATE)
            batch, times = batch.filter(pa.array(~late)), times[~late]
        fits = self._fits(batch)
        if not self._automaton.breakable and not fits.all():
            chosen = fits != 0
            batch, times, fits = batch.filter(pa.array(chosen)), times[chosen], fits[chosen]
        if batch.num_rows:
            self._rows.keep(batch, times, fits)

    def on_watermark(self, at_us: int) -> None:
        """Advance event time to this point: take the rows before it, and end the partial matches that are over."""
        if self._clock.advance(at_us) is None:
            return
        if (due := self._rows.due(at_us)).size:
            self._ctx.defer(self, pa.RecordBatch.from_arrays([pa.array(due)], ["slot"]))
        self._ctx.defer(_Ending(self, at_us), ROUNDS)

    def on_barrier(self) -> None:
        self._clock.note()
        self._rows.tidy()
        self._partials.tidy()

    def progress(self) -> OperatorProgress:
        counts = self.rows_in, self.rows_out, 0
        dlq = self.dlq if self._step.on_error == "dlq" else None
        return OperatorProgress(self.name, *counts, dropped=self.dropped, late=self.late, dlq=dlq)

    def _fits(self, batch: pa.RecordBatch) -> Slots:
        """Return per row the bits of the conditions whose expressions hold."""
        fits, expressions = np.zeros(batch.num_rows, np.int64), dict[str, pl.Expr]()
        for number, condition in enumerate(self._step.conditions):
            if condition.expressions:
                expressions[str(number)] = pl.all_horizontal([each.fill_null(False) for each in condition.expressions])
            else:
                fits |= 1 << number
        if expressions and batch.num_rows:
            for name, held in self._computed(batch, expressions).items():
                fits |= held.astype(np.int64) << int(name)
        return fits

    def _computed(self, batch: pa.RecordBatch, exprs: Mapping[str, pl.Expr]) -> dict[str, Any]:
        names = dict.fromkeys(name for each in exprs.values() for name in each.meta.root_names())
        frame = pl.from_arrow(batch.select(list(names) or batch.schema.names[:1]))
        assert isinstance(frame, pl.DataFrame)
        frame = never_single(frame)
        try:
            # with_columns fills constants to the length of the frame, which select alone would not.
            result_frame = frame.with_columns(each.alias(f"_{name}") for name, each in exprs.items())
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise self._failed(
                f"{self._step.use} cannot be computed: {error}",
                "make the conditions take every value, or put a filter before the pattern",
            ) from error
        return {name: result_frame.get_column(f"_{name}").head(batch.num_rows).to_numpy() for name in exprs}

    # Rows that are due

    def some(self, batch: pa.RecordBatch, at: int, base: int) -> tuple[int, list[pa.RecordBatch]]:
        """Take rows that are due, from one on, in their order."""
        count = min(self._pace.rows, PIECE_ROWS)  # without functions too: a hot key may have many partial matches
        slots = np.array(batch.column("slot").to_numpy()[at : at + count])
        began = self._ctx.time_slice.now()
        given = self._take(slots)
        self._pace.took(slots.size, self._ctx.time_slice.now() - began)
        return slots.size, given

    def end(self, at_us: int) -> list[pa.RecordBatch] | None:
        """End some partial matches that are over, and return the matches complete by that; None if none is over."""
        over = self._partials.over(at_us, min(self._pace_of_ends.rows, PIECE_ROWS))
        if over is None:
            return None
        began = self._ctx.time_slice.now()
        users = grouped(over).keys
        before = self._partials.load(users)
        now, complete = list[list[Partial]](), list[Complete]()
        for alive in before.partials:
            left, found = self._automaton.expire(alive, at_us)
            now.append(left)
            complete += [Complete(each, self._automaton.ends(each)) for each in found]
        given = self._settled(users, before, now, complete, np.empty(0, np.int64))
        self._pace_of_ends.took(len(over), self._ctx.time_slice.now() - began)
        return given

    def _take(self, slots: Slots) -> list[pa.RecordBatch]:
        owners, users = grouped(self._rows.users(slots))
        fits = self._rows.table.values(FITS.name, slots)
        before = self._partials.load(users)
        active = before.counts > 0
        active[owners[(fits & 1) != 0]] = True
        mine = np.flatnonzero(active[owners])
        now = [list(each) for each in before.partials]
        complete: list[Complete] = []
        if mine.size:
            mine = mine[np.argsort(owners[mine], kind="stable")]
            if self._asks:
                self._seen.make(slots[mine[fits[mine] != 0]].tolist())
            if self._asks_matches:
                self._seen.make(row.slot for alive in now for each in alive for row in each.rows)
            rows = self._rows.rows(slots[mine])
            for owner, row, bits in zip(owners[mine].tolist(), rows, fits[mine].tolist(), strict=True):
                if now[owner] or bits & 1:
                    now[owner] = self._advanced(now[owner], row, bits, complete)
        return self._settled(users, before, now, complete, slots)

    def _advanced(self, alive: list[Partial], row: PatternRow, bits: int, complete: list[Complete]) -> list[Partial]:
        """Take one row of a key; return its partial matches."""
        automaton = self._automaton
        if alive:
            alive, matches = automaton.expire(alive, row.at_us)
            complete += [Complete(each, automaton.ends(each)) for each in matches]
        try:
            after, matches = automaton.advance(alive, row, bits, self._holds)
        except MatchFunctionFailed as failed:
            self._leave_out(row, f"a function {failed}", CORRECT_IT, failed.__cause__)
            return alive
        except TooManyPartials:
            # As if it had not come: without a part of its partial matches, later matches would be wrong in silence.
            self._leave_out(row, self._too_many(row), self._fewer(), None)
            return alive
        complete += [Complete(each, row.at_us) for each in matches]
        return after

    def _holds(self, condition: int, row: PatternRow, partial: Partial | None) -> bool:
        for function, takes_matches in self._step.conditions[condition].functions:
            given = [self._seen.row(row)]
            if takes_matches:
                given.append(self._seen.matches(partial or Partial(0, 0, (), ())))
            if not called(function, *given, into=bool):
                return False
        return True

    def _settled(
        self, users: Keys, loaded: Loaded, now: list[list[Partial]], complete: list[Complete], due: Slots
    ) -> list[pa.RecordBatch]:
        """Return the rows of matches; keep the partial matches and their rows, and drop the other rows of this call."""
        batches = self._results(complete)
        self._partials.store(users, loaded, now)
        had = {row.slot for alive in loaded.partials for each in alive for row in each.rows}
        left = {row.slot for alive in now for each in alive for row in each.rows}
        stays = np.isin(due, np.fromiter(left, np.int64, len(left)))
        self._rows.taken(due[stays])
        gone = np.concatenate([due[~stays], np.array(sorted(had - left), np.int64)])
        if gone.size:
            self._rows.table.delete(gone)
        self._seen.clear()
        return batches

    # Results

    def _results(self, complete: list[Complete]) -> list[pa.RecordBatch]:
        if not complete:
            return []
        if self._step.result.select is None:
            batch = batch_of_columns(self._step.result, self._rows, complete, self._schema)
        else:
            self._seen.make(row.slot for each in complete for row in each.match.rows)
            rows = [row for each in complete for row in self._selected(each)]
            batch = batch_of_rows(self._schema, rows, self._step.result.to)
        self.rows_out += batch.num_rows
        return [batch] if batch.num_rows else []

    def _selected(self, complete: Complete) -> list[Any]:
        """Return the row that the user's function makes of a match; none if that fails and may."""
        select = self._step.result.select
        assert select is not None
        matches, last = self._seen.matches(complete.match), complete.match.rows[-1]
        try:
            row = called(select, matches)
            batch_of_rows(self._schema, [row], self._step.result.to)
        except MatchFunctionFailed as failed:
            self._leave_out(last, f"a function {failed}", CORRECT_IT, failed.__cause__)
            return []
        except WrongRow as wrong:
            self._leave_out(last, f"a function returned a wrong row: {wrong.what}", CORRECT_IT, wrong)
            return []
        return [row]

    # Failures

    def _too_many(self, row: PatternRow) -> str:
        table = self._rows.table
        columns = table.key_columns(np.array([row.slot]))[: len(self._step.keys)]
        key = ", ".join(str(column[0].as_py()) for column in columns)
        shown = repr(key if len(key) <= KEY_SHOWN else f"{key[:KEY_SHOWN]}...")
        most = self._automaton.partials_max
        return f"operator {self.name!r} would have more than {most:,} partial matches of the key {shown}"

    def _fewer(self) -> str:
        """Return the remedies for too many partial matches; the last one starts with empty state."""
        ways = ["make the conditions narrower", "raise partial_matches_max"]
        if self._automaton.skip == NONE:
            ways.insert(1, 'use another skip than "none"')
        times = "smaller .times or a " if any(stage.most > 1 for stage in self._automaton.stages) else ""
        return ", ".join([*ways, f"give the pattern a {times}shorter .within and a new name"])

    def _leave_out(self, row: PatternRow, why: str, next_step: str, cause: BaseException | None) -> None:
        """Count a row that fails and may, or make it a dead letter."""
        step = self._step
        what = f"{step.use}: {why}"
        if step.on_error == "fail":
            raise self._failed(what, f'{next_step}, or leave such rows out with on_error="dlq" or "drop"') from cause
        if step.on_error == "drop":
            self.dropped += 1
            return
        raw = encode_row(self._rows.read(step.columns, np.array([row.slot], np.int64)))
        source = self._ctx.origin.source
        self._ctx.dead_letter(DeadLetter(self.name, source, None, None, reported(what), "row", raw))
        self.dlq += 1

    def _failed(self, what: str, next_step: str) -> JobFailed:
        return JobFailed(
            what,
            not_done="the epoch was not completed; state and output stay as of the last checkpoint",
            next_step=f"{next_step}; then run the job again, which resumes from the last checkpoint",
            where=Where(job=self._ctx.job, operator=self.name),
        )


class _Ending:
    """The end of partial matches by time, after all rows before that time were taken."""

    def __init__(self, operator: MatchOperator, at_us: int) -> None:
        self._operator, self._at_us = operator, at_us
        self.name, self.mark = operator.name, operator.mark

    def some(self, batch: pa.RecordBatch, at: int, base: int) -> tuple[int, list[pa.RecordBatch]]:
        """End some that are over, in one round; the last round finds none."""
        given = self._operator.end(self._at_us)
        return (batch.num_rows - at, []) if given is None else (1, given)
