"""A Kafka topic as the topic of a changelog: its records, what it gives as of an epoch, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from kafka_changelogs import FakeFeed, FakeTopic, InMemory, ready
from kafka_fake import FakeConnection, FakeProducer, as_records
from kafka_server import ANSWER_WITHIN_S, PASSWORD, USER, KafkaServer

import holdfast as hf
from holdfast.errors import ConfigError, Damaged, HoldfastError, NotAdmitted, Unavailable
from holdfast.model import CHANGELOG, EPOCH_MAX, Epoch, Generation, Stretch, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.changelogs import AsOf, CompactedMeanwhile, shown_place
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.contract.sink import Rewinding
from holdfast.sinks.contract.target import OP, Delivered, Fault, FaultPoint, no_fault
from holdfast.sinks.kafka.changelog.brokers import BrokerFeed
from holdfast.sinks.kafka.changelog.compacting import KafkaCompaction
from holdfast.sinks.kafka.changelog.format import Broken, Decoder, Encoder
from holdfast.sinks.kafka.changelog.reading import FeedRecord, RecordsGone
from holdfast.sinks.kafka.changelog.sink import Brokers, KafkaChangelog, KafkaTopicSink
from holdfast.sinks.kafka.progress import progress_topic, tag_record
from holdfast.sinks.kafka.sink import KafkaSink, transactional_id
from holdfast.sinks.kafka.target import EachRow, KafkaTarget, Records
from holdfast.state.records import KEY, RECORDS
from holdfast.storage.kafka.place import KafkaPlace, Option

JOB, GROUPS = "1" * 32, 8
WRITER = Writer(CHANGELOG, Subtask(0))
CLAIM = Claim("first", Generation(1))
FIRST = (Stretch(Timeline(1), Epoch(1), EPOCH_MAX),)
REWOUND = (Stretch(Timeline(1), Epoch(1), Epoch(4)), Stretch(Timeline(2), Epoch(100), EPOCH_MAX))


def key_of(name: str) -> bytes:
    return b"\x00\x01\x00" + bytes([int(name[0])]) + name[1:].encode()


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def rewinding(epoch: int, timeline: int) -> Rewinding:
    return Rewinding(JOB, CHANGELOG, tag(epoch, timeline), (WRITER, Writer(CHANGELOG, Subtask(1))), CLAIM)


def changes(epoch: int, rows: Mapping[str, bytes | None]) -> pa.RecordBatch:
    """Return records by key, such as "3a", whose first letter is the key group; None deletes."""
    count, texts = len(rows), {"row_key": '{"k":1}', "row": '{"n":[1]}', "layout": '[["1","int64"]]'}
    return pa.RecordBatch.from_pydict(
        {
            "operator": ["op"] * count,
            "key": pa.array([key_of(name) for name in rows], pa.large_binary()),
            "epoch": [epoch] * count,
            **{name: pa.array([text] * count) for name, text in texts.items()},
            "value": pa.array(list(rows.values()), pa.large_binary()),
            OP: pa.array([int(value is None) for value in rows.values()], pa.int8()),
        },
        schema=RECORDS.append(pa.field(OP, pa.int8(), nullable=False)),
    )


class Topic:
    """A changelog with eight key groups in a topic of four partitions."""

    def __init__(self, brokers: Brokers, place: KafkaPlace) -> None:
        self.place = KafkaChangelog(place, brokers)
        self.sink = self.place.sink(RECORDS, KEY, GROUPS)
        self.sink.prepare(RECORDS, KEY)
        self.target = self.sink.open(JOB, WRITER, CLAIM)

    def deliver(self, epoch: int, rows: Mapping[str, int | None], timeline: int = 1) -> None:
        values = {name: None if n is None else f"{n}".encode() for name, n in rows.items()}
        self.target.deliver(tag(epoch, timeline), [changes(epoch, values)])

    def rewind(self, epoch: int, timeline: int) -> str:
        found: str = self.sink.repair(rewinding(epoch, timeline), RECORDS, KEY).verdict  # type: ignore[attr-defined]
        return found

    def compacted(self, horizon: int) -> int:
        """Compact it, and return through which epoch it is compacted."""
        replace(self.place, records_min=1).compaction(JOB).compact("first", FIRST, Epoch(horizon))
        return self.place.open(JOB).floor

    def values(
        self,
        through: int,
        history: Sequence[Stretch] = FIRST,
        after: int = 0,
        key_groups: tuple[int, int] = (0, GROUPS),
    ) -> dict[str, bytes | None]:
        found: dict[str, bytes | None] = {}
        which = AsOf(JOB, tuple(history), Epoch(through), Epoch(after), key_groups, GROUPS)
        for batch in self.place.open(JOB).records(which):
            for row in batch.to_pylist():
                group, letter = row["key"][3], row["key"][4:].decode()
                if key_groups[0] <= group < key_groups[1]:
                    found[f"{group}{letter}"] = None if row["deleted"] else row["value"]
        return found

    def state(self, through: int, *args: Any, **more: Any) -> dict[str, int | None]:
        found = self.values(through, *args, **more)
        return {name: None if value is None else int(value) for name, value in found.items()}


def at(request: pytest.FixtureRequest) -> Topic:
    """Return the topic in memory, or at a broker."""
    if request.param == "memory":
        return Topic(InMemory(), KafkaPlace("broker:9092", "changelog"))
    server: KafkaServer = request.getfixturevalue("kafka")
    return Topic(Brokers(), KafkaPlace(server.servers, f"{server.topic()}-state"))


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
def topic(request: pytest.FixtureRequest) -> Topic:
    """The topic in memory, and at a broker."""
    return at(request)


@pytest.fixture(params=["memory", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.slow])])
def either(request: pytest.FixtureRequest) -> Topic:
    """The topic in memory, and in long runs at a broker."""
    return at(request)


@pytest.fixture
def memory() -> InMemory:
    return InMemory()


@pytest.fixture
def made(memory: InMemory) -> Topic:
    """A topic in memory, whose records a test may change."""
    return Topic(memory, KafkaPlace("broker:9092", "changelog"))


class TestReads:
    def test_are_as_of_an_epoch(self, topic: Topic) -> None:
        assert topic.place.open(JOB).empty and topic.state(1) == {}
        topic.deliver(1, {"0a": 1, "1a": 1, "7a": 1})
        topic.deliver(2, {"0a": 2, "1a": None})
        assert topic.state(1) == {"0a": 1, "1a": 1, "7a": 1}
        assert topic.state(2) == {"0a": 2, "1a": None, "7a": 1}
        assert topic.state(2, after=1) == {"0a": 2, "1a": None}
        assert topic.state(2, key_groups=(1, 2)) == {"1a": None}
        assert topic.place.open(JOB).delivered == {0: 2}

    def test_leave_out_an_abandoned_timeline_before_and_after_its_repair(self, either: Topic) -> None:
        either.deliver(4, {"0a": 4})
        either.deliver(6, {"0a": 6, "0b": 6})
        assert either.state(4, REWOUND) == either.state(100, REWOUND) == {"0a": 4}
        planned = either.sink.plan_repair(rewinding(4, 2), RECORDS, KEY)  # type: ignore[attr-defined]
        assert planned.reason.startswith("records after epoch 4 through epoch 6 no longer count")
        assert [either.rewind(4, 2), either.rewind(4, 2)] == ["truncate", "truncate"]
        assert either.state(4, REWOUND) == {"0a": 4}
        either.deliver(100, {"0c": 100}, timeline=2)
        assert either.state(100, REWOUND) == {"0a": 4, "0c": 100}
        assert either.state(100, REWOUND, after=4) == {"0c": 100}

    def test_end_where_the_topic_was_when_it_was_opened(self, either: Topic) -> None:
        """What another history of the job delivers meanwhile, under the same numbers, is not read."""
        either.deliver(1, {"0a": 1})
        found = either.place.open(JOB)
        either.deliver(2, {"0a": 2})
        which = AsOf(JOB, FIRST, Epoch(9), Epoch(0), (0, GROUPS), GROUPS)
        assert [row["value"] for batch in found.records(which) for row in batch.to_pylist()] == [b"1"]

    def test_give_a_row_that_is_too_large_for_one_record(self, either: Topic) -> None:
        large = bytes(range(256)) * 12_000
        either.target.deliver(tag(1), [changes(1, {"0a": large, "0b": b"1"})])
        assert either.values(1) == {"0a": large, "0b": b"1"}

    def test_reads_of_late_epochs_do_not_begin_at_the_first_record(self, made: Topic) -> None:
        for epoch in range(1, 31):
            made.deliver(epoch, {f"0{n:02}": epoch for n in range(200)})
        seen: list[tuple[int, int]] = []
        which = AsOf(JOB, FIRST, Epoch(30), Epoch(28), (0, 1), GROUPS)
        batches = list(made.place.open(JOB).records(which, lambda done, all_bytes: seen.append((done, all_bytes))))
        assert sum(batch.num_rows for batch in batches) == 400
        whole: list[tuple[int, int]] = []
        list(made.place.open(JOB).records(replace(which, after=Epoch(0)), lambda *at: whole.append(at)))
        assert seen[-1][0] < whole[-1][0] / 2 and all(done <= expected for done, expected in [*seen, *whole])

    def test_show_that_they_advance_while_they_look_for_a_place_to_begin(
        self, made: Topic, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else a worker that reads through one large delivery counts as hung, and starts over."""
        for epoch in (1, 2):
            made.deliver(epoch, {f"0{n:04}": epoch for n in range(3_000)})
        right, events = FakeFeed.poll, list[str]()

        def poll(feed: FakeFeed) -> Sequence[FeedRecord]:
            """Hand over ten records at a time."""
            events.append("poll")
            ((partition, position),) = feed.positions.items()
            found = [each for each in right(feed) if each.offset < position + 10]
            feed.positions[partition] = position + 10
            return found

        monkeypatch.setattr(FakeFeed, "poll", poll)
        which = AsOf(JOB, FIRST, Epoch(2), Epoch(1), (0, 1), GROUPS)
        rows = sum(batch.num_rows for batch in made.place.open(JOB).records(which, lambda *_: events.append("shown")))
        assert rows == 3_000 and events.count("poll") > 300 and "poll poll poll" not in " ".join(events)

    def test_count_only_waits_as_silence_of_the_brokers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not what the worker does with records that came: the first empty poll after that is no outage."""
        waits = list[float]()

        class Silent:
            def __init__(self, *_: object, **__: object) -> None: ...
            def assign(self, _: object) -> None: ...
            def consume(self, _count: int, timeout_s: float) -> list[object]:
                waits.append(timeout_s)
                return []

        monkeypatch.setattr("holdfast.sinks.kafka.changelog.brokers.Consumer", Silent)
        feed = BrokerFeed(KafkaPlace("broker:9092", "changelog"), {0: 0})
        with pytest.raises(Unavailable, match="no record could be read for 20 s"):
            while len(waits) < 1_000:
                assert not feed.poll()
        assert sum(waits) == pytest.approx(20.0, abs=0.2)


class TestCompaction:
    def test_leaves_what_every_epoch_from_the_horizon_on_needs(self, either: Topic) -> None:
        large = bytes(range(256)) * 6_000
        for epoch in range(1, 7):
            either.deliver(epoch, {"0a": epoch, f"1{chr(96 + epoch)}": epoch, "7a": None if epoch % 2 else epoch})
        either.target.deliver(tag(7), [changes(7, {"6z": large})])
        for epoch in range(8, 11):
            either.deliver(epoch, {"0a": epoch, "1b": None})
        before = {epoch: either.values(epoch) for epoch in (8, 10)}
        floor = either.compacted(8)
        assert 0 < floor <= 8
        assert {epoch: live(either.values(epoch)) for epoch in (8, 10)} == {e: live(v) for e, v in before.items()}
        assert either.state(10, after=9) == {"0a": 10, "1b": None}
        either.deliver(11, {"0a": None})
        assert either.compacted(11) > floor
        assert live(either.values(11)) == {name: v for name, v in live(before[10]).items() if name != "0a"}
        for epoch in range(12, 16):
            either.deliver(epoch, {"0b": epoch})
        assert either.state(15, after=14, key_groups=(0, 1)) == {"0b": 15}
        assert either.rewind(15, 2) == "truncate"
        with pytest.raises(ConfigError, match="the topic is compacted through epoch"):
            either.rewind(3, 3)

    @pytest.mark.kafka
    def test_removes_records_at_the_brokers(self, kafka: KafkaServer) -> None:
        topic = Topic(Brokers(), KafkaPlace(kafka.servers, kafka.topic(1, **{"retention.ms": "-1"})))
        for epoch in range(1, 9):
            topic.deliver(epoch, {"0a": epoch, "7b": epoch if epoch < 3 else None})
        assert 1 < topic.compacted(6) <= 6
        assert kafka.records(topic.place.kafka.topic)[0].offset() > 2
        assert live(topic.values(8)) == {"0a": b"8"}

    def test_is_left_to_the_driver_that_owns_the_topic(self, made: Topic) -> None:
        for epoch in range(1, 4):
            made.deliver(epoch, {"0a": epoch})
        assert not replace(made.place, records_min=1).compaction(JOB).compact("copy", FIRST, Epoch(3))
        assert made.place.open(JOB).floor == 0

    def test_is_left_out_while_it_is_not_worth_it(self, made: Topic) -> None:
        for epoch in range(1, 4):
            made.deliver(epoch, {"0a": epoch})
        compaction = made.place.compaction(JOB)
        assert not compaction.compact("first", FIRST, Epoch(3)) and not compaction.compact("first", FIRST, Epoch(3))

    def test_is_not_worth_it_for_less_than_the_last_one_wrote(self, made: Topic) -> None:
        """Else each key would be written again whenever the horizon has passed the last compaction."""
        compaction, done = replace(made.place, records_min=8).compaction(JOB), list[int]()
        made.deliver(1, {f"{n % GROUPS}{n:03}": n for n in range(400)})
        for epoch in range(2, 41):
            made.deliver(epoch, {f"0{epoch:03}": epoch})
            if compaction.compact("first", FIRST, Epoch(max(1, epoch - 5))):
                done.append(epoch)
        assert done == [2]
        for epoch in range(41, 71):
            made.deliver(epoch, {f"{n}{epoch:03}": epoch for n in range(GROUPS)})
            if compaction.compact("first", FIRST, Epoch(epoch - 5)):
                done.append(epoch)
        assert len(done) == 2, "as much was delivered since as the compaction had written"

    def test_a_compaction_that_is_overtaken_changes_nothing(self, memory: InMemory, made: Topic) -> None:
        for epoch in range(1, 4):
            made.deliver(epoch, {"0a": epoch})
        other = Claim("second", Generation(2), {"first": tag(3)})
        taken: list[bool] = []

        def meanwhile() -> None:
            if memory.fake.calls[-1] == "init" and not taken:
                taken.append(True)
                made.sink.open(JOB, WRITER, other).deliver(tag(4), [changes(4, {"0a": b"4"})])

        memory.fake.meanwhile = meanwhile
        with pytest.raises(Unavailable, match="took the topic"):
            made.compacted(3)
        assert taken and not memory.removed and made.state(4) == {"0a": 4}

    def test_a_compaction_that_conflicts_with_a_delivery_writes_one_base(
        self, memory: InMemory, made: Topic, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The delivery begins again, and its init ends the transaction that names the base. Each further base would
        add the whole state to the topic, at every attempt of a job that always delivers."""
        for epoch in range(1, 6):
            made.deliver(epoch, {"0a": epoch})
        met, writes, right = list[int](), list[int](), FakeTopic.write

        def meanwhile() -> None:
            if memory.fake.calls[-1] == "init" and len(met) < 3:
                memory.refuse = ready
                met.append(6 + len(met))
                made.deliver(met[-1], {"0a": met[-1]})
                memory.refuse = meanwhile

        def write(topic: FakeTopic, records: Iterable[Records]) -> None:
            writes.append(1)
            right(topic, records)

        monkeypatch.setattr(FakeTopic, "write", write)
        memory.refuse = meanwhile  # called where a writer has read nothing since its init
        assert made.compacted(5) and made.state(8) == {"0a": 8}
        assert met == [6, 7, 8] and len(writes) == memory.partitions

    def test_interrupts_a_read_that_was_opened_before(self, made: Topic) -> None:
        for epoch in range(1, 6):
            made.deliver(epoch, {"0a": epoch})
        found = made.place.open(JOB)
        assert made.compacted(5)
        with pytest.raises(CompactedMeanwhile):
            list(found.records(AsOf(JOB, FIRST, Epoch(5), Epoch(0), (0, GROUPS), GROUPS)))

    def test_removes_nothing_from_a_topic_that_was_recreated(self, memory: InMemory, made: Topic) -> None:
        """Its records are those of another program, whatever their offsets are."""
        for epoch in range(1, 6):
            made.deliver(epoch, {"0a": epoch})
        made.compacted(5)
        foreign = [(b"key", b"of another program")] * 50
        memory.id, memory.removed, memory.fake.logs = "the second", {}, {n: list(foreign) for n in range(4)}
        with pytest.raises(Damaged, match="deleted and created again"):
            made.compacted(5)
        assert not memory.removed and memory.fake.logs == dict.fromkeys(range(4), foreign)

    def test_a_compaction_that_cannot_succeed_is_tried_once(
        self, memory: InMemory, made: Topic, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each attempt would add the whole state to the topic, as after a start with a smaller message.max.bytes."""
        for epoch in range(1, 6):
            made.deliver(epoch, {"0a": epoch})
        writes = list[int]()

        def write(topic: FakeTopic, records: object) -> None:
            writes.append(1)
            raise ConfigError("a record is too large", next_step="give a larger message.max.bytes")

        compaction = replace(made.place, records_min=1).compaction(JOB)
        with monkeypatch.context() as patch:
            patch.setattr(FakeTopic, "write", write)
            for _ in range(3):
                with pytest.raises(ConfigError, match="a record is too large"):
                    compaction.compact("first", FIRST, Epoch(5))
        assert len(writes) == 1 and made.compacted(5), "the next run tries again"

    @pytest.mark.parametrize("at", ["its second partition", "its name"])
    def test_a_compaction_that_fails_repeatedly_leaves_no_more_than_deliveries_add(
        self, memory: InMemory, made: Topic, monkeypatch: pytest.MonkeyPatch, at: str
    ) -> None:
        """While a broker comes and goes, each attempt leaves a base, or a part of one, that nothing names."""
        right, written, failed = FakeTopic.write, list[int](), list[int]()
        compaction = replace(made.place, records_min=1).compaction(JOB)

        def fail() -> None:
            raise Unavailable("a broker is unreachable", not_done="nothing was removed", next_step="nothing")

        def write(topic: FakeTopic, records: Iterable[Records]) -> None:
            right(topic, records)
            written.append(1)
            if at == "its second partition" and len(written) == 2:
                fail()

        def attempt(epoch: int) -> bool:
            made.deliver(epoch, {"0000": epoch})
            written.clear()
            memory.refuse = fail if at == "its name" else ready
            try:
                return compaction.compact("first", FIRST, Epoch(epoch))
            except Unavailable:
                failed.append(epoch)
                return False
            finally:
                memory.refuse = ready

        made.deliver(1, {f"{n % GROUPS}{n:03}": n for n in range(80)})
        with monkeypatch.context() as patch:
            patch.setattr(FakeTopic, "write", write)
            assert not any(attempt(epoch) for epoch in range(2, 62))
        logs = memory.fake.logs.values()
        left = sum(value.startswith(b'{"base"') for log in logs for _, value in filter(None, log))
        assert len(failed) > 1 and left <= sum(map(len, logs)) - left
        at = "nothing"
        assert any(attempt(epoch) for epoch in range(62, 102)), "the next attempt is due"
        assert made.state(made.place.open(JOB).floor)["1001"] == 1

    def test_a_compaction_overtaken_by_another_driver_during_its_read_is_left_to_that_driver(
        self, memory: InMemory, made: Topic, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for epoch in range(1, 6):
            made.deliver(epoch, {"0a": epoch})
        right, begun = KafkaCompaction._read, list[bool]()

        def read(compaction: KafkaCompaction, *given: Any) -> int:
            if not begun:
                begun.append(True)
                made.compacted(5)
            return right(compaction, *given)

        monkeypatch.setattr(KafkaCompaction, "_read", read)
        with pytest.raises(Unavailable, match="another process took the topic"):
            made.compacted(5)
        assert begun and made.state(5) == {"0a": 5}

    def test_a_compaction_killed_before_it_removed_records_is_completed(self, memory: InMemory, made: Topic) -> None:
        for epoch in range(1, 6):
            made.deliver(epoch, {"0a": epoch})
        memory.keeps = True
        made.compacted(5)
        assert not memory.removed and made.state(5) == {"0a": 5}
        memory.keeps = False
        made.compacted(5)
        assert memory.removed and made.state(5) == {"0a": 5}


def target_of(topic: Topic, job: str, fault: Fault) -> KafkaTarget:
    """Return a job's way into the topic which calls `fault` at every point of a delivery."""
    assert isinstance(topic.sink, KafkaTopicSink)
    connection = topic.place.brokers.connection(topic.place.kafka, transactional_id(job, CHANGELOG))
    return KafkaTarget("topic", connection, topic.sink._content(job), job, WRITER, CLAIM, fault)


def live(values: Mapping[str, bytes | None]) -> dict[str, bytes]:
    """Return what is not deleted."""
    return {name: value for name, value in values.items() if value is not None}


def encoded(*deliveries: tuple[Tag, Tag | None, Mapping[str, bytes | None]]) -> list[tuple[bytes, bytes]]:
    """Return the records of a topic with one partition."""
    encoder, found = Encoder("topic", JOB, 1, GROUPS, 1_000_000), list[tuple[bytes, bytes]]()
    for of, before, rows in deliveries:
        for each in encoder.records(of, before, [changes(of.epoch, rows)]):
            assert isinstance(each, Records) and each.keys is not None and each.partition == 0
            found += [(key or b"", value or b"") for key, value in zip(each.keys, each.values, strict=True)]
    return found


def decoded(records: list[tuple[bytes, bytes]], before: Tag | None = None) -> list[tuple[Tag, int]]:
    decoder, found = Decoder(JOB, before, lambda _: True), list[tuple[Tag, int]]()
    for record in records:
        if (delivery := decoder.take(*record)) is not None:
            found.append((delivery.tag, delivery.rows.num_rows))
    return found


CHAIN = encoded(
    (tag(1), None, {"0a": b"1", "1a": b"1"}),
    (tag(2), tag(1), {"0a": b"2"}),
    (tag(3), tag(2), {"0a": None}),
)


class TestRecords:
    def test_can_be_read_by_people(self) -> None:
        row, _, end, *_ = map(json.loads, (value for _, value in CHAIN))
        assert row == {
            "timeline": 1,
            "epoch": 1,
            "operator": "op",
            "row_key": {"k": 1},
            "row": {"n": [1]},
            "layout": [["1", "int64"]],
            "value": "MQ==",
        }
        assert end["end"]["records"] == 2 and end["end"]["job"] == JOB
        assert json.loads(CHAIN[-2][1]) == {
            "timeline": 1,
            "epoch": 3,
            "operator": "op",
            "row_key": {"k": 1},
            "deleted": True,
        }

    def test_have_one_end_per_delivery(self) -> None:
        assert decoded(CHAIN) == [(tag(1), 2), (tag(2), 1), (tag(3), 1)]
        assert decoded(CHAIN[3:], tag(1)) == [(tag(2), 1), (tag(3), 1)]

    @pytest.mark.parametrize("lost", range(len(CHAIN) - 1))
    def test_a_chain_with_a_missing_record_is_refused(self, lost: int) -> None:
        with pytest.raises(Broken):
            decoded(CHAIN[:lost] + CHAIN[lost + 1 :])

    def test_with_large_values_are_given_few_at_a_time(self) -> None:
        """Memory would else grow with the size of a value: a batch of 50,000 values of 1 MB each."""
        large = encoded((tag(1), None, {f"0{n:02}": bytes(900_000) for n in range(30)}))
        decoder = Decoder(JOB, None, lambda _: True)
        taken = [decoder.take(*record) for record in large]
        sizes = [each.rows.nbytes for each in taken if each is not None]
        assert len(sizes) == 4 and max(sizes) < 10 << 20
        assert sum(each.rows.num_rows for each in taken if each is not None) == 30

    def test_a_chain_with_differing_records_is_refused(self) -> None:
        with pytest.raises(Broken, match="they differ"):
            decoded([(CHAIN[0][0], CHAIN[0][1].replace(b"MQ==", b"Mg==")), *CHAIN[1:]])
        with pytest.raises(Broken, match="none of a changelog"):
            decoded([*CHAIN, (b"key", b"something")])

    def test_a_delivery_that_is_missing_completely_breaks_the_chain(self) -> None:
        with pytest.raises(Broken, match="between timeline 1, epoch 1 and timeline 1, epoch 2 is missing"):
            decoded(CHAIN[:3] + CHAIN[5:])
        with pytest.raises(Broken, match="between the beginning and timeline 1, epoch 1 is missing"):
            decoded(CHAIN[3:])

    def test_a_key_too_large_for_any_record_is_refused_with_the_remedy(self) -> None:
        encoder = Encoder("topic", JOB, 1, GROUPS, 4_000)
        with pytest.raises(ConfigError, match=r"takes 3,\d+ bytes") as refused:
            list(encoder.records(tag(1), None, [changes(1, {"0" + 3_500 * "a": b"1"})]))
        assert "message.max.bytes" in (refused.value.next_step or "")


class TestDamage:
    def test_at_the_end_of_a_partition_is_noticed(self, memory: InMemory, made: Topic) -> None:
        """As by a broker that became the leader without the last records that another had confirmed."""
        made.deliver(1, {"0a": 1, "7a": 1})
        made.deliver(2, {"0a": 2, "7a": 2})
        del memory.fake.logs[3][3:]
        assert made.state(2, key_groups=(0, 2)) == {"0a": 2}
        with pytest.raises(Damaged, match="partition 3 is not what was delivered to it: it ends with epoch 1, but ep"):
            made.state(2)

    def test_by_a_topic_that_was_recreated_is_noticed(self, memory: InMemory, made: Topic) -> None:
        made.deliver(1, {"0a": 1})
        memory.id = "the second"
        with pytest.raises(Damaged, match="deleted and created again: its id is the second, but was the first"):
            made.state(1)
        made.deliver(2, {"0a": 2})  # one session, as no error has shown that anything changed
        made.target.close()
        with pytest.raises(Damaged, match="deleted and created again"):
            made.deliver(3, {"0a": 3})

    def test_is_not_what_added_partitions_are(self, memory: InMemory, made: Topic) -> None:
        made.deliver(1, {"0a": 1, "7a": 1})
        memory.partitions = 8
        made.target.close()
        made.deliver(2, {"7a": 2})
        assert made.state(2) == {"0a": 1, "7a": 2} and sorted(memory.fake.logs) == [0, 1, 2, 3]

    @pytest.mark.kafka
    def test_by_retention_is_noticed(self, kafka: KafkaServer) -> None:
        topic = Topic(Brokers(), KafkaPlace(kafka.servers, f"{kafka.topic()}-state"))
        topic.deliver(1, {"0a": 1})
        topic.deliver(2, {"0b": 2})
        kafka.delete_records(topic.place.kafka.topic, 0, 2)
        with pytest.raises(Damaged, match="between the beginning and timeline 1, epoch 1 is missing"):
            topic.state(2)
        assert topic.state(2, key_groups=(2, 8)) == {}

    def test_behind_a_compaction_is_noticed(self, either: Topic, request: pytest.FixtureRequest) -> None:
        """By retention, by an administrator, or by an election: a read that is repeated would never end."""
        for epoch in range(1, 9):
            either.deliver(epoch, {"0a": epoch, "0b": epoch})
        assert either.compacted(6)
        first, end = lost(either, request)
        assert first == end, "the fault has fired"
        with pytest.raises(Damaged, match=r"partition 0 is not what was delivered to it: the brokers removed records"):
            either.state(8)
        with pytest.raises(Damaged, match="the brokers removed records"):
            either.compacted(8)
        assert either.state(8, key_groups=(2, 8)) == {}

    def test_is_not_what_a_broker_refuses_although_it_has_it(
        self, made: Topic, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made.deliver(1, {"0a": 1})
        right, refused = FakeFeed.poll, list[bool]()

        def poll(feed: FakeFeed) -> Sequence[FeedRecord]:
            if not refused:
                refused.append(True)
                raise RecordsGone(0, feed.positions[0])
            return right(feed)

        monkeypatch.setattr(FakeFeed, "poll", poll)
        with pytest.raises(Unavailable, match="a broker refused offset 0 of partition 0, which is in the topic"):
            made.state(1)
        assert made.state(1) == {"0a": 1}

    @pytest.mark.parametrize("damage", ["a tail that is gone", "a delivery that is gone", "a record that differs"])
    def test_behind_the_checkpoint_of_a_rewind_is_cured_by_it(self, memory: InMemory, made: Topic, damage: str) -> None:
        """Damage stays in the topic, so without this no state could ever be restored again."""
        for epoch in range(1, 6):
            made.deliver(epoch, {"0a": epoch, "1a": epoch})
        log = memory.fake.logs[0]
        match damage:
            case "a tail that is gone":
                del log[-4:]
            case "a delivery that is gone":
                del log[-8:-4]
            case _:
                changed = log[-8]
                assert changed is not None
                log[-8] = (changed[0], changed[1].replace(b'"k":1', b'"k":2'))
        with pytest.raises(Damaged, match="partition 0 is not what was delivered"):
            made.state(3)
        assert made.rewind(4, 2) == "truncate"
        with pytest.raises(Damaged) if damage != "a tail that is gone" else nullcontext():
            made.state(4, abandoned_after(4))
        assert made.rewind(3, 3) == "truncate"
        assert made.state(3, abandoned_after(3)) == {"0a": 3, "1a": 3}
        made.deliver(100, {"0a": 100}, timeline=3)
        assert made.state(100, abandoned_after(3)) == {"0a": 100, "1a": 3}
        assert made.state(100, abandoned_after(3), after=3) == {"0a": 100}
        compaction = replace(made.place, records_min=1).compaction(JOB)
        assert compaction.compact("first", abandoned_after(3), Epoch(100))
        assert made.state(100, abandoned_after(3)) == {"0a": 100, "1a": 3}

    def test_damage_in_the_epochs_that_a_reader_requests_is_not_repaired(self, memory: InMemory, made: Topic) -> None:
        """As for a reader that does not know of the rewind yet."""
        for epoch in range(1, 6):
            made.deliver(epoch, {"0a": epoch})
        log = memory.fake.logs[0]
        del log[-3:]
        made.rewind(3, 2)
        assert made.state(3, abandoned_after(3, 2)) == {"0a": 3}
        with pytest.raises(Damaged, match="partition 0 is not what was delivered to it"):
            made.state(5)


def abandoned_after(epoch: int, timeline: int = 3) -> tuple[Stretch, Stretch]:
    """Return the lineage after a rewind to an epoch of the first timeline."""
    first = Stretch(Timeline(1), Epoch(1), Epoch(epoch))
    return first, Stretch(Timeline(timeline), Epoch(100), EPOCH_MAX)


def lost(topic: Topic, request: pytest.FixtureRequest) -> tuple[int, int]:
    """Remove all records of partition 0; return where it begins and ends."""
    each, name = [0], topic.place.kafka.topic
    opened = topic.place.brokers.topic(topic.place.kafka)
    end = opened.written(each)[0]
    if isinstance(topic.place.brokers, InMemory):
        topic.place.brokers.removed[0] = end
    else:
        request.getfixturevalue("kafka").delete_records(name, 0, end)
    return opened.first(each)[0], end


class TestFences:
    def test_hold_off_a_writer_of_an_older_timeline(self, either: Topic) -> None:
        either.deliver(4, {"0a": 4})
        zombie = either.sink.open(JOB, WRITER, CLAIM)
        either.rewind(4, 2)
        with pytest.raises(HoldfastError, match="timeline 2"):
            zombie.deliver(tag(6), [changes(6, {"0a": b"6"})])
        assert either.state(9, REWOUND) == {"0a": 4}

    def test_hold_off_a_delivery_that_is_under_way(self, topic: Topic) -> None:
        """The repair comes between the records of a delivery and its commit."""
        topic.deliver(4, {"0a": 4})

        def meanwhile(point: str) -> None:
            if point == "before_commit":
                topic.rewind(4, 2)

        assert isinstance(topic.target, KafkaTarget)
        topic.target._fault = meanwhile
        with pytest.raises(HoldfastError, match="timeline 2"):
            topic.deliver(6, {"0a": 6})
        assert topic.state(9, REWOUND) == {"0a": 4} == topic.state(9, FIRST, key_groups=(0, 1))


class TestRefusals:
    def test_the_changelog_of_another_job_is_refused(self, either: Topic) -> None:
        either.sink.check_owner(None, CHANGELOG)  # type: ignore[attr-defined]
        either.deliver(1, {"0a": 1})
        either.sink.check_owner(JOB, CHANGELOG)  # type: ignore[attr-defined]
        for other in ("2" * 32, None):
            with pytest.raises(ConfigError, match="holds the changelog of another job, 1111"):
                either.sink.check_owner(other, CHANGELOG)  # type: ignore[attr-defined]

    def test_a_job_that_started_before_another_jobs_first_delivery_is_refused(self, either: Topic) -> None:
        """Its records would break the chain, and neither job could restore its state."""
        late = either.sink.open("2" * 32, WRITER, Claim("other", Generation(1)))
        either.sink.check_owner("2" * 32, CHANGELOG)  # type: ignore[attr-defined]
        either.deliver(1, {"0a": 1})
        for _ in range(2):
            with pytest.raises(ConfigError, match="holds the changelog of another job, 1111") as refused:
                late.deliver(tag(1), [changes(1, {"0a": b"2"})])
        assert refused.value.not_done is not None and "safe in the job's root" in refused.value.not_done
        late.close()
        either.deliver(2, {"0b": 2})
        assert either.state(2) == {"0a": 1, "0b": 2}

    def test_the_second_of_two_jobs_with_simultaneous_first_deliveries_is_refused(self, either: Topic) -> None:
        """Their transactional ids differ, so neither fences the other; both have read the progress topic before."""
        done: list[object] = []

        def meanwhile(point: FaultPoint) -> None:
            if point == "before_begin" and not done:
                done.append(either.target.deliver(tag(1), [changes(1, {"0a": b"1"})]))

        late = target_of(either, "2" * 32, meanwhile)
        with pytest.raises(ConfigError, match=f"holds the changelog of another job, {JOB}"):
            late.deliver(tag(1), [changes(1, {"0a": b"2", "7a": b"2"})])
        late.close()
        assert done == [Delivered(1)]
        either.deliver(2, {"0b": 2})
        assert either.state(2) == {"0a": 1, "0b": 2}

    def test_a_first_delivery_during_an_open_transaction_is_refused(self, memory: InMemory, made: Topic) -> None:
        other = FakeProducer(memory.fake, "the other")

        def meanwhile(point: FaultPoint) -> None:
            if point == "before_begin":
                other.init()
                other.begin()
                other.mark(*tag_record("2" * 32, WRITER, tag(1)))

        with pytest.raises(Unavailable, match="an open transaction"):
            target_of(made, JOB, meanwhile).deliver(tag(1), [changes(1, {"0a": b"1"})])
        assert not memory.fake.marks and list(memory.fake.opened) == ["the other"]
        other.abort()
        made.deliver(1, {"0a": 1})
        assert made.state(1) == {"0a": 1}

    def test_a_rewind_before_the_first_delivery_is_refused_during_that_of_another_job(
        self, memory: InMemory, made: Topic
    ) -> None:
        done: list[bool] = []

        def meanwhile(call: str) -> None:
            if call == "begin" and not done:
                done.append(True)
                target_of(made, "2" * 32, no_fault).deliver(tag(1), [changes(1, {"0a": b"2"})])

        memory.fake.cut = meanwhile
        with pytest.raises(Unavailable, match="during the repair, or delivered too"):
            made.rewind(0, 2)
        with pytest.raises(ConfigError, match="holds the changelog of another job, 2222"):
            made.rewind(0, 2)
        assert done and [record for record in memory.fake.logs[0] if record and b"1111" in record[1]] == []

    def test_rows_and_a_changelog_in_one_topic_are_refused_in_either_order(self, memory: InMemory, made: Topic) -> None:
        """Both jobs started before either delivered."""
        rows, first = pa.record_batch({"text": ["row"]}), InMemory()
        out = Writer("out", Subtask(0))
        sink = KafkaTarget("topic", FakeConnection(memory.fake, "out"), EachRow("topic", as_records), "2" * 32, out)
        made.deliver(1, {"0a": 1})
        with pytest.raises(ConfigError, match="topic: holds the changelog of a job: its state is in there"):
            sink.deliver(tag(1), [rows])
        assert made.state(1) == {"0a": 1}
        other = KafkaTarget("topic", FakeConnection(first.fake, "out"), EachRow("topic", as_records), "2" * 32, out)
        other.deliver(tag(1), [rows])
        with pytest.raises(ConfigError, match="holds the output of a sink"):
            Topic(first, made.place.kafka).deliver(1, {"0a": 1})
        assert not first.fake.logs and len(first.fake.rows) == 1

    @pytest.mark.kafka
    def test_a_changelog_topic_with_records_of_no_job_is_refused(self, kafka: KafkaServer) -> None:
        name = kafka.topic(2, **{"retention.ms": "-1", "retention.bytes": "-1"})
        kafka.produce(name, [b"something"], partition=1)
        topic = Topic(Brokers(), KafkaPlace(kafka.servers, name))
        with pytest.raises(ConfigError, match="holds records that no job delivered"):
            topic.sink.check_owner(None, CHANGELOG)  # type: ignore[attr-defined]

    def test_the_refusal_of_records_with_an_emptied_progress_topic_names_that_topic(
        self, memory: InMemory, made: Topic
    ) -> None:
        """The job's own state must not be taken for the records of others."""
        made.deliver(1, {"0a": 1})
        memory.fake.marks.clear()
        with pytest.raises(ConfigError, match="its progress topic 'changelog-holdfast-progress' names no") as refused:
            made.sink.check_owner(JOB, CHANGELOG)  # type: ignore[attr-defined]
        assert "restore it" in (refused.value.next_step or "")

    @pytest.mark.kafka
    @pytest.mark.parametrize(
        ("setting", "shown"),
        [
            ({"cleanup.policy": "compact"}, "cleanup.policy=compact"),
            ({"retention.ms": "60000"}, "retention.ms=60000"),
            ({"retention.bytes": "1000000"}, "retention.bytes=1000000"),
        ],
    )
    def test_a_topic_whose_records_the_brokers_remove_is_refused(
        self, kafka: KafkaServer, setting: dict[str, str], shown: str
    ) -> None:
        name = kafka.topic(2, **{"retention.ms": "-1", **setting})
        place = KafkaChangelog(KafkaPlace(kafka.servers, name))
        sink = place.sink(RECORDS, KEY, GROUPS)
        for look in (sink.prepare, sink.probe):
            with pytest.raises(ConfigError, match=f"has {shown}: the brokers would remove records of the job's state"):
                look(RECORDS, KEY)

    @pytest.mark.kafka
    def test_a_sink_that_would_write_into_a_changelog_is_refused(self, kafka: KafkaServer) -> None:
        place = KafkaPlace(kafka.servers, f"{kafka.topic()}-state")
        Topic(Brokers(), place).deliver(1, {"0a": 1})
        with pytest.raises(ConfigError, match="holds the changelog of a job"):
            KafkaSink(place).check_owner(None, "out")

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"value": hf.Raw()}, "given with value="),
            ({"key": ["a"], "group": "g"}, "given with key= and group="),
            ({"delivery": "at-least-once"}, "given with delivery="),
        ],
    )
    def test_arguments_that_a_changelog_does_not_take_are_refused(self, given: dict[str, Any], said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            hf.App("job", changelog=hf.Kafka("broker:9092", "state", **given))


class TestPlaces:
    def test_name_the_topic_and_how_it_is_reached_without_secrets(self) -> None:
        options: dict[str, Option] = {
            "sasl.username": "app",
            "sasl.password": hf.secret("env:KAFKA_PASSWORD"),
            "client.id": "job",
        }
        kafka = hf.Kafka("broker:9092", "state", options=options)
        place = kafka.changelog().place
        assert shown_place(place) == "kafka broker:9092 state"
        assert json.loads(place["options"])["sasl.password"] == {"secret": "env:KAFKA_PASSWORD"}
        assert hf.Kafka.placed(place).changelog() == kafka.changelog()
        assert dict(hf.Kafka("broker:9092", "state").changelog().place) == {
            "kind": "kafka",
            "servers": "broker:9092",
            "topic": "state",
        }

    @pytest.mark.kafka
    def test_are_probed_without_a_change(self, kafka: KafkaServer) -> None:
        name = f"{kafka.topic()}-state"
        sink = KafkaChangelog(KafkaPlace(kafka.servers, name)).sink(RECORDS, KEY, GROUPS)
        assert sink.probe(RECORDS, KEY) == "the first start creates the topic, with 4 partitions"
        assert name not in kafka.admin.list_topics(timeout=ANSWER_WITHIN_S).topics
        sink.prepare(RECORDS, KEY)
        assert sink.probe(RECORDS, KEY) == "the topic has 4 partitions, and keeps its records"
        assert progress_topic(name) in kafka.admin.list_topics(timeout=ANSWER_WITHIN_S).topics

    @pytest.mark.kafka
    def test_with_a_login_are_written_and_read(self, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STATE_PASSWORD", PASSWORD)
        options: dict[str, Option] = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": hf.secret("env:STATE_PASSWORD"),
        }
        kafka.allow_all()
        try:
            made = hf.Kafka(kafka.guarded, f"{kafka.topic()}-state", options=options).changelog()
            topic = Topic(Brokers(), made.kafka)
            topic.deliver(1, {"0a": 1})
            topic.place = hf.Kafka.placed(made.place).changelog()
            assert topic.state(1) == {"0a": 1}
        finally:
            kafka.allow_nothing()

    @pytest.mark.kafka
    def test_a_topic_whose_settings_are_not_readable_is_refused(
        self, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The brokers' default removes records after seven days, and `holdfast doctor` said that it keeps them."""
        monkeypatch.setenv("STATE_PASSWORD", PASSWORD)
        options: dict[str, Option] = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": hf.secret("env:STATE_PASSWORD"),
        }
        name = kafka.topic(4)
        for each in (name, progress_topic(name)):
            kafka.allow(each, "READ", "WRITE", "DESCRIBE")
        sink = hf.Kafka(kafka.guarded, name, options=options).changelog().sink(RECORDS, KEY, GROUPS)
        for ask in (sink.probe, sink.prepare):
            with pytest.raises(NotAdmitted, match="no right to read its settings") as refused:
                ask(RECORDS, KEY)
            assert "DESCRIBE_CONFIGS" in (refused.value.next_step or "")


class TestOutages:
    def test_before_the_commit_change_nothing(self, memory: InMemory) -> None:
        away = False

        def refuse() -> None:
            if away:
                raise Unavailable("the brokers are unreachable", next_step="wait")

        topic = Topic(replace(memory, refuse=refuse), KafkaPlace("broker:9092", "changelog"))
        topic.deliver(1, {"0a": 1})
        away = True
        with pytest.raises(Unavailable):
            topic.deliver(2, {"0a": 2})
        assert topic.state(2) == {"0a": 1}
        away = False
        topic.deliver(2, {"0a": 2})
        assert topic.state(2) == {"0a": 2}
