"""Expected reports of a function that has a timer for every record a while after its event time.

Source: docs/decisions/0065-keyed-functions.md.
"""

from __future__ import annotations

from holdfast.chaos.sim.jobs import oracle
from holdfast.chaos.sim.jobs.oracle import Cut, Partitions

AFTER_US = 1_500_000
"""From a record's event time to the time for which its timer is set."""


def reminders(partitions: Partitions, cut: Cut) -> dict[int, tuple[int, int]]:
    """Return the key of every record up to the cut, and when its timer is due, by id."""
    return {record.id: (record.key, record.at + AFTER_US) for record in oracle.read(partitions, cut)}
