"""The branches that there are, in the order in which a job gets them."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.chaos.sim.jobs.branches import joins, lookups, patterns, reminders, sessions
from holdfast.chaos.sim.jobs.branches.contract import Branch

BRANCHES: Mapping[str, Branch] = {
    each.name: each for each in (joins.BRANCH, reminders.BRANCH, sessions.BRANCH, lookups.BRANCH, patterns.BRANCH)
}
