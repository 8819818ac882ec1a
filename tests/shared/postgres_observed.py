"""What a reader sees of a copy of the accounts while the copy follows them.

The reader takes one snapshot after the other, of the copy and of the tags that its writers have moved, and compares
each with the accounts as of one transaction (postgres_accounts.py). It shares no code with what copies them but the
functions that assign a key to a partition of the log, and to a worker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import psycopg
import pyarrow as pa
from accounts import NUMBER, Model
from postgres_server import PostgresPlace
from psycopg import IsolationLevel

from holdfast.state.keys.keygroups import key_groups_of, owners, splitmix64
from holdfast.storage.log.partitioning import partitions_of

KEY_GROUPS = 128
"""Of a job that sets no other number."""
PAUSE_S = 0.05
KNOWN_WITHIN_S = 30.0
"""The writer may learn only after a crash of the server that its last transaction was committed."""
Tags = dict[int, tuple[int, int]]
"""Timeline and epoch, by writer."""


class Spread(NamedTuple):
    """How a job spreads the accounts: those that share a partition and a worker are always as of one transaction."""

    partitions: int
    workers: int

    def place(self, key: int) -> tuple[int, int]:
        """Return the partition of the log, and the worker."""
        table = pa.table({"id": pa.array([key], pa.int64())})
        (partition,) = partitions_of(table, ["id"], self.partitions).tolist()
        (group,) = key_groups_of(splitmix64(np.array([key], np.int64)), KEY_GROUPS)
        return partition, int(owners(self.workers, KEY_GROUPS)[group])


class Compared:
    """Compares one snapshot after the other.

    Each has to show, for every partition and worker, the accounts as of one transaction, which never goes back. Where
    the log has one partition and all workers have delivered one epoch, it is one transaction for all.

    Args:
        history: The accounts as of each transaction, which grows meanwhile.
        known_within_s: The history has a transaction at the latest so long after a snapshot that shows it.
    """

    def __init__(self, history: Sequence[Model], spread: Spread, known_within_s: float = KNOWN_WITHIN_S) -> None:
        self.snapshots = 0
        self.tags = set[tuple[tuple[int, tuple[int, int]], ...]]()
        """Every combination of tags that was seen."""
        self.whole = set[int]()
        """Numbers of the transactions that a snapshot showed as a whole."""
        self.rows: Model = {}
        self.faults = list[str]()
        self._history, self._spread, self._known_within_s = history, spread, known_within_s
        self._last: Tags = {}
        self._at = dict[tuple[int, int], int]()
        """By partition and worker: the transaction that was seen last; -1: none."""
        self._places = dict[int, tuple[int, int]]()

    @property
    def newest(self) -> int:
        """The newest transaction that was seen, as a whole where the log has one partition; -1: none."""
        return max(self.whole, default=-1) if self._spread.partitions == 1 else self.rows.get(NUMBER, -1)

    def take(self, tags: Tags, rows: Model) -> None:
        """Take the next snapshot."""
        self.snapshots += 1
        if self._last.keys() - tags.keys() or any(tag < self._last.get(writer, tag) for writer, tag in tags.items()):
            self.faults.append(f"tags went back from {self._last} to {tags}")
        if tags == self._last and rows != self.rows:
            self.faults.append(f"rows changed under the tags {tags}: {_difference(self.rows, rows)}")
        if tags != self._last:
            self.tags.add(tuple(sorted(tags.items())))
            self._compare(tags, rows)
        self._last, self.rows = tags, rows

    def _compare(self, tags: Tags, rows: Model) -> None:
        parts = {place: Model() for place in self._at}
        for key, balance in rows.items():
            parts.setdefault(self._place_of(key), {})[key] = balance
        for place, part in parts.items():
            if not self._find(place, part):
                self.faults.append(f"partition and worker {place}: no transaction is {part}, under the tags {tags}")
                return
        if self._spread.partitions == 1 and len(tags) == self._spread.workers and len(set(tags.values())) == 1 and rows:
            number = rows.get(NUMBER, -1)
            if rows != self._history[number]:
                self.faults.append(f"{tags} is not {number}: {_difference(self._history[number], rows)}")
            self.whole.add(number)

    def _find(self, place: tuple[int, int], part: Model) -> bool:
        """Return whether a transaction, the last one that was seen or a later one, has these rows at this place."""
        at, until_s = self._at.get(place, -1), time.monotonic() + self._known_within_s
        while True:
            while at < len(self._history):
                if self._as_of(at, place) == part:
                    self._at[place] = at
                    return True
                at += 1
            if time.monotonic() >= until_s:
                return False
            threading.Event().wait(PAUSE_S)

    def _as_of(self, number: int, place: tuple[int, int]) -> Model:
        rows = {} if number < 0 else self._history[number]
        return {key: balance for key, balance in rows.items() if self._place_of(key) == place}

    def _place_of(self, key: int) -> tuple[int, int]:
        if (found := self._places.get(key)) is None:
            found = self._places[key] = self._spread.place(key)
        return found


class Observed(Compared):
    """Reads the copy all along, while the block lasts or until something is wrong.

    Args:
        place: The schema with the table `copy`.
        history: The accounts as of each transaction, which grows meanwhile.
    """

    def __init__(self, place: PostgresPlace, history: Sequence[Model], spread: Spread) -> None:
        super().__init__(history, spread)
        self._place, self._closed = place, threading.Event()
        self._thread = threading.Thread(target=self._run, name="observed")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        options = f"-csearch_path={self._place.schema}"
        while not self._is_over():
            try:
                with psycopg.connect(self._place.dsn, options=options) as db:
                    db.isolation_level = IsolationLevel.REPEATABLE_READ
                    while not self._is_over():
                        self.take(*_snapshot(db))
            except psycopg.OperationalError:
                continue  # the server is down, on purpose

    def _is_over(self) -> bool:
        """Wait for a moment; return whether to read no more."""
        return self._closed.wait(PAUSE_S) or self.faults != []


def _snapshot(db: psycopg.Connection[Any]) -> tuple[Tags, Model]:
    """Return tags and rows as of one moment."""
    with db.transaction():
        found = db.execute("SELECT writer, timeline, epoch FROM holdfast_progress WHERE sink = 'copy-out'")
        tags = {int(writer): (int(timeline), int(epoch)) for writer, timeline, epoch in found.fetchall()}
        rows = {int(key): int(balance) for key, balance in db.execute("SELECT id, balance FROM copy").fetchall()}
    return tags, rows


def _difference(wanted: Model, found: Model) -> str:
    return f"expected {dict(wanted.items() - found.items())}, found {dict(found.items() - wanted.items())}"
