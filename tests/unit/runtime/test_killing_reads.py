"""How the driver counts the deaths of workers during reads of a source, and how a worker reads meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from master_runs import A, C, Run, running
from master_runs import B as OTHER

from holdfast.model import SourcePosition, WorkerId
from holdfast.runtime.driver import killing
from holdfast.runtime.driver.events import Send
from holdfast.runtime.plan.ahead import Ahead, Read, ReaderAhead, inline
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.vitals import At
from tests.unit.runtime.test_killing_functions import FAILING, MARK, again, died, records

READ = "source: s"
D, E = WorkerId("d"), WorkerId("e")


def read_from(offset: int, partition: int = 0) -> At:
    """A read of a worker that reads alone."""
    return At(1, partition, offset, offset + 1)


def deploys(run: Run) -> Iterator[tuple[WorkerId, bool]]:
    """Yield each deployment: to which worker, and whether it is to read alone."""
    for effect in run.effects:
        if isinstance(effect, Send) and isinstance(effect.message, m.Deploy):
            yield effect.worker, effect.message.reads_alone


class TestCount:
    def test_three_deaths_at_the_same_offset_end_the_run_with_source_partition_offset_and_cause(self) -> None:
        """In microbatch mode every read is alone."""
        run = running(FAILING)
        for worker, following in ((A, C), (C, D)):
            assert died(run, read_from(77), worker, READ) is None
            again(run, following)
        error = died(run, read_from(77), D, READ)
        assert error is not None
        assert (error.kind, error.operator, error.source) == ("failed", None, "s")
        assert (error.partition, error.offset) == (0, 77)
        assert "a read of source 's' ended its process 3 times at the same records" in error.what
        assert "source 's', partition 0, offset 77; cause: its process ended with exit status 3" in error.what
        assert "on_error" not in error.next

    def test_a_death_while_a_lane_read_is_the_first_of_the_three(self) -> None:
        run = running(FAILING)
        assert died(run, None, A, None) is None
        again(run, C)
        assert died(run, read_from(77), C, READ) is None
        again(run, D)
        assert died(run, read_from(77), D, READ) is not None

    def test_a_death_during_a_function_is_none_of_the_three(self) -> None:
        """It counts for the function, which may be what ends the process."""
        run = running(FAILING)
        assert died(run, records(0, 5), A, MARK) is None
        again(run, C)
        for worker, following in ((C, D), (D, E)):
            assert died(run, read_from(77), worker, READ) is None
            again(run, following)
        assert died(run, read_from(77), E, READ) is not None

    def test_deaths_at_other_offsets_never_add_up(self) -> None:
        run = running(FAILING)
        worker = A
        for number in range(9):
            assert died(run, read_from(10 * number), worker, READ) is None
            worker = WorkerId("defghijkl"[number])
            again(run, worker)

    def test_an_epoch_that_gets_past_the_offset_ends_the_count(self) -> None:
        run = running(FAILING)
        died(run, read_from(77), A, READ)
        again(run, C)
        assert killing.passed(run.state.kills, [SourcePosition("s", 0, 77)]) == run.state.kills
        assert killing.passed(run.state.kills, [SourcePosition("s", 0, 78)]) == ()


class TestReadingAlone:
    def test_follows_any_death_of_a_process_of_the_same_subtask(self) -> None:
        run = running(FAILING)
        assert dict(deploys(run)) == {A: False, OTHER: False}
        died(run, None, A, None)
        again(run, C)
        assert dict(deploys(run)) == {A: False, OTHER: False, C: True}

    def test_does_not_follow_the_loss_of_a_worker_that_may_be_alive(self) -> None:
        run = running(FAILING)
        run.lose(A)
        again(run, C)
        assert dict(deploys(run))[C] is False

    def test_reads_in_the_thread_that_asks_and_nothing_ahead_for_some_epochs(self) -> None:
        lane = Lane()
        ahead = Ahead(lane, alone_for=2)
        reads: list[int] = []

        def read(offset: int, bytes_max: int) -> Read:
            reads.append(offset)
            return Read(None, offset)

        reader = ReaderAhead(read, lambda _offset, _read: True, 5, ahead)
        for _ in range(2):
            assert ahead.alone and reader.poll(10) == Read(None, 5)
            ahead.epoch_closed()
        assert not ahead.alone and reader.poll(10) is None
        assert (reads, lane.given) == ([5, 5], 1)

    def test_reads_no_batch_before_it_is_asked_for(self) -> None:
        assert not Ahead(Lane(), alone_for=1).reserve(1)
        assert Ahead(Lane()).reserve(1)

    def test_never_ends_where_there_is_no_lane(self) -> None:
        ahead = inline()
        for _ in range(5):
            ahead.epoch_closed()
        assert ahead.alone


class Lane:
    """A lane that does nothing yet."""

    given = 0

    def submit(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        self.given += 1
