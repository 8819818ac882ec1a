"""Upsert streams into a log: the changelog that the sink creates or refuses, and what it delivers there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logged import rows_in

from holdfast.errors import ConfigError, Unavailable
from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.audited import AuditQuery
from holdfast.sinks.contract.sink import Rewinding
from holdfast.sinks.contract.target import DELETE, OP, PUT, AlreadyDelivered, Delivered, Outcome
from holdfast.sinks.log.audit import contents
from holdfast.sinks.log.sink import LogSink, LogTarget, plan_repair, repair
from holdfast.sinks.protocol.staging import audited, last_per_key
from holdfast.storage.log.compaction import Compactor, Wishes
from holdfast.storage.log.log import LogReader, LogWriter, create_log, read_meta
from holdfast.storage.log.table import read_table
from holdfast.storage.objects import LocalObjects, MemoryObjects

JOB = "6f9b0f6e-0000-4000-8000-000000000001"
LEFT, RIGHT = Writer("out", Subtask(0)), Writer("out", Subtask(1))
SCHEMA = pa.schema(
    [
        pa.field("shop", pa.utf8()),
        pa.field("day", pa.int32(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
    ]
)
KEY = ("shop", "day")
Change = tuple[str, int, int | None]
"""Shop, day and value; no value deletes."""


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def changes(*given: Change) -> pa.RecordBatch:
    schema = SCHEMA.append(pa.field(OP, pa.int8(), nullable=False))
    loose = pa.schema([f.with_nullable(True) for f in schema])
    rows = [(shop, day, n, DELETE if n is None else PUT) for shop, day, n in given]
    batch = pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=loose)
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def sink(path: Path, key: tuple[str, ...] | None = KEY, expected: pa.Schema | None = None) -> LogSink:
    return LogSink(str(path / "log"), key, 3, expected)


def table(store: LocalObjects | MemoryObjects) -> dict[tuple[str, int], int]:
    rows = [row for each in read_table(store) for row in each.rows.to_pylist()]
    return {(row["shop"], row["day"]): row["n"] for row in rows}


def records(path: Path) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rows_in(path / "log")]


class TestPlanning:
    def test_an_upsert_stream_is_accepted_with_its_key_in_any_order(self, tmp_path: Path) -> None:
        sink(tmp_path, ("day", "shop")).check(SCHEMA, KEY)

    @pytest.mark.parametrize("key", [None, ("shop",), ("shop", "day", "n")])
    def test_another_key_than_the_streams_is_refused(self, tmp_path: Path, key: tuple[str, ...] | None) -> None:
        with pytest.raises(ConfigError, match=r"the stream replaces rows by \['shop', 'day'\]") as refused:
            sink(tmp_path, key).check(SCHEMA, KEY)
        assert refused.value.next_step == "give the sink key=['shop', 'day']"

    def test_a_row_with_the_column_of_the_mark_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="a row has the column 'holdfast_deleted'"):
            sink(tmp_path).check(SCHEMA.append(pa.field("holdfast_deleted", pa.bool_())), KEY)

    def test_a_key_that_cannot_choose_a_partition_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="the column 'f' of type double cannot be a key"):
            sink(tmp_path, ("f",)).check(pa.schema([("f", pa.float64()), ("n", pa.int64())]), ("f",))

    def test_declared_columns_may_forbid_nulls_that_only_deletes_have(self, tmp_path: Path) -> None:
        nullable = pa.schema([f.with_nullable(True) for f in SCHEMA])
        sink(tmp_path, expected=SCHEMA).check(nullable, KEY)

    def test_other_columns_than_declared_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="the schema given to hf.Log does not take the stream's columns"):
            sink(tmp_path, expected=SCHEMA.remove(2)).check(SCHEMA, KEY)

    def test_a_null_as_key_is_refused_before_it_is_staged(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="1 rows have no value in the key column 'shop'"):
            sink(tmp_path).accept(changes((None, 1, 1)))  # type: ignore[arg-type]
        sink(tmp_path).accept(changes(("a", 1, None)))


class TestPreparing:
    def test_a_missing_log_is_created_as_a_changelog(self, tmp_path: Path) -> None:
        sink(tmp_path).prepare(SCHEMA, KEY)
        meta = read_meta(LocalObjects(tmp_path / "log"))
        assert meta is not None and (meta.changelog, meta.key, meta.partitions) == (True, KEY, 3)
        assert meta.schema.names == ["holdfast_deleted", "shop", "day", "n"]
        sink(tmp_path, ("day", "shop")).prepare(SCHEMA, KEY)
        assert read_meta(LocalObjects(tmp_path / "log")) == meta, "the order of the key stays that of the log"

    def test_a_log_that_is_no_changelog_is_refused(self, tmp_path: Path) -> None:
        create_log(LocalObjects(tmp_path / "log"), SCHEMA, key=KEY)
        with pytest.raises(ConfigError, match="the log is not a changelog") as refused:
            sink(tmp_path).prepare(SCHEMA, KEY)
        assert refused.value.next_step == "name another log; a missing one is created as a changelog"

    def test_an_append_stream_into_a_changelog_is_refused(self, tmp_path: Path) -> None:
        sink(tmp_path).prepare(SCHEMA, KEY)
        with pytest.raises(ConfigError, match="from several writers in any order") as refused:
            sink(tmp_path).prepare(SCHEMA, None)
        assert refused.value.next_step == "aggregate the stream by shop, day first, or name another log"

    def test_a_changelog_with_another_key_or_other_columns_is_refused(self, tmp_path: Path) -> None:
        for name, key in (("less", ["shop"]), ("more", ["shop", "day", "n"])):
            create_log(LocalObjects(tmp_path / name / "log"), SCHEMA, key=key, changelog=True)
            with pytest.raises(ConfigError, match=r"the log is partitioned by .*, the sink by \['shop', 'day'\]"):
                sink(tmp_path / name).prepare(SCHEMA, KEY)
        sink(tmp_path).prepare(SCHEMA, KEY)
        with pytest.raises(ConfigError, match="the log does not take the stream's columns"):
            sink(tmp_path).prepare(SCHEMA.append(pa.field("more", pa.int64())), KEY)

    def test_a_changelog_with_more_columns_takes_what_it_took_before(self, tmp_path: Path) -> None:
        sink(tmp_path).prepare(SCHEMA, KEY)
        LogWriter(LocalObjects(tmp_path / "log")).grow(pa.schema([pa.field("more", pa.utf8())]))
        sink(tmp_path).prepare(SCHEMA, KEY)
        assert sink(tmp_path).open(JOB, LEFT).deliver(tag(1), [changes(("a", 1, 5))]) == Delivered(1)
        assert records(tmp_path) == [(False, "a", 1, 5, None)]


class TestDelivering:
    def test_the_mark_tells_puts_from_deletes_and_deletes_have_no_value(self, tmp_path: Path) -> None:
        made = sink(tmp_path)
        made.prepare(SCHEMA, KEY)
        batch = changes(("a", 1, 5), ("b", 2, 7))
        ops = pa.array([PUT, DELETE], pa.int8())  # a value that came with a delete is none of the table's
        batch = batch.set_column(3, batch.schema.field(OP), ops)
        made.open(JOB, LEFT).deliver(tag(1), [batch])
        assert sorted(records(tmp_path)) == [(False, "a", 1, 5), (True, "b", 2, None)]

    def test_only_the_last_change_of_a_key_in_several_parts_is_delivered(self, tmp_path: Path) -> None:
        """P8: the parts are those of epochs that did not complete."""
        made = sink(tmp_path)
        made.prepare(SCHEMA, KEY)
        parts = [changes(("a", 1, 5), ("b", 2, 7)), changes(("a", 1, None)), changes(("b", 2, 8), ("c", 3, 9))]
        assert made.open(JOB, LEFT).deliver(tag(1), parts) == Delivered(3)
        assert sorted(records(tmp_path)) == [(False, "b", 2, 8), (False, "c", 3, 9), (True, "a", 1, None)]

    def test_rows_without_an_operation_are_refused_by_a_changelog_and_the_other_way_round(self, tmp_path: Path) -> None:
        create_log(LocalObjects(tmp_path / "yes"), SCHEMA, key=KEY, changelog=True)
        create_log(LocalObjects(tmp_path / "no"), SCHEMA, key=KEY)
        batch = changes(("a", 1, 5))
        plain = batch.select(SCHEMA.names)
        for path, rows in (("yes", plain), ("no", batch)):
            with pytest.raises(ConfigError, match="the log has the columns"):
                LogSink(str(tmp_path / path), KEY).open(JOB, LEFT).deliver(tag(1), [rows])
            assert LogReader(LocalObjects(tmp_path / path)).newest().sequence == 0


class TestAudit:
    def query(self) -> AuditQuery:
        return AuditQuery(JOB, "out", SCHEMA, KEY, Epoch(0))

    def test_digests_of_deliveries_are_those_of_the_staged_parts(self, tmp_path: Path) -> None:
        made = sink(tmp_path)
        made.prepare(SCHEMA, KEY)
        first, second = changes(("a", 1, 5), ("b", 2, None)), changes(("a", 1, None), ("c", 3, 1))
        for epoch, batch in ((1, first), (2, second)):
            made.open(JOB, LEFT).deliver(tag(epoch), [batch])
        found = made.contents(self.query())
        assert found.rows == {
            (LEFT.subtask, tag(1)): audited(pa.table(first), KEY),
            (LEFT.subtask, tag(2)): audited(pa.table(second), KEY),
        }
        assert not found.untagged and not found.wrong

    def test_a_put_in_place_of_a_delete_changes_the_digest(self, tmp_path: Path) -> None:
        made = sink(tmp_path)
        made.prepare(SCHEMA, KEY)
        made.open(JOB, LEFT).deliver(tag(1), [changes(("a", 1, None))])
        (found,) = made.contents(self.query()).rows.values()
        put = pa.table(changes(("a", 1, 0))).set_column(2, SCHEMA.field(2).with_nullable(True), pa.nulls(1, pa.int64()))
        assert found.rows == 1 and found != audited(put, KEY)

    def test_a_grown_log_gives_the_same_digests(self, tmp_path: Path) -> None:
        made = sink(tmp_path)
        made.prepare(SCHEMA, KEY)
        batch = changes(("a", 1, 5), ("b", 2, None))
        made.open(JOB, LEFT).deliver(tag(1), [batch])
        LogWriter(LocalObjects(tmp_path / "log")).grow(pa.schema([pa.field("more", pa.utf8())]))
        assert list(made.contents(self.query()).rows.values()) == [audited(pa.table(batch), KEY)]


class Faulty(MemoryObjects):
    """A store on which writes fail, before or after they take effect, as told."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: list[str] = []

    def put(self, path: str, data: bytes) -> None:
        self._fail("put")
        super().put(path, data)

    def create(self, path: str, data: bytes) -> None:
        self._fail("create")
        super().create(path, data)
        self._fail("reply")

    def _fail(self, at: str) -> None:
        if self.fails and self.fails[0] == at:
            raise Unavailable(f"fails at {at}", next_step="again")


CHANGES = st.dictionaries(st.integers(0, 4), st.one_of(st.none(), st.integers(0, 9)), max_size=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), st.integers(0, 1), st.lists(CHANGES, min_size=1, max_size=3)),
        st.tuples(st.sampled_from(["put", "create", "reply"]), st.integers(0, 1), st.lists(CHANGES, min_size=1)),
        st.tuples(st.just("again"), st.integers(0, 1), st.just([])),
        st.tuples(st.just("rewind"), st.integers(0, 3), st.just([])),
        st.tuples(st.just("compact"), st.integers(0, 1), st.just([])),
    ),
    max_size=14,
)


class Played:
    """Two writers with keys of their own, the deliveries that count, and a dictionary."""

    def __init__(self) -> None:
        self.store = Faulty()
        create_log(self.store, SCHEMA, 2, KEY, changelog=True)
        self.epoch, self.timeline = 0, 1
        self.past: list[tuple[int, Writer, list[pa.RecordBatch]]] = []

    def target(self, writer: Writer) -> LogTarget:
        return LogTarget("log", lambda: self.store, JOB, writer, pause=lambda _: None)

    def deliver(self, writer: Writer, parts: Sequence[dict[int, int | None]], fault: str | None = None) -> None:
        """Deliver an epoch; if it fails, a restarted writer does."""
        self.epoch += 1
        shop = f"shop {writer.subtask}"
        batches = [changes(*((shop, day, n) for day, n in part.items())) for part in parts if part]
        now = tag(self.epoch, self.timeline)
        done: Outcome | None = None
        if fault is not None:
            self.store.fails = [fault]
            try:
                done = self.target(writer).deliver(now, batches)
            except Unavailable:
                pass
            self.store.fails = []
        if done is None:
            done = self.target(writer).deliver(now, batches)
            assert isinstance(done, Delivered) == (fault != "reply")
        self.past.append((self.epoch, writer, batches))

    def again(self, writer: Writer) -> None:
        """A zombie delivers once more what came last."""
        mine = [each for each in self.past if each[1] == writer]
        if mine and self.target(writer).delivered() == tag(mine[-1][0], self.timeline):
            epoch, _, batches = mine[-1]
            standing = tag(epoch, self.timeline)
            assert self.target(writer).deliver(standing, batches) == AlreadyDelivered(standing)

    def rewind(self, epochs: int) -> None:
        base = max(0, self.epoch - epochs)
        to = Rewinding(JOB, "out", tag(base, self.timeline + 1), (LEFT, RIGHT))
        if plan_repair("log", self.store, to).verdict == "impossible":
            assert LogReader(self.store).newest().compact
            with pytest.raises(ConfigError):
                repair("log", self.store, to, pause=lambda _: None)
            return
        repair("log", self.store, to, pause=lambda _: None)
        self.timeline += 1
        self.past = [each for each in self.past if each[0] <= base]

    def wanted(self) -> dict[tuple[str, int], int]:
        found: dict[tuple[str, int], int] = {}
        for _, _, batches in self.past:
            for batch in batches:
                for row in batch.to_pylist():
                    found.pop((row["shop"], row["day"]), None)
                    if row[OP] == PUT:
                        found[row["shop"], row["day"]] = row["n"]
        return found


class TestAnyHistory:
    @given(steps=STEPS)
    @settings(max_examples=120, deadline=None)
    def test_the_table_equals_a_dictionary_through_crashes_rewinds_and_compactions(
        self, steps: list[tuple[str, int, list[dict[int, int | None]]]]
    ) -> None:
        played = Played()
        for kind, number, parts in steps:
            writer = (LEFT, RIGHT)[number % 2]
            match kind:
                case "rewind":
                    played.rewind(number)
                case "again":
                    played.again(writer)
                case "compact":
                    Compactor(played.store, pause=lambda _: None).compact(Wishes(0, (0, 10**15)[number]))
                case _:
                    played.deliver(writer, parts, None if kind == "deliver" else kind)
            assert table(played.store) == played.wanted()
        self.check_audit(played)

    @staticmethod
    def check_audit(played: Played) -> None:
        """What is left of each delivery has the digest of the last change of each of its keys."""
        found = contents("log", played.store, AuditQuery(JOB, "out", SCHEMA, KEY, Epoch(0)))
        assert not found.wrong and not found.untagged
        for epoch, writer, batches in played.past:
            at = [(w, t) for w, t in found.rows if (w, t.epoch) == (writer.subtask, epoch)]
            if at and batches:
                whole = last_per_key(pa.Table.from_batches(batches), KEY)
                assert [found.rows[each] for each in at] == [audited(whole, KEY)]
