"""Requests in the log: each key once, over crashes, lost replies and several processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logged import rows_in

import holdfast as hf
from holdfast.errors import Unavailable
from holdfast.ports import ObjectStore
from holdfast.runtime.capture.admission import Admission, AdmissionLimits, Answer, CommitRequests, Effect, Verdict
from holdfast.runtime.capture.appending import FIRST_LOOK_ROWS, SKEW_US, WRITER, Appending
from holdfast.runtime.capture.keys import RecentKeys, digest_of
from holdfast.runtime.capture.requests import Accepted, Requests
from holdfast.runtime.sources.webhook.connector import META, Receiving
from holdfast.storage.log.log import SENDS_MAX, LogReader, LogWriter, create_log
from holdfast.storage.objects import MemoryObjects

HOUR_US = 3_600_000_000
START_US = 1_800_000_000_000_000
SCHEMA = pa.schema([pa.field("id", pa.utf8(), nullable=False), pa.field("n", pa.int64())])


def receiving(schema: pa.Schema = SCHEMA, log: dict[str, Any] | None = None, **given: Any) -> Receiving:
    made = {"key": "header:K", "horizon": "1h", **given}
    return hf.Webhook("127.0.0.1:0", hf.Log("data/log", **(log or {"partitions": 2})), schema, **made).receiving


ONE = receiving(log={"partitions": 1})


class Clock:
    """A wall clock that a test sets."""

    def __init__(self) -> None:
        self.us = START_US

    def __call__(self) -> int:
        return self.us


def request(key: str | None, of: Receiving | None = None) -> Accepted:
    headers = {} if key is None else {"k": key}
    found = Requests(of or receiving(key=None if key is None else "header:K")).read(headers, b'{"id":"x"}', (), 0.0)
    assert isinstance(found, Accepted)
    return found


def by_hand(times_us: list[int | None]) -> pa.Table:
    """Return rows without keys, as other programs append them."""
    columns = [["x"] * len(times_us), [1] * len(times_us), [None] * len(times_us), times_us]
    schema = pa.schema([*SCHEMA, *META])
    return pa.Table.from_arrays([pa.array(v, f.type) for v, f in zip(columns, schema, strict=True)], schema=schema)


def rows(store: ObjectStore) -> list[dict[str, Any]]:
    return rows_in(store)


def keys(store: ObjectStore) -> list[str]:
    return sorted(row["webhook_key"] for row in rows(store))


def started(store: ObjectStore, of: Receiving | None = None, clock: Callable[[], int] | None = None) -> Appending:
    return Appending(store, of or receiving(), clock or Clock(), pause=lambda _: None)


def opened(store: ObjectStore, of: Receiving | None = None, clock: Callable[[], int] | None = None) -> Appending:
    made = started(store, of, clock)
    list(made.recover())
    return made


class TestRows:
    def test_have_the_key_and_the_time_behind_the_columns_of_the_schema(self) -> None:
        store, clock = MemoryObjects(), Clock()
        done = opened(store, clock=clock).append([request("a"), request("b")])
        assert (done.at_us, done.repeated, done.seen) == (START_US, frozenset(), ())
        found = rows(store)
        assert [list(row) for row in found] == [["id", "n", "webhook_key", "webhook_at"]] * 2
        assert {row["webhook_at"].timestamp() for row in found} == {START_US / 1e6}

    def test_rows_of_a_batch_are_one_commit_and_batches_rotate_over_the_partitions(self) -> None:
        store = MemoryObjects()
        appending = opened(store)
        for batch in (["a", "b"], ["c"], ["d", "e", "f"]):
            appending.append(list(map(request, batch)))
        assert len(store.list("commits")) == len(store.list("data")) == 3
        assert sorted(LogReader(store).end_offsets().values()) == [1, 5]

    def test_go_to_the_partition_of_the_logs_key(self) -> None:
        store = MemoryObjects()
        of = receiving(log={"partitions": 8, "key": "id"})
        opened(store, of).append([request("a", of), request("b", of)])
        assert sorted(LogReader(store).end_offsets().values()) == [0] * 7 + [2]

    def test_without_a_key_are_all_stored(self) -> None:
        store = MemoryObjects()
        appending = opened(store, receiving(key=None))
        appending.append([request(None), request(None)])
        assert [row["webhook_key"] for row in rows(store)] == [None, None]


class TestLogs:
    def test_a_manually_created_log_gets_the_columns(self) -> None:
        store = MemoryObjects()
        create_log(store, SCHEMA, 2)
        appending = opened(store)
        appending.append([request("a")])
        assert keys(store) == ["a"]

    def test_keep_columns_that_the_schema_no_longer_has_and_get_new_ones(self) -> None:
        store = MemoryObjects()
        opened(store).append([request("a")])
        of = receiving(pa.schema([SCHEMA.field("id"), pa.field("city", pa.utf8())]))
        opened(store, of).append([request("b", of)])
        assert keys(store) == ["a", "b"]
        assert LogReader(store).meta.schema.names == ["id", "n", "webhook_key", "webhook_at", "city"]

    @pytest.mark.parametrize(
        ("schema", "options", "message"),
        [
            (pa.schema([pa.field("id", pa.int64())]), {}, "already has the column 'id'"),
            (
                pa.schema([pa.field("id", pa.utf8(), nullable=False), pa.field("n", pa.utf8())]),
                {},
                "already has the column 'n'",
            ),
            (pa.schema([*SCHEMA, pa.field("x", pa.utf8(), nullable=False)]), {}, "needs a value"),
            (
                pa.schema([pa.field("id", pa.utf8(), nullable=False), pa.field("n", pa.int64(), nullable=False)]),
                {},
                "the schema n",
            ),
            (SCHEMA, {"key": ["id"], "changelog": True}, "is a changelog"),
        ],
    )
    def test_a_log_that_does_not_fit_is_refused_before_a_request_is_received(
        self, schema: pa.Schema, options: dict[str, Any], message: str
    ) -> None:
        store = MemoryObjects()
        create_log(store, schema, 2, **options)
        with pytest.raises(hf.ConfigError, match=message):
            started(store)

    def test_a_log_with_another_partitioning_key_is_refused(self) -> None:
        store = MemoryObjects()
        create_log(store, receiving().columns, 2)
        with pytest.raises(hf.ConfigError, match="is partitioned by no key"):
            started(store, receiving(log={"key": "id"}))

    def test_whose_key_chooses_no_partition_are_refused(self) -> None:
        schema = pa.schema([SCHEMA.field("id"), pa.field("price", pa.float64())])
        store = MemoryObjects()
        with pytest.raises(hf.ConfigError, match="'price' of type Float64 cannot be a key"):
            started(store, receiving(schema, log={"key": "price"}))
        assert store.list("") == []

    def test_a_sealed_log_is_refused(self) -> None:
        store = MemoryObjects()
        appending = opened(store)
        LogWriter(store).seal()
        with pytest.raises(hf.ConfigError, match="sealed"):
            appending.append([request("a")])
        with pytest.raises(hf.ConfigError, match="is sealed"):
            started(store)

    @pytest.mark.parametrize("recreated", [False, True])
    def test_deletion_of_the_log_before_the_first_request_ends_the_process(self, recreated: bool) -> None:
        store = MemoryObjects()
        appending = opened(store)
        store.delete("meta.json")
        if recreated:
            create_log(store, receiving().columns, 2)
        with pytest.raises(hf.Damaged, match="is missing or has changed"):
            appending.append([request("a")])
        assert store.list("commits") == []

    def test_deletion_of_the_log_after_a_request_ends_the_process(self) -> None:
        store = MemoryObjects()
        appending = opened(store)
        appending.append([request("a")])
        for path in store.list("commits"):
            store.delete(path)
        with pytest.raises(hf.Damaged, match="is missing or has changed"):
            appending.append([request("b")])
        assert store.list("commits") == []


class TestRecovery:
    def test_finds_the_keys_of_the_horizon_and_no_older_ones(self) -> None:
        store, clock = MemoryObjects(), Clock()
        appending = opened(store, clock=clock)
        for key in "abc":
            appending.append([request(key)])
            clock.us += HOUR_US * 6 // 10
        found = {each.key: each.at_us for each in started(store, clock=clock).recover()}
        assert found == {digest_of("c"): START_US + HOUR_US * 12 // 10}

    def test_reads_no_more_of_a_long_log_than_a_multiple_of_the_horizon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store, clock = MemoryObjects(), Clock()
        appending = opened(store, ONE, clock)
        any_request = request("x")
        for number in range(30):
            appending.append([replace(any_request, key=f"{number}-{each}") for each in range(FIRST_LOOK_ROWS // 2)])
            clock.us += HOUR_US
        read = list[int]()

        def counting(self: LogReader, partition: int, offset: int, most: int) -> tuple[Any, int]:
            batch, following = original(self, partition, offset, most)
            read.append(0 if batch is None else batch.num_rows)
            return batch, following

        original = LogReader.read
        monkeypatch.setattr(LogReader, "read", counting)
        found = list(started(store, ONE, clock).recover())
        assert len(found) == FIRST_LOOK_ROWS // 2 and sum(read) <= 3 * FIRST_LOOK_ROWS

    def test_passes_rows_that_other_programs_appended(self) -> None:
        store, clock = MemoryObjects(), Clock()
        opened(store, clock=clock).append([request("a")])
        LogWriter(store).append({0: by_hand([None]), 1: by_hand([None])})
        clock.us += HOUR_US // 2
        assert [each.key for each in started(store, clock=clock).recover()] == [digest_of("a")]

    def test_time_never_goes_back_behind_that_of_the_log(self) -> None:
        store, clock = MemoryObjects(), Clock()
        opened(store, clock=clock).append([request("a")])
        clock.us -= 10 * HOUR_US
        appending = started(store, clock=clock)
        assert [each.key for each in appending.recover()] == [digest_of("a")]
        assert appending.append([request("b")]).at_us == START_US

    def test_with_the_clock_behind_the_log_warns_and_takes_no_key_for_an_old_one(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        store, clock = MemoryObjects(), Clock()
        opened(store, clock=clock).append([request("a")])
        assert not caplog.messages
        clock.us -= 10 * HOUR_US
        appending = started(store, clock=clock)
        [found] = appending.recover()
        assert appending.age_us(found.at_us) == 0
        assert len(caplog.messages) == 1 and "10.0 h ahead of this machine's clock" in caplog.messages[0]
        clock.us += 11 * HOUR_US
        assert appending.age_us(found.at_us) == HOUR_US

    def test_looks_behind_rows_whose_clock_was_somewhat_slow(self) -> None:
        store, clock = MemoryObjects(), Clock()
        opened(store, ONE, clock).append([request("a")])
        late = START_US - HOUR_US - SKEW_US // 2
        LogWriter(store).append({0: by_hand([late] * FIRST_LOOK_ROWS)})
        assert [each.key for each in started(store, ONE, clock).recover()] == [digest_of("a")]


class TestTwoProcesses:
    def test_store_a_key_once(self) -> None:
        store = MemoryObjects()
        one, two = opened(store), opened(store)
        one.append([request("a"), request("b")])
        done = two.append([request("b"), request("c")])
        assert done.repeated == {digest_of("b")} and {each.key for each in done.seen} == set(map(digest_of, "ab"))
        assert keys(store) == ["a", "b", "c"]
        assert one.append([request("c")]).repeated == {digest_of("c")} and keys(store) == ["a", "b", "c"]

    def test_two_processes_that_commit_at_the_same_time_store_a_key_once(self) -> None:
        store = Raced()
        one, two = opened(store), opened(store)
        store.before_commit = lambda: two.append([request("a")])
        assert one.append([request("a"), request("b")]).repeated == {digest_of("a")}
        assert keys(store) == ["a", "b"]

    def test_two_processes_that_commit_different_keys_at_the_same_time_write_rows_once(self) -> None:
        store = Raced()
        one, two = opened(store), opened(store)
        store.before_commit = lambda: two.append([request("a")])
        one.append([request("b")])
        assert keys(store) == ["a", "b"] and len(store.list("data")) == len(store.list("commits")) == 2

    def test_two_processes_that_start_at_the_same_time_create_one_log(self) -> None:
        store = Raced()
        store.before_meta = lambda: started(store)
        opened(store).append([request("a")])
        assert keys(store) == ["a"]

    def test_keys_of_another_process_older_than_the_horizon_are_new(self) -> None:
        store, clock = MemoryObjects(), Clock()
        one, two = opened(store, clock=clock), opened(store, clock=clock)
        one.append([request("a")])
        clock.us += 2 * HOUR_US
        assert two.append([request("a")]).repeated == frozenset() and keys(store) == ["a", "a"]

    def test_keys_in_partitions_that_were_added_meanwhile_are_known(self) -> None:
        store, batches = MemoryObjects(), [[request(f"{batch}{n}") for n in range(2)] for batch in range(4)]
        one = opened(store)
        LogWriter(store, pause=lambda _: None).widen(4)
        two = opened(store)
        for batch in batches:  # the partitions take turns
            two.append(batch)
        assert all(LogReader(store).end_offsets().values())
        every = [each for batch in batches for each in batch]
        assert one.append(every).repeated == {digest_of(each.key) for each in every if each.key is not None}
        assert keys(store) == sorted(each.key or "" for each in every)


class TestNewsOfOtherProcesses:
    def test_unreadable_commits_of_another_process_are_read_by_the_next_append(self) -> None:
        store = Faulty()
        one, two = opened(store), opened(store)
        two.append([request("a")])
        two.append([request("b")])
        store.unreadable = max(store.list("data"))
        with pytest.raises(Unavailable):
            one.append([request("c")])
        store.unreadable = ""
        assert one.append(list(map(request, "abc"))).repeated == set(map(digest_of, "ab"))
        assert keys(store) == ["a", "b", "c"]

    def test_survive_an_append_that_fails_after_it_has_read_them(self) -> None:
        store = Faulty()
        one, two = opened(store), opened(store)
        two.append([request("a")])
        store.before_commit = store.go_down
        with pytest.raises(Unavailable):
            one.append([request("b")])
        store.down = False
        done = one.append(list(map(request, "abc")))
        assert done.repeated >= {digest_of("a")} and {each.key for each in done.seen} >= {digest_of("a")}
        assert keys(store) == ["a", "b", "c"]


class TestUnknownOutcomes:
    def test_a_lost_reply_is_settled_and_the_request_stored_once(self) -> None:
        store = Faulty()
        appending = opened(store)
        store.plan("lost", 2)
        assert appending.append([request("a")]).repeated == frozenset() and keys(store) == ["a"]

    def test_an_append_that_stays_unknown_is_read_from_the_log_before_the_next(self) -> None:
        store = Faulty()
        appending = opened(store)
        store.plan("lost", 2)
        store.unreachable_after = True
        with pytest.raises(Unavailable):
            appending.append([request("a")])
        with pytest.raises(Unavailable):
            appending.append([request("b")])
        store.unreachable_after = store.down = False
        done = appending.append([request("a"), request("b")])
        assert done.repeated == {digest_of("a")} and keys(store) == ["a", "b"]

    def test_an_earlier_append_that_is_settled_late_is_not_taken_for_this_one(self) -> None:
        store = Faulty()
        appending = opened(store)
        store.plan("lost", 2)
        store.unreachable_after = True
        with pytest.raises(Unavailable):
            appending.append([request("a")])
        store.down, store.refused = False, SENDS_MAX
        with pytest.raises(Unavailable):
            appending.append([request("b")])
        assert appending.append([request("b")]).repeated == frozenset() and keys(store) == ["a", "b"]

    def test_an_append_that_did_not_happen_is_not_taken_for_stored(self) -> None:
        store = Faulty()
        appending = opened(store)
        store.down = True
        with pytest.raises(Unavailable):
            appending.append([request("a")])
        store.down = False
        assert appending.append([request("a")]).repeated == frozenset() and keys(store) == ["a"]


class Raced(MemoryObjects):
    """Lets another process act right before an object of the log is created, once."""

    def __init__(self) -> None:
        super().__init__()
        self.before_commit: Callable[[], object] | None = None
        self.before_meta: Callable[[], object] | None = None

    def create(self, path: str, data: bytes) -> None:
        if path.startswith("commits/") and (act := self.before_commit) is not None:
            self.before_commit = None
            act()
        if path == "meta.json" and (act := self.before_meta) is not None:
            self.before_meta = None
            act()
        super().create(path, data)


class Killed(BaseException):
    """The process ends here, as by SIGKILL."""


class Faulty(MemoryObjects):
    """Objects whose nth write from now on kills the process, before or after it, or loses its reply; or whose nth read
    fails."""

    def __init__(self) -> None:
        super().__init__()
        self.kind, self.left = "", 0
        self.down = self.unreachable_after = False
        self.unreadable = ""
        """An object that cannot be read."""
        self.refused = 0
        """How many writes from now on are refused."""
        self.before_commit: Callable[[], object] | None = None

    def plan(self, kind: str, writes: int) -> None:
        self.kind, self.left = kind, writes

    def create(self, path: str, data: bytes) -> None:
        if path.startswith("commits/") and (act := self.before_commit) is not None:
            self.before_commit = None
            act()
        self._write(lambda: super(Faulty, self).create(path, data))

    def put(self, path: str, data: bytes) -> None:
        self._write(lambda: super(Faulty, self).put(path, data))

    def get(self, path: str) -> bytes:
        self._check()
        if self.kind == "read":
            self.left -= 1
        if path == self.unreadable or (self.kind == "read" and self.left == 0):
            raise Unavailable("the object cannot be read", next_step="wait")
        return super().get(path)

    def go_down(self) -> None:
        self.down = True

    def _check(self) -> None:
        if self.down:
            raise Unavailable("the store is unreachable", next_step="wait")

    def _write(self, write: Callable[[], None]) -> None:
        self._check()
        if self.refused:
            self.refused -= 1
            raise Unavailable("the store is unreachable", next_step="wait")
        if self.kind == "read":
            write()
            return
        self.left -= 1
        due = self.left == 0 and self.kind
        if due == "before":
            raise Killed
        write()
        if due == "after":
            raise Killed
        if due == "lost":
            self.down = self.unreachable_after
            raise Unavailable("the reply was lost", next_step="wait")


@dataclass(frozen=True)
class Turn:
    """One request, and what happens while it is stored."""

    process: int
    key: int
    fault: str = ""
    at: int = 1
    rival: int | None = None
    """The key of a request that the other process stores right before the commit."""
    widens: bool = False
    """Before that, a partition is added, and a process that knows it has stored the key there."""


class Process:
    """A process without sockets: admission over the log, each request in a batch of its own."""

    def __init__(self, store: ObjectStore) -> None:
        self.appending, known = started(store), RecentKeys(HOUR_US)
        for key, at_us in self.appending.recover():
            known.add(key, -self.appending.age_us(at_us))
        self.admission, self.batch = Admission(AdmissionLimits(linger_ms=5), known), dict[int, Accepted]()

    def send(self, key: str) -> Verdict:
        """Send a request; return its answer. Raises Killed."""
        assert self.admission.admit(1) is None
        self.batch[1] = request(key)
        effects: Sequence[Effect] = self.admission.arrived(1, digest_of(key), 1, 0) or self.admission.due(10)
        while not isinstance(effects[0], Answer):
            effects = self.store(effects)
        return effects[0].verdict

    def store(self, effects: Sequence[Effect]) -> Sequence[Effect]:
        assert effects == [CommitRequests((1,))]
        try:
            done = self.appending.append([self.batch[1]])
        except Unavailable:
            return self.admission.failed(10)
        return self.admission.committed(*done, 10)


class Senders:
    """Senders that retry what was not answered, and two processes that may be killed at any write."""

    def __init__(self) -> None:
        self.store, self.answered, self.open = Faulty(), set[str](), set[str]()
        self.processes = [Process(self.store), Process(self.store)]

    def play(self, turn: Turn) -> None:
        if turn.widens:
            self.widen(str(turn.key))
        if turn.rival is not None:
            rival = str(turn.rival)
            self.store.before_commit = lambda: self.send(1 - turn.process, rival)
        self.store.plan(turn.fault, turn.at)
        self.send(turn.process, str(turn.key))
        self.store.before_commit = None
        self.store.plan("", 0)
        assert max(Counter(keys(self.store)).values(), default=1) == 1, "a key is in the log once"

    def widen(self, key: str) -> None:
        """Add a partition, and let a process that starts then store a key in it: partitions take turns."""
        count = len(LogReader(self.store).end_offsets())
        LogWriter(self.store, pause=lambda _: None).widen(count + 1)
        self.processes[1] = Process(self.store)
        for number in range(1, count):
            self.send(1, f"{count} {number}")
        self.send(1, key)

    def send(self, process: int, key: str) -> None:
        self.open.add(key)
        try:
            verdict = self.processes[process].send(key)
        except Killed:
            self.store.plan("", 0)
            self.processes[process] = Process(self.store)
            return
        self.store.plan("", 0)
        if verdict in (Verdict.STORED, Verdict.REPEATED):
            assert key in keys(self.store), "a request that was answered 200 is in the log"
            self.answered.add(key)
            self.open.discard(key)


TURNS = st.builds(
    Turn,
    process=st.integers(0, 1),
    key=st.integers(0, 5),
    fault=st.sampled_from(["", "before", "after", "lost", "read"]),
    at=st.integers(1, 8),
    rival=st.none() | st.integers(0, 5),
    widens=st.sampled_from([False, False, True]),
)


class TestAnyCrash:
    @pytest.mark.thorough
    @settings(max_examples=60)
    @given(st.lists(TURNS, max_size=12))
    def test_what_was_answered_is_stored_once_and_what_was_not_is_once_its_retry_is_answered(
        self, turns: list[Turn]
    ) -> None:
        senders = Senders()
        for turn in turns:
            senders.play(turn)
        for key in sorted(senders.open):
            senders.send(0, key)
        assert not senders.open
        assert keys(senders.store) == sorted(senders.answered)
        assert (LogReader(senders.store).newest().tag_of(WRITER) is not None) == bool(turns)
