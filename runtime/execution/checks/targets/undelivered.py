"""Committed output that may not be delivered, of sinks that the code no longer has, or has with other columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from holdfast.checkpoint import joblog
from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import ConfigError, Where
from holdfast.model import Epoch
from holdfast.runtime.execution.facts import Facts
from holdfast.runtime.plan import shape_changes
from holdfast.runtime.plan.model import Plan, SinkSpec


def check(facts: Facts) -> ConfigError | None:
    """Refuse to abandon it."""
    before = facts.folder.before
    return None if before is None else refusal(facts.plan, facts.outputs, before, facts.folder.repository.records)


def refusal(
    plan: Plan, outputs: Sequence[SinkSpec], before: Manifest, records: Callable[[], Iterable[joblog.Record]]
) -> ConfigError | None:
    """Return why the plan is refused after this checkpoint.

    Args:
        records: Reads the job log; called only if the manifest names output of such a sink.
    """
    missing_sinks, changed_sinks = gone_sinks(outputs, before), _with_other_columns(plan, before)
    if not (missing_sinks or changed_sinks) or delivered_through(records(), before.epoch):
        return None
    if changed_sinks:
        what = (
            f"sink {changed_sinks[0]!r} has other columns now, but output with the former ones is committed and may "
            "not be "
            "delivered yet"
        )
        next_step = (
            "run the former code and end it with holdfast stop, which waits for delivery; then change the columns"
        )
    else:
        what = (
            f"the app no longer has the sink {missing_sinks[0]!r}, but output for it is committed and not delivered yet"
        )
        next_step = (
            f"put the sink {missing_sinks[0]!r} back, run the job and end it with holdfast stop, which waits for "
            "delivery; then remove the sink"
        )
    return ConfigError(
        what,
        not_done="the job was not started; state and output are untouched",
        next_step=next_step,
        where=Where(job=plan.app),
    )


def gone_sinks(outputs: Sequence[SinkSpec], before: Manifest) -> tuple[str, ...]:
    """Return the sinks with output in the manifest that the code no longer has."""
    return tuple(sorted({item.writer.sink for item in before.pending} - {spec.name for spec in outputs}))


def _with_other_columns(plan: Plan, before: Manifest) -> list[str]:
    """Return the sinks with pending output whose columns have other names or types now, as far as known."""
    if not isinstance(before.shape, dict) or not shape_changes.readable(before.shape):
        return []
    pending: Collection[str] = {item.writer.sink for item in before.pending}
    now = {sink.name: {field.name: str(field.type) for field in sink.schema} for sink in plan.sinks}
    had = {name: {n: kind for n, kind, _ in sink["columns"]} for name, sink in before.shape["sinks"].items()}
    return sorted(name for name in pending if name in now and name in had and now[name] != had[name])


def delivered_through(records: Iterable[joblog.Record], epoch: Epoch) -> bool:
    """Return whether a run stopped at this epoch, the job's last: a run stops only after all output is delivered (P13).

    The record that ends a rewind proves less: a target that cannot undo output may have been accepted as it is.
    """
    delivery_complete = rewound = False
    for record in records:
        match record.body:
            case joblog.Rewound():
                delivery_complete, rewound = False, True
            case joblog.CheckpointCompleted():
                rewound = False
            case joblog.Stopped(epoch=stopped):
                delivery_complete = stopped == epoch and not rewound
    return delivery_complete
