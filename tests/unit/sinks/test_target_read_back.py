"""Deliveries read back from SQLite tables and logs, compared with the staged rows."""

from __future__ import annotations

import datetime as dt
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from other_dialect import OtherTable

import holdfast as hf
from holdfast.errors import Unavailable
from holdfast.model import Epoch, RowDigest, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.audited import AuditQuery, Gone, TargetContents
from holdfast.sinks.contract.sink import Rewinding
from holdfast.sinks.log.audit import contents
from holdfast.sinks.protocol.staging import Stage, StagedPart, decode
from holdfast.sinks.sql.audit import contents as table_shown
from holdfast.storage.digests import NOTHING
from holdfast.storage.local import LocalObjects
from holdfast.storage.log.compaction import Compactor, Wishes
from holdfast.storage.log.log import LogWriter, create_log

pytestmark = pytest.mark.thorough

JOB = "job"
SCHEMA = pa.schema(
    [
        pa.field("k", pa.int32(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("x", pa.float64()),
        pa.field("small", pa.float32()),
        pa.field("text", pa.large_string()),
        pa.field("raw", pa.binary()),
        pa.field("yes", pa.bool_()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("day", pa.date32()),
        pa.field("byte", pa.uint8()),
    ]
)
row = st.fixed_dictionaries(
    {
        "k": st.integers(0, 3),
        "name": st.sampled_from(["a", "b'\"", "é\x00"]),
        "x": st.none() | st.floats(),
        "small": st.none() | st.floats(width=32),
        "text": st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
        "raw": st.none() | st.binary(max_size=4),
        "yes": st.none() | st.booleans(),
        "at": st.none() | st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31), timezones=st.just(dt.UTC)),
        "day": st.none() | st.dates(),
        "byte": st.none() | st.integers(0, 255),
    }
)
KEY = ("k", "name")
KEYED = pa.schema([("k", pa.int64())])
deliveries = st.lists(st.tuples(st.integers(0, 1), st.lists(st.tuples(row, st.booleans()), max_size=6)), max_size=6)


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def staged(rows: list[tuple[dict[str, Any], bool]], upsert: bool) -> StagedPart | None:
    """Return the part; of an upsert stream, those marked are deletes."""
    stage = Stage(SCHEMA, KEY if upsert else None)
    for values, delete in rows:
        batch = pa.RecordBatch.from_pylist([values], schema=SCHEMA)
        stage.add(batch.append_column("_op", pa.array([int(delete)], pa.int8())) if upsert else batch)
    return stage.seal(hashed=True)


def ask(sink: Any, upsert: bool = False, after: int = 0, job: str = JOB) -> TargetContents:
    contents: TargetContents = sink.contents(AuditQuery(job, "out", SCHEMA, KEY if upsert else None, Epoch(after)))
    return contents


class TestReadBack:
    @settings(max_examples=40, deadline=None)
    @given(
        deliveries,
        st.sampled_from(["table", "keyed", "idempotent", "other table", "other keyed", "other idempotent", "log"]),
    )
    def test_has_the_digests_of_the_staged_rows(
        self, given: list[tuple[int, list[tuple[dict[str, Any], bool]]]], kind: str
    ) -> None:
        with TemporaryDirectory() as folder:
            upsert = kind.endswith(("keyed", "idempotent"))
            delivery = "idempotent" if kind.endswith("idempotent") else "transactional"
            made = OtherTable if kind.startswith("other") else hf.SQLite
            sink: Any = (
                hf.Log(f"{folder}/log", partitions=2).sink()
                if kind == "log"
                else made(f"{folder}/out.db", "out", KEY if upsert else None, delivery)
            )
            sink.prepare(SCHEMA, KEY if upsert else None)
            wanted: dict[tuple[int, Tag], RowDigest] = {}
            for epoch, (_, rows) in enumerate(given, 1):
                writer = Writer("out", Subtask(epoch % 2))
                # A key belongs to one writer.
                mine = [(values | {"k": values["k"] * 2 + writer.subtask}, delete) for values, delete in rows]
                part = staged(mine, upsert)
                with closing(sink.open(JOB, writer)) as target:
                    target.deliver(tag(epoch), [] if part is None else decode(part.data))
                if part is not None:
                    wanted[writer.subtask, tag(epoch)] = part.digest
            contents = ask(sink, upsert)
            assert {at: digest for at, digest in contents.rows.items() if digest.rows} == wanted
            assert not contents.wrong and not contents.untagged
            assert contents.others is None or len(contents.others.hashes) == 0


class TestTableWrittenDuringARead:
    """Between any two pieces of a read, deliveries come and before-images go."""

    @pytest.mark.parametrize("keyed", [False, True])
    @pytest.mark.parametrize(("seed", "forgets"), [(0, False), (1, False), (2, True), (3, True)])
    def test_shows_the_rows_as_of_the_start_of_the_read(
        self, tmp_path: Path, keyed: bool, seed: int, forgets: bool
    ) -> None:
        rng, sink = random.Random(seed), hf.SQLite(tmp_path / "out.db", "out", KEY if keyed else None)
        sink.prepare(SCHEMA, KEY if keyed else None)
        wanted: dict[tuple[Subtask, Tag], RowDigest] = {}
        epochs = iter(range(1, 13))

        def deliver() -> None:
            if (epoch := next(epochs, None)) is None:
                return
            writer = Writer("out", Subtask(epoch % 2))
            names = dict.fromkeys(SCHEMA.names) | {"name": "a"}
            rows = [
                (names | {"k": rng.randrange(4) * 2 + writer.subtask, "byte": epoch}, rng.random() < 0.3)
                for _ in range(4)
            ]
            part = staged(rows, keyed)
            assert part is not None
            with closing(sink.open(JOB, writer)) as target:
                target.deliver(tag(epoch), decode(part.data))
                if forgets and epoch > 8:
                    target.forget(tag(epoch - 8))
            if epoch <= 6:
                wanted[writer.subtask, tag(epoch)] = part.digest

        for _ in range(6):
            deliver()
        free = iter([keyed])  # without a key, the first piece is where the read begins

        def between() -> None:
            if next(free, True):
                deliver()

        query = AuditQuery(JOB, "out", SCHEMA, KEY if keyed else None, Epoch(0))
        found = table_shown(sink, query, between, 1 + seed % 3)
        assert next(epochs, 12) > 8
        assert found.standing == {0: tag(6), 1: tag(5)} and not found.wrong
        known = {at: digest for at, digest in wanted.items() if at[0] not in found.lost or at[1] > found.lost[at[0]]}
        assert known and {at: found.rows[at] for at in known} == known
        assert found.rows.keys() <= wanted.keys()
        assert found.others is None or forgets or len(found.others.hashes) == 0

    def test_counts_the_rows_of_other_keys_as_of_the_start_of_the_read(self, tmp_path: Path) -> None:
        sink = hf.SQLite(tmp_path / "out.db", "out", KEY)
        sink.prepare(SCHEMA, KEY)
        names, writer = dict.fromkeys(SCHEMA.names) | {"name": "a"}, Writer("out", Subtask(0))

        def deliver(epoch: int, **changed: bool) -> None:
            part = staged([(names | {"k": int(k[1:])}, delete) for k, delete in changed.items()], True)
            assert part is not None
            with closing(sink.open(JOB, writer)) as target:
                target.deliver(tag(epoch), decode(part.data))

        deliver(1, k1=False, k2=False, k3=False, k4=False)
        deliver(2, k4=False, k5=False, k6=False)
        between = iter(
            (
                lambda: deliver(3, k1=True, k2=False, k5=True, k7=False),
                lambda: deliver(4, k1=False, k8=False),
            )
        )
        query = AuditQuery(JOB, "out", SCHEMA, KEY, Epoch(1))
        found = table_shown(sink, query, lambda: next(between, lambda: None)())
        assert next(between, None) is None and found.standing == {0: tag(2)}
        assert found.unseen == 3  # 1, 2 and 3

    @pytest.mark.parametrize("key", [None, KEY])
    def test_is_read_again_after_a_rewind(self, tmp_path: Path, key: tuple[str, ...] | None) -> None:
        sink = hf.SQLite(tmp_path / "out.db", "out", key)
        sink.prepare(SCHEMA, None)
        for epoch in (1, 2, 3):
            part = staged([(dict.fromkeys(SCHEMA.names) | {"k": epoch, "name": "a"}, False)], False)
            assert part is not None
            with closing(sink.open(JOB, Writer("out", Subtask(0)))) as target:
                target.deliver(tag(epoch), decode(part.data))
        pieces: list[int] = []

        def between() -> None:
            pieces.append(len(pieces))
            if len(pieces) == 2:
                sink.repair(Rewinding(JOB, "out", tag(1, 2), (Writer("out", Subtask(0)),)), SCHEMA, None)

        found = table_shown(sink, AuditQuery(JOB, "out", SCHEMA, None, Epoch(0)), between, 1)
        assert found.standing == {0: tag(1, 2)}
        assert [at for at, digest in found.rows.items() if digest.rows] == [(0, tag(1))]

    def test_is_unavailable_if_every_attempt_is_disturbed(self, tmp_path: Path) -> None:
        sink = hf.SQLite(tmp_path / "out.db", "out", KEY)
        sink.prepare(SCHEMA, KEY)

        def between() -> None:
            with closing(sqlite3.connect(tmp_path / "out.db")) as db:
                db.execute("VACUUM")

        with pytest.raises(Unavailable, match="3 times"):
            table_shown(sink, AuditQuery(JOB, "out", SCHEMA, KEY, Epoch(0)), between)


class TestUnreadableDeliveries:
    def sink(self, folder: Path, key: tuple[str, ...] | None = None) -> hf.SQLite:
        sink = hf.SQLite(folder / "out.db", "out", key)
        sink.prepare(SCHEMA, None)
        for epoch in (1, 2, 3):
            part = staged([(self.row(epoch), False)], False)
            assert part is not None
            with closing(sink.open(JOB, Writer("out", Subtask(0)))) as target:
                target.deliver(tag(epoch), decode(part.data))
        return sink

    def row(self, number: int) -> dict[str, Any]:
        return dict.fromkeys(SCHEMA.names) | {"k": number, "name": "a"}

    def test_deliveries_without_before_images_are_reported_as_lost(self, tmp_path: Path) -> None:
        sink = self.sink(tmp_path)
        with closing(sink.open(JOB, Writer("out", Subtask(0)))) as target:
            target.forget(tag(2))
        contents = ask(sink)
        assert (contents.lost, list(contents.rows)) == ({0: tag(2)}, [(0, tag(3))])
        assert contents.others is not None and (len(contents.others.hashes), contents.others.older) == (2, 2)

    def test_output_that_a_rewind_undid_is_not_shown(self, tmp_path: Path) -> None:
        for key in (None, KEY):
            folder = tmp_path / str(key is None)
            folder.mkdir()
            sink = self.sink(folder, key)
            writer = Writer("out", Subtask(0))
            sink.repair(Rewinding(JOB, "out", tag(1, 2), (writer,)), SCHEMA, None)
            assert [at for at, found in ask(sink).rows.items() if found != NOTHING] == [(0, tag(1))]

    def test_a_missing_table_is_reported_as_missing(self, tmp_path: Path) -> None:
        sink = self.sink(tmp_path)
        with closing(sqlite3.connect(tmp_path / "out.db")) as db, db:
            db.execute("DROP TABLE out")
        with pytest.raises(Gone, match="are missing"):
            ask(sink)
        (tmp_path / "out.db").unlink()
        with pytest.raises(Gone, match="the file is missing"):
            ask(sink)

    def test_deliveries_of_other_jobs_are_not_shown(self, tmp_path: Path) -> None:
        assert ask(self.sink(tmp_path), job="another").rows == {}

    def test_a_value_that_no_row_of_the_job_can_have_is_reported(self, tmp_path: Path) -> None:
        sink = self.sink(tmp_path, KEY)
        with closing(sqlite3.connect(tmp_path / "out.db")) as db, db:
            db.execute("UPDATE out SET yes = 7 WHERE k = 2")
        assert ask(sink).wrong == {(0, tag(2)): "column 'yes' holds a value that is not a bool: 7"}


class Compacted(LocalObjects):
    """A folder of a log that is compacted, and swept, between the reader's reads of the commits and of a segment."""

    def __init__(self, root: Path, name: str) -> None:
        super().__init__(root)
        self._name, self._due = name, True

    def get(self, path: str) -> bytes:
        """Small segments are read whole."""
        if path.startswith(self._name) and self._due:
            self._due = False
            Compactor(LocalObjects(self.root), pause=lambda _: None).compact(Wishes(0, 10**15))
        return super().get(path)


class TestLogCompactedDuringARead:
    def log(self, folder: Path) -> LogWriter:
        create_log(LocalObjects(folder), KEYED, 1, ["k"])
        log = LogWriter(LocalObjects(folder))
        for epoch in (1, 2, 3):
            log.append_tagged({0: pa.table({"k": [1, epoch]}, KEYED)}, f"{JOB}/out/0", tag(epoch))
        return log

    def test_has_lost_deliveries_but_is_not_damaged(self, tmp_path: Path) -> None:
        self.log(tmp_path)
        found = contents("log", Compacted(tmp_path, "data/"), AuditQuery(JOB, "out", KEYED, None, Epoch(0)))
        assert (found.rows, found.lost, found.wrong) == ({}, {0: tag(3)}, {})

    def test_whose_segment_is_missing_for_another_reason_is_damaged(self, tmp_path: Path) -> None:
        self.log(tmp_path)
        next((tmp_path / "data" / "0").iterdir()).unlink()
        found = contents("log", LocalObjects(tmp_path), AuditQuery(JOB, "out", KEYED, None, Epoch(0)))
        assert len(found.wrong) == 1 and len(found.rows) == 2
