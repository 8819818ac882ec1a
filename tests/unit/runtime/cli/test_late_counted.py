"""Late records are counted in the last line of a run, in status and in audit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from holdfast.checkpoint.audit import Audit, Late, OperatorCount, PartAudit, manifest_audit
from holdfast.model import NO_EPOCH, Epoch
from holdfast.runtime.cli.start.jobfile import load
from holdfast.runtime.cli.start.run import late_so_far, summary
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.execution.executing import RunOutcome
from holdfast.runtime.execution.prepare import prepare
from holdfast.runtime.inspect.stored import open_job
from holdfast.runtime.job import status
from holdfast.runtime.testing.cluster import Cluster
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects

if TYPE_CHECKING:
    from tests.unit.runtime.cli.conftest import Ended

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema([pa.field("k", pa.string(), nullable=False), pa.field("at", pa.timestamp("us", "UTC"), False)])
JOB = """
import holdfast as hf

app = hf.App("hot", root={root!r}, key_groups=8)
bids = app.source("bids", hf.Log({folder!r} + "/bids"), event_time="at")
hot = bids.key_by("k").window(hf.tumbling("10s")).agg("per_k", n=hf.count())
hot.sink("out", hf.Log({folder!r} + "/out"))
"""


class Job:
    """A job with windows, run in this process."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.root, self.file = folder, root, folder / "hot.py"
        self.file.write_text(JOB.format(folder=str(folder), root=str(root)))
        create_log(LocalObjects(folder / "bids"), SCHEMA, partitions=1)

    def run(self, *seconds: int, crash: bool = False) -> str:
        """Append records of these seconds, run the job over them, stop it; return the last line."""
        for second in seconds:
            rows = [{"k": "a", "at": START + timedelta(seconds=second)}]
            LogWriter(LocalObjects(self.folder / "bids")).append({0: pa.Table.from_pylist(rows, schema=SCHEMA)})
        app = load(str(self.file))
        prepared = prepare(app.plan(), resolve(app))
        before = late_so_far(prepared)
        cluster = Cluster(prepared.plan, 2, 0, prepared.folder.store, 1.0, prepared.inputs.partitions)
        cluster.begin()
        cluster.pass_time(3)
        if crash:
            cluster.crash(next(iter(cluster.members)))
            cluster.pass_time(3)
        self.seen = status.of_run(cluster.driver.state, "", "", None).as_json()
        cluster.driver.stop()
        cluster.pass_time(5)
        assert cluster.driver.outcome == ("stopped", None)
        ended = RunOutcome("stopped", None, status.of_run(cluster.driver.state, "", "", None))
        return summary(prepared, ended, f"{len(seconds)} records", 1.0, before)


@pytest.fixture
def job(tmp_path: Path, root: Path) -> Job:
    return Job(tmp_path, root)


class TestLateRecords:
    def test_are_in_the_last_line_of_the_run_that_read_them(self, job: Job) -> None:
        assert "0 late records" in job.run(1, 30)
        assert "2 late records (per_k)" in job.run(2, 3)
        assert "1 late record (per_k)" in job.run(4)

    def test_are_counted_once_where_a_worker_crashed(self, job: Job) -> None:
        assert "2 late records (per_k)" in job.run(1, 30, 2, 3, crash=True)

    def test_are_in_the_status_of_a_running_and_of_a_stopped_job(
        self, job: Job, holdfast: Callable[..., Ended]
    ) -> None:
        job.run(1, 30, 2, 3)
        assert job.seen["late"] == {"since_epoch": 0, "operators": {"per_k": 2}}
        assert holdfast("status", "hot", "--json").json["late"] == {"since_epoch": 0, "operators": {"per_k": 2}}
        assert "late        2 records since the job began: per_k 2" in holdfast("status", "hot").out

    def test_are_in_the_text_of_an_audit(self, job: Job, holdfast: Callable[..., Ended]) -> None:
        job.run(1, 30, 2, 3)
        ended = holdfast("audit", str(job.file))
        assert ended.status == 0
        assert "2 records came late, after their windows had closed: per_k 2" in ended.out

    def test_are_not_counted_in_a_job_without_windows(self, holdfast: Callable[..., Ended], history: Any) -> None:
        history("cold").checkpoint(5)
        assert holdfast("status", "cold", "--json").json["late"] is None
        assert "late" not in holdfast("status", "cold").out


class TestLateCountsInTheManifest:
    def part(self, late: int | None) -> PartAudit:
        return PartAudit(operators=(OperatorCount("per_k", "keyed", 9, 3, late=late),))

    def audited(self, follows: int, before: Audit | None, *late: int | None) -> Audit:
        found = manifest_audit(Epoch(follows), before, [self.part(each) for each in late])
        assert found is not None
        return found

    def test_add_up_over_workers_and_epochs(self) -> None:
        first = self.audited(0, None, 1, 2)
        assert first.late == Late(NO_EPOCH, {"per_k": 3})
        assert self.audited(1, first, 0, 4).late == Late(NO_EPOCH, {"per_k": 7})

    def test_are_left_out_if_no_record_can_be_late(self) -> None:
        assert b'"late":{' not in msgspec.json.encode(self.audited(0, None, None))

    def test_late_counts_in_manifests_of_an_older_version_are_unknown(self, job: Job) -> None:
        assert status.late_of(None) is None
        job.run(1, 30, 2)
        stored = open_job(str(job.root), "hot")
        manifest = stored.repository.load_manifest(stored.job.completed[-1].body.manifest)
        assert status.late_of(manifest) is not None and manifest.audited is not None
        older = msgspec.structs.replace(manifest.audited, late=msgspec.UNSET)
        assert status.late_of(msgspec.structs.replace(manifest, audit=older)) is None

    def test_after_a_manifest_of_an_older_version_name_the_epoch_they_start_from(self) -> None:
        older = msgspec.structs.replace(self.audited(0, None, 5), late=msgspec.UNSET)
        assert self.audited(7, older, 2).late == Late(Epoch(7), {"per_k": 2})
