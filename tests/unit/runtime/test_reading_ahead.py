"""Readers of partitions: what they hand over, what they keep, and what they ask for again."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from words_job import ROWS

import holdfast as hf
from holdfast.model import Epoch, Tag, Timeline
from holdfast.runtime.plan import ahead
from holdfast.runtime.plan.ahead import Ahead, Read, ReaderAhead, inline
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.log.voids import TakeBack
from holdfast.storage.objects import LocalObjects

ANY = 1 << 20
WRITER = "another-job/out/0"


class SlowLane:
    """A lane that runs its next job when the test steps it."""

    def __init__(self) -> None:
        self.jobs: deque[tuple[Callable[[], object], Callable[[object], None]]] = deque()

    def submit(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        self.jobs.append((work, done))

    def step(self) -> None:
        work, done = self.jobs.popleft()
        result: object
        try:
            result = work()
        except hf.HoldfastError as error:
            result = error
        done(result)


class Numbers:
    """Ten records at most in a read; those below `end` exist."""

    def __init__(self, end: int, bytes_max: int = 10 * ANY) -> None:
        self.end, self.fails, self.stands, self.lane = end, list[hf.HoldfastError](), True, SlowLane()
        self.reads: list[int] = []
        self.fails_at = 0
        self.waits = SlowLane()
        self.ahead = Ahead(self.lane, bytes_max, watch=lambda: self.waits)
        self.reader = ReaderAhead(self._read, lambda _at, _read: self.stands, 0, self.ahead, lambda: None)

    def _read(self, offset: int, _bytes_max: int) -> Read:
        self.reads.append(offset)
        if self.fails and offset >= self.fails_at:
            raise self.fails.pop()
        rows = range(offset, min(self.end, offset + 10))
        batch = pa.RecordBatch.from_pydict({"n": list(rows)}) if rows else None
        return Read(batch, offset + len(rows))

    def poll(self) -> list[int] | None:
        read = self.reader.poll(ANY)
        return None if read is None else [] if read.batch is None else read.batch["n"].to_pylist()


class TestReaderAhead:
    def test_does_not_wait_and_reads_the_next_batch_while_the_worker_is_busy(self) -> None:
        numbers = Numbers(25)
        assert numbers.poll() is None
        numbers.lane.step()
        assert numbers.poll() == list(range(10))
        numbers.lane.step()
        assert (numbers.poll(), numbers.reads) == (list(range(10, 20)), [0, 10])

    def test_requests_records_again_if_it_found_none_ahead(self) -> None:
        numbers = Numbers(10)
        numbers.poll()
        numbers.lane.step()
        numbers.poll()
        numbers.lane.step()  # ahead: nothing
        numbers.end = 12
        assert numbers.poll() is None
        numbers.lane.step()
        assert numbers.poll() == [10, 11]

    def test_reports_no_records_after_an_explicit_read(self) -> None:
        numbers = Numbers(0)
        assert numbers.poll() is None
        numbers.lane.step()
        assert numbers.poll() == []

    def test_waits_for_records_once_there_were_none(self) -> None:
        numbers = Numbers(10)
        numbers.poll()
        numbers.lane.step()
        assert numbers.poll() == list(range(10))
        numbers.lane.step()  # ahead: nothing, which is no answer
        assert numbers.poll() is None and not numbers.waits.jobs
        numbers.lane.step()
        assert numbers.poll() == [] and len(numbers.waits.jobs) == 1

    @pytest.mark.parametrize(("kind", "kept"), [(hf.Unavailable, False), (hf.Damaged, True)])
    def test_keeps_only_errors_that_may_not_recur(self, kind: type[hf.HoldfastError], kept: bool) -> None:
        numbers = Numbers(25)
        numbers.poll()
        numbers.lane.step()
        numbers.fails = [kind("no", next_step="try again")]
        numbers.poll()
        numbers.lane.step()
        if kept:
            with pytest.raises(kind):
                numbers.poll()
        assert numbers.poll() is None
        numbers.lane.step()
        assert numbers.poll() == list(range(10, 20))

    def test_rereads_a_batch_that_the_source_no_longer_confirms(self) -> None:
        numbers = Numbers(25)
        numbers.poll()
        numbers.lane.step()
        numbers.stands = False
        assert numbers.poll() is None
        numbers.stands = True
        numbers.lane.step()
        assert (numbers.poll(), numbers.reads) == (list(range(10)), [0, 0])

    def test_reads_ahead_only_within_its_memory_limit(self) -> None:
        numbers = Numbers(25, bytes_max=ANY)
        assert numbers.ahead.reserve(ANY)
        numbers.poll()
        numbers.lane.step()
        numbers.poll()
        assert not numbers.lane.jobs
        numbers.ahead.release(ANY)
        numbers.poll()
        numbers.lane.step()
        numbers.poll()
        assert numbers.lane.jobs and not numbers.ahead.reserve(ANY)

    def test_releases_its_memory_when_closed_and_ignores_later_batches(self) -> None:
        numbers = Numbers(25, bytes_max=ANY)
        numbers.poll()
        numbers.lane.step()
        numbers.poll()
        numbers.reader.close()
        numbers.lane.step()
        assert numbers.ahead.reserve(ANY) and numbers.reads == [0]

    @pytest.mark.parametrize("seed", range(20))
    def test_gives_every_record_once_and_in_order(self, seed: int) -> None:
        chance, numbers, found = random.Random(seed), Numbers(0), list[int]()
        while len(found) < 100:
            numbers.end = min(100, numbers.end + chance.choice((0, 1, 7, 30)))
            numbers.stands = chance.random() < 0.8
            if numbers.lane.jobs and chance.random() < 0.6:
                numbers.lane.step()
            found += numbers.poll() or []
        assert found == list(range(100))


class Pieces(Numbers):
    """Numbers whose reads are joined."""

    def __init__(self, end: int, bytes_max: int = 10 * ANY) -> None:
        super().__init__(end, bytes_max)
        self.reader = ReaderAhead(self._read, lambda _at, _read: self.stands, 0, self.ahead, known=self._read)
        self.wanted_after = 1_000

    def _read(self, offset: int, bytes_max: int) -> Read:
        if len(self.reads) == self.wanted_after:
            assert self.reader.poll(ANY) is None  # meanwhile, the worker asks
        return super()._read(offset, bytes_max)

    def polled(self) -> list[int] | None:
        """Return the sizes of the pieces that were handed over."""
        read = self.reader.poll(ANY)
        if read is None:
            return None
        return [each.batch.num_rows for each in (read, *read.further) if each.batch is not None]

    def begun(self) -> Pieces:
        """Hand over the first piece, and let the lane read ahead."""
        assert self.polled() is None
        self.lane.step()
        assert self.polled() == [10]
        self.lane.step()
        return self


class TestJoinedReads:
    def test_are_what_is_there_while_the_worker_is_busy(self) -> None:
        pieces = Pieces(45).begun()
        assert (pieces.polled(), pieces.reads) == ([10, 10, 10, 5], [0, 10, 20, 30, 40, 45])

    def test_end_as_soon_as_the_worker_waits(self) -> None:
        pieces = Pieces(100)
        pieces.wanted_after = 3
        assert (pieces.begun().polled(), pieces.reads) == ([10, 10, 10], [0, 10, 20, 30])

    def test_go_on_for_a_moment_if_the_worker_waits_already(self) -> None:
        pieces, times = Pieces(100), iter([0.0, 0.001, 0.009, 0.011])
        pieces.ahead.now = lambda: next(times)
        assert pieces.polled() is None
        pieces.lane.step()
        assert pieces.polled() == [10, 10, 10]

    def test_are_enough_for_one_batch_and_no_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ahead, "JOINED_ROWS", 25)
        assert Pieces(100).begun().polled() == [10, 10, 10]

    def test_are_within_the_bytes_that_may_be_read(self) -> None:
        pieces = Pieces(100)
        pieces.polled()
        pieces.lane.step()
        assert pieces.reader.poll(250) is not None
        pieces.lane.step()
        assert pieces.polled() == [10, 10, 10]

    def test_are_one_read_in_the_thread_that_asks(self) -> None:
        pieces = Pieces(100)
        pieces.reader = ReaderAhead(pieces._read, lambda _at, _read: True, 0, inline(), known=pieces._read)
        assert pieces.polled() == [10]

    def test_end_before_what_the_source_no_longer_confirms(self) -> None:
        pieces, confirmed = Pieces(40), iter([True, True, False, True, True])
        pieces.reader = ReaderAhead(
            pieces._read, lambda _at, _read: next(confirmed), 0, pieces.ahead, known=pieces._read
        )
        assert pieces.begun().polled() == [10]
        pieces.lane.step()
        assert (pieces.polled(), pieces.reads[-3:]) == ([10, 10], [20, 30, 40])

    @pytest.mark.parametrize(("kind", "kept"), [(hf.Unavailable, False), (hf.Damaged, True)])
    def test_hand_over_the_pieces_before_an_error(self, kind: type[hf.HoldfastError], kept: bool) -> None:
        pieces = Pieces(100)
        assert pieces.polled() is None
        pieces.lane.step()
        assert pieces.polled() == [10]
        pieces.fails, pieces.fails_at = [kind("no", next_step="try again")], 30
        pieces.lane.step()
        assert pieces.polled() == [10, 10]
        if kept:
            with pytest.raises(kind):
                pieces.polled()
        assert pieces.polled() is None
        pieces.lane.step()
        assert pieces.polled() is not None

    @pytest.mark.parametrize("seed", range(20))
    def test_give_every_record_once_and_in_order(self, seed: int) -> None:
        chance, pieces, found = random.Random(seed), Pieces(0), list[int]()
        while len(found) < 300:
            pieces.end = min(300, pieces.end + chance.choice((0, 1, 7, 30, 80)))
            pieces.stands, pieces.wanted_after = chance.random() < 0.9, len(pieces.reads) + chance.randint(1, 4)
            if pieces.lane.jobs and chance.random() < 0.6:
                pieces.lane.step()
            pieces.wanted_after = 1_000_000
            if (read := pieces.reader.poll(ANY)) is not None:
                for each in (read, *read.further):
                    found += [] if each.batch is None else each.batch["n"].to_pylist()
        assert found == list(range(300))


class TestLogReaderAhead:
    @pytest.fixture
    def log(self, tmp_path: Path) -> LogWriter:
        create_log(LocalObjects(tmp_path), ROWS, partitions=1)
        writer = LogWriter(LocalObjects(tmp_path))
        for epoch in (1, 2):
            rows = ROWS.empty_table().from_pylist([{"word": "a", "n": epoch}], schema=ROWS)
            writer.append_tagged({0: rows}, WRITER, Tag(Timeline(1), Epoch(epoch)))
        return writer

    def test_reads_inline_the_same_rows_as_a_read(self, log: LogWriter, tmp_path: Path) -> None:
        reader = hf.Log(tmp_path).source().open().reader(0, 0, inline())
        found = [reader.poll(ANY) for _ in range(3)]
        assert [read and read.following for read in found] == [1, 2, 2]
        assert found[2] is not None and found[2].batch is None

    def test_skips_rows_that_became_void_after_they_were_read_ahead(self, log: LogWriter, tmp_path: Path) -> None:
        lane, opened = SlowLane(), hf.Log(tmp_path).source().open()
        reader = opened.reader(0, 0, Ahead(lane))
        reader.poll(ANY)
        lane.step()
        first = reader.poll(ANY)
        lane.step()  # row 1 is read ahead
        log.take_back(TakeBack(Tag(Timeline(2), Epoch(1)), (WRITER,), lambda _: False))
        opened.end_offsets()  # it detects that, and has read no such row
        assert first is not None and first.following == 1 and reader.poll(ANY) is None
        lane.step()
        again = reader.poll(ANY)
        assert again is not None and again.batch is None and again.following == 1

    def test_stops_if_rows_that_were_already_used_became_void(self, log: LogWriter, tmp_path: Path) -> None:
        lane, opened = SlowLane(), hf.Log(tmp_path).source().open()
        reader = opened.reader(0, 0, Ahead(lane))
        for _ in range(2):
            reader.poll(ANY)
            lane.step()
        assert reader.poll(ANY) is not None
        log.take_back(TakeBack(Tag(Timeline(2), Epoch(1)), (WRITER,), lambda _: False))
        lane.step()
        with pytest.raises(hf.Damaged, match="were removed by a rewind"):
            reader.poll(ANY)

    def test_has_the_identity_of_the_rows_used_and_not_of_those_read_ahead(
        self, log: LogWriter, tmp_path: Path
    ) -> None:
        lane, opened = SlowLane(), hf.Log(tmp_path).source().open()
        reader = opened.reader(0, 0, Ahead(lane))
        reader.poll(ANY)
        lane.step()
        reader.poll(ANY)
        lane.step()
        assert opened.identity(0, 1) == hf.Log(tmp_path).source().open().identity(0, 1)
