"""Paths of one machine and workers on another: the run is refused before anything is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.errors import ConfigError, JobFailed
from holdfast.runtime.cli.start.run import error_of
from holdfast.runtime.driver.gathering import local_paths
from holdfast.runtime.execution.executing import RunOutcome
from holdfast.testing import TestDriver
from tests.unit.runtime.statuses import status_with

DRIVER = ("here", "boot")


@dataclass
class Bid:
    auction: int
    price: float


def app() -> hf.App:
    app = hf.App("hot", key_groups=16)
    bids = app.source("bids", hf.Log("s3://bucket/bids", Bid))
    counted = bids.key_by("auction").agg("hot", n=hf.count())
    counted.sink("out", hf.SQLite("/data/out.db", table="hot", key=["auction"]))
    bids.sink("copy", hf.Log("/data/copy"))
    return app


def generated() -> hf.App:
    app = hf.App("hot", key_groups=16)
    bids = app.source("bids", hf.Generator(Bid, lambda i: Bid(i, 1.0), count=1))
    bids.key_by("auction").agg("hot", n=hf.count()).sink("out", hf.SQLite("o.db", table="hot", key=["auction"]))
    return app


class TestLocalPaths:
    def test_are_those_without_a_host(self) -> None:
        assert local_paths(app().plan(), "/srv/root") == (
            "the root at /srv/root",
            "sink 'out' at /data/out.db",
            "sink 'copy' at /data/copy",
        )

    def test_are_not_those_in_an_object_store(self) -> None:
        assert "the root" not in "".join(local_paths(app().plan(), "s3://bucket/root"))

    def test_include_file_urls(self) -> None:
        assert "the root at file:///srv/root" in local_paths(app().plan(), "file:///srv/root")


class TestWorkersOnOtherMachines:
    @pytest.mark.parametrize(
        ("hosts", "machine"), [(["here", "there"], DRIVER), (["here"], ("here", "boot of another machine"))]
    )
    def test_end_a_run_with_local_paths_before_a_subtask_is_assigned(
        self, hosts: list[str], machine: tuple[str, str]
    ) -> None:
        t = TestDriver(generated())
        t.cluster.hosts = hosts
        t.cluster.change_rules(machine=machine, local_paths=("the root at /srv/root",))
        t.cluster.begin()
        t.cluster.settle()
        assert t.cluster.driver.outcome is not None
        kind, error = t.cluster.driver.outcome
        assert kind == "refused" and error is not None and error.kind == "config"
        assert "/srv/root" in error.what and "nothing was read" in error.not_done
        assert "HOLDFAST_SHARED_PATHS=true" in error.next
        appended = {type(record.body).__name__ for record in t.cluster.repository.records()}
        assert appended <= {"JobCreated", "GenerationStarted"}

    def test_are_accepted_if_the_paths_are_declared_as_shared(self) -> None:
        t = TestDriver(generated())
        t.cluster.hosts = ["here", "there"]
        t.cluster.change_rules(machine=DRIVER, local_paths=())
        with t:
            t.push("bids", [Bid(1, 2.0)])
            t.checkpoint()
            assert t.rows("out") == [{"auction": 1, "n": 1}]

    def test_are_not_involved_while_all_workers_are_on_the_drivers_machine(self) -> None:
        t = TestDriver(generated())
        t.cluster.change_rules(machine=DRIVER, local_paths=("the root at /srv/root",))
        with t:
            t.push("bids", [Bid(1, 2.0)])
            t.checkpoint()
            assert t.rows("out") == [{"auction": 1, "n": 1}]

    def test_end_the_command_as_wrong_use(self, tmp_path: Path) -> None:
        error = ConfigError("a worker came up elsewhere", next_step="use URLs").report()
        refused = error_of(RunOutcome("refused", error, status_with()), "hot")
        failed = error_of(RunOutcome("failed", error, status_with()), "hot")
        assert type(refused) is ConfigError and refused.what == "a worker came up elsewhere"
        assert type(failed) is JobFailed
