"""`stream.show(n)`: the first rows of a stream, computed in this process from the input that is there now.

The steps up to the stream run on the workers of the TestDriver, in memory: no root is written, no target, no process
is started. So a look at a stream changes nothing, and all rows that are there are read: the input has to be bounded and
small.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import polars as pl
import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.quantities import plural
from holdfast.runtime.api.app import App
from holdfast.runtime.operators.sink import SinkStep
from holdfast.runtime.plan.graph import FromSource, Graph, Node
from holdfast.runtime.plan.source import OFFSETS, Source
from holdfast.runtime.rows.dead_letters import ERROR, FORM, RAW
from holdfast.runtime.testing.driver import TestDriver
from holdfast.sinks.memory.sink import MemorySink

INPUT_BYTES_MAX = 256 << 20
"""Bytes of all input as columns."""
READ_BYTES = 8 << 20
_SINK = "shown"


def text_of(graph: Graph, node: Node, rows_max: int) -> str:
    """Return the first rows of a stream as a table.

    Raises:
        ConfigError: a source has no end, or too much input.
        HoldfastError: a source cannot be read, or a step fails on a row.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-show-") as folder:
        wanted = _upstream(node)
        sources = {each.kind.name: each.kind for each in wanted if isinstance(each.kind, FromSource)}
        tables = {name: _read(name, kind.source, kind.on_error, folder) for name, kind in sources.items()}
    with TestDriver(_app(graph, node, wanted), parallelism=1) as driver:
        for name, parts in tables.items():
            driver.sources[name].hold(parts)
        driver.finish()
        rows = driver.rows(_SINK)
    first_rows = pa.Table.from_pylist([{n: row[n] for n in node.schema.names} for row in rows[:rows_max]], _loose(node))
    frame = pl.from_arrow(first_rows)
    assert isinstance(frame, pl.DataFrame)
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=False):
        return f"{frame}\n{first_rows.num_rows:,} of {plural(len(rows), 'row')}"


def _loose(node: Node) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in node.schema])


def _upstream(node: Node) -> list[Node]:
    """Return a node and all that it reads, in their order."""
    nodes_by_number, waiting = {node.number: node}, [node]
    while waiting:
        for before in waiting.pop().inputs:
            if before.number not in nodes_by_number:
                nodes_by_number[before.number] = before
                waiting.append(before)
    return [nodes_by_number[number] for number in sorted(nodes_by_number)]


def _app(graph: Graph, node: Node, wanted: list[Node]) -> App:
    """Return an app that ends at the stream."""
    app = App(graph.app, dlq=None if graph.dlq is None else MemorySink())
    sink = MemorySink(key=node.upsert_key)
    step = Node(node.number + 1, node, SinkStep(_SINK), node.stream, node.schema, node.upsert_key)
    app.continue_from(replace(graph, nodes=[*wanted, step], sinks={_SINK: sink}, dlq=app.dlq))
    return app


def _read(name: str, source: Source, on_error: str, folder: str) -> list[pa.Table]:
    """Return all records of a source that are there, a table per partition."""
    if (endless := source.traits.endless) is not None and not source.traits.paced:
        raise _refused(f"source {name!r} is {endless.what}, which has no end to read to", endless.instead)
    if endless is not None:
        raise _refused(f"source {name!r} has no end to read to", "give it an end, or read it in a run: app.run()")
    if source.traits.copied:
        source = source.in_folder(folder).copied(again=True)
    with closing(source.unpaced().open()) as open_source:
        ends, left, tables = open_source.end_offsets(), INPUT_BYTES_MAX, list[pa.Table]()
        for partition in open_source.partitions():
            batches, at = list[pa.RecordBatch](), open_source.retention_start(partition)
            while at < ends.get(partition, at):
                batch, following = open_source.read(partition, at, READ_BYTES)
                if batch is not None:
                    batches += _decoded(name, batch, on_error, source.schema)
                    left -= batch.nbytes
                if left < 0:
                    raise _refused(
                        f"source {name!r} has more than {INPUT_BYTES_MAX >> 20} MiB of input",
                        "run the job, with a sink such as hf.Collect(): app.run(once=True)",
                    )
                if following == at:
                    break
                at = following
            tables.append(pa.Table.from_batches(batches, source.schema))
    return tables


def _decoded(name: str, batch: pa.RecordBatch, on_error: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the records that could be decoded; fail at others if the source's policy does."""
    if ERROR in batch.schema.names:
        errors = batch.column(ERROR)
        if on_error == "fail" and (row := errors.is_valid().index(True).as_py()) >= 0:
            raise _refused(f"source {name!r}: a record cannot be decoded: {errors[row]}", 'give on_error="drop"')
        batch = batch.filter(errors.is_null())
    batch = batch.select([each for each in batch.schema.names if each not in (ERROR, FORM, RAW, OFFSETS)])
    yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _refused(what: str, next_step: str) -> ConfigError:
    return ConfigError(f"show: {what}", not_done="no row was computed", next_step=next_step)
