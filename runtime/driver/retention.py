"""When the master expires checkpoints and prunes the log, and which workers it notifies.

Pure: no clock, thread or I/O.
Source: PROTOCOL P7, P16; docs/design/0007.
"""

from __future__ import annotations

from holdfast.checkpoint import joblog
from holdfast.checkpoint.append import Draft
from holdfast.checkpoint.catalogue import expirable, log_is_long
from holdfast.checkpoint.timeline import timeline_of
from holdfast.model import NO_EPOCH, Tag
from holdfast.runtime.driver.events import Effect, Send, Sweep
from holdfast.runtime.driver.state import Master
from holdfast.runtime.wire import messages as m


def draft(state: Master, at_us: int) -> Draft | None:
    """Return the record to append while no epoch is open, None if none is due."""
    rule, job = state.rules.retention, state.job
    if (through := expirable(job, rule, at_us)) != NO_EPOCH:
        return lambda _job: joblog.Expired(through)
    return joblog.LogStart if log_is_long(job, rule) else None


def appended(state: Master) -> list[Effect]:
    """The record is in the log: objects, records and before-images may be deleted."""
    job = state.job
    through = job.expired_through
    # The tag carries the epoch's own timeline: tags of a later timeline are above all that an earlier one delivered.
    expired = m.Expired(job.generation, Tag(timeline_of(job.rewinds, through), through))
    return [Sweep(job), *(Send(worker, expired) for worker in state.assigned)]
