"""`holdfast state`: one key, all rows, differences and sizes of the state that checkpoints hold."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pytest
from stored_state import START, app, bid, labels, written_to

from holdfast.checkpoint import joblog
from holdfast.model import Epoch
from holdfast.runtime.inspect.stored import open_job
from holdfast.testing import TestDriver

if TYPE_CHECKING:
    from tests.unit.runtime.cli.conftest import Ended, History

    Holdfast = Callable[..., Ended]
    Begin = Callable[[str], History]


@pytest.fixture
def job(history: Begin) -> History:
    """A job with the checkpoints of epochs 5, 6 and 9; the count of words 1 and 2 is the number of the last one."""
    begun = history("words")
    for epoch in (5, 6, 9):
        begun.checkpoint(epoch)
    return begun


@pytest.fixture
def hot(root: Path) -> Path:
    """A job with windows, aggregates and nulls, run in memory and stored below the root."""
    with TestDriver(app()) as driver:
        driver.push("bids", [bid(1, "a", 2.0, 3), bid(1, "a", 5.0, 13), bid(2, None, None, 3)])
        driver.watermark("bids", START)
        driver.checkpoint()
        written_to(root, driver)
    return root


class TestGet:
    def test_text_names_checkpoint_and_results(self, holdfast: Holdfast, job: History) -> None:
        lines = holdfast("state", "get", "words", "counts", "2").out.splitlines()
        assert lines[0].startswith("counts of words at epoch 9 (") and lines[0].endswith("; timeline 1)")
        assert [line.split() for line in lines[1:]] == [["word", "rows.count"], ["2", "9"]]

    def test_an_older_epoch_or_a_savepoint_can_be_chosen(self, holdfast: Holdfast, job: History) -> None:
        job._append(joblog.SavepointNamed(Epoch(9), "before"))
        for epoch, count in (("5", 5), ("before", 9), ("latest", 9)):
            shown = holdfast("state", "get", "words", "counts", "1", "--epoch", epoch, "--json").json
            assert [row["rows.count"] for row in shown["rows"]] == [count]

    def test_json_has_the_fields_of_the_contract(self, holdfast: Holdfast, job: History) -> None:
        shown = holdfast("state", "get", "words", "counts", "6", "--json").json
        assert shown | {"at": 0} == {
            "job": "words",
            "epoch": 9,
            "timeline": 1,
            "abandoned": False,
            "name": None,
            "at": 0,
            "operator": "counts",
            "rows": [{"word": 6, "rows.count": 6}],
            "more": False,
        }

    def test_a_key_without_state_is_no_error(self, holdfast: Holdfast, job: History) -> None:
        ended = holdfast("state", "get", "words", "counts", "77")
        assert (ended.status, "no such state" in ended.err) == (0, True)

    def test_a_negative_key_is_given_after_two_dashes(self, holdfast: Holdfast, job: History) -> None:
        assert holdfast("state", "get", "--json", "words", "counts", "--", "-1").json["rows"] == []

    def test_windows_of_a_key_have_start_and_end(self, holdfast: Holdfast, hot: Path) -> None:
        shown = holdfast("state", "get", "hot", "hot", '[1, "a"]', "--json").json["rows"]
        assert [(row["window_start"], row["window_end"], row["avg"]) for row in shown] == [
            ("2026-03-01T00:00:00Z", "2026-03-01T00:00:10Z", 2.0),
            ("2026-03-01T00:00:10Z", "2026-03-01T00:00:20Z", 5.0),
        ]

    def test_null_is_a_key_and_a_value(self, holdfast: Holdfast, hot: Path) -> None:
        [row] = holdfast("state", "get", "hot", "places", "[null]", "--json").json["rows"]
        assert (row["place"], row["n"], row["avg"]) == (None, 1, None)
        assert holdfast("state", "get", "hot", "places", "[null]").out.splitlines()[2].split()[:3] == [
            "null",
            "1",
            "null",
        ]

    def test_text_that_a_job_keeps_is_shown(self, holdfast: Holdfast, root: Path) -> None:
        with TestDriver(labels()) as driver:
            driver.push("bids", [bid(1, "b\n", 2.0), bid(1, "é", 5.0), bid(2, None, None)])
            first = driver.checkpoint()
            driver.push("bids", [bid(2, "z", 2.0)])
            driver.checkpoint()
            written_to(root, driver)
        assert holdfast("state", "get", "hot", "labels", "1", "--json").json["rows"] == [
            {"auction": 1, "low": "b\n", "top": "é", "n": 2}
        ]
        assert holdfast("state", "get", "hot", "labels", "1").out.splitlines()[2].split() == ["1", "b?", "é", "2"]
        given = ("state", "get", "hot", "labels", "2", "--epoch", str(first))
        assert holdfast(*given).out.splitlines()[2].split() == ["2", "null", "null", "1"]
        assert len(holdfast("state", "scan", "hot", "labels", "--json").json["rows"]) == 2
        [found] = holdfast("state", "diff", "hot", "labels", "--from", str(first), "--json").json["rows"]
        assert (found["before"]["low"], found["after"]["low"]) == (None, "z")
        assert holdfast("state", "du", "hot", "--json").json["operators"][0]["rows"] == 2


class TestScan:
    def test_all_rows_are_in_one_table(self, holdfast: Holdfast, job: History) -> None:
        lines = holdfast("state", "scan", "words", "counts").out.splitlines()[2:]
        assert sorted(line.split() for line in lines) == [["1", "9"], ["2", "9"], ["5", "5"], ["6", "6"], ["9", "9"]]

    def test_a_limited_scan_reports_that_more_rows_follow(self, holdfast: Holdfast, job: History) -> None:
        ended = holdfast("state", "scan", "words", "counts", "--limit", "2")
        assert len(ended.out.splitlines()) == 4
        assert "first 2 rows; for more: --limit N" in ended.err
        shown = holdfast("state", "scan", "words", "counts", "--limit", "5", "--json").json
        assert (len(shown["rows"]), shown["more"]) == (5, False)
        assert holdfast("state", "scan", "words", "counts", "--limit", "4", "--json").json["more"]

    def test_a_parquet_file_holds_the_rows_with_their_types(
        self, holdfast: Holdfast, hot: Path, tmp_path: Path
    ) -> None:
        file = tmp_path / "hot.parquet"
        ended = holdfast("state", "scan", "hot", "hot", "--out", str(file))
        assert ended.status == 0 and f"3 rows in {file}" in ended.out
        frame = pl.read_parquet(file)
        assert frame.schema["window_end"] == pl.Datetime("us", "UTC")
        assert sorted(frame["n"]) == [1, 1, 1]

    def test_an_arrow_file_holds_the_rows(self, holdfast: Holdfast, job: History, tmp_path: Path) -> None:
        file = tmp_path / "words.arrow"
        ended = holdfast("state", "scan", "words", "counts", "--out", str(file), "--json", "--limit", "3")
        assert (ended.json["rows_written"], ended.json["more"], ended.json["out"]) == (3, True, str(file))
        assert pa.ipc.open_file(str(file)).read_all().num_rows == 3
        assert sorted(path.name for path in tmp_path.iterdir()) == ["root", "words.arrow"]

    def test_a_clock_is_readable(self, holdfast: Holdfast, hot: Path) -> None:
        assert holdfast("state", "scan", "hot", "hot.clock", "--json").json["rows"][5]["key_group"] == 5

    def test_an_operator_without_rows_is_empty(self, holdfast: Holdfast, root: Path, tmp_path: Path) -> None:
        with TestDriver(app()) as driver:
            driver.push("bids", [bid(1, "a", 2.0, 3)])
            driver.finish()
            written_to(root, driver)
        assert holdfast("state", "scan", "hot", "hot", "--json").json["rows"] == []
        file = tmp_path / "none.parquet"
        assert holdfast("state", "scan", "hot", "hot", "--out", str(file)).status == 0
        assert pl.read_parquet(file).shape == (0, 7)


class TestDiff:
    def test_each_key_that_differs_has_both_values(self, holdfast: Holdfast, job: History) -> None:
        shown = holdfast("state", "diff", "words", "counts", "--from", "5", "--to", "6", "--json").json
        assert (shown["epoch"], shown["before"]["epoch"]) == (6, 5)
        assert sorted(shown["rows"], key=lambda row: int(row["key"]["word"])) == [
            {"change": "changed", "key": {"word": 1}, "before": {"rows.count": 5}, "after": {"rows.count": 6}},
            {"change": "changed", "key": {"word": 2}, "before": {"rows.count": 5}, "after": {"rows.count": 6}},
            {"change": "added", "key": {"word": 6}, "before": None, "after": {"rows.count": 6}},
        ]

    def test_text_has_the_values_beside_each_other(self, holdfast: Holdfast, job: History) -> None:
        lines = holdfast("state", "diff", "words", "counts", "--from", "9", "--to", "5").out.splitlines()
        assert "at epoch 5 (" in lines[0] and "compared with epoch 9 (" in lines[0]
        assert lines[1].split() == ["change", "word", "rows.count", "before", "rows.count", "after"]
        assert ["removed", "9", "9", "-"] in [line.split() for line in lines]

    def test_one_key_can_be_chosen(self, holdfast: Holdfast, job: History) -> None:
        shown = holdfast("state", "diff", "words", "counts", "9", "--from", "5", "--json").json
        assert [row["change"] for row in shown["rows"]] == ["added"]

    def test_without_a_difference_there_are_no_rows(self, holdfast: Holdfast, job: History) -> None:
        ended = holdfast("state", "diff", "words", "counts", "--from", "9")
        assert (ended.status, "no key differs" in ended.err) == (0, True)

    def test_a_file_contains_both_sides(self, holdfast: Holdfast, job: History, tmp_path: Path) -> None:
        file = tmp_path / "diff.parquet"
        assert holdfast("state", "diff", "words", "counts", "--from", "5", "--out", str(file)).status == 0
        frame = pl.read_parquet(file).unnest("key", "after")
        assert sorted(zip(frame["word"], frame["rows.count"], strict=True)) == [(1, 9), (2, 9), (6, 6), (9, 9)]


class TestHistory:
    def test_each_change_of_a_key_has_its_epoch(self, holdfast: Holdfast, job: History) -> None:
        shown = holdfast("state", "history", "words", "counts", "2", "--json").json
        assert (shown["epoch"], shown["since"]["epoch"]) == (9, 5)
        assert [(row["epoch"], row["change"], row["word"], row["rows.count"]) for row in shown["rows"]] == [
            (5, "present", 2, 5),
            (6, "changed", 2, 6),
            (9, "changed", 2, 9),
        ]
        moments = [datetime.fromisoformat(row["at"]).timestamp() for row in shown["rows"]]
        assert moments[-1] == pytest.approx(shown["at"] / 1e6)

    def test_a_key_appears_with_the_checkpoint_that_has_it_first(self, holdfast: Holdfast, job: History) -> None:
        shown = holdfast("state", "history", "words", "counts", "6", "--json").json
        assert [(row["epoch"], row["change"], row["rows.count"]) for row in shown["rows"]] == [(6, "added", 6)]

    def test_windows_are_removed_once_they_are_closed(self, holdfast: Holdfast, root: Path) -> None:
        with TestDriver(app()) as driver:
            driver.push("bids", [bid(1, "a", 2.0, 3)])
            first = driver.checkpoint()
            driver.push("bids", [bid(1, "a", 5.0, 3)])
            driver.checkpoint()
            driver.watermark("bids", START + timedelta(minutes=5))
            last = driver.checkpoint()
            written_to(root, driver)
        rows = holdfast("state", "history", "hot", "hot", '[1, "a"]', "--json").json["rows"]
        assert [(row["change"], row["avg"]) for row in rows] == [("present", 2.0), ("changed", 3.5), ("removed", None)]
        assert (rows[0]["epoch"], rows[-1]["epoch"]) == (first, last)
        lines = holdfast("state", "history", "hot", "hot", '[1, "a"]').out.splitlines()
        assert f"at epoch {last} (" in lines[0] and f"and before it since epoch {first} (" in lines[0]
        assert lines[1].split()[:3] == ["epoch", "at", "change"]

    def test_it_ends_at_the_chosen_checkpoint(self, holdfast: Holdfast, job: History, tmp_path: Path) -> None:
        file = tmp_path / "history.parquet"
        given = ("state", "history", "words", "counts", "2", "--epoch", "6", "--out", str(file))
        assert holdfast(*given).status == 0
        assert pl.read_parquet(file)["epoch"].to_list() == [5, 6]

    def test_it_equals_reading_every_checkpoint(self, holdfast: Holdfast, root: Path) -> None:
        epochs = []
        with TestDriver(app()) as driver:
            for number in range(12):
                driver.push("bids", [bid(number % 3, "a", float(number), number), bid(7, None, None, number)])
                epochs.append(driver.checkpoint())
            written_to(root, driver)
        for key in ("[null]", '["a"]'):
            rows = holdfast("state", "history", "hot", "places", key, "--json").json["rows"]
            held: dict[int, dict[str, object]] = {}
            for epoch in epochs:
                [now] = holdfast("state", "get", "hot", "places", key, "--epoch", str(epoch), "--json").json["rows"]
                held[epoch] = now
            seen = {row["epoch"]: {name: row[name] for name in held[epochs[0]]} for row in rows}
            assert list(seen) == [e for n, e in enumerate(epochs) if n == 0 or held[e] != held[epochs[n - 1]]]
            assert all(held[epoch] == row for epoch, row in seen.items())


class TestDu:
    def test_json_adds_up(self, holdfast: Holdfast, hot: Path) -> None:
        shown = holdfast("state", "du", "hot", "--json").json
        assert [(each["name"], each["rows"]) for each in shown["operators"]] == [
            ("places", 2),
            ("hot", 3),
            ("hot.clock", 128),
            ("firsts", 2),
            ("firsts.clock", 128),
        ]
        [places] = holdfast("state", "du", "hot", "places", "--json").json["operators"]
        assert sum(each["rows"] for each in places["subtasks"]) == 2
        assert [each["rows"] for each in places["largest"]] == [1, 1]

    def test_text_shows_base_and_segments(self, holdfast: Holdfast, job: History) -> None:
        lines = [line.split() for line in holdfast("state", "du", "words").out.splitlines()]
        assert ["counts", "5"] == next(line for line in lines if line[:1] == ["counts"])[:2]
        assert ["counts", "0", "0-127", "5"] in [line[:4] for line in lines]


class TestWrongUse:
    """Every refusal has three parts, status 2, and names the next step."""

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ("", "ACTION"),
            ("show words counts", "invalid choice"),
            ("get words counts", "KEY"),
            ("get", "JOB"),
            ("scan words", "OPERATOR"),
            ("scan words counts 1", "unrecognized arguments: 1"),
            ("scan words counts --prefix a", "unrecognized arguments"),
            ("scan nothing counts", "there is no job 'nothing'"),
            ("scan words.py counts", "give the job's name"),
            ("scan ../words counts", "there is no job"),
            ("scan words count", "operators with state at epoch 9: counts"),
            ("scan words counts --epoch 7", "the nearest: 6 and 9"),
            ("scan words counts --epoch 99", "the nearest: 9"),
            ("scan words counts --epoch -3", "neither an epoch nor a savepoint"),
            ("scan words counts --epoch yesterday", "neither an epoch nor a savepoint"),
            ("scan words counts --epoch 5.0", "neither an epoch nor a savepoint"),
            ("scan words counts --limit 0", "--limit is 0"),
            ("scan words counts --limit many", "invalid int value"),
            ("scan words counts --out rows.csv", "ends in .arrow or .parquet"),
            ("scan words counts --out missing/rows.arrow", "there is no folder missing"),
            ("get words counts one", "'one' is not a value of the key column 'word', int64"),
            ("get words counts 1.5", "is not a value of the key column"),
            ("get words counts 9999999999999999999999", "is not a value of the key column"),
            ("get words counts [1", "is not a JSON list"),
            ("get words counts [1,2]", "has 2 of 1 columns"),
            ("get words counts [true]", "is not a value of the key column"),
            ("diff words counts", "--from"),
            ("diff words counts --from 7", "the nearest: 6 and 9"),
            ("diff words counts --from 5 --epoch 6", "unrecognized arguments"),
            ("du words nothing", "operators with state"),
            ("history words counts", "KEY"),
            ("history words counts one", "'one' is not a value of the key column"),
            ("history words nothing 1", "operators with state"),
            ("history words counts 1 --epoch 7", "the nearest: 6 and 9"),
            ("du words counts --out x.arrow", "unrecognized arguments"),
        ],
    )
    def test_invalid_arguments_are_refused(self, holdfast: Holdfast, job: History, arguments: str, said: str) -> None:
        ended = holdfast("state", *arguments.split())
        assert ended.status == 2
        assert said in ended.err and "Not done:" in ended.err and "Next:" in ended.err
        assert holdfast("state", *arguments.split(), "--json").json["kind"] == "config"

    @pytest.mark.parametrize(
        ("key", "said"),
        [
            ("1", "has 1 of 2 columns"),
            ('["1", null]', None),
            ("[null, null]", "'auction' of the key is never null"),
            ("[1, 2]", "2 is not a value of the key column 'place', string"),
            ('{"auction": 1}', "has 1 of 2 columns"),
        ],
    )
    def test_a_key_of_several_columns_is_a_list(
        self, holdfast: Holdfast, hot: Path, key: str, said: str | None
    ) -> None:
        ended = holdfast("state", "get", "hot", "hot", key)
        assert (ended.status, said is None or said in ended.err) == (0 if said is None else 2, True)

    def test_a_file_is_never_replaced(self, holdfast: Holdfast, job: History, tmp_path: Path) -> None:
        (tmp_path / "rows.arrow").write_text("mine")
        ended = holdfast("state", "scan", "words", "counts", "--out", str(tmp_path / "rows.arrow"))
        assert (ended.status, "exists" in ended.err) == (2, True)
        assert (tmp_path / "rows.arrow").read_text() == "mine"

    def test_a_folder_that_cannot_be_written_is_unavailable(
        self, holdfast: Holdfast, job: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.link", refuse)
        ended = holdfast("state", "scan", "words", "counts", "--out", str(tmp_path / "rows.arrow"))
        assert (ended.status, "No space left" in ended.err) == (5, True)
        assert [path.name for path in tmp_path.iterdir()] == ["root"]

    def test_a_job_without_a_checkpoint_has_no_state(self, holdfast: Holdfast, history: Begin) -> None:
        history("new")
        ended = holdfast("state", "scan", "new", "counts")
        assert (ended.status, "has not completed a checkpoint" in ended.err) == (2, True)

    def test_an_expired_epoch_is_refused_with_known_epochs_and_savepoints(
        self, holdfast: Holdfast, job: History, root: Path
    ) -> None:
        job._append(joblog.SavepointNamed(Epoch(9), "kept"))
        job._append(joblog.Expired(Epoch(5)))
        ended = holdfast("state", "scan", "words", "counts", "--epoch", "5")
        assert ended.status == 2
        assert "no checkpoint of epoch 5 any more: they have expired up to epoch 5" in ended.err
        assert "the nearest: 6; savepoints: kept (9)" in ended.err
        assert open_job(str(root), "words").job.expired_through == 5


class TestDamage:
    def test_a_damaged_object_is_status_4_and_names_another_epoch(self, holdfast: Holdfast, job: History) -> None:
        job.damage("segments/00000001/000000000009/w1.segment")
        ended = holdfast("state", "scan", "words", "counts")
        assert (ended.status, ended.out) == (4, "")
        assert "differs from what was written" in ended.err and "--epoch 6" in ended.err
        assert holdfast("state", "scan", "words", "counts", "--epoch", "6").status == 0

    def test_a_damaged_manifest_is_status_4(self, holdfast: Holdfast, job: History) -> None:
        job.damage("manifests/00000001/000000000009-owner1.json")
        assert holdfast("state", "get", "words", "counts", "1", "--json").json["kind"] == "damaged"

    def test_no_file_is_left_behind(self, holdfast: Holdfast, job: History, tmp_path: Path) -> None:
        job.damage("segments/00000001/000000000009/w1.segment")
        assert holdfast("state", "scan", "words", "counts", "--out", str(tmp_path / "x.arrow")).status == 4
        assert [path.name for path in tmp_path.iterdir()] == ["root"]
