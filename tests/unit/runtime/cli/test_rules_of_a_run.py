"""The settings that the master of a run works with."""

from __future__ import annotations

from pathlib import Path

from orders_job import Orders

from holdfast.runtime.cli.start.jobfile import load
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.execution.prepare import prepare
from holdfast.runtime.execution.running import _rules


def test_take_the_times_of_workers_from_the_settings(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    orders.write()
    app = load(orders.file)
    settings = resolve(app, env={"HOLDFAST_HEARTBEAT_MS": "700", "HOLDFAST_SILENT_AFTER_MS": "9000"})
    rules = _rules(prepare(app.plan(), settings), "host", epoch_deadline=30.0)
    assert (rules.heartbeat_every, rules.silent_after) == (0.7, 9.0)
