"""A complete job in one thread that writes Parquet files: crashes, other drivers and writers, rewinds, a second job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from played_jobs import WordsJob

import holdfast as hf
from holdfast.runtime.config.settings import CONTINUOUS, MODES
from holdfast.runtime.driver.repair import unrepairable

WORDS = ["a", "b/c", ""]
NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)


@dataclass
class Said:
    n: int
    word: str
    at: datetime


class Job(WordsJob):
    """Copies rows into folders by word and day."""

    def __init__(self, folder: Path, mode: str) -> None:
        self.out = folder / "out"
        super().__init__(folder, mode, hf.Files(self.out, partition_by=["word"], date_of="at"), row_type=Said)

    def row(self, n: int) -> tuple[int, str, datetime]:
        return n, WORDS[n % len(WORDS)], NOON + timedelta(hours=7 * n)

    def rows(self) -> list[tuple[int, str, datetime]]:
        """Return the rows as a reader that knows nothing of Holdfast finds them."""
        text = pa.field("word", pa.string()), pa.field("date", pa.string())
        columns = pa.schema([pa.field("n", pa.int64()), pa.field("at", pa.timestamp("us", "UTC")), *text])
        found = ds.dataset(self.out, columns, format="parquet", partitioning="hive").to_table().to_pylist()
        for row in found:
            assert row["date"] == row["at"].date().isoformat()
        return sorted((row["n"], row["word"] or "", row["at"]) for row in found)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    return mode


@pytest.fixture
def start(tmp_path: Path) -> Callable[[str], Job]:
    return lambda mode: Job(tmp_path, mode)


class TestJob:
    def test_rows_are_exact_though_workers_crash_and_writers_change(
        self, start: Callable[[str], Job], mode: str
    ) -> None:
        job = start(mode)
        job.disturb()
        assert job.rows() == job.said
        assert {path.name for path in (job.out / "_holdfast").iterdir()} <= {"files.json", "commits", "staging"}
        assert not list((job.out / "_holdfast").rglob("*.staged"))

    def test_an_epoch_is_one_file_per_folder_whatever_the_number_of_writers(self, start: Callable[[str], Job]) -> None:
        job = start(CONTINUOUS)
        job.deliver(6)
        assert job.rows() == job.said
        commits = len(list((job.out / "_holdfast" / "commits").iterdir()))
        names = [path.name for path in job.out.rglob("part-*.parquet")]
        assert len({name.split("-")[1] for name in names}) <= commits <= 3
        assert len(names) <= 3 * 2 * commits, "three words, two days"

    def test_a_rewind_empties_files_and_ends_with_exact_rows(self, start: Callable[[str], Job], mode: str) -> None:
        job = start(mode)
        job.deliver(6)
        base = job.base()
        job.deliver(6)
        assert unrepairable(job.plan.sinks) == () and job.rows() == job.said
        before = {path: path.stat().st_size for path in job.out.rglob("part-*.parquet")}
        job.rewind(base)
        job.cluster.pass_time(3)
        assert job.rows() == job.said
        assert any(path.stat().st_size < size for path, size in before.items()), "nothing was emptied"
        job.finish()
        assert job.rows() == job.said


class TestASecondJob:
    def test_reads_what_the_first_one_wrote(self, start: Callable[[str], Job], tmp_path: Path) -> None:
        job = start(CONTINUOUS)
        job.say(12)
        job.finish()
        source = hf.Files(job.out, Said, partitions=1, bounded=True).source().in_folder(str(tmp_path / "job"))
        opened = source.copied(again=True).open()
        found, offset = list[dict[str, object]](), 0
        (end,) = opened.end_offsets().values()
        while offset < end:
            batch, offset = opened.read(0, offset, 1 << 20)
            if batch is not None:
                found += batch.to_pylist()
        opened.close()
        assert sorted((row["n"], row["word"], row["at"]) for row in found) == job.said
