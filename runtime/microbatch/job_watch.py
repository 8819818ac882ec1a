"""Reports what the Spark job of an epoch waits for, as far as its driver knows: executors, or tasks that take long.

Spark waits for executors without a word, and a task may call a function that does not return.

Pure.
Source: docs/decisions/0047-microbatch.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.runtime.microbatch.layers import Layers
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.wire.vitals import FUNCTION, described

GONE_S = 10.0
LONG_S = 2.0
"""Tasks that take longer are named."""
_NO_EXECUTOR = (
    "see whether its master and workers are alive. A master that was restarted without spark.deploy.recoveryMode gives "
    "it none: start the job again"
)


class LayerProgress(NamedTuple):
    """How far the tasks of one layer are."""

    tasks: int
    ended: int
    failed: int
    """Attempts that failed; Spark repeats them."""


class JobWatch:
    """One job.

    Args:
        began: Time of its start, in seconds.
    """

    def __init__(self, plan: Plan, layers: Layers, began: float) -> None:
        self._calls = [[name for at in sorted(layer) for name in plan.fragments[at].calls()] for layer in layers]
        self._began = self._moved = began
        self._stages: Sequence[LayerProgress] = ()
        self._gone_at: float | None = None

    def look(self, now: float, executors: int, stages: Sequence[LayerProgress]) -> str:
        """Return why the job gets nowhere, empty if it does.

        Args:
            stages: Stages of the layers that have begun.
        """
        if stages != self._stages:
            self._stages, self._moved = stages, now
        self._gone_at = None if executors else now if self._gone_at is None else self._gone_at
        gone_s = 0.0 if self._gone_at is None else now - self._gone_at
        if gone_s > GONE_S:
            return f"Spark has had no executor for {gone_s:.0f} s; {_NO_EXECUTOR}"
        if executors and stages and now - self._moved > LONG_S:
            return self._slow(now, len(stages) - 1, stages[-1])
        return ""

    def _slow(self, now: float, layer: int, stage: LayerProgress) -> str:
        calls = self._calls[layer] if layer < len(self._calls) else []
        names = ", ".join(described(FUNCTION + name) for name in calls)
        return (
            f"its Spark job has run for {now - self._began:.0f} s; {stage.tasks - stage.ended} of {stage.tasks} tasks "
            f"of stage {layer + 1} of {len(self._calls)} still run"
            + (f", {stage.failed} attempts have failed" if stage.failed else "")
            + (f"; they call {names}" if names else "")
        )
