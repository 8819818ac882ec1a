"""Transactions that a sink may have left open in its target, where they hide rows that others have written after them.

Invariants
    - Looking changes nothing.
    - `abort` ends the sink's own open transactions; it never touches those of others, and loses no output: a delivery
      that was not committed is repeated.

Pure: no clock, thread or I/O. Source: docs/decisions/0109-open-transactions.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, order=True)
class Hidden:
    """Records that readers of committed records do not see yet, because a transaction before them is open.

    Args:
        topic: Where they are.
        first: The lowest offset of an open transaction; readers stop before it.
        end: The offset after the last record.
    """

    topic: str
    partition: int
    first: int
    end: int


class Transactions(Protocol):
    """The transactions of one sink of one job."""

    id: str
    """The name under which the sink's writers have their transactions."""

    def hidden(self) -> Sequence[Hidden]:
        """Return the rows that open transactions of any client hide in the sink's target. Raises HoldfastError."""

    def abort(self) -> None:
        """End open transactions of the sink's writers, and refuse later ones of these writers.

        Raises:
            NotAdmitted, Unavailable: nothing is known to be ended.
        """


class Transacts(ABC):
    """Has transactions that stay open if a writer dies."""

    @property
    def transacts(self) -> Transacts:
        """The object itself."""
        return self

    @abstractmethod
    def transactions(self, job_uuid: str, name: str) -> Transactions:
        """Return those of this sink of this job; no connection is made yet."""
