"""What a rewind reads again of its sources: the plan and the driver go by the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.manifest import Manifest
from holdfast.model import Epoch, Generation, JobUuid, SourcePosition, Timeline
from holdfast.runtime.plan.model import SourceSpec
from holdfast.runtime.rewind.sources import first_missing, source_rows
from holdfast.storage.log.compaction import Compactor, Wishes
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects
from holdfast.traits import SourceTraits

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])


@pytest.fixture
def sources(tmp_path: Path) -> list[SourceSpec]:
    """A log of one partition that is complete from offset 2 on."""
    create_log(LocalObjects(tmp_path), SCHEMA, 1, ["k"])
    LogWriter(LocalObjects(tmp_path)).append({0: pa.table({"k": [1, 2, 1, 2], "v": [1] * 4}, SCHEMA)})
    Compactor(LocalObjects(tmp_path), pause=lambda _: None).compact(Wishes(0, 10**15))
    return [SourceSpec("log", hf.Log(tmp_path).source(), 0)]


def at(*offsets: int | None) -> Manifest:
    """Return a checkpoint in which the partitions from 0 on have these offsets; None: it does not know that one."""
    positions = tuple(SourcePosition("log", p, o, None) for p, o in enumerate(offsets) if o is not None)
    return Manifest(JobUuid("job"), Generation(1), Timeline(1), Epoch(1), Epoch(0), 1, 128, positions, (), (), (), ())


class Gone:
    """A source that is open, and whose only partition was deleted."""

    traits = SourceTraits(kind="Gone", local_paths=(), loses_partitions=True)

    def open(self) -> Any:
        return self

    def partitions(self) -> list[int]:
        return [0]

    def retention_start(self, _partition: int) -> int:
        return 0

    def whole_from(self, _partition: int) -> int:
        return 1 << 62

    def gone(self, _partition: int) -> str:
        return "it was deleted"

    def close(self) -> None:
        pass


class TestSourceRows:
    def test_contain_the_distance_of_each_partition(self, sources: list[SourceSpec]) -> None:
        assert source_rows(at(2), at(4), sources) == [
            {"name": "log", "partition": 0, "from_offset": 4, "to_offset": 2, "records": 2, "available": True}
        ]

    @pytest.mark.parametrize(("back", "available"), [(-1, False), (0, False), (1, False), (2, True), (4, True)])
    def test_contain_whether_the_records_exist(self, sources: list[SourceSpec], back: int, available: bool) -> None:
        (row,) = source_rows(at(back), at(4), sources)
        assert row["available"] is available
        assert (first_missing([row]) is None) == available

    def test_source_rows_of_an_unknown_position_have_no_offset_and_require_the_first_record(
        self, sources: list[SourceSpec]
    ) -> None:
        (row,) = source_rows(at(-1), at(4), sources)
        assert (row["to_offset"], row["records"]) == (None, None)
        assert first_missing([row]) == "source 'log', partition 0: some of its records from offset 0 on no longer exist"

    def test_include_partitions_that_only_one_checkpoint_contains(self, sources: list[SourceSpec]) -> None:
        (row,) = source_rows(at(0), at(None), sources)
        assert (row["from_offset"], row["records"], row["available"]) == (None, None, False)
        (row,) = source_rows(at(None), at(4), sources)
        assert (row["from_offset"], row["to_offset"], row["records"], row["available"]) == (4, 0, 4, None)
        (row,) = source_rows(at(None), at(4), [])
        assert (row["from_offset"], row["to_offset"], row["records"], row["available"]) == (4, None, None, None)

    def test_source_rows_of_a_partition_added_later_start_at_its_first_record(self, tmp_path: Path) -> None:
        create_log(LocalObjects(tmp_path), SCHEMA, 1)
        writer = LogWriter(LocalObjects(tmp_path))
        writer.widen(2)
        writer.append({1: pa.table({"k": [1, 2, 1, 2], "v": [1] * 4}, SCHEMA)})
        _, row = source_rows(at(0), at(0, 3), [SourceSpec("log", hf.Log(tmp_path).source(), 0)])
        wanted = {"name": "log", "partition": 1, "from_offset": 3, "to_offset": 0, "records": 3, "available": True}
        assert row == wanted

    @pytest.mark.parametrize(
        ("back", "now", "available"),
        [(2, 4, False), (4, 4, True), (None, 4, False), (-1, 4, False), (None, 0, None), (None, -1, None)],
    )
    def test_source_rows_of_a_missing_partition_have_the_reason_if_it_would_be_reread(
        self, back: int | None, now: int, available: bool | None
    ) -> None:
        (row,) = source_rows(at(back), at(now), [SourceSpec("log", cast(Any, Gone()), 0)])
        assert (row["available"], row.get("reason")) == (available, "it was deleted" if available is False else None)
        gone = f"source 'log', partition 0: it was deleted, and its records from offset {max(back or 0, 0)} on would "
        assert first_missing([row]) == (f"{gone}have to be read again" if available is False else None)

    def test_the_availability_of_unreachable_sources_is_unknown_and_blocks_nothing(self) -> None:
        rows = source_rows(at(0), at(4), [])
        assert rows[0]["available"] is None and first_missing(rows) is None

    def test_without_records_to_reread_require_nothing(self, sources: list[SourceSpec]) -> None:
        assert first_missing(source_rows(at(1), at(1), sources)) is None
