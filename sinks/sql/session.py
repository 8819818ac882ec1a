"""Statements of one connection: names, marks and values in the words of its dialect.

Text and values of a statement are written together: each value is given at its mark, so marks and values cannot differ
in order.

    given = s.given()
    s.execute(f"DELETE FROM {s.own(UNDO)} WHERE job = {given(job)} AND sink = {given(sink)}", given)

Pure: builds text, and hands it to the connection that it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from holdfast.sinks.sql.dialect import Connection, Cursor, Dialect

T = TypeVar("T")


class Given:
    """The values of one statement, in the order of their marks."""

    def __init__(self, mark: Callable[[int], str]) -> None:
        self._mark = mark
        self.values: list[object] = []

    def __call__(self, *values: object) -> str:
        """Take values; return their marks, between commas."""
        first = len(self.values) + 1
        self.values += values
        return ", ".join(map(self._mark, range(first, first + len(values))))


@dataclass(frozen=True)
class Session:
    """An open connection and its dialect."""

    dialect: Dialect
    db: Connection

    def given(self) -> Given:
        """Return an empty list of values for one statement."""
        return Given(self.dialect.mark)

    def marks(self, count: int) -> str:
        """Return the marks of this many parameters, for `executemany`."""
        return self.given()(*range(count))

    def execute(self, text: str, given: Given | None = None) -> Cursor:
        """Run a statement."""
        return self.db.execute(text) if given is None else self.db.execute(text, given.values)

    def commit(self) -> None:
        """End the transaction: its changes become visible."""
        self.db.execute("COMMIT")

    def rollback(self) -> None:
        """End the transaction without a change."""
        self.db.execute("ROLLBACK")

    def at_one_moment(self, work: Callable[[], T]) -> T:
        """Read something that belongs together, such as an owner and a tag: no other process commits in between."""
        self.dialect.begin_read(self.db)
        try:
            return work()
        finally:
            self.rollback()

    def own(self, name: str) -> str:
        """Return a table of Holdfast's as SQL names it."""
        return self.dialect.own(name)

    def has(self, name: str) -> bool:
        """Return whether a table of Holdfast's exists."""
        return self.dialect.kind_of(self.db, name) == "table"

    def quoted(self, name: str) -> str:
        """Return a name as SQL takes it."""
        return self.dialect.quoted(name)

    def listed(self, names: Iterable[str]) -> str:
        """Return names quoted, between commas."""
        return ", ".join(map(self.dialect.quoted, names))

    def same(self, left: str, right: str, names: Iterable[str]) -> str:
        """Return the condition that two rows are equal in these columns."""
        quoted = map(self.dialect.quoted, names)
        return " AND ".join(f"{left}.{name} = {right}.{name}" for name in quoted)
