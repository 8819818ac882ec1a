"""A small job with one target of each kind that a rewind treats differently, and the rows that a user would see there.

It runs on a cluster in memory; its root, tables and logs are files.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.joblog import Job
from holdfast.checkpoint.repository import Repository
from holdfast.model import Tag, Timeline
from holdfast.runtime.cli.start.jobfile import load
from holdfast.runtime.testing.cluster import Cluster
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.objects import LocalObjects

FILE = """
import holdfast as hf
from dataclasses import dataclass

@dataclass
class Said:
    word: str
    n: int

app = hf.App("words", root={folder!r} + "/root", checkpoint_every="1s")
rows = app.source("rows", hf.Log({folder!r} + "/rows", Said))
totals = rows.key_by("word").agg("totals", rows=hf.count(), total=hf.sum("n"))
totals.sink("out", hf.SQLite({folder!r} + "/out.db", table="totals", key=["word"]))
totals.sink("tagged", hf.SQLite({folder!r} + "/tagged.db", table="totals", key=["word"], delivery="idempotent"))
rows.sink("said", hf.SQLite({folder!r} + "/said.db", table="said"))
rows.sink("log", hf.Log({folder!r} + "/log"))
"""
ROWS = pa.schema([pa.field("word", pa.string(), nullable=False), pa.field("n", pa.int64(), nullable=False)])


class Words:
    """The job in its folder."""

    code = FILE

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, str(folder / "job.py")
        self.store = LocalObjects(str(folder / "root" / "words"))
        create_log(LocalObjects(str(folder / "rows")), ROWS)
        self.epochs: list[int] = []
        self.go_on(self.code)

    def go_on(self, code: str) -> None:
        """Resume the job with this code."""
        Path(self.file).write_text(code.format(folder=str(self.folder)))
        self.plan = load(self.file).plan()
        for spec in self.plan.sinks:
            spec.sink.prepare(spec.schema, spec.upsert_key)
        self.cluster = Cluster(self.plan, 2, 0, self.store, 1.0, {"rows": (0, 1, 2, 3)})
        self.cluster.begin()

    @property
    def job(self) -> Job:
        """The fold of the job's log."""
        found = Repository(self.store).read_log()
        assert found is not None
        return found

    def say(self, **words: int) -> None:
        """Append records, and run until they are in the targets."""
        rows = [{"word": word, "n": n} for word, n in words.items()]
        LogWriter(LocalObjects(str(self.folder / "rows"))).append({0: pa.Table.from_pylist(rows, schema=ROWS)})
        self.cluster.pass_time(3.0)
        self.epochs.append(self.job.base_epoch)

    def stop(self) -> None:
        """Take a last checkpoint and end the run."""
        self.cluster.driver.stop()
        self.cluster.pass_time(5.0)
        assert self.cluster.driver.outcome == ("stopped", None)

    def forget(self, *sinks: str) -> None:
        """Drop all before-images of these sinks, as when the rewind horizon has passed them."""
        job = self.job
        for writer in Repository(self.store).load_manifest(job.completed[-1].body.manifest).confirmed:
            if writer.writer.sink in sinks:
                spec = next(spec for spec in self.plan.sinks if spec.name == writer.writer.sink)
                target = spec.sink.open(job.uuid, writer.writer)
                target.forget(Tag(Timeline(job.timeline), job.base_epoch))
                target.close()


def visible(folder: Path) -> dict[str, Any]:
    """Return the rows that users of the targets see."""
    found: dict[str, Any] = {}
    for name, query in (
        ("out", "SELECT word, rows, total FROM totals"),
        ("tagged", "SELECT word, rows, total FROM totals"),
        ("said", "SELECT word, n FROM said"),
    ):
        with closing(sqlite3.connect(folder / f"{name}.db")) as db:
            found[name] = sorted(map(list, db.execute(query)))
    return found | {"log": log_rows(folder / "log")}


def log_rows(path: Path) -> list[list[Any]]:
    """Return the rows of a log that are not void."""
    reader, found = LogReader(LocalObjects(str(path))), []
    for partition in range(reader.meta.partitions):
        batch, offset = reader.read(partition, 0, 1 << 30)
        while batch is not None:
            found += [[row["word"], row["n"]] for row in batch.to_pylist()]
            batch, offset = reader.read(partition, offset, 1 << 30)
    return sorted(found)


def durable(folder: Path) -> dict[str, Any]:
    """Return the durable result of a rewind; timelines as their distance from the job's own."""
    job = Repository(LocalObjects(str(folder / "root" / "words"))).read_log()
    assert job is not None
    found = visible(folder)
    for name in ("out", "tagged", "said"):
        with closing(sqlite3.connect(folder / f"{name}.db")) as db:
            tags = db.execute("SELECT writer, ? - timeline, epoch FROM holdfast_progress", (job.timeline,))
            found[f"{name} tags"] = sorted(map(list, tags))
            images = db.execute('SELECT writer, timeline, epoch, "key", "before" FROM holdfast_undo')
            found[f"{name} images"] = sorted(map(list, images))
    log = LogWriter(LocalObjects(str(folder / "log")))
    standing = {str(n): log.tag_of(f"{job.uuid}/log/{n}") for n in range(2)}
    behind = {n: None if tag is None else [job.timeline - tag.timeline, tag.epoch] for n, tag in standing.items()}
    found["log tags"] = behind
    found["job"] = {
        "ended": type(job.ended).__name__,
        "base": job.base_epoch,
        "completed": [each.body.epoch for each in job.completed],
        "abandoned": [each.body.epoch for each in job.abandoned],
        "bases": sorted({rewind.base_epoch for rewind in job.rewinds}),
        "in step": job.timeline == len(job.rewinds) + 1,
    }
    return found
