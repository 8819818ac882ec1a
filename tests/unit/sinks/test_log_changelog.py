"""A log as the topic of a changelog: what it refuses, what it gives as of an epoch, and how far it is compacted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import ConfigError, Damaged
from holdfast.model import CHANGELOG, EPOCH_MAX, NO_EPOCH, Epoch, Generation, Stretch, Subtask, Tag, Timeline, Writer
from holdfast.runtime.cli.main import main
from holdfast.sinks.contract.changelogs import ROOT, AsOf, CompactedMeanwhile, check_holds, check_reaches, partitions_of
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.contract.sink import Rewinding
from holdfast.sinks.contract.target import OP
from holdfast.sinks.log.changelog import LogChangelog, TopicSink
from holdfast.sinks.log.sink import LogSink
from holdfast.state.records import KEY, RECORDS
from holdfast.storage.log.changelog import DELETED
from holdfast.storage.log.compaction import Compactor, Wishes
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.log.reader import read_meta
from holdfast.storage.objects import LocalObjects

JOB, GROUPS = "1" * 32, 8
FIRST = (Stretch(Timeline(1), Epoch(1), EPOCH_MAX),)


class Topic:
    """A topic of four partitions and eight key groups; a key is its key group and a letter."""

    def __init__(self, folder: Path) -> None:
        self.place = LogChangelog(str(folder / "topic"), 4, compacted_from=1, grace_s=0.0)
        self.objects = LocalObjects(folder / "topic")
        self.sink.prepare(RECORDS, KEY)

    @property
    def sink(self) -> TopicSink:
        return TopicSink(LogSink(self.place.path, KEY, 4), GROUPS)

    def deliver(self, writer: int, epoch: int, rows: Mapping[str, int | None], timeline: int = 1) -> None:
        """Deliver rows by key, such as "3a"; None deletes."""
        keys = [key_of(name) for name in rows]
        values = [None if value is None else f"{value}".encode() for value in rows.values()]
        count = len(keys)
        batch = pa.RecordBatch.from_pydict(
            {
                "operator": ["op"] * count,
                "key": pa.array(keys, pa.large_binary()),
                "epoch": [epoch] * count,
                **{name: pa.array(["{}"] * count) for name in ("row_key", "row", "layout")},
                "value": pa.array(values, pa.large_binary()),
                OP: pa.array([int(value is None) for value in values], pa.int8()),
            },
            schema=RECORDS.append(pa.field(OP, pa.int8(), nullable=False)),
        )
        target = self.sink.open(JOB, Writer(CHANGELOG, Subtask(writer)), Claim("first", Generation(1)))
        target.deliver(Tag(Timeline(timeline), Epoch(epoch)), [batch])
        target.close()

    def state(
        self,
        through: int,
        history: Sequence[Stretch] = FIRST,
        after: int = 0,
        key_groups: tuple[int, int] = (0, GROUPS),
    ) -> dict[str, int | None]:
        """Return what the records of an epoch leave, by key; None for a key that was deleted."""
        found: dict[str, int | None] = {}
        which = AsOf(JOB, tuple(history), Epoch(through), Epoch(after), key_groups, GROUPS)
        for batch in self.place.open(JOB).records(which):
            for row in batch.to_pylist():
                group, letter = row["key"][3], row["key"][4:].decode()
                if key_groups[0] <= group < key_groups[1]:
                    found[f"{group}{letter}"] = None if row[DELETED.name] else int(row["value"])
        return found

    def rewind(self, epoch: int, timeline: int, writers: int = 2) -> None:
        to = Tag(Timeline(timeline), Epoch(epoch))
        every = tuple(Writer(CHANGELOG, Subtask(n)) for n in range(writers))
        self.sink.repair(Rewinding(JOB, CHANGELOG, to, every), RECORDS, KEY)


def key_of(name: str) -> bytes:
    return b"\x00\x01\x00" + bytes([int(name[0])]) + name[1:].encode()


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    return Topic(tmp_path)


class TestReads:
    def test_are_as_of_an_epoch(self, topic: Topic) -> None:
        topic.deliver(0, 1, {"0a": 1, "1a": 1})
        topic.deliver(1, 1, {"7a": 1})
        topic.deliver(0, 2, {"0a": 2, "1a": None})
        assert topic.state(1) == {"0a": 1, "1a": 1, "7a": 1}
        assert topic.state(2) == {"0a": 2, "1a": None, "7a": 1}
        assert topic.state(2, after=1) == {"0a": 2, "1a": None}
        assert topic.place.open(JOB).delivered == {0: 2, 1: 1}

    def test_reads_of_some_key_groups_read_only_their_partitions(self, topic: Topic) -> None:
        topic.deliver(0, 1, {f"{group}a": group for group in range(GROUPS)})
        for path in topic.objects.list("data/0") + topic.objects.list("data/3"):
            topic.objects.delete(path)
        assert topic.state(1, key_groups=(2, 6)) == {f"{group}a": group for group in range(2, 6)}
        with pytest.raises(Damaged, match="is missing"):
            topic.state(1, key_groups=(1, 6))

    def test_leave_out_an_abandoned_timeline_that_is_not_taken_back_yet(self, topic: Topic) -> None:
        topic.deliver(0, 4, {"0a": 4})
        topic.deliver(1, 6, {"5a": 6})
        topic.deliver(0, 6, {"0a": 6, "0b": 6})
        rewound = (Stretch(Timeline(1), Epoch(1), Epoch(4)), Stretch(Timeline(2), Epoch(100), EPOCH_MAX))
        assert topic.state(4, rewound) == topic.state(100, rewound) == {"0a": 4}

    def test_are_the_same_after_the_repair_of_a_rewind(self, topic: Topic) -> None:
        topic.deliver(0, 4, {"0a": 4})
        topic.deliver(0, 6, {"0a": 6, "0b": 6})
        topic.rewind(4, 2)
        rewound = (Stretch(Timeline(1), Epoch(1), Epoch(4)), Stretch(Timeline(2), Epoch(100), EPOCH_MAX))
        assert topic.state(4, rewound) == {"0a": 4}
        topic.deliver(0, 100, {"0c": 100}, timeline=2)
        assert topic.state(100, rewound) == {"0a": 4, "0c": 100}
        assert topic.state(100, rewound, after=4) == {"0c": 100}

    def test_refuse_records_that_the_job_did_not_write(self, topic: Topic) -> None:
        topic.deliver(0, 1, {"0a": 1})
        schema = LogReader(topic.objects).meta.schema
        row = {"holdfast_deleted": False, "operator": "op", "key": key_of("0a"), "row": "{}"}
        rows = {name: [row.get(name)] for name in schema.names}
        LogWriter(topic.objects).append({0: pa.table(rows, schema=schema)})
        with pytest.raises(Damaged, match="commit 2 holds records that this job did not write"):
            topic.state(1)

    def test_are_a_table_for_everybody_else(self, topic: Topic) -> None:
        topic.deliver(0, 1, {"0a": 1, "1a": 1})
        topic.deliver(0, 2, {"0a": 2, "1a": None})
        assert hf.log(topic.place.path, as_table=True).select("key", "epoch").collect().rows() == [(key_of("0a"), 2)]
        assert len(hf.log(topic.place.path).collect()) == 4


class TestPartitions:
    def test_are_ranges_of_key_groups(self) -> None:
        keys = pa.array([key_of(f"{group}x") for group in range(GROUPS)], pa.large_binary())
        assert partitions_of(keys, 4, GROUPS).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        assert partitions_of(keys.slice(2, 3), 3, GROUPS).tolist() == [0, 1, 1]

    def test_are_no_more_than_key_groups(self, tmp_path: Path) -> None:
        sink = LogChangelog(str(tmp_path / "few"), 64).sink(RECORDS, KEY, GROUPS)
        sink.prepare(RECORDS, KEY)
        meta = read_meta(LocalObjects(tmp_path / "few"))
        assert meta is not None and meta.partitions == GROUPS and meta.changelog


class TestCompaction:
    def test_leaves_what_every_epoch_from_the_horizon_on_needs(self, topic: Topic) -> None:
        for epoch in range(1, 7):
            topic.deliver(0, epoch, {"0a": epoch, f"1{chr(96 + epoch)}": epoch})
            topic.deliver(1, epoch, {"7a": None if epoch % 2 else epoch})
        before = {epoch: topic.state(epoch) for epoch in range(4, 7)}
        assert topic.place.compaction(JOB).compact("first", FIRST, Epoch(4))
        assert topic.place.open(JOB).floor == 4
        assert {epoch: topic.state(epoch) for epoch in range(4, 7)} == before
        assert topic.state(6, after=4) == {"0a": 6, "1e": 5, "1f": 6, "7a": 6}
        assert LogReader(topic.objects).rows(0) < 12, "records that were replaced are gone"

    def test_is_left_out_while_it_is_not_worth_it(self, topic: Topic) -> None:
        for epoch in range(1, 4):
            topic.deliver(0, epoch, {"0a": epoch})
        assert not replace(topic.place, compacted_from=1 << 20).compaction(JOB).compact("first", FIRST, Epoch(3))
        assert topic.place.compaction(JOB).compact("first", FIRST, Epoch(3))
        assert not topic.place.compaction(JOB).compact("first", FIRST, Epoch(3))

    def test_is_left_to_the_driver_that_owns_the_topic(self, topic: Topic) -> None:
        """The checkpoints of another history may need more."""
        for epoch in range(1, 4):
            topic.deliver(0, epoch, {"0a": epoch})
        assert not topic.place.compaction(JOB).compact("copy", FIRST, Epoch(3))
        assert topic.place.open(JOB).floor == NO_EPOCH

    def test_waits_for_a_rewind_to_be_repaired(self, topic: Topic) -> None:
        topic.deliver(0, 3, {"0a": 3})
        topic.deliver(0, 6, {"0a": 6})
        rewound = (Stretch(Timeline(1), Epoch(1), Epoch(4)), Stretch(Timeline(2), Epoch(100), EPOCH_MAX))
        assert topic.place.compaction(JOB).compact("first", rewound, Epoch(100))
        assert topic.place.open(JOB).floor == 3
        topic.rewind(4, 2)
        topic.deliver(0, 100, {"0b": 100}, timeline=2)
        assert topic.place.compaction(JOB).compact("first", rewound, Epoch(100))
        assert topic.place.open(JOB).floor == 100
        assert topic.state(100, rewound) == {"0a": 3, "0b": 100}

    def test_beyond_an_epoch_makes_it_refused(self, topic: Topic) -> None:
        topic.deliver(0, 1, {"0a": 1})
        topic.deliver(0, 2, {"0a": 2})
        Compactor(topic.objects, pause=lambda _: None).compact(Wishes(0, 0))
        found = topic.place.open(JOB)
        check_reaches("topic", found, Epoch(2))
        with pytest.raises(ConfigError, match="compacted through epoch 2, and no longer holds the state as of epoch 1"):
            check_reaches("topic", found, Epoch(1))

    def test_by_another_process_in_between_takes_it_no_further(self, topic: Topic) -> None:
        for epoch in range(1, 6):
            topic.deliver(0, epoch, {"0a": epoch})
        compactor = Compactor(topic.objects, pause=lambda _: None)
        compactor.compact(Wishes(0, 0, through_max=3))
        assert topic.place.open(JOB).floor == 3
        assert not compactor.compact(Wishes(0, 0, through_max=2)).committed
        assert topic.place.open(JOB).floor == 3 and topic.state(5) == {"0a": 5}

    def test_interrupts_a_read_that_was_opened_before(self, topic: Topic) -> None:
        for epoch in range(1, 4):
            topic.deliver(0, epoch, {"0a": epoch})
        read = topic.place.open(JOB).records(AsOf(JOB, FIRST, Epoch(3), NO_EPOCH, (0, GROUPS), GROUPS))
        next(read)
        assert topic.place.compaction(JOB).compact("first", FIRST, Epoch(3))
        with pytest.raises(CompactedMeanwhile):
            list(read)


class TestRefusals:
    def test_a_log_that_is_not_a_changelog_is_refused(self, tmp_path: Path) -> None:
        create_log(LocalObjects(tmp_path / "topic"), RECORDS, 4, KEY)
        with pytest.raises(ConfigError, match="a log without deletes"):
            Topic(tmp_path)

    def test_a_changelog_with_other_columns_is_refused(self, tmp_path: Path) -> None:
        create_log(LocalObjects(tmp_path / "topic"), pa.schema(list(RECORDS)[:3]), 4, KEY, changelog=True)
        with pytest.raises(ConfigError, match="does not take the stream's columns"):
            Topic(tmp_path)

    def test_another_number_of_partitions_is_refused(self, tmp_path: Path) -> None:
        create_log(LocalObjects(tmp_path / "topic"), RECORDS, 3, KEY, changelog=True)
        with pytest.raises(ConfigError, match="has 3 partitions, but the job asks for 4"):
            Topic(tmp_path)

    def test_a_sealed_log_is_refused(self, topic: Topic, tmp_path: Path) -> None:
        LogWriter(topic.objects).seal()
        with pytest.raises(ConfigError, match="sealed"):
            Topic(tmp_path)

    def test_records_of_another_job_are_refused(self, topic: Topic) -> None:
        topic.deliver(0, 1, {"0a": 1})
        topic.sink.check_owner(JOB, CHANGELOG)
        for other in ("2" * 32, None):
            with pytest.raises(ConfigError, match="records of another job or sink, 1111"):
                topic.sink.check_owner(other, CHANGELOG)

    def test_records_that_no_job_wrote_are_refused(self, topic: Topic) -> None:
        schema = LogReader(topic.objects).meta.schema
        row = {"holdfast_deleted": False, "operator": "op", "key": key_of("0a")}
        LogWriter(topic.objects).append({0: pa.table({name: [row.get(name)] for name in schema.names}, schema=schema)})
        with pytest.raises(ConfigError, match="records that no job wrote"):
            topic.sink.check_owner(None, CHANGELOG)

    def test_a_topic_that_lost_deliveries_is_refused(self, topic: Topic) -> None:
        topic.deliver(0, 3, {"0a": 1})
        found = topic.place.open(JOB)
        check_holds("topic", found, {Subtask(0): Epoch(3)})
        for delivered in ({Subtask(0): Epoch(4)}, {Subtask(1): Epoch(1)}):
            with pytest.raises(Damaged, match="restored from a backup, replaced or emptied"):
                check_holds("topic", found, delivered)

    def test_a_missing_log_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="no log"):
            LogChangelog(str(tmp_path / "none"), 4).open(JOB)

    def test_a_log_with_its_own_columns_or_key_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="given with key"):
            hf.App("job", changelog=hf.Log(tmp_path, key=["operator"]))

    @pytest.mark.parametrize("given", ["topic", None, hf.SQLite("x.db", table="t")])
    def test_an_object_that_cannot_hold_a_changelog_is_refused(self, given: object) -> None:
        with pytest.raises(ConfigError, match=r"changelog=.* cannot hold the changelog of a job"):
            hf.App("job", changelog=given)  # type: ignore[arg-type]


class TestCommands:
    @pytest.mark.parametrize("command", [["compact", "--older-than", "0s"], ["append"]])
    def test_commands_that_would_change_the_changelog_are_refused(
        self, topic: Topic, command: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        topic.deliver(0, 1, {"0a": 1})
        before = topic.objects.list("")
        name, *flags = command
        assert main(["log", name, topic.place.path, *flags]) == 2
        assert f"is the changelog of job {JOB}" in capsys.readouterr().err
        assert topic.objects.list("") == before


class TestRoot:
    def test_holds_nothing_and_takes_nothing(self) -> None:
        found = ROOT.open(JOB)
        assert found.empty and not found.delivered and found.floor == NO_EPOCH
        assert ROOT.sink(RECORDS, KEY, GROUPS) is None and ROOT.in_memory("x") is ROOT
        assert not list(found.records(AsOf(JOB, FIRST, Epoch(1), NO_EPOCH, (0, 1), GROUPS)))
        assert not ROOT.compaction(JOB).compact("first", FIRST, Epoch(1))
