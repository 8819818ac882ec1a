"""The output of `holdfast plan` for changed code, and its effects on state and sinks in the next run."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from shutil import rmtree
from typing import Any

import msgspec
import pytest
from orders_job import CODE, COPY, ROWS, Orders

from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError
from holdfast.runtime.cli.main import main
from holdfast.runtime.cli.start.jobfile import load
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.execution.prepare import prepare
from holdfast.storage.log.log import create_log
from holdfast.storage.objects import LocalObjects

Capture = pytest.CaptureFixture[str]


class TestShownChanges:
    def test_unchanged_code_changes_nothing(self, orders: Orders, capsys: Capture) -> None:
        changes, text = orders.plan(capsys)
        assert (changes["changed"], changes["not_known"], changes["refused"]) == ([], [], [])
        assert text.strip() == f"none against the checkpoint of epoch {orders.manifest().epoch}"

    def test_an_inserted_filter_is_shown(self, orders: Orders, capsys: Capture) -> None:
        orders.change('orders.key_by("word")', 'orders.filter(pl.col("v") > 1).key_by("word")')
        changes, text = orders.plan(capsys)
        (change,) = changes["changed"]
        assert (change["kind"], change["name"]) == ("operator", "totals")
        assert change["what"].startswith("operator 'totals' now has before it: `filter")
        assert "applies to the records after the checkpoint" in change["effect"]
        assert change["what"] in text and "none" not in text

    def test_a_changed_filter_is_shown(self, orders: Orders, capsys: Capture) -> None:
        orders.change('orders.sink("copy"', 'orders.filter(pl.col("v") > 1).sink("copy"')
        orders.start()
        orders.order(c=3)
        orders.stop()
        orders.change('pl.col("v") > 1', 'pl.col("v") > 2')
        (change,) = orders.plan(capsys)[0]["changed"]
        assert (
            change["what"].startswith("sink 'copy' had before it: `filter")
            and "; and now has: `filter" in change["what"]
        )

    def test_a_renamed_target_table_is_shown(self, orders: Orders, capsys: Capture) -> None:
        orders.change('table="totals"', 'table="sums"')
        changes, text = orders.plan(capsys)
        (change,) = changes["changed"]
        assert change["what"].startswith("sink 'out' wrote to SQLite") and "table 'sums'" in change["what"]
        assert "rows delivered so far stay in the old target" in text

    def test_a_changed_policy_of_a_source_is_shown(self, orders: Orders, capsys: Capture) -> None:
        orders.change('"/orders", Order)', '"/orders", Order), on_error="drop"')
        (change,) = orders.plan(capsys)[0]["changed"]
        assert change["what"] == "source 'orders' had on_error='fail' and now has 'drop'"

    def test_changed_code_of_a_function_is_shown(self, orders: Orders, capsys: Capture) -> None:
        orders.change('orders.sink("copy"', 'orders.filter(lambda r: r.v > 1).sink("copy"')
        orders.start()
        orders.order(c=3)
        orders.stop()
        orders.change("r.v > 1", "r.u > 1")
        (change,) = orders.plan(capsys)[0]["changed"]
        assert "has different code in: `filter lambda`" in change["what"]

    def test_incompatible_state_is_refused_with_the_next_step(self, orders: Orders, capsys: Capture) -> None:
        orders.change('hf.sum("v")', 'hf.sum("u")')
        changes, text = orders.plan(capsys)
        (refused,) = changes["refused"]
        assert "the column 'v' and now has the column 'u'" in refused["what"]
        assert "--drop-state totals" in refused["next"] and "refused: operator 'totals'" in text

    def test_a_removed_operator_is_refused_before_the_start(self, orders: Orders, capsys: Capture) -> None:
        orders.change('agg("totals"', 'agg("sums"')
        changes, _ = orders.plan(capsys)
        assert changes["operators"] == {"added": ["sums"], "removed": ["totals"]}
        assert "state is kept for totals, which the app no longer has" in changes["refused"][0]["what"]

    def test_a_source_log_that_was_recreated_is_refused_before_the_start(self, orders: Orders, capsys: Capture) -> None:
        rmtree(orders.folder / "orders")
        create_log(LocalObjects(str(orders.folder / "orders")), ROWS)
        (refused,) = orders.plan(capsys)[0]["refused"]
        assert "source 'orders'" in refused["what"] and "holds another log" in refused["what"]
        assert "holdfast rewind JOB.py --to-offset orders:" in refused["next"]

    def test_values_that_an_older_version_did_not_keep_are_unknown(
        self, orders: Orders, capsys: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def older(self: Repository, ref: Any) -> Manifest:
            found = load_manifest(self, ref)
            operators = tuple(
                msgspec.structs.replace(o, schema={p: v for p, v in o.schema.items() if p != "identity"})
                for o in found.operators
            )
            return msgspec.structs.replace(found, operators=operators, shape=msgspec.UNSET)

        load_manifest = Repository.load_manifest
        with monkeypatch.context() as patched:
            patched.setattr(Repository, "load_manifest", older)
            changes, text = orders.plan(capsys)
            assert changes["refused"] == [] and len(changes["not_known"]) == 2
            assert "none" not in text and "not known: how steps, sources and targets changed" in text
            orders.start()
            orders.order(a=1)
            orders.stop()
        assert orders.totals() == {"a": 2, "b": 2}
        assert orders.plan(capsys)[0]["not_known"] == []


class TestChangedAggregates:
    """The table is altered by its owner; Holdfast alters none."""

    ADDED = 'total=hf.sum("v"), n=hf.count()'

    def alter(self, orders: Orders, change: str) -> None:
        with closing(sqlite3.connect(orders.folder / "out.db")) as db:
            db.execute(f"ALTER TABLE totals {change}")

    def rows(self, orders: Orders, columns: str) -> dict[str, tuple[Any, ...]]:
        with closing(sqlite3.connect(orders.folder / "out.db")) as db:
            return {row[0]: row[1:] for row in db.execute(f"SELECT word, {columns} FROM totals")}

    def test_an_added_aggregate_starts_from_now(self, orders: Orders, capsys: Capture) -> None:
        orders.change('total=hf.sum("v")', self.ADDED)
        changes, text = orders.plan(capsys)
        assert {
            "kind": "operator",
            "name": "totals",
            "what": "operator 'totals' has the new aggregate 'n' = count()",
            "effect": "it starts from now: it covers only the records after the checkpoint",
        } in changes["changed"]
        assert "has the new aggregate 'n' = count()\n    it starts from now" in text and not changes["refused"]
        self.alter(orders, "ADD COLUMN n INTEGER")
        orders.start()
        orders.order(a=5, c=7)
        orders.stop()
        assert self.rows(orders, "total, n") == {"a": (6, 1), "b": (2, None), "c": (7, 1)}
        assert orders.plan(capsys)[1].strip().startswith("none against the checkpoint")

    def test_a_renamed_aggregate_keeps_its_state(self, orders: Orders, capsys: Capture) -> None:
        orders.change('total=hf.sum("v")', 'sales=hf.sum("v").was("total")')
        changes, _ = orders.plan(capsys)
        shown = {each["what"]: each["effect"] for each in changes["changed"]}
        assert shown["operator 'totals' has the aggregate 'total' under the name 'sales' now"] == "its state is kept"
        self.alter(orders, "RENAME COLUMN total TO sales")
        orders.start()
        orders.order(a=5)
        orders.stop()
        assert self.rows(orders, "sales") == {"a": (6,), "b": (2,)}

    def test_a_removed_aggregate_is_refused_until_its_state_is_dropped(self, orders: Orders, capsys: Capture) -> None:
        orders.change('total=hf.sum("v")', self.ADDED)
        self.alter(orders, "ADD COLUMN n INTEGER")
        orders.start()
        orders.order(a=5)
        orders.stop()
        orders.change(self.ADDED, "n=hf.count()")
        (refused,) = orders.plan(capsys)[0]["refused"]
        assert refused["what"].startswith("operator 'totals' no longer has the aggregate 'total' = sum('v')")
        assert "--drop-state totals.total" in refused["next"]
        with pytest.raises(ConfigError, match="no longer has the aggregate 'total'"):
            orders.start()
        self.alter(orders, "DROP COLUMN total")
        orders.start("totals.total")
        orders.order(a=5)
        orders.stop()
        assert self.rows(orders, "n") == {"a": (2,), "b": (None,)}
        assert orders.manifest().operators[0].schema["fields"] == {
            "ids": {"n.count": "n.count"},
            "late": ["n.count"],
            "past": ["total.sum"],
        }

    def test_are_refused_while_output_with_the_old_columns_may_be_undelivered(
        self, orders: Orders, capsys: Capture
    ) -> None:
        orders.start()
        orders.append(c=3)
        while not orders.manifest().pending:
            orders.cluster.pass_time(0.25)
        # Here the process dies.
        orders.change('total=hf.sum("v")', self.ADDED)
        what = "sink 'out' has other columns now, but output with the former ones"
        assert any(what in each["what"] for each in orders.plan(capsys)[0]["refused"])
        with pytest.raises(ConfigError, match=what) as refused:
            orders.start()
        assert "end it with holdfast stop" in refused.value.next_step

    def test_are_not_applied_to_a_checkpoint_of_different_code(self, orders: Orders) -> None:
        """Both runs call the new column of state alike, and mean different inputs."""
        orders.change('total=hf.sum("v")', 'total=hf.sum("v"), more=hf.sum("u")')
        self.alter(orders, "ADD COLUMN more INTEGER")
        mine = orders.checked()
        orders.change('more=hf.sum("u")', 'more=hf.sum("v")')
        orders.start()
        orders.order(a=5)
        orders.stop()
        orders.begin(mine)
        orders.cluster.pass_time(2.0)
        outcome = orders.cluster.driver.outcome
        assert outcome is not None and outcome[0] == "failed" and outcome[1] is not None
        assert "another run with other code completed epoch" in outcome[1].what

    def test_are_applied_to_a_later_checkpoint_of_the_same_code(self, orders: Orders) -> None:
        orders.change('total=hf.sum("v")', self.ADDED)
        self.alter(orders, "ADD COLUMN n INTEGER")
        mine = orders.checked()
        orders.code = CODE
        self.alter(orders, "DROP COLUMN n")
        orders.start()
        orders.order(a=5)
        orders.stop()
        self.alter(orders, "ADD COLUMN n INTEGER")
        orders.begin(mine)
        orders.order(a=1)
        assert self.rows(orders, "total, n")["a"] == (7, 1)

    def test_take_effect_if_the_pending_output_of_the_checkpoint_was_delivered(self, orders: Orders) -> None:
        orders.start()
        orders.append_and_stop(a=2)
        assert "out" in {item.writer.sink for item in orders.manifest().pending}
        orders.change('total=hf.sum("v")', self.ADDED)
        self.alter(orders, "ADD COLUMN n INTEGER")
        orders.start()
        orders.order(a=5)
        assert self.rows(orders, "total, n") == {"a": (8, 1), "b": (2, None)}


class TestRemovedSink:
    def test_the_job_resumes_without_the_sink_after_a_stop(self, orders: Orders) -> None:
        orders.start()
        orders.append_and_stop(a=2)
        assert {item.writer.sink for item in orders.manifest().pending} == {"out", "copy"}
        orders.change(COPY, "")
        orders.start()
        orders.append_and_stop(a=5)
        assert orders.totals() == {"a": 8, "b": 2}
        assert {item.writer.sink for item in orders.manifest().pending} == {"out"}

    def test_a_failed_start_forgets_nothing(self, orders: Orders) -> None:
        orders.start()
        orders.append_and_stop(a=2)
        orders.change(COPY, "")
        orders.start()  # its generation is in the log; it ends without a checkpoint
        orders.start()
        orders.order(a=5)
        assert orders.totals() == {"a": 8, "b": 2}

    def test_the_start_is_refused_without_a_stop_as_output_may_be_undelivered(
        self, orders: Orders, capsys: Capture
    ) -> None:
        orders.start()
        orders.append(c=3)
        while not orders.manifest().pending:
            orders.cluster.pass_time(0.25)
        # Here the process dies.
        orders.change(COPY, "")
        assert any("no longer has the sink 'copy'" in each["what"] for each in orders.plan(capsys)[0]["refused"])
        with pytest.raises(ConfigError, match="no longer has the sink 'copy'") as refused:
            orders.start()
        assert "end it with holdfast stop" in refused.value.next_step


class TestKeyGroups:
    def test_from_the_environment_decide_the_plan_and_the_job(
        self, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = Orders(tmp_path)
        job.write()
        monkeypatch.setenv("HOLDFAST_KEY_GROUPS", "16")
        assert main(["plan", job.file, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["key_groups"] == 16
        app = load(job.file)
        assert prepare(app.plan(), resolve(app, env={"HOLDFAST_KEY_GROUPS": "16"})).plan.key_groups == 16
        assert prepare(app.plan(), resolve(app, spark_conf={"spark.holdfast.key_groups": "32"})).plan.key_groups == 32

    def test_key_groups_that_differ_from_the_jobs_are_refused_with_their_origin(self, orders: Orders) -> None:
        app = load(orders.file)
        with pytest.raises(ConfigError, match=r"key_groups=128, but now has key_groups=16 \(origin: environment\)"):
            prepare(app.plan(), resolve(app, env={"HOLDFAST_KEY_GROUPS": "16"}))
