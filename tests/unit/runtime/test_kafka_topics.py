"""Topics by a pattern without a broker: which topics are meant, and the numbers of their partitions."""

from __future__ import annotations

import pickle
import random
import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import ConfigError, Damaged, Unavailable
from holdfast.runtime.plan.ahead import Ahead, Read
from holdfast.runtime.plan.source import Kept
from holdfast.runtime.sources.kafka import reading
from holdfast.runtime.sources.kafka.reading import OpenKafka
from holdfast.runtime.sources.kafka.topics.catalogue import Added, Catalogue, Listed, Place, TopicCatalogueHead
from holdfast.runtime.sources.kafka.topics.matching import added, left_out, matches
from holdfast.runtime.sources.kafka.topics.reading import OpenTopics
from holdfast.runtime.sources.kafka.topics.source import TopicsSource
from holdfast.runtime.sources.objects import HEAD_PATH, write_head
from holdfast.storage.kafka import questions
from holdfast.storage.kafka.questions import Questions, Topic
from holdfast.storage.objects import LocalObjects, MemoryObjects
from holdfast.testing import TestDriver

HOST = "broker.example:9092"
HEAD = TopicCatalogueHead(folder="topics-a", cluster="c")
ORDERS = re.compile(r"orders[.].*")


@dataclass
class Order:
    n: int


class Opened(NamedTuple):
    driver: OpenTopics
    worker: OpenTopics


def topic(id: str, partitions: int) -> Topic:
    return Topic("c", id, tuple(range(partitions)), frozenset(), None)


def source(**more: object) -> TopicsSource:
    found = hf.Kafka(HOST, ORDERS, hf.JSON(Order), **more).source()  # type: ignore[arg-type]
    assert isinstance(found, TopicsSource)
    return found


class TestMeantTopics:
    @pytest.mark.parametrize(
        ("pattern", "name", "meant"),
        [
            (r"orders[.].*", "orders.de", True),
            (r"orders[.].*", "old.orders.de", False),
            (r"orders", "orders2", False),
            (r"(?i)ORDERS[.].*", "orders.de", True),
            (r".*", "__consumer_offsets", False),
            (r"__consumer.*", "__consumer_offsets", True),
            (r".*", "orders-holdfast-progress", False),
            (r".*-holdfast-progress", "orders-holdfast-progress", True),
        ],
    )
    def test_have_names_that_match_as_a_whole_and_are_not_internal(self, pattern: str, name: str, meant: bool) -> None:
        assert matches(re.compile(pattern), name) is meant

    def test_topics_excluded_by_a_narrower_pattern_are_known(self) -> None:
        assert left_out(re.compile("orders[.]de"), ["orders.fr", "orders.de", "orders.at"]) == [
            "orders.at",
            "orders.fr",
        ]


class TestNumbers:
    def test_newly_listed_partitions_are_numbered_after_known_ones_by_name(self) -> None:
        known = {"d": Listed("1", (0, 1)), "e": Listed("2", (2,))}
        found = {"e": topic("2", 3), "d": topic("1", 2), "a": topic("3", 1)}
        assert added(known, found) == [Added("a", "3", 1), Added("e", "2", 2)]

    @pytest.mark.parametrize("seed", range(20))
    def test_never_change_and_are_the_same_for_two_drivers_and_a_worker(self, seed: int) -> None:
        chance, store = random.Random(seed), MemoryObjects()
        drivers, worker = [Catalogue(store, HEAD), Catalogue(store, HEAD)], Catalogue(store, HEAD)
        topics, before = dict[str, int](), dict[int, Place]()
        for _ in range(30):
            name = f"t{chance.randrange(100):02}"  # sorts before and after those that are known
            topics[name] = topics.get(name, 0) + chance.randrange(1, 4)
            driver = chance.choice(drivers)
            for _attempt in (1, 2):  # the other one may have appended since this one looked
                further = added(driver.topics, {each: topic(each, count) for each, count in topics.items()})
                if not further or driver.append(further):
                    break
                driver.refresh()
            numbered = {number: worker.place(number) for number in range(sum(topics.values()))}
            assert all(numbered[number] == place for number, place in before.items())
            assert sorted(place for place in numbered.values() if place) == sorted(
                Place(each, partition) for each, count in topics.items() for partition in range(count)
            )
            before = {number: place for number, place in numbered.items() if place is not None}

    def test_partition_numbers_taken_by_another_driver_are_not_assigned_twice(self) -> None:
        store = MemoryObjects()
        fast, slow = Catalogue(store, HEAD), Catalogue(store, HEAD)
        assert fast.append([Added("a", "1", 2)]) and not slow.append([Added("b", "2", 1)])
        assert len(slow) == 0
        slow.refresh()
        assert slow.append([Added("b", "2", 1)]) and fast.place(2) == Place("b", 0)
        assert fast.listed("b", "2") == Listed("2", (2,))


class TestTopicsThatHaveEnded:
    def test_keep_their_numbers_and_one_of_the_same_name_gets_others(self) -> None:
        store = MemoryObjects()
        driver, worker = Catalogue(store, HEAD), Catalogue(store, HEAD)
        assert driver.append([Added("a", "1", 2), Added("b", "2", 1)])
        assert driver.append([Added("a", "3", 1)], ["a"])
        worker.refresh()
        assert worker.topics == {"a": Listed("3", (3,)), "b": Listed("2", (2,))}
        assert [worker.is_over(number) for number in range(4)] == [True, True, False, False]
        assert worker.has_ended("a", "1") and not worker.has_ended("a", "3")
        assert [(worker.place(number), worker.id(number)) for number in (1, 3)] == [
            (Place("a", 1), "1"),
            (Place("a", 0), "3"),
        ]
        assert worker.listed("a", "1").numbers == (0, 1) and worker.listed("a", "3").numbers == (3,)


class TestIdentity:
    def opened(self, folder: Path) -> TopicsSource:
        store = LocalObjects(folder)
        write_head(store, HEAD)
        Catalogue(store, HEAD).append([Added("orders.de", "1", 2), Added("orders.fr", None, 1)])
        bound = source().in_folder(str(folder))
        assert isinstance(bound, TopicsSource)
        return bound

    def test_says_which_partition_of_which_topic_has_the_number(self, tmp_path: Path) -> None:
        opened = self.opened(tmp_path).open()
        assert opened.partitions() == [0, 1, 2]
        assert opened.identity(1, 5) == "kafka-topics 1 c 1 1 orders.de"
        assert opened.identity(2, 5) == "kafka-topics 2 c - 0 orders.fr"

    def test_an_identity_with_another_numbering_or_source_is_refused(self, tmp_path: Path) -> None:
        opened = self.opened(tmp_path).open()
        why = opened.changed("kafka-topics 1 c 1 0 orders.fr")
        assert why is not None and "does not have partition 0 of topic 'orders.fr', which was read, as" in why
        assert "but a kafka was read" in (opened.changed("kafka c 1") or "")

    def test_a_number_that_the_catalogue_lacks_is_asked_for_again(self, tmp_path: Path) -> None:
        with pytest.raises(Unavailable, match="no partition 3 yet"):
            self.opened(tmp_path).open().retention_start(3)


class TestSource:
    def test_travels_to_workers_and_has_the_columns_that_are_wanted(self) -> None:
        assert pickle.loads(pickle.dumps(source())) == source()  # noqa: S301
        assert source().schema.names == ["n"] and source().row_type is Order
        assert source(meta=True).schema.names[-2:] == ["kafka_headers", "kafka_topic"]
        taken = hf.JSON(pa.schema([pa.field("kafka_topic", pa.utf8())]))
        with pytest.raises(ConfigError, match="'kafka_topic' is also one of meta=True"):
            hf.Kafka(HOST, ORDERS, taken, meta=True).source()

    def test_promises_no_partitions_by_key(self) -> None:
        assert source(key="n").traits.partitioned_by == ()
        assert source().traits.copies == "list of topics" and source(group="g").publishes is not None

    def test_is_not_opened_before_a_first_start_listed_the_topics(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="were not listed yet"):
            source().in_folder(str(tmp_path)).open()

    def test_avro_does_not_look_for_a_schema_of_the_pattern(self) -> None:
        value = hf.Avro(Order, registry="http://127.0.0.1:1")
        found = hf.Kafka(HOST, ORDERS, value).source()
        assert isinstance(found, TopicsSource) and found.each.coded is not None
        found.each.coded.opened(found.each.values).check()

    @pytest.mark.parametrize(
        ("servers", "topic", "is_read"),
        [
            (HOST, "orders.dlq", True),
            (f"other.example:9092,{HOST}", "orders.dlq", True),
            (HOST, "letters", False),
            ("other.example:9092", "orders.dlq", False),
        ],
    )
    @pytest.mark.parametrize("delivery", ["transactional", "at-least-once"])
    def test_a_source_that_would_read_the_jobs_own_output_is_refused(
        self, tmp_path: Path, servers: str, topic: str, is_read: bool, delivery: Any
    ) -> None:
        app = hf.App("orders", root=str(tmp_path))
        orders = app.source("orders", hf.Kafka(HOST, ORDERS, hf.JSON(Order)))
        orders.sink("letters", hf.Kafka(servers, topic, delivery=delivery))
        if not is_read:
            assert len(app.plan().sinks) == 1
            return
        with pytest.raises(
            ConfigError, match=r"'orders' reads .*, and so also the rows that sink 'letters' writes to Kafka"
        ):
            app.plan()

    def test_a_resumed_source_keeps_its_catalogue_and_no_leftovers_of_unfinished_starts(self, tmp_path: Path) -> None:
        store = LocalObjects(tmp_path / "job")
        write_head(store, HEAD)
        store.put(f"{HEAD.folder}/0", b"of this one")
        store.put("topics-b/0", b"of a start that ended before it was named")
        found = replace(source(), folder=str(tmp_path / "job")).copied(again=False)
        assert (found.head, sorted(store.list(""))) == (HEAD, [HEAD_PATH, f"{HEAD.folder}/0"])

    def test_is_tested_without_a_broker(self) -> None:
        app = hf.App("orders")
        app.source("orders", hf.Kafka(HOST, ORDERS, hf.JSON(Order))).sink("out", hf.Collect())
        with TestDriver(app) as t:
            t.push("orders", [Order(1)])
            t.checkpoint()
            t.add_partitions("orders")
            t.push("orders", [Order(2)], partition=4)
            t.checkpoint()
            assert sorted(row["n"] for row in t.rows("out")) == [1, 2]


class TestConnection:
    def test_a_connection_opened_before_a_topic_was_added_reads_its_end_offsets(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = LocalObjects(tmp_path)
        write_head(store, HEAD)
        driver = Catalogue(store, HEAD)
        driver.append([Added("orders.de", "1", 2)])
        opened = source().in_folder(str(tmp_path)).open()
        driver.append([Added("orders.at", "2", 1)])
        ends = {"orders.de": {0: 5, 1: 6, 2: 7}, "orders.at": {0: 8}}
        monkeypatch.setattr(OpenKafka, "end_offsets", lambda self: ends[self._place.topic])
        assert opened.end_offsets() == {0: 5, 1: 6, 2: 8}, "the third partition of orders.de has no number yet"

    def test_names_topic_and_partition_of_a_number(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = LocalObjects(tmp_path)
        write_head(store, HEAD)
        Catalogue(store, HEAD).append([Added("orders.de", "1", 1), Added("orders.fr", "2", 2)])
        monkeypatch.setattr(OpenKafka, "kept", lambda self, within_s: {each: Kept(7, 9) for each in (0, 1)})
        kept = source().in_folder(str(tmp_path)).open().kept(60.0)
        assert kept[2] == Kept(7, 9, called="orders.fr 1") and kept[0].called == "orders.de 0"


class Brokers:
    """Which topics exist, for questions of `OpenTopics`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topics = dict[str, Topic]()
        monkeypatch.setattr(Questions, "names", lambda questions, not_done: ("c", sorted(self.topics)))
        monkeypatch.setattr(Questions, "topic", lambda questions, not_done="": self.topics.get(questions._place.topic))
        monkeypatch.setattr(Questions, "offsets", lambda questions, partitions, which: dict.fromkeys(partitions, 9))
        monkeypatch.setattr("holdfast.runtime.sources.kafka.reading.MISSING_FOR_S", 0.0)

    def has(self, name: str, id: str, partitions: int = 1) -> None:
        self.topics[name] = topic(id, partitions)


def read_by(folder: Path, **more: object) -> Opened:
    """Return a driver's connection and a worker's."""
    store = LocalObjects(folder)
    write_head(store, HEAD)
    bound = source(**more).in_folder(str(folder))
    assert isinstance(bound, TopicsSource)
    return Opened(replace(bound, head=HEAD, lists=True).open(), replace(bound, head=HEAD).open())


class TestTopicThatIsDeleted:
    @pytest.mark.parametrize("recreated", [False, True])
    def test_is_damaged_by_default_and_the_message_names_the_way_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recreated: bool
    ) -> None:
        brokers = Brokers(monkeypatch)
        brokers.has("orders.de", "1")
        driver, worker = read_by(tmp_path)
        assert driver.partitions() == [0]
        if recreated:
            brokers.has("orders.de", "2")
        else:
            del brokers.topics["orders.de"]
        for ask in (driver.partitions, lambda: worker.read(0, 0, 100), worker.end_offsets):
            with pytest.raises(Damaged, match="was recreated" if recreated else "no longer exists") as failed:
                ask()
            assert 'on_lost="earliest"' in (failed.value.next_step or "")
        assert worker.changed(worker.identity(0, 3)) is not None

    def test_has_ended_if_losses_are_accepted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        brokers = Brokers(monkeypatch)
        brokers.has("orders.de", "1", 2)
        brokers.has("orders.fr", "2")
        driver, worker = read_by(tmp_path, on_lost="earliest")
        assert driver.partitions() == worker.partitions() == [0, 1, 2]
        del brokers.topics["orders.de"]
        with pytest.raises(Unavailable, match="which the driver has still to note"):
            worker.read(1, 3, 100)
        assert worker.end_offsets() == {0: 0, 1: 0, 2: 9} and not worker.ended(1, 3)
        assert driver.partitions() == [0, 1, 2]
        assert worker.read(1, 3, 100) == (None, 3) and worker.ended(1, 3) and not worker.ended(2, 9)
        assert worker.end_offsets() == {0: 0, 1: 0, 2: 9}
        assert worker.changed(worker.identity(1, 3)) is None
        assert worker.retention_start(1) == 0 and worker.whole_from(1) > 1 << 60, "nothing can be read again"
        assert (worker.gone(1), worker.gone(2)) == ("topic 'orders.de' no longer exists", None)

    def test_is_awaited_once_and_not_at_all_if_that_was_noted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A command asks several times of each of them."""
        brokers = Brokers(monkeypatch)
        brokers.has("orders.de", "1")
        brokers.has("orders.fr", "2")
        driver, _ = read_by(tmp_path, on_lost="earliest")
        driver.partitions()
        del brokers.topics["orders.de"]
        awaited = list[OpenKafka]()
        monkeypatch.setattr(OpenKafka, "_awaited", lambda opened: awaited.append(opened))  # of which none is known
        _, started = read_by(tmp_path, on_lost="earliest")
        for _ in range(3):
            assert (
                started.gone(0) and started.whole_from(0) > 1 << 60 and started.changed(started.identity(0, 3)) is None
            )
        assert len(awaited) == 1
        driver.partitions()
        awaited.clear()
        _, later = read_by(tmp_path, on_lost="earliest")
        reader = later.reader(0, 3, cast(Ahead, None))
        assert reader.poll(100) == Read(None, 3) and not awaited

    def test_is_awaited_together_with_all_others(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A job that was down while ten topics were deleted would else start a minute later."""
        brokers, now = Brokers(monkeypatch), [100.0]
        for name in ("orders.at", "orders.de", "orders.fr", "orders.it"):
            brokers.has(name, name)
        driver, _ = read_by(tmp_path, on_lost="earliest")
        driver.partitions()
        late = brokers.topics["orders.de"]
        brokers.topics = {"orders.it": brokers.topics["orders.it"]}

        def sleep(seconds: float) -> None:
            now[0] += seconds
            if now[0] > 102.0:
                brokers.topics["orders.de"] = late  # a broker that has just started

        for module in (reading, questions):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
        monkeypatch.setattr(reading, "MISSING_FOR_S", 5.0)
        _, started = read_by(tmp_path, on_lost="earliest")
        gone = [started.gone(number) is not None for number in range(4)]
        assert gone == [True, False, True, False]
        assert 105.0 <= now[0] < 105.2

    def test_a_topic_that_reappears_after_the_wait_is_detected(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        brokers = Brokers(monkeypatch)
        for name in ("orders.de", "orders.fr"):
            brokers.has(name, name)
        driver, worker = read_by(tmp_path, on_lost="earliest")
        driver.partitions()
        late = brokers.topics.pop("orders.fr")
        assert worker.gone(1) is not None
        brokers.topics["orders.fr"] = late
        assert worker.gone(1) is None

    def test_has_no_connection_and_is_asked_for_no_longer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else a job with a topic per import has ever more threads, and one without another topic asks all the time."""
        brokers = Brokers(monkeypatch)
        brokers.has("orders.de", "1", 2)
        driver, worker = read_by(tmp_path, on_lost="earliest")
        driver.partitions()
        brokers.topics.clear()
        closed = list[str]()
        monkeypatch.setattr(Questions, "close", lambda questions: closed.append(questions._place.topic))
        driver.partitions()
        assert closed == ["orders.de"]
        assert worker.read(0, 3, 100) == (None, 3)
        assert closed == ["orders.de", "orders.de"]
        monkeypatch.delattr(Questions, "topic")
        assert worker.read(0, 3, 100) == (None, 3) and worker.read(1, 7, 100) == (None, 7)

    def test_counts_as_ended_for_a_start_before_the_first_listing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        brokers = Brokers(monkeypatch)
        brokers.has("orders.de", "1")
        driver, _ = read_by(tmp_path, on_lost="earliest")
        driver.partitions()
        del brokers.topics["orders.de"]
        _, started = read_by(tmp_path, on_lost="earliest")
        started.partitions()
        assert started.changed("kafka-topics 0 c 1 0 orders.de") is None
        assert started.changed("kafka-topics 0 c 7 0 orders.de") is not None, "it is not the one that was read"

    def test_has_no_end_if_it_is_the_last_one_until_another_appears(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else a job whose topics are all gone would finish, although more may appear."""
        brokers = Brokers(monkeypatch)
        brokers.has("orders.de", "1")
        driver, worker = read_by(tmp_path, on_lost="earliest")
        driver.partitions()
        brokers.topics.clear()
        driver.partitions()
        assert worker.read(0, 3, 100) == (None, 3) and not worker.ended(0, 3)
        brokers.has("orders.fr", "2")
        assert driver.partitions() == worker.partitions() == [0, 1]
        assert worker.ended(0, 3) and not worker.ended(1, 0)

    def test_may_be_the_last_one_when_a_job_starts_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        Brokers(monkeypatch)
        bound = replace(source(on_lost="earliest"), folder=str(tmp_path / "job"))
        with pytest.raises(ConfigError, match="no topic that the job's user may see matches"):
            bound.check()
        write_head(LocalObjects(tmp_path / "job"), HEAD)
        bound.check()

    def test_and_recreated_is_another_topic(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Noted by one listing, or by two if a listing finds it missing."""
        brokers = Brokers(monkeypatch)
        brokers.has("orders.de", "1")
        driver, worker = read_by(tmp_path, on_lost="earliest")
        driver.partitions()
        brokers.has("orders.de", "2", 2)
        assert driver.partitions() == worker.partitions() == [0, 1, 2]
        assert worker.ended(0, 3) and worker.end_offsets() == {0: 0, 1: 9, 2: 9}
        assert worker.identity(1, 3) == "kafka-topics 1 c 2 0 orders.de"
        del brokers.topics["orders.de"]
        driver.partitions()
        brokers.has("orders.de", "3")
        assert driver.partitions() == [0, 1, 2, 3]
        assert worker.read(2, 3, 100) == (None, 3) and worker.ended(2, 3)

    def test_and_restored_with_its_id_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its records would be read a second time."""
        brokers = Brokers(monkeypatch)
        brokers.has("orders.de", "1")
        driver, _ = read_by(tmp_path, on_lost="earliest")
        driver.partitions()
        del brokers.topics["orders.de"]
        driver.partitions()
        brokers.has("orders.de", "1")
        with pytest.raises(Damaged, match="exists again with the same id"):
            driver.partitions()

    def test_may_be_left_out_by_a_narrower_pattern(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        brokers = Brokers(monkeypatch)
        brokers.has("orders.de", "1")
        brokers.has("orders.fr", "2")
        driver, _ = read_by(tmp_path, on_lost="earliest")
        driver.partitions()
        narrower = replace(source(on_lost="earliest"), folder=str(tmp_path), pattern=re.compile("orders[.]fr"))
        with pytest.raises(ConfigError, match="reads topic 'orders.de'"):
            narrower.copied(again=False)
        del brokers.topics["orders.de"]
        driver.partitions()
        assert narrower.copied(again=False).head == HEAD

    def test_has_no_offsets_of_a_group(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        brokers = Brokers(monkeypatch)
        brokers.has("orders.de", "1")
        brokers.has("orders.fr", "2")
        driver, _ = read_by(tmp_path, on_lost="earliest")
        driver.partitions()
        bound = replace(source(on_lost="earliest", group="g"), folder=str(tmp_path))
        assert bound.publishes is not None
        named = bound.publishes._named
        assert named({0: 5, 1: 6}) == [("orders.de", 0, 5), ("orders.fr", 0, 6)]
        del brokers.topics["orders.de"]
        driver.partitions()
        assert named({0: 5, 1: 6}) == [("orders.fr", 0, 6)]
