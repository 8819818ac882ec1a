"""State that a worker's deliveries keep over generations, and the checks before a driver's repairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.joblog import CheckpointCompleted, Completed, Job
from holdfast.checkpoint.manifest import Confirmed, Manifest
from holdfast.checkpoint.repository import Repository
from holdfast.checkpoint.timeline import Rewind
from holdfast.model import (
    Epoch,
    Generation,
    JobUuid,
    ObjectRef,
    Pending,
    SnapshotHandle,
    Staged,
    Subtask,
    Tag,
    Timeline,
    Writer,
)
from holdfast.runtime.driver.repair import Order, RunRepairs, repair_one, writers_of
from holdfast.runtime.testing.cluster import Cluster, MemberPorts
from holdfast.runtime.testing.lanes import InlineLanes, VirtualClock
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.channels import MemoryNetwork
from holdfast.runtime.worker.deliveries import Deliveries
from holdfast.runtime.worker.local.opened import MemoryState
from holdfast.runtime.worker.under_way import SLOW_AFTER_S
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.contract.target import Fault
from holdfast.sinks.memory.sink import MemorySink
from holdfast.storage.objects import MemoryObjects

OUT = Writer("out", Subtask(0))


@dataclass
class Numbered:
    n: int


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


class Host:
    """The deliveries of one worker, whose lanes run when the test calls them."""

    def __init__(self, folder: Path, *, commits_once: bool = False) -> None:
        self.sink = MemorySink(commits_once=commits_once)
        app = hf.App("numbers", root=str(folder))
        app.source("n", hf.Generator(Numbered, Numbered, count=1)).sink("out", self.sink)
        plan = app.plan()
        self.spec = plan.sinks[0]
        self.sink.prepare(plan.sinks[0].schema, None)
        ports = MemberPorts(VirtualClock(), MemoryObjects(), MemoryNetwork(), MemoryState(), lambda _: None)
        self.failed: list[BaseException] = []
        self._ports, self.clock = ports, ports.clock
        self.later: list[Callable[[], object]] = []
        """What is due after a wait."""
        self.deliveries = Deliveries(
            plan, ports, lambda _s, then: self.later.append(then), lambda _w, _t: None, self.failed.append
        )

    def deploy(
        self,
        generation: int,
        *epochs: int,
        confirmed: int | None = None,
        base: int | None = None,
        timeline: int = 1,
        writer: Writer = OUT,
        work: bool = True,
        first: int = 1,
    ) -> None:
        handle = SnapshotHandle(Subtask(0), (0, 128), (), Epoch(0), ())
        pending = tuple(Pending(writer, tag(epoch, timeline), Staged((), 0)) for epoch in epochs)
        known = () if confirmed is None else (Confirmed(writer, tag(confirmed, timeline)),)
        base = max(epochs, default=0) if base is None else base
        self.deliveries.deploy(
            m.Deploy(
                JobUuid("j"),
                Generation(generation),
                Timeline(timeline),
                Epoch(first),
                Epoch(base),
                m.ActiveRole(Subtask(0)),
                (),
                handle,
                (),
                pending,
                known,
                claim=Claim("first", Generation(generation)),
            )
        )
        if work:
            self.work()

    def work(self) -> None:
        """Let the lanes do what they have to do."""
        while waiting := self._ports.lanes.waiting():
            waiting[0].step()


def refusing(error: hf.HoldfastError) -> Fault:
    def fault(_point: object) -> None:
        raise error

    return fault


class TestAWriterThatGaveUp:
    def test_it_retries_in_the_next_generation(self, tmp_path: Path) -> None:
        """The driver of the new generation may not know the reason; without a retry nothing would be delivered."""
        host = Host(tmp_path)
        host.sink.fault = refusing(hf.ConfigError("the table is gone", next_step="bring it back"))
        host.deploy(1, 5)
        assert [type(error) for error in host.failed] == [hf.ConfigError]
        host.sink.fault = lambda _point: None
        host.deploy(2, 5, 6)
        assert host.deliveries.confirmed() == (Confirmed(OUT, tag(6)),)
        assert host.sink.delivered("j", OUT) == tag(6)

    def test_it_does_not_retry_within_its_generation(self, tmp_path: Path) -> None:
        host = Host(tmp_path)
        host.sink.fault = refusing(hf.ConfigError("the table is gone", next_step="bring it back"))
        host.deploy(1, 5)
        host.sink.fault = lambda _point: None
        host.deliveries.queue(Pending(OUT, tag(6), Staged((), 0)))
        assert host.deliveries.confirmed() == () and host.sink.delivered("j", OUT) is None


class TestLaggingWriter:
    def test_its_backlog_is_delivered_in_one_transaction(self, tmp_path: Path) -> None:
        host, points = Host(tmp_path), list[str]()
        host.sink.fault = points.append
        host.deploy(1, 5, 6, 7)
        assert points.count("after_commit") == 1
        assert host.sink.delivered("j", OUT) == tag(7)
        assert host.deliveries.confirmed() == (Confirmed(OUT, tag(7)),)


class TestATargetThatDoesNotAnswer:
    def test_is_reported_after_a_while_and_until_it_does(self, tmp_path: Path) -> None:
        host = Host(tmp_path)
        host.deploy(1, 5, work=False)
        host.clock.pass_by(SLOW_AFTER_S - 1)
        assert host.deliveries.errors() == {}
        host.clock.pass_by(1)
        reported = host.deliveries.errors()
        assert "has not answered for more than 30 s" in reported["out"].what
        host.work()
        assert host.deliveries.errors() == {} and host.sink.delivered("j", OUT) == tag(5)

    def test_does_not_hide_why_the_attempt_before_failed(self, tmp_path: Path) -> None:
        host = Host(tmp_path)
        host.sink.fault = refusing(hf.Unavailable("the table is locked", next_step="unlock it"))
        host.deploy(1, 5)
        (retry,) = host.later
        retry()
        host.clock.pass_by(SLOW_AFTER_S)
        assert "the table is locked" in host.deliveries.errors()["out"].what

    def test_counts_each_attempt_by_itself(self, tmp_path: Path) -> None:
        host = Host(tmp_path)
        host.deploy(1, 5)
        host.clock.pass_by(SLOW_AFTER_S)
        host.deliveries.queue(Pending(OUT, tag(6), Staged((), 0)))
        host.clock.pass_by(1)
        assert host.deliveries.errors() == {}


class TestUploadsOfEpochsThatNeverCompleted:
    def test_are_deleted_once_the_target_has_taken_an_epoch_of_the_generation(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Earlier, this may be a copy of the job, and the original may have completed them."""
        host, swept = Host(tmp_path, commits_once=True), list[tuple[object, ...]]()
        monkeypatch.setattr(host.sink, "sweep", lambda *which: swept.append(which))
        host.deploy(2, 5, first=106)
        assert host.deliveries.confirmed() == (Confirmed(OUT, tag(5)),) and swept == []
        for epoch in (106, 107):
            host.deliveries.queue(Pending(OUT, tag(epoch), Staged((), 0)))
            host.work()
        assert host.deliveries.confirmed() == (Confirmed(OUT, tag(107)),)
        assert swept == [("j", "out", 1, 5, 106)]


class TestATargetBelowWhatTheManifestConfirmed:
    def test_delivery_stops_before_anything_is_written(self, tmp_path: Path) -> None:
        host = Host(tmp_path)
        host.deploy(1, 5, confirmed=4)
        assert [type(error) for error in host.failed] == [hf.Damaged]
        assert "restored from a backup" in str(host.failed[0]) and host.sink.delivered("j", OUT) is None

    def test_tags_confirmed_by_an_earlier_deployment_count_as_well(self, tmp_path: Path) -> None:
        host = Host(tmp_path)
        host.deploy(1, confirmed=4)
        host.deploy(2, 5)
        assert [type(error) for error in host.failed] == [hf.Damaged]

    def test_an_older_manifest_does_not_lower_the_confirmed_tag(self, tmp_path: Path) -> None:
        host = Host(tmp_path)
        host.sink.deliver("j", OUT, tag(3), ())
        host.deploy(1, confirmed=4)
        host.deploy(2, 5, confirmed=3)
        assert [type(error) for error in host.failed] == [hf.Damaged]

    def test_a_target_at_the_confirmed_tag_is_delivered_to(self, tmp_path: Path) -> None:
        host = Host(tmp_path)
        host.sink.deliver("j", OUT, tag(4), ())
        host.deploy(1, 5, confirmed=4)
        assert host.failed == [] and host.sink.delivered("j", OUT) == tag(5)


class TestATargetBeyondWhatTheJobCompleted:
    def test_delivery_stops_even_without_output_to_deliver(self, tmp_path: Path) -> None:
        """Its output would be taken for delivered, and be lost."""
        host = Host(tmp_path)
        host.sink.deliver("j", OUT, tag(9), ())
        host.deploy(1, 5)
        assert [type(error) for error in host.failed] == [hf.Damaged] and "cut short" in str(host.failed[0])

    def test_a_target_at_the_base_of_a_later_deployment_is_accepted(self, tmp_path: Path) -> None:
        host = Host(tmp_path)
        host.sink.deliver("j", OUT, tag(7), ())
        host.deploy(1)
        host.deploy(2, 6, base=7)
        assert host.failed == [] and host.deliveries.confirmed() == (Confirmed(OUT, tag(7)),)

    def test_a_target_on_a_newer_timeline_is_reported_as_fenced(self, tmp_path: Path) -> None:
        """It may be a rewind of this job that the worker does not know of yet: the job master decides."""
        host = Host(tmp_path)
        host.sink.deliver("j", OUT, tag(5, 2), ())
        host.deploy(1, 5)
        assert [type(error) for error in host.failed] == [hf.Fenced]


class TestOldTimeline:
    """A rewind makes its output void: operations still in progress there have no effect any more."""

    def test_the_result_of_a_delivery_in_progress_is_ignored(self, tmp_path: Path) -> None:
        host = Host(tmp_path)
        host.deploy(1, 5, work=False)
        host.deploy(2, base=4, timeline=2)
        assert host.failed == [] and host.deliveries.confirmed() == ()

    def test_a_scheduled_retry_is_not_performed(self, tmp_path: Path) -> None:
        host = Host(tmp_path)
        host.sink.fault = refusing(hf.Unavailable("the target is away", next_step="wait"))
        host.deploy(1, 5)
        (again,) = host.later
        host.sink.fault = lambda _point: None
        host.deploy(2, base=4, timeline=2)
        again()
        host.work()
        assert host.deliveries.confirmed() == () and host.sink.delivered("j", OUT) is None


class TestUnreachableTarget:
    def test_is_reported_as_an_error_until_a_delivery_succeeds(self, tmp_path: Path) -> None:
        host = Host(tmp_path)
        host.sink.fault = refusing(hf.Unavailable("the target is away", next_step="wait"))
        host.deploy(1, 5)
        assert [error.what for error in host.deliveries.errors().values()] == ["the target is away"]
        host.sink.fault = lambda _point: None
        (again,) = host.later
        again()
        host.work()
        assert host.deliveries.errors() == {} and host.deliveries.confirmed() == (Confirmed(OUT, tag(5)),)


class TestBeforeImages:
    def test_before_images_of_removed_writers_are_dropped_too(self, tmp_path: Path) -> None:
        host, gone = Host(tmp_path), Writer("out", Subtask(3))
        for writer in (OUT, gone):
            host.sink.deliver("j", writer, tag(4), [pa.record_batch({"n": [writer.subtask]})])
        assert {image.writer for image in host.sink.before_images()} == {OUT, gone}
        host.deploy(1, confirmed=4, writer=gone)
        host.deploy(2, 5, confirmed=4)
        host.deliveries.forget(tag(4))
        host.work()
        assert {image.writer for image in host.sink.before_images() if image.tag == tag(4)} == set()


class TestWritersOfARewind:
    """P21: every writer that delivered after the base is fenced too, even one that the base does not contain."""

    MANIFEST = Manifest(JobUuid("j"), Generation(1), Timeline(1), Epoch(5), Epoch(0), 1, 128, (), (), (), (), ())

    def stored(self, repository: Repository, manifest: Manifest) -> Completed:
        ref = repository.store_manifest(manifest, "first")
        body = CheckpointCompleted(manifest.epoch, manifest.follows, ref, 0, 0, 0)
        return Completed(body, manifest.generation, manifest.timeline, 0)

    def test_writers_of_later_checkpoints_are_fenced(self) -> None:
        repository = Repository(MemoryObjects())
        third, gone = Writer("out", Subtask(2)), Writer("gone", Subtask(0))
        later = msgspec.structs.replace(
            self.MANIFEST,
            epoch=Epoch(9),
            follows=Epoch(5),
            parallelism=2,
            pending=(Pending(third, tag(9), Staged((ObjectRef("staged/1", 1, "0"),), 1)),),
            confirmed=(Confirmed(gone, tag(8)),),
        )
        job = Job(
            JobUuid("j"),
            "numbers",
            128,
            0,
            9,
            completed=(self.stored(repository, self.MANIFEST),),
            abandoned=(self.stored(repository, later),),
        )
        found = writers_of(repository, job, self.MANIFEST, ["out"])
        assert found == {Writer("out", Subtask(0)), Writer("out", Subtask(1)), third, gone}


class TestARepair:
    """Before anything is undone, the target is compared with the deliveries confirmed in the base."""

    BASE = msgspec.structs.replace(
        TestWritersOfARewind.MANIFEST,
        pending=(Pending(OUT, tag(5), Staged((), 0)),),
        confirmed=(Confirmed(OUT, tag(4)),),
    )

    def job(self, generation: int) -> Job:
        back = Rewind(Timeline(generation), Epoch(5), Epoch(105), 0, ())
        job = Job(JobUuid("j"), "numbers", 128, 0, 9, owner="first", owners=("first",), rewinds=(back,))
        body = CheckpointCompleted(Epoch(5), Epoch(0), ObjectRef("manifests/5", 1, "0"), 0, 0, 0)
        done = Completed(body, Generation(1), Timeline(1), 0)
        return replace(job, generation=Generation(generation), timeline=Timeline(generation), completed=(done,))

    def test_a_target_at_the_confirmed_tag_is_repaired_to_the_base(self, tmp_path: Path) -> None:
        spec, order = Host(tmp_path).spec, Order(self.job(2), self.BASE, frozenset({OUT}))
        assert isinstance(spec.sink, MemorySink)
        spec.sink.deliver("j", OUT, tag(4), ())
        repair_one(Repository(MemoryObjects()), spec, order)
        assert spec.sink.delivered("j", OUT) == tag(5, 2)

    @pytest.mark.parametrize("stands", [None, 3])
    def test_a_target_below_the_confirmed_tag_is_refused_and_not_changed(
        self, tmp_path: Path, stands: int | None
    ) -> None:
        spec, order = Host(tmp_path).spec, Order(self.job(2), self.BASE, frozenset({OUT}))
        assert isinstance(spec.sink, MemorySink)
        if stands is not None:
            spec.sink.deliver("j", OUT, tag(stands), ())
        with pytest.raises(hf.Damaged, match="restored from a backup"):
            repair_one(Repository(MemoryObjects()), spec, order)
        assert spec.sink.delivered("j", OUT) == (None if stands is None else tag(stands))

    def test_a_repair_of_an_older_rewind_is_not_retried(self, tmp_path: Path) -> None:
        host, later, lanes = Host(tmp_path), list[Callable[[], None]](), InlineLanes()
        store = MemoryObjects()
        repairs = RunRepairs(
            Repository(store),
            [host.spec],
            lanes.lane,
            lambda _s, then: later.append(then),
            lambda *_: None,
            host.failed.append,
        )

        def work() -> None:
            while waiting := lanes.waiting():
                waiting[0].step()

        host.sink.deliver("j", OUT, tag(4), ())
        host.sink.fault = refusing(hf.Unavailable("the target is away", next_step="wait"))
        for generation in (2, 3):
            job = self.job(generation)
            repairs.request(replace(job, completed=()), self.BASE)
            work()
        tried = list[object]()
        host.sink.fault = tried.append
        later[0]()
        work()
        assert (tried, list(repairs.waiting)) == ([], ["out"])
        later[1]()
        work()
        assert tried and (host.failed, list(repairs.waiting)) == ([], [])


class FullStore(MemoryObjects):
    """A root without room."""

    full = False

    def put(self, path: str, data: bytes) -> None:
        self._refuse()
        super().put(path, data)

    def create(self, path: str, data: bytes) -> None:
        self._refuse()
        super().create(path, data)

    def _refuse(self) -> None:
        if self.full:
            raise hf.Unavailable("the disk of /root is full: writing failed", next_step="free space")


class TestDriverWithAFullRoot:
    def test_the_cause_is_reported_until_the_root_accepts_records_again(self, tmp_path: Path) -> None:
        app = hf.App("numbers", root=str(tmp_path))
        app.source("n", hf.Generator(Numbered, Numbered, count=100)).sink("out", MemorySink())
        plan, store = app.plan(), FullStore()
        plan.sinks[0].sink.prepare(plan.sinks[0].schema, None)
        cluster = Cluster(plan, 1, 0, store, 1.0, {"n": (0,)})
        store.full = True
        cluster.begin()
        cluster.pass_time(1.0)
        assert cluster.driver.refused is not None and "disk of /root is full" in cluster.driver.refused.what
        store.full = False
        cluster.pass_time(2.0)
        assert cluster.driver.refused is None
