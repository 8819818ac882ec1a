"""Closing of targets when a worker ends while its lanes, which are threads, are still busy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import holdfast as hf
from holdfast.model import Epoch, Generation, JobUuid, Pending, SnapshotHandle, Staged, Subtask, Tag, Timeline, Writer
from holdfast.ports import Lane
from holdfast.runtime.testing.cluster import MemberPorts
from holdfast.runtime.testing.lanes import InlineLane, VirtualClock
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.channels import MemoryNetwork
from holdfast.runtime.worker.deliveries import Deliveries
from holdfast.runtime.worker.local.opened import MemoryState
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.memory.sink import MemorySink, MemoryTarget
from holdfast.storage.objects import MemoryObjects

WRITERS = [Writer("out", Subtask(n)) for n in range(2)]


@dataclass
class Numbered:
    n: int


class Counted(MemorySink):
    """A sink that knows which of its targets are open."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[Writer] = []
        self.closed: list[Writer] = []

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> MemoryTarget:
        self.opened.append(writer)
        return CountedTarget(self, job_uuid, writer)


class CountedTarget(MemoryTarget):
    """Tells its sink when it is closed."""

    def __init__(self, sink: Counted, job_uuid: str, writer: Writer) -> None:
        super().__init__(sink, job_uuid, writer)
        self.sink, self.writer = sink, writer

    def close(self) -> None:
        self.sink.closed.append(self.writer)


class Interrupted:
    """A lane; just when something is submitted to it, another lane gets on."""

    def __init__(self, lane: Lane, meanwhile: Callable[[], None]) -> None:
        self._lane, self._meanwhile = lane, meanwhile

    def submit(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        self._meanwhile()
        self._lane.submit(work, done)


class Ports(MemberPorts):
    """The surroundings of a worker, with the lane of the first writer interrupted once it ends."""

    ends = False

    def inner(self, writer: Writer) -> InlineLane:
        return self.lanes._lanes.setdefault(f"deliver-out-{writer.subtask}", InlineLane())

    def lane(self, name: str) -> Lane:
        lane = super().lane(name)
        second = self.inner(WRITERS[1])
        return Interrupted(lane, second.step if second.jobs else lambda: None) if self.ends else lane


class TestClosing:
    def test_includes_a_target_that_a_lane_opens_at_that_moment(self, tmp_path: Path) -> None:
        sink = Counted()
        app = hf.App("numbers", root=str(tmp_path))
        app.source("n", hf.Generator(Numbered, Numbered, count=1)).sink("out", sink)
        ports = Ports(VirtualClock(), MemoryObjects(), MemoryNetwork(), MemoryState(), lambda _: None)
        failed: list[BaseException] = []
        deliveries = Deliveries(app.plan(), ports, lambda _s, _then: None, lambda _w, _t: None, failed.append)
        pending = tuple(Pending(w, Tag(Timeline(1), Epoch(1)), Staged((), 0)) for w in WRITERS)
        handle = SnapshotHandle(Subtask(0), (0, 128), (), Epoch(0), ())
        deliveries.deploy(
            m.Deploy(
                JobUuid("j"),
                Generation(1),
                Timeline(1),
                Epoch(1),
                Epoch(0),
                m.ActiveRole(Subtask(0)),
                (),
                handle,
                (),
                pending,
                (),
            )
        )
        ports.inner(WRITERS[0]).step()
        assert sink.opened == WRITERS[:1]
        ports.ends = True
        deliveries.close()
        while waiting := ports.lanes.waiting():
            waiting[0].step()
        assert (sink.opened, sorted(sink.closed, key=lambda w: w.subtask), failed) == (WRITERS, WRITERS, [])
