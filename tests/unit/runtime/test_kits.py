"""The kits for connectors catch those that break a promise."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.model import Epoch, Tag, Writer
from holdfast.runtime.sources.generator import OpenGenerator
from holdfast.runtime.sources.log import OpenLog
from holdfast.runtime.testing import sink_kit, source_kit
from holdfast.runtime.testing.source_kit import SourceKit
from holdfast.runtime.testing.tested_sink import KEY, SinkKit
from holdfast.runtime.wire.clock import SystemClock
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.contract.sink import Repair, Rewinding
from holdfast.sinks.contract.target import Delivered, Outcome, UploadedOutput
from holdfast.sinks.memory.sink import MemorySink, MemoryTarget
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects
from holdfast.traits import SinkTraits

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])


def generated(fn: Callable[[Any], Any] = lambda i: (i,)) -> hf.Generator:
    return hf.Generator(SCHEMA, fn, count=9)


def broken(**methods: Any) -> SourceKit:
    """A source that is as it should be but for these methods."""
    opened = type("Broken", (OpenGenerator,), methods)
    source = type("BrokenGenerator", (hf.Generator,), {"open": lambda self: opened(self, SystemClock())})
    return SourceKit(lambda: source(SCHEMA, lambda i: (i,), count=9))


class TestSourceKit:
    def test_catches_records_that_differ_when_reread(self) -> None:
        number = itertools.count()
        kit = SourceKit(lambda: generated(lambda _: (next(number),)))
        with pytest.raises(AssertionError):
            source_kit.reads_the_same_again_from_every_offset(kit)

    def test_catches_an_end_that_is_reported_too_early(self) -> None:
        with pytest.raises(AssertionError):
            source_kit.ends_where_it_says(broken(ended=lambda self, partition, offset: offset > 5))
        with pytest.raises(AssertionError):
            source_kit.ends_where_it_says(broken(end_offsets=lambda self: {0: 5}))

    def test_catches_records_that_are_lost_where_a_batch_is_cut(self) -> None:
        def read(self: OpenGenerator, partition: int, offset: int, max_bytes: int) -> Any:
            batch, following = OpenGenerator.read(self, partition, offset, max_bytes)
            return batch, following if batch is None or max_bytes > 1 else min(9, following + 1)

        with pytest.raises(AssertionError):
            source_kit.cuts_batches_without_losing_a_record(broken(read=read))

    def test_catches_a_source_that_accepts_any_identity(self) -> None:
        with pytest.raises(AssertionError):
            source_kit.knows_itself_again(broken(changed=lambda self, identity: None))


class TestSourceKitWithARate:
    def test_finds_nothing_wrong_with_a_generator(self) -> None:
        kit = SourceKit(lambda: hf.Generator(SCHEMA, lambda i: (i,), rate=1e9, count=9, partitions=2))
        source_kit.has_what_its_traits_name_when_it_is_open(kit)

    @pytest.mark.parametrize(
        "appeared",
        [
            pytest.param(lambda self, begun: {0: 0}, id="nothing"),
            pytest.param(lambda self, begun: {}, id="no partition"),
            pytest.param(lambda self, begun: {0: 9 - begun[0]}, id="fewer after a later start"),
        ],
    )
    def test_catches_a_wrong_count_of_what_has_appeared(self, appeared: Callable[..., Any]) -> None:
        opened = type("Broken", (OpenGenerator,), {"appeared": appeared})
        source = type("BrokenGenerator", (hf.Generator,), {"open": lambda self: opened(self, SystemClock())})
        kit = SourceKit(lambda: source(SCHEMA, lambda i: (i,), rate=1e9, count=9))
        with pytest.raises(AssertionError):
            source_kit.has_what_its_traits_name_when_it_is_open(kit)


class TestSourceKitWithAddedPartitions:
    @pytest.fixture
    def kit(self, tmp_path: Path) -> SourceKit:
        create_log(LocalObjects(tmp_path), SCHEMA, partitions=1)

        def add() -> None:
            writer = LogWriter(LocalObjects(tmp_path))
            partitions = writer.meta.partitions
            writer.widen(partitions + 1)
            writer.append({partitions: pa.table({"n": [1, 2]}, SCHEMA)})

        LogWriter(LocalObjects(tmp_path)).append({0: pa.table({"n": [1, 2, 3]}, SCHEMA)})
        return SourceKit(lambda: hf.Log(tmp_path).source(), add_partition=add)

    def test_finds_nothing_wrong_with_a_log(self, kit: SourceKit) -> None:
        source_kit.reads_a_partition_that_is_added(kit)

    def test_catches_a_connection_that_lists_only_old_partitions(
        self, kit: SourceKit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(OpenLog, "partitions", lambda self: list(range(self._reader.meta.partitions)))
        with pytest.raises(AssertionError, match="none disappears"):
            source_kit.reads_a_partition_that_is_added(kit)

    def test_catches_a_partition_that_begins_at_its_end(self, kit: SourceKit, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(OpenLog, "retention_start", lambda self, partition: 2 if partition else 0)
        with pytest.raises(AssertionError):
            source_kit.reads_a_partition_that_is_added(kit)


class Forgetful(MemoryTarget):
    """Looks at no tag."""

    def deliver(self, tag: Tag, batches: Iterable[pa.RecordBatch], known: Tag | None = None) -> Outcome:
        standing = self.delivered()
        after = tag if standing is None else max(tag, Tag(standing.timeline, Epoch(standing.epoch + 1)))
        super().deliver(after, batches)
        return Delivered(0)


class ForgetfulSink(MemorySink):
    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> MemoryTarget:
        return Forgetful(self, job_uuid, writer, claim)


class Stubborn(MemorySink):
    """Reports a repair but undoes nothing."""

    def repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        return self.plan_repair(rewinding, schema, upsert_key)


class Silent(MemorySink):
    """Does not declare that rows replace each other."""

    @property
    def traits(self) -> SinkTraits:
        return replace(super().traits, keyed=False)


class Trusting(MemorySink):
    """Believes that every upload is still there."""

    def whole(self, output: UploadedOutput) -> list[pa.RecordBatch]:
        named = [each for each in output.uploads if each is not None]
        left = output.read([place for place, each in enumerate(output.uploads) if each is None])
        return [*(batch for each in named for batch in self._uploaded.get(each, ())), *left]


def kit_of(sink: MemorySink) -> SinkKit:
    return SinkKit(lambda: sink, lambda: [tuple(row.values()) for row in sink.rows()], travels=False)


class TestSinkKit:
    @pytest.mark.parametrize(
        "promise",
        [
            sink_kit.changes_nothing_when_it_is_delivered_again,
            sink_kit.refuses_what_is_older,
            sink_kit.continues_only_what_its_writer_knows,
        ],
    )
    def test_catches_a_target_that_ignores_tags(self, promise: Callable[[SinkKit], None]) -> None:
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            promise(kit_of(ForgetfulSink()))

    def test_catches_a_repair_that_changes_nothing(self) -> None:
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            sink_kit.takes_output_back(kit_of(Stubborn()))

    def test_catches_an_undeclared_key(self) -> None:
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            sink_kit.keeps_equal_rows_without_a_key(kit_of(Silent(KEY)))

    def test_catches_a_commit_without_the_rows_of_a_lost_upload(self) -> None:
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            sink_kit.names_what_was_uploaded(kit_of(Trusting(KEY, commits_once=True)))
