"""Uploads to a log: a commit names those that are there, reads the parts of the others, and shows every row once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from logged import rows_in

from holdfast.errors import AlreadyExists, Fenced, Unavailable
from holdfast.model import Epoch, Generation, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.contract.sink import Rewinding
from holdfast.sinks.contract.target import OP, AlreadyDelivered, Delivered, Upload, UploadedOutput
from holdfast.sinks.log.sink import LogTarget, placed, repair
from holdfast.sinks.log.uploads import UPLOADED, LogUploader
from holdfast.storage.bulk import Page
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.objects import MemoryObjects

JOB, SINK = "6f9b0f6e-0000-4000-8000-000000000001", "out"
SCHEMA = pa.schema([("n", pa.int64())])
WRITERS = 3


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)


def upload_of(epoch: int, worker: str = "w", subtask: int = 0, generation: int = 1, timeline: int = 1) -> Upload:
    return Upload(JOB, SINK, timeline, epoch, generation, worker, subtask)


class Lossy(MemoryObjects):
    """A store that loses requests and replies by chance."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.random, self.calm = rng, True

    def create(self, path: str, data: bytes) -> None:
        self._risk(lambda: super(Lossy, self).create(path, data))

    def put(self, path: str, data: bytes) -> None:
        self._risk(lambda: super(Lossy, self).put(path, data))

    def _risk(self, act: Callable[[], None]) -> None:
        fate = 1.0 if self.calm else self.random.random()
        if fate > 0.15:
            with suppress(*(() if fate > 0.3 else (AlreadyExists,))):  # the answer is lost with its content
                act()
        if fate < 0.3:
            raise Unavailable("the reply was lost", next_step="try again")


@pytest.fixture
def store() -> MemoryObjects:
    made = MemoryObjects()
    create_log(made, SCHEMA, 2)
    return made


def target_of(store: MemoryObjects, claim: Claim | None = None) -> LogTarget:
    return LogTarget("log", lambda: store, JOB, Writer(SINK, Subtask(0)), lambda _: None, claim)


def uploader(store: MemoryObjects) -> LogUploader:
    return LogUploader(lambda: store, placed)


def output(
    epoch: int, parts: Sequence[pa.RecordBatch], uploads: Sequence[str | None], asked: list[int] | None = None
) -> UploadedOutput:
    """Return output whose staged parts are these; `asked` collects the places of those that are read."""

    def read(places: Sequence[int]) -> Iterable[pa.RecordBatch]:
        if asked is not None:
            asked.extend(places)
        return [parts[place] for place in places]

    return UploadedOutput(tag(epoch), tuple(uploads), read)


def visible(store: MemoryObjects) -> list[int]:
    return [row["n"] for row in rows_in(store)]


class TestACommit:
    def test_names_uploads_without_storing_their_rows_again(self, store: MemoryObjects) -> None:
        named = [uploader(store).upload(upload_of(1, f"w{n}", n), [rows(10 * n, 10 * n + 1)]) for n in range(3)]
        objects, asked = store.list("data"), list[int]()
        assert visible(store) == []
        outcome = target_of(store).deliver_uploaded(output(1, [], named, asked), tag(0, -1))
        assert (outcome, asked, store.list("data")) == (Delivered(6), [], objects)
        assert sorted(visible(store)) == [0, 1, 10, 11, 20, 21]
        assert Commits(store, LogReader(store).meta).tail.sequence == 1

    def test_reads_the_parts_that_were_not_uploaded(self, store: MemoryObjects) -> None:
        named, asked = uploader(store).upload(upload_of(1, "w1", 1), [rows(10)]), list[int]()
        target_of(store).deliver_uploaded(output(1, [rows(1), rows(10), rows(2)], [None, named, None], asked))
        assert (asked, sorted(visible(store))) == ([0, 2], [1, 2, 10])

    def test_reads_the_part_of_an_upload_that_is_gone(self, store: MemoryObjects) -> None:
        named = uploader(store).upload(upload_of(1), [rows(1, 2)])
        for path in store.list(f"data/{UPLOADED}"):
            store.delete(path)
        target_of(store).deliver_uploaded(output(1, [rows(1, 2)], [named]))
        assert visible(store) == [1, 2]

    def test_reads_the_part_of_an_upload_to_another_log(self, store: MemoryObjects) -> None:
        other = MemoryObjects()
        create_log(other, SCHEMA, 2)
        named = uploader(other).upload(upload_of(1), [rows(1)])
        for path in other.list("data"):
            store.put(path, other.get(path))
        asked = list[int]()
        target_of(store).deliver_uploaded(output(1, [rows(1)], [named], asked))
        assert (asked, visible(store)) == ([0], [1])

    def test_repeated_changes_nothing(self, store: MemoryObjects) -> None:
        named = uploader(store).upload(upload_of(1), [rows(1)])
        for expected in (Delivered(1), AlreadyDelivered(tag(1))):
            assert target_of(store).deliver_uploaded(output(1, [rows(1)], [named])) == expected
        assert visible(store) == [1]

    def test_by_a_driver_that_was_replaced_is_fenced(self, store: MemoryObjects) -> None:
        older, newer = Claim("old", Generation(1)), Claim("new", Generation(2), {"old": Tag(Timeline(1), Epoch(1))})
        named = uploader(store).upload(upload_of(1), [rows(1)])
        target_of(store, newer).deliver_uploaded(output(1, [rows(1)], [named]))
        with pytest.raises(Fenced):
            target_of(store, older).deliver_uploaded(output(2, [rows(2)], [None]))

    def test_a_commit_to_a_changelog_has_each_key_once_with_its_last_change(self) -> None:
        store = MemoryObjects()
        create_log(store, SCHEMA.append(pa.field("v", pa.int64())), 2, key=["n"], changelog=True)
        changes = [(1, 10, 0), (2, 20, 0), (3, 30, 1)]
        columns = [pa.array(each) for each in zip(*changes, strict=True)]
        part = pa.record_batch([columns[0], columns[1], columns[2].cast(pa.int8())], names=["n", "v", OP])
        named = uploader(store).upload(upload_of(1), [part])
        again = pa.record_batch(
            [pa.array([7, 7]), pa.array([70, 71]), pa.array([0, 0], pa.int8())], names=part.schema.names
        )
        target_of(store).deliver_uploaded(output(1, [part, again.slice(0, 1), again.slice(1, 1)], [named, None, None]))
        assert sorted(tuple(row.values()) for row in rows_in(store)) == [
            (False, 1, 10),
            (False, 2, 20),
            (False, 7, 71),
            (True, 3, None),
        ]


class TestAnUpload:
    def test_repeated_stores_the_same_objects(self, store: MemoryObjects) -> None:
        """P16: a request that was given up may take effect later."""
        named = [uploader(store).upload(upload_of(1), [rows(*range(9))]) for _ in range(2)]
        assert named[0] == named[1] and len(store.list("data")) == 1

    def test_repeated_after_the_log_was_widened_stores_others(self, store: MemoryObjects) -> None:
        first = uploader(store).upload(upload_of(1), [rows(1), rows(2), rows(3)])
        before = {path: store.get(path) for path in store.list("data")}
        LogWriter(store).widen(3)
        second = uploader(store).upload(upload_of(1), [rows(1), rows(2), rows(3)])
        assert first != second and {path: store.get(path) for path in before} == before


class TestASweep:
    def test_deletes_only_uploads_of_epochs_between_two(self, store: MemoryObjects) -> None:
        for epoch in (4, 5, 6, 105, 106, 107):
            uploader(store).upload(upload_of(epoch), [rows(epoch)])
        uploader(store).upload(upload_of(50, timeline=2), [rows(50)])
        uploader(store).sweep(JOB, SINK, 1, 5, 106)
        left = sorted(int(path.split("/")[5]) for path in store.list(f"data/{UPLOADED}"))
        assert left == [4, 5, 50, 106, 107]

    def test_a_sweep_of_a_log_without_uploads_does_nothing(self, store: MemoryObjects) -> None:
        uploader(store).sweep(JOB, SINK, 1, 0, 101)
        assert store.list("data") == []


class Ordered(MemoryObjects):
    """A store that lists from a name on."""

    def list_after(self, folder: str, path: str) -> Page:
        found = [each for each in MemoryObjects.list(self, folder) if each > path]
        return Page(found[:2], len(found) > 2)


def uploaded(store: MemoryObjects) -> list[tuple[int, str]]:
    """Return epoch and worker of each upload that is stored."""
    paths = [path.split("/") for path in store.list(f"data/{UPLOADED}")]
    return sorted({(int(path[5]), path[6].split("-")[1]) for path in paths})


@pytest.mark.parametrize("made", [MemoryObjects, Ordered])
class TestLeftovers:
    """Uploads that no commit of a decided epoch names."""

    @pytest.fixture(autouse=True)
    def log(self, made: type[MemoryObjects]) -> None:
        self.store = made()
        create_log(self.store, SCHEMA, 2)

    def upload(self, epoch: int, worker: str = "w") -> str:
        return uploader(self.store).upload(upload_of(epoch, worker), [rows(epoch)])

    def commit(self, target: LogTarget, epoch: int, named: str | None) -> None:
        target.deliver_uploaded(output(epoch, [rows(epoch)], [named]))

    def test_uploads_of_losing_attempts_are_deleted_with_the_commit_of_their_epoch(self) -> None:
        target, named = target_of(self.store), self.upload(1)
        self.upload(1, "loser")
        self.commit(target, 1, named)
        assert uploaded(self.store) == [(1, "w")] and sorted(visible(self.store)) == [1]

    def test_late_uploads_are_deleted_with_the_next_commit(self) -> None:
        target = target_of(self.store)
        self.commit(target, 1, self.upload(1))
        self.upload(1, "loser")
        self.commit(target, 2, self.upload(2))
        assert uploaded(self.store) == [(1, "w"), (2, "w")] and sorted(visible(self.store)) == [1, 2]

    def test_uploads_of_abandoned_epochs_are_deleted(self) -> None:
        target = target_of(self.store)
        self.commit(target, 1, self.upload(1))
        for epoch in (2, 3, 5, 6):
            self.upload(epoch)
        self.commit(target, 4, None)
        assert uploaded(self.store) == [(1, "w"), (5, "w"), (6, "w")], "epoch 5 may be completed"
        self.commit(target, 40, self.upload(40))
        assert uploaded(self.store) == [(1, "w"), (40, "w")] and sorted(visible(self.store)) == [1, 4, 40]

    def test_are_found_by_another_committer_that_sees_what_the_last_one_named(self) -> None:
        self.commit(target_of(self.store), 1, self.upload(1))
        self.upload(1, "loser")
        self.upload(2)
        self.commit(target_of(self.store), 3, self.upload(3))
        assert uploaded(self.store) == [(1, "w"), (3, "w")] and sorted(visible(self.store)) == [1, 3]

    def test_are_left_where_what_was_named_is_not_known(self) -> None:
        self.commit(target_of(self.store), 1, self.upload(1))
        self.upload(1, "loser")
        LogWriter(self.store).append({0: pa.table({"n": [0]})})
        self.commit(target_of(self.store), 3, self.upload(3))
        assert uploaded(self.store) == [(1, "loser"), (1, "w"), (3, "w")] and sorted(visible(self.store)) == [0, 1, 3]

    def test_leftovers_that_cannot_be_deleted_delay_no_delivery(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused(path: str) -> None:
            raise Unavailable("refused", next_step="wait")

        target, named = target_of(self.store), self.upload(1)
        self.upload(1, "loser")
        monkeypatch.setattr(self.store, "delete", refused)
        self.commit(target, 1, named)
        assert uploaded(self.store) == [(1, "loser"), (1, "w")] and sorted(visible(self.store)) == [1]


@dataclass
class Play:
    """Any interleaving of the steps of a job's history with one log; `wanted` is the model: the rows of delivered
    epochs, and the epochs that are completed but not delivered."""

    rng: random.Random
    store: Lossy = field(init=False)
    epoch: int = 0
    generation: int = 1
    base: int = 0
    numbered: int = 0
    pending: dict[int, UploadedOutput] = field(default_factory=dict)
    of_epoch: dict[int, list[int]] = field(default_factory=dict)
    delivered: set[int] = field(default_factory=set)
    zombies: list[Callable[[], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = Lossy(self.rng)
        create_log(self.store, SCHEMA, 2)
        self.target, self.uploaders = target_of(self.store), [uploader(self.store) for _ in range(WRITERS)]
        self.store.calm = False

    def stage(self) -> None:
        """All writers stage an epoch; most upload; it is completed, or its generation ends before."""
        self.epoch += 1
        epoch, parts, named = self.epoch, list[pa.RecordBatch](), list[str | None]()
        for subtask in range(WRITERS):
            numbers = range(self.numbered, self.numbered + self.rng.randrange(1, 4))
            self.numbered = numbers.stop
            parts.append(rows(*numbers))
            upload = upload_of(epoch, f"w{subtask}", subtask, self.generation)
            named.append(self.tried(subtask, upload, parts[-1]))
        if self.rng.random() < 0.3:
            self.recover()
        else:
            self.of_epoch[epoch] = [n for part in parts for n in part.column(0).to_pylist()]
            self.pending[epoch] = output(epoch, parts, named)

    def tried(self, subtask: int, upload: Upload, part: pa.RecordBatch) -> str | None:
        if self.rng.random() < 0.3:
            return None
        self.zombies.append(lambda: uploader(self.store).upload(upload, [part]))
        try:
            return self.uploaders[subtask].upload(upload, [part])
        except Unavailable:
            return None

    def recover(self) -> None:
        """Another generation: another committer, after a sweep of what no epoch completed."""
        base, first = max(self.of_epoch, default=0), self.epoch + 10
        self.generation, self.epoch = self.generation + 1, first - 1

        def sweep() -> None:
            uploader(self.store).sweep(JOB, SINK, 1, base, first)

        self.zombies.append(sweep)
        self.target, self.uploaders = target_of(self.store), [uploader(self.store) for _ in range(WRITERS)]
        with suppress(Unavailable):
            sweep()

    def deliver(self) -> None:
        if not self.pending:
            return
        epoch = min(self.pending)
        staged, target = self.pending[epoch], target_of(self.store)
        self.zombies.append(lambda: target.deliver_uploaded(staged))
        try:
            standing = self.target.delivered()
            if standing is None or standing < staged.tag:
                self.target.deliver_uploaded(staged, standing or tag(0, -1))
        except Unavailable:
            return
        self.delivered.add(epoch)
        del self.pending[epoch]

    def zombie(self) -> None:
        """Something of the past happens again, or at last: but nothing overtakes what is pending."""
        if self.zombies:
            with suppress(Unavailable):
                self.rng.choice(self.zombies)()

    def check(self) -> None:
        """A delivery whose reply was lost may be in; else exactly the delivered epochs are."""
        found = Counter(visible(self.store))
        first = min(self.pending, default=None)
        sure = Counter(n for epoch in self.delivered for n in self.of_epoch[epoch])
        maybe = sure if first is None else sure + Counter(self.of_epoch[first])
        assert found in (sure, maybe)


class TestAnyInterleaving:
    @pytest.mark.parametrize("seed", range(150))
    def test_shows_every_completed_epoch_once_and_no_other(self, seed: int) -> None:
        rng = random.Random(seed)
        play = Play(rng)
        for _ in range(25):
            rng.choice((play.stage, play.deliver, play.deliver, play.zombie, play.recover))()
            play.check()
        play.store.calm = True
        while play.pending:
            play.deliver()
        play.check()
        for zombie in play.zombies:
            zombie()
        play.check()
        assert sorted(visible(play.store)) == sorted(n for numbers in play.of_epoch.values() for n in numbers)

    def test_a_rewind_voids_what_was_named(self, store: MemoryObjects) -> None:
        for epoch in (1, 2):
            named = uploader(store).upload(upload_of(epoch), [rows(epoch)])
            target_of(store).deliver_uploaded(output(epoch, [rows(epoch)], [named]))
        writers = tuple(Writer(SINK, Subtask(n)) for n in range(WRITERS))
        repair("log", store, Rewinding(JOB, SINK, tag(1, 2), writers))
        assert visible(store) == [1]
        with pytest.raises(Fenced):
            target_of(store).deliver_uploaded(output(3, [rows(3)], [None]))
