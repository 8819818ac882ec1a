"""One fragment at run time: batches go in, batches come out at its exchanges and sinks.

Between two barriers rows flow through the steps batch by batch. At a barrier every aggregate gives the last values of
the keys that changed in the epoch, before the loop freezes the tables, and these rows take the same way.

Consecutive filters and projections run as one Polars call. What several steps read is computed once. A Python function
is told nothing of this; it gets rows, and they wait in `backlog` if the turn is over before it is through.

Invariants
    - Rows of one input batch leave in their order; an epoch's results leave at its barrier, never later.
    - Only columns that a later step needs are computed or sent.
    - A batch without rows changes nothing and sends nothing.
    - While `backlog` holds rows nothing else enters; its owner calls `backlog.go_on` until it holds none.

Pure: the tables and what becomes of the output belong to the caller.
Source: DESIGN section 4 (steps 2 to 4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from holdfast.runtime.dead_letters import Form, Letters
from holdfast.runtime.messages import OperatorProgress
from holdfast.runtime.operators.aggregate import AggregateOperator
from holdfast.runtime.operators.backlog import Backlog
from holdfast.runtime.operators.checks import checking, relabelling
from holdfast.runtime.operators.functions import Arrival, FunctionOperator
from holdfast.runtime.operators.stateless import OP_FIELD, Chain, Origin
from holdfast.runtime.operators.window import KeyGroups, WindowOperator
from holdfast.runtime.steps import (
    INPUT,
    Aggregate,
    Call,
    Check,
    Exchange,
    Filter,
    Fragment,
    Late,
    Project,
    SinkStep,
    Step,
    Union,
    WindowAggregate,
)
from holdfast.runtime.turns import Turn
from holdfast.state.table import Table

Consumer = Callable[[pa.RecordBatch], None]


Send = Callable[[int, pa.RecordBatch], None]
"""send(edge, rows): takes all rows of an edge, whatever subtask they belong to."""
Write = Callable[[str, pa.RecordBatch], None]
"""write(sink, rows)."""


class FragmentRuntime:
    """The steps of one fragment, ready to run on the operator thread.

    Args:
        tables: One table per aggregate of the fragment, by operator name; windows also have one for their clock.
        job: Named in errors.
        key_groups: Those of the job, and which of them this subtask owns.
        letters: Takes the dead letters of functions.
    """

    def __init__(
        self,
        fragment: Fragment,
        tables: Mapping[str, Table],
        send: Send,
        write: Write,
        job: str | None = None,
        key_groups: KeyGroups | None = None,
        letters: Letters | None = None,
        turn: Turn | None = None,
    ) -> None:
        self._key_groups = key_groups
        self.letters = letters or Letters()
        self._tables, self._send, self._write, self._job = tables, send, write, job
        self._readers: dict[int, list[Step]] = {}
        for step in fragment.steps:
            for point in (step.input, *step.also):
                self._readers.setdefault(point, []).append(step)
        self._steps = {step.id: step for step in fragment.steps}
        self._arrival = Arrival()
        self._turn = turn or Turn()
        self.backlog = Backlog(self._turn)
        self._functions: list[FunctionOperator] = []
        self._unions: dict[int, tuple[list[Consumer], frozenset[str]]] = {}
        self._aggregates: list[tuple[AggregateOperator, list[Consumer]]] = []
        self._windows: list[WindowOperator] = []
        self._consumers = self._consumers_of(INPUT, fragment.schema, Origin(job, fragment.source))[0]

    def on_batch(self, batch: pa.RecordBatch, arrival: Arrival | None = None) -> None:
        """Take rows from the source or edge.

        Args:
            arrival: Which records of a source these are, for errors.

        Raises:
            JobFailed: an expression cannot be computed, a sum overflows, or a function fails.
        """
        if batch.num_rows:
            assert not self.backlog
            self._arrival.take(arrival or Arrival())
            _give(self._consumers, batch)
            self.backlog.go_on()

    def on_barrier(self) -> None:
        """Give the results of the epoch; the tables are not frozen yet.

        Raises:
            JobFailed: an expression cannot be computed, or a function fails.
        """
        assert not self.backlog, "a barrier passes no row"
        self._arrival.take(Arrival())
        for aggregate, consumers in self._aggregates:
            if consumers and (changes := aggregate.changes()) is not None:
                _give(consumers, changes)
        for window in self._windows:
            window.note_clock()

    def on_watermark(self, at_us: int) -> None:
        """Event time has come this far: windows close.

        Raises:
            JobFailed: an expression cannot be computed, or a function fails.
        """
        self._arrival.take(Arrival())
        for window in self._windows:
            window.advance(at_us)
        self.backlog.go_on()

    def progress(self) -> list[OperatorProgress]:
        """Return what every operator has taken, given and left out since it was deployed."""
        return [
            *(o.progress() for o in self._functions),
            *(OperatorProgress(o.name, o.rows_in, o.rows_out, 0) for o, _ in self._aggregates),
            *(OperatorProgress(o.name, o.rows_in, o.rows_out, 0, late=o.late) for o in self._windows),
        ]

    def _consumers_of(self, point: int, schema: pa.Schema, origin: Origin) -> tuple[list[Consumer], frozenset[str]]:
        """Return what takes the rows that leave `point`, and the columns needed there, without `_op`."""
        consumers: list[Consumer] = []
        needed: frozenset[str] = frozenset()
        for step in self._readers.get(point, []):
            consumer, reads = self._consumer(step, schema, origin)
            if consumer is not None:
                consumers.append(consumer)
                needed |= reads
        return consumers, needed

    def _consumer(self, step: Step, schema: pa.Schema, origin: Origin) -> tuple[Consumer | None, frozenset[str]]:
        match step.kind:
            case SinkStep(sink=sink):
                # A pushed-down projection may have left columns out of order; sinks take exactly the stream's.
                names = [*step.schema.names, *([OP_FIELD.name] if step.upsert_key is not None else [])]
                return _selecting(names, lambda batch: self._write(sink, batch)), frozenset(step.schema.names)
            case Exchange(edge=edge, columns=columns):
                return _selecting(list(columns), lambda batch: self._send(edge, batch)), frozenset(columns)
            case Aggregate() as aggregate:
                operator = AggregateOperator(aggregate, step.schema, self._tables[aggregate.operator], self._job)
                behind = Origin(self._job, None, aggregate.operator)
                self._aggregates.append((operator, self._consumers_of(step.id, step.schema, behind)[0]))
                return operator.update, operator.reads
            case WindowAggregate() as aggregate:
                return self._window(step, aggregate)
            case Late():
                return None, frozenset()  # fed by the window that it stands behind
            case Filter() | Project():
                return self._chain(step, schema, origin)
            case Call() as call:
                return self._call(step, call, schema, origin)
            case Check() as check:
                consumers, needed = self._consumers_of(step.id, step.schema, origin)
                return checking(check, step, needed, origin, _to(consumers)), needed | set(check.not_null)
            case Union():
                return self._union(step, origin)

    def _call(
        self, step: Step, call: Call, schema: pa.Schema, origin: Origin
    ) -> tuple[Consumer | None, frozenset[str]]:
        consumers, _ = self._consumers_of(step.id, step.schema, origin)
        if not consumers:
            return None, frozenset()
        untouched = step.input == INPUT and origin.source is not None
        letters: tuple[Letters, Form] = self.letters, "record" if untouched else "row"
        aligned = self._one_to_one(step.input)
        operator = FunctionOperator(call, schema, step.schema, origin, self._arrival, aligned, letters, self._turn)
        self._functions.append(operator)
        give = _to(consumers)
        return lambda batch: self.backlog.add(operator, give, batch), frozenset(schema.names)

    def _one_to_one(self, point: int) -> bool:
        """Say whether every row at this point is the record of the same number that entered."""
        while point != INPUT:
            step = self._steps[point]
            match step.kind:
                case Project() | Check() | Call(how="map", on_error="fail"):
                    point = step.input
                case _:
                    return False
        return True

    def _union(self, step: Step, origin: Origin) -> tuple[Consumer | None, frozenset[str]]:
        """Return what takes the rows of one input; what lies behind is built once and shared by all of them."""
        if step.id not in self._unions:
            self._unions[step.id] = self._consumers_of(step.id, step.schema, origin)
        consumers, needed = self._unions[step.id]
        if not consumers:
            return None, frozenset()
        return relabelling([field for field in step.schema if field.name in needed], _to(consumers)), needed

    def _window(self, step: Step, aggregate: WindowAggregate) -> tuple[Consumer, frozenset[str]]:
        assert self._key_groups is not None
        behind = Origin(self._job, None, aggregate.operator)
        results = self._consumers_of(step.id, step.schema, behind)[0]
        late: list[Consumer] = []
        wanted: frozenset[str] = frozenset()
        for reader in self._readers.get(step.id, []):
            if isinstance(reader.kind, Late):
                late += self._consumers_of(reader.id, reader.schema, behind)[0]
                wanted |= frozenset(reader.schema.names) if late else frozenset()
        operator = WindowOperator(
            aggregate, step.schema, step.upsert_key is not None, self._tables, self._key_groups, self._job,
            lambda batch: _give(results, batch), (lambda batch: _give(late, batch)) if late else None,
        )  # fmt: skip
        self._windows.append(operator)
        return operator.update, operator.reads | wanted

    def _chain(self, first: Step, schema: pa.Schema, origin: Origin) -> tuple[Consumer | None, frozenset[str]]:
        steps = [first]
        while [type(step.kind) for step in self._readers.get(steps[-1].id, [])] in ([Filter], [Project]):
            steps.append(self._readers[steps[-1].id][0])
        consumers, needed = self._consumers_of(steps[-1].id, steps[-1].schema, origin)
        if not consumers:
            return None, frozenset()
        chain = Chain(steps, needed, schema, origin)

        def run(batch: pa.RecordBatch) -> None:
            result = chain.run(batch)
            if result is not None:
                _give(consumers, result)

        return run, chain.reads


def _to(consumers: list[Consumer]) -> Consumer:
    return lambda batch: _give(consumers, batch)


def _give(consumers: list[Consumer], batch: pa.RecordBatch) -> None:
    for consumer in consumers:
        consumer(batch)


def _selecting(names: list[str], consumer: Consumer) -> Consumer:
    def take(batch: pa.RecordBatch) -> None:
        consumer(batch if batch.schema.names == names else batch.select(names))

    return take
