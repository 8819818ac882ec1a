"""Replaces the values of text columns of an incident by pseudonyms, in records, state and rows.

All distinct values are sorted, and each becomes `redacted-` and its number: equal values stay equal, also between
columns, and their order stays, also among bytes. Empty text and nulls stay.

Invariants
    - No byte of a replaced value is in the result, where it is text of its own or where it might be part of another.
    - A column that depends on the values in any other way than as a copy is refused, with its operator and name.
    - The result has the digests of its own rows: a digest of the original rows would betray short values.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.checkpoint.audit import Audit, SinkStaged
from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import ConfigError, Where
from holdfast.model import NO_EPOCH, Subtask, Writer
from holdfast.runtime.plan.model import Plan, SinkSpec
from holdfast.runtime.replay.incidents.incident import Incident, TakenCheckpoint
from holdfast.runtime.replay.incidents.recorded import TakenPartition
from holdfast.runtime.replay.incidents.states import KEY, VALUE
from holdfast.runtime.replay.incidents.taints import Taint, Taints
from holdfast.runtime.rows.dead_letters import RAW
from holdfast.sinks.protocol.staging import audited

NOT_WRITTEN = "no file was written, and the job was only read"
PREFIX = "redacted-"
Batches = tuple[pa.RecordBatch, ...]


@dataclass(frozen=True)
class Pseudonyms:
    """One for each value.

    Args:
        values: Sorted by their bytes, without the empty one.
    """

    values: pa.Array

    @classmethod
    def of(cls, columns: Iterable[pa.Array]) -> Pseudonyms:
        """Return pseudonyms for all values of these columns."""
        every = [pc.unique(each.cast(pa.large_binary())) for each in columns]
        distinct = pc.unique(pa.concat_arrays([pa.array([], pa.large_binary()), *every])).drop_null()
        distinct = distinct.filter(pc.not_equal(distinct, pa.scalar(b"", pa.large_binary())))
        return cls(distinct.take(pc.sort_indices(distinct)))

    def replaced(self, column: pa.Array) -> pa.Array:
        """Return a column with pseudonyms for its values, which are all known."""
        given = column.cast(pa.large_binary())
        places = pc.index_in(given, self.values)
        empty = pc.equal(given, pa.scalar(b"", pa.large_binary()))
        places = pc.if_else(empty, pa.scalar(len(self.values), pa.int32()), places)
        assert places.null_count == column.null_count, "a value has no pseudonym"
        return self._names.take(places).cast(column.type)

    @cached_property
    def _names(self) -> pa.Array:
        """The pseudonyms, and behind them the empty text."""
        width = len(str(len(self.values)))
        names = [f"{PREFIX}{number:0{width}}" for number in range(len(self.values))]
        return pa.array([*names, ""], pa.large_string())


def redacted(incident: Incident, plan: Plan, columns: Sequence[str]) -> Incident:
    """Return an incident with pseudonyms for the values of columns of its sources.

    Raises:
        ConfigError: no source has such a column, it is not text, or a column of state depends on it.
    """
    taints = Taints(plan, _by_source(incident, plan, columns))
    _refuse_undecoded(incident)
    holding = _Kept(incident, plan, taints)
    names = Pseudonyms.of(holding.values())
    start = None if incident.start is None else holding.checkpoint(incident.start, names)
    rows = {spec.name: holding.rows(spec, names) for spec in plan.sinks if spec.name in incident.rows}
    end = holding.checkpoint(incident.end, names)
    end = replace(end, manifest=_with_digests(end.manifest, plan.sinks, rows))
    records = tuple(holding.partition(each, names) for each in incident.input)
    return replace(incident, start=start, end=end, input=records, rows=rows, redacted=tuple(columns))


def with_digests_of(incident: Incident, other: Audit | None) -> Incident:
    """Return a redacted incident with its replay's digests of records, as those of the job are of other values."""
    audit = incident.end.manifest.audited
    if audit is None or other is None:
        return incident
    known = {each.writer.sink for each in audit.sinks}
    sinks = (*audit.sinks, *(each for each in other.sinks if each.writer.sink not in known))
    manifest = msgspec.structs.replace(
        incident.end.manifest, audit=msgspec.structs.replace(audit, sources=other.sources, sinks=sinks)
    )
    return replace(incident, end=replace(incident.end, manifest=manifest))


class _Kept:
    """The columns of an incident that have the values.

    Raises:
        ConfigError: a column depends on them in another way.
    """

    def __init__(self, incident: Incident, plan: Plan, taints: Taints) -> None:
        self._incident, self._taints = incident, taints
        self._sources = {spec.name: spec for spec in plan.sources}
        self._sinks = {spec.name: spec for spec in plan.sinks}
        at = [each for each in (incident.start, incident.end) if each is not None]
        self._state = {
            (operator.name, name)
            for each in at
            for operator in each.manifest.operators
            if operator.name in each.state and not operator.dropped
            for name in self._of_state(each, operator.name)
        }
        if incident.only is not None and any(name.startswith(KEY) for _, name in self._state):
            raise _refused(
                incident,
                "a redacted column is part of the key, and --key keeps the key group of its true value",
                "leave --key out, or leave that column unredacted",
            )

    def values(self) -> Iterator[pa.Array]:
        """Yield all columns with the values."""
        for partition in self._incident.input:
            for read, _ in partition.reads:
                if read.batch is not None:
                    names = self._taints.of_source(partition.at.source)
                    yield from (read.batch.column(name) for name in names if name in read.batch.schema.names)
        for at in (self._incident.start, self._incident.end):
            for operator, table in ({} if at is None else at.state).items():
                for name in table.schema.names:
                    if (operator, name) in self._state:
                        yield from table.column(name).chunks
        for sink, batches in self._incident.rows.items():
            for name in self._of_sink(sink):
                yield from (batch.column(name) for batch in batches)

    def partition(self, of: TakenPartition, names: Pseudonyms) -> TakenPartition:
        """Return records with pseudonyms."""
        batches = [piece.batch for piece, _ in of.reads if piece.batch is not None]
        fresh = iter(_replaced(batches, self._taints.of_source(of.at.source), names))
        reads = (
            (piece if piece.batch is None else replace(piece, batch=next(fresh), token=None), watermark)
            for piece, watermark in of.reads
        )
        return replace(of, reads=tuple(reads))

    def checkpoint(self, at: TakenCheckpoint, names: Pseudonyms) -> TakenCheckpoint:
        """Return a checkpoint whose state has pseudonyms, without the texts of the code and its digests."""
        state = {operator: self._table(operator, table, names) for operator, table in at.state.items()}
        manifest = msgspec.structs.replace(at.manifest, shape=msgspec.UNSET)
        return replace(at, manifest=manifest, state=state)

    def rows(self, spec: SinkSpec, names: Pseudonyms) -> Batches:
        """Return the rows of a sink with pseudonyms."""
        columns = self._of_sink(spec.name)
        return tuple(_replaced(self._incident.rows[spec.name], columns, names))

    def _table(self, operator: str, table: pa.Table, names: Pseudonyms) -> pa.Table:
        columns = [name for name in table.schema.names if (operator, name) in self._state]
        if not columns:
            return table
        return pa.Table.from_batches(_replaced(table.to_batches(), columns, names))

    def _of_state(self, at: TakenCheckpoint, name: str) -> Iterator[str]:
        operator = next(each for each in at.manifest.operators if each.name == name and not each.dropped)
        for field in at.state[name].schema:
            if field.name.startswith(KEY):
                taint = self._taints.of_key(operator, field.name.removeprefix(KEY), field.type)
            else:
                taint = self._taints.of_value(operator, field.name.removeprefix(VALUE), field.type)
            if taint is Taint.COMPUTED:
                raise self._hidden(f"column {field.name.partition('/')[2]!r} in the state of operator {name!r}", name)
            if taint is Taint.COPY:
                yield field.name

    def _of_sink(self, sink: str) -> list[str]:
        taints = self._taints.of_sink(sink)
        for name, taint in taints.items():
            if taint is Taint.COMPUTED and self._holds_text(sink, name):
                raise self._hidden(f"column {name!r} of sink {sink!r}", None)
        return [name for name, taint in taints.items() if taint is Taint.COPY]

    def _holds_text(self, sink: str, name: str) -> bool:
        kind = self._sinks[sink].schema.field(name).type
        return not (pa.types.is_primitive(kind) or pa.types.is_decimal(kind))

    def _hidden(self, column: str, operator: str | None) -> ConfigError:
        return ConfigError(
            f"{column} is made of a redacted column and may hold its values in a form that cannot be replaced",
            not_done=NOT_WRITTEN,
            next_step="write the file without --redact where it may be read, or choose an epoch without that state",
            where=Where(job=self._incident.job, operator=operator),
        )


def _by_source(incident: Incident, plan: Plan, columns: Sequence[str]) -> dict[str, Collection[str]]:
    for column in columns:
        having = [spec for spec in plan.sources if column in spec.source.schema.names]
        if not having:
            known = ", ".join(f"{spec.name}: {', '.join(spec.source.schema.names)}" for spec in plan.sources)
            raise _refused(incident, f"no source has a column {column!r}", f"columns are {known}")
        for spec in having:
            kind = spec.source.schema.field(column).type
            if not is_text(kind):
                raise _refused(
                    incident,
                    f"column {column!r} of source {spec.name!r} is {kind}: only text and bytes can be redacted, since "
                    "sums and comparisons of other numbers would give other results",
                    "leave it, or remove it from the source in a copy of the job",
                )
    return {spec.name: [each for each in columns if each in spec.source.schema.names] for spec in plan.sources}


def _refuse_undecoded(incident: Incident) -> None:
    """Refuse records that could not be decoded, whose bytes are in the file as they came."""
    for partition in incident.input:
        for piece, _ in partition.reads:
            names = () if piece.batch is None else piece.batch.schema.names
            if RAW in names:
                at = partition.at
                raise _refused(
                    incident,
                    f"partition {at.partition} of source {at.source!r} has records before offset {piece.following:,} "
                    "that cannot be decoded, and their bytes cannot be redacted",
                    "choose another epoch, or write the file without --redact where it may be read",
                )


def _with_digests(manifest: Manifest, sinks: Iterable[SinkSpec], rows: Mapping[str, Batches]) -> Manifest:
    """Return a manifest with the digests of rows with pseudonyms; those of others are left out."""
    audit = manifest.audited
    if audit is None:
        return manifest
    given = ((spec, pa.Table.from_batches(rows[spec.name])) for spec in sinks if spec.name in rows)
    digests = {spec.name: audited(table, spec.upsert_key) for spec, table in given}
    staged = tuple(SinkStaged(Writer(sink, Subtask(0)), (digest,)) for sink, digest in sorted(digests.items()))
    return msgspec.structs.replace(manifest, audit=Audit((), staged, (), (), NO_EPOCH))


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of a type are text or bytes."""
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(text or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _replaced(
    batches: Sequence[pa.RecordBatch], columns: Collection[str], names: Pseudonyms
) -> Iterator[pa.RecordBatch]:
    """Yield batches with pseudonyms; one look-up serves the values of all batches."""
    fresh = {}
    for name in columns if batches else ():
        fresh[name] = names.replaced(pa.concat_arrays([batch.column(name) for batch in batches]))
    first = 0
    for batch in batches:
        arrays = [
            fresh[name].slice(first, batch.num_rows) if name in fresh else array
            for name, array in zip(batch.schema.names, batch.columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=batch.schema)
        first += batch.num_rows


def _refused(incident: Incident, what: str, next_step: str) -> ConfigError:
    return ConfigError(what, not_done=NOT_WRITTEN, next_step=next_step, where=Where(job=incident.job))
