"""`holdfast why` and `holdfast check` on a root and a log on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.runtime.cli.log.output import finite
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

app = hf.App("sales", root={root!r})
sales = app.source("sales", hf.Log({folder!r} + "/sales", Sale))
totals = sales.key_by("shop").agg("totals", sales=hf.count(), turnover=hf.sum("amount"))
totals.sink("out", hf.SQLite({folder!r} + "/totals.db", table="totals", key=["shop"]))
sales.sink("all", hf.Log({folder!r} + "/copy"))
"""
SCHEMA = pa.schema([pa.field("shop", pa.string(), nullable=False), pa.field("amount", pa.float64(), nullable=False)])


class Job:
    """The job on disk, run in this process, and the commands."""

    def __init__(self, folder: Path, holdfast: Callable[..., Any], record_order: bool = False) -> None:
        self.folder, self.file, self.holdfast = folder, folder / "job.py", holdfast
        self.file.write_text(JOB.format(root=str(folder / "root"), folder=str(folder)))
        create_log(LocalObjects(folder / "sales"), SCHEMA, 2)
        self.input = LogWriter(LocalObjects(folder / "sales"))
        plan = load(str(self.file)).plan()
        for spec in plan.sinks:
            spec.sink.prepare(spec.schema, spec.upsert_key)
        self.cluster = Cluster(plan, 2, 1, LocalObjects(folder / "root" / "sales"), 1.0, {"sales": (0, 1)})
        self.cluster.change_rules(record_order=record_order)
        self.cluster.begin()

    def epoch(self, *rows: tuple[str, float], partition: int = 0) -> None:
        given = [{"shop": shop, "amount": amount} for shop, amount in rows]
        self.input.append({partition: pa.Table.from_pylist(given, schema=SCHEMA)})
        self.cluster.pass_time(2.5)
        assert self.cluster.driver.outcome is None

    def asked(self, command: str, *arguments: str) -> Any:
        return self.holdfast(command, str(self.file), *arguments)


@pytest.fixture
def job(tmp_path: Path, holdfast: Callable[..., Any]) -> Job:
    job = Job(tmp_path, holdfast)
    job.epoch(("north", 2.5), ("south", 4.0))
    job.epoch(("north", 100.0), ("south", 1.0), ("north", 1.5), partition=1)
    return job


class TestWhy:
    def test_why_on_an_operator_names_records_and_their_changes(self, job: Job) -> None:
        ended = job.asked("why", "totals", "north", "--json")
        assert ended.status == 0, ended
        first, second = ended.json["epochs"]
        assert (first["records"], first["exact"], second["records"], second["exact"]) == (2, True, 3, True)
        [cause] = first["causes"]
        assert (cause["source"], cause["partition"], cause["offset"]) == ("sales", 0, 0)
        assert cause["record"] == {"shop": "north", "amount": 2.5}
        assert [c["after"] for c in cause["changes"]] == [{"sales": 1, "turnover": 2.5}]
        assert [(each["partition"], each["offset"]) for each in second["causes"]] == [(1, 0), (1, 2)]
        assert second["causes"][1]["changes"][0]["before"] == {"sales": 2, "turnover": 102.5}

    def test_as_text_shows_one_line_per_change(self, job: Job) -> None:
        shown = job.asked("why", "totals", "north", "--epochs", "1").out
        assert "3 records replayed, which equals the checkpoint" in shown
        assert "sales:1:0  shop=north amount=100.0  changed" in shown and "sales=3 turnover=104.0" in shown

    def test_why_on_a_keyed_sink_shows_its_rows(self, job: Job) -> None:
        [epoch] = job.asked("why", "out", "south", "--at", "latest", "--json").json["epochs"]
        [cause] = epoch["causes"]
        assert cause["offset"] == 1
        assert cause["changes"][0]["after"] == {"shop": "south", "sales": 2, "turnover": 5.0}

    def test_why_on_a_sink_without_a_key_takes_columns(self, job: Job) -> None:
        [first, second] = job.asked("why", "all", '{"shop": "north", "amount": 1.5}', "--json").json["epochs"]
        assert first["causes"] == [] and [each["offset"] for each in second["causes"]] == [2]

    def test_why_on_an_absent_key_reports_that_no_record_changed_it(self, job: Job) -> None:
        for arguments in (("totals", "west"), ("out", "west")):
            ended = job.asked("why", *arguments)
            assert ended.status == 0 and f"no record changed {arguments[0]}, key west" in ended.err

    @pytest.mark.parametrize(
        ("arguments", "what"),
        [
            (("nowhere", "north"), "has no operator or sink 'nowhere'"),
            (("all", "north"), "sink 'all' has no key"),
            (("all", '{"shop"'), "is not a JSON object"),
            (("all", '{"city": "x"}'), "has no column 'city'"),
            (("out", "north", "--at", "99"), "has no checkpoint of epoch 99"),
            (("totals", "north", "--limit", "0"), "--limit is 0"),
        ],
    )
    def test_refuses_what_it_cannot_answer(self, job: Job, arguments: tuple[str, ...], what: str) -> None:
        ended = job.asked("why", *arguments)
        assert ended.status == 2 and what in ended.err and "Next:" in ended.err, ended

    def test_why_refuses_a_job_name_in_place_of_a_file(self, job: Job) -> None:
        ended = job.holdfast("why", "sales", "totals", "north", "--root", str(job.folder / "root"))
        assert ended.status == 2 and "'sales' is not a Python file" in ended.err


class TestBisect:
    @pytest.fixture
    def long(self, job: Job) -> Job:
        """The turnover of north passes 1,000 at one record of the seventh epoch."""
        for n in range(8):
            job.epoch(("north", 2_000.0 if n == 4 else 1.0), ("south", float(n)), ("west", 1.0), partition=n % 2)
        return job

    def test_names_the_checkpoint_the_row_and_the_record(self, long: Job) -> None:
        ended = long.asked("bisect", "--check", "turnover < 1000", "--json")
        assert ended.status == 0, ended
        found = ended.json
        assert (found["source"], found["partition"], found["offset"]) == ("sales", 0, 8)
        assert found["record"] == {"shop": "north", "amount": 2_000.0}
        assert (found["operator"], found["row"]) == ("totals", {"shop": "north", "sales": 8, "turnover": 2_108.0})
        assert found["good"] == found["bad"] - 1 and found["checkpoints_read"] <= 6 and not found["code_changed"]

    def test_takes_a_function_of_the_whole_state(self, long: Job) -> None:
        file = long.folder / "invariant.py"
        file.write_text("def check(state):\n    return state['totals']['turnover'].sum() < 1000\n")
        shown = long.asked("bisect", "--check", str(file)).out
        assert "is the first checkpoint that fails" in shown and "record sales:0:8: shop=north amount=2000.0" in shown

    @pytest.mark.parametrize(
        ("arguments", "what"),
        [
            (("--check", "turnover <"), "is not an expression"),
            (("--check", "1 < 2"), "names no column"),
            (("--check", "height < 2"), "no operator has the columns height"),
            (("--check", "turnover < 'x'"), "cannot be computed"),
            (("--check", "turnover < 5000"), "it holds at epoch"),
            (("--check", "turnover < 1"), "it fails already at epoch"),
            (("--check", "turnover < 1000", "--good", "latest"), "is not before --bad"),
            (("--check", "nowhere.py"), "nowhere.py is not a file"),
        ],
    )
    def test_refuses_what_it_cannot_search(self, long: Job, arguments: tuple[str, ...], what: str) -> None:
        ended = long.asked("bisect", *arguments)
        assert ended.status == 2 and what in ended.err and "Next:" in ended.err, ended


class TestCheck:
    def test_a_check_with_the_same_code_equals_every_checkpoint(self, job: Job) -> None:
        ended = job.asked("check", "--json")
        assert ended.status == 0
        assert [(each["records"], each["exact"]) for each in ended.json["epochs"]] == [(2, True), (3, True)]

    def test_a_check_with_other_code_shows_the_differences_and_exits_with_4(self, job: Job) -> None:
        job.file.write_text(job.file.read_text().replace("turnover=hf.sum", "turnover=hf.max"))
        refused = job.asked("check")
        assert refused.status == 2, "its state cannot be read by this code"
        code = JOB.replace('sales.key_by("shop")', 'sales.filter(lambda r: r.amount != 1.5).key_by("shop")')
        job.file.write_text(code.format(root=str(job.folder / "root"), folder=str(job.folder)))
        ended = job.asked("check", "--epochs", "1")
        assert ended.status == 4
        assert "operator 'totals': key {'shop': 'north'} has other state" in ended.out
        assert "'turnover': 104.0} then, {'sales': 2, 'turnover': 102.5} now" in ended.out

    def test_before_the_first_checkpoint_is_refused(self, tmp_path: Path, holdfast: Callable[..., Any]) -> None:
        job = Job(tmp_path, holdfast)
        job.cluster.pass_time(0.5)
        ended = job.asked("check")
        assert ended.status == 2 and "has no epoch whose beginning is retained" in ended.err


class TestOrder:
    """Without the record, sums of floating point numbers may differ; with it nothing may."""

    MAY_DIFFER = (
        ("operator", "totals", ["the last digits of floating point numbers"]),
        ("sink", "out", ["the last digits of floating point numbers in 'totals'"]),
    )

    def test_without_the_record_names_what_may_differ(self, job: Job) -> None:
        for arguments in (("check",), ("why", "totals", "north"), ("bisect", "--check", "turnover < 100")):
            in_json = job.asked(*arguments, "--json").json
            named = [(each["kind"], each["name"], each["why"]) for each in in_json["may_differ"]]
            assert named == list(self.MAY_DIFFER), arguments
        assert not any(each["in_order"] for each in job.asked("check", "--json").json["epochs"])

    def test_says_so_in_words_where_something_differs(self, job: Job) -> None:
        job.file.write_text(job.file.read_text().replace("sales.key_by", "sales.filter(lambda r: r.amount < 9).key_by"))
        said = job.asked("check").err
        assert "without the recorded order these may differ, whatever the code:" in said
        assert "operator 'totals': the last digits of floating point numbers" in said
        assert "without the recorded order" in job.asked("bisect", "--check", "turnover < 100").err

    def test_with_the_record_nothing_may_differ(self, tmp_path: Path, holdfast: Callable[..., Any]) -> None:
        job = Job(tmp_path, holdfast, record_order=True)
        job.epoch(("north", 0.1), ("south", 4.0))
        job.epoch(("north", 100.0), ("south", 1.0), ("north", 0.2), partition=1)
        checked = job.asked("check", "--json")
        assert checked.status == 0 and checked.json["may_differ"] == []
        assert [(each["exact"], each["in_order"]) for each in checked.json["epochs"]] == [(True, True)] * 2
        found = job.asked("why", "totals", "north", "--json").json
        assert found["may_differ"] == [] and [len(each["causes"]) for each in found["epochs"]] == [1, 2]
        bisected = job.asked("bisect", "--check", "turnover < 100", "--json").json
        assert (bisected["offset"], bisected["partition"]) == (0, 1)
        verified = holdfast("checkpoints", "verify", "sales", "--root", str(tmp_path / "root"))
        assert verified.status == 0

    def test_the_order_of_other_code_is_not_followed(self, tmp_path: Path, holdfast: Callable[..., Any]) -> None:
        job = Job(tmp_path, holdfast, record_order=True)
        job.epoch(("north", 0.1), ("south", 4.0))
        job.file.write_text(job.file.read_text().replace("sales.key_by", "sales.filter(lambda r: r.amount < 2).key_by"))
        ended = job.asked("check")
        assert ended.status == 4 and "the recorded order was not followed, since the code is not as it was" in ended.err
        assert job.asked("check", "--json").json["epochs"][0]["unlike"] is not None

    def test_a_damaged_order_is_found_by_verify(self, tmp_path: Path, holdfast: Callable[..., Any]) -> None:
        job, root = Job(tmp_path, holdfast, record_order=True), str(tmp_path / "root")
        job.epoch(("north", 0.1), ("south", 4.0))
        record = min((tmp_path / "root" / "sales" / "orders").glob("*/*/*.order"))
        record.write_bytes(record.read_bytes()[:-1] + b"x")
        ended = holdfast("checkpoints", "verify", "sales", "--root", root, "--json")
        assert ended.status == 4 and [each["kind"] for each in ended.json["damaged"]] == ["order"]
        refused = job.asked("check")
        assert refused.status == 4 and record.name in refused.err


class TestFork:
    def test_begins_with_a_copy_that_is_no_epoch_of_its_own(self, job: Job) -> None:
        root = str(job.folder / "root")
        assert job.holdfast("fork", "sales", "trial", "--from-epoch", "latest", "--root", root).status == 0
        job.file.write_text(job.file.read_text().replace('hf.App("sales"', 'hf.App("trial"'))
        ended = job.asked("check")
        assert ended.status == 2 and "has no epoch whose beginning is retained" in ended.err
        ended = job.asked("why", "totals", "north", "--at", "latest")
        assert ended.status == 2 and "is a fork and begins with the checkpoint" in ended.err
        ended = job.asked("why", "totals", "north")
        assert ended.status == 0 and "no record changed totals, key north" in ended.err


def test_numbers_that_json_lacks_are_text_inside_lists_and_maps_too() -> None:
    row = {"many": [float("nan"), 1.0], "map": [("q", float("-inf"))], "deep": {"x": float("inf")}}
    assert finite(row) == {"many": ["NaN", 1.0], "map": [["q", "-Infinity"]], "deep": {"x": "Infinity"}}
