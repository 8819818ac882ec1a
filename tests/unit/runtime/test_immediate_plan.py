"""Which sinks the plan allows to be immediate: those whose keys come from one partition of the source, each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import holdfast as hf
from holdfast.runtime.api.stream import Stream
from holdfast.runtime.plan.compiler import describe, render
from holdfast.runtime.plan.immediate import is_immediate
from holdfast.runtime.rows.schema import schema_of
from holdfast.storage.log.log import create_log
from holdfast.storage.objects import LocalObjects


@dataclass
class Reading:
    sensor: int
    room: str
    value: float


def reading(n: int) -> Reading:
    return Reading(n, "kitchen", 0.5)


class Built:
    """An app with one sink."""

    def __init__(self, by: list[str] | None = None, source: Any = None) -> None:
        self.app = hf.App("sensors")
        self.readings = self.app.source("readings", source or hf.Generator(Reading, reading), partitioned_by=by)

    def immediate(self, stream: Stream, *key: str, delivery: str = "idempotent") -> bool:
        stream.sink("out", hf.SQLite("/data/out.db", "out", list(key), delivery=delivery))
        [spec] = self.app.plan().sinks
        return is_immediate(spec)

    def path(self, stream: Stream) -> str:
        assert self.immediate(stream, "sensor")
        path = self.app.plan().sinks[0].path
        assert path is not None
        return path


class TestTheRule:
    def test_a_key_by_which_the_source_is_partitioned_is_written_immediately(self) -> None:
        built = Built(["sensor"])
        assert built.immediate(built.readings, "sensor")

    def test_a_key_with_additional_columns_is_written_immediately(self) -> None:
        built = Built(["sensor"])
        assert built.immediate(built.readings, "room", "sensor")

    def test_a_key_that_lacks_a_partitioning_column_is_written_at_the_commit(self) -> None:
        built = Built(["sensor", "room"])
        assert not built.immediate(built.readings, "sensor")

    def test_a_sink_of_a_source_without_known_partitioning_is_written_at_the_commit(self) -> None:
        built = Built()
        assert not built.immediate(built.readings, "sensor")

    def test_transactional_delivery_writes_at_the_commit(self) -> None:
        built = Built(["sensor"])
        assert not built.immediate(built.readings, "sensor", delivery="transactional")

    def test_a_log_with_a_key_declares_its_partitioning(self, tmp_path: Path) -> None:
        built = Built(source=hf.Log(tmp_path / "log", Reading, key=["sensor"]))
        assert built.immediate(built.readings, "sensor")

    def test_a_sink_after_a_shuffle_is_written_at_the_commit(self) -> None:
        built = Built(["sensor"])
        assert not built.immediate(built.readings.key_by("sensor").agg("totals", n=hf.count()), "sensor")

    def test_renaming_columns_and_filtering_rows_keeps_immediate_writing(self) -> None:
        built = Built(["sensor"])
        stream = built.readings.filter(pl.col("value") > 0).select("value", id="sensor").filter(lambda r: r.id > 0)
        assert built.immediate(stream, "id")

    def test_a_key_with_a_computed_column_is_written_at_the_commit(self) -> None:
        built = Built(["sensor"])
        assert not built.immediate(built.readings.with_columns(sensor=pl.col("sensor") % 2), "sensor")

    def test_a_key_returned_by_a_function_is_written_at_the_commit(self) -> None:
        built = Built(["sensor"])
        assert not built.immediate(built.readings.map(lambda r: r, to=Reading), "sensor")

    def test_a_sink_of_united_streams_is_written_at_the_commit(self) -> None:
        built = Built(["sensor"])
        assert not built.immediate(built.readings.union(built.readings.filter(pl.col("value") > 0)), "sensor")

    def test_an_unknown_column_is_refused(self) -> None:
        with pytest.raises(hf.ConfigError, match="'senor'"):
            Built(["senor"])

    def test_a_log_with_a_different_partitioning_is_refused(self, tmp_path: Path) -> None:
        create_log(LocalObjects(tmp_path / "log"), schema_of(Reading), 4, ("room",))
        with pytest.raises(hf.ConfigError, match=r"is partitioned by \['room'\], not by \['sensor'\]"):
            hf.Log(tmp_path / "log", Reading, key=["sensor"]).source().check()

    def test_the_plan_shows_when_a_sink_is_written(self) -> None:
        built = Built(["sensor"])
        built.readings.sink("later", hf.SQLite("/data/out.db", "later", ["room"], delivery="idempotent"))
        built.readings.sink("now", hf.SQLite("/data/out.db", "now", ["sensor"], delivery="idempotent"))
        plan = built.app.plan()
        assert [(sink["name"], sink["written"]) for sink in describe(plan)["sinks"]] == [
            ("later", "at commit"),
            ("now", "at once"),
        ]
        assert render(plan).endswith("written immediately: now; other sinks at the commit")


class TestIdentityOfThePath:
    def test_the_same_code_has_the_same_identity(self) -> None:
        built, again = Built(["sensor"]), Built(["sensor"])
        assert built.path(built.readings) == again.path(again.readings)

    def test_another_expression_has_another_identity(self) -> None:
        built, again = Built(["sensor"]), Built(["sensor"])
        first = built.path(built.readings.with_columns(value=pl.col("value") * 2))
        assert first != again.path(again.readings.with_columns(value=pl.col("value") * 3))

    def test_another_body_of_a_function_has_another_identity(self) -> None:
        built, again = Built(["sensor"]), Built(["sensor"])
        first = built.path(built.readings.filter(lambda r: r.value > 1))
        assert first != again.path(again.readings.filter(lambda r: r.value > 2))

    def test_steps_of_other_sinks_do_not_change_the_identity(self) -> None:
        built, again = Built(["sensor"]), Built(["sensor"])
        again.readings.filter(pl.col("value") > 0).sink("other", hf.SQLite("/data/out.db", "other"))
        again.readings.sink("out", hf.SQLite("/data/out.db", "out", ["sensor"], delivery="idempotent"))
        assert [spec.path for spec in again.app.plan().sinks] == [None, built.path(built.readings)]
