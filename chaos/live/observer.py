"""Reads the targets of a job under faults, as any reader could, and reports states that must never be visible.

Only durable formats are used (docs/formats.md): SQLite in read transactions, commits of a log as JSON, the job log.

Checked after every read
    - A writer's tag never goes back (I6).
    - Visible output belongs to a completed epoch: its record is in the job log before the target shows it (I5).
    - Rows of a log keep their offsets: every segment begins where the partition ended, and ends only grow (I3).
    - Tables named as growing never lose rows, unless the job was rewound.

Invariants
    - A target, or a table named as growing, that was never seen is reported: it proves nothing.
    - A target that is missing or busy is read again; any other error while reading a target is a finding.
    - Reading never blocks others for a long time: one transaction per look, and no lock between two.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from holdfast.chaos.judge.findings import Finding
from holdfast.chaos.live.faults.scenario import Observed
from holdfast.storage.log.format import META_PATH

EVERY_S = 0.5
BUSY_S = 5.0
SHOWN_MAX = 3
Tag = tuple[int, int]
"""Timeline and epoch."""


class JobLog:
    """The records of a job log, from its beginning, as they are appended."""

    def __init__(self, root: Path) -> None:
        self._root, self._sequence = root, 0
        self._folder: Path | None = None

    def news(self) -> list[dict[str, Any]]:
        """Return the records that were appended since the last call. A job log has no gaps."""
        if self._folder is None:
            self._folder = next(iter(self._root.glob("*/log")), None)
        records: list[dict[str, Any]] = []
        while self._folder is not None:
            try:
                records.append(json.loads((self._folder / f"{self._sequence + 1:020}.json").read_bytes()))
            except FileNotFoundError:
                break
            self._sequence += 1
        return records


class Observer:
    """Watches targets in its own thread.

    Args:
        root: The root of the job.
        targets: The targets, with `{out}` filled into their paths.
    """

    def __init__(self, root: Path, targets: list[Observed]) -> None:
        self._log, self._targets = JobLog(root), targets
        self._completed: set[int] = set()
        self._rewinds = 0
        self._tags: dict[tuple[str, str], Tag] = {}
        self._rows: dict[tuple[str, str], tuple[int, int]] = {}
        self._ends: dict[str, list[int]] = {}
        self._commits: dict[str, int] = {}
        self.looks = 0
        self._seen: Counter[str] = Counter()
        """How many looks found each target, or each table of a target."""
        self.wrong: list[str] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observe", daemon=True)

    def start(self) -> None:
        """Start watching."""
        self._thread.start()

    def close(self) -> list[Finding]:
        """Look once more; return one finding per target."""
        if not self._closed.is_set():
            self._closed.set()
            if self._thread.ident is not None:
                self._thread.join()
            self.look()
        findings = []
        for target in self._targets:
            wrong = [text for text in self.wrong if text.startswith(f"{target.path}: ")]
            writers = sum(place == target.path for place, _ in self._tags)
            looks = f"{self._seen[target.path]} of {self.looks} looks saw it"
            said = "; ".join(wrong[:SHOWN_MAX]) or f"{target.path}: {looks}, {writers} writers"
            if wrong or self._seen[target.path]:
                findings.append(Finding("observer", not wrong, "I5, I6", detail=said))
        return findings

    def unseen(self) -> list[str]:
        """Return the targets, and tables named as growing, that no look has ever seen."""
        named = [f"{each.path}{table}" for each in self._targets for table in ("", *(f": {t}" for t in each.grows))]
        return [name for name in named if not self._seen[name]]

    def look(self) -> None:
        """Read every target once."""
        for target in self._targets:
            try:
                if target.kind == "sqlite":
                    self._look_at_database(target)
                else:
                    self._look_at_log(target.path)
            except Exception as error:  # noqa: BLE001 - becomes a finding; in this thread it would go unnoticed
                self._note(f"{target.path}: it could not be read: {type(error).__name__}: {error}")
        self.looks += 1

    def _note(self, wrong: str) -> None:
        if wrong not in self.wrong:
            self.wrong.append(wrong)

    def _run(self) -> None:
        while not self._closed.wait(EVERY_S):
            self.look()

    def _look_at_database(self, target: Observed) -> None:
        path, rewinds = target.path, self._rewinds
        try:
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=BUSY_S)) as database:
                database.execute("BEGIN")
                rows = database.execute("SELECT job, sink, writer, timeline, epoch FROM holdfast_progress").fetchall()
                there = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
                grows = [table for table in target.grows if table in there]
                counts = [(t, database.execute(f'SELECT count(*) FROM "{t}"').fetchone()[0]) for t in grows]
        except sqlite3.OperationalError:
            return  # missing or busy: the next look may succeed
        self._seen.update([path, *(f"{path}: {table}" for table in grows)])
        self._read_job_log()
        for job, sink, writer, timeline, epoch in rows:
            self._take(path, f"{job}/{sink}/{writer}", (timeline, epoch))
        for table, count in counts:
            before, since = self._rows.get((path, table), (0, rewinds))
            if count < before and since == self._rewinds:
                self._note(f"{path}: {table} shrank from {before} rows to {count}")
            self._rows[path, table] = (count, rewinds)

    def _look_at_log(self, path: str) -> None:
        commits = []
        while True:
            sequence = self._commits.get(path, 0) + 1
            try:
                commits.append(json.loads((Path(path) / "commits" / f"{sequence:020}.json").read_bytes()))
            except FileNotFoundError:
                break
            self._commits[path] = sequence
        self._seen[path] += (Path(path) / META_PATH).exists()
        self._read_job_log()
        for commit in commits:
            ends = self._ends.get(path, [0] * len(commit["ends"]))
            row_ends = list(ends)
            for segment in commit["segments"]:
                if segment["base"] != row_ends[segment["partition"]]:
                    self._note(
                        f"{path}: commit {commit['sequence']} has rows from offset {segment['base']}, not {row_ends}"
                    )
                row_ends[segment["partition"]] = segment["base"] + segment["rows"]
            if row_ends != commit["ends"]:
                self._note(
                    f"{path}: commit {commit['sequence']} ends at {commit['ends']}, but its rows end at {row_ends}"
                )
            self._ends[path] = commit["ends"]
            if commit["tag"] is not None:
                tag = commit["tag"]["tag"]
                self._take(path, commit["tag"]["writer"], (tag["timeline"], tag["epoch"]), grows=True)

    def _take(self, path: str, writer: str, tag: Tag, *, grows: bool = False) -> None:
        before = self._tags.get((path, writer))
        if before is not None and (tag < before or (grows and tag == before)):
            self._note(f"{path}: the tag of {writer} went from {before} to {tag}")
        if tag[1] not in self._completed and tag[1] != 0:
            self._note(f"{path}: {writer} shows epoch {tag[1]}, which is not completed")
        self._tags[path, writer] = tag

    def _read_job_log(self) -> None:
        for record in self._log.news():
            if record["body"]["kind"] == "CheckpointCompleted":
                self._completed.add(record["body"]["epoch"])
            elif record["body"]["kind"] == "Rewound":
                self._rewinds += 1
