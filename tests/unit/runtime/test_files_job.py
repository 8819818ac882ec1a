"""A complete job in one thread that reads files: crashes, other drivers, rewinds, files that appear, change and go."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from patience import wait

import holdfast as hf
from holdfast.errors import Damaged
from holdfast.runtime.config.settings import MODES
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.plan.source import copied, in_folder
from holdfast.runtime.rewind.sources import missing_records
from holdfast.runtime.sources.files.formats import FormatName
from holdfast.runtime.testing.cluster import Cluster
from holdfast.sinks.memory import MemorySink
from holdfast.state.keys.keygroups import range_of
from holdfast.storage.objects import MemoryObjects

WORDS = ["a", "b", "c"]


@dataclass
class Said:
    n: int
    word: str


class Job:
    """The job, its input and its results."""

    def __init__(
        self, folder: Path, mode: str, form: FormatName = "jsonl", parallelism: int = 2, bounded: bool = False
    ) -> None:
        self.inbox, self._folder, self._form = folder / "inbox", folder, form
        self.inbox.mkdir()
        self.said, self.files, self.damaged = list[tuple[int, str]](), 0, 0
        self.copy, self.totals, self.dead = MemorySink(None), MemorySink(("word",)), MemorySink(None)
        app = hf.App("words", checkpoint_every="1s", dlq=self.dead)
        rows = app.source("rows", hf.Files(self.inbox, Said, form, partitions=3, bounded=bounded))
        rows.sink("copy", self.copy)
        rows.key_by("word").agg("totals", rows=hf.count(), total=hf.sum("n")).sink("totals-out", self.totals)
        self._plan, self._mode, self._parallelism = app.plan(), mode, parallelism

    def begin(self) -> None:
        self.cluster = Cluster(
            self.bound(again=True), self._parallelism, 0, MemoryObjects(), 1.0, {"rows": (0, 1, 2)}, self._mode
        )
        self.cluster.begin()

    def bound(self, *, again: bool) -> Plan:
        """Return the plan as a start of the job makes it."""
        (spec,) = self._plan.sources
        source = copied(in_folder(spec.source, str(self._folder / "job")), again=again)
        source.open().partitions()
        return replace(self._plan, sources=(replace(spec, source=source),))

    def say(self, count: int) -> None:
        """Add three files; one of text has a line that is no record."""
        for _ in range(3):
            first = len(self.said)
            rows = [(n, WORDS[n % len(WORDS)]) for n in range(first, first + count)]
            self.said += rows
            beside, path = self._folder / "beside", self.inbox / f"part-{self.files:03}"
            if self._form == "parquet":
                table = pa.table({"word": [word for _, word in rows], "n": [n for n, _ in rows]})
                pq.write_table(table, beside, row_group_size=3)
            else:
                lines = [json.dumps({"n": n, "word": word}) for n, word in rows]
                beside.write_text("\n".join([*lines[:2], "damaged", *lines[2:]]) + "\n")
                self.damaged += 1
            beside.rename(path)
            self.files += 1

    def crash(self) -> None:
        """Kill a worker; in microbatch mode, the driver."""
        if self.cluster.members:
            self.cluster.crash(min(self.cluster.members))
        else:
            self.cluster.replace_driver()

    def until(self, met: Callable[[], bool], what: str) -> None:
        """Let time pass until a condition is met."""

        def passed() -> bool:
            self.cluster.pass_time(1.0)
            return met()

        wait(passed, what)

    def catch_up(self) -> None:
        """Let time pass until everything was delivered."""

        def done() -> bool:
            assert self.cluster.driver.outcome is None, self.cluster.driver.outcome
            return len(self.copy.rows()) >= len(self.said) and len(self.dead.rows()) >= self.damaged

        self.until(done, "all rows")
        self.cluster.pass_time(3.0)

    def check(self) -> None:
        assert Counter((row["n"], row["word"]) for row in self.copy.rows()) == Counter(self.said)
        totals = {row["word"]: (row["rows"], row["total"]) for row in self.totals.rows()}
        mine = {word: [n for n, said in self.said if said == word] for word in WORDS}
        assert totals == {word: (len(found), sum(found)) for word, found in mine.items()}
        assert [row["raw"] for row in self.dead.rows()] == [b"damaged"] * self.damaged


@pytest.mark.parametrize("mode", MODES)
class TestJob:
    @pytest.mark.parametrize("form", ["parquet", "jsonl"])
    def test_counts_every_record_once_through_crashes_and_new_files(
        self, tmp_path: Path, mode: str, form: FormatName
    ) -> None:
        job = Job(tmp_path, mode, form)
        job.say(10)
        job.begin()
        job.catch_up()
        job.check()
        job.crash()
        job.say(10)
        job.catch_up()
        job.check()
        job.say(50)
        job.cluster.pass_time(11)
        job.crash()
        job.cluster.replace_driver(job.bound(again=False))
        job.catch_up()
        job.check()

    def test_goes_on_with_another_parallelism(self, tmp_path: Path, mode: str) -> None:
        job = Job(tmp_path, mode)
        job.say(20)
        job.begin()
        job.catch_up()
        for parallelism in (1, 3):
            job.say(20)
            groups = job.cluster.rules.key_groups
            ranges = tuple(range_of(number, parallelism, groups) for number in range(parallelism))
            job.cluster.rules = replace(job.cluster.rules, key_ranges=ranges)
            job.cluster.replace_driver(job.bound(again=False))
            job.catch_up()
            job.check()

    def test_reads_the_files_again_after_a_rewind(self, tmp_path: Path, mode: str) -> None:
        job = Job(tmp_path, mode)
        job.say(5)
        job.begin()
        job.catch_up()
        before = job.cluster.driver.state.job
        job.say(15)
        job.catch_up()
        args = {"epoch": int(before.completed[-1].body.epoch), "timeline": before.timeline}
        answer = job.cluster.driver.asked("rewind", args, before.generation, before.generation)
        assert answer is not None and answer["accepted"], answer
        job.until(lambda: job.cluster.driver.state.job.timeline != before.timeline, "the rewind")
        job.catch_up()
        job.check()

    def test_knows_that_a_rewind_needs_a_file_that_is_gone(self, tmp_path: Path, mode: str) -> None:
        job = Job(tmp_path, mode)
        job.say(5)
        job.begin()
        job.catch_up()
        epoch = int(job.cluster.driver.state.job.completed[-1].body.epoch)
        job.say(5)
        job.catch_up()

        def missing() -> str | None:
            repository = job.cluster.repository
            read = repository.read_log()
            assert read is not None
            return missing_records(repository, read, epoch, job.bound(again=False))

        (job.inbox / "part-000").unlink()
        assert missing() is None, "it was read before the checkpoint"
        (job.inbox / "part-004").unlink()
        assert "rows" in (missing() or "")

    def test_ends_if_a_file_grows_after_it_was_read(self, tmp_path: Path, mode: str) -> None:
        job = Job(tmp_path, mode)
        job.say(5)
        job.begin()
        job.catch_up()
        with (job.inbox / "part-000").open("a") as file:
            file.write('{"n": 1, "word": "a"}\n')
        self.ends(job, "part-000")
        job.check()

    @pytest.mark.parametrize("change", ["gone", "replaced"])
    def test_ends_if_a_file_is_not_the_one_that_was_listed(self, tmp_path: Path, mode: str, change: str) -> None:
        job = Job(tmp_path, mode)
        job.say(5)
        job.begin()
        path = job.inbox / "part-001"
        path.unlink()
        if change == "replaced":
            path.write_text("{}\n")
        self.ends(job, "part-001")

    def test_that_is_bounded_finishes(self, tmp_path: Path, mode: str) -> None:
        job = Job(tmp_path, mode, bounded=True)
        job.say(20)
        job.begin()
        (job.inbox / "later").write_text('{"n": 1, "word": "a"}\n')
        job.until(lambda: job.cluster.driver.outcome is not None, "the end of the run")
        assert job.cluster.driver.outcome == ("finished", None)
        job.check()

    def ends(self, job: Job, name: str) -> None:
        job.until(lambda: job.cluster.driver.outcome is not None, "the end of the run")
        assert job.cluster.driver.outcome is not None
        outcome, error = job.cluster.driver.outcome
        assert outcome == "failed" and error is not None and error.kind == Damaged.kind and name in error.what
