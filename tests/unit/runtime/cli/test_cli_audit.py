"""`holdfast audit` on real targets: what is as it was left is proven, what was changed since is found."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.model import JobUuid
from holdfast.runtime.cli.jobfile import load
from holdfast.runtime.cluster import Cluster
from holdfast.runtime.master import RewindWanted
from holdfast.runtime.repair import unrepairable
from holdfast.state.keygroups import range_of
from holdfast.storage.log import LogWriter, create_log
from holdfast.storage.local import LocalObjects
from holdfast.storage.logformat import encode_commit
from holdfast.storage.segment import encode_segment, segment_hash

JOB = '''
from dataclasses import dataclass
import polars as pl
import holdfast as hf

@dataclass
class Said:
    n: int
    word: str

def no_nine(row):
    if row.n % 10 == 9:
        raise ValueError("a nine")
    return row

app = hf.App("words", root={root!r}, dlq=hf.Log({folder!r} + "/dead"))
rows = app.source("rows", hf.Log({folder!r} + "/input", Said))
rows.map(no_nine, to=Said, on_error="dlq").sink("copy", hf.Log({folder!r} + "/copy", key=["word"], partitions=2))
rows.sink("added", hf.SQLite({folder!r} + "/out.db", "added"))
totals = rows.key_by("word").agg("totals", rows=hf.count(), total=hf.sum("n"))
totals.sink("all", hf.SQLite({folder!r} + "/out.db", "totals", ["word"]))
totals.filter(pl.col("total") % 2 == 0).sink("some", hf.SQLite({folder!r} + "/out.db", "some", ["word"], "idempotent"))
'''
SAID = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("word", pa.string(), nullable=False)])


class Job:
    """The job of JOB on disk, run in this process, and the command that audits it."""

    def __init__(self, folder: Path, holdfast: Callable[..., Any]) -> None:
        self.folder, self.file, self._holdfast = folder, folder / "job.py", holdfast
        self.file.write_text(JOB.format(root=str(folder / "root"), folder=str(folder)))
        create_log(LocalObjects(folder / "input"), SAID, 3)
        self.input = LogWriter(LocalObjects(folder / "input"))
        self.plan = load(str(self.file)).plan()
        for spec in self.plan.sinks:
            spec.sink.prepare(spec.schema, spec.upsert_key)
        store = LocalObjects(folder / "root" / "words")
        self.cluster = Cluster(self.plan, 2, 1, store, 1.0, {"rows": (0, 1, 2)})
        self.cluster.begin()
        self.said = 0

    def run(self, *counts: int) -> None:
        """Give so many records, one epoch after the other."""
        for count in counts:
            rows = [{"n": n, "word": "abcdef"[n * n % 6]} for n in range(self.said, self.said + count)]
            self.said += count
            self.input.append({p: pa.Table.from_pylist(rows[p::3], schema=SAID) for p in range(3)})
            self.cluster.pass_time(2.5)
            assert self.cluster.driver.outcome is None

    def start_again(self, parallelism: int, **changed: Any) -> None:
        ranges = tuple(range_of(i, parallelism, self.plan.key_groups) for i in range(parallelism))
        self.cluster.change_rules(key_ranges=ranges, **changed)
        self.cluster.replace_driver()
        self.cluster.pass_time(1.0)

    def rewind(self, back: int) -> None:
        done = self.cluster.driver.state.job.completed
        wanted = {"epoch": done[-1 - back].body.epoch, "timeline": self.cluster.driver.state.job.timeline}
        assert self.cluster.driver.asked("rewind", {**wanted, "head": None, "stop": False}, 0, 1) is not None
        self.cluster.pass_time(5.0)

    def audit(self, *arguments: str) -> dict[str, Any]:
        ended = self._holdfast("audit", str(self.file), "--json", *arguments)
        shown: dict[str, Any] = ended.json
        assert ended.status == (4 if shown["verdict"] == "differs" else 0), shown
        return shown

    def differing(self) -> set[tuple[str, int | None]]:
        """Return name and writer or partition of everything that the audit finds changed."""
        shown = self.audit()
        found = [(each.get("sink", each.get("source")), each.get("writer", each.get("partition")))
                 for kind in ("sources", "sinks") for each in shown[kind] if each["verdict"] == "differs"]  # fmt: skip
        assert bool(found) == (shown["verdict"] == "differs")
        return set(found)

    def sql(self, statement: str) -> None:
        with closing(sqlite3.connect(self.folder / "out.db")) as db, db:
            assert db.execute(statement).rowcount > 0, "nothing was tampered with"

    def forge(self, log: str, change: Callable[[pa.Table], pa.Table]) -> None:
        """Change the rows of a log's first segment, with sizes and hashes as whoever knows the format would."""
        store = LocalObjects(self.folder / log)
        for path in store.list("commits"):
            commit = json.loads(store.get(path))
            if commit["segments"]:
                break
        from holdfast.storage.commits import Commits
        from holdfast.storage.log import read_meta
        from holdfast.storage.logformat import LogSegment
        from dataclasses import replace

        meta = read_meta(store)
        assert meta is not None
        found = Commits(store, meta).at(commit["sequence"])
        segment = found.segments[0]
        rows = pa.ipc.open_file(store.get(segment.path)).read_all()
        data = encode_segment(change(rows))
        forged = LogSegment(segment.partition, segment.base, segment.rows, segment.path, len(data), segment_hash(data))
        store.put(segment.path, data)
        store.put(path, encode_commit(replace(found, segments=(forged, *found.segments[1:]))))


@pytest.fixture
def job(tmp_path: Path, holdfast: Callable[..., Any]) -> Job:
    return Job(tmp_path, holdfast)


def verdicts(shown: dict[str, Any], kind: str) -> set[str]:
    return {each["verdict"] for each in shown[kind]}


class TestAuditOfWhatIsAsItWasLeft:
    def test_sources_and_targets_of_every_kept_epoch_are_proven(self, job: Job) -> None:
        job.run(20, 31, 7)
        shown = job.audit()
        assert verdicts(shown, "epochs") == verdicts(shown, "sources") == verdicts(shown, "sinks") == {"proven"}
        assert sum(each["rows"] for each in shown["sources"]) == 58
        assert {each["sink"] for each in shown["sinks"]} == {"copy", "added", "all", "some", "dlq"}
        assert verdicts(shown, "operators") == {"proven", "not provable"}
