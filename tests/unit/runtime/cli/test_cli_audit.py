"""`holdfast audit` on real targets: unchanged contents are proven, later changes are found."""

from __future__ import annotations

import argparse
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.catalogue import Retention
from holdfast.errors import Unavailable
from holdfast.runtime.audit.report import Report
from holdfast.runtime.cli.operate.audit import audited
from holdfast.runtime.cli.start.jobfile import load
from holdfast.runtime.inspect.stored import open_job
from holdfast.runtime.testing.cluster import Cluster
from holdfast.sinks.contract.audited import AuditQuery, TargetContents
from holdfast.state.keys.keygroups import range_of
from holdfast.storage.local import LocalObjects
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.format import commit_path, encode_commit
from holdfast.storage.log.log import LogWriter, create_log, read_meta
from holdfast.storage.log.segment import encode_segment, segment_hash

pytestmark = pytest.mark.thorough

JOB = """
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
totals.sink("changes", hf.Log({folder!r} + "/changes", key=["word"], partitions=2))
some = totals.filter(pl.col("total") % 2 == 0)
some.sink("some", hf.SQLite({folder!r} + "/out.db", "some", ["word"], "idempotent"))
some.sink("some_changes", hf.Log({folder!r} + "/some_changes", key=["word"]))
"""
SAID = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("word", pa.string(), nullable=False)])


AT_ONCE = """
from dataclasses import dataclass
import holdfast as hf

@dataclass
class Said:
    n: int
    word: str

def one(n):
    return Said(n, "abc"[n % 3])

app = hf.App("words", root={root!r})
rows = app.source("rows", hf.Generator(Said, one, rate=1e6, count=40), partitioned_by=["n"])
rows.sink("last", hf.SQLite({folder!r} + "/out.db", "last", ["n"], "idempotent"))
rows.filter(lambda row: row.n % 2 == 0).sink("even", hf.SQLite({folder!r} + "/out.db", "even", ["n"]))
"""


UNDECODABLE = """
from dataclasses import dataclass
import holdfast as hf

@dataclass
class Said:
    n: int

def one(n):
    return Said(n) if n % 4 else "no row"

app = hf.App("words", root={root!r}, dlq=hf.Log({folder!r} + "/dead"))
app.source("rows", hf.Generator(Said, one, count=40), on_error="dlq").sink("copy", hf.Log({folder!r} + "/copy"))
"""


SHARED = """
from dataclasses import dataclass
import polars as pl
import holdfast as hf

@dataclass
class Said:
    n: int
    word: str

app = hf.App("words", root={root!r})
rows = app.source("rows", hf.Log({folder!r} + "/input", Said))
rows.filter(pl.col("n") % 2 == 0).sink("even", hf.SQLite({folder!r} + "/out.db", "both"))
rows.filter(pl.col("n") % 2 == 1).sink("odd", hf.SQLite({folder!r} + "/out.db", "both"))
rows.sink("alone", hf.SQLite({folder!r} + "/out.db", "alone"))
"""


class Overtaken(hf.SQLite):
    """A table; before an audit reads it, other things happen."""

    def __init__(self, sink: hf.SQLite, before: Callable[[], None]) -> None:
        super().__init__(sink.path, sink.table, sink.key, sink.delivery)
        object.__setattr__(self, "before", before)

    def contents(self, asked: AuditQuery) -> TargetContents:
        self.before()  # type: ignore[attr-defined]
        return super().contents(asked)


class Refusing(LocalObjects):
    """A store that now and then refuses to take segments: their epochs are given up."""

    refuses = False

    @contextmanager
    def writing(self, path: str) -> Iterator[BinaryIO]:
        if self.refuses and path.startswith("segments/"):
            raise Unavailable("the store is away", next_step="try again")
        with super().writing(path) as file:
            yield file


class Job:
    """The job of JOB on disk, run in this process, and the command that audits it."""

    def __init__(self, folder: Path, holdfast: Callable[..., Any], code: str = JOB, partitions: int = 3) -> None:
        self.folder, self.file, self._holdfast = folder, folder / "job.py", holdfast
        self.file.write_text(code.format(root=str(folder / "root"), folder=str(folder)))
        create_log(LocalObjects(folder / "input"), SAID, 3)
        self.input = LogWriter(LocalObjects(folder / "input"))
        self.plan = load(str(self.file)).plan()
        for spec in self.plan.sinks:
            spec.sink.prepare(spec.schema, spec.upsert_key)
        self.store = Refusing(folder / "root" / "words")
        self.cluster = Cluster(self.plan, 2, 1, self.store, 1.0, {"rows": tuple(range(partitions))})
        self.cluster.change_rules(epoch_deadline=1.5)
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

    def age(self) -> None:
        """Complete some epochs without a record."""
        for _ in range(4):
            self.cluster.driver.close_epoch()
            self.cluster.pass_time(1.25)

    def give_up_epochs(self, *counts: int) -> None:
        """Give so many records, and let no epoch of them complete before the end."""
        before = self.cluster.driver.state.given_up
        self.store.refuses = True
        self.run(*counts)
        self.store.refuses = False
        self.cluster.pass_time(2.0)
        assert self.cluster.driver.state.given_up > before

    def start_again(self, parallelism: int, **changed: Any) -> None:
        ranges = tuple(range_of(i, parallelism, self.plan.key_groups) for i in range(parallelism))
        self.cluster.change_rules(key_ranges=ranges, **changed)
        self.cluster.replace_driver()
        self.cluster.pass_time(1.0)

    def rewind(self, back: int) -> None:
        """Go back by so many checkpoints."""
        before = self.cluster.driver.state.job
        wanted = {"epoch": before.completed[-1 - back].body.epoch, "timeline": before.timeline}
        answer = self.cluster.driver.asked("rewind", wanted, before.generation, before.generation)
        assert answer is not None and answer["accepted"]
        self.cluster.pass_time(3.0)
        assert self.cluster.driver.state.job.timeline == before.timeline + 1

    def audit(self, *arguments: str) -> dict[str, Any]:
        ended = self._holdfast("audit", str(self.file), "--json", *arguments)
        contents: dict[str, Any] = ended.json
        assert ended.status == (4 if contents["verdict"] == "differs" else 0), contents
        return contents

    def differing(self) -> set[tuple[str, int | None]]:
        """Return name and writer or partition of everything that the audit finds changed."""
        contents = self.audit()
        found = [
            (each.get("sink", each.get("source")), each.get("writer", each.get("partition")))
            for kind in ("sources", "sinks")
            for each in contents[kind]
            if each["verdict"] == "differs"
        ]
        assert bool(found) == (contents["verdict"] == "differs")
        return set(found)

    def tables_agree(self) -> bool:
        """Return whether the changelogs, read as tables, hold what the tables of SQLite do."""
        with closing(sqlite3.connect(self.folder / "out.db")) as db:
            kept = [set(db.execute(f"SELECT word, rows, total FROM {name}")) for name in ("totals", "some")]
        logs = [hf.log(self.folder / name, as_table=True).collect().rows() for name in ("changes", "some_changes")]
        assert all(len(rows) == len(set(rows)) for rows in logs)
        return kept == [set(rows) for rows in logs]

    def sql(self, statement: str) -> None:
        with closing(sqlite3.connect(self.folder / "out.db")) as db, db:
            assert db.execute(statement).rowcount > 0, "nothing was tampered with"

    def forge(self, log: str, change: Callable[[pa.Table], pa.Table]) -> None:
        """Change the rows of a log's first segment, with the sizes and hashes that the format requires."""
        store = LocalObjects(self.folder / log)
        meta = read_meta(store)
        assert meta is not None
        commits = Commits(store, meta)
        found = next(c for n in range(1, commits.tail.sequence + 1) if (c := commits.at(n)).segments)
        first, *others = found.segments
        data = encode_segment(change(pa.ipc.open_file(store.get(first.path)).read_all()))
        forged = replace(first, size=len(data), xxh3=segment_hash(data))
        store.put(first.path, data)
        store.put(commit_path(found.sequence), encode_commit(replace(found, segments=(forged, *others))))


@pytest.fixture
def job(tmp_path: Path, holdfast: Callable[..., Any]) -> Job:
    return Job(tmp_path, holdfast)


def verdicts(contents: dict[str, Any], kind: str) -> set[str]:
    return {each["verdict"] for each in contents[kind]}


def longer(rows: pa.Table) -> pa.Table:
    """Give the first row another number."""
    return rows.set_column(0, rows.schema.field(0), pa.array([n + 10 for n in rows.column(0).to_pylist()]))


def deleted(rows: pa.Table) -> pa.Table:
    """Make a delete of the first record of a changelog."""
    first, rest = rows.slice(0, 1), rows.slice(1)
    columns = [pa.array([True]), first.column(1), *(pa.nulls(1, column.type) for column in first.columns[2:])]
    return pa.concat_tables([pa.table(columns, schema=rows.schema), rest])


def doubled(rows: pa.Table) -> pa.Table:
    """Put the first row into the place of the last one."""
    return pa.concat_tables([rows.slice(0, rows.num_rows - 1), rows.slice(0, 1)])


class TestAuditOfUnchangedTargets:
    def test_sources_and_targets_of_every_kept_epoch_are_proven(self, job: Job) -> None:
        job.run(20, 31, 7)
        contents = job.audit()
        assert (
            verdicts(contents, "epochs") == verdicts(contents, "sources") == verdicts(contents, "sinks") == {"proven"}
        )
        assert sum(each["rows"] for each in contents["sources"]) == 58
        sinks = {"copy", "added", "all", "changes", "some", "some_changes", "dlq"}
        assert {each["sink"] for each in contents["sinks"]} == sinks
        assert (verdicts(contents, "operators"), contents["verdict"]) == ({"proven"}, "proven")

    def test_a_job_that_was_rewound_is_proven_on_its_new_timeline(self, job: Job) -> None:
        job.run(20, 31, 7)
        job.rewind(2)
        job.run(13)
        contents = job.audit()
        assert contents["verdict"] == "proven"
        assert (
            verdicts(contents, "epochs") == verdicts(contents, "sources") == verdicts(contents, "sinks") == {"proven"}
        )
        assert {each["timeline"] for each in contents["epochs"]} == {1, 2}
        assert sum(each["rows"] for each in contents["sources"]) == 71

    def test_a_job_is_proven_across_a_change_of_parallelism(self, job: Job) -> None:
        job.run(20, 31)
        job.start_again(3)
        job.run(17)
        job.start_again(1)
        job.run(9)
        contents = job.audit()
        assert (
            verdicts(contents, "epochs") == verdicts(contents, "sources") == verdicts(contents, "sinks") == {"proven"}
        )
        assert {each["writer"] for each in contents["sinks"] if each["sink"] == "all"} >= {0, 1}

    def test_killed_workers_leave_no_gap_and_no_duplicates(self, job: Job) -> None:
        for _ in range(4):
            job.run(23)
            job.cluster.crash(min(job.cluster.members))
            job.cluster.pass_time(1.0)
        contents = job.audit()
        assert (
            verdicts(contents, "epochs") == verdicts(contents, "sources") == verdicts(contents, "sinks") == {"proven"}
        )
        assert sum(each["rows"] for each in contents["sources"]) == 92

    def test_epochs_that_were_given_up_are_part_of_the_next_epoch(self, job: Job) -> None:
        job.run(20)
        job.give_up_epochs(31, 7)
        job.run(12)
        contents = job.audit()
        assert contents["verdict"] == "proven"
        assert sum(each["rows"] for each in contents["sources"]) == 70
        assert job.tables_agree()

    @pytest.mark.parametrize("seed", range(4))
    def test_nothing_differs_after_any_sequence_of_runs_and_faults(
        self, tmp_path: Path, holdfast: Callable[..., Any], seed: int
    ) -> None:
        rng = random.Random(seed)
        job = Job(tmp_path, holdfast)
        job.run(5)
        for _ in range(6):
            rng.choice(
                (
                    lambda: job.run(rng.randrange(30)),
                    lambda: job.give_up_epochs(rng.randrange(30), rng.randrange(30)),
                    lambda: job.start_again(rng.choice((1, 2, 3)), retention=Retention(rng.choice((2, 10)), 0, 100)),
                    lambda: job.cluster.crash(rng.choice(sorted(job.cluster.members))),
                    lambda: job.rewind(rng.choice((0, 1))),
                )
            )()
            job.run(rng.randrange(1, 20))
            if rng.random() < 0.3:
                job.audit()
        contents = job.audit()
        assert contents["verdict"] in ("proven", "proven in part")
        assert verdicts(contents, "sources") == verdicts(contents, "operators") == {"proven"}
        assert job.tables_agree()

    def test_kept_epochs_of_a_long_history_are_proven_with_all_added_rows(self, job: Job) -> None:
        job.start_again(2, retention=Retention(2, 0, 100))
        job.run(20, 31, 7, 12, 5, 3)
        contents = job.audit()
        assert contents["epochs"][0]["verdict"] == "not provable"
        assert "is no longer kept" in contents["epochs"][0]["reason"]
        older = [each for each in contents["sinks"] if each["sink"] == "added" and each["epoch"] is None]
        assert [(each["verdict"], each["writer"]) for each in older] == [("proven", None)]
        assert 0 < older[0]["rows"] < 78
        job.age()  # now all rows are of checkpoints that are not kept
        assert {each["verdict"] for each in job.audit()["sinks"] if each["sink"] == "added"} == {"proven"}
        job.sql("DELETE FROM added WHERE rowid = 1")  # of a checkpoint that is not kept any more
        assert job.differing() == {("added", None)}

    def test_rows_that_existed_before_the_job_are_no_difference(self, job: Job) -> None:
        with closing(sqlite3.connect(job.folder / "out.db")) as db, db:
            db.execute("INSERT INTO added VALUES (7, 'seven')")
        job.run(20)
        contents = job.audit()
        (whole,) = [each for each in contents["sinks"] if each["sink"] == "added" and each["epoch"] is None]
        assert (whole["verdict"], whole["reason"]) == ("proven", "rows of older checkpoints; 1 row existed before")

    def test_one_epoch_or_a_range_can_be_chosen(self, job: Job) -> None:
        job.run(20, 31, 7)
        epochs = [each["epoch"] for each in job.audit()["epochs"]]
        middle = job.audit("--epoch", str(epochs[1]))
        assert {each["epoch"] for each in middle["sources"]} == {epochs[1]}
        some = job.audit("--from", str(epochs[1]))
        assert [each["epoch"] for each in some["epochs"]] == epochs[1:]

    def test_a_range_that_ends_before_it_begins_is_refused(
        self, holdfast: Callable[..., Any], history: Callable[[str], Any]
    ) -> None:
        job = history("hot")
        job.checkpoint(5)
        ended = holdfast("audit", "hot", "--from", "8", "--to", "2")
        assert ended.status == 2
        assert "--from is 8, which is above --to 2" in ended.err

    def test_an_app_can_be_chosen_only_from_a_file(
        self, holdfast: Callable[..., Any], history: Callable[[str], Any]
    ) -> None:
        history("hot").checkpoint(5)
        ended = holdfast("audit", "hot", "--app", "nope")
        assert ended.status == 2
        assert "--app chooses an app of a file" in ended.err

    def test_a_log_that_was_deleted_is_not_readable(self, job: Job) -> None:
        job.run(20)
        (job.folder / "input").rename(job.folder / "elsewhere")
        contents = job.audit()
        assert verdicts(contents, "sources") == {"not provable"}
        assert verdicts(contents, "sinks") == {"proven"}

    def test_immediate_sinks_are_counted_and_reported_as_not_provable(
        self, tmp_path: Path, holdfast: Callable[..., Any]
    ) -> None:
        job = Job(tmp_path, holdfast, AT_ONCE, partitions=1)
        job.cluster.pass_time(5.0)
        contents = job.audit()
        assert sum(each["rows"] for each in contents["sources"]) == 40
        assert verdicts(contents, "sources") == {"proven"}
        assert {each["verdict"] for each in contents["sinks"] if each["sink"] == "even"} == {"proven"}
        last = [each for each in contents["sinks"] if each["sink"] == "last"]
        assert sum(each["rows"] for each in last) == 40
        assert {each["verdict"] for each in last} == {"not provable"}
        assert all("written immediately" in each["reason"] for each in last)

    def test_a_locked_target_is_unavailable(self, job: Job, holdfast: Callable[..., Any]) -> None:
        job.run(20)
        with closing(sqlite3.connect(job.folder / "out.db")) as db:
            db.execute("BEGIN EXCLUSIVE")
            ended = holdfast("audit", str(job.file), "--json")
        assert (ended.status, ended.json["kind"]) == (5, "unavailable")
        assert ended.json["not_done"] == "nothing of it was read"

    def test_records_that_cannot_be_decoded_are_accounted_for(
        self, tmp_path: Path, holdfast: Callable[..., Any]
    ) -> None:
        job = Job(tmp_path, holdfast, UNDECODABLE, partitions=1)
        job.cluster.pass_time(5.0)
        contents = job.audit()
        assert contents["verdict"] == "proven"
        source = [each for each in contents["operators"] if each["kind"] == "source"]
        assert [sum(each[way] for each in source) for way in ("rows_in", "rows_out", "dlq")] == [40, 30, 10]


class TestAuditWithoutDigests:
    def test_epochs_without_digests_are_unknown_and_not_zero(self, job: Job) -> None:
        job.start_again(2, audit="off")
        job.run(20)
        job.start_again(2, audit="rows")
        job.run(10)
        contents = job.audit()
        assert contents["epochs"][0]["verdict"] == "not provable"
        assert "proven" in verdicts(contents, "sources")
        (whole,) = [each for each in contents["sinks"] if each["sink"] == "added" and each["epoch"] is None]
        assert whole["verdict"] == "not provable" and "was not counted" in whole["reason"]

    def test_counts_alone_prove_only_counts_as_the_reason_states(self, job: Job) -> None:
        job.start_again(2, audit="counts")
        job.run(20)
        assert {each["reason"] for each in job.audit()["sources"]} == {"by count only"}
        job.sql("UPDATE added SET word = 'z' WHERE n = 3")
        assert job.differing() == set()
        job.sql("DELETE FROM added WHERE n = 3")
        assert ("added", None) in {(name, None) for name, _ in job.differing()}

    def test_an_audit_by_job_name_compares_only_checkpoints_with_each_other(
        self, job: Job, holdfast: Callable[..., Any]
    ) -> None:
        job.run(20, 5)
        ended = holdfast("audit", "words", "--root", str(job.folder / "root"), "--json")
        assert ended.status == 0
        assert verdicts(ended.json, "epochs") == {"proven"}
        assert verdicts(ended.json, "sources") == verdicts(ended.json, "sinks") == {"not provable"}

    def test_the_text_summary_is_a_few_lines(self, job: Job, holdfast: Callable[..., Any]) -> None:
        job.run(20, 5)
        ended = holdfast("audit", str(job.file))
        assert ended.status == 0
        assert ended.out.startswith("words: proven, as of epoch ")
        assert len(ended.out.splitlines()) < 30


class TestAuditOfATamperedTarget:
    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE added SET word = 'z' WHERE n = 3",
            "UPDATE added SET n = 4 WHERE n = 3",
            "DELETE FROM added WHERE n = 30",
            "INSERT INTO added SELECT * FROM added WHERE n = 3",
            "UPDATE added SET n = 'three' WHERE n = 3",
        ],
    )
    def test_changes_of_a_table_without_a_key_are_found(self, job: Job, statement: str) -> None:
        job.run(20, 31, 7)
        job.sql(statement)
        assert {name for name, _ in job.differing()} == {"added"}

    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE totals SET total = total + 1 WHERE word = 'b'",
            "DELETE FROM totals WHERE word = 'e'",
            "UPDATE holdfast_undo SET before = replace(before, '1', '2') WHERE sink = 'all' AND before LIKE '%1%'",
        ],
    )
    def test_changes_of_a_table_with_a_key_are_found(self, job: Job, statement: str) -> None:
        job.run(20, 31, 7)
        job.sql(statement)
        assert {name for name, _ in job.differing()} == {"all"}

    def test_a_deleted_row_that_reappeared_is_found(self, job: Job) -> None:
        job.run(20, 31, 7)
        assert job.differing() == set()
        job.sql("INSERT INTO some SELECT word, rows, total, '' FROM totals WHERE word NOT IN (SELECT word FROM some)")
        assert {name for name, _ in job.differing()} == {"some"}

    @pytest.mark.parametrize("change", [longer, doubled])
    def test_a_changed_log_with_recomputed_hashes_is_found(
        self, job: Job, change: Callable[[pa.Table], pa.Table]
    ) -> None:
        job.run(40, 31)
        job.forge("copy", change)
        assert {name for name, _ in job.differing()} == {"copy"}

    def test_a_put_that_was_made_a_delete_is_found(self, job: Job) -> None:
        job.run(40, 31)
        assert job.differing() == set()
        job.forge("changes", deleted)
        assert {name for name, _ in job.differing()} == {"changes"}

    def test_rows_appended_to_a_log_by_hand_are_found(self, job: Job) -> None:
        job.run(20)
        LogWriter(LocalObjects(job.folder / "copy")).append({0: pa.Table.from_pylist([{"n": 3, "word": "d"}], SAID)})
        job.run(7)
        assert job.differing() == {("copy", None)}

    @pytest.mark.parametrize("change", [longer, doubled])
    def test_a_changed_source_log_is_found(self, job: Job, change: Callable[[pa.Table], pa.Table]) -> None:
        job.run(20, 31)
        job.forge("input", change)
        assert job.differing() == {("rows", 0)}

    def test_a_removed_tag_is_found(self, job: Job) -> None:
        job.run(20, 31)
        job.sql("DELETE FROM holdfast_progress WHERE sink = 'all' AND writer = 0")
        assert job.differing() == {("all", 0)}


class TestAuditOfASharedTable:
    """Two sinks of the job add to one table, and another job does or may."""

    @pytest.fixture
    def shared(self, tmp_path: Path, holdfast: Callable[..., Any]) -> Job:
        return Job(tmp_path, holdfast, SHARED)

    def lines(self, job: Job, sink: str) -> list[tuple[str, str]]:
        """Return verdict and reason for rows of older checkpoints."""
        return [
            (each["verdict"], each["reason"])
            for each in job.audit()["sinks"]
            if each["sink"] == sink and each["epoch"] is None
        ]

    def pretend(self, job: Job, sink: str) -> None:
        """Make one of the job's sinks look like another job's in the target."""
        with closing(sqlite3.connect(job.folder / "out.db")) as db, db:
            for table in ("holdfast_undo", "holdfast_progress", "holdfast_horizon"):
                db.execute(f"UPDATE {table} SET job = 'another', sink = 'theirs' WHERE sink = '{sink}'")

    def test_rows_of_each_sink_are_attributed_to_it(self, shared: Job) -> None:
        shared.run(20, 31, 7)
        assert verdicts(shared.audit(), "sinks") == {"proven"}
        shared.sql("INSERT INTO both SELECT * FROM both WHERE n = 3")
        assert {name for name, _ in shared.differing()} == {"even", "odd"}

    def test_a_changed_row_is_reported_for_its_own_sink(self, shared: Job) -> None:
        shared.run(20, 31, 7)
        shared.sql("UPDATE both SET word = 'z' WHERE n = 3")
        assert {name for name, _ in shared.differing()} == {"odd"}

    def test_older_rows_of_both_sinks_cannot_be_attributed_and_are_not_provable(self, shared: Job) -> None:
        shared.start_again(2, retention=Retention(2, 0, 100))
        shared.run(20, 31, 7, 12, 5, 3)
        assert self.lines(shared, "alone") == [("proven", "rows of older checkpoints")]
        ((verdict, reason),) = self.lines(shared, "even")
        assert (verdict, "sink 'odd'" in reason) == ("not provable", True)

    def test_known_rows_of_another_job_are_excluded(self, shared: Job) -> None:
        shared.run(20, 31, 7)
        self.pretend(shared, "odd")
        assert [verdict for verdict, _ in self.lines(shared, "even")] == ["proven"]
        assert [verdict for verdict, _ in self.lines(shared, "alone")] == ["proven"]

    def test_unknown_rows_of_another_job_are_not_reported_as_a_difference(self, shared: Job) -> None:
        shared.start_again(2, retention=Retention(2, 0, 100))
        shared.run(20, 31, 7, 12, 5, 3)
        self.pretend(shared, "odd")
        ((verdict, reason),) = self.lines(shared, "even")
        assert (verdict, "sink 'theirs' of another job" in reason) == ("not provable", True)
        shared.sql("DELETE FROM both WHERE n < 70")
        assert [verdict for verdict, _ in self.lines(shared, "even")] == ["differs"]


class TestAuditDuringARewind:
    """The checkpoints are read, then the job is rewound, then a target is read."""

    def audited(self, job: Job, rewinds: int) -> Report:
        due = iter(range(rewinds))

        def before() -> None:
            if next(due, None) is not None:
                job.rewind(2)

        table = next(s.sink for s in job.plan.sinks if s.name == "all")
        assert isinstance(table, hf.SQLite)
        overtaken = Overtaken(table, before)
        sinks = (replace(s, sink=overtaken) if s.name == "all" else s for s in job.plan.sinks)
        args = argparse.Namespace(epoch=None, first=None, last=None)
        return audited(lambda: open_job(str(job.folder / "root"), "words"), replace(job.plan, sinks=tuple(sinks)), args)

    def test_starts_over_after_one_rewind(self, job: Job) -> None:
        job.run(20, 31, 7)
        assert self.audited(job, rewinds=1).verdict == "proven"

    def test_gives_up_after_a_second_rewind(self, job: Job) -> None:
        job.run(20, 31, 7)
        with pytest.raises(Unavailable, match="rewound during the audit"):
            self.audited(job, rewinds=2)


class TestRowsOfNoKeptCheckpoint:
    """Keyed tables and logs are read back as far as checkpoints are kept; older rows are reported as such."""

    def unseen(self, job: Job, *arguments: str) -> dict[str, tuple[int | None, int | None]]:
        """Return, per sink with such rows, their number by the checkpoints and in the target."""
        contents = [
            each for each in job.audit(*arguments)["sinks"] if each["epoch"] is None and each["sink"] != "added"
        ]
        assert {each["verdict"] for each in contents} <= {"not provable"}
        return {each["sink"]: (each["rows"], each["found"]) for each in contents}

    def test_are_reported_for_every_table_with_a_key_and_every_log(self, job: Job) -> None:
        job.run(20, 31, 7)
        assert self.unseen(job) == {}
        job.start_again(2, retention=Retention(2, 0, 100))
        job.age()
        words = self.rows(job, "totals")
        found = self.unseen(job)
        assert found.keys() == {"all", "some", "changes", "some_changes", "copy", "dlq"}
        assert (found["all"][1], found["copy"], found["dlq"]) == (words, (53, None), (5, None))
        assert all(rows is not None and rows > 0 for rows, _ in found.values())
        assert job.audit()["verdict"] == "proven in part"

    def test_do_not_include_rows_rewritten_since(self, job: Job) -> None:
        job.start_again(2, retention=Retention(2, 0, 100))
        job.run(20, 31)
        job.age()
        words = self.rows(job, "totals")
        job.run(1)
        assert self.unseen(job)["all"][1] == words - 1

    def test_are_reported_even_if_all_of_them_were_deleted(self, job: Job) -> None:
        job.start_again(2, retention=Retention(2, 0, 100))
        job.run(20, 31)
        job.age()
        job.sql("DELETE FROM totals")
        assert self.unseen(job)["all"][1] == 0

    def test_include_rows_inserted_by_others(self, job: Job) -> None:
        job.run(20, 31)
        job.sql("INSERT INTO totals VALUES ('zz', 1, 1)")
        assert self.unseen(job) == {"all": (0, 1)}

    def test_are_not_counted_for_a_selection_of_checkpoints(self, job: Job) -> None:
        job.run(20, 31)
        job.sql("INSERT INTO totals VALUES ('zz', 1, 1)")
        newest = str(job.audit()["epochs"][-1]["epoch"])
        assert self.unseen(job, "--epoch", newest) == {}

    def rows(self, job: Job, table: str) -> int:
        with closing(sqlite3.connect(job.folder / "out.db")) as db:
            return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
