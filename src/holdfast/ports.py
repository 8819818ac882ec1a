"""Services that the runtime needs from the outside world, as protocols.

Production, the test driver and the simulator each supply their own implementation; the code above is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable


class Clock(Protocol):
    """Time decides when something happens, never whether it is right (PROTOCOL P3)."""

    def monotonic(self) -> float:
        """Seconds; never decreases."""

    def wall_us(self) -> int:
        """Microseconds since 1970, UTC; may jump."""


class ObjectStore(Protocol):
    """A flat store of immutable objects below one root; paths are relative, with slashes.

    Every method may raise Unavailable; for `create` and `put` the outcome is then unknown.
    """

    def create(self, path: str, data: bytes) -> None:
        """Create the object unless the name is taken, atomically. Never called with no bytes.

        Raises:
            AlreadyExists: the name is taken; nothing was changed.
        """

    def put(self, path: str, data: bytes) -> None:
        """Write the object, replacing any existing one. Readers see either the old or the new bytes, whole."""

    def get(self, path: str) -> bytes:
        """Return the bytes. Raises NotFound."""

    def list(self, prefix: str) -> list[str]:
        """Return the paths of all objects below the folder `prefix`, sorted."""

    def delete(self, path: str) -> None:
        """Remove the object; a missing object is not an error."""


@runtime_checkable
class TidyStore(Protocol):
    """An object store in which killed writers may leave files."""

    def tidy(self, *, folders: bool = True) -> int:
        """Remove these files, and folders without files if `folders`; return how many files were removed."""


class KeyValue(Protocol):
    """Local ordered bytes, as RocksDB gives them. Plain writes survive a kill as a prefix (P15)."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return one value per key; sorted keys are faster."""

    def write(self, puts: list[tuple[bytes, bytes]], deletes: list[bytes]) -> None:
        """Apply one batch atomically; at most about 1,000 keys, as this holds the GIL."""

    def erase(self, ranges: list[tuple[bytes, bytes]]) -> None:
        """Remove all pairs with first <= key < end for every range, as one batch; costs nothing per key."""

    def scan(self, first: bytes, end: bytes, pairs_max: int | None = None) -> list[tuple[bytes, bytes]]:
        """Return the pairs with first <= key < end in order, all or the first `pairs_max`; raises if it cannot."""

    def flush(self, wait: bool = True) -> None:
        """Make everything written so far survive a kill; without `wait`, return before that is done."""

    def close(self) -> None:
        """Release the directory."""


class Lane(Protocol):
    """Background work, one job at a time and in order; results come back as events."""

    def submit(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        """Run `work` later; hand its result, or the exception it raised, to `done` on the loop's thread."""
