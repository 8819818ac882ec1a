"""The input of a fragment from its source: rows with exactly the planned columns. Other records are undecodable.

A record is undecodable if the source could not make a row of it, if it has a null where the job's schema allows none,
if a column has a value that it may not hold (storage/held_values.py) or that its field in the dataclass does not allow
(rows/nested/fields.py), or if no window or target can hold its event
time. The source's policy decides whether such a record fails the job, is left out, or becomes a dead letter. The
records around it are processed, and all are counted.

Invariants
    - Records in = rows out + dropped + dead letters.
    - Which records are refused depends on the records, never on how they were batched.

Pure.
Source: DESIGN section 6; API.md (a null elsewhere is an undecodable record).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import JobFailed, Where
from holdfast.runtime.operators.contract import Arrival
from holdfast.runtime.plan.model import SourceSpec
from holdfast.runtime.rows.dead_letters import ERROR, FORM, RAW, DeadLetter, Form, Letters, encode_row, reported
from holdfast.runtime.rows.expressions import ProjectedColumn
from holdfast.runtime.rows.schema import aliases_of, in_stream, limited
from holdfast.runtime.time.event_times import times_of
from holdfast.runtime.time.windows import micros_of, not_held, outside, times_in
from holdfast.runtime.wire.messages import OperatorProgress
from holdfast.storage.held_values import may_be_unheld, unheld, why


class Intake:
    """The input of one source, in one subtask.

    Args:
        schema: The columns that the fragment takes.
        letters: Where dead letters go.
        held: First and last event time that the job's windows and targets can hold.
    """

    def __init__(
        self, spec: SourceSpec, schema: pa.Schema, letters: Letters, held: tuple[int, int], job: str | None = None
    ) -> None:
        self.spec, self._schema, self._letters, self._held, self._job = spec, schema, letters, held, job
        self._not_null = [field.name for field in schema if not field.nullable]
        self._timed = [field.name for field in schema if may_be_unheld(field.type)]
        described = spec.source.row_type
        self._names, self._aliases = in_stream(described), aliases_of(described)
        self._limited = limited(described, schema)
        self.rows_in = self.rows_out = self.dropped = self.dlq = 0

    def take(self, batch: pa.RecordBatch, arrival: Arrival) -> tuple[pa.RecordBatch, Arrival]:
        """Return the rows to process, and which records they are.

        Raises:
            JobFailed: a record cannot be decoded, and the source's policy is "fail".
        """
        self.rows_in += batch.num_rows
        batch = self._renamed(batch)
        original_batch, batch = batch, self._normal(batch)
        if (column := self.spec.computed) is not None:
            batch = batch.append_column(column.field.with_nullable(True), self._times(column, batch))
        refused = self._refused(batch)
        if refused is not None:
            self._dispose(batch, original_batch, np.flatnonzero(refused), arrival)
            kept = np.flatnonzero(~refused)
            batch = batch.take(pa.array(kept))
            arrival = Arrival(arrival.partition, arrival.offset, arrival.following, False, _offsets(arrival, kept))
        self.rows_out += batch.num_rows
        if batch.schema != self._schema:
            columns = [batch.column(name) for name in self._schema.names]
            batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return batch, arrival

    def times(self, batches: Sequence[pa.RecordBatch]) -> list[NDArray[np.int64]] | None:
        """Return the event times of records that were not taken yet; None if they are not known for all.

        Those of records that will be refused are among them; a record without one has one that is before all others.
        """
        if self.spec.event_time is None or any(not batch.schema.equals(batches[0].schema) for batch in batches):
            return None
        name = self.spec.event_time
        if (column := self.spec.computed) is None:
            raw = self._aliases.get(name, name)
            return [times_in(batch, raw) for batch in batches]
        whole = self._normal(self._renamed(pa.concat_batches(batches)))
        times = pa.RecordBatch.from_arrays([self._times(column, whole)], [name])
        bounds = np.cumsum([batch.num_rows for batch in batches])[:-1]
        return np.split(times_in(times, name), bounds)

    def progress(self) -> OperatorProgress:
        """Return what was taken, emitted and refused since the deployment."""
        policy = self.spec.on_error
        dropped = self.dropped if policy == "drop" else None
        dlq = self.dlq if policy == "dlq" else None
        return OperatorProgress(self.spec.name, self.rows_in, self.rows_out, 0, dropped=dropped, dlq=dlq)

    def _renamed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._names:
            return batch
        return batch.rename_columns([self._names.get(name, name) for name in batch.schema.names])

    def _normal(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records with one form for equal values, and with the defaults of fields in nested dataclasses."""
        for name, kind in self._limited.items():
            column = batch.column(name)
            if (made := kind.normal(column)) is not column:
                place = batch.schema.get_field_index(name)
                batch = batch.set_column(place, batch.schema.field(place), made)
        return batch

    def _times(self, column: ProjectedColumn, batch: pa.RecordBatch) -> pa.Array:
        return times_of(column, batch, self.spec.name, self._job)

    def _refused(self, batch: pa.RecordBatch) -> NDArray[np.bool_] | None:
        """Return which records are undecodable; None if none are, the common case, which is cheap to check."""
        refused_mask: NDArray[np.bool_] | None = None
        if ERROR in batch.schema.names:
            refused_mask = batch.column(ERROR).is_valid().to_numpy(zero_copy_only=False)
        for name in self._not_null:
            column = batch.column(name)
            if column.null_count:
                nulls = column.is_null().to_numpy(zero_copy_only=False)
                refused_mask = nulls if refused_mask is None else refused_mask | nulls
        for name in self._timed:
            if (wrong := unheld(batch.column(name))) is not None:
                refused_mask = wrong if refused_mask is None else refused_mask | wrong
        for name, kind in self._limited.items():
            if (wrong := kind.wrong(batch.column(name))) is not None:
                refused_mask = wrong if refused_mask is None else refused_mask | wrong
        if self.spec.event_time is not None:
            column = batch.column(self.spec.event_time)
            if (wrong := outside(micros_of(column), self._held)) is not None:
                wrong &= column.is_valid().to_numpy(zero_copy_only=False)  # nulls were found above
                refused_mask = wrong if refused_mask is None else refused_mask | wrong
        return refused_mask if refused_mask is not None and refused_mask.any() else None

    def _dispose(self, batch: pa.RecordBatch, given: pa.RecordBatch, rows: NDArray[np.intp], arrival: Arrival) -> None:
        name, policy = self.spec.name, self.spec.on_error
        if policy == "drop":
            self.dropped += len(rows)
            return
        for row in rows.tolist():
            error, form, raw = self._why(batch, given, row)
            offset = arrival.offset_of(row)
            if policy == "fail":
                raise self._failed(error, arrival, offset)
            self._letters.add(DeadLetter(name, name, arrival.partition, offset, reported(error), form, raw))
        self.dlq += len(rows)

    def _why(self, batch: pa.RecordBatch, given: pa.RecordBatch, row: int) -> tuple[str, Form, bytes]:
        if ERROR in batch.schema.names and (error := batch.column(ERROR)[row].as_py()) is not None:
            return error, batch.column(FORM)[row].as_py(), batch.column(RAW)[row].as_py()
        computed_name = None if self.spec.computed is None else self.spec.computed.name
        record = given.select([name for name in given.schema.names if name not in (ERROR, FORM, RAW)])
        if self._aliases:
            record = record.rename_columns([self._aliases.get(name, name) for name in record.schema.names])
        null = next((name for name in self._not_null if not batch.column(name)[row].is_valid), None)
        if null is not None and null == computed_name:
            error = f"the event time {null!r} is null: a column that it is computed from is"
            return error, "record", encode_row(record, row)
        if null is not None:
            return f"column {null!r} is null, which the job's schema does not allow", "record", encode_row(record, row)
        for name in self._timed:
            if name != self.spec.event_time and unheld(batch.column(name).slice(row, 1)) is not None:
                return why(name, batch.column(name)[row]), "record", encode_row(record, row)
        for name, kind in self._limited.items():
            value = batch.column(name)[row].as_py()
            if value is not None and (unfit := kind.reason(value)) is not None:
                return unfit.of(name), "record", encode_row(record, row)
        time = self.spec.event_time
        assert time is not None
        return f"column {time!r}: {not_held(batch.column(time)[row].value)}", "record", encode_row(record, row)

    def _failed(self, error: str, arrival: Arrival, offset: int | None) -> JobFailed:
        name = self.spec.name
        at = f" at offset {offset}" if offset is not None else ""
        return JobFailed(
            f"source {name!r}: the record{at} of partition {arrival.partition} cannot be decoded: {error}",
            not_done="the epoch was not completed; state and output stay as of the last checkpoint",
            next_step='send such records to a dead letter queue, hf.App(..., dlq=hf.Log("data/dead")), or leave '
            'them out with app.source(..., on_error="drop"); then run the job again, which resumes from the last '
            "checkpoint",
            where=Where(job=self._job, operator=name, source=name, partition=arrival.partition, offset=offset),
        )


def _offsets(arrival: Arrival, rows: NDArray[np.intp]) -> NDArray[np.int64] | None:
    """Return the offset of each of these records, None if unknown."""
    if arrival.offsets is not None:
        return arrival.offsets[rows]
    if not arrival.contiguous or arrival.offset is None:
        return None
    return (rows + arrival.offset).astype(np.int64)
