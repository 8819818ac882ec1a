"""`hf.Kafka` as users write it: what is refused when a job is planned, and what a job gets. No broker is needed."""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.runtime.sources.kafka.feed import settings_of
from holdfast.storage.kafka.place import KafkaPlace
from holdfast.testing import TestDriver

HOST = "broker.example:9092"
AT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Bid:
    auction: int
    price: float = 1.0
    at: datetime = field(default_factory=lambda: AT)


def source(*arguments: Any, **named: Any) -> Any:
    return hf.Kafka(HOST, "bids", *arguments, **named).source()


class TestColumns:
    def test_columns_of_json_are_those_of_the_dataclass(self) -> None:
        found = source(hf.JSON(Bid))
        assert found.schema.names == ["auction", "price", "at"] and found.row_type is Bid
        assert found.lines == ("rfc3339", {"price": 1.0, "at": AT})

    def test_the_column_of_a_raw_source_has_the_bytes(self) -> None:
        found = source(hf.Raw())
        assert found.schema == pa.schema([pa.field("value", pa.binary())]) and found.row_type is None

    def test_message_metadata_columns_come_last(self) -> None:
        names = ["kafka_key", "kafka_timestamp", "kafka_partition", "kafka_offset", "kafka_headers"]
        assert source(hf.JSON(Bid), meta=True).schema.names == ["auction", "price", "at", *names]
        assert source(hf.Raw(), meta=True).schema.names == ["value", *names]
        with pytest.raises(hf.ConfigError, match="'kafka_key' is also one of meta=True"):
            source(hf.JSON(pa.schema([pa.field("kafka_key", pa.utf8())])), meta=True)

    def test_by_which_producers_partition_are_known_to_the_job(self) -> None:
        assert source(hf.JSON(Bid), key="auction").traits.partitioned_by == ("auction",)


class TestConsumer:
    def test_refills_a_queue_soon_after_it_was_full_unless_the_job_says_otherwise(self) -> None:
        assert settings_of(KafkaPlace(HOST, "bids"))["fetch.queue.backoff.ms"] <= 20
        given = KafkaPlace(HOST, "bids", (("fetch.queue.backoff.ms", 500),))
        assert settings_of(given)["fetch.queue.backoff.ms"] == 500


class TestRefused:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: hf.Kafka("broker.example", "bids", hf.Raw()), "not a list of host:port"),
            (lambda: hf.Kafka("user:hush@broker.example:9092", "bids", hf.Raw()), "not a list of host:port"),
            (lambda: hf.Kafka([], "bids", hf.Raw()), "not a list of host:port"),
            (lambda: hf.Kafka(HOST, "^bids.*", hf.Raw()), "re.compile"),
            (lambda: hf.Kafka(HOST, re.compile(b"bids.*"), hf.Raw()), "is of bytes"),  # type: ignore[arg-type]
            (lambda: hf.Kafka(HOST, re.compile("bids.*")).sink(), "a sink writes one topic"),
            (lambda: hf.Kafka(HOST, "bids of today", hf.Raw()), "not the name of a topic"),
            (lambda: source(), "does not say how to read the values"),
            (lambda: source(hf.JSON()), "does not say how to read the values"),
            (lambda: hf.Kafka(HOST, "bids", Bid), "value is <class"),  # type: ignore[arg-type]
            (lambda: hf.JSON(Bid, time="ns"), "time is 'ns'"),  # type: ignore[arg-type]
            (lambda: source(hf.Raw(), options={"auto.offset.reset": "latest"}), "set by Holdfast itself"),
            (lambda: source(hf.Raw(), options={"isolation.level": "read_uncommitted"}), "set by Holdfast itself"),
            (lambda: source(hf.Raw(), options={"sasl.password": "hush"}), "holds a secret"),
            (lambda: source(hf.Raw(), options={"ssl.key.pem": "hush"}), "holds a secret"),
            (lambda: source(hf.Raw(), options={"sasl.jaas.config": "hush"}), "holds a secret"),
            (lambda: source(hf.Raw(), options={"error_cb": print}), "is a builtin_function_or_method"),
            (lambda: source(hf.Raw(), on_lost="latest"), "on_lost is 'latest'"),
            (lambda: hf.Kafka(HOST, "bids", on_lost="earliest").sink(), "a sink reads no records"),
        ],
    )
    def test_before_anything_is_opened_and_without_repeating_a_secret(self, make: Any, message: str) -> None:
        with pytest.raises(hf.ConfigError, match=message) as caught:
            make()
        assert "hush" not in str(caught.value)


class TestSecrets:
    def test_are_references_wherever_a_source_goes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KAFKA_PASSWORD", "hush")
        options = {"security.protocol": "SASL_SSL", "sasl.password": hf.secret("env:KAFKA_PASSWORD")}
        found = source(hf.JSON(Bid), options=options)
        assert "hush" not in f"{found!r} {found} {found.where} {found.traits} {found.place}"
        assert b"hush" not in pickle.dumps(found)
        assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301
        assert found.place.topic == "bids" and found.place.settings()["sasl.password"] == "hush"
        assert found.place.without_secrets("login hush failed") == "login *** failed"


class TestJob:
    def test_is_tested_without_a_broker(self) -> None:
        app = hf.App("bids")
        bids = app.source("bids", hf.Kafka(HOST, "bids", hf.JSON(Bid)), event_time="at")
        bids.key_by("auction").agg("hot", bids=hf.count()).sink("out", hf.Collect())
        with TestDriver(app) as t:
            t.push("bids", [Bid(1), Bid(1), Bid(2)])
            t.checkpoint()
            assert {row["auction"]: row["bids"] for row in t.rows("out")} == {1: 2, 2: 1}
