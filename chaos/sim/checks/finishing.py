"""Where the input of a job ends when a user asks it to finish: after every record that has arrived by then.

The run that accepts the request fixes the ends, and fixes them again, later, after a recovery. Other runs know nothing
of the request: a run that takes over from this one reads everything.

    P13  the last epoch holds every record that had arrived when the request was accepted

Source: PROTOCOL P13; runtime/driver/requests.py.
"""

from __future__ import annotations

from bisect import bisect_right

from holdfast.chaos.sim.jobs import oracle
from holdfast.chaos.sim.jobs.oracle import Cut
from holdfast.chaos.sim.jobs.workload import Scenario


class FinishRequests:
    """The requests to finish that runs have accepted."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._least: dict[str, Cut] = {}
        """By owner of a run: the records that had arrived in each partition when it accepted to finish."""

    def accepted(self, owner: str, at: float) -> Cut:
        """A run accepted to finish; return the least offsets that it must reach. A repeated request changes nothing."""
        there = [p for partitions in self._scenario.sources_at(at).values() for p in partitions]
        return self._least.setdefault(owner, {p: bisect_right(self._scenario.arrivals[p], at) for p in there})

    def everything(self, owner: str, last: Cut) -> Cut:
        """Return the cut of the whole input.

        Args:
            owner: Owner of the run that finishes the job.
            last: The cut of the last epoch.
        """
        if (least := self._least.get(owner)) is None:
            return oracle.whole(self._scenario.partitions)
        return {p: max(last.get(p, 0), least.get(p, 0)) for p in sorted({*last, *least})}
