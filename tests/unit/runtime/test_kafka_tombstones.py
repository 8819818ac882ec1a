"""Records without a value as rows that delete: forms of keys, what is refused, and a topic that is read as a table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from kafka_server import KafkaServer
from patience import wait

import holdfast as hf
from holdfast.runtime.config.settings import CONTINUOUS
from holdfast.runtime.formats.json_lines import JsonLines
from holdfast.runtime.sources.kafka.tombstones import Tombstones
from holdfast.runtime.testing.cluster import Cluster
from holdfast.sinks.json_values.rows import keys_of
from holdfast.sinks.memory.sink import MemorySink
from holdfast.storage.objects import MemoryObjects

HOST = "broker.example:9092"
KEYS = [
    pytest.param([("k", pa.utf8())], ['ü "quoted"'], id="text"),
    pytest.param([("k", pa.binary())], [b"\xff\x00"], id="bytes"),
    pytest.param([("k", pa.int64())], [(1 << 62) + 1], id="integer"),
    pytest.param([("k", pa.bool_())], [True], id="bool"),
    pytest.param([("a", pa.utf8()), ("b", pa.int64())], ["x", -7], id="two columns"),
]


def tombstones(*columns: tuple[str, pa.DataType]) -> Tombstones:
    return Tombstones([pa.field(*column) for column in columns])


class TestKeys:
    @pytest.mark.parametrize(("columns", "row"), KEYS)
    def test_keys_written_by_a_sink_give_the_columns_and_the_mark(
        self, columns: list[tuple[str, pa.DataType]], row: list[Any]
    ) -> None:
        schema = pa.schema(columns)
        batch = pa.RecordBatch.from_arrays(
            [pa.array([value], kind) for value, (_, kind) in zip(row, columns, strict=True)], schema=schema
        )
        (key,) = keys_of(batch, tuple(schema.names))
        marked = schema.append(pa.field("holdfast_deleted", pa.bool_()))
        found, refused = JsonLines(marked).decode([tombstones(*columns).value(key)])
        assert refused == {}
        assert found.to_pylist() == [dict(zip(schema.names, row, strict=True)) | {"holdfast_deleted": True}]

    @pytest.mark.parametrize(
        ("columns", "key"),
        [
            ([("k", pa.utf8())], None),
            ([("k", pa.utf8())], b"\xff"),
            ([("k", pa.int64())], b'1, "n": 5'),
            ([("k", pa.int64())], b""),
            ([("a", pa.utf8()), ("b", pa.int64())], b'"x"'),
            ([("a", pa.utf8()), ("b", pa.int64())], b"[" * 100_000),
        ],
    )
    def test_keys_of_another_form_give_no_value(
        self, columns: list[tuple[str, pa.DataType]], key: bytes | None
    ) -> None:
        assert tombstones(*columns).value(key) is None

    def test_give_nothing_but_their_columns(self) -> None:
        found = tombstones(("a", pa.utf8()), ("b", pa.int64())).value(b'{"b": 1, "n": 5, "holdfast_deleted": false}')
        assert found is not None and json.loads(found) == {"b": 1, "holdfast_deleted": True}


@dataclass
class Customer:
    id: int
    name: str | None
    holdfast_deleted: bool
    country: str = "be"


@dataclass
class Strict:
    id: int
    name: str
    holdfast_deleted: bool


class TestPlanning:
    def deletes(self, value: Any, **more: Any) -> Any:
        source: Any = hf.Kafka(HOST, "customers", value, **more).source()
        return source.deletes

    def test_needs_the_mark_and_the_key(self) -> None:
        assert self.deletes(hf.JSON(Customer), key="id") == ("id",)
        assert self.deletes(hf.JSON(Customer)) == ()
        assert self.deletes(hf.JSON(pa.schema([("id", pa.int64())])), key="id") == ()
        assert self.deletes(hf.Raw(), key="value") == ()

    def test_refuses_columns_that_a_delete_cannot_have(self) -> None:
        with pytest.raises(hf.ConfigError, match="nothing but their key, but .* allows no null in name"):
            self.deletes(hf.JSON(Strict), key="id")
        for wrong in ("other", "holdfast_deleted"):
            with pytest.raises(hf.ConfigError, match=f"key names '{wrong}', which is not a column"):
                self.deletes(hf.JSON(Customer), key=wrong)


def record(id: int, name: str, **more: Any) -> bytes:
    return json.dumps({"id": id, "name": name, **more}).encode()


@pytest.mark.kafka
class TestTable:
    def test_a_table_of_a_compacted_topic_lacks_rows_whose_last_record_has_no_value(self, kafka: KafkaServer) -> None:
        topic = kafka.topic(cleanup_policy="compact")
        out, dead = MemorySink(("id",)), MemorySink(None)
        app = hf.App("customers", checkpoint_every="1s", dlq=dead)
        source = hf.Kafka(kafka.servers, topic, hf.JSON(Customer), key="id")
        app.table("customers", source, key="id").sink("out", out)
        cluster = Cluster(app.plan(), 2, 0, MemoryObjects(), 1.0, {"customers": (0,)}, CONTINUOUS)
        cluster.begin()

        def rows() -> dict[int, tuple[str, str]]:
            cluster.pass_time(1.0)
            assert cluster.driver.outcome is None, cluster.driver.outcome
            return {row["id"]: (row["name"], row["country"]) for row in out.rows()}

        for id, value in (
            (1, record(1, "one")),
            (2, record(2, "two", country="nl")),
            (1, None),
            (3, record(3, "three")),
        ):
            kafka.produce(topic, [value], key=str(id).encode())
        wait(lambda: rows() == {2: ("two", "nl"), 3: ("three", "be")}, "the rows that are left")
        kafka.produce(topic, [None], key=b"2")
        kafka.produce(topic, [None], key=b"not a number")
        kafka.produce(topic, [record(1, "uno"), record(4, "four", holdfast_deleted=True)], key=b"1")
        wait(lambda: rows() == {1: ("uno", "be"), 3: ("three", "be")}, "the rows after another delete")
        wait(lambda: rows() and len(dead.rows()) == 1, "the key that is no number")
        assert "tombstone" in dead.rows()[0]["error"]
