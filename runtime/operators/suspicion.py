"""A function that has ended its process, and the batch that it is given next (docs/decisions/0117).

Its rows are given to it in small portions, so that the place that is noted before the next death is narrow. Rows for
which it is known to end its process are not given to it.

Pure.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from msgspec import structs
from numpy.typing import NDArray

from holdfast.runtime.operators.contract import Arrival
from holdfast.runtime.rows.dead_letters import encode_row
from holdfast.runtime.wire.messages import Killer, Suspect
from holdfast.runtime.wire.vitals import UNKNOWN, At
from holdfast.storage.rowhash import row_hashes
from holdfast.storage.xxh3 import xxh3_of


class WatchedBatch:
    """One batch on its way to such a function.

    Args:
        rows_max: How many rows it gets together; 0: there is no limit.
        limited: For which rows the limit holds.
    """

    def __init__(
        self, suspect: Suspect, batch: pa.RecordBatch, arrival: Arrival, rows_max: int, limited: range
    ) -> None:
        self._rows_max, self._limited = rows_max, limited
        killers = [killer for killer in suspect.killers if _may_hold(arrival, killer)]
        self._digests = digests_of(batch) if killers or rows_max == 1 else None
        killers_by_digest = {killer.digest: killer for killer in killers}
        self._killers = {}
        if self._digests is not None and killers_by_digest:
            at = np.isin(self._digests, np.array(list(killers_by_digest), np.uint64)).nonzero()[0]
            self._killers = {int(row): killers_by_digest[int(self._digests[row])] for row in at}

    @property
    def has_killers(self) -> bool:
        """Return whether there are rows for which the function is known to end its process."""
        return bool(self._killers)

    def killer(self, row: int) -> Killer | None:
        """Return the entry of a row for which the function is known to end its process."""
        return self._killers.get(row)

    def end(self, row: int, rows: int) -> int:
        """Return where the portion ends that begins with this row."""
        end = min((at for at in self._killers if at > row), default=rows)
        if not self._rows_max or row >= self._limited.stop:
            return end
        return min(end, self._limited.start if row < self._limited.start else row + self._rows_max)

    def digest(self, row: int) -> int:
        """Return the hash of the row if it is given alone; else 0."""
        alone = self._rows_max == 1 and row in self._limited
        return int(self._digests[row]) if alone and self._digests is not None else 0


def watched(
    suspect: Suspect, early: bool, batch: pa.RecordBatch, arrival: Arrival, base: int | None
) -> WatchedBatch | None:
    """Return how to give this batch to a function under suspicion; None: as to any other.

    Args:
        early: Whether the limit still holds for rows without offsets; for others the offsets end it.
        base: The number of the first row among the records of the arrival; None: rows and records do not correspond.
    """
    holds = early or (suspect.partition != UNKNOWN and arrival.partition is not None)
    rows = range(batch.num_rows) if holds and suspect.rows_max else range(0)
    if rows and suspect.partition != UNKNOWN:
        rows = _inside(suspect, arrival, base, batch.num_rows)
    found = WatchedBatch(suspect, batch, arrival, suspect.rows_max if rows else 0, rows)
    return found if rows or found.has_killers else None


def lifted(suspects: tuple[Suspect, ...]) -> tuple[Suspect, ...]:
    """Return the suspects that remain once the limits for rows without offsets have held for long enough."""
    return tuple(
        structs.replace(each, rows_max=0) if each.rows_max and each.partition == UNKNOWN else each for each in suspects
    )


def _inside(suspect: Suspect, arrival: Arrival, base: int | None, count: int) -> range:
    """Return which rows are, or may be, of the offsets under suspicion."""
    if not _overlaps(arrival, suspect.partition, suspect.offset, suspect.following):
        return range(0)
    if base is None or arrival.offset_of(base) is None:
        return range(count)
    offsets = [arrival.offset_of(base + row) for row in range(count)]
    inside = [row for row, at in enumerate(offsets) if at is not None and suspect.offset <= at < suspect.following]
    return range(inside[0], inside[-1] + 1) if inside else range(0)


def place_of(arrival: Arrival, base: int, aligned: bool, rows: int) -> At:
    """Return the notes on this many rows, of which the first is number `base` of the arrival if that is aligned."""
    if arrival.partition is None or arrival.offset is None or arrival.following is None:
        return At(rows)
    first, following = arrival.offset, arrival.following
    if aligned and (own := arrival.offset_of(base)) is not None:
        first = own
        if (last := arrival.offset_of(base + rows - 1)) is not None:
            following = last + 1
    return At(rows, arrival.partition, first, following)


def digests_of(batch: pa.RecordBatch) -> NDArray[np.uint64]:
    """Return a hash of every row, which is never 0."""
    hashes = row_hashes(batch)
    if hashes is None:
        hashes = xxh3_of(pa.array([encode_row(batch, row) for row in range(batch.num_rows)], pa.binary()))
    return np.maximum(hashes, np.uint64(1))


def _may_hold(arrival: Arrival, killer: Killer) -> bool:
    return killer.partition == UNKNOWN or _overlaps(arrival, killer.partition, killer.offset, killer.offset + 1)


def _overlaps(arrival: Arrival, partition: int, first: int, following: int) -> bool:
    """Return whether records of this range may be in an arrival."""
    if arrival.partition is None or arrival.offset is None or arrival.following is None:
        return True
    return arrival.partition == partition and arrival.offset < following and first < arrival.following
