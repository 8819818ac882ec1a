"""Damaged objects: missing, torn, or with one bit flipped; for one read, or permanently.

A manifest names objects with size and hash, so every reader of a damaged one must report it and compute nothing from
it. A run that ends with that report has kept the promise if the damage is permanent; after a single bad read the job
must resume when it is started again. Records of the job log end with a hash and are torn or flipped too; P7 covers a
record that is listed and missing.

Invariants
    - The objects themselves stay intact: checkers and oracle see the bytes that were written.
    - Writing an object again repairs it.

Source: research F10, I12; PROTOCOL P16 (every object in a manifest is verified on every read); docs/decisions/0017.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.chaos.sim.faults.draws import Chance
from holdfast.chaos.sim.faults.faults import Fault, Faults
from holdfast.chaos.sim.faults.points import Point
from holdfast.errors import Damaged, ErrorReport, NotFound

HASHED = ("segments/", "base/", "merged/", "staged/", "manifests/")
"""Folders of the objects that manifests name with size and hash."""
LOG = "log/"
RECORDS_LOST_SHARE = 0.1
"""The share of damaged records whose damage is permanent."""


class Damage:
    """The damage of one run."""

    def __init__(self, faults: Faults, chance: Chance) -> None:
        self._faults, self._chance = faults, chance
        self._lasting: dict[str, bytes | None] = {}
        self._met: set[str] = set()
        self.ended = False
        """The job cannot resume: it reported an object whose damage is permanent."""

    def read(self, path: str, effect: Callable[[], bytes], at: Callable[[], Iterable[Point]]) -> bytes:
        """Return an object as its reader sees it. Raises NotFound."""
        data = effect()
        if not path.startswith((*HASHED, LOG)):
            return data
        content: bytes | None = data
        if path in self._lasting:
            content = self._lasting[path]
        elif path.startswith(LOG):
            content = self._record(path, data, at)
        elif self._faults.strikes(Fault.OBJECT_DAMAGED, at):
            content = self._lasting[path] = self._damaged(data)
        elif self._faults.strikes(Fault.READ_DAMAGED, at):
            content = self._damaged(data)
        if content != data:
            self._met.add(path)
        if content is None:
            raise NotFound(path)
        return content

    def written(self, path: str) -> None:
        """An object was rewritten or deleted."""
        self._lasting.pop(path, None)

    def explains(self, error: ErrorReport | None) -> bool:
        """Return whether this error of a failed run names a damaged object that the run has read."""
        met = self.named_in(error)
        self.ended = self.ended or any(path in self._lasting for path in met)
        return bool(met)

    def named_in(self, error: ErrorReport | None) -> list[str]:
        """Return the damaged objects that were read and that this error names."""
        if error is None or error.kind != Damaged.kind:
            return []
        return [path for path in self._met if path in error.what]

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
