"""The contract of an operator: a `Step` in the plan, an `Operator` at run time.

One file in this folder is one kernel operator. Its `Step` is a frozen value that answers every question of the
compiler, the reports and the checks of state; its `Operator` takes and emits batches. Only methods of streams create
steps; no other module names a concrete operator. So a new operator needs one file here and one method of a stream.

The same operators run in resident workers, in the test driver and in the simulator. An operator reaches tables, output
and dead letters only through its `OperatorContext`: it knows no channel, thread, file or commit.

Invariants
    - A step is comparable and can be shipped; it holds no table and no open resource.
    - `Step.reads` alone decides which columns a step gets; other columns may be missing.
    - An operator emits the results of an epoch in `on_barrier`, or in work that it defers there; then tables freeze.

Pure.
Source: docs/decisions/0031-operator-kernel.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.runtime.operators.time_slice import TimeSlice
from holdfast.runtime.rows.dead_letters import DeadLetter
from holdfast.runtime.time.windows import TIME_FIRST_US, TIME_LAST_US
from holdfast.runtime.wire.messages import OperatorProgress
from holdfast.sinks.contract.target import OP
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.spec import ColumnSpec, TableSpec
from holdfast.state.tables.table import StateTable

if TYPE_CHECKING:
    from holdfast.runtime.operators.differences import Found

INPUT = -1
"""The input of a step that reads the fragment's input at port 0; `entry` returns the one of any port."""
MAIN = "main"
"""The side on which a step emits its stream; other sides have their own names, such as "late"."""
OP_FIELD = pa.field(OP, pa.int8(), nullable=False)
"""The last column of every batch of an upsert stream; schemas of streams leave it out."""

KEY_ORDER, LATE_ROWS = "the order of the records of a key", "which records are late"
"""Effects of the order of rows and watermarks, for `Step.depends_on_order`."""
ROUNDING = "the last digits of floating point numbers"
UNRECORDED = BATCHES, EARLY = "how rows fall into batches", "when results are shown early"
"""Effects that remain where the order is recorded: they also depend on the time that a turn has, and on memory."""

Needed = Mapping[str, frozenset[str]]
"""Columns needed after each side that is read."""
Function = Callable[[Any], Any]


class Description(Protocol):
    """Describes columns for an identity."""

    def __call__(self, name: str, port: int = 0) -> dict[str, Any]:
        """Return name, type, nullability and provenance of an input column."""

    def names(self, port: int = 0) -> list[str]:
        """Return the columns that an input has, of which unneeded ones were left out."""


@dataclass(frozen=True)
class KeyGroups:
    """The number of the job's key groups, and the range that this subtask owns: [first, end)."""

    count: int
    first: int
    end: int


@dataclass(frozen=True)
class RowOrigin:
    """Where rows come from; errors name it."""

    job: str | None = None
    source: str | None = None
    operator: str | None = None


@dataclass
class Arrival:
    """The records of a source that are in the fragment now, as far as known."""

    partition: int | None = None
    offset: int | None = None
    """Offset of the first record."""
    following: int | None = None
    """Offset after the last record."""
    contiguous: bool = False
    """Record i of the batch has the offset `offset + i`."""
    offsets: NDArray[np.int64] | None = None
    """The offset of every record, if some between them were left out."""

    def take(self, other: Arrival) -> None:
        """Copy the values of another arrival."""
        self.partition, self.offset = other.partition, other.offset
        self.following, self.contiguous, self.offsets = other.following, other.contiguous, other.offsets

    def offset_of(self, row: int) -> int | None:
        """Return the offset of the record of this number, None if unknown."""
        if self.offsets is not None:
            return int(self.offsets[row])
        return self.offset + row if self.contiguous and self.offset is not None else None


@dataclass(frozen=True)
class TableDraft:
    """A table of a step, not numbered yet."""

    key: KeyType
    columns: tuple[ColumnSpec, ...]
    part: str = ""
    """Empty for the table with the operator's name; else the name of an additional table."""
    window: str | None = None
    """The text by which checkpoints of older versions compare windows."""
    orders: tuple[str, ...] = ()
    """Ordered indexes to keep in memory (state/tables/spec.py)."""
    times: tuple[str, ...] = ()
    """The columns that hold event times, for readers of the state of an additional table."""

    @classmethod
    def of(cls, spec: TableSpec, part: str) -> TableDraft:
        """Return the draft of an additional table that another room describes: a list, a map, a timer."""
        return cls(spec.key, spec.columns, part, orders=spec.orders)


def entry(port: int) -> int:
    """Return the point at which the edges of this port enter a fragment; the function is its own inverse."""
    return INPUT - port


def part_name(operator: str, part: str) -> str:
    """Return the name of an additional table of an operator; no user's operator can have it."""
    return f"{operator}.{part}" if part else operator


def is_part(name: str) -> bool:
    """Return whether this names an additional table of an operator."""
    return "." in name


def operator_of(name: str) -> str:
    """Return the operator that a table belongs to."""
    return name.partition(".")[0]


class Step(ABC):
    """All that a plan knows of an operator.

    The defaults fit an operator without name, key or state, which reads all columns and makes new rows.
    """

    keeps: ClassVar[str] = ""
    """The content of its state, for messages; a step with another text cannot read that state."""
    merges: ClassVar[bool] = False
    """Whether it takes any number of streams with the same columns, and returns their rows as one."""
    row_wise: ClassVar[bool] = False
    """Whether it has no state and its output for a row depends on that row alone."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """Its kind in plans; part of the format of `holdfast plan --json`."""

    @abstractmethod
    def text(self) -> str:
        """Return the step as text for plans."""

    @abstractmethod
    def open(self, ctx: OperatorContext) -> Operator:
        """Return the operator that carries out the step."""

    # Names

    @property
    def name(self) -> str | None:
        """The name under which its rows are counted; that of a stateful step also identifies its state."""
        return None

    @property
    def counted_as(self) -> str:
        """Its kind in audits: "keyed", "function" (one row for one) or "filter". Used if it has a name."""
        return "filter"

    @property
    def stateful(self) -> bool:
        """Whether it has tables."""
        return False

    @property
    def uses_clock(self) -> bool:
        """Whether its operator receives processing time."""
        return False

    # Position in the plan

    @property
    def writes_to(self) -> str | None:
        """The sink at which a stream ends here."""
        return None

    @property
    def sends_to(self) -> int | None:
        """The edge over which the rows leave the fragment here."""
        return None

    @property
    def reads_side(self) -> str:
        """Which side of the step before it reads."""
        return MAIN

    def keyed_by(self, port: int) -> tuple[str, ...]:
        """Return the columns of an input whose equal values have to meet in one subtask; () if any subtask will do.

        Equal keys of several inputs meet too. Either all inputs have keys, or none.
        """
        return ()

    def fuses_with(self, following: Step) -> bool:
        """Return whether a following step runs in one operator with this one, if it is the only reader."""
        return False

    # Columns

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        """Return the columns of an input that it needs, in the order in which an edge carries them.

        Args:
            given: The columns of this input.
            needed: The columns needed after each side that is read.
        """
        return tuple(given.names)

    def made_from(self, name: str) -> str | pl.Expr | None:
        """Return the input column behind an output column, or the expression that computes it; None: created here."""
        return None

    def handed_on(self, name: str) -> str | None:
        """Return the input column whose values an output column has, row by row; None if unknown."""
        origin = self.made_from(name)
        return origin if isinstance(origin, str) else None

    @property
    def one_to_one(self) -> bool:
        """Whether output row i is computed from input row i."""
        return False

    def times_held(self) -> tuple[int, int]:
        """Return the first and the last event time that it can hold."""
        return TIME_FIRST_US, TIME_LAST_US

    def timed(self, port: int) -> bool:
        """Return whether the event time of an input holds back that of the output; the first input's does."""
        return True

    def compared(self, port: int) -> tuple[str, ...]:
        """Return the columns of an input with times that it compares with event time, which make rows late.

        A row at or after a watermark comes to the same whether it arrives before or after that watermark.
        """
        return ()

    @property
    def sees_watermarks(self) -> bool:
        """Whether a row may also come to something else if a watermark that it is not behind arrives before it."""
        return False

    def depends_on_order(self) -> tuple[str, ...]:
        """Return what of its result depends on the order in which its rows and watermarks arrive; nothing if none does.

        Rows of one sender keep their order; those of different partitions and subtasks meet by chance.
        """
        return ()

    def delay_us(self) -> int:
        """Return how far the event times that it emits may lie behind the watermark of its input."""
        return 0

    # State

    def tables(self, given: Sequence[pa.Schema]) -> tuple[TableDraft, ...]:
        """Return its tables for inputs with these columns, one schema per port."""
        return ()

    def identity(self, column: Description) -> dict[str, Any]:
        """Return the identity of its state, as JSON-able values to store with a checkpoint.

        It also serves readers of the state: `times`, if present, lists the state columns that hold event times.
        """
        raise AssertionError(f"{self.kind} has no state")

    def compare(self, found: Found, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Record the differences between the identity `now` and the one that wrote the state."""
        raise AssertionError(f"{self.kind} has no state")

    def parts(self, before: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the parts of the state with this identity that can each be given up alone."""
        return ()

    def without(self, before: Mapping[str, Any], parts: Collection[str]) -> Mapping[str, Any]:
        """Return the identity without these parts."""
        assert not parts
        return before

    def continued(self, before: Mapping[str, Any], columns: Sequence[str]) -> Mapping[str, str]:
        """Return the former name of every column of its own table that continues one of the state with this identity.

        Args:
            columns: Names of the columns now.
        """
        return {name: name for name in columns}

    # Code

    def shape(self, schema: pa.Schema) -> dict[str, Any]:
        """Return the step as a part of a chain, as JSON-able values to store with a checkpoint.

        Args:
            schema: The columns of the output.
        """
        raise AssertionError(f"{self.kind} is not part of a chain")

    def code(self) -> list[str] | None:
        """Return texts that differ if the code of its functions differs; None if it calls none."""
        return None

    def busy_with(self) -> tuple[str, ...]:
        """Return the names of its Python functions, which a worker may mark as running."""
        return ()

    def leaves_out(self) -> bool:
        """Return whether on_error makes it leave out a row for which its function ends its process."""
        return False

    def rebound(self, other: Callable[[Function], Function]) -> Step:
        """Return the step with each of its functions replaced."""
        return self


class KeyedStep(Step):
    """A step with state per key, under the name that the job's code gave."""

    operator: str

    @property
    def name(self) -> str:
        return self.operator

    @property
    def counted_as(self) -> str:
        return "keyed"

    @property
    def stateful(self) -> bool:
        return True

    def depends_on_order(self) -> tuple[str, ...]:
        return (KEY_ORDER,)


@dataclass(frozen=True)
class Placed:
    """A step in its fragment, with its output stream (for sinks and exchanges: its input stream)."""

    id: int
    input: int
    step: Step
    schema: pa.Schema
    upsert_key: tuple[str, ...] | None
    also: tuple[int, ...] = ()
    """Further inputs of a step with several."""

    @property
    def inputs(self) -> tuple[int, ...]:
        """All inputs; the index is the port."""
        return (self.input, *self.also)


class Operator(ABC):
    """A step at work on one subtask. One thread uses it."""

    @abstractmethod
    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        """Take rows, at least one.

        Raises:
            JobFailed: a row cannot be computed or kept.
        """

    def on_watermark(self, at_us: int) -> None:
        """Advance event time to this point; emit the results that are due."""
        return

    def on_clock(self, now_us: int) -> bool:
        """Begin with some of the rows that are due at this processing time; return whether any are.

        Called again, between batches, until nothing is due; only if the step uses the clock.
        """
        return False

    def due_us(self) -> int | None:
        """Return the earliest processing time at which something is due; None if nothing ever is."""
        return None

    def on_barrier(self) -> None:
        """Emit the results of the epoch, or defer work that does; the tables are frozen afterwards."""
        return

    def progress(self) -> OperatorProgress | None:
        """Return the rows taken, emitted and left out since the deployment; None if it counts none."""
        return None


class Work(Protocol):
    """An operator that works on rows in pieces, because a Python function may be slow, or a row have much output."""

    name: str
    mark: str
    """The mark of a worker that runs it."""

    def some(self, batch: pa.RecordBatch, at: int, base: int) -> tuple[int, list[pa.RecordBatch]]:
        """Work on rows from the row `at` on; return their number, at least one, and their output."""


Leave = Callable[[pa.RecordBatch, int, int, str], None]
"""leave(batch, row, base, did): leave a row out, according to on_error; `did` describes the function's action."""


ROUNDS = pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.null(), 1 << 40, [None])], ["round"])
"""Rows for work in rounds, whose number is known after the last one: that takes all rows left. They need no memory."""


class OperatorContext(Protocol):
    """The environment of an operator."""

    job: str | None
    """Named in errors."""
    origin: RowOrigin
    placed: tuple[Placed, ...]
    """The steps that it carries out, in order; one, unless steps were fused."""
    given: pa.Schema
    """The columns of the input, without `_op`."""
    time_slice: TimeSlice
    arrival: Arrival
    aligned: bool
    """Whether input row i is record i of the arrival."""
    untouched: bool
    """Whether the input is records of a source as they were read."""

    @property
    def key_groups(self) -> KeyGroups:
        """The key groups of the job and of this subtask."""

    def table(self, name: str) -> StateTable:
        """Return the table of this name."""

    def needed(self, side: str = MAIN) -> frozenset[str]:
        """Return the columns needed after a side, without `_op`."""

    def wanted(self, side: str = MAIN) -> bool:
        """Return whether a step reads this side."""

    def emit(self, batch: pa.RecordBatch, side: str = MAIN) -> None:
        """Pass rows to all readers of a side."""

    def defer(self, work: Work, batch: pa.RecordBatch, leave: Leave | None = None) -> None:
        """Queue rows for work in pieces, now or in later turns; the results are emitted.

        Args:
            leave: Leaves out a row for which the function ends its process. None: the rows are not rows of a stream, or
                the operator cannot do without one.
        """

    def dead_letter(self, letter: DeadLetter) -> None:
        """Take a dead letter."""

    def send(self, edge: int, batch: pa.RecordBatch) -> None:
        """Send rows over an edge."""

    def write(self, sink: str, batch: pa.RecordBatch) -> None:
        """Pass rows to a sink."""


def needed_behind(
    readers: Sequence[tuple[int, Iterable[tuple[int, pa.Schema]], Step]],
) -> dict[int, dict[str, frozenset[str]]]:
    """Return the columns needed at each point, by side; sides without readers are absent.

    Args:
        readers: Steps in topological order: the point of the output, the points of the inputs with their columns, and
            the step.
    """
    columns_by_point: dict[int, dict[str, frozenset[str]]] = {}
    for point, inputs, step in reversed(readers):
        behind = columns_by_point.get(point, {})
        for port, (before, given) in enumerate(inputs):
            sides = columns_by_point.setdefault(before, {})
            reads = step.reads(port, given, behind)
            sides[step.reads_side] = sides.get(step.reads_side, frozenset()) | frozenset(reads)
    return columns_by_point


def in_order(names: Iterable[str], given: pa.Schema) -> tuple[str, ...]:
    """Return these columns in the order of the input; its first column if there are none.

    A batch without columns has no rows.
    """
    wanted = set(names)
    return tuple(name for name in given.names if name in wanted) or tuple(given.names[:1])
