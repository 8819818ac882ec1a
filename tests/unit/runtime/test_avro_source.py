"""`hf.Avro` as users write it, and values that name schemas of a registry: a real one would need Java, and is played by
an HTTP server on loopback.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import fastavro
import pyarrow as pa
import pytest
import registry_server
from registry_server import LOGIN, RegistryServer

import holdfast as hf
from holdfast.errors import Unavailable
from holdfast.runtime.sources.kafka import schemas
from holdfast.sinks.kafka.sink import KafkaSink
from holdfast.storage.kafka import registry
from holdfast.testing import TestDriver

HOST, REGISTRY = "broker.example:9092", "https://registry.example:8081"
AT = datetime(2026, 1, 1, tzinfo=UTC)
USER, _, PASSWORD = LOGIN.partition(":")


@dataclass
class Bid:
    auction: int
    price: float = 1.0
    at: datetime = field(default_factory=lambda: AT)
    channel: str | None = None


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Bid", "fields": [{"name": n, "type": t} for n, t in fields.items()]}


OLD = record(auction="int", price="float")
NEW = record(channel=["null", "string"], price="double", bidder="string", auction="long")


def encoded(schema: Any, number: int | None = None, **row: Any) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), row)
    header = b"" if number is None else b"\0" + number.to_bytes(4, "big")
    return header + file.getvalue()


def source(value: Any, **more: Any) -> Any:
    return hf.Kafka(HOST, "bids", value, **more).source()


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server.running() as server:
        yield server


def values_of(server: RegistryServer, schema: Any = Bid, **more: Any) -> schemas.AvroValues:
    found = source(hf.Avro(schema, registry=server.url, **more))
    opened: schemas.AvroValues = found.coded.opened(found.values)
    return opened


def rows(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return [(row["auction"], row["price"], row["channel"]) for row in batch.to_pylist()]


class TestValues:
    def test_avro_values_of_several_schemas_keep_their_order_and_have_the_jobs_columns(
        self, server: RegistryServer
    ) -> None:
        old, new = server.add("bids-value", OLD), server.add("bids-value", NEW)
        values = [
            encoded(NEW, new, channel="web", price=2.5, bidder="b", auction=2**40),
            encoded(OLD, old, auction=1, price=0.5),
            None,
            encoded(NEW, new, channel=None, price=3.5, bidder="b", auction=3),
            b'{"auction": 1}',
            encoded(OLD, old, auction=4, price=1.5),
            encoded(OLD, old, auction=4, price=1.5)[:-1],
            b"\0\0\0",
        ]
        batch, refused = values_of(server).decode(values)
        assert batch.schema == source(hf.Avro(Bid, registry=REGISTRY)).schema
        assert rows(batch) == [(2**40, 2.5, "web"), (1, 0.5, None), (3, 3.5, None), (4, 1.5, None)]
        assert [row["at"] for row in batch.to_pylist()] == [AT] * 4
        assert {place: each.raw for place, each in refused.items()} == {
            place: values[place] or b"" for place in (2, 4, 6, 7)
        }
        assert "tombstone" in refused[2].error and "the id of a schema" in refused[4].error
        assert "ends too early" in refused[6].error

    def test_ask_for_each_schema_once(self, server: RegistryServer) -> None:
        old = server.add("bids-value", OLD)
        found = values_of(server)
        for _ in range(3):
            found.decode([encoded(OLD, old, auction=1, price=0.5)])
        assert server.asked == [f"GET /schemas/ids/{old}"]

    def test_avro_values_of_one_schema_need_no_registry_and_have_no_header(self) -> None:
        found = source(hf.Avro(Bid, avsc=json.dumps(OLD)))
        batch, refused = found.coded.opened(found.values).decode([encoded(OLD, auction=7, price=0.5), b"\x0e"])
        assert rows(batch) == [(7, 0.5, None)] and list(refused) == [1]

    def test_an_empty_or_fully_refused_batch_gives_no_rows(self, server: RegistryServer) -> None:
        for values in ([], [None, b"x"]):
            batch, refused = values_of(server).decode(values)
            assert batch.num_rows == 0 and batch.schema.names == ["auction", "price", "at", "channel"]
            assert len(refused) == len(values)

    def test_use_names_that_other_schemas_define(self, server: RegistryServer) -> None:
        server.add("price", {"type": "record", "name": "Price", "fields": [{"name": "x", "type": "double"}]})
        number = server.add(
            "bids-value",
            record(auction="long", of="Price"),
            references=[{"name": "Price", "subject": "price", "version": 1}],
        )
        batch, _ = values_of(server).decode([b"\0" + number.to_bytes(4, "big") + b"\x0e" + bytes(8)])
        assert rows(batch) == [(7, 1.0, None)]


class TestRegistry:
    def test_known_schemas_decode_while_the_registry_is_unreachable_and_other_values_wait(
        self, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(registry, "AWAY_S", 0.0)
        old, new = server.add("bids-value", OLD), server.add("bids-value", NEW)
        first = encoded(OLD, old, auction=1, price=0.5)
        second = encoded(NEW, new, channel=None, price=3.5, bidder="b", auction=3)
        found = values_of(server)
        found.decode([first])
        server.stop()
        assert rows(found.decode([first])[0]) == [(1, 0.5, None)]
        with pytest.raises(Unavailable, match="schema registry .* is unreachable"):
            found.decode([first, second])
        server.start()
        assert rows(found.decode([first, second])[0]) == [(1, 0.5, None), (3, 3.5, None)]

    def test_a_registry_without_the_schema_id_is_asked_again_before_the_job_ends(
        self, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found, value = values_of(server), encoded(OLD, 1, auction=1, price=0.5)
        with pytest.raises(Unavailable, match="does not know schema 1, which a record names"):
            found.decode([value])
        server.add("bids-value", OLD)
        assert rows(found.decode([value])[0]) == [(1, 0.5, None)]
        monkeypatch.setattr(schemas, "UNKNOWN_FOR_S", 0.0)
        with pytest.raises(hf.ConfigError, match="does not know schema 513, which a record names") as caught:
            found.decode([encoded(OLD, 513, auction=1, price=0.5)])
        assert caught.value.not_done == "no record was skipped; the job is at its last checkpoint"

    def test_with_a_schema_that_does_not_fit_names_id_subject_and_field(self, server: RegistryServer) -> None:
        number = server.add("other-subject", record(auction="string"))
        expected = (
            f"schema {number} of subject 'other-subject' in the schema registry {server.url} does not fit the job's "
            "columns: its field 'auction' is string, from which a column of type int64 cannot be read exactly"
        )
        with pytest.raises(hf.ConfigError) as caught:
            values_of(server).decode([encoded(record(auction="string"), number, auction="1")])
        assert caught.value.what == expected
        assert caught.value.not_done == "no record was skipped; the job is at its last checkpoint"

    @pytest.mark.parametrize(
        ("text", "kind", "why"), [("message Bid {}", "PROTOBUF", "it is PROTOBUF, not Avro"), ("{", "AVRO", "not JSON")]
    )
    def test_with_a_schema_that_is_none_of_avro_says_so(
        self, server: RegistryServer, text: str, kind: str, why: str
    ) -> None:
        number = server.add("bids-value", text, schemaType=kind)
        with pytest.raises(hf.ConfigError, match=why):
            values_of(server).decode([b"\0" + number.to_bytes(4, "big")])


class TestStart:
    def test_checks_the_newest_schema_of_the_topic(self, server: RegistryServer) -> None:
        values_of(server).check()
        server.add("bids-value", record(auction="long"))
        values_of(server).check()
        server.add("bids-value", record(auction="string"))
        with pytest.raises(hf.ConfigError, match="schema 2 of subject 'bids-value'"):
            values_of(server).check()
        values_of(server, subject="of-another-name").check()
        assert server.asked[-1] == "GET /subjects/of-another-name/versions/latest"

    def test_is_refused_without_a_registry_or_with_a_wrong_login(
        self, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("REGISTRY_PASSWORD", "wrong")
        server.login = LOGIN
        login = hf.secret("env:REGISTRY_PASSWORD")
        with pytest.raises(hf.ConfigError, match="refuses the login, or has no right for it") as caught:
            source(hf.Avro(Bid, registry=server.url, user=USER, password=login)).check()
        assert caught.value.exit_status == 2
        server.stop()
        with pytest.raises(Unavailable, match="unreachable") as away:
            source(hf.Avro(Bid, registry=server.url)).check()
        assert away.value.exit_status == 5


class TestPlan:
    def test_holds_no_client_and_no_secret(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REGISTRY_PASSWORD", PASSWORD)
        value = hf.Avro(Bid, registry=REGISTRY + "/", user=USER, password=hf.secret("env:REGISTRY_PASSWORD"))
        for planned in (source(value), hf.Kafka(HOST, "bids", value).sink()):
            kept = pickle.dumps(planned)
            assert pickle.loads(kept) == planned  # noqa: S301
            assert PASSWORD not in f"{kept!r} {planned!r} {planned.traits}"
            assert planned.traits.secrets == (hf.secret("env:REGISTRY_PASSWORD"),)
        assert source(value).coded.registry.url == REGISTRY

    def test_knows_columns_and_rows(self) -> None:
        found = source(hf.Avro(Bid, registry=REGISTRY), key="auction", meta=True)
        assert found.schema.names[:5] == ["auction", "price", "at", "channel", "kafka_key"]
        assert source(hf.Avro(Bid, registry=REGISTRY)).row_type is Bid
        assert found.traits.partitioned_by == ("auction",) and repr(hf.Avro(Bid, registry=REGISTRY)) == "Avro(Bid)"

    def test_the_plan_of_an_avro_sink_has_the_schema_of_its_columns(self) -> None:
        found = hf.Kafka(HOST, "my.bids", hf.Avro(Bid, registry=REGISTRY)).sink()
        assert isinstance(found, KafkaSink)
        assert found.enrolled is not None and found.enrolled.subject == "my.bids-value"
        assert json.loads(found.enrolled.avsc) == {
            "type": "record",
            "name": "Bid",
            "fields": [
                {"name": "auction", "type": "long"},
                {"name": "price", "type": "double"},
                {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
                {"name": "channel", "type": ["null", "string"], "default": None},
            ],
        }
        plain = hf.Avro(pa.schema([("x", pa.int32())]), registry=REGISTRY)
        other = hf.Kafka(HOST, "1-my.bids", plain).sink()
        assert isinstance(other, KafkaSink)
        named = other.enrolled
        assert named is not None and json.loads(named.avsc)["name"] == "_1_my_bids"

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: hf.Avro(Bid), "neither registry= nor avsc= is given"),
            (lambda: hf.Avro(Bid, registry="registry:8081"), "not a URL"),
            (lambda: hf.Avro(Bid, registry="ftp://registry:8081"), "not a URL"),
            (lambda: hf.Avro(Bid, registry="https://registry:8081?token=hush"), "not a URL|holds a password"),
            (lambda: hf.Avro(Bid, registry="https://app:hush@registry:8081"), "holds a password"),
            (lambda: hf.Avro(Bid, registry=REGISTRY, user="app"), "only one of user= and password="),
            (lambda: hf.Avro(Bid, registry=REGISTRY, user="a", password="hush"), "not an hf.secret"),  # type: ignore[arg-type]
            (lambda: hf.Avro(Bid, avsc="{}", user="a"), "without registry="),
            (lambda: hf.Avro(Bid, avsc={}), "avsc is a dict"),  # type: ignore[arg-type]
            (lambda: hf.Avro(pa.schema([("x", pa.time64("ns"))]), REGISTRY), "time64.ns., which hf.Avro cannot read"),
            (lambda: source(hf.Avro(registry=REGISTRY)), "does not say how to read the values"),
            (lambda: source(hf.Avro(Bid, REGISTRY, json.dumps(OLD))), "registry= and avsc=, but ids name the schemas"),
            (lambda: source(hf.Avro(Bid, avsc="{")), "the schema avsc does not fit the columns: it is not JSON"),
            (lambda: source(hf.Avro(Bid, avsc=json.dumps(record(price="float")))), "no field 'auction'"),
            (lambda: hf.Kafka(HOST, "bids", hf.Avro(registry=REGISTRY)).sink(), "neither columns nor avsc="),
        ],
    )
    def test_refuses_before_anything_is_opened_and_without_repeating_a_secret(self, make: Any, message: str) -> None:
        with pytest.raises(hf.ConfigError, match=message) as caught:
            make()
        assert "hush" not in str(caught.value)

    def test_an_avro_job_is_tested_without_broker_and_registry(self) -> None:
        app = hf.App("bids")
        bids = app.source("bids", hf.Kafka(HOST, "bids", hf.Avro(Bid, registry=REGISTRY)), event_time="at")
        hot = bids.key_by("auction").agg("hot", bids=hf.count())
        hot.sink("out", hf.Collect())
        with TestDriver(app) as t:
            t.push("bids", [Bid(1), Bid(1), Bid(2)])
            t.checkpoint()
            assert {row["auction"]: row["bids"] for row in t.rows("out")} == {1: 2, 2: 1}
