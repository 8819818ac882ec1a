"""Checks the files that a life left, without using code of the runtime.

It reads JSON, Arrow and SQLite as docs/formats.md describes them, folds segments with dictionaries, and computes the
expected tables and log from the input and the offsets of a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import struct
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import xxhash

PARTITIONS, STRIDE = 2, 1_000
Row = dict[str, int]
Totals = dict[int, tuple[int, int]]
"""Count and sum by key."""


class ViolationError(AssertionError):
    """A promise does not hold."""


def must(holds: bool, what: str) -> None:
    if not holds:
        raise ViolationError(what)


@dataclass
class Reported:
    """The results that the lives of a case received."""

    created: bool = False
    appends: list[int] = field(default_factory=list)
    appended: list[int] = field(default_factory=list)
    cuts: dict[int, list[int]] = field(default_factory=dict)
    """Offsets per partition by epoch that was reported as completed."""
    delivered: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    hows: set[str] = field(default_factory=set)

    def take(self, line: Mapping[str, Any]) -> None:
        """Add one line of a life."""
        self.created |= "created" in line
        if "append" in line:
            self.appends.append(line["append"])
        if "appended" in line:
            self.appended.append(line["appended"])
        if "completed" in line:
            self.cuts[line["completed"]] = line["cut"]
        if "how" in line:
            self.hows.add(line["how"])
        if "delivered" in line:
            sink, subtask, timeline, epoch = line["delivered"]
            standing = self.delivered.get((sink, subtask), (0, 0))
            self.delivered[sink, subtask] = max(standing, (timeline, epoch))


@dataclass
class Log:
    """An embedded log: rows by partition, and the newest tag by writer."""

    rows: dict[int, list[Row]]
    tags: dict[str, tuple[int, int]]
    appends: list[dict[int, list[Row]]]
    sealed: bool


def read_log(folder: Path) -> Log | None:
    """Read a log; None if there is none."""
    if not (folder / "meta.json").exists():
        return None
    meta = _signed(folder / "meta.json")
    rows: dict[int, list[Row]] = {p: [] for p in range(meta["partitions"])}
    tags: dict[str, tuple[int, int]] = {}
    appends, sealed = [], False
    commits = sorted(p for p in (folder / "commits").glob("*.json")) if (folder / "commits").is_dir() else []
    for number, path in enumerate(commits, 1):
        commit = _signed(path)
        must(path.stem == f"{number:020d}" and commit["sequence"] == number, f"{path} is not commit {number}")
        must(not sealed, f"{path} follows a seal")
        sealed = commit["kind"] == "seal"
        new: dict[int, list[Row]] = {}
        for segment in commit["segments"]:
            data = (folder / segment["path"]).read_bytes()
            must(len(data) == segment["size"], f"{segment['path']} has the wrong size")
            must(xxhash.xxh3_64_hexdigest(data) == segment["xxh3"], f"{segment['path']} has the wrong hash")
            part = pa.ipc.open_file(pa.py_buffer(data)).read_all().to_pylist()
            must(segment["base"] == len(rows[segment["partition"]]), f"{segment['path']} has the wrong first offset")
            rows[segment["partition"]] += part
            new.setdefault(segment["partition"], []).extend(part)
        must(commit["ends"] == [len(rows[p]) for p in sorted(rows)], f"{path}: its ends are wrong")
        for each in commit["tags"]:
            tags[each["writer"]] = (each["tag"]["timeline"], each["tag"]["epoch"])
        if commit["kind"] == "append":
            appends.append(new)
    return Log(rows, tags, appends, sealed)


def _signed(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    body, mark = data[:-27], data[-27:]
    must(mark.startswith(b',"xxh3":"') and mark.endswith(b'"}'), f"{path} does not end with its hash")
    must(xxhash.xxh3_64_hexdigest(body) == mark[9:25].decode(), f"{path} does not match its hash")
    found: dict[str, Any] = json.loads(data)
    return found


@dataclass
class Job:
    """A job's log, read backwards to its beginning."""

    uuid: str
    completed: dict[int, dict[str, Any]]
    """The manifest's name, size and hash, by retained epoch."""
    expired: int
    newest: int
    ended: str | None


def read_job(folder: Path) -> Job | None:
    """Read a job log; None if there is none."""
    paths = sorted((folder / "log").glob("*.json")) if (folder / "log").is_dir() else []
    if not paths:
        return None
    records = {int(path.stem): json.loads(path.read_bytes()) for path in paths}
    first = max([n for n, r in records.items() if r["body"]["kind"] == "LogStart"], default=1)
    last = max(records)
    must(all(n in records for n in range(first, last + 1)), f"the job log has a hole between {first} and {last}")
    completed: dict[int, dict[str, Any]] = {}
    expired, ended, named = 0, None, set[int]()
    for number in range(first, last + 1):
        body = records[number]["body"]
        must(records[number]["seq"] == number, f"record {number} claims to be {records[number]['seq']}")
        match body["kind"]:
            case "LogStart":
                said = body["job"]
                completed = {c["body"]["epoch"]: c["body"]["manifest"] for c in said["completed"]}
                expired = said.get("expired_through", 0)
                named = {each["epoch"] for each in said.get("savepoints", [])}
                ended = None if said.get("ended") is None else said["ended"]["kind"]
            case "CheckpointCompleted":
                completed[body["epoch"]] = body["manifest"]
                if body.get("savepoint"):
                    named.add(body["epoch"])
            case "Expired":
                expired = body["through"]
                completed = {e: m for e, m in completed.items() if e > expired or e in named}
            case "GenerationStarted":
                ended = None
            case "Stopped" | "Finished":
                ended = body["kind"]
    return Job(records[last]["job_uuid"], completed, expired, max(completed, default=0), ended)


def read_object(root: Path, ref: Mapping[str, Any]) -> bytes:
    """Read an object that a manifest or record names."""
    path = root / ref["path"]
    must(path.exists(), f"{ref['path']} is named but missing")
    data: bytes = path.read_bytes()
    same: bool = len(data) == ref["size"] and hashlib.sha256(data).hexdigest() == ref["sha256"]
    must(same, f"{ref['path']} differs from what was written")
    return data


_TAIL = struct.Struct("<IQ8s")


def fold_segment(data: bytes, key_groups: tuple[int, int], into: dict[int, tuple[int, int, int]]) -> None:
    """Write a segment's rows of these key groups into a dictionary: key -> key group, count, sum."""
    must(data.startswith(b"HFSEG\r\n\x1a"), "a segment does not begin with its magic bytes")
    length, hashed, _ = _TAIL.unpack_from(data, len(data) - _TAIL.size)
    must(xxhash.xxh3_64_intdigest(data[:-16]) == hashed, "a segment does not match its hash")
    footer = msgspec.msgpack.decode(data[len(data) - _TAIL.size - length : -_TAIL.size])
    for block in footer["blocks"]:
        table = pa.ipc.open_stream(data[block["offset"] : block["offset"] + block["size"]]).read_all()
        n, total = (table.column(i).to_pylist() for i in range(4, 6))
        for row, (group, key, kind) in enumerate(
            zip(*(table.column(name).to_pylist() for name in ("kg", "key", "kind")), strict=True)
        ):
            if key_groups[0] <= group < key_groups[1]:
                if kind == 1:
                    into[key] = (group, n[row], total[row])
                else:
                    into.pop(key, None)


def totals(rows: Mapping[int, list[Row]], cut: Iterable[int]) -> Totals:
    """Return the keyed totals of the rows before these offsets."""
    found: Totals = {}
    for partition, end in enumerate(cut):
        for row in rows[partition][:end]:
            n, total = found.get(row["key"], (0, 0))
            found[row["key"]] = (n + 1, total + row["value"])
    return found


class Checker:
    """Checks everything in the folder of a case."""

    def __init__(self, folder: Path, reported: Reported) -> None:
        self.folder, self.reported = folder, reported
        self.root = folder / "root" / "life"
        self._groups: dict[int, int] = {}

    def check(self, batch_rows: Mapping[int, Mapping[int, list[Row]]]) -> None:
        """Check everything that must hold at any moment.

        Args:
            batch_rows: The rows that each append was to write, by number.
        """
        self._input(batch_rows)
        job = read_job(self.root)
        if job is None:
            must(not self.reported.cuts, "epochs were completed, but there is no job")
            must(not self._sql("SELECT * FROM totals"), "rows were delivered for a job that does not exist")
            return
        self._history(job)
        cuts = dict(self.reported.cuts)
        for epoch, ref in job.completed.items():
            cuts[epoch] = self._checkpoint(epoch, ref)
        self._table(job, cuts)
        self._output(job, cuts)

    def finished(self) -> None:
        """Check what must also hold once the job has finished."""
        job = read_job(self.root)
        must(job is not None and job.ended == "Finished", "the job has not finished")
        assert self.log is not None
        ends = [len(self.log.rows[p]) for p in range(PARTITIONS)]
        found = {key: (n, total) for key, n, total in self._sql("SELECT key, n, total FROM totals")}
        must(found == totals(self.log.rows, ends), "the table does not hold the totals of the whole input")
        output = read_log(self.folder / "output")
        ids = sorted(row["id"] for part in output.rows.values() for row in part) if output else []
        wanted = sorted(row["id"] for part in self.log.rows.values() for row in part if row["value"] > 0)
        must(ids == wanted, "the output log does not hold every gain once")

    def _input(self, batch_rows: Mapping[int, Mapping[int, list[Row]]]) -> None:
        self.log = read_log(self.folder / "input")
        must(self.log is not None or not self.reported.created, "the input log was created but does not exist")
        if self.log is None:
            return
        found = [append[min(append)][0]["id"] // STRIDE // PARTITIONS for append in self.log.appends]
        must(len(set(found)) == len(found), f"appends are duplicated: {found}")
        must(set(self.reported.appended) <= set(found), f"appends are lost: {set(self.reported.appended) - set(found)}")
        must(set(found) <= set(self.reported.appends), "there are appends that no life made")
        must(found == sorted(found), f"appends are out of order: {found}")
        for number, append in zip(found, self.log.appends, strict=True):
            must(append == batch_rows[number], f"append {number} is incomplete")

    def _history(self, job: Job) -> None:
        reported = max(self.reported.cuts, default=0)
        must(job.newest >= reported, f"epoch {reported} was completed, but the log ends at {job.newest}")
        for epoch in self.reported.cuts:
            must(epoch in job.completed or epoch <= job.expired, f"epoch {epoch} was completed but is missing")

    def _checkpoint(self, epoch: int, ref: Mapping[str, Any]) -> list[int]:
        """Check one retained checkpoint; return its offsets."""
        manifest = json.loads(read_object(self.root, ref))
        must(manifest["epoch"] == epoch, f"the manifest of epoch {epoch} belongs to {manifest['epoch']}")
        at = {position["partition"]: position["offset"] for position in manifest["positions"]}
        cut = [max(0, at.get(p, 0)) for p in range(PARTITIONS)]
        reported = self.reported.cuts.get(epoch, cut)
        must(reported == cut, f"epoch {epoch} was completed at {reported}, but its manifest says {cut}")
        assert self.log is not None
        must(all(cut[p] <= len(self.log.rows[p]) for p in range(PARTITIONS)), f"epoch {epoch} lies beyond the input")
        state: dict[int, tuple[int, int, int]] = {}
        for handle in manifest["state"]:
            mine: dict[int, tuple[int, int, int]] = {}
            owned = tuple(handle["key_groups"])
            for base in handle["base"]:
                fold_segment(read_object(self.root, base), owned, mine)
            for segment in handle["segments"]:
                span = tuple(segment.get("key_groups") or owned)
                fold_segment(read_object(self.root, segment["object"]), span, mine)
            state |= mine
        for item in manifest["pending"]:
            for part in item["staged"]["parts"]:
                pa.ipc.open_file(pa.py_buffer(read_object(self.root, part))).read_all()
        self._groups |= {key: group for key, (group, _, _) in state.items()}
        found = {key: (n, total) for key, (_, n, total) in state.items()}
        must(found == totals(self.log.rows, cut), f"the state of epoch {epoch} is not that of its input")
        return cut

    def _tags(self, job: Job, found: Mapping[tuple[str, int], tuple[int, int]], cuts: Mapping[int, list[int]]) -> None:
        for writer, tag in self.reported.delivered.items():
            if writer[0] == self._sink:
                stands = found.get(writer, (0, 0))
                must(stands >= tag, f"{writer} was delivered at {tag}, but its tag is {stands}")
        for writer, (_, epoch) in found.items():
            must(epoch <= job.newest, f"output of {writer} of epoch {epoch} is visible; only {job.newest} is committed")
            must(epoch in cuts or epoch <= job.expired, f"the tag of {writer} has epoch {epoch}, which never completed")

    def _table(self, job: Job, cuts: Mapping[int, list[int]]) -> None:
        """Check that the table holds, by writer, the totals as of the writer's tag."""
        self._sink = "out"
        tags = {
            ("out", writer): (timeline, epoch)
            for writer, timeline, epoch in self._sql("SELECT writer, timeline, epoch FROM holdfast_progress")
        }
        self._tags(job, tags, cuts)
        found = {key: (n, total) for key, n, total in self._sql("SELECT key, n, total FROM totals")}
        assert self.log is not None
        wanted: Totals = {}
        for subtask in range(2):
            epoch = tags.get(("out", subtask), (0, 0))[1]
            if epoch and epoch not in cuts:
                return  # expired, and no life learned its offsets
            as_of = totals(self.log.rows, cuts[epoch] if epoch else [0, 0])
            wanted |= {key: row for key, row in as_of.items() if self._owner(key) == subtask}
        must(found == wanted, f"the table does not match its tags {tags}")

    def _owner(self, key: int) -> int:
        return self._groups[key] * 2 // 8

    def _output(self, job: Job, cuts: Mapping[int, list[int]]) -> None:
        """Check that the output log holds the gains of all partitions before the tag of its committer, each once."""
        self._sink = "gains"
        output = read_log(self.folder / "output")
        if output is None:
            return
        tags = {("gains", int(name.rpartition("/")[2])): tag for name, tag in output.tags.items()}
        self._tags(job, tags, cuts)
        found = sorted(row["id"] for part in output.rows.values() for row in part)
        must(len(set(found)) == len(found), "gains are in the output log twice")
        assert self.log is not None
        wanted = []
        epoch = tags.get(("gains", 0), (0, 0))[1]  # the committer's, for all writers
        if epoch and epoch not in cuts:
            return
        for partition in range(PARTITIONS):
            end = cuts[epoch][partition] if epoch else 0
            wanted += [row["id"] for row in self.log.rows[partition][:end] if row["value"] > 0]
        must(found == sorted(wanted), f"the output log does not match its tags {tags}")

    def _sql(self, query: str) -> list[tuple[Any, ...]]:
        path = self.folder / "target" / "out.db"
        if not path.exists():
            return []
        with closing(sqlite3.connect(path)) as db:
            try:
                return db.execute(query).fetchall()
            except sqlite3.OperationalError as error:
                if "no such table" in str(error):
                    return []
                raise
