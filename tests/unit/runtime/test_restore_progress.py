"""While a worker restores state, its heartbeats and the status of its job show how far it is."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import holdfast as hf
from holdfast.model import Generation
from holdfast.runtime.cli.operate.status import _came_by
from holdfast.runtime.cli.text import size
from holdfast.runtime.driver.deployment import deployments
from holdfast.runtime.driver.state import Running
from holdfast.runtime.job import status
from holdfast.runtime.job.live import WorkerRow
from holdfast.runtime.worker.loop import WorkerLoop
from holdfast.testing import TestDriver


@dataclass
class Pair:
    key: int
    value: int


def totals_app() -> hf.App:
    app = hf.App("totals", key_groups=16)
    pairs = app.source("pairs", hf.Generator(Pair, lambda i: Pair(i, i), count=1))
    pairs.key_by("key").agg("totals", total=hf.sum("value")).sink("out", hf.SQLite("x.db", table="t", key=["key"]))
    return app


def rows(t: TestDriver) -> tuple[WorkerRow, ...]:
    return status.of_run(t.cluster.driver.state, "", "continuous", None).workers


def test_a_restore_is_shown_until_the_worker_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[WorkerRow] = []
    restored = WorkerLoop._restored

    def watched(loop: WorkerLoop, generation: Generation, done_bytes: int, all_bytes: int) -> None:
        restored(loop, generation, done_bytes, all_bytes)
        t.cluster.driver.received(loop.heartbeat())  # as the worker's other thread sends it meanwhile
        seen.extend(row for row in rows(t) if row.id == loop.worker_id)

    monkeypatch.setattr(WorkerLoop, "_restored", watched)
    with TestDriver(totals_app(), parallelism=1) as t:
        for number in range(3):
            t.push("pairs", [{"key": key, "value": number} for key in range(10)])
            t.checkpoint()
        t.crash()
        t.recover()
        (after,) = rows(t)
        phase = t.cluster.driver.state.phase
        assert isinstance(phase, Running) and phase.last is not None
        written = sum(piece.object.size for piece in phase.last.state[0].segments)
    done = [row.restored_bytes or 0 for row in seen]
    assert done == sorted(done) and done[0] == 0 and done[-1] == written
    assert {row.restore_bytes for row in seen} == {written}
    assert _came_by(seen[0]) == f"0 B of {size(written)} restored"
    assert after.restore_bytes is None and _came_by(after) == "restored"


def test_a_repeated_deployment_is_answered_as_the_first_one() -> None:
    """A restore longer than the interval at which the driver repeats it must stay a restore in the status."""
    with TestDriver(totals_app(), parallelism=1) as t:
        t.push("pairs", [{"key": 1, "value": 1}])
        t.checkpoint()
        t.crash()
        t.recover()
        phase = t.cluster.driver.state.phase
        assert isinstance(phase, Running)
        (member,) = t.cluster.members.values()
        ((_, deploy),) = deployments(t.cluster.driver.state, phase.base, [member.loop.worker_id])
        member.loop.received(deploy)
        t.cluster.settle()
        (after,) = rows(t)
    assert after.how == "restored"
