"""Jobs that read and write logs while these are compacted, through crashes, restarts and rewinds."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError
from holdfast.runtime.audit import reading as audit_reading
from holdfast.runtime.job.redrive import Redrive
from holdfast.runtime.plan.source import OFFSETS, OpenSource
from holdfast.runtime.rewind.plan import check, plan_of
from holdfast.runtime.rewind.sources import missing_records
from holdfast.runtime.rows.dead_letters import DEAD_LETTERS
from holdfast.runtime.sources.reading import Reading, arrived
from holdfast.runtime.testing.cluster import Cluster
from holdfast.storage.log.compaction import Compactor, Wishes
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.log.partitioning import partition_rows
from holdfast.storage.objects import LocalObjects, MemoryObjects

pytestmark = pytest.mark.thorough

WORDS = ["a", "b", "c", "d", "e", "f"]
SCHEMA = pa.schema([("n", pa.int64()), pa.field("word", pa.utf8(), nullable=False)])
EVERYTHING = Wishes(0, 10**15)


@dataclass
class Said:
    n: int
    word: str


class Job:
    """A job over a log with a key, with a table, another log and a DLQ as its targets."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.random, self.folder, self.said = random.Random(seed), folder, list[tuple[int | None, str]]()
        create_log(LocalObjects(folder / "input"), SCHEMA, key=["word"])
        self._input = LogWriter(LocalObjects(folder / "input"))
        app = hf.App("words", checkpoint_every="1s", dlq=hf.Log(folder / "dead"))
        rows = app.source("rows", hf.Log(folder / "input", Said))
        rows.sink("copy", hf.Log(folder / "copy", key=["word"]))
        totals = rows.key_by("word").agg("totals", rows=hf.count(), top=hf.max("n"))
        totals.sink("all", hf.SQLite(folder / "out.db", "totals", ["word"]))
        totals.sink("changes", hf.Log(folder / "changes", key=["word"]))
        self.plan = app.plan()
        for spec in self.plan.sinks:
            spec.sink.prepare(spec.schema, spec.upsert_key)
        self.store = MemoryObjects()
        self.cluster = Cluster(self.plan, 2, seed, self.store, 1.0, {"rows": (0, 1, 2, 3)})

    def say(self, count: int, nulls: bool = False) -> None:
        rows: list[tuple[int | None, str]] = []
        for _ in range(count):
            null = nulls and self.random.random() < 0.3
            rows.append((None if null else len(self.said) + len(rows), self.random.choice(WORDS)))
        self.said += rows
        table = pa.Table.from_pylist([{"n": n, "word": word} for n, word in rows], SCHEMA)
        for start in range(0, count, 7):
            self._input.append(partition_rows(table.slice(start, 7), ["word"], 4))

    def compact(self, log: str = "input") -> None:
        Compactor(LocalObjects(self.folder / log), pause=lambda _: None).compact(EVERYTHING)

    def rows(self, log: str) -> list[tuple[int, int, dict[str, Any]]]:
        """Return partition, offset and row of everything in a log."""
        reader, found = LogReader(LocalObjects(self.folder / log)), []
        for partition in range(reader.meta.partitions):
            batch, offsets, at = reader.read_placed(partition, 0, 1 << 30)
            while batch is not None:
                places = range(at - batch.num_rows, at) if offsets is None else offsets.tolist()
                found += [(partition, place, row) for place, row in zip(places, batch.to_pylist(), strict=True)]
                batch, offsets, at = reader.read_placed(partition, at, 1 << 30)
        return found

    def as_table(self, log: str) -> list[dict[str, Any]]:
        return hf.log(self.folder / log, as_table=True).collect().to_dicts()

    def table(self) -> dict[str, tuple[int, int]]:
        with closing(sqlite3.connect(self.folder / "out.db")) as db:
            return {word: (rows, top) for word, rows, top in db.execute("SELECT word, rows, top FROM totals")}

    def last(self) -> dict[str, int]:
        return {word: n for n, word in self.said if n is not None}

    def log(self) -> Any:
        return Repository(self.store).read_log()


class TestJobOnACompactedLog:
    def test_reads_the_remaining_rows_once_and_continues(self, tmp_path: Path) -> None:
        job = Job(tmp_path)
        job.say(100)
        job.compact()
        job.say(5)
        left = [row["word"] for _, _, row in job.rows("input")]
        assert len(left) == len(WORDS) + 5
        job.cluster.begin()
        job.cluster.pass_time(5.0)
        assert job.table() == {word: (left.count(word), job.last()[word]) for word in WORDS}

    def test_dead_letters_name_the_offsets_of_the_records(self, tmp_path: Path) -> None:
        job = Job(tmp_path)
        job.say(60, nulls=True)
        job.compact()
        job.say(30, nulls=True)
        job.cluster.begin()
        job.cluster.pass_time(5.0)
        dead = [(row["partition"], row["offset"]) for _, _, row in job.rows("dead")]
        assert sorted(dead) == [(p, offset) for p, offset, row in job.rows("input") if row["n"] is None]
        assert dead

    @pytest.mark.parametrize("seed", range(4))
    def test_no_key_loses_its_last_row_whatever_fails_during_compactions(self, tmp_path: Path, seed: int) -> None:
        job = Job(tmp_path, seed)
        job.cluster.begin()
        rng = random.Random(f"{seed}/steps")
        for _ in range(25):
            match rng.choice(["say", "say", "input", "copy", "changes", "worker", "driver", "time"]):
                case "say":
                    job.say(rng.randrange(1, 40))
                case "input" | "copy" | "changes" as log:
                    job.compact(log)
                case "worker":
                    if alive := list(job.cluster.members):
                        job.cluster.crash(rng.choice(alive))
                case "driver":
                    job.cluster.replace_driver()
            job.cluster.pass_time(rng.choice([0.1, 0.5, 1.5]))
        job.say(1)
        job.cluster.pass_time(30.0)
        table, copy = job.table(), [row["n"] for _, _, row in job.rows("copy")]
        assert {word: top for word, (_, top) in table.items()} == job.last()
        assert {row["word"]: (row["rows"], row["top"]) for row in job.as_table("changes")} == table
        assert len(copy) == len(set(copy)) and set(job.last().values()) <= set(copy)
        said = [word for _, word in job.said]
        assert all(rows <= said.count(word) for word, (rows, _) in table.items())


class TestRewind:
    @pytest.fixture
    def job(self, tmp_path: Path) -> Job:
        made = Job(tmp_path)
        made.cluster.begin()
        for _ in range(2):
            made.say(40)
            made.cluster.pass_time(4.0)
        return made

    def test_a_rewind_over_records_that_all_exist_is_possible(self, job: Job) -> None:
        assert missing_records(Repository(job.store), job.log(), self.first(job), job.plan) is None

    def test_a_rewind_over_compacted_records_is_refused(self, job: Job) -> None:
        job.compact()
        reason = missing_records(Repository(job.store), job.log(), self.first(job), job.plan)
        assert reason is not None and "no longer exist" in reason
        job.cluster.driver.stop()
        job.cluster.pass_time(5.0)
        base = next(each for each in job.log().completed if each.body.epoch == self.first(job))
        shown = plan_of(Repository(job.store), job.log(), base, job.plan, stop=False, clock=job.cluster.clock)
        assert False in [at["available"] for at in shown["sources"]]
        with pytest.raises(ConfigError, match="no longer exist"):
            check(shown, ())

    def test_a_rewind_that_would_undo_compacted_output_is_refused(self, job: Job) -> None:
        job.compact("copy")
        base = next(each for each in job.log().completed if each.body.epoch == self.first(job))
        shown = plan_of(Repository(job.store), job.log(), base, job.plan, stop=False, clock=job.cluster.clock)
        verdicts = {sink["name"]: sink["verdict"] for sink in shown["sinks"]}
        assert verdicts["copy"] == "impossible" and verdicts["all"] == "overwrite"

    def test_a_rewind_that_rereads_nothing_is_possible(self, job: Job) -> None:
        job.compact()
        assert missing_records(Repository(job.store), job.log(), job.log().base_epoch, job.plan) is None

    @staticmethod
    def first(job: Job) -> int:
        return int(job.log().completed[0].body.epoch)


class TestRedrive:
    def test_a_redrive_of_a_compacted_record_is_refused_and_uses_no_other_record(self) -> None:
        dead, log = MemoryObjects(), MemoryObjects()
        create_log(log, SCHEMA, partitions=1, key=["word"])
        LogWriter(log).append({0: pa.Table.from_pylist([{"n": n, "word": "a"} for n in (1, 2)], SCHEMA)})
        Compactor(log, pause=lambda _: None).compact(EVERYTHING)
        create_log(dead, DEAD_LETTERS, partitions=1)
        letter = {"operator": "f", "source": "rows", "partition": 0, "error": "so", "form": "row", "raw": b"?"}
        letters = [{**letter, "offset": 0}, {**letter, "offset": 1}]
        LogWriter(dead).append({0: pa.Table.from_pylist(letters, DEAD_LETTERS)})
        count = Redrive("rows", dead, log, log).plan()
        assert count.records == 1
        assert dict(count.unfit) == {"a rewind of its writer, or a compaction, removed the record": 1}


class TestArrived:
    @settings(max_examples=200, deadline=None)
    @given(
        st.lists(st.integers(0, 60), unique=True, min_size=1, max_size=20),
        st.one_of(st.none(), st.integers(1, 60)),
        st.one_of(st.none(), st.integers(1, 7)),
    )
    def test_rows_with_gaps_arrive_once_with_their_offset_however_they_are_cut(
        self, places: list[int], until: int | None, rows_max: int | None
    ) -> None:
        places = sorted(places)
        reading = Reading("rows", 0, 0, cast("OpenSource", None), 0, until=until)
        found: list[tuple[int, int]] = []
        while not reading.caught_up() and (left := [place for place in places if place >= reading.offset]):
            batch = pa.RecordBatch.from_arrays([pa.array(left), pa.array(np.array(left, np.int64))], ["n", OFFSETS])
            taken, arrival = arrived(reading, batch, left[-1] + 1, rows_max)
            assert taken.schema.names == ["n"] and 0 < taken.num_rows <= (rows_max or len(left))
            found += [(number, arrival.offset_of(row)) for row, number in enumerate(taken.column("n").to_pylist())]  # type: ignore[misc]
            assert arrival.following is not None and arrival.following > reading.offset
            reading.offset = arrival.following
        assert found == [(place, place) for place in places[: len(found)]]
        if until is None:
            assert len(found) == len(places)
        else:
            assert len(found) >= len([place for place in places if place < until])


class TestAudit:
    def test_an_audit_reports_compacted_rows_as_not_provable(self, tmp_path: Path) -> None:
        job = Job(tmp_path)
        job.cluster.begin()
        job.say(40)
        job.cluster.pass_time(4.0)
        job.compact()
        job.compact("copy")
        reached = job.log().base_epoch
        job.say(40)
        job.cluster.pass_time(4.0)
        repository = Repository(job.store)
        manifests = [repository.load_manifest(done.body.manifest) for done in job.log().completed]
        epochs: set[int] = {manifest.epoch for manifest in manifests}
        sinks = audit_reading.sinks(repository, job.log(), job.plan.sinks, manifests, epochs)
        lines = [*audit_reading.sources(job.plan.sources, manifests), *(line for line in sinks if line.name == "copy")]
        for line in lines:
            old = line.epoch is not None and line.epoch <= reached
            assert line.verdict == "proven" or (line.verdict == "not provable" and old), line
        for kind in ("source", "sink"):
            found = {line.verdict for line in lines if line.kind == kind and line.rows}
            assert found == {"proven", "not provable"}
