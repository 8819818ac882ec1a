"""Whole jobs that read topics by a pattern, one of which is deleted: rewind, audit, fork and `run --once` after that.

Source: docs/decisions/0092-topics-that-end.md, 0112-ended-topics-in-commands.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from kafka_server import ANSWER_WITHIN_S, KafkaServer
from logged import rows_in
from patience import wait

from holdfast.runtime.cli.main import main
from holdfast.runtime.cli.start.jobfile import load
from holdfast.runtime.config.settings import CONTINUOUS, MODES, resolve
from holdfast.runtime.execution.facts import Choices
from holdfast.runtime.execution.prepare import Prepared, prepare
from holdfast.runtime.testing.cluster import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]
JOB = """
import re

import holdfast as hf

app = hf.App({name!r}, root={root!r}, key_groups=8)
rows = app.source("rows", hf.Kafka({servers!r}, re.compile({pattern!r}), hf.Raw(), on_lost="earliest"))
rows.sink("out", hf.Log({log!r}))
"""
_FAMILIES = count()


class Site:
    """A job file, its topics and its results."""

    def __init__(self, kafka: KafkaServer, folder: Path) -> None:
        self.kafka, self.folder, self.family = kafka, folder, f"ending{next(_FAMILIES)}"
        self.root = str(folder / "root")

    def topic(self, letter: str) -> str:
        return f"{self.family}.{letter}"

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until brokers no longer describe it."""
        self.kafka.delete(topic)
        wait(lambda: topic not in self.kafka.admin.list_topics(timeout=ANSWER_WITHIN_S).topics, "the end of the topic")

    def say(self, *values: str) -> None:
        """Append records to the topics that they begin with."""
        for value in values:
            self.kafka.produce(self.topic(value[0]), [value.encode()])

    def file(self, name: str = "words") -> str:
        file, places = self.folder / f"{name}.py", {"root": self.root, "log": str(self.folder / f"{name}-out")}
        file.write_text(JOB.format(name=name, servers=self.kafka.servers, pattern=f"{self.family}[.].*", **places))
        return str(file)

    def prepare(self, name: str = "words", **options: Any) -> Prepared:
        app = load(self.file(name))
        return prepare(app.plan(), resolve(app), Choices(takeover=True, **options))

    def start(self, prepared: Prepared | None = None, mode: str = CONTINUOUS) -> Cluster:
        given = self.prepare() if prepared is None else prepared
        cluster = Cluster(given.plan, 1, 0, given.folder.store, 1.0, given.inputs.partitions, mode)
        if given.inputs.until is not None:
            cluster.change_rules(until=given.inputs.until)
        cluster.begin()
        return cluster

    def reads(self, cluster: Cluster, *rows: str, name: str = "words") -> int:
        """Let time pass until exactly these rows were delivered; return the epoch of a checkpoint after that."""
        pass_until(cluster, lambda: self.rows(name) == sorted(rows))
        cluster.pass_time(1.0)
        return int(cluster.driver.state.job.completed[-1].body.epoch)

    def stop(self, cluster: Cluster) -> None:
        cluster.driver.stop()
        self.ends(cluster)

    def ends(self, cluster: Cluster) -> None:
        pass_until(cluster, lambda: cluster.driver.outcome is not None)
        assert cluster.driver.outcome == ("stopped", None)

    def rows(self, name: str = "words") -> list[str]:
        return sorted(row["value"].decode() for row in rows_in(self.folder / f"{name}-out"))


def pass_until(cluster: Cluster, met: Callable[[], bool]) -> None:
    def passed() -> bool:
        cluster.pass_time(0.5)
        return met()

    wait(passed, "rows or the end of the run")


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a topic for gone sooner."""
    monkeypatch.setattr("holdfast.runtime.sources.kafka.reading.MISSING_FOR_S", 0.25)


@pytest.fixture
def site(kafka: KafkaServer, tmp_path: Path) -> Site:
    site = Site(kafka, tmp_path)
    kafka.topic(1, site.topic("a"))
    return site


class Commands:
    """Commands about a job, whose output is read."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str, status: int) -> tuple[str, str]:
        """Return what a command writes to stdout and stderr."""
        self._capsys.readouterr()
        assert main([*words]) == status
        return self._capsys.readouterr()

    def json(self, *words: str, status: int) -> Any:
        return json.loads(self(*words, "--json", status=status)[0])


@pytest.mark.parametrize("noted", [True, False], ids=["noted", "not-noted"])
def test_nothing_of_a_topic_that_is_gone_is_read_again(
    site: Site, capsys: pytest.CaptureFixture[str], noted: bool
) -> None:
    """The job stood before the topic existed, within it, and behind it; a start has noted the end, or none has yet."""
    job = site.start()
    site.say("a1")
    before = site.reads(job, "a1")
    site.kafka.topic(1, gone := site.topic("b"))
    site.say("b1")
    within = site.reads(job, "a1", "b1")
    site.say("a2", "b2")
    behind = site.reads(job, "a1", "a2", "b1", "b2")
    site.stop(job)
    site.delete(gone)
    if noted:
        site.stop(site.start())
    run, file, reason = Commands(capsys), site.file(), f"topic {gone!r} no longer exists"

    lines = run.json("audit", file, status=0)["sources"]
    verdicts = {(line["partition"], line["verdict"], line["reason"]) for line in lines if line["rows"]}
    assert verdicts == {
        (0, "proven", None),
        (1, "not provable", f"no longer readable: {reason}"),
    }
    for epoch, first in ((before, 0), (within, 1)):
        _, row = run.json("rewind", file, "--to-epoch", str(epoch), status=3)["sources"]
        assert (row["to_offset"], row["records"], row["available"], row["reason"]) == (first, 2 - first, False, reason)
        assert f"no, {reason}" in run("rewind", file, "--to-epoch", str(epoch), status=3)[0]
        _, refused = run("rewind", file, "--to-epoch", str(epoch), "--apply", status=2)
        what = f"{reason}, and its records from offset {first} on would have to be read again"
        assert refused == (
            f"holdfast: source 'rows', partition 1: {what}.\nNot done: nothing was changed.\n"
            "Next: rewind to a later checkpoint, whose offset the source still has\n"
        )
    run("fork", "words", "fork", "--from-epoch", str(within), "--root", site.root, status=0)
    forked = site.prepare("fork")
    (warning,) = forked.warnings
    assert warning == (
        f"source 'rows', partition 1: {reason}. This job was forked from an epoch that had read it up to offset 1, and "
        "reads no further records of it"
    )
    site.reads(site.start(forked), "a2", name="fork")
    assert site.prepare("fork").warnings == ()
    run("rewind", file, "--to-epoch", str(behind), "--apply", status=0)
    site.say("a3")
    site.reads(site.start(), "a1", "a2", "a3", "b1", "b2")


@pytest.mark.parametrize("mode", MODES)
def test_once_ends_though_a_topic_is_deleted_before_it_is_read_to_its_end(
    site: Site, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    """A run to fixed ends lists no topics for new ones, but has to note that this one has ended."""
    site.kafka.topic(1, gone := site.topic("b"))
    site.say("a1", "b1", "b2")
    prepared = site.prepare(once=True)
    assert prepared.inputs.until == {"rows": {0: 1, 1: 2}}
    site.delete(gone)
    site.ends(site.start(prepared, mode))
    assert site.rows() == ["a1"]
    assert f"topic {gone} no longer exists: it has ended, with what was not read of it" in caplog.text
    site.say("a2")
    site.ends(site.start(site.prepare(once=True), mode))
    assert site.rows() == ["a1", "a2"]


@pytest.mark.parametrize("mode", MODES)
def test_once_ends_though_the_only_topic_is_deleted(site: Site, mode: str) -> None:
    """It has no end, as another may appear, but nothing of it is left to be read."""
    site.say("a1")
    prepared = site.prepare(once=True)
    site.delete(site.topic("a"))
    site.ends(site.start(prepared, mode))
    assert site.rows() == []
