"""Event times that no window or target can hold: the record fails when it comes, by the policy of its source."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from planned_source import PlannedSource

import holdfast as hf
from holdfast.runtime.rows.dead_letters import decode_row
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.time.windows import TIME, TIME_FIRST_US, TIME_LAST_US, Tumbling, event_times_held
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

IN_BOTH_MODES = True

INT64 = np.iinfo(np.int64)
DAY_US = 86_400_000_000
SIZE_US, LATENESS_US = 10_000_000, 5_000_000
EARLIEST, LATEST = TIME_FIRST_US + SIZE_US, TIME_LAST_US - SIZE_US - LATENESS_US
BAD = [int(INT64.min), int(INT64.min) + 1, TIME_FIRST_US - 1, EARLIEST - 1, LATEST + 1, TIME_LAST_US, int(INT64.max)]


@dataclass
class Bid:
    auction: str
    at: datetime


SCHEMA = schema_of(Bid)


def app_of(on_error: str | None, **given: Any) -> hf.App:
    app = hf.App("times", key_groups=8, dlq=MemorySink() if on_error == "dlq" else None)
    source: Any = PlannedSource(SCHEMA)
    bids = app.source("bids", source, event_time="at", on_error=on_error, **given)
    counted = bids.key_by("auction").window(hf.tumbling("10s"), allowed_lateness="5s").agg("hot", n=hf.count())
    counted.sink("out", MemorySink(key=counted.upsert_key))
    counted.late.sink("late", MemorySink())
    return app


def row(at_us: int) -> dict[str, Any]:
    return {"auction": "a", "at": pa.scalar(at_us, TIME)}


def push(t: TestDriver, *times: int) -> None:
    t.sources["bids"].tables[0] = pa.concat_tables(
        [t.sources["bids"].tables[0], pa.table([["a"] * len(times), pa.array(times).view(TIME)], schema=SCHEMA)]
    )
    t.checkpoint()


class TestEventTimeOutsideTheRange:
    @pytest.mark.parametrize("bad", BAD)
    def test_fails_the_job_at_the_record_with_on_error_fail(self, bad: int) -> None:
        with TestDriver(app_of("fail")) as t, pytest.raises(hf.JobFailed, match=r"offset 1 .*event time") as caught:
            push(t, 0, bad)
        assert "9999" in caught.value.what and "on_error" in caught.value.next_step

    @pytest.mark.parametrize("bad", BAD)
    def test_is_dropped_and_counted_with_on_error_drop(self, bad: int) -> None:
        with TestDriver(app_of("drop")) as t:
            push(t, 0, bad, SIZE_US)
            t.finish()
            assert [found["n"] for found in t.rows("out")] == [1, 1]
            assert t.rows("late") == []

    @pytest.mark.parametrize("bad", BAD)
    def test_is_a_dead_letter_with_on_error_dlq(self, bad: int) -> None:
        with TestDriver(app_of("dlq")) as t:
            push(t, bad, 0)
            t.finish()
            assert [found["n"] for found in t.rows("out")] == [1]
            (letter,) = t.rows("dlq")
            assert (letter["partition"], letter["offset"]) == (0, 0)
            assert decode_row(letter["raw"]).column("at").cast(pa.int64()).to_pylist() == [bad]

    def test_does_not_move_the_watermark(self) -> None:
        with TestDriver(app_of("drop")) as t:
            push(t, 0, int(INT64.max))
            phase = t.cluster.driver.state.phase
            assert {at.watermark for at in phase.last.positions} <= {0, None}  # type: ignore[union-attr]

    @pytest.mark.parametrize("good", [EARLIEST, LATEST, 0, -1])
    def test_does_not_affect_other_records(self, good: int) -> None:
        with TestDriver(app_of("fail")) as t:
            push(t, good)
            t.finish()
            (found,) = t.rows("out")
            assert found["window_start"] <= datetime.fromtimestamp(0, UTC) + (good * np.timedelta64(1, "us")).item()
            assert found["window_end"] - found["window_start"] == (SIZE_US * np.timedelta64(1, "us")).item()


class TestFunctionWithATimeOutsideTheRange:
    @pytest.mark.parametrize("bad", BAD)
    def test_fails_the_job_at_the_function_or_at_the_window_and_names_it(self, bad: int) -> None:
        def moved(batch: pa.RecordBatch) -> pa.RecordBatch:
            times = pa.array([bad] * batch.num_rows).view(TIME)
            return pa.RecordBatch.from_arrays([batch.column("auction"), times], schema=SCHEMA)

        app = hf.App("times", key_groups=8)
        source: Any = PlannedSource(SCHEMA)
        bids = app.source("bids", source, event_time="at").map_batches(moved, to=SCHEMA)
        window = bids.key_by("auction").window(hf.tumbling("10s"), allowed_lateness="5s")
        window.agg("hot", n=hf.count()).sink("out", MemorySink(key=["auction", "window_end"]))
        in_years = TIME_FIRST_US <= bad <= TIME_LAST_US
        where = "operator 'hot'.*event time" if in_years else "map_batches.*moved returned.*column 'at' has the value"
        with TestDriver(app) as t, pytest.raises(hf.JobFailed, match=where):
            push(t, 0)


class TestTheRange:
    def test_is_the_years_1_to_9999_without_windows(self) -> None:
        first, last = event_times_held([])
        assert np.datetime64(first, "us").item() == datetime(1, 1, 1)
        assert np.datetime64(last, "us").item() == datetime(9999, 12, 31, 23, 59, 59, 999_999)

    def test_leaves_room_for_the_longest_window_and_its_lateness(self) -> None:
        windows = [(Tumbling(SIZE_US), LATENESS_US), (Tumbling(7), 0)]
        assert event_times_held(windows) == (EARLIEST, LATEST)

    @pytest.mark.parametrize(("size", "lateness"), [("365001d", "0s"), ("1d", "365001d")])
    def test_a_window_longer_than_a_thousand_years_is_refused(self, size: str, lateness: str) -> None:
        bids = hf.App("x").source("bids", PlannedSource(SCHEMA), event_time="at")
        with pytest.raises(hf.ConfigError, match="1,000 years"):
            bids.key_by("auction").window(hf.tumbling(size), allowed_lateness=lateness)
