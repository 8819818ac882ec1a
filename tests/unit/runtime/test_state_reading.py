"""The state of operators, read from the checkpoints of a job that runs in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_state import START, Bid, app, bid, labels, store_of, stored, written_to

import holdfast as hf
from holdfast.checkpoint.catalogue import Retention
from holdfast.checkpoint.manifest import OperatorState
from holdfast.runtime.inspect import objects, reading
from holdfast.runtime.inspect.comparison import differences
from holdfast.runtime.inspect.reading import StateReading, at_checkpoint, objects_of, parts_of, reading_of
from holdfast.runtime.inspect.sizes import size_of
from holdfast.runtime.inspect.view import view_of
from holdfast.runtime.time.windows import Windows
from holdfast.sinks.memory.sink import MemorySink
from holdfast.state.tables.spec import TableSpec
from holdfast.storage.local import LocalObjects
from holdfast.storage.objects import MemoryObjects
from holdfast.testing import TestDriver


def rows(read: StateReading) -> list[dict[str, Any]]:
    return [row for batch in read.batches() for row in batch.to_pylist()]


@pytest.fixture
def driver() -> Iterator[TestDriver]:
    with TestDriver(app()) as started:
        yield started


class TestText:
    """Text and nulls as state: in memory, after a crash and a rewind, and as readers find them."""

    def test_text_keys_survive_crashes_and_rewinds(self) -> None:
        with TestDriver(labels(), parallelism=2) as driver:
            driver.push("bids", [bid(1, "b", 1.0), bid(1, None, 1.0), bid(2, None, 1.0)])
            first = driver.checkpoint()
            driver.push("bids", [bid(1, "é", 1.0), bid(1, "", 1.0), bid(2, "x" * 200, 1.0)])
            driver.checkpoint()
            driver.crash()
            driver.recover()
            assert driver.state("labels", 1) == {"low.min": "", "top.max": "é", "n.count": 4}
            driver.push("bids", [bid(2, "y", 1.0)])
            driver.checkpoint()
            assert driver.state("labels", 2) == {"low.min": "x" * 200, "top.max": "y", "n.count": 3}
            [window] = [row for row in rows(reading_of(stored(store_of(driver)), "by_window")) if row["auction"] == 2]
            assert (window["low"], window["top"], window["n"]) == ("x" * 200, "y", 3)
            driver.rewind(first)
            assert driver.state("labels", 1) == {"low.min": "b", "top.max": "b", "n.count": 2}
            assert driver.state("labels", 2) == {"low.min": None, "top.max": None, "n.count": 1}

    def test_is_read_and_compared_from_checkpoints(self) -> None:
        with TestDriver(labels()) as driver:
            driver.push("bids", [bid(1, "b", 1.0), bid(2, None, 1.0), bid(3, "c", 1.0)])
            first = driver.checkpoint()
            driver.push("bids", [bid(1, "a", 1.0), bid(2, "z", 1.0)])
            driver.checkpoint()
            before, after = (reading_of(stored(store_of(driver)), "labels", at) for at in (str(first), None))
            assert before.view.schema.field("low").type == pa.string()
            shown = {row["auction"]: (row["low"], row["top"]) for row in rows(after)}
            assert shown == {1: ("a", "b"), 2: ("z", "z"), 3: ("c", "c")}
            changed = [row for batch in differences(before, after) for row in batch.to_pylist()]
            found = {row["key"]["auction"]: (row["before"]["low"], row["after"]["low"]) for row in changed}
            assert found == {1: ("b", "a"), 2: (None, "z")}

    def test_without_an_identity_has_the_columns_that_were_recorded(self) -> None:
        columns = [["note", "large_string?"], ["size", "int16?"], ["blob", "large_binary"], ["n", "int64"]]
        view = view_of(OperatorState("raw", 4, {"key": [["k", "int64"]], "columns": columns}))
        types = [(field.name, field.type, field.nullable) for field in view.schema][1:]
        assert types == [
            ("note", pa.large_string(), True),
            ("size", pa.int16(), True),
            ("blob", pa.large_binary(), False),
            ("n", pa.int64(), False),
        ]


def windowed(window: Windows) -> hf.App:
    job = hf.App("hot")
    bids = job.source("bids", hf.Generator(Bid, lambda i: bid(i, "a", 1.0), count=0), event_time="at")
    counted = bids.key_by("auction").window(window).agg("hot", n=hf.count())
    counted.sink("out", MemorySink())
    return job


class TestResults:
    def test_aggregates_have_their_names_and_values(self, driver: TestDriver) -> None:
        driver.push("bids", [bid(1, "a", 2.0, 3), bid(1, "a", 5.0, 1), bid(2, "b", None, 9)])
        epoch = driver.checkpoint()
        read = reading_of(stored(store_of(driver)), "places")
        assert (read.at.job, read.at.epoch, read.at.timeline, read.at.abandoned) == ("hot", epoch, 1, False)
        assert read.view.schema.names == ["place", "n", "avg", "last"]
        assert sorted(rows(read), key=lambda row: str(row["place"])) == [
            {"place": "a", "n": 2, "avg": 3.5, "last": START + timedelta(seconds=3)},
            {"place": "b", "n": 1, "avg": None, "last": START + timedelta(seconds=9)},
        ]

    def test_a_window_has_its_start_and_end_after_its_key(self, driver: TestDriver) -> None:
        driver.push("bids", [bid(1, "a", 2.0, 3), bid(1, "a", 4.0, 12)])
        driver.checkpoint()
        read = reading_of(stored(store_of(driver)), "hot")
        assert read.view.schema.names == ["auction", "place", "window_start", "window_end", "n", "avg", "last"]
        assert [(row["window_start"], row["window_end"], row["avg"]) for row in rows(read)] == [
            (START, START + timedelta(seconds=10), 2.0),
            (START + timedelta(seconds=10), START + timedelta(seconds=20), 4.0),
        ]

    def test_a_session_has_its_start_and_end(self) -> None:
        with TestDriver(windowed(hf.session("5s"))) as driver:
            driver.watermark("bids", START)  # the time of partitions without records
            driver.push("bids", [bid(1, "a", 2.0, 3), bid(1, "a", 4.0, 12), bid(1, "a", 4.0, 15)])
            driver.checkpoint()
            read = reading_of(stored(store_of(driver)), "hot")
            assert read.view.schema.names == ["auction", "window_start", "window_end", "n"]
            assert [((row["window_start"] - START).seconds, (row["window_end"] - START).seconds, row["n"])
                    for row in rows(read)] == [(3, 8, 1), (12, 20, 2)]  # fmt: skip
            [found] = {row["auction"] for row in rows(reading_of(stored(store_of(driver)), "hot", key="1"))}
            assert found == 1

    def test_windows_that_overlap_are_shown_as_slices(self) -> None:
        with TestDriver(windowed(hf.hopping("10s", every="5s"))) as driver:
            driver.watermark("bids", START)  # the time of partitions without records
            driver.push("bids", [bid(1, "a", 2.0, 3), bid(1, "a", 4.0, 12)])
            driver.checkpoint()
            read = reading_of(stored(store_of(driver)), "hot")
            assert read.view.schema.names == ["auction", "slice_start", "slice_end", "n"]
            assert [((row["slice_start"] - START).seconds, (row["slice_end"] - START).seconds, row["n"])
                    for row in rows(read)] == [(0, 5, 1), (10, 15, 1)]  # fmt: skip

    def test_closed_windows_are_not_read(self, driver: TestDriver) -> None:
        driver.push("bids", [bid(1, "a", 2.0, 3)])
        driver.checkpoint()
        driver.push("bids", [bid(1, "a", 2.0, 95)])
        driver.watermark("bids", START + timedelta(seconds=90))
        driver.checkpoint()
        assert [row["window_end"] for row in rows(reading_of(stored(store_of(driver)), "hot"))] == [
            START + timedelta(seconds=100)
        ]

    def test_the_state_of_other_operators_has_its_own_columns(self, driver: TestDriver) -> None:
        driver.push("bids", [bid(7, "a", 2.0, 3), bid(7, "b", 2.0, 4)])
        driver.checkpoint()
        [row] = rows(reading_of(stored(store_of(driver)), "firsts"))
        assert row == {"window_end": START + timedelta(hours=1), "auction": 7, "passed": START + timedelta(seconds=3)}

    def test_the_clock_of_an_operator_has_one_row_per_key_group(self, driver: TestDriver) -> None:
        at = START + timedelta(seconds=30)
        driver.push("bids", [bid(1, "a", 2.0, 3)])
        driver.watermark("bids", at)
        driver.checkpoint()
        clock = rows(reading_of(stored(store_of(driver)), "hot.clock"))
        assert clock == [{"key_group": group, "at": at} for group in range(128)]

    def test_the_last_watermark_is_the_end_of_time(self, driver: TestDriver) -> None:
        driver.push("bids", [bid(1, "a", 2.0, 3)])
        driver.finish()
        assert {row["at"].year for row in rows(reading_of(stored(store_of(driver)), "hot.clock"))} == {9999}
        assert rows(reading_of(stored(store_of(driver)), "hot")) == []

    def test_state_without_an_identity_is_shown_with_its_stored_columns(self) -> None:
        described = {
            "key": [["window_end", "timestamp[us, tz=UTC]"], ["k", "int64"]],
            "columns": [["n.count", "int64"]],
        }
        view = view_of(OperatorState("old", 3, described | {"window": "tumbling(5us, offset=0us)"}))
        assert (view.schema.names, view.key.unrouted) == (["window_end", "k", "n.count"], 1)


class TestKeys:
    @pytest.mark.parametrize(("key", "found"), [("a", 2), ("b", 1), ("c", 0), ("[null]", 1), ('["a"]', 2)])
    def test_one_key_is_found_among_many(self, driver: TestDriver, key: str, found: int) -> None:
        driver.push("bids", [bid(1, "a", 1.0), bid(1, "a", 1.0), bid(2, "b", 1.0), bid(2, None, 1.0)])
        driver.checkpoint()
        assert [row["n"] for row in rows(reading_of(stored(store_of(driver)), "places", key=key))] == [found] * bool(
            found
        )

    def test_a_key_of_windows_gives_all_its_windows(self, driver: TestDriver) -> None:
        driver.push("bids", [bid(1, "a", 1.0, 5 * i) for i in range(6)] + [bid(2, "a", 1.0)])
        driver.checkpoint()
        found = rows(reading_of(stored(store_of(driver)), "hot", key='[1, "a"]'))
        assert [(row["auction"], row["n"]) for row in found] == [(1, 2)] * 3

    def test_the_key_of_a_range_of_windows_does_not_contain_their_end(self, driver: TestDriver) -> None:
        driver.push("bids", [bid(1, "a", 1.0)])
        driver.checkpoint()
        with pytest.raises(hf.ConfigError, match="has 3 of 2 columns"):
            reading_of(stored(store_of(driver)), "hot", key='["2026-03-01T00:00:10Z", 1, "a"]')


Step = tuple[str, int]
steps = st.lists(
    st.tuples(st.sampled_from(["push", "push", "checkpoint", "crash", "rewind"]), st.integers(0, 9)), max_size=14
)


class TestHistories:
    @settings(deadline=None, max_examples=8)
    @given(steps, st.integers(1, 3), st.integers(0, 3))
    def test_every_kept_checkpoint_contains_the_state_as_of_its_epoch(
        self, plan: list[Step], workers: int, seed: int
    ) -> None:
        expected: dict[int, Counter[str]] = {}
        pushed: Counter[str] = Counter()
        with TestDriver(app(), parallelism=workers, seed=seed) as driver:
            for what, number in [*plan, ("push", 1), ("checkpoint", 0)]:
                if what == "push":
                    driver.push("bids", [bid(number, f"p{i}", 1.0, number) for i in range(number + 1)])
                    pushed.update(f"p{i}" for i in range(number + 1))
                elif what == "crash":
                    driver.crash(number % workers)
                    driver.recover()
                elif what == "checkpoint":
                    expected[driver.checkpoint()] = pushed.copy()
                elif completed := driver.cluster.driver.state.job.completed:
                    driver.rewind(completed[number % len(completed)].body.epoch)
            history = stored(store_of(driver))
        kept = [each.body.epoch for each in history.job.retained if each.body.epoch in expected]
        assert kept
        for epoch in kept:
            found = rows(reading_of(history, "places", str(epoch)))
            assert {row["place"]: row["n"] for row in found} == dict(expected[epoch])
            windows = rows(reading_of(history, "hot", str(epoch)))
            assert sum(row["n"] for row in windows) == expected[epoch].total()

    def test_state_of_an_abandoned_timeline_is_marked_as_abandoned(self, driver: TestDriver) -> None:
        driver.push("bids", [bid(1, "a", 1.0)])
        first = driver.checkpoint()
        driver.push("bids", [bid(1, "a", 1.0)])
        second = driver.checkpoint()
        driver.rewind(first)
        driver.push("bids", [bid(1, "a", 1.0)])
        driver.checkpoint()
        history = stored(store_of(driver))
        old, new = reading_of(history, "places", str(second)), reading_of(history, "places")
        assert (old.at.timeline, old.at.abandoned, rows(old)[0]["n"]) == (1, True, 2)
        assert (new.at.timeline, new.at.abandoned, rows(new)[0]["n"]) == (2, False, 3)


class TestRunningJob:
    """The job completes checkpoints, expires old ones and deletes their objects while it is read."""

    def test_rows_that_no_checkpoint_holds_yet_are_not_read(self, driver: TestDriver) -> None:
        driver.push("bids", [bid(1, "a", 1.0)])
        driver.checkpoint()
        driver.push("bids", [bid(1, "a", 1.0)])
        assert [row["n"] for row in rows(reading_of(stored(store_of(driver)), "places"))] == [1]

    def test_without_an_epoch_the_read_starts_over_on_the_newest(self, driver: TestDriver) -> None:
        driver.push("bids", [bid(1, "a", 1.0)])
        first = driver.checkpoint()
        read = reading_of(stored(Interrupted(store_of(driver), once(lambda: expire(driver)))), "places")
        assert read.at.epoch > first
        assert [row["n"] for row in rows(read)] == [4]

    def test_an_epoch_that_expires_during_the_read_is_refused_with_the_nearest(self, driver: TestDriver) -> None:
        driver.push("bids", [bid(1, "a", 1.0)])
        first = driver.checkpoint()
        history = stored(Interrupted(store_of(driver), once(lambda: expire(driver))))
        with pytest.raises(hf.ConfigError) as refused:
            reading_of(history, "places", str(first))
        oldest = stored(store_of(driver)).job.retained[0].body.epoch
        assert f"no checkpoint of epoch {first} any more" in refused.value.what
        assert f"the nearest: {oldest}" in refused.value.next_step

    def test_a_job_that_expires_every_checkpoint_before_it_is_read_is_unavailable(self, driver: TestDriver) -> None:
        driver.push("bids", [bid(1, "a", 1.0)])
        driver.checkpoint()
        with pytest.raises(hf.Unavailable, match="expired 5 checkpoints in a row"):
            reading_of(stored(Interrupted(store_of(driver), lambda: expire(driver))), "places")

    def test_a_missing_object_of_a_kept_checkpoint_is_damage(self, driver: TestDriver) -> None:
        driver.push("bids", [bid(1, "a", 1.0)])
        epoch = driver.checkpoint()
        store = store_of(driver)
        store.delete(store.list("segments")[0])
        with pytest.raises(hf.Damaged, match=f"checkpoint of epoch {epoch} of job 'hot' is damaged: .* is missing"):
            reading_of(stored(store), "places")

    def test_objects_deleted_after_they_were_gathered_do_not_matter(self, driver: TestDriver, tmp_path: Path) -> None:
        driver.push("bids", [bid(i, f"p{i}", 1.0) for i in range(50)])
        driver.checkpoint()
        written_to(tmp_path, driver)
        store = LocalObjects(tmp_path / "hot")
        read = reading_of(stored(store), "places")
        for path in store.list("segments"):
            store.delete(path)
        assert len(rows(read)) == 50

    def test_objects_above_the_memory_limit_are_read_from_files(
        self, driver: TestDriver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(objects, "MEMORY_BYTES", 0)
        driver.push("bids", [bid(i, f"p{i}", 1.0) for i in range(50)])
        driver.checkpoint()
        assert len(rows(reading_of(stored(store_of(driver)), "places"))) == 50


class TestDifferences:
    def test_keys_are_added_removed_and_changed(self, driver: TestDriver) -> None:
        driver.watermark("bids", START)  # the time of partitions without records
        driver.push("bids", [bid(1, "a", 1.0, 3), bid(1, "b", 1.0, 3), bid(1, "a", 1.0, 95)])
        first = driver.checkpoint()
        driver.push("bids", [bid(1, "a", 1.0, 95), bid(1, "c", 1.0, 95)])
        driver.watermark("bids", START + timedelta(seconds=90))
        driver.checkpoint()
        history = stored(store_of(driver))
        found = differences(reading_of(history, "hot", str(first)), reading_of(history, "hot"))
        listed = [row for batch in found for row in batch.to_pylist()]
        shown = {
            (row["change"], row["key"]["place"], *((row[side] or {}).get("n") for side in ("before", "after")))
            for row in listed
        }
        assert shown == {
            ("removed", "a", 1, None),
            ("removed", "b", 1, None),
            ("changed", "a", 1, 2),
            ("added", "c", None, 1),
        }

    def test_two_reads_of_one_epoch_do_not_differ(self, driver: TestDriver) -> None:
        driver.push("bids", [bid(1, "a", None)])
        driver.checkpoint()
        read = reading_of(stored(store_of(driver)), "places")
        assert list(differences(read, read)) == []

    def test_another_operator_is_refused(self, driver: TestDriver) -> None:
        driver.push("bids", [bid(1, "a", None)])
        driver.checkpoint()
        history = stored(store_of(driver))
        with pytest.raises(hf.ConfigError, match="has other columns"):
            differences(reading_of(history, "hot"), reading_of(history, "places"))


class TestSizes:
    def test_counted_rows_are_live_rows_and_add_up(self, driver: TestDriver) -> None:
        driver.push("bids", [bid(1, f"p{i}", 1.0) for i in range(40)])
        driver.checkpoint()
        driver.push("bids", [bid(1, f"p{i}", 1.0) for i in range(60)])
        driver.checkpoint()
        history, whole = stored(store_of(driver)), (0, 128)
        size = at_checkpoint(
            history,
            None,
            lambda at, manifest: size_of(
                "places",
                parts_of(manifest, objects_of(history, manifest, whole), spec_of(manifest.operators, "places"), whole),
                128,
            ),
        )
        assert size.rows == sum(each.rows for each in size.subtasks) == 60
        assert sum(each.base.rows + each.tail.rows for each in size.subtasks) == 100
        assert size.bytes == sum(each.base.bytes + each.tail.bytes for each in size.subtasks)
        assert [rows for _, rows in size.largest] == sorted((rows for _, rows in size.largest), reverse=True)


class TestFrame:
    def test_the_package_can_be_called_as_the_function(self, driver: TestDriver, tmp_path: Path) -> None:
        driver.push("bids", [bid(1, "a", 2.0), bid(1, "b", 4.0)])
        epoch = driver.checkpoint()
        driver.push("bids", [bid(1, "a", 4.0)])
        driver.checkpoint()
        written_to(tmp_path, driver)
        frame = hf.state("hot", "places", root=str(tmp_path)).sort("place")
        assert frame["avg"].to_list() == [3.0, 4.0]
        assert hf.state("hot", "places", epoch, root=str(tmp_path)).sort("place")["avg"].to_list() == [2.0, 4.0]

    def test_an_operator_without_state_gives_a_frame_without_rows(self, driver: TestDriver, tmp_path: Path) -> None:
        driver.push("bids", [bid(1, "a", 2.0)])
        driver.finish()
        written_to(tmp_path, driver)
        frame = hf.state("hot", "hot", root=str(tmp_path))
        assert frame.is_empty() and frame.columns[-3:] == ["n", "avg", "last"]

    @pytest.mark.parametrize("epoch", [1.5, True, b"x"])
    def test_an_argument_that_is_no_epoch_is_refused(self, tmp_path: Path, epoch: Any) -> None:
        with pytest.raises(hf.ConfigError, match="epoch is"):
            hf.state("hot", "places", epoch, root=str(tmp_path))


class TestBatches:
    def test_small_batches_are_joined(self) -> None:
        small = [pa.record_batch({"n": [number]}) for number in range(7)]
        assert [batch.num_rows for batch in reading.gathered(iter(small), 3)] == [3, 3, 1]


class Interrupted(MemoryObjects):
    """A store in which something happens just before a manifest is read."""

    def __init__(self, inner: MemoryObjects, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self._objects, self._lock, self._meanwhile = inner._objects, inner._lock, meanwhile

    def get(self, path: str) -> bytes:
        if path.startswith("manifests/"):
            self._meanwhile()
        return super().get(path)


def once(act: Callable[[], object]) -> Callable[[], object]:
    left = [act]
    return lambda: left.pop()() if left else None


def expire(driver: TestDriver) -> None:
    """Let the job, which keeps only its newest checkpoint, complete others."""
    loop = driver.cluster.driver
    loop._master = replace(loop.state, rules=replace(loop.state.rules, retention=Retention(1, age_us=0)))
    for _ in range(3):
        driver.push("bids", [bid(1, "a", 1.0)])
        driver.checkpoint()


def spec_of(operators: tuple[OperatorState, ...], name: str) -> TableSpec:
    return view_of(next(each for each in operators if each.name == name)).spec
