"""The data source `holdfast-checkpoints`, driven as Spark drives it, without Spark."""

from __future__ import annotations

import pickle
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType
from stored_state import app, bid, written_to

import holdfast as hf
from holdfast.errors import Unavailable
from holdfast.runtime.cli.main import main
from holdfast.runtime.inspect.stored import checkpoint_of, open_job
from holdfast.runtime.spark.tables import checkpoints_source
from holdfast.runtime.spark.tables.checkpoints_source import CheckpointsSource
from holdfast.testing import TestDriver


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a job that was rewound: the second of its three checkpoints is abandoned."""
    with TestDriver(app(), parallelism=2) as driver:
        driver.push("bids", [bid(1, "a", 1.0)])
        first = driver.checkpoint()
        driver.push("bids", [bid(1, "b", 1.0), bid(1, "c", 1.0)])
        driver.checkpoint()
        driver.rewind(first)
        driver.checkpoint()
        written_to(tmp_path, driver)
    return tmp_path


def read(folder: Path, **options: str) -> list[dict[str, Any]]:
    source = CheckpointsSource({"root": str(folder), "job": "hot"} | options)
    reader = pickle.loads(pickle.dumps(source.reader(source.schema())))  # noqa: S301 - made here
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


class TestCheckpointsSource:
    def test_there_is_a_row_per_checkpoint_in_the_order_of_epochs(self, root: Path) -> None:
        rows, retained = read(root), open_job(str(root), "hot").job.retained
        assert len(rows) == 3 and [row["epoch"] for row in rows] == [each.body.epoch for each in retained]
        assert [(row["timeline"], row["abandoned"]) for row in rows] == [(1, False), (1, True), (2, False)]
        assert [row["bytes_total"] for row in rows] == [each.body.bytes_total for each in retained]
        assert [row["completed_at"].timestamp() * 1e6 for row in rows] == [each.at for each in retained]

    def test_a_row_has_what_the_manifest_names(self, root: Path) -> None:
        first = read(root)[0]
        assert (first["parallelism"], first["kind"], first["names"]) == (2, "checkpoint", [])
        assert isinstance(first["completed_at"], datetime) and first["objects"] > 0
        assert {(at["source"], at["partition"]) for at in first["offsets"]} >= {("bids", 0)}
        assert [sum(at["offset"] for at in row["offsets"]) for row in read(root)] == [1, 3, 3]

    def test_a_savepoint_has_its_names(self, root: Path) -> None:
        for name in ("v1", "v2"):
            assert main(["savepoint", "hot", name, "--root", str(root)]) == 0
        assert [(row["kind"], row["names"]) for row in read(root)][1:] == [
            ("checkpoint", []),
            ("savepoint", ["v1", "v2"]),
        ]

    def test_what_a_damaged_manifest_named_is_unknown(self, root: Path) -> None:
        stored = open_job(str(root), "hot")
        damaged = checkpoint_of(stored.job, "latest").body
        (root / "hot" / damaged.manifest.path).write_bytes(b"{}")
        rows = read(root)
        assert [row["offsets"] is None for row in rows] == [False, False, True]
        assert (rows[2]["parallelism"], rows[2]["objects"], rows[2]["bytes_total"]) == (None, None, damaged.bytes_total)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"job": ""}, "no option 'job' is given"),
            ({"epoch": "1"}, "there is no option 'epoch'"),
            ({"job": "cold"}, "there is no job 'cold'"),
            ({"root": ""}, 'option("root") is empty'),
        ],
    )
    def test_wrong_options_are_refused_when_the_query_is_planned(
        self, root: Path, options: dict[str, str], said: str
    ) -> None:
        with pytest.raises(hf.ConfigError) as refused:
            read(root, **options)
        assert said in str(refused.value)

    def test_columns_that_it_does_not_have_are_refused(self, root: Path) -> None:
        source = CheckpointsSource({"root": str(root), "job": "hot"})
        with pytest.raises(hf.ConfigError, match="holdfast-checkpoints: there is no column 'x'"):
            source.reader(StructType([StructField("x", LongType())]))

    def test_a_root_that_is_unreachable_is_reported(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def away(root: str, job: str) -> None:
            raise Unavailable(f"{root} cannot be read", next_step="try again")

        monkeypatch.setattr(checkpoints_source, "open_job", away)
        with pytest.raises(Unavailable):
            read(root)
