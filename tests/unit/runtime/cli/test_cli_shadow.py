"""`holdfast shadow` on a root and a log on disk: two versions of a job's file."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from holdfast.runtime.cli.main import main
from holdfast.runtime.cli.replay import shadow as command
from holdfast.runtime.cli.start.jobfile import load
from holdfast.runtime.testing.cluster import Cluster
from holdfast.storage.local import LocalObjects
from holdfast.storage.log.log import LogWriter, create_log

JOB = """
from dataclasses import dataclass
import holdfast as hf

@dataclass
class Sale:
    shop: str
    amount: float

def priced(sale: Sale) -> Sale:
    return Sale(sale.shop, sale.amount)

app = hf.App("sales", root={root!r})
sales = app.source("sales", hf.Log({folder!r} + "/sales", Sale))
priced = sales.map(priced, to=Sale)
totals = priced.key_by("shop").agg("totals", sales=hf.count(), turnover=hf.sum("amount"))
totals.sink("out", hf.SQLite({folder!r} + "/totals.db", table="totals", key=["shop"]))
priced.sink("all", hf.Log({folder!r} + "/copy"))
"""
SCHEMA = pa.schema([pa.field("shop", pa.string(), nullable=False), pa.field("amount", pa.float64(), nullable=False)])


class Job:
    """The job on disk, run in this process, with a second version of its file, and commands on both."""

    text, schema = JOB, SCHEMA

    def __init__(self, folder: Path, holdfast: Callable[..., Any]) -> None:
        self.folder, self.file, self.new, self.holdfast = folder, folder / "job.py", folder / "new.py", holdfast
        self.file.write_text(self.code())
        create_log(LocalObjects(folder / "sales"), self.schema, 2)
        self.input = LogWriter(LocalObjects(folder / "sales"))
        plan = load(str(self.file)).plan()
        for spec in plan.sinks:
            spec.sink.prepare(spec.schema, spec.upsert_key)
        self.cluster = Cluster(plan, 2, 1, LocalObjects(folder / "root" / "sales"), 1.0, {"sales": (0, 1)})
        self.cluster.begin()
        self.epochs: list[int] = []

    def code(self, *changes: tuple[str, str]) -> str:
        code = self.text.format(root=str(self.folder / "root"), folder=str(self.folder))
        for before, after in changes:
            assert before in code
            code = code.replace(before, after)
        return code

    def epoch(self, *rows: tuple[str, float], partition: int = 0) -> None:
        given = [{"shop": shop, "amount": amount} for shop, amount in rows]
        self.input.append({partition: pa.Table.from_pylist(given, schema=SCHEMA)})
        self.cluster.pass_time(2.5)
        assert self.cluster.driver.outcome is None
        self.epochs.append(self.cluster.driver.state.job.base_epoch)

    def shadow(self, *arguments: str, changes: tuple[tuple[str, str], ...] = ()) -> Any:
        self.new.write_text(self.code(*changes))
        return self.holdfast("shadow", str(self.file), str(self.new), *arguments)


@pytest.fixture
def job(tmp_path: Path, holdfast: Callable[..., Any]) -> Job:
    job = Job(tmp_path, holdfast)
    job.epoch(("north", 2.5), ("south", 4.0))
    job.epoch(("north", 100.0), ("south", 1.0), ("north", 1.5), partition=1)
    return job


DOUBLED = (("sale.amount)", "sale.amount * 2 if sale.shop == 'north' else sale.amount)"),)
FILTERED = (("sales.map(priced", "sales.filter(lambda r: r.shop != 'south').map(priced"),)


class TestShadow:
    def test_the_same_code_is_equal(self, job: Job) -> None:
        ended = job.shadow("--json")
        assert ended.status == 0, ended
        found = ended.json
        assert (found["equal"], found["from"], found["epochs"], found["records"]) == (True, None, job.epochs, 5)
        assert found["replay"] == {"exact": True, "unknown": None, "differences": []}
        assert [(each["name"], each["before"], each["after"], each["differ"]) for each in found["sinks"]] == [
            ("out", 4, 4, 0),
            ("all", 5, 5, 0),
        ]
        assert [(each["name"], each["before"], each["after"]) for each in found["operators"]] == [("totals", 2, 2)]

    def test_one_epoch_shows_rows_and_keys_side_by_side(self, job: Job) -> None:
        ended = job.shadow("--from", str(job.epochs[0]), "--json", changes=DOUBLED)
        assert ended.status == 4, ended
        found = ended.json
        assert (found["from"], found["epochs"], found["records"]) == (job.epochs[0], job.epochs[1:], 3)
        out, everything = found["sinks"]
        assert (out["differ"], everything["differ"], everything["before"]) == (1, 2, 3)
        [first] = out["first"]
        assert (first["change"], first["key"]) == ("changed", {"shop": "north"})
        assert first["before"] == {"shop": "north", "sales": 3, "turnover": 104.0}
        assert first["after"] == {"shop": "north", "sales": 3, "turnover": 205.5}
        pairs = [(each["before"]["amount"], each["after"]["amount"]) for each in everything["first"]]
        assert sorted(pairs) == [(1.5, 3.0), (100.0, 200.0)]
        [totals] = found["operators"]
        assert totals["differ"] == 1
        assert totals["first"][0]["before"] == {"sales": 3, "turnover": 104.0}
        assert totals["first"][0]["after"] == {"sales": 3, "turnover": 205.5}

    def test_goes_on_from_epoch_to_epoch_with_its_own_state(self, job: Job) -> None:
        [totals] = job.shadow("--json", changes=DOUBLED).json["operators"]
        assert totals["first"][0]["after"] == {"sales": 3, "turnover": 208.0}, "the first epoch is doubled too"

    def test_counts_keys_that_only_one_version_has(self, job: Job) -> None:
        found = job.shadow("--json", changes=FILTERED).json
        [totals] = found["operators"]
        assert [(each["change"], each["key"], each["after"]) for each in totals["first"]] == [
            ("removed", {"shop": "south"}, None)
        ]
        out, everything = found["sinks"]
        assert (out["differ"], out["before"], out["after"]) == (1, 4, 2)
        assert (everything["differ"], {each["change"] for each in everything["first"]}) == (2, {"removed"})

    def test_each_difference_has_a_command_that_explains_it(self, job: Job, capsys: pytest.CaptureFixture[str]) -> None:
        found = job.shadow("--json", changes=DOUBLED).json
        firsts = [first for each in (*found["sinks"], *found["operators"]) for first in each["first"]]
        assert len(firsts) == 5
        for first in firsts:
            command = shlex.split(first["why"])
            assert command[:3] == ["holdfast", "why", str(job.new)]
            capsys.readouterr()
            assert main([*command[1:], "--json"]) == 0
            assert "north" in capsys.readouterr().out
        assert {shlex.split(first["why"])[-1] for first in firsts} == set(map(str, job.epochs))

    def test_as_text_has_the_counts_and_the_first_ones(self, job: Job) -> None:
        ended = job.shadow("--limit", "1", changes=DOUBLED)
        assert ended.status == 4
        assert f"epochs {job.epochs[0]} to {job.epochs[1]}, 5 records" in ended.out
        assert "which equals the checkpoints" in ended.out
        assert "changed  shop=north  sales=3 turnover=104.0  sales=3 turnover=208.0" in ended.out
        assert f"holdfast why {job.new} totals north --at {job.epochs[0]}" in ended.out
        assert "and 2 more: --limit 2" in ended.out
        assert f"holdfast promote {job.file} {job.new}" in ended.err


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "what"),
        [
            (("--epochs", "0"), "--epochs is 0"),
            (("--limit", "0"), "--limit is 0"),
            (("--from", "99"), "has no checkpoint of epoch 99"),
            (("--from", "latest"), "has no epoch behind latest"),
            (("--drop-state", "other"), "no state is kept for other"),
        ],
    )
    def test_name_what_is_wrong_with_an_option(self, job: Job, arguments: tuple[str, ...], what: str) -> None:
        ended = job.shadow(*arguments)
        assert ended.status == 2 and what in ended.err, ended
        assert "Not done: nothing was" in ended.err and "Next:" in ended.err

    @pytest.mark.parametrize(
        ("change", "what"),
        [
            (('hf.App("sales"', 'hf.App("other"'), "builds the job 'other'"),
            (("turnover=hf.sum", "turnover=hf.max"), "turnover"),
            (('.agg("totals"', '.agg("sums"'), "state is kept for totals, which the app no longer has"),
            (('app.source("sales"', 'app.source("sold"'), "has a source 'sold', which the job does not read"),
        ],
    )
    def test_name_what_the_new_code_cannot_do(self, job: Job, change: tuple[str, str], what: str) -> None:
        ended = job.shadow("--from", str(job.epochs[0]), changes=(change,))
        assert ended.status == 2 and what in ended.err, ended
        assert "Not done: nothing was replayed" in ended.err and "Next:" in ended.err

    def test_name_the_record_on_which_the_new_code_fails(self, job: Job) -> None:
        ended = job.shadow(changes=(("sale.amount)", "sale.amount / (sale.amount - 100))"),))
        assert ended.status == 7, ended
        assert "new.py" in ended.err and "for the record at offset 0 of partition 1" in ended.err
        assert "Not done: the replay was not completed; the job was only read" in ended.err


class TestChangedShape:
    def test_state_that_is_given_up_is_missing_in_the_new_version(self, job: Job) -> None:
        renamed = (('.agg("totals"', '.agg("sums"'),)
        ended = job.shadow("--from", str(job.epochs[0]), "--drop-state", "totals", "--json", changes=renamed)
        assert ended.status == 4, ended
        totals, sums = ended.json["operators"]
        assert (totals["name"], totals["in"], totals["differ"], totals["before"]) == ("totals", "before", 2, 2)
        assert (sums["name"], sums["in"], sums["after"]) == ("sums", "after", 2)
        [north] = [each for each in sums["first"] if each["key"] == {"shop": "north"}]
        assert north["after"] == {"sales": 2, "turnover": 101.5}, "it starts empty"
        assert north["why"] is None

    def test_a_sink_that_only_one_version_has_differs_in_every_row(self, job: Job) -> None:
        gone = ((f'priced.sink("all", hf.Log({str(job.folder)!r} + "/copy"))', ""),)
        found = job.shadow("--json", changes=gone).json
        out, everything = found["sinks"]
        assert (out["differ"], everything["differ"], everything["in"]) == (0, 5, "before")
        assert not found["equal"]

    def test_a_column_that_only_one_version_has_is_named_and_the_others_are_compared(self, job: Job) -> None:
        more = (('turnover=hf.sum("amount")', 'turnover=hf.sum("amount"), most=hf.max("amount")'),)
        ended = job.shadow("--from", str(job.epochs[0]), "--json", changes=more)
        out, everything = ended.json["sinks"]
        assert (ended.status, out["differ"], everything["differ"]) == (4, 0, 0)
        assert out["columns"] == {"added": ["most"], "removed": []}
        assert [each["columns"]["added"] for each in ended.json["operators"]] == [["most"]]
        assert [each["differ"] for each in ended.json["operators"]] == [0]


class TestTwoFolders:
    def test_each_version_imports_the_modules_beside_its_own_file(self, job: Job) -> None:
        """Python would take the second `prices` for the first one, and both versions would give the same."""
        code = job.code(
            ("def priced", "from prices import FACTOR\n\ndef priced"), ("sale.amount)", "sale.amount * FACTOR)")
        )
        files = []
        for name, factor in (("old", 1), ("new", 3)):
            (job.folder / name).mkdir()
            (job.folder / name / "prices.py").write_text(f"FACTOR = {factor}")
            files.append(job.folder / name / "job.py")
            files[-1].write_text(code)
        ended = job.holdfast("shadow", *map(str, files), "--json")
        assert ended.status == 4, ended
        assert ended.json["replay"]["exact"]
        [totals] = ended.json["operators"]
        assert {each["after"]["turnover"] / each["before"]["turnover"] for each in totals["first"]} == {3.0}


class TestLive:
    """A job that goes on while the command looks."""

    @pytest.fixture
    def looks(self, job: Job, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
        """What is sold between two looks; afterwards the job has ended."""
        sold = [("south", 1.0), ("north", 1.0), ("north", 3.0)]
        state = ["running"]

        def passes(_: float) -> None:
            job.epoch(sold.pop(0))
            state[0] = "running" if sold else "stopped"

        monkeypatch.setattr(time, "sleep", passes)
        monkeypatch.setattr(command, "status_of", lambda *_: SimpleNamespace(state=state[0]))
        return sold

    def test_replays_each_checkpoint_as_it_comes_until_the_job_ends(self, job: Job, looks: list[object]) -> None:
        ended = job.shadow("--live", "--json", changes=DOUBLED)
        assert ended.status == 4, ended
        lines = [json.loads(line) for line in ended.out.splitlines()]
        assert [len(each["epochs"]) for each in lines] == [1, 2, 3]
        assert [[sink["differ"] for sink in each["sinks"]] for each in lines] == [[0, 0], [1, 1], [1, 2]]
        assert lines[0]["from"] == job.epochs[1] and lines[-1]["epochs"] == job.epochs[2:]
        assert all(each["replay"]["exact"] for each in lines)
        assert "does not run any more" in ended.err

    def test_as_text_is_a_line_per_look_and_the_whole_at_the_end(self, job: Job, looks: list[object]) -> None:
        ended = job.shadow("--live", "--epochs", "2", changes=DOUBLED)
        assert ended.status == 4, ended
        first, second, *whole = ended.out.splitlines()
        assert first == f"epoch {job.epochs[2]}: 1 record so far, equal"
        assert second.startswith(f"epoch {job.epochs[3]}: 2 records so far, differ: 1 in out")
        assert f"epochs {job.epochs[2]} to {job.epochs[3]}, 2 records" in whole[0]

    def test_ends_with_ctrl_c(self, job: Job, looks: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
        passes = time.sleep

        def interrupted(seconds: float) -> None:
            if len(looks) == 1:
                raise KeyboardInterrupt
            passes(seconds)

        monkeypatch.setattr(time, "sleep", interrupted)
        ended = job.shadow("--live", changes=DOUBLED)
        assert ended.status == 4 and "sink out: 1 row differs" in ended.out


WINDOWED = """
from dataclasses import dataclass
from datetime import datetime
import holdfast as hf

@dataclass
class Sale:
    shop: str
    at: datetime

app = hf.App("sales", root={root!r})
sales = app.source("sales", hf.Log({folder!r} + "/sales", Sale), event_time="at")
counts = sales.key_by("shop").window(hf.tumbling("10s")).agg("counts", sales=hf.count())
counts.sink("out", hf.SQLite({folder!r} + "/counts.db", table="counts"))
"""


class Windowed(Job):
    """A job with windows, whose second partition falls silent."""

    text = WINDOWED
    schema = pa.schema([*SCHEMA][:1]).append(pa.field("at", pa.timestamp("us", "UTC"), nullable=False))

    def at(self, second: int, *partitions: int, silent_s: float = 2.5) -> None:
        rows = [{"shop": "north", "at": datetime(2026, 3, 1, 12, tzinfo=UTC) + timedelta(seconds=second)}]
        self.input.append({each: pa.Table.from_pylist(rows, schema=self.schema) for each in partitions})
        self.cluster.pass_time(silent_s)


class TestIdlePartitions:
    @pytest.fixture
    def job(self, tmp_path: Path, holdfast: Callable[..., Any]) -> Windowed:
        """A job whose windows close although one of its partitions has no further record."""
        job = Windowed(tmp_path, holdfast)
        job.at(0, 0, 1)
        job.at(15, 0, silent_s=40.0)
        for second in (30, 45):
            job.at(second, 0)
        return job

    def test_idleness_that_began_before_the_replay_closes_windows(self, job: Windowed) -> None:
        assert job.holdfast("check", str(job.file)).status == 0
        epochs = [each["epoch"] for each in job.holdfast("check", str(job.file), "--json").json["epochs"]]
        found = job.shadow("--from", str(epochs[-2]), "--json").json
        assert found["replay"]["exact"] and found["epochs"] == epochs[-1:]
        assert [each["before"] for each in found["sinks"]] == [1]

    def test_a_partition_that_was_silent_for_a_moment_holds_windows_open(
        self, tmp_path: Path, holdfast: Callable[..., Any]
    ) -> None:
        job = Windowed(tmp_path, holdfast)
        job.at(0, 0, 1)
        for second in (15, 30, 45):
            job.at(second, 0)
        assert job.holdfast("check", str(job.file)).status == 0
        [out] = job.shadow("--json").json["sinks"]
        assert out["before"] == 0

    def test_idleness_that_begins_in_a_replay_closes_windows(self, job: Windowed) -> None:
        """Time passes between the epochs of a shadow as it did between those of the job."""
        found = job.shadow("--json").json
        assert found["equal"] and found["replay"]["exact"], found
        [out] = found["sinks"]
        assert out["before"] >= 3, "windows were closed, although the second partition had no further record"
