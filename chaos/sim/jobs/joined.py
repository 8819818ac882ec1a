"""A branch of the job that joins the records with half of themselves, by bucket and event time.

Every record is on the left and those with an even value are on the right, so some records have no partner.

Source: docs/design/0060-joins.md.
"""

from __future__ import annotations

import polars as pl

import holdfast as hf
from holdfast.runtime.api.stream import Stream
from holdfast.sinks.memory import MemorySink

JOINS_SHARE = 0.12
"""Of the seeds with event time."""
JOINED, JOINED_LATE, JOIN_OPERATOR = "joined", "joined_late", "near"
LOWER_S, UPPER_S = -1, 2


def join_near(records: Stream) -> None:
    """Add the branch to a job."""
    left, right = (rows.select("id", "bucket", "at") for rows in (records, records.filter(pl.col("value") % 2 == 0)))
    within = hf.between(f"{LOWER_S}s", f"{UPPER_S}s")
    joined = left.join(JOIN_OPERATOR, right, on="bucket", within=within, how="left")
    joined.select("id", "id_right").sink(JOINED, MemorySink())
    joined.late.select("id", "id_right").sink(JOINED_LATE, MemorySink())
