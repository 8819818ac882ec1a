"""The expected answer, computed slowly and obviously.

It shares no code with the runtime: a record is a tuple, an aggregate a loop.

Source: DESIGN section 10.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PARTITION_STRIDE = 1_000_000
"""Ids are partition * stride + offset, so that a row shows its origin."""

ACCOUNT_COUNT = 7


@dataclass(frozen=True)
class Input:
    """One record."""

    id: int
    key: int
    bucket: int
    value: int
    at: int = 0
    """Event time in microseconds."""

    @property
    def place(self) -> int:
        """A key whose records are all in one partition."""
        return 100 * (self.id // PARTITION_STRIDE) + self.key


Partitions = Sequence[Sequence[Input]]
Cut = Mapping[int, int]
"""How many records of each partition are included."""


def totals(partitions: Partitions, cut: Cut, by: str) -> dict[int, dict[str, Any]]:
    """Return the row of every key: count, sum, minimum and maximum."""
    rows: dict[int, dict[str, Any]] = {}
    for partition, records in enumerate(partitions):
        for record in records[: cut.get(partition, 0)]:
            key = record.key if by == "key" else record.bucket
            if key not in rows:
                rows[key] = {by: key, "n": 0, "total": 0, "low": record.value, "high": record.value}
            row = rows[key]
            row["n"] += 1
            row["total"] += record.value
            row["low"] = min(row["low"], record.value)
            row["high"] = max(row["high"], record.value)
    return rows


def spelled(partitions: Partitions, cut: Cut) -> dict[str, dict[str, Any]]:
    """Return the row of every word: count, least text, greatest bytes; null if it had none."""
    rows: dict[str, dict[str, Any]] = {}
    for partition, records in enumerate(partitions):
        for record in records[: cut.get(partition, 0)]:
            word = f"word {record.key % 4}\x00"
            row = rows.setdefault(word, {"word": word, "n": 0, "least": None, "blob": None})
            row["n"] += 1
            if record.value % 3:
                text = f"{record.value} of {record.bucket}"
                row["least"] = text if row["least"] is None else min(row["least"], text)
            if record.value > 0:
                blob = str(record.id).encode()
                row["blob"] = blob if row["blob"] is None else max(row["blob"], blob)
    return rows


def accounts_of(key: int, bucket: int) -> tuple[int, int]:
    """Return the two accounts between which a record moves its value: from, to."""
    return key % ACCOUNT_COUNT, (key + 1 + bucket) % ACCOUNT_COUNT


def balances(partitions: Partitions, cut: Cut) -> dict[int, dict[str, int]]:
    """Return the row of every account: number of transfers and balance."""
    rows: dict[int, dict[str, int]] = {}
    for partition, records in enumerate(partitions):
        for record in records[: cut.get(partition, 0)]:
            source, target = accounts_of(record.key, record.bucket)
            for account, delta in ((source, -record.value), (target, record.value)):
                row = rows.setdefault(account, {"account": account, "n": 0, "balance": 0})
                row["n"] += 1
                row["balance"] += delta
    return rows


def window_end(record: Input, size: int) -> int:
    """Return the end of the record's window."""
    return (record.at // size + 1) * size


def windows(partitions: Partitions, cut: Cut, size: int, without: Collection[int]) -> dict[tuple[int, int], list[int]]:
    """Return the row of every bucket and window end, without these ids: count, sum, minimum and maximum."""
    rows: dict[tuple[int, int], list[int]] = {}
    for partition, records in enumerate(partitions):
        for record in records[: cut.get(partition, 0)]:
            if record.id not in without:
                value, place = record.value, (record.bucket, window_end(record, size))
                n, total, low, high = rows.get(place, [0, 0, value, value])
                rows[place] = [n + 1, total + value, min(low, value), max(high, value)]
    return rows


def watermark(records: Sequence[Input], offset: int, out_of_orderness: int) -> int | None:
    """Return the watermark of a partition after `offset` records; None before the first."""
    return max(record.at for record in records[:offset]) - out_of_orderness if offset else None


def prompt(partitions: Partitions, out_of_orderness: int, lasting: int) -> set[int]:
    """Return the ids of the records of whose time their own partition's watermark was less than `lasting` past."""
    ids: set[int] = set()
    for records in partitions:
        for offset, record in enumerate(records):
            passed = watermark(records, offset, out_of_orderness)
            if passed is None or record.at + lasting > passed:
                ids.add(record.id)
    return ids


def never_late(partitions: Partitions, size: int, lateness: int, out_of_orderness: int) -> set[int]:
    """Return the ids of the records that are not older than their own partition's watermark before them."""
    ids: set[int] = set()
    for records in partitions:
        for offset, record in enumerate(records):
            said = watermark(records, offset, out_of_orderness)
            if said is None or window_end(record, size) + lateness > said:
                ids.add(record.id)
    return ids


def passing(partitions: Partitions, cut: Cut, above: int | None) -> dict[int, list[int]]:
    """Return the ids of the records that pass the filter, by partition, in order."""
    return {
        partition: [r.id for r in records[: cut.get(partition, 0)] if above is None or r.value > above]
        for partition, records in enumerate(partitions)
    }


def lasts(partitions: Partitions, cut: Cut, above: int | None) -> dict[int, Input]:
    """Return the last record that passes the filter, by place."""
    last: dict[int, Input] = {}
    for partition, records in enumerate(partitions):
        for record in records[: cut.get(partition, 0)]:
            if above is None or record.value > above:
                last[record.place] = record
    return last


def shown(record: Input) -> dict[str, int]:
    """Return a record's row in the table with immediate writes."""
    return {"place": record.place, "id": record.id, "value": record.value}


def read(partitions: Partitions, cut: Cut) -> list[Input]:
    """Return the records up to the cut."""
    return [record for partition, records in enumerate(partitions) for record in records[: cut.get(partition, 0)]]


def whole(partitions: Partitions) -> dict[int, int]:
    """Return the cut that holds every record."""
    return {partition: len(records) for partition, records in enumerate(partitions)}
