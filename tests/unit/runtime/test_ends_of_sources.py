"""Where sources end, for heartbeats: the loop asks in the background, and turns meanwhile."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import Damaged, HoldfastError, Unavailable
from holdfast.model import Epoch, Generation, JobUuid, SnapshotHandle, SourcePosition, Subtask, Timeline, WorkerId
from holdfast.runtime.sources.generator import OpenGenerator
from holdfast.runtime.sources.log import OpenLog
from holdfast.runtime.testing.cluster import MemberPorts
from holdfast.runtime.testing.lanes import VirtualClock
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.channels import MemoryNetwork
from holdfast.runtime.worker.local.opened import MemoryState
from holdfast.runtime.worker.loop import Limits, WorkerLoop
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.memory.sink import MemorySink
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects, MemoryObjects

ROWS = pa.schema([pa.field("n", pa.int64(), nullable=False)])
READ = (SourcePosition("rows", 0, 0), SourcePosition("rows", 1, 0), SourcePosition("made", 0, 0))


class Worker:
    """The loop of one worker that reads ahead, as in production; its lanes work when the test says so."""

    def __init__(self, folder: Path) -> None:
        store = LocalObjects(str(folder / "rows"))
        create_log(store, ROWS, 2)
        self.log = LogWriter(store)
        app = hf.App("ends", root=str(folder / "root"))
        app.source("rows", hf.Log(str(folder / "rows"), ROWS)).sink("out", MemorySink())
        app.source("made", hf.Generator(ROWS, lambda n: (n,), count=7)).sink("made-out", MemorySink())
        self.said = list[m.FromWorker]()
        self._ports = MemberPorts(VirtualClock(), MemoryObjects(), MemoryNetwork(), MemoryState(), self.said.append)
        self.loop = WorkerLoop(WorkerId("w"), app.plan(), self._ports, Limits(), reads_ahead=True)
        self.deploy(1)

    def deploy(self, generation: int) -> None:
        handle = SnapshotHandle(Subtask(0), (0, 128), (), Epoch(0), ())
        number, job = Generation(generation), JobUuid("j")
        given = job, number, Timeline(1), Epoch(1), Epoch(0), m.ActiveRole(Subtask(0)), (), handle, READ, (), ()
        self.loop.received(m.Deploy(*given, claim=Claim("first", number)))

    def read(self) -> None:
        """Let the loop read what there is: from now on its readers read ahead."""
        while self.loop.turn():
            pass
        self.work()

    def work(self) -> None:
        """Let the lanes do what they have to do."""
        while waiting := self._ports.lanes.waiting():
            waiting[0].step()

    def ends(self) -> list[int]:
        return [at.offset for at in self.loop.heartbeat().progress.ends if at.source == "rows"]

    def failures(self) -> list[str]:
        return [each.error.what for each in self.said if isinstance(each, m.Failed)]


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    found = Worker(tmp_path)
    found.read()
    return found


def fails_with(error: HoldfastError, patch: pytest.MonkeyPatch) -> None:
    def refused(_: OpenLog) -> dict[int, int]:
        raise error

    patch.setattr(OpenLog, "end_offsets", refused)


class TestHeartbeats:
    def test_have_the_ends_once_the_sources_have_answered(self, worker: Worker) -> None:
        assert worker.ends() == [0, 0]
        worker.log.append({0: pa.table([[1, 2, 3]], schema=ROWS), 1: pa.table([[4]], schema=ROWS)})
        worker.loop.take_stock()
        assert worker.ends() == [0, 0]
        worker.work()
        assert worker.ends() == [3, 1]

    def test_do_not_wait_for_sources_that_do_not_answer(self, worker: Worker) -> None:
        worker.loop.take_stock()
        worker.loop.take_stock()
        while worker.loop.turn():
            pass
        worker.loop.take_stock()
        assert [at.source for at in worker.loop.heartbeat().progress.positions] == ["rows", "rows", "made"]

    def test_ask_a_source_that_does_not_read_ahead_in_the_thread_that_uses_it(
        self, worker: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = list[int]()

        def end_offsets(_: OpenGenerator) -> dict[int, int]:
            asked.append(0)
            return {0: 7}

        monkeypatch.setattr(OpenGenerator, "end_offsets", end_offsets)
        worker.loop.take_stock()
        assert asked == [0]
        worker.work()
        assert asked == [0]
        ends = [(at.source, at.offset) for at in worker.loop.heartbeat().progress.ends]
        assert sorted(ends) == [("made", 7), ("rows", 0), ("rows", 0)]

    def test_leave_out_the_ends_of_a_source_that_is_unreachable(
        self, worker: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fails_with(Unavailable("the store does not answer", next_step="wait"), monkeypatch)
        worker.loop.take_stock()
        worker.work()
        assert worker.ends() == [] and not worker.loop.heartbeat().broken and not worker.failures()

    def test_fail_the_run_if_a_source_can_no_longer_be_read(
        self, worker: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fails_with(Damaged("rows were taken back", not_done="nothing was read", next_step="rewind"), monkeypatch)
        worker.loop.take_stock()
        worker.work()
        assert worker.loop.heartbeat().broken and worker.failures() == ["rows were taken back"]

    def test_forget_an_answer_to_an_earlier_generation(self, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
        worker.loop.take_stock()
        worker.deploy(2)
        while worker.loop.turn():
            pass
        worker.loop.take_stock()
        fails_with(Damaged("rows were taken back", not_done="nothing was read", next_step="rewind"), monkeypatch)
        worker.work()
        assert worker.failures() == ["rows were taken back"]  # once, for two questions
