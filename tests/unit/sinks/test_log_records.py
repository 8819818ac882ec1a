"""Reads and compactions of a changelog of many commits: what they cost in requests, and what they report meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa
import pytest
from counted import BulkObjects

from holdfast.model import CHANGELOG, EPOCH_MAX, NO_EPOCH, Epoch, Generation, Stretch, Subtask, Tag, Timeline, Writer
from holdfast.ports import ObjectStore
from holdfast.sinks.contract.changelogs import AsOf, unseen
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.contract.sink import Rewinding
from holdfast.sinks.contract.target import OP
from holdfast.sinks.log.changelog import by_key_group
from holdfast.sinks.log.compacting import TopicCompaction, When
from holdfast.sinks.log.records import RecordsReader
from holdfast.sinks.log.sink import LogTarget, repair
from holdfast.state.records import KEY, RECORDS
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.log import LogReader, create_log
from holdfast.storage.log.reader import existing_meta
from holdfast.storage.objects import MemoryObjects

JOB, GROUPS, OWNER = "1" * 32, 8, "first"
FIRST = (Stretch(Timeline(1), Epoch(1), EPOCH_MAX),)
REWOUND = (Stretch(Timeline(1), Epoch(1), Epoch(2)), Stretch(Timeline(2), Epoch(100), EPOCH_MAX))


class Topic:
    """A topic of four partitions in memory; each delivery puts one row, of the epoch's key group."""

    def __init__(self, store: ObjectStore | None = None) -> None:
        self.objects = store or BulkObjects()
        create_log(self.objects, RECORDS, 4, KEY, changelog=True)
        self._targets: dict[int, LogTarget] = {}

    def deliver(self, epoch: int, writer: int = 0, timeline: int = 1) -> None:
        if writer not in self._targets:
            self._targets[writer] = LogTarget(
                "topic",
                lambda: self.objects,
                JOB,
                Writer(CHANGELOG, Subtask(writer)),
                claim=Claim(OWNER, Generation(1)),
                place=by_key_group(GROUPS),
            )
        self._targets[writer].deliver(Tag(Timeline(timeline), Epoch(epoch)), [row(epoch)])

    def rewind(self, epoch: int, timeline: int) -> None:
        to = Tag(Timeline(timeline), Epoch(epoch))
        repair("topic", self.objects, Rewinding(JOB, CHANGELOG, to, (Writer(CHANGELOG, Subtask(0)),)))

    def reader(self) -> RecordsReader:
        return RecordsReader("topic", JOB, self.objects, Commits(self.objects, existing_meta(self.objects)))

    def epochs(
        self,
        after: int = 0,
        through: int = 10_000,
        history: tuple[Stretch, ...] = FIRST,
        advanced: Callable[[int, int], object] = unseen,
    ) -> list[int]:
        which = AsOf(JOB, history, Epoch(through), Epoch(after), (0, GROUPS), GROUPS)
        return [n for batch in self.reader().read(which, advanced) for n in batch.column("epoch").to_pylist()]

    def compaction(self, segments_max: int = 100_000, bytes_min: int = 1) -> TopicCompaction:
        return TopicCompaction("topic", lambda: self.objects, JOB, When(bytes_min, 0.0, segments_max))

    def floor(self) -> int:
        reader = self.reader()
        return reader.floor


def row(epoch: int) -> pa.RecordBatch:
    texts = {name: ["{}"] for name in ("row_key", "row", "layout")}
    key = pa.array([b"\x00\x01\x00" + bytes([epoch % GROUPS]) + b"k"], pa.large_binary())
    columns = {"operator": ["op"], "key": key, "epoch": [epoch], **texts}
    columns |= {"value": pa.array([b"v"], pa.large_binary()), OP: pa.array([0], pa.int8())}
    return pa.RecordBatch.from_pydict(columns, schema=RECORDS.append(pa.field(OP, pa.int8(), nullable=False)))


class TestRead:
    def test_a_read_of_many_commits_requests_them_concurrently(self) -> None:
        topic = Topic()
        for epoch in range(1, 401):
            topic.deliver(epoch)
        assert isinstance(topic.objects, BulkObjects)
        topic.objects.requests.clear()
        assert topic.epochs() == list(range(1, 401))
        together, all_of_them = topic.objects.requests["get together"], topic.objects.requests["get"]
        assert 4 <= together <= 8 and 800 <= all_of_them < 820, topic.objects.requests

    def test_is_the_same_from_a_store_that_reads_one_after_another(self) -> None:
        topic = Topic(MemoryObjects())
        for epoch in range(1, 20):
            topic.deliver(epoch)
        assert topic.epochs() == list(range(1, 20)) and topic.epochs(after=7, through=9) == [8, 9]

    def test_a_read_of_the_last_epochs_does_not_open_all_commits(self) -> None:
        topic = Topic()
        for epoch in range(1, 401):
            topic.deliver(epoch)
        assert isinstance(topic.objects, BulkObjects)
        for after in (400, 399, 390, 380):
            topic.objects.requests.clear()
            assert topic.epochs(after=after) == list(range(after + 1, 401))
            assert topic.objects.requests["get"] < 2 * (400 - after) + 20, topic.objects.requests

    @pytest.mark.parametrize("seed", range(5))
    def test_after_any_epoch_finds_every_later_record(self, seed: int) -> None:
        """Through rewinds, and with writers that are behind others."""
        chance, topic, timeline, epoch = random.Random(seed), Topic(), 1, 0
        standing, kept, history = [0, 0], list[int](), list(FIRST)
        for _ in range(30):
            if chance.random() < 0.1 and kept:
                epoch, timeline = max(standing) + 100, timeline + 1
                base = chance.choice(kept)
                topic.rewind(base, timeline)
                standing, kept = [base, base], [each for each in kept if each <= base]
                history[-1] = Stretch(history[-1].timeline, history[-1].first, Epoch(base))
                history = [each for each in history if each.first <= base]
                history = [
                    each if each.last <= base else Stretch(each.timeline, each.first, Epoch(base)) for each in history
                ]
                history.append(Stretch(Timeline(timeline), Epoch(epoch), EPOCH_MAX))
            writer = chance.randrange(2)
            epoch = epoch + chance.randrange(2) if standing[writer] < epoch else max(standing) + 1
            topic.deliver(epoch, writer, timeline)
            standing[writer] = epoch
            kept.append(epoch)
        for after in {0, *kept}:
            assert sorted(topic.epochs(after=after, history=tuple(history))) == sorted(e for e in kept if e > after)

    def test_reports_that_it_advances_also_while_it_finds_nothing(self) -> None:
        topic, seen = Topic(), list[tuple[int, int]]()
        for epoch in range(1, 51):
            topic.deliver(epoch)
        assert topic.epochs(advanced=lambda *at: seen.append(at)) == list(range(1, 51))
        assert len(seen) == 100 and seen == sorted(seen, key=lambda at: at[0])
        assert seen[-1][0] == seen[-1][1] > 0 and all(done <= expected for done, expected in seen)
        assert seen[0][1] > 0.9 * seen[-1][1], "one commit is like the others"
        nothing = list[tuple[int, int]]()
        assert topic.epochs(history=REWOUND[1:], advanced=lambda *at: nothing.append(at)) == []
        assert len(nothing) == 50 and set(nothing) == {(0, 0)}


class TestCompaction:
    def test_does_not_look_at_a_commit_twice(self) -> None:
        topic = Topic()
        compaction = topic.compaction(bytes_min=1 << 30)
        assert isinstance(topic.objects, BulkObjects)
        for horizon in range(50, 401, 50):
            for epoch in range(horizon - 49, horizon + 1):
                topic.deliver(epoch)
            topic.objects.requests.clear()
            assert not compaction.compact(OWNER, FIRST, Epoch(horizon - 10))
            assert topic.objects.requests["get"] < 60, (horizon, topic.objects.requests)

    def test_looks_again_after_a_rewind(self) -> None:
        topic = Topic()
        compaction = topic.compaction(bytes_min=1 << 30)
        for epoch in range(1, 5):
            topic.deliver(epoch)
        assert not compaction.compact(OWNER, FIRST, Epoch(3))
        topic.rewind(2, 2)
        topic.deliver(100, timeline=2)
        assert not compaction.compact(OWNER, REWOUND, Epoch(100))
        scan = compaction._scan
        assert scan is not None and (scan.history, scan.best) == (REWOUND, 6)

    def test_looks_again_in_a_log_that_was_restored(self) -> None:
        topic = Topic()
        assert isinstance(topic.objects, BulkObjects)
        compaction = topic.compaction()
        topic.deliver(1)
        kept = dict(topic.objects._objects)
        topic.deliver(2)
        topic.deliver(3)
        assert compaction.compact(OWNER, FIRST, Epoch(2))
        topic.objects._objects = kept
        topic._targets.clear()
        topic.deliver(3)
        assert compaction.compact(OWNER, FIRST, Epoch(3)) and topic.epochs() == [1, 3]

    @pytest.mark.parametrize("segments_max", [1, 2, 3, 100])
    def test_ends_where_no_writer_is_beyond_the_horizon_however_many_segments_there_are(
        self, segments_max: int
    ) -> None:
        """Epochs 3 to 6 were taken back: behind each of their commits, a retained checkpoint would be refused."""
        topic = Topic()
        for epoch in range(1, 7):
            topic.deliver(epoch)
        topic.rewind(2, 2)
        compaction, floors = topic.compaction(segments_max), list[int]()
        while compaction.compact(OWNER, REWOUND, Epoch(2)):
            floors.append(topic.floor())
            assert topic.epochs(history=REWOUND, through=2) == [1, 2]
        assert floors and max(floors) <= 2
        topic.deliver(100, timeline=2)
        assert topic.epochs(history=REWOUND) == [1, 2, 100]

    def test_a_compaction_of_many_small_segments_does_not_wait_until_they_are_large(self) -> None:
        topic = Topic()
        compaction = topic.compaction(segments_max=10, bytes_min=1 << 30)
        for epoch in range(1, 10):
            topic.deliver(epoch)
        assert not compaction.compact(OWNER, FIRST, Epoch(9))
        topic.deliver(10)
        assert compaction.compact(OWNER, FIRST, Epoch(10)) and topic.floor() == 10 != NO_EPOCH
        assert LogReader(topic.objects).newest().compact
