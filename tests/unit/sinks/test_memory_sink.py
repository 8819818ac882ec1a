from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.errors import ConfigError
from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.sinks.memory.sink import MemorySink

SCHEMA = pa.schema([pa.field("user", pa.int64())])


class TestMemorySink:
    def test_rows_that_were_read_do_not_change_later(self) -> None:
        sink = MemorySink()
        target = sink.open("job", Writer("out", Subtask(0)))
        batch = pa.RecordBatch.from_pylist([{"user": 1}], schema=SCHEMA)
        target.deliver(Tag(Timeline(1), Epoch(1)), [batch])
        seen = sink.rows()
        target.deliver(Tag(Timeline(1), Epoch(2)), [batch])
        assert (seen, len(sink.rows())) == ([{"user": 1}], 2)

    def test_a_second_stream_needs_the_same_columns(self) -> None:
        sink = MemorySink()
        sink.prepare(SCHEMA, None)
        with pytest.raises(ConfigError, match="a sink of its own"):
            sink.prepare(pa.schema([pa.field("other", pa.int64())]), None)

    def test_a_nan_in_a_key_is_refused_as_by_a_table(self) -> None:
        schema = pa.schema([("x", pa.float64())])
        with pytest.raises(ConfigError, match="no value in the key column 'x'"):
            MemorySink(["x"]).accept(pa.RecordBatch.from_pylist([{"x": float("nan")}], schema=schema))
