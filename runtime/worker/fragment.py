"""One fragment at run time: it takes batches, and emits batches at its exchanges and sinks.

Between two barriers rows flow through the operators batch by batch. At a barrier every operator emits the results of
the epoch, before the loop freezes the tables, and these rows take the same path.

Steps that fuse run as one operator. The input of several steps is computed once. Python functions see only rows; if a
turn ends before a function completes, the remaining rows wait in `backlog`, and so do results of the epoch.

Invariants
    - Rows of one input batch leave in their order; an epoch's results leave at its barrier, never later.
    - Only columns that a later step needs are computed or sent.
    - A batch without rows changes nothing and sends nothing.
    - While a fragment is busy, nothing else enters; its owner calls `go_on` until it is not.
    - At a barrier an operator emits once those before it are through: their results are part of its input.

Pure: the caller owns the tables and handles the output.
Source: DESIGN section 4 (steps 2 to 4).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.frozen import replace
from holdfast.model import LAST_US, NEVER_US, Watermark
from holdfast.runtime.operators.backlog import Backlog
from holdfast.runtime.operators.contract import (
    MAIN,
    Arrival,
    KeyGroups,
    Leave,
    Operator,
    Placed,
    RowOrigin,
    Work,
    entry,
    needed_behind,
    operator_of,
)
from holdfast.runtime.operators.time_slice import TimeSlice
from holdfast.runtime.plan.model import Fragment
from holdfast.runtime.rows.dead_letters import DeadLetter, Letters
from holdfast.runtime.wire.messages import OperatorProgress, Suspect
from holdfast.state.tables.table import StateTable

Consumer = Callable[[pa.RecordBatch], None]


Send = Callable[[int, pa.RecordBatch], None]
"""send(edge, rows): takes all rows of an edge, for any subtask."""
Write = Callable[[str, pa.RecordBatch], None]
"""write(sink, rows)."""


class FragmentRuntime:
    """The steps of one fragment, ready to run on the operator thread.

    Args:
        tables: The tables of the fragment's steps, by name.
        job: Named in errors.
        key_groups: The job's key groups, and which of them this subtask owns.
        letters: Takes the dead letters of functions.
        suspects: Functions that have ended their process.
    """

    def __init__(
        self,
        fragment: Fragment,
        tables: Mapping[str, StateTable],
        send: Send,
        write: Write,
        job: str | None = None,
        key_groups: KeyGroups | None = None,
        letters: Letters | None = None,
        time_slice: TimeSlice | None = None,
        suspects: Sequence[Suspect] = (),
    ) -> None:
        self.letters, self._arrival = letters or Letters(), Arrival()
        self._time_slice = time_slice or TimeSlice()
        self.backlog = Backlog(self._time_slice, self._arrival, suspects)
        self._shared = _FragmentScope(
            tables, send, write, job, key_groups, self.letters, self._time_slice, self._arrival
        )
        self._begins: list[list[Consumer]] = [[], *([] for _ in fragment.further)]
        """By port."""
        self._operators: list[Operator] = []
        self._closing = deque[Operator]()
        """Those that have not begun to emit the results of the epoch, whose barrier has arrived."""
        self._clocked: list[Operator] = []
        """Those that are told processing time."""
        self._delay_us = max((placed.step.delay_us() for placed in fragment.steps), default=0)
        self._keeps_rows = any(placed.step.stateful for placed in fragment.steps)
        self._open(fragment)

    def on_batch(self, batch: pa.RecordBatch, arrival: Arrival | None = None, port: int = 0) -> None:
        """Take rows from the source or an edge.

        Args:
            arrival: Which records of a source these are, for errors.
            port: That of the edge.

        Raises:
            JobFailed: an expression cannot be computed, a sum overflows, or a function fails.
        """
        if batch.num_rows:
            assert not self.busy
            self._arrival.take(arrival or Arrival())
            for consumer in self._begins[port]:
                consumer(batch)
            self.backlog.go_on()

    @property
    def busy(self) -> bool:
        """Whether it has to go on before it takes anything else."""
        return bool(self.backlog or self._closing)

    def go_on(self) -> None:
        """Work until nothing is left or the turn is over.

        Raises:
            JobFailed: an expression cannot be computed, or a function fails.
        """
        self.backlog.go_on()
        while self._closing and not self.backlog:
            self._closing.popleft().on_barrier()
            self.backlog.go_on()
            if self._time_slice.over():
                return

    def on_barrier(self) -> None:
        """Emit the results of the epoch, now or in later turns; the tables are not frozen before it is no longer busy.

        Raises:
            JobFailed: an expression cannot be computed, or a function fails.
        """
        assert not self.busy, "a barrier must not overtake a row"
        self._arrival.take(Arrival())
        self._closing.extend(self._operators)
        self.go_on()

    def on_watermark(self, at_us: int) -> None:
        """Close windows: event time has reached this point.

        Raises:
            JobFailed: an expression cannot be computed, or a function fails.
        """
        self._arrival.take(Arrival())
        for operator in self._operators:
            operator.on_watermark(at_us)
        self.backlog.go_on()

    def on_clock(self, now_us: int) -> bool:
        """Begin with some of what is due at this processing time; return whether anything was.

        Raises:
            JobFailed: an expression cannot be computed, or a function fails.
        """
        assert not self.busy
        self._arrival.take(Arrival())
        worked = [operator.on_clock(now_us) for operator in self._clocked]
        self.backlog.go_on()
        return any(worked)

    def due_us(self) -> int | None:
        """Return the earliest processing time at which something is due; None if nothing ever is."""
        return min((at for each in self._clocked if (at := each.due_us()) is not None), default=None)

    def leaving(self, at: Watermark) -> Watermark:
        """Return the watermark of the fragment's output for one of its input.

        An input that is over does not end the output of a fragment that keeps rows: the last watermark lets go of them.
        """
        if at.at_us in (NEVER_US, LAST_US):
            return at
        if at.over and self._keeps_rows:
            at = replace(at, idle=True, over=False)
        return replace(at, at_us=max(at.at_us - self._delay_us, NEVER_US + 1)) if self._delay_us else at

    def progress(self) -> list[OperatorProgress]:
        """Return what every operator has taken, emitted and left out since it was deployed."""
        return [reported for operator in self._operators if (reported := operator.progress()) is not None]

    def _open(self, fragment: Fragment) -> None:
        """Open the operators in topological order, and connect them."""
        readers: dict[int, list[Placed]] = {}
        for placed_step in fragment.steps:
            for point in placed_step.inputs:
                readers.setdefault(point, []).append(placed_step)
        schemas = {entry(port): fragment.entering(port) for port in range(len(self._begins))}
        schemas |= {placed_step.id: placed_step.schema for placed_step in fragment.steps}
        needed_columns = needed_behind([(p.id, [(at, schemas[at]) for at in p.inputs], p.step) for p in fragment.steps])
        begin = RowOrigin(self._shared.job, fragment.source)
        outputs = {
            entry(port): _Output(begin, aligned=True, untouched=begin.source is not None, sides={MAIN: consumers})
            for port, consumers in enumerate(self._begins)
        }
        fused_ids: set[int] = set()
        for placed_step in fragment.steps:
            if placed_step.id in fused_ids:
                continue
            together = _fused(placed_step, readers)
            fused_ids.update(each.id for each in together)
            before, last = outputs[placed_step.input], together[-1]
            behind = outputs[last.id] = _behind(before, together, self._shared.job)
            ctx = _OperatorContext(
                self._shared,
                self.backlog,
                together,
                schemas[placed_step.input],
                before,
                behind,
                needed_columns.get(last.id, {}),
            )
            operator = placed_step.step.open(ctx)
            self._operators.append(operator)
            if any(each.step.uses_clock for each in together):
                self._clocked.append(operator)
            named = self._shared.tables.items() if placed_step.step.stateful else ()
            tables = [table for name, table in named if operator_of(name) == placed_step.step.name]
            for port, point in enumerate(placed_step.inputs):
                outputs[point].sides.setdefault(placed_step.step.reads_side, []).append(_into(operator, port, tables))


@dataclass(frozen=True)
class _FragmentScope:
    """The parts that all operators of a fragment share."""

    tables: Mapping[str, StateTable]
    send: Send
    write: Write
    job: str | None
    key_groups: KeyGroups | None
    letters: Letters
    time_slice: TimeSlice
    arrival: Arrival


@dataclass(frozen=True)
class _Output:
    """The output of a point, and its consumers by side."""

    origin: RowOrigin
    aligned: bool
    untouched: bool
    sides: dict[str, list[Consumer]] = field(default_factory=dict)


class _OperatorContext:
    """The OperatorContext of one operator."""

    def __init__(
        self,
        shared: _FragmentScope,
        backlog: Backlog,
        placed: tuple[Placed, ...],
        given: pa.Schema,
        before: _Output,
        behind: _Output,
        needed: Mapping[str, frozenset[str]],
    ) -> None:
        self._shared, self._backlog, self._sides, self._needed = shared, backlog, behind.sides, needed
        self.placed, self.given = placed, given
        self.job, self.time_slice, self.arrival = shared.job, shared.time_slice, shared.arrival
        self.origin, self.aligned, self.untouched = before.origin, before.aligned, before.untouched

    @property
    def key_groups(self) -> KeyGroups:
        assert self._shared.key_groups is not None
        return self._shared.key_groups

    def table(self, name: str) -> StateTable:
        return self._shared.tables[name]

    def needed(self, side: str = MAIN) -> frozenset[str]:
        return self._needed.get(side, frozenset())

    def wanted(self, side: str = MAIN) -> bool:
        return side in self._needed

    def emit(self, batch: pa.RecordBatch, side: str = MAIN) -> None:
        for consumer in self._sides.get(side, ()):
            consumer(batch)

    def defer(self, work: Work, batch: pa.RecordBatch, leave: Leave | None = None) -> None:
        self._backlog.add(work, self.emit, batch, leave, self.aligned)

    def dead_letter(self, letter: DeadLetter) -> None:
        self._shared.letters.add(letter)

    def send(self, edge: int, batch: pa.RecordBatch) -> None:
        self._shared.send(edge, batch)

    def write(self, sink: str, batch: pa.RecordBatch) -> None:
        self._shared.write(sink, batch)


def _fused(first: Placed, readers: Mapping[int, list[Placed]]) -> tuple[Placed, ...]:
    """Return the steps that are opened together, beginning with this one."""
    together = [first]
    while len(behind := readers.get(together[-1].id, [])) == 1 and together[-1].step.fuses_with(behind[0].step):
        together.append(behind[0])
    return tuple(together)


def _behind(before: _Output, together: tuple[Placed, ...], job: str | None) -> _Output:
    last = together[-1].step
    origin = RowOrigin(job, None, last.name) if last.stateful else before.origin
    return _Output(origin, before.aligned and all(each.step.one_to_one for each in together), untouched=False)


def _into(operator: Operator, port: int, tables: Sequence[StateTable]) -> Consumer:
    """Return what gives an operator its batches, in parts whose records fit memory if a table is larger than that."""
    if not tables:
        return lambda batch: operator.on_batch(port, batch)

    def take(batch: pa.RecordBatch) -> None:
        first = 0
        while batch.num_rows - first > (rows_max := min(table.batch_rows_max for table in tables)):
            operator.on_batch(port, batch.slice(first, rows_max))
            first += rows_max
        operator.on_batch(port, batch.slice(first) if first else batch)

    return take
