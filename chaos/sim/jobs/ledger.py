"""Two more jobs with a known answer: a ledger, whose sum never changes, and counts that are aggregated twice.

Every record of the ledger moves its value from one account to another; a function makes two rows of it. The balances
of all accounts add up to zero whenever every writer shows the same epoch, in every checkpoint, and at the end. The
regrouped counts pass two shuffles: windows per bucket, then a sum of their results per bucket.

Source: DESIGN section 10; the bank test of Jepsen; PROTOCOL P25.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

import holdfast as hf
from holdfast.chaos.sim.jobs import oracle
from holdfast.chaos.sim.jobs.oracle import Cut, Partitions
from holdfast.model import Epoch, Tag, Writer
from holdfast.runtime.api.stream import Stream
from holdfast.sinks.memory.sink import MemorySink

ACCOUNTS, REGROUPED = "accounts", "regrouped"
LEDGER_OPERATOR, REGROUPED_OPERATOR = "balances", "regrouped_counts"
POSTING = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("account", "delta")])
BALANCE = {"n": "n.count", "balance": "balance.sum"}
"""Columns of an account's row, by their names in the state."""
GATHERED = {"windows": "windows.count", "n": "n.sum"}
"""Likewise for the regrouped counts."""
Fail = Callable[[str, str], None]
Row = Mapping[str, Any]


def postings(row: Any) -> Iterator[dict[str, int]]:
    """Return the two rows of a transfer."""
    source, target = oracle.accounts_of(row.key, row.bucket)
    yield {"account": source, "delta": -row.value}
    yield {"account": target, "delta": row.value}


def keep_ledger(records: Stream) -> None:
    """Add the ledger to a job."""
    balances = (
        records.flat_map(postings, to=POSTING)
        .key_by("account")
        .agg(LEDGER_OPERATOR, n=hf.count(), balance=hf.sum("delta"))
    )
    balances.sink(ACCOUNTS, MemorySink(key=["account"]))


def regroup(counted: Stream) -> None:
    """Aggregate the results of windows again."""
    regrouped = counted.key_by("bucket").agg(REGROUPED_OPERATOR, windows=hf.count(), n=hf.sum("n"))
    regrouped.sink(REGROUPED, MemorySink(key=["bucket"]))


class Ledger:
    """The accounts as a reader of the target sees them."""

    def __init__(self, partitions: Partitions, rescales: bool, fail: Fail) -> None:
        self._partitions, self._rescales, self._fail = partitions, rescales, fail
        self._writers: dict[int, Writer] = {}
        self._shown: dict[Writer, Epoch] = {}

    def look(self, writer: Writer, tag: Tag, cut: Cut, accounts: set[int], rows: Sequence[Row]) -> None:
        """A delivery wrote these accounts; all accounts of the writer must then match the epoch."""
        if self._rescales:
            return
        self._writers |= dict.fromkeys(accounts, writer)
        self._shown[writer] = tag.epoch
        expected_rows = oracle.balances(self._partitions, cut)
        for row in rows:
            account = row["account"]
            if self._writers.get(account) == writer and row != expected_rows.get(account):
                what = f"{writer} at epoch {tag.epoch} shows {row}, expected {expected_rows.get(account)}"
                self._fail("I5 visible", f"accounts: {what}")
        one_epoch = len({self._shown[each] for each in self._writers.values()}) == 1
        if one_epoch and (total := sum(row["balance"] for row in rows)) and len(rows) == len(expected_rows):
            self._fail("I5 ledger", f"at epoch {tag.epoch} all balances add up to {total}: {rows}")

    def compare(self, rule: str, when: str, cut: Cut, rows: Sequence[Row]) -> None:
        """Compare all accounts: they match the cut and add up to zero."""
        found, expected = {row["account"]: row for row in rows}, oracle.balances(self._partitions, cut)
        if found != expected:
            self._fail(rule, f"{when}: accounts are {found}, expected {expected}")
        if total := sum(row["balance"] for row in rows):
            self._fail("I5 ledger", f"{when}: all balances add up to {total}")


class Regrouped:
    """The counts after two shuffles, compared with their input."""

    def __init__(self, partitions: Partitions, fail: Fail) -> None:
        self._partitions, self._fail = partitions, fail

    def look(self, when: str, cut: Cut, rows: Sequence[Row]) -> None:
        """No bucket counts more records than were read."""
        most = oracle.totals(self._partitions, cut, "bucket")
        for row in rows:
            if row["n"] > most.get(row["bucket"], {"n": 0})["n"]:
                self._fail(
                    "I5 visible", f"{when}: regrouped {row}, but its bucket had {most.get(row['bucket'])} records"
                )

    def at_end(self, rows: Sequence[Row], windows: Sequence[Row]) -> None:
        """Every window's result counts once."""
        expected_counts: dict[int, list[int]] = {}
        for window in windows:
            count, n = expected_counts.get(window["bucket"], [0, 0])
            expected_counts[window["bucket"]] = [count + 1, n + window["n"]]
        found = {row["bucket"]: [row["windows"], row["n"]] for row in rows}
        if found != expected_counts:
            self._fail("I1 loss", f"regrouped, (windows, records) by bucket: {found}, expected {expected_counts}")
