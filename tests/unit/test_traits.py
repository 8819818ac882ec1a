"""Capabilities that connectors declare, and refusals based on them before anything is opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from planned_source import PlannedSource

import holdfast as hf
from holdfast.runtime.driver.gathering import local_paths
from holdfast.runtime.plan.source import not_a_source, same_from
from holdfast.sinks.contract.audited import Audits
from holdfast.sinks.contract.sink import Sink
from holdfast.sinks.memory.sink import MemorySink
from holdfast.traits import SinkTraits, SourceTraits, local

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])


@dataclass
class Number:
    n: int


class Claiming(Audits, MemorySink):
    """A sink that claims to be readable, and is not."""


@dataclass(frozen=True)
class Webhook(PlannedSource):
    """A source that gives every record once."""

    traits = SourceTraits(kind="Webhook", local_paths=(), replayable=False)


class WithoutTraits(Sink):
    """A sink without declared traits."""

    key = None
    check = prepare = open = where = staticmethod(lambda *_: None)  # type: ignore[assignment]


class LikeASink:
    """A class with the methods of a sink, as connectors for earlier versions have."""

    key, where, traits = None, "somewhere", SinkTraits(kind="Old", local_paths=())
    check = prepare = accept = open = staticmethod(lambda *_: None)


def app_with(source: object) -> hf.App:
    app = hf.App("numbers")
    app.source("numbers", source)  # type: ignore[call-overload]
    return app


class TestPlanning:
    def test_refuses_a_connector_that_does_not_state_its_traits(self) -> None:
        stream = hf.App("numbers").source("numbers", PlannedSource(SCHEMA))
        with pytest.raises(hf.ConfigError, match="is not a sink: it has no traits"):
            stream.sink("out", WithoutTraits())  # type: ignore[abstract]

    def test_refuses_a_sink_of_an_earlier_version_with_the_class_to_derive_from(self) -> None:
        stream = hf.App("numbers").source("numbers", PlannedSource(SCHEMA))
        with pytest.raises(hf.ConfigError, match="is not a sink; a sink derives from holdfast.connectors.Sink"):
            stream.sink("out", LikeASink())  # type: ignore[arg-type]

    def test_a_sink_with_a_capability_but_without_its_methods_cannot_be_made(self) -> None:
        with pytest.raises(TypeError, match="Claiming.*contents"):
            Claiming()  # type: ignore[abstract]

    def test_refuses_a_source_that_cannot_be_replayed_with_the_next_step(self) -> None:
        with pytest.raises(hf.ConfigError, match="planned source cannot be read again from a position") as caught:
            app_with(Webhook(SCHEMA))
        assert "read the log with hf.Log" in caught.value.next_step

    @pytest.mark.parametrize("given", [5, None, hf.Log, MemorySink])
    def test_refuses_an_object_that_is_no_source(self, given: object) -> None:
        with pytest.raises(hf.ConfigError, match="is not a source|no source is given"):
            app_with(given)

    def test_evaluates_no_property_that_performs_io(self, tmp_path: Path) -> None:
        assert not_a_source(hf.Log(tmp_path / "nowhere").source()) is None

    def test_local_paths_cannot_be_omitted(self) -> None:
        with pytest.raises(TypeError, match="local_paths"):
            SinkTraits(kind="Redis")  # type: ignore[call-arg]


class TestLocalPaths:
    def test_are_paths_and_urls_whose_meaning_depends_on_the_machine(self) -> None:
        assert local("/data", "s3://bucket", "file:///data", "memory://m") == ("/data", "file:///data", "memory://m")

    def test_local_paths_of_a_table_with_immediate_writes_are_those_of_its_file(self) -> None:
        app = hf.App("numbers")
        numbers = app.source("numbers", hf.Generator(Number, Number, count=1), partitioned_by=["n"])
        numbers.sink("last", hf.SQLite("/data/out.db", "last", ["n"], delivery="idempotent"))
        assert local_paths(app.plan(), "s3://bucket/root") == ("sink 'last' at /data/out.db",)


class TestTraitsOfHoldfastsConnectors:
    def test_a_log_is_both_a_source_and_a_sink(self) -> None:
        log = hf.Log("/data/n", Number, key=["n"])
        assert log.source().traits.partitioned_by == ("n",)
        assert log.source().traits.log == log.sink().traits.log == "/data/n"
        assert not log.sink().traits.keyed and log.sink().key == ("n",)
        assert repr(log) == repr(log.source()) == "Log('/data/n')"

    def test_a_generator_ends_at_its_count_and_is_paced_by_its_rate(self) -> None:
        paced = hf.Generator(Number, Number, rate=1.0)
        assert paced.traits.endless is not None and hf.Generator(Number, Number, count=1).traits.endless is None
        again = paced.unpaced()
        assert paced.rate == 1.0 and not again.traits.paced and again.open().read(0, 0, 1 << 20)[1] > 1

    def test_a_source_without_gaps_reads_the_same_from_its_first_record(self) -> None:
        source = hf.Generator(Number, Number, count=3)
        assert same_from(source.open(), 0) == 0
