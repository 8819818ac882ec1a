"""Rows as records in Avro: headers, deletes, sizes, and the registration of their schema."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import time
from typing import Any

import fastavro
import pyarrow as pa
import pytest
import registry_server
from registry_server import RegistryServer

import holdfast as hf
from holdfast.errors import ConfigError, Unavailable
from holdfast.sinks.contract.target import DELETE, OP, PUT
from holdfast.sinks.kafka.avro import AvroRows
from holdfast.sinks.kafka.avro_schema import derived
from holdfast.sinks.kafka.encoding import Encoding
from holdfast.sinks.kafka.enrolled import Enrolled, Header
from holdfast.sinks.kafka.target import listed
from holdfast.storage.kafka import registry
from holdfast.storage.kafka.registry import RegistryPlace

SCHEMA = pa.schema([pa.field("word", pa.utf8(), False), pa.field("rows", pa.int64(), False)])
AVSC = derived(SCHEMA, "Total")
LIBRARY = fastavro.parse_schema(json.loads(AVSC))


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server.running() as server:
        yield server


def encoding(server: RegistryServer | None = None, record_max: int = 1_000_000) -> Encoding:
    header = None if server is None else Header(enrolled(server))
    return Encoding("topic t", AvroRows(AVSC), ("word",), record_max, header)


def enrolled(server: RegistryServer, register: bool = True) -> Enrolled:
    return Enrolled(RegistryPlace(server.url), "t-value", AVSC, register)


def batch(*rows: tuple[Any, ...]) -> pa.RecordBatch:
    ops, words, counts = zip(*rows, strict=True)
    arrays = [pa.array(words, pa.utf8()), pa.array(counts, pa.int64()), pa.array(ops, pa.int8())]
    return pa.RecordBatch.from_arrays(arrays, names=["word", "rows", OP])


def read(value: bytes | None) -> Any:
    return None if value is None else fastavro.schemaless_reader(io.BytesIO(value), LIBRARY, None)


class TestRecords:
    def test_delete_records_have_no_value_even_if_their_columns_cannot_be_encoded(self) -> None:
        found = encoding().records(batch((PUT, "a", 1), (DELETE, "b", None), (PUT, "c", 3)))
        assert listed(found.keys or ()) == [b"a", b"b", b"c"]
        assert list(map(read, listed(found.values))) == [{"word": "a", "rows": 1}, None, {"word": "c", "rows": 3}]

    def test_begin_with_the_id_of_their_schema_which_is_asked_for_once(self, server: RegistryServer) -> None:
        server.add("other", '"int"')
        number = server.add("t-value", AVSC)
        found = encoding(server)
        for _ in range(2):
            [put, delete] = listed(found.records(batch((PUT, "a", 1), (DELETE, "b", None))).values)
            assert put is not None and put[:5] == b"\0" + number.to_bytes(4, "big") and delete is None
            assert read(put[5:]) == {"word": "a", "rows": 1}
        assert server.asked == ["POST /subjects/t-value"]

    def test_wait_for_a_registry_that_is_away(self, server: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(registry, "AWAY_S", 0.0)
        server.add("t-value", AVSC)
        found = encoding(server)
        server.stop()
        with pytest.raises(Unavailable, match="unreachable"):
            found.records(batch((PUT, "a", 1)))
        server.start()
        assert len(found.records(batch((PUT, "a", 1))).values) == 1

    def test_oversized_records_are_refused_also_in_lists(self) -> None:
        lists = pa.schema([pa.field("l", pa.list_(pa.utf8()))])
        small = Encoding("topic t", AvroRows(derived(lists, "L")), (), 1_000)
        small.accept(pa.RecordBatch.from_pylist([{"l": ["a" * 100]}], lists))
        with pytest.raises(ConfigError, match="as a record, the limit is 1,000"):
            small.accept(pa.RecordBatch.from_pylist([{"l": ["a" * 300] * 3}], lists))
        encoding(record_max=1_000).accept(batch((PUT, "a" * 100, 1)))

    def test_have_keys_with_the_forms_of_json(self) -> None:
        shares = pa.schema([pa.field("share", pa.float64(), False)])
        found = Encoding("topic t", AvroRows(derived(shares, "S")), ("share",), 1_000)
        found.accept(pa.RecordBatch.from_pylist([{"share": 0.5}], shares))
        with pytest.raises(ConfigError, match="'share' holds NaN or an infinity"):
            found.accept(pa.RecordBatch.from_pylist([{"share": float("nan")}], shares))
        lists = pa.schema([pa.field("l", pa.list_(pa.utf8()), False)])
        AvroRows(derived(lists, "L")).check("topic t", lists, ())
        with pytest.raises(ConfigError, match="the key column 'l' has type list"):
            AvroRows(derived(lists, "L")).check("topic t", lists, ("l",))


class TestNested:
    @pytest.mark.parametrize(
        ("kind", "written", "good", "bad"),
        [
            (pa.list_(pa.string()), {"type": "array", "items": "string"}, ["a"], ["a", None]),
            (pa.map_(pa.string(), pa.int64()), {"type": "map", "values": "long"}, [("a", 1)], [("a", None)]),
            (
                pa.struct([("z", pa.int64())]),
                {"type": "record", "name": "P", "fields": [{"name": "z", "type": "long"}]},
                {"z": 1},
                {"z": None},
            ),
        ],
    )
    def test_a_null_within_is_refused_with_its_row_where_the_schema_has_none(
        self, kind: pa.DataType, written: Any, good: Any, bad: Any
    ) -> None:
        avsc = json.dumps({"type": "record", "name": "R", "fields": [{"name": "x", "type": ["null", written]}]})
        schema = pa.schema([("x", kind)])
        values = AvroRows(avsc)
        values.check("topic t", schema, ())
        rows = pa.RecordBatch.from_arrays([pa.array([good, None], kind)], schema=schema)
        values.accept("topic t", rows)
        [first, second] = values.encode(rows)
        assert first is not None and second == b"\0"
        with pytest.raises(ConfigError, match=r"the column 'x.*' holds a null"):
            values.accept("topic t", pa.RecordBatch.from_arrays([pa.array([bad], kind)], schema=schema))

    def test_a_time_of_day_is_one_of_avro(self) -> None:
        schema = pa.schema([pa.field("at", pa.time64("us"), False)])
        avsc = derived(schema, "R")
        [value] = AvroRows(avsc).encode(pa.RecordBatch.from_pylist([{"at": time(9, 30, 0, 1)}], schema))
        assert value is not None
        read = fastavro.schemaless_reader(io.BytesIO(value), fastavro.parse_schema(json.loads(avsc)), None)
        assert read == {"at": time(9, 30, 0, 1)}


class TestRegistration:
    def test_is_done_at_the_start_and_again_changes_nothing(self, server: RegistryServer) -> None:
        enrolled(server).prepare()
        enrolled(server).prepare()
        enrolled(server, register=False).prepare()
        assert server.asked == ["POST /subjects/t-value/versions"] * 2 + ["POST /subjects/t-value"]

    def test_is_not_done_by_a_doctor_who_asks_the_registry(self, server: RegistryServer) -> None:
        enrolled(server).probe()
        with pytest.raises(ConfigError, match="does not have the schema of the sink's values"):
            enrolled(server, register=False).probe()
        server.broken = (500, b"no JSON")
        for register in (True, False):
            with pytest.raises(Unavailable, match="HTTP 500"):
                enrolled(server, register).probe()

    def test_is_asked_for_if_the_job_does_not_do_it(self, server: RegistryServer) -> None:
        with pytest.raises(ConfigError, match="does not have the schema of the sink's values under subject 't-value'"):
            enrolled(server, register=False).prepare()

    def test_is_refused_by_a_registry_that_finds_it_incompatible(self, server: RegistryServer) -> None:
        server.refuses = "rows is missing"
        with pytest.raises(ConfigError, match="rows is missing"):
            enrolled(server).prepare()


class TestSink:
    def test_refuses_a_stream_with_other_columns_when_planned(self) -> None:
        sink = hf.Kafka("broker.example:9092", "t", hf.Avro(SCHEMA, registry="https://registry.example")).sink()
        sink.check(pa.schema(list(reversed(list(SCHEMA)))), None)
        with pytest.raises(ConfigError, match="rows may be null"):
            sink.check(pa.schema([SCHEMA.field(0), pa.field("rows", pa.int64())]), None)
        given = hf.Kafka("broker.example:9092", "t", hf.Avro(avsc=AVSC)).sink()
        with pytest.raises(ConfigError, match="does not fit the schema of its values: the column 'rows' may be null"):
            given.check(pa.schema([SCHEMA.field(0), pa.field("rows", pa.int64())]), None)
