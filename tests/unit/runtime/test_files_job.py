"""A complete job in one thread that reads files: crashes, other drivers, rewinds, files that appear, change and go."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from played_jobs import WORDS, ReadingJob, Said

import holdfast as hf
from holdfast.errors import Damaged
from holdfast.runtime.config.settings import MODES
from holdfast.runtime.rewind.sources import missing_records
from holdfast.runtime.sources.files.formats import FormatName


class Job(ReadingJob):
    """The job, its input and its results."""

    def __init__(self, folder: Path, mode: str, form: FormatName = "jsonl", bounded: bool = False) -> None:
        self.inbox, self._beside, self._form, self._mode = folder / "inbox", folder / "beside", form, mode
        self.inbox.mkdir()
        self.files = 0
        source = hf.Files(self.inbox, Said, form, partitions=3, bounded=bounded)
        super().__init__("words", source, folder / "job")

    def listed(self) -> None:
        """Start the job, which lists what is there."""
        self.begin(self._mode)

    def say(self, count: int) -> None:
        """Add three files; one of text has a line that is no record."""
        for _ in range(3):
            first = len(self.said)
            rows = [(n, WORDS[n % len(WORDS)]) for n in range(first, first + count)]
            self.said += rows
            beside, path = self._beside, self.inbox / f"part-{self.files:03}"
            if self._form == "parquet":
                table = pa.table({"word": [word for _, word in rows], "n": [n for n, _ in rows]})
                pq.write_table(table, beside, row_group_size=3)
            else:
                lines = [json.dumps({"n": n, "word": word}) for n, word in rows]
                beside.write_text("\n".join([*lines[:2], "damaged", *lines[2:]]) + "\n")
                self.damaged += 1
            beside.rename(path)
            self.files += 1


@pytest.mark.parametrize("mode", MODES)
class TestJob:
    @pytest.mark.parametrize("form", ["parquet", "jsonl"])
    def test_counts_every_record_once_through_crashes_and_new_files(
        self, tmp_path: Path, mode: str, form: FormatName
    ) -> None:
        job = Job(tmp_path, mode, form)
        job.say(10)
        job.listed()
        job.catch_up()
        job.check()
        job.crash()
        job.say(10)
        job.catch_up()
        job.check()
        job.say(50)
        job.cluster.pass_time(11)
        job.crash()
        job.cluster.replace_driver(job.restarted())
        job.catch_up()
        job.check()
        assert job.replay() > 2

    def test_goes_on_with_another_parallelism(self, tmp_path: Path, mode: str) -> None:
        job = Job(tmp_path, mode)
        job.say(20)
        job.listed()
        job.catch_up()
        for parallelism in (1, 3):
            job.say(20)
            job.start_again(parallelism)
            job.catch_up()
            job.check()

    def test_reads_the_files_again_after_a_rewind(self, tmp_path: Path, mode: str) -> None:
        job = Job(tmp_path, mode)
        job.say(5)
        job.listed()
        job.catch_up()
        base = job.base()
        job.say(15)
        job.catch_up()
        job.rewind(base)
        job.catch_up()
        job.check()

    def test_knows_that_a_rewind_needs_a_file_that_is_gone(self, tmp_path: Path, mode: str) -> None:
        job = Job(tmp_path, mode)
        job.say(5)
        job.listed()
        job.catch_up()
        epoch = job.base()
        job.say(5)
        job.catch_up()

        def missing() -> str | None:
            repository = job.cluster.repository
            read = repository.read_log()
            assert read is not None
            return missing_records(repository, read, epoch, job.restarted())

        (job.inbox / "part-000").unlink()
        assert missing() is None, "it was read before the checkpoint"
        (job.inbox / "part-004").unlink()
        assert "rows" in (missing() or "")

    def test_ends_if_a_file_grows_after_it_was_read(self, tmp_path: Path, mode: str) -> None:
        job = Job(tmp_path, mode)
        job.say(5)
        job.listed()
        job.catch_up()
        with (job.inbox / "part-000").open("a") as file:
            file.write('{"n": 1, "word": "a"}\n')
        job.ends(Damaged, "part-000")
        job.check()

    @pytest.mark.parametrize("change", ["gone", "replaced"])
    def test_ends_if_a_file_is_not_the_one_that_was_listed(self, tmp_path: Path, mode: str, change: str) -> None:
        job = Job(tmp_path, mode)
        job.say(5)
        job.listed()
        path = job.inbox / "part-001"
        path.unlink()
        if change == "replaced":
            path.write_text("{}\n")
        job.ends(Damaged, "part-001")

    def test_a_job_on_a_bounded_file_source_finishes(self, tmp_path: Path, mode: str) -> None:
        job = Job(tmp_path, mode, bounded=True)
        job.say(20)
        job.listed()
        (job.inbox / "later").write_text('{"n": 1, "word": "a"}\n')
        job.until(lambda: job.cluster.driver.outcome is not None, "the end of the run")
        assert job.cluster.driver.outcome == ("finished", None)
        job.check()
