"""The order in which a Kafka target speaks to the brokers, without a network, and wrong orders that must be noticed.

In a play several processes deliver the same epochs, as a worker and its zombies do, while replies are lost and commits
land late. A reader must see the rows of the first epochs, each once and in order, and the tag of the last of them.

Source: PROTOCOL P17, P19; docs/decisions/0076-kafka-sink.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest
from kafka_fake import FAULTS, FakeBrokers, FakeConnection, FakeProducer, as_records

from holdfast.errors import ConfigError, Damaged, Fenced, HoldfastError, Unavailable
from holdfast.model import Epoch, Generation, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.owners import NEVER, Claim, Held
from holdfast.sinks.contract.target import AlreadyDelivered, Delivered, Fault, FaultPoint, no_fault
from holdfast.sinks.kafka.progress import Progress, owner_record, progress_topic, tag_record, topic_record
from holdfast.sinks.kafka.sink import transactional_id
from holdfast.sinks.kafka.target import EachRow, KafkaTarget, ProducerSession, Records

JOB, LEFT, RIGHT = "6f9b0f6e-0000-4000-8000-000000000001", Writer("out", Subtask(0)), Writer("out", Subtask(1))
FIRST = Claim("first", Generation(1))
SECOND = Claim("second", Generation(2), {"first": Tag(Timeline(1), Epoch(9))})
SEEDS, STEPS, PROCESSES = range(60), 10, 3


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def rows(epoch: int) -> list[str]:
    return [f"{epoch}.{n}" for n in range(3)]


def batches(*texts: str) -> list[pa.RecordBatch]:
    return [pa.record_batch({"text": [text]}) for text in texts]


def opened(
    brokers: FakeBrokers,
    writer: Writer = LEFT,
    claim: Claim | None = None,
    fault: Fault = no_fault,
    kind: type[KafkaTarget] = KafkaTarget,
) -> KafkaTarget:
    connection = FakeConnection(brokers, transactional_id(JOB, writer.sink))
    return kind("topic t", connection, EachRow("topic t", as_records), JOB, writer, claim, fault)


def shown(brokers: FakeBrokers) -> list[str]:
    return [(value or b"").decode() for value in brokers.rows]


class TestOrder:
    def test_init_comes_before_the_progress_topic_and_the_tag_before_the_rows(self) -> None:
        brokers = FakeBrokers()
        opened(brokers).deliver(tag(1), batches("a", "b"))
        assert brokers.calls == ["init", "read", "begin", "mark", "send", "send", "flush", "commit"]

    def test_the_next_delivery_reads_on_and_needs_no_init(self) -> None:
        brokers = FakeBrokers()
        target = opened(brokers)
        target.deliver(tag(1), batches("a"))
        brokers.calls.clear()
        target.deliver(tag(2), batches("b"))
        assert brokers.calls == ["read", "begin", "mark", "send", "flush", "commit"]
        assert brokers.committed == brokers.marks == [tag_record(JOB, LEFT, tag(epoch)) for epoch in (1, 2)]

    def test_a_takeover_is_part_of_the_transaction(self) -> None:
        brokers = FakeBrokers()
        opened(brokers, claim=FIRST).deliver(tag(1), [])
        assert brokers.marks == [tag_record(JOB, LEFT, tag(1)), owner_record(JOB, "out", FIRST)]

    @pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "none"])
    def test_whatever_happens_to_a_commit_its_producer_is_not_used_again(self, fault: str) -> None:
        brokers = FakeBrokers(fault=lambda: fault)  # type: ignore[arg-type,return-value]
        target = opened(brokers)
        try:
            target.deliver(tag(1), batches("a"))
        except Unavailable:
            assert fault != "resent"
        assert brokers.calls[-2:] == ["commit", "destroy"], "and nothing is aborted once the commit is sent"
        assert not brokers.committed, "what is in doubt is read"
        brokers.fault, brokers.calls = lambda: "none", []
        assert isinstance(target.deliver(tag(1), batches("a")), Delivered | AlreadyDelivered)
        assert brokers.calls[:2] == ["init", "read"] and shown(brokers) == ["a"]

    def test_an_error_before_the_commit_aborts_so_that_readers_do_not_wait(self) -> None:
        def refuse(_batch: pa.RecordBatch) -> Records:
            raise ConfigError("too large", next_step="make it smaller")

        brokers = FakeBrokers()
        target = KafkaTarget("topic t", FakeConnection(brokers, "id"), EachRow("topic t", refuse), JOB, LEFT)
        with pytest.raises(ConfigError):
            target.deliver(tag(1), batches("a"))
        assert brokers.calls[-2:] == ["abort", "destroy"] and not brokers.opened

    def test_a_target_that_is_unreachable_leaves_no_producer_behind(self) -> None:
        brokers = FakeBrokers()

        class Away(FakeConnection):
            def progress(self) -> Progress:
                raise Unavailable("no broker answers", next_step="nothing")

        target = KafkaTarget("topic t", Away(brokers, "id"), EachRow("topic t", as_records), JOB, LEFT)
        with pytest.raises(Unavailable):
            target.delivered()
        assert brokers.calls == ["init", "destroy"]

    def test_a_delivery_that_is_fenced_twice_reports_who_may_have_done_it(self) -> None:
        brokers = FakeBrokers()

        def rival(point: FaultPoint) -> None:
            if point == "after_tag":
                FakeProducer(brokers, transactional_id(JOB, "out")).init()

        with pytest.raises(Unavailable, match="the transaction was ended twice, by another process"):
            opened(brokers, fault=rival).deliver(tag(1), batches("a"))
        assert brokers.calls.count("commit") == 0 and not brokers.rows


class TestFence:
    def test_a_delivery_fenced_by_its_successor_finds_its_tag(self) -> None:
        brokers = FakeBrokers()
        successors = [opened(brokers)]

        def overtaken(point: FaultPoint) -> None:
            if point == "after_tag" and successors:
                successors.pop().deliver(tag(1), batches("a"))

        zombie = opened(brokers, fault=overtaken)
        assert zombie.deliver(tag(1), batches("a"), NEVER) == AlreadyDelivered(tag(1))
        assert shown(brokers) == ["a"]

    @pytest.mark.parametrize("point", ["before_begin", "after_tag", "before_commit"])
    def test_a_writer_that_a_rescale_removed_is_fenced_at_any_point(self, point: FaultPoint) -> None:
        """The new driver has one writer less: it never opens the id of the old one, unless all writers have one."""
        brokers = FakeBrokers()
        opened(brokers, RIGHT, FIRST).deliver(tag(1), batches("a"))

        def rescaled(reached: FaultPoint) -> None:
            if reached == point and len(brokers.rows) == 1:
                opened(brokers, LEFT, SECOND).deliver(tag(5), batches("b"))

        with pytest.raises(Fenced):
            opened(brokers, RIGHT, FIRST, rescaled).deliver(tag(2), batches("zombie"))
        assert shown(brokers) == ["a", "b"]

    def test_a_rewind_that_left_output_fences_the_old_timeline(self) -> None:
        brokers = FakeBrokers()
        old = opened(brokers)
        old.deliver(tag(3), batches("a"))
        assert opened(brokers).deliver(tag(2, timeline=2), ()) == Delivered(0)
        with pytest.raises(Fenced, match="timeline 2"):
            old.deliver(tag(4), batches("b"), tag(3))
        assert shown(brokers) == ["a"]

    def test_a_topic_below_the_known_tag_was_restored(self) -> None:
        brokers = FakeBrokers()
        target = opened(brokers)
        target.deliver(tag(1), batches("a"))
        target.deliver(tag(2), batches("b"), tag(1))
        del brokers.marks[1:]
        with pytest.raises(Damaged, match="restored from a backup"):
            target.deliver(tag(3), batches("c"), tag(2))


class TestReplacedTopic:
    """A topic that is deleted and created again has the progress of the one before, and none of its rows."""

    def test_is_refused_by_the_session_that_wrote_to_it_and_by_a_later_one(self) -> None:
        brokers = FakeBrokers(topic="first")
        writer = opened(brokers)
        writer.deliver(tag(1), batches("a"))
        brokers.replace("second")
        for each in (writer, opened(brokers)):
            assert each.delivered() == tag(1)
            with pytest.raises(Damaged, match="timeline 1, epoch 1 was delivered .* deleted and created again"):
                each.deliver(tag(2), batches("b"))
        assert brokers.rows == []

    def test_a_rewind_that_kept_the_replaced_topics_rows_accepts_it_as_a_new_topic(self) -> None:
        brokers = FakeBrokers(topic="first")
        opened(brokers).deliver(tag(1), batches("a"))
        brokers.replace("second")
        opened(brokers).deliver(tag(1, 2), batches("b"))
        opened(brokers).deliver(tag(2, 2), batches("c"))
        assert shown(brokers) == ["b", "c"]
        brokers.replace("third")
        with pytest.raises(Damaged):
            opened(brokers).deliver(tag(3, 2), batches("d"))

    def test_is_known_from_the_next_delivery_of_a_version_that_did_not_note_it(self) -> None:
        brokers = FakeBrokers()
        opened(brokers).deliver(tag(1), batches("a"))
        brokers.topic = "first"
        opened(brokers).deliver(tag(2), batches("b"))
        brokers.replace("second")
        with pytest.raises(Damaged):
            opened(brokers).deliver(tag(3), batches("c"))

    def test_is_noted_once(self) -> None:
        brokers = FakeBrokers(topic="first")
        for epoch in (1, 2):
            opened(brokers).deliver(tag(epoch), batches("a"))
        assert [key for key, _ in brokers.marks].count(topic_record(JOB, "out", "first")[0]) == 1


class ReadsBeforeInit(KafkaTarget):
    def _opened(self) -> ProducerSession:
        producer, progress = self._connection.producer(), self._connection.progress()
        producer.init()
        self._session = ProducerSession(producer, progress, None)
        return self._session


class UsesAProducerAgain(KafkaTarget):
    def _end_session(self) -> None:
        """Keep it."""


class _Wrapped(KafkaTarget):
    """A target that misunderstands its producer."""

    def _opened(self) -> ProducerSession:
        session = super()._opened()
        self.misunderstand(session.producer)
        return session

    def misunderstand(self, producer: object) -> None:
        raise AssertionError("to be overridden")


class TakesInvalidStateForACommit(_Wrapped):
    def misunderstand(self, producer: object) -> None:
        assert isinstance(producer, FakeProducer)
        right = producer.commit

        def commit() -> None:
            try:
                right()
            except Unavailable as error:
                if "invalid transaction state" not in error.what:
                    raise

        producer.commit = commit  # type: ignore[method-assign]


class LetsTheLibraryRetry(_Wrapped):
    """The reply of a commit that was sent twice hides that the first request is still on its way."""

    def misunderstand(self, producer: object) -> None:
        assert isinstance(producer, FakeProducer)
        right = producer.commit

        def commit() -> None:
            try:
                right()
            except Unavailable as error:
                if error.what != "no reply":
                    raise
                if producer._name in producer._brokers.opened:
                    producer._brokers.commit(producer._name)

        producer.commit = commit  # type: ignore[method-assign]


class IgnoresDisturbances(_Wrapped):
    def misunderstand(self, producer: object) -> None:
        producer.__class__ = type("Calm", (FakeProducer,), {"disturbed": property(lambda self: False)})


class Play:
    """Processes that deliver the same epochs, while commits fail and land late."""

    def __init__(self, seed: int, kind: type[KafkaTarget]) -> None:
        self.random, self.brokers = random.Random(seed), FakeBrokers()
        self.brokers.fault = lambda: self.random.choice(FAULTS) if self.random.random() < 0.4 else "none"
        self._busy, self._kind = False, kind
        self.brokers.meanwhile = lambda: self._meanwhile("before_begin")
        self.targets = [opened(self.brokers, claim=FIRST, fault=self._meanwhile, kind=kind) for _ in range(PROCESSES)]

    def run(self) -> None:
        for _ in range(STEPS):
            self.deliver(self.random.choice(self.targets))
            self.check()

    def deliver(self, target: KafkaTarget) -> None:
        """Let a process read the tag and deliver the next epochs, until something fails."""
        try:
            at = target.delivered()
            for _ in range(self.random.randrange(1, 4)):
                following = 1 if at is None else at.epoch + 1
                outcome = target.deliver(tag(following), batches(*rows(following)), at or NEVER)
                at = outcome.tag if isinstance(outcome, AlreadyDelivered) else tag(following)
        except HoldfastError as error:
            assert isinstance(error, Unavailable), f"{error.what}: no process is at fault"

    def check(self) -> None:
        standing = Progress("the progress topic")
        for key, value in self.brokers.marks:
            standing.apply(key, value)
        newest = standing.newest(JOB, "out")
        epochs: Sequence[int] = range(1, (0 if newest is None else newest.epoch) + 1)
        assert shown(self.brokers) == [row for epoch in epochs for row in rows(epoch)]

    def _meanwhile(self, point: FaultPoint) -> None:
        """Anything may happen between two steps of a delivery."""
        if self.random.random() < 0.3:
            self.brokers.land()
            self.check()
        if not self._busy and self.random.random() < 0.15:
            self._busy = True
            try:
                self.deliver(opened(self.brokers, claim=FIRST, fault=self._meanwhile, kind=self._kind))
            finally:
                self._busy = False


def outcome_of(seed: int, kind: type[KafkaTarget]) -> str | None:
    """Return how a play went wrong; None if it did not."""
    try:
        Play(seed, kind).run()
    except (AssertionError, KeyError) as error:
        return repr(error)
    return None


WRONG: tuple[type[KafkaTarget], ...] = (
    ReadsBeforeInit,
    UsesAProducerAgain,
    TakesInvalidStateForACommit,
    LetsTheLibraryRetry,
    IgnoresDisturbances,
)


class TestPlays:
    def test_readers_see_every_epoch_once_and_in_order(self) -> None:
        for seed in SEEDS:
            Play(seed, KafkaTarget).run()

    @pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
    def test_a_wrong_version_is_caught(
        self, kind: type[KafkaTarget], record_property: Callable[[str, object], None]
    ) -> None:
        caught = next((seed for seed in SEEDS if outcome_of(seed, kind) is not None), None)
        assert caught is not None
        record_property("wrong version", f"{kind.__name__} {caught + 1}")


class TestProgress:
    def test_records_have_a_form_that_later_versions_read(self) -> None:
        assert tag_record(JOB, RIGHT, tag(7, 2)) == (
            b'["tag","6f9b0f6e-0000-4000-8000-000000000001","out",1]',
            b'{"v":1,"timeline":2,"epoch":7}',
        )
        assert owner_record(JOB, "o/t", SECOND) == (
            b'["owner","6f9b0f6e-0000-4000-8000-000000000001","o/t"]',
            b'{"v":1,"owner":"second","generation":2}',
        )
        assert topic_record(JOB, "o/t", "a-b") == (
            b'["topic","6f9b0f6e-0000-4000-8000-000000000001","o/t"]',
            b'{"v":1,"id":"a-b"}',
        )
        assert progress_topic("t") == "t-holdfast-progress"

    def test_the_newest_record_of_a_key_counts(self) -> None:
        progress = Progress("p")
        for key, value in (
            tag_record(JOB, LEFT, tag(1)),
            tag_record(JOB, RIGHT, tag(5)),
            tag_record(JOB, LEFT, tag(2)),
        ):
            progress.apply(key, value)
        progress.apply(*owner_record(JOB, "out", FIRST))
        assert (progress.tag_of(JOB, LEFT), progress.newest(JOB, "out")) == (tag(2), tag(5))
        assert progress.held(JOB, "out") == Held("first", Generation(1))
        progress.apply(tag_record(JOB, RIGHT, tag(5))[0], None)
        progress.apply(owner_record(JOB, "out", FIRST)[0], None)
        assert (progress.newest(JOB, "out"), progress.held(JOB, "out")) == (tag(2), None)

    def test_other_jobs_under_the_same_sink_name_are_told_apart(self) -> None:
        progress = Progress("p")
        progress.apply(*tag_record("other", LEFT, tag(4)))
        progress.apply(*tag_record(JOB, LEFT, tag(1)))
        progress.apply(*tag_record("other", Writer("another", Subtask(0)), tag(9)))
        assert list(progress.others(JOB, "out")) == [("other", tag(4))]
        assert progress.tag_of("other", RIGHT) is None

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            (None, b"{}"),
            (b"hello", b"{}"),
            (b'["more"]', b"{}"),
            (b'["tag","j","s",0]', b'{"v":2,"timeline":1,"epoch":1}'),
            (b'["tag","j","s",0]', b'{"v":1,"timeline":1}'),
            (b'["tag","j","s",0]', b"[]"),
        ],
    )
    def test_a_record_of_another_program_is_damage(self, key: bytes | None, value: bytes) -> None:
        with pytest.raises(Damaged, match="a record that this version cannot read"):
            Progress("topic p").apply(key, value)
