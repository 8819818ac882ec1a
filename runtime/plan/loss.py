"""Whether a source will remove records before a job has read them.

A source with the trait `removes_old` reports the records that it still has and those that it removes soon. Two looks
some time apart show how fast the job reads and how fast records come; at that pace, the job either reads records before
their removal, or not.

Invariants
    - A job that has read all that there was at the earlier look keeps up, whatever the source removes.
    - A pace is that of completed checkpoints: records that a checkpoint does not hold are read again after a failure.

Pure. Source: DESIGN section 6 (an alarm before records are lost); docs/decisions/0108-loss-alarm.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.runtime.plan.source import Kept


@dataclass(frozen=True)
class PartitionLook:
    """The state of a partition at one moment.

    Args:
        at_s: When it was read.
        position: The next offset to read, as of the last completed checkpoint.
    """

    at_s: float
    position: int
    kept: Kept


@dataclass(frozen=True)
class Risk:
    """Records that their source removes before the job has read them, at the present pace.

    Args:
        position: The next offset to read.
        end: The offset before which records are removed within the time of the alarm.
        removed: How many of these records are removed already.
        rate: Offsets that the job reads per second; None: the job does not run.
    """

    position: int
    end: int
    removed: int
    rate: float | None


def at_risk(earlier: PartitionLook | None, now: PartitionLook, within_s: float) -> Risk | None:
    """Return the records that will be lost within this time; None if none will.

    Args:
        earlier: A look some time before; None: the job does not run, and reads nothing in that time.
    """
    retention, position = now.kept, now.position
    if position >= retention.end:
        return None
    seconds = 0.0 if earlier is None else now.at_s - earlier.at_s
    rate, came = 0.0, 0.0
    if earlier is not None and seconds > 0:
        rate = max(0.0, (position - earlier.position) / seconds)
        came = max(0.0, (retention.end - earlier.kept.end) / seconds)
    due = retention.first if retention.by_age is None else max(retention.first, retention.by_age)
    if retention.by_size:  # as many records go as come
        due = max(due, retention.first + int(came * within_s))
    due = min(due, retention.end)
    removed_count = max(0, retention.first - position)
    keeps_up = earlier is not None and position >= earlier.kept.end
    if not removed_count and (keeps_up or position + rate * within_s >= due):
        return None
    return Risk(position, due, removed_count, None if earlier is None else rate)


def described(source: str, partition: int, risk: Risk, within: str) -> str:
    """Return a sentence about the risk, without a full stop.

    Args:
        within: The time of the alarm, as text.
    """
    where = f"source {source!r}, partition {partition}"
    if risk.removed:
        last = risk.position + risk.removed - 1
        return (
            f"{where}: offsets {risk.position:,} to {last:,} ({risk.removed:,}), which the last checkpoint has not "
            "read, were removed; a start, or a recovery, finds them missing"
        )
    pace = "the job is not running" if risk.rate is None else f"the job reads {risk.rate:,.1f} offsets per second"
    return (
        f"{where}: unread records before offset {risk.end:,} will be removed within {within}; the last checkpoint is "
        f"at offset {risk.position:,}, and {pace}"
    )
