"""Whether a sink's target is the one that has its output, or another one that the job was pointed at since.

A target keeps the tags of its deliveries, and checkpoints keep the place of every sink. A target without any
tag, in another place than that of a checkpoint with output of the sink, is another one: to repair it changes nothing,
and the rows that a rewind has to undo stay in the former one. A copy of a target has its tags, wherever it is.

A SQL target has the tags of all of its tables; there before-images name the table (sinks/sql/moved.py).

Invariants
    - A target that cannot be read, or was not recorded, never counts as another target.

Source: PROTOCOL P21, P24; docs/decisions/0106-sinks-that-move.md.
"""

from __future__ import annotations

from holdfast.checkpoint.manifest import Manifest
from holdfast.runtime.plan import shape_changes
from holdfast.runtime.plan.model import SinkSpec
from holdfast.runtime.plan.targets import same_target, target_of
from holdfast.sinks.contract.owners import NEVER, Holding, went_back


def lacks_output(there: Manifest, here: Manifest, job_uuid: str, spec: SinkSpec) -> tuple[str, bool] | None:
    """Return why a rewind of this target would not undo the sink's output; None if it would.

    Args:
        there: The checkpoint to return to.
        here: The last checkpoint.

    Returns:
        The reason, and whether the job could continue in the target anyway.

    Raises:
        HoldfastError: the target cannot be read.
    """
    if (ownership := spec.sink.ownership) is None:
        return None
    holding = ownership.holding(job_uuid, spec.name)
    confirmed = max((done.tag for done in there.confirmed if done.writer.sink == spec.name), default=NEVER)
    reason = moved_from(here, spec, holding)
    if (holding.newest or NEVER) < confirmed:
        error = went_back(f"{spec.sink.where}, sink {spec.name!r}", holding.newest, confirmed)
        return error.what if reason is None else reason, False
    return None if reason is None else (reason, True)


def moved_from(last: Manifest, spec: SinkSpec, holding: Holding) -> str | None:
    """Return where the output of a sink is, if it is in another target than the sink has now."""
    written = {done.writer.sink for done in last.confirmed} | {item.writer.sink for item in last.pending}
    if holding.newest is not None or spec.name not in written:
        return None
    shape = last.shape
    if not isinstance(shape, dict) or not shape_changes.readable(shape) or spec.name not in shape["sinks"]:
        return None
    sink_shape = shape["sinks"][spec.name]
    there = same_target({"kind": sink_shape["kind"], **sink_shape["place"]})
    if not sink_shape["place"] or there == target_of(spec.sink):
        return None
    return (
        f"its output is in {shape_changes.place_of(sink_shape)}, where the sink wrote up to epoch {last.epoch}, and "
        f"{spec.sink.where} has none of it"
    )
