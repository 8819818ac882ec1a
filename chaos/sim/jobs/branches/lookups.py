"""A branch that looks every record up in a table of versions, as of its event time.

The versions are records too. Which versions and records are late depends on the order in which partitions were read:
late records are taken from the late output, and late versions may count or not.

Source: PROTOCOL P11; docs/decisions/0067-tables-and-lookups.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl

from holdfast.chaos.sim.jobs import oracle
from holdfast.chaos.sim.jobs.branches.compared import Compared
from holdfast.chaos.sim.jobs.branches.contract import Branch, Row
from holdfast.chaos.sim.jobs.expected.lookups import findable, is_version
from holdfast.chaos.sim.jobs.oracle import Cut
from holdfast.runtime.api.stream import Stream
from holdfast.sinks.memory.sink import MemorySink

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


class LookedUp(Compared):
    """Compares the rows that records found with the versions."""

    called = "lookup"

    def ids(self, row: Row) -> set[int]:
        """Return the record, and the version that it found, if any."""
        return {row["id"], row["version"]} - {None}

    def due(self, row: Row) -> int:
        """A record comes out when event time has passed its own."""
        return self.records[row["id"]].at + 1

    def unique(self, row: Row) -> list[int]:
        """A record is looked up once; a version may be found more often."""
        return [row["id"]]

    def compare_each(self, when: str, rows: Sequence[Row]) -> None:
        """Every record found a version that it could find."""
        for row in rows:
            if row["version"] is None:
                continue
            record, version = self.records[row["id"]], self.records[row["version"]]
            if not is_version(version) or version.id not in findable(record, [version], ()):
                self.fail("I1 lookup", f"lookup, {when}: {record} found {version}")

    def restored(self, when: str, earliest_us: int, cut: Cut, read: Callable[[str], Sequence[Row]]) -> None:
        """The result at the end shows rows that the state lacked."""

    def at_end(self, everything: Cut, rows: Sequence[Row], late: Sequence[Row]) -> None:
        """Every record found the expected version, or is late."""
        self.compare("at the end", everything, rows, rows)
        self.compare_late([row["id"] for row in late], {row["id"] for row in rows}, everything, 1)
        versions = [record for record in oracle.read(self.watched.partitions, everything) if is_version(record)]
        prompt = self.watched.prompt(1)
        for row in rows:
            may_be = findable(self.records[row["id"]], versions, prompt)
            if row["version"] not in may_be:
                self.fail("I1 lookup", f"lookup: {row} may only have found {sorted(may_be, key=str)}")


BRANCH = Branch(LOOKUPS, 0.08, "lookups 36", LOOKED_UP, LOOKED_UP_LATE, look_up, LookedUp)
