"""A function that ends its process at a record ends the job, or the record becomes a dead letter, as on_error says."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from running import running

import holdfast as hf
from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH

pytestmark = pytest.mark.e2e

JOB = Path(__file__).with_name("killing_job.py")
OTHERS = sorted(set(range(400)) - {77, 150})


def numbers(folder: Path) -> list[int]:
    with contextlib.closing(sqlite3.connect(folder / "out.db")) as database:
        return sorted(n for (n,) in database.execute("SELECT n FROM items"))


def letters(folder: Path) -> list[str]:
    return sorted(hf.log(str(folder / "dlq")).collect().get_column("error").to_list())


class TestAFunctionThatEndsItsProcess:
    @pytest.mark.parametrize(
        ("mode", "how", "cause"),
        [
            (CONTINUOUS, "exit", "its process ended with exit status 3"),
            (CONTINUOUS, "crash", "its process was killed by SIGSEGV"),
            (MICROBATCH, "crash", "Fatal Python error: Segmentation fault"),
        ],
    )
    def test_ends_the_job_and_is_named_with_the_offsets_and_the_cause(
        self, tmp_path: Path, mode: str, how: str, cause: str
    ) -> None:
        flags = "--parallelism", "1", "--mode", mode, "--every", "100ms"
        with running(tmp_path, *flags[: 4 if mode == CONTINUOUS else 6], job=JOB, KILLING_HOW=how) as run:
            assert run.finish() == 7, run.errors()
            said = run.errors()
        assert "the Python function of step 'map parse' ended its process 3 times at the same records" in said
        assert "source 'items', partition 0, offset" in said and cause in said

    @pytest.mark.parametrize("mode", [CONTINUOUS, MICROBATCH])
    def test_in_a_read_of_a_source_ends_the_job_and_is_named_with_the_partition_and_the_cause(
        self, tmp_path: Path, mode: str
    ) -> None:
        flags = "--parallelism", "1", "--mode", mode, "--every", "100ms"
        where = {"KILLING_HOW": "crash", "KILLING_WHERE": "read"}
        with running(tmp_path, *flags[: 4 if mode == CONTINUOUS else 6], job=JOB, **where) as run:
            assert run.finish() == 7, run.errors()
            said = run.errors()
        assert "a read of source 'items' ended its process 3 times at the same records" in said
        assert "source 'items', partition 0, offset" in said
        assert ("SIGSEGV" if mode == CONTINUOUS else "Fatal Python error: Segmentation fault") in said

    def test_behind_a_shuffle_leaves_the_rows_to_the_dead_letters_and_processes_all_others_once(
        self, tmp_path: Path
    ) -> None:
        environment = {"KILLING_HOW": "memory", "KILLING_WHERE": "process", "KILLING_ON_ERROR": "dlq"}
        with running(tmp_path, "--parallelism", "2", job=JOB, **environment) as run:
            assert run.finish() == 0, run.errors()
        assert numbers(tmp_path) == OTHERS
        assert [error.partition(": ")[2] for error in letters(tmp_path)] == [
            "Keep ended its process: its process was killed by SIGKILL"
        ] * 2
