"""Sinks whose results are in the job's folder: their paths, permitted uses, and printed output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.execution.prepare import prepare
from holdfast.runtime.execution.results import Printer, collected, refuse_collect, with_places
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.testing.cluster import Cluster
from holdfast.storage.objects import MemoryObjects


@dataclass
class Sale:
    shop: str
    amount: int


def sale(number: int) -> Sale:
    return Sale(("north", "south")[number % 2], number)


def app_with(*sinks: Any) -> hf.App:
    app = hf.App("sales", key_groups=8)
    totals = app.source("sales", hf.Generator(Sale, sale, count=100)).key_by("shop").agg("totals", sales=hf.count())
    for number, sink in enumerate(sinks):
        totals.sink(f"out-{number}", sink)
    return app


def finished(plan: Plan) -> None:
    """Run a job with real targets, in this thread, to its end."""
    cluster = Cluster(plan, 2, 1, MemoryObjects(), 1.0, {"sales": (0,)})
    cluster.begin()
    while cluster.driver.outcome is None:
        cluster.pass_time(0.25)
    cluster.hear_out()
    assert cluster.driver.outcome[0] == "finished"
    for member in cluster.members.values():
        member.loop.close()


class TestFoldersOfResults:
    def test_are_below_the_folder_of_the_job(self, tmp_path: Path) -> None:
        plan = with_places(app_with(hf.Collect(), hf.Console()).plan(), str(tmp_path))
        places = [getattr(spec.sink, "path", None) for spec in plan.sinks]
        assert places == [str(tmp_path / "sales/results/out-0/rows.db"), str(tmp_path / "sales/results/out-1")]

    def test_other_sinks_are_not_changed(self, tmp_path: Path) -> None:
        plan = app_with(hf.SQLite(tmp_path / "out.db", table="totals", key=["shop"])).plan()
        assert with_places(plan, str(tmp_path)).sinks == plan.sinks

    @pytest.mark.parametrize("sink", [hf.Collect, hf.Console])
    def test_a_root_that_is_not_on_this_machine_is_refused(self, sink: Callable[[], Any]) -> None:
        with pytest.raises(hf.ConfigError, match="the root is s3://bucket"):
            with_places(app_with(sink()).plan(), "s3://bucket/streams")

    def test_the_same_object_for_two_sinks_is_refused(self, tmp_path: Path) -> None:
        both = hf.Collect()
        with pytest.raises(hf.ConfigError, match="shares"):
            with_places(app_with(both, both).plan(), str(tmp_path))

    def test_several_of_one_kind_have_a_folder_each(self, tmp_path: Path) -> None:
        plan = with_places(app_with(hf.Collect(), hf.Collect(), hf.Console(), hf.Console()).plan(), str(tmp_path))
        assert len({getattr(spec.sink, "path", None) for spec in plan.sinks}) == 4

    def test_a_run_prepares_the_folders(self, tmp_path: Path) -> None:
        app = app_with(hf.Collect(), hf.Console())
        prepare(app.plan(), resolve(app, {"root": str(tmp_path)}, {}))
        assert (tmp_path / "sales/results/out-0/rows.db").is_file()
        assert (tmp_path / "sales/results/out-1").is_dir()


class TestCollect:
    def test_shows_the_rows_that_a_job_delivered(self, tmp_path: Path) -> None:
        rows = hf.Collect()
        app = app_with(rows)
        prepared = prepare(app.plan(), resolve(app, {"root": str(tmp_path)}, {}))
        rows.follow(collected(prepared.plan)["out-0"])
        assert rows.frame().rows() == []
        finished(prepared.plan)
        assert rows.frame().rows() == [("north", 50), ("south", 50)]

    def test_is_refused_if_no_program_continues_after_the_run(self) -> None:
        with pytest.raises(hf.ConfigError, match="app.run") as refusal:
            refuse_collect(app_with(hf.Collect()).plan())
        assert refusal.value.not_done == "the job was not started"


class TestConsole:
    def test_prints_every_row_after_the_name_of_its_sink(self, tmp_path: Path) -> None:
        app = app_with(hf.Console())
        prepared = prepare(app.plan(), resolve(app, {"root": str(tmp_path)}, {}))
        finished(prepared.plan)
        printed: list[str] = []
        printer = Printer(prepared.plan, printed.append)
        printer.poll()
        lines = "".join(printed).splitlines()
        last: Mapping[str, str] = {line.split()[1]: line for line in lines}
        assert last == {
            "shop=north": "out-0: shop=north sales=50",
            "shop=south": "out-0: shop=south sales=50",
        }
        printed.clear()
        printer.poll()
        assert printed == []

    def test_a_test_driver_replaces_it(self) -> None:
        with hf.testing.TestDriver(app_with(hf.Console(), hf.Collect())) as t:
            t.push("sales", [Sale("north", 1)])
            t.checkpoint()
            assert t.rows("out-0") == t.rows("out-1") == [{"shop": "north", "sales": 1}]
