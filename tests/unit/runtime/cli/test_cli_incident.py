"""`holdfast incident` and `holdfast replay`: from a root on disk to a folder with the file and the code alone."""

from __future__ import annotations

import json
import runpy
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.runtime.cli.replay import replay
from holdfast.runtime.cli.start.jobfile import load
from holdfast.runtime.testing.cluster import Cluster
from holdfast.storage.local import LocalObjects
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.testing import IncidentReplay

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
ROWS = (("north", 100.0), ("south", 1.0), ("north", 1.5))


class Away:
    """A folder with the job's file and an incident file; sources, targets and root of the job were deleted."""

    def __init__(self, folder: Path, holdfast: Callable[..., Any]) -> None:
        self.folder, self.file, self.job, self.holdfast = folder, folder / "x.incident", folder / "job.py", holdfast

    def asked(self, *arguments: str) -> Any:
        return self.holdfast("replay", str(self.file), str(self.job), *arguments)

    def change(self, old: str, new: str) -> None:
        """Change the code."""
        text = self.job.read_text()
        assert old in text
        self.job.write_text(text.replace(old, new))


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A folder with a job that has taken two epochs."""
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "job.py").write_text(JOB.format(root=str(folder / "root"), folder=str(folder)))
    create_log(LocalObjects(folder / "sales"), SCHEMA, 2)
    log = LogWriter(LocalObjects(folder / "sales"))
    plan = load(str(folder / "job.py")).plan()
    for spec in plan.sinks:
        spec.sink.prepare(spec.schema, spec.upsert_key)
    cluster = Cluster(plan, 2, 1, LocalObjects(folder / "root" / "sales"), 1.0, {"sales": (0, 1)})
    cluster.begin()
    for partition, rows in ((0, (("north", 2.5), ("south", 4.0))), (1, ROWS)):
        given = [{"shop": shop, "amount": amount} for shop, amount in rows]
        log.append({partition: pa.Table.from_pylist(given, schema=SCHEMA)})
        cluster.pass_time(2.5)
    return folder


@pytest.fixture
def away(there: Path, tmp_path: Path, holdfast: Callable[..., Any]) -> Away:
    folder = tmp_path / "away"
    folder.mkdir()
    ended = holdfast("incident", str(there / "job.py"), "--out", str(folder / "x.incident"))
    assert ended.status == 0, ended
    shutil.copy(there / "job.py", folder)
    shutil.rmtree(there)
    return Away(folder, holdfast)


class TestIncident:
    def test_writes_an_epoch_and_says_that_its_replay_is_equal(
        self, there: Path, tmp_path: Path, holdfast: Callable[..., Any]
    ) -> None:
        out = str(tmp_path / "x.incident")
        ended = holdfast("incident", str(there / "job.py"), "--epoch", "latest", "--out", out, "--json")
        assert ended.status == 0, ended
        shown = ended.json
        assert (shown["job"], shown["records"], shown["exact"], shown["differences"]) == ("sales", 3, True, [])
        assert shown["bytes"] == Path(out).stat().st_size and shown["file"] == out

    def test_never_replaces_a_file(self, there: Path, tmp_path: Path, holdfast: Callable[..., Any]) -> None:
        out = tmp_path / "x.incident"
        out.write_text("mine")
        ended = holdfast("incident", str(there / "job.py"), "--out", str(out))
        assert ended.status == 2 and "exists" in ended.err and out.read_text() == "mine"

    def test_has_no_setting_that_names_a_place_and_no_environment(
        self, there: Path, tmp_path: Path, holdfast: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOLDFAST_MASTER", "spark://inner-host:7077")
        monkeypatch.setenv("SHOP_PASSWORD", "hunter2")
        out = tmp_path / "x.incident"
        ended = holdfast("incident", str(there / "job.py"), "--out", str(out))
        assert ended.status == 0, ended
        with zipfile.ZipFile(out) as archive:
            members = b"".join(map(archive.read, archive.namelist()))
        assert b"north" in members and b"inner-host" not in members and b"hunter2" not in members

    @pytest.mark.parametrize(
        ("arguments", "what"),
        [
            (("--epoch", "99"), "has no checkpoint of epoch 99"),
            (("--redact", "amount"), "is double: only text"),
            (("--redact", "city"), "no source has a column 'city'"),
            (("--key", "[1"), "is not a JSON list"),
        ],
    )
    def test_refuses_what_it_cannot_write_and_writes_nothing(
        self, there: Path, tmp_path: Path, holdfast: Callable[..., Any], arguments: tuple[str, ...], what: str
    ) -> None:
        out = tmp_path / "x.incident"
        ended = holdfast("incident", str(there / "job.py"), "--out", str(out), *arguments)
        assert ended.status == 2 and what in ended.err and "Next:" in ended.err, ended
        assert not out.exists()


class TestReplay:
    def test_without_sources_root_and_targets_equals_the_checkpoint(self, away: Away) -> None:
        ended = away.asked("--json")
        assert ended.status == 0, ended
        assert (ended.json["exact"], ended.json["records"], ended.json["changed_since"]) == (True, 3, [])
        changes = [(c["key"]["shop"], c["before"], c["after"]) for c in ended.json["changes"]]
        assert sorted(changes) == [
            ("north", {"sales": 1, "turnover": 2.5}, {"sales": 3, "turnover": 104.0}),
            ("south", {"sales": 1, "turnover": 4.0}, {"sales": 2, "turnover": 5.0}),
        ]
        assert [row["amount"] for row in ended.json["rows"]["all"]] == [100.0, 1.0, 1.5]
        assert sorted(each.name for each in away.folder.iterdir()) == ["job.py", "x.incident"]

    def test_as_text_shows_verdict_changes_and_rows(self, away: Away) -> None:
        shown = away.asked().out
        assert "3 records replayed, which equals the checkpoint" in shown
        assert "totals    shop=north  changed  sales=1 turnover=2.5  sales=3 turnover=104.0" in shown
        assert "all: 3 rows\n  shop=north amount=100.0" in shown
        assert "and 1 more: --limit 3" in away.asked("--limit", "2").out

    def test_other_code_shows_what_it_gives_and_exits_with_4(self, away: Away) -> None:
        away.change('sales.key_by("shop")', 'sales.filter(lambda r: r.amount < 50).key_by("shop")')
        ended = away.asked()
        assert ended.status == 4 and "which differs from the checkpoint" in ended.out
        assert "changed since: the job's file, job.py" in ended.err
        assert "sales=2 turnover=4.0" in ended.out and "equalled the checkpoint when the file was written" in ended.err

    def test_by_steps_shows_each_record_and_what_it_did(self, away: Away) -> None:
        shown = away.asked("--step").out
        assert "1  sales:1:0  shop=north amount=100.0\n    totals shop=north: changed" in shown
        lines = [json.loads(line) for line in away.asked("--step", "--json").out.splitlines()]
        assert [(each["step"], each["offset"], each["record"]["amount"]) for each in lines] == [
            (1, 0, 100.0),
            (2, 1, 1.0),
            (3, 2, 1.5),
        ]
        assert [len(each["changes"]) for each in lines] == [1, 1, 1]
        assert [each["rows"]["out"][0]["turnover"] for each in lines] == [102.5, 5.0, 104.0]

    def test_by_steps_on_a_terminal_waits_for_each_and_ends_at_q(
        self, away: Away, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answers = iter(["", "q"])
        monkeypatch.setattr(replay, "asks", lambda args: not args.json)
        monkeypatch.setattr("builtins.input", lambda _: next(answers))
        shown = away.asked("--step").out
        assert "2  sales:1:1" in shown and "3  sales:1:2" not in shown

    def test_a_file_that_was_changed_is_refused(self, away: Away) -> None:
        data = bytearray(away.file.read_bytes())
        data[len(data) // 3] ^= 1
        away.file.write_bytes(data)
        ended = away.asked()
        assert ended.status in (2, 4) and ("damaged" in ended.err or "not an incident file" in ended.err)

    @pytest.mark.parametrize(
        ("arguments", "what"),
        [
            (("--step", "--test"), "were given together"),
            (("--out", "x.py"), "--out is for --test"),
            (("--limit", "0"), "--limit is 0"),
        ],
    )
    def test_refuses_arguments_that_do_not_fit(self, away: Away, arguments: tuple[str, ...], what: str) -> None:
        ended = away.asked(*arguments)
        assert ended.status == 2 and what in ended.err and "Next:" in ended.err, ended

    def test_no_file_and_another_file_are_refused(self, away: Away) -> None:
        ended = away.holdfast("replay", str(away.folder / "absent"), str(away.job))
        assert ended.status == 2 and "cannot be read" in ended.err
        ended = away.holdfast("replay", str(away.job), str(away.job))
        assert ended.status == 2 and "is not an incident file" in ended.err

    def test_a_source_that_looks_its_columns_up_is_refused_with_the_way_out(self, away: Away) -> None:
        away.change('"/sales", Sale)', '"/sales")')
        ended = away.asked()
        assert ended.status == 2 and "no log exists" in ended.err and "give it a row type" in ended.err

    def test_code_without_the_source_is_refused(self, away: Away) -> None:
        away.change('app.source("sales"', 'app.source("orders"')
        ended = away.asked()
        assert ended.status == 2 and "read source 'sales', which the app no longer has" in ended.err


class TestWrittenTest:
    @staticmethod
    def run(test: Path) -> dict[str, str]:
        """Run the tests of a file, and return the failure of each, empty if it is green."""
        names = runpy.run_path(str(test), run_name="written")
        calls: dict[str, Callable[[], object]] = {"edited": names["test_the_expectation_was_edited"]}
        for sink in names["EXPECTED"]:
            calls[sink] = lambda sink=sink: names["test_the_epoch_gives_what_is_expected"](sink)  # type: ignore[misc]
        outcome = dict[str, str]()
        for name, call in calls.items():
            try:
                call()
                outcome[name] = ""
            except AssertionError as error:
                outcome[name] = str(error) or "differs"
        return outcome

    @pytest.fixture
    def test(self, away: Away, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.syspath_prepend(str(away.folder))
        monkeypatch.delitem(sys.modules, "job", raising=False)
        test = away.folder / "test_job.py"
        assert away.asked("--test", "--out", str(test)).status == 0
        return test

    def test_is_red_until_it_was_edited_and_then_until_the_code_is_right(
        self, away: Away, test: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fresh = self.run(test)
        assert "change EXPECTED" in fresh.pop("edited") and set(fresh.values()) == {""}
        today, expected = test.read_text().split("EXPECTED = ", 1)
        right = expected.replace("'sales': 3, 'turnover': 104.0", "'sales': 2, 'turnover': 4.0")
        assert right != expected
        test.write_text(f"{today}EXPECTED = {right}")
        edited = self.run(test)
        assert edited["edited"] == "" and edited["all"] == "" and edited["out"] != ""
        away.change('sales.key_by("shop")', 'sales.filter(lambda r: r.amount < 50).key_by("shop")')
        monkeypatch.delitem(sys.modules, "job")
        assert set(self.run(test).values()) == {""}

    def test_goes_to_stdout_and_never_replaces_a_file(self, away: Away, test: Path) -> None:
        assert away.asked("--test").out.startswith('"""Replays epoch')
        ended = away.asked("--test", "--out", str(test))
        assert ended.status == 2 and "exists" in ended.err

    def test_gives_rows_of_each_sink_and_what_differs(self, away: Away) -> None:
        given = IncidentReplay(away.file, load(str(away.job)))
        assert given.differences == [] and [row["shop"] for row in given.rows("out")] == ["north", "south"]
