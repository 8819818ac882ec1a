"""Objects that are not what was written: missing, torn, or with one bit changed; for one read, or for good.

What a manifest names has a size and a hash, so whatever reads such an object must say so, loudly, and compute nothing
from it. A run that ends so has kept the promise, if the object is damaged for good; after a single bad read the job
must go on once somebody has started it again. Records of the job log end with a hash and are torn or flipped too; one
that is listed and missing is another matter (P7).

Invariants
    - The objects themselves stay as they are: checkers and oracle see what was written.
    - Writing an object again mends it.

Source: research F10, I12; PROTOCOL P16 (every object in a manifest is verified on every read); docs/design/0017.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.chaos.draws import Chance
from holdfast.chaos.faults import Fault, Faults
from holdfast.chaos.points import Point
from holdfast.errors import NotFound

HASHED = ("segments/", "base/", "merged/", "staged/", "manifests/")
"""Folders of objects that are named with a size and a hash."""
LOG = "log/"
RECORDS_LOST_SHARE = 0.1
"""Of the damage to records: what is for good."""


class Damage:
    """What is damaged in one run."""

    def __init__(self, faults: Faults, chance: Chance) -> None:
        self._faults, self._chance = faults, chance
        self._lasting: dict[str, bytes | None] = {}
        self._met: set[str] = set()
        self.ended = False
        """The job can never go on: it said that it has met an object that is damaged for good."""

    def read(self, path: str, effect: Callable[[], bytes], at: Callable[[], Iterable[Point]]) -> bytes:
        """Return an object as its reader finds it. Raises NotFound."""
        data = effect()
        if not path.startswith((*HASHED, LOG)):
            return data
        found: bytes | None = data
        if path in self._lasting:
            found = self._lasting[path]
        elif path.startswith(LOG):
            found = self._record(path, data, at)
        elif self._faults.strikes(Fault.OBJECT_DAMAGED, at):
            found = self._lasting[path] = self._damaged(data)
        elif self._faults.strikes(Fault.READ_DAMAGED, at):
            found = self._damaged(data)
        if found != data:
            self._met.add(path)
        if found is None:
            raise NotFound(path)
        return found

    def written(self, path: str) -> None:
        """An object was written again, or deleted."""
        self._lasting.pop(path, None)

    def explains(self, error: Mapping[str, Any] | None) -> bool:
        """Return whether a run that failed with this error has met a damaged object and says which."""
        met = self.named_in(error)
        self.ended = self.ended or any(path in self._lasting for path in met)
        return bool(met)

    def named_in(self, error: Mapping[str, Any] | None) -> list[str]:
        """Return the damaged objects that somebody met and that this error names."""
        if error is None or error.get("kind") != "damaged":
            return []
        return [path for path in self._met if path in str(error.get("what"))]

    def _record(self, path: str, data: bytes, at: Callable[[], Iterable[Point]]) -> bytes | None:
        if not self._faults.strikes(Fault.RECORD_DAMAGED, at):
            return data
        found = self._damaged(data, ("torn", "flipped"))
        if self._chance.random() < RECORDS_LOST_SHARE:
            self._lasting[path] = found
        return found

    def _damaged(self, data: bytes, ways: tuple[str, ...] = ("missing", "torn", "flipped")) -> bytes | None:
        how = self._chance.choice(ways)
        if how == "missing":
            return None
        if how == "torn":
            return data[: len(data) // 2]
        bit = self._chance.randint(0, 8 * len(data) - 1)
        return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]
