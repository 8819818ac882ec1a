"""A branch that looks every record up in a table of versions, as of its event time.

The versions are records too. Which versions and records are late depends on the order in which partitions were read:
late records are taken from the late output, and late versions may count or not.

Source: PROTOCOL P11; docs/design/0067-tables-and-lookups.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import polars as pl

from holdfast.chaos.sim.jobs import oracle
from holdfast.chaos.sim.jobs.branches.contract import Branch, Row, Watched
from holdfast.chaos.sim.jobs.expected.lookups import findable, is_version
from holdfast.chaos.sim.jobs.oracle import Cut
from holdfast.runtime.api.stream import Stream
from holdfast.sinks.memory import MemorySink

LOOKUPS, LOOKED_UP, LOOKED_UP_LATE, LOOKUP_OPERATOR = "lookups", "looked_up", "looked_up_late", "version_of"


def look_up(records: Stream) -> None:
    """Add the branch to a job."""
    changes = records.filter(pl.col("value") % 3 == 0).select(
        "bucket", "at", version=pl.col("id"), holdfast_deleted=pl.col("value") % 2 == 0
    )
    asking = records.select("id", "bucket", "at")
    found = asking.lookup(LOOKUP_OPERATOR, changes.to_table("versions", key="bucket"), on="bucket", how="left")
    found.select("id", "version").sink(LOOKED_UP, MemorySink())
    found.late.select("id").sink(LOOKED_UP_LATE, MemorySink())


class LookedUp:
    """What records found, compared with the versions."""

    def __init__(self, watched: Watched) -> None:
        self._records = {r.id: r for records in watched.partitions for r in records}
        self._watched, self._fail = watched, watched.fail

    def look(self, when: str, latest_us: int, cut: Cut, rows: Sequence[Row], added: Sequence[Row]) -> None:
        """No record found a version of later, or came out before time had passed it."""
        self._compare(when, cut, rows, added)
        for row in added:
            if (at := self._records[row["id"]].at) >= latest_us:
                self._fail("P11 early", f"lookup, {when}: {row} is of {at}, but time is at most {latest_us}")

    def taken_back(self, when: str, cut: Cut, rows: Sequence[Row]) -> None:
        """Nothing is in the result that was read after the base epoch."""
        self._compare(when, cut, rows, rows)

    def restored(self, when: str, earliest_us: int, cut: Cut, read: Callable[[str], Sequence[Row]]) -> None:
        """The result at the end shows what the state lacked."""

    def at_end(self, everything: Cut, rows: Sequence[Row], late: Sequence[Row]) -> None:
        """Every record found what it must, or is late."""
        self._compare("at the end", everything, rows, rows)
        prompt, read = self._watched.prompt(), oracle.read(self._watched.partitions, everything)
        found, late_ids = {row["id"] for row in rows}, {row["id"] for row in late}
        if wrong := sorted(late_ids & prompt):
            self._fail("P11 late", f"lookup: records {wrong} are late, although no watermark had passed them")
        if both := sorted(found & late_ids):
            self._fail("P11 late", f"lookup: {both} are in the result, but also late")
        if lost := sorted(record.id for record in read if record.id not in found | late_ids):
            self._fail("I1 loss", f"lookup: records {lost} are neither in the result nor late")
        versions = [record for record in read if is_version(record)]
        for row in rows:
            may_be = findable(self._records[row["id"]], versions, prompt)
            if row["version"] not in may_be:
                self._fail("I1 lookup", f"lookup: {row} may only have found {sorted(may_be, key=str)}")

    def _compare(self, when: str, cut: Cut, rows: Sequence[Row], by_then: Sequence[Row]) -> None:
        """Every record is there once, with a version that was not of later.

        Args:
            by_then: The rows whose records were read up to the cut.
        """
        if twice := sorted(id for id, count in Counter(row["id"] for row in rows).items() if count > 1):
            self._fail("I2 duplicate", f"lookup, {when}: records {twice} were looked up twice")
        read = {record.id for record in oracle.read(self._watched.partitions, cut)}
        if early := [row for row in by_then if not {row["id"], row["version"]} - {None} <= read]:
            self._fail("I5 visible", f"lookup, {when}: {early} were not read by then")
        for row in rows:
            if row["version"] is None:
                continue
            record, version = self._records[row["id"]], self._records[row["version"]]
            if not is_version(version) or version.id not in findable(record, [version], ()):
                self._fail("I1 lookup", f"lookup, {when}: {record} found {version}")


BRANCH = Branch(LOOKUPS, 0.08, "lookups 36", LOOKED_UP, LOOKED_UP_LATE, look_up, LookedUp)
