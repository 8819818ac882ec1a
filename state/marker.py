"""The marker of a cold store: the epochs that the store holds, and the restores for which it is usable.

The marker is a row of the store itself. It is `applying = n` before a pass writes values of epoch n, and
`applied = n` after the last of them; since plain writes survive a kill as a prefix, the marker never promises more
than the store holds.

Invariants
    - The store holds everything up to `applied`, perhaps some of the epochs up to `applying`,
      and nothing else, for the operators and key groups it names.
    - It is readable only with the declarations that wrote it: its rows are packed (state/evolution.py).
    - It is usable only if both epochs are in the target's lineage and not after the target, by the hash of their
      manifests: a root that was restored or copied uses the same numbers again.

Carries out PROTOCOL P1 (job UUID), P14 (lineage, ranges), P15 (marker); docs/design/0020, 0038.
Pure: no clock, thread or I/O.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.errors import Damaged
from holdfast.model import NO_EPOCH, Cut, Epoch, JobUuid, Timeline
from holdfast.ports import KeyValue

MARKER_KEY = b"\xff\xffmarker"
_VERSION = 3
"""Markers of version 1 name epochs by number alone, those of version 2 no declarations: they are no base."""


class Marker(msgspec.Struct, frozen=True):
    """A cold store's description of its content.

    Args:
        key_groups: Half-open range [first, end) for which it is valid.
        operators: Operators for which it is valid.
        touched: Operators of which it may hold rows, valid or not.
        declared: Hash of the declaration of each operator for which it is valid.
    """

    job_uuid: JobUuid
    timeline: Timeline
    applied: Epoch
    applying: Epoch
    key_groups: tuple[int, int]
    operators: tuple[int, ...]
    touched: tuple[int, ...]
    version: int = _VERSION
    applied_manifest: str = ""
    applying_manifest: str = ""
    declared: dict[int, str] = {}

    @property
    def cuts(self) -> tuple[Cut, Cut]:
        """Return `applied` and `applying` by content."""
        return Cut(self.applied, self.applied_manifest), Cut(self.applying, self.applying_manifest)


_MARKER = msgspec.json.Decoder(Marker)


Lineage = Mapping[Epoch, str]
"""Completed epochs on which the target builds, each with the SHA-256 of its manifest."""


Declared = Mapping[int, str]
"""The hash of the declaration of every operator of the plan, by number."""


def usable(
    marker: Marker | None,
    job_uuid: JobUuid,
    lineage: Lineage,
    target: Epoch,
    owned: tuple[int, int],
    declared: Declared,
) -> tuple[int, int] | None:
    """Return the owned key groups for which this store may be the base, None if it may not be used (P14)."""
    if marker is None or marker.job_uuid != job_uuid or marker.version != _VERSION:
        return None
    assert marker.applied <= marker.applying
    if not all(_lies_on(lineage, cut, target) for cut in _cuts_in(marker)):
        return None
    if not _readable(marker, declared):
        return None
    return overlap(marker.key_groups, owned)


def overlap(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int] | None:
    """Return the intersection of two half-open ranges, None if it is empty."""
    first, end = max(one[0], other[0]), min(one[1], other[1])
    return (first, end) if first < end else None


def read_marker(store: KeyValue) -> Marker | None:
    """Return the store's marker, None if it never had one."""
    data = store.get_many([MARKER_KEY])[0]
    if data is None:
        return None
    try:
        return _MARKER.decode(data)
    except msgspec.MsgspecError as error:
        raise Damaged(
            f"the marker of the local state cannot be read: {error}",
            not_done="nothing was loaded",
            next_step="let the worker restore from the checkpoint; it will not use this directory again",
        ) from error


def write_marker(store: KeyValue, marker: Marker) -> None:
    """Write the marker in its own batch, after everything written before it."""
    store.write([(MARKER_KEY, msgspec.json.encode(marker))], [])


def _readable(marker: Marker, declared: Declared) -> bool:
    """Return whether every operator still has the declaration that wrote its rows; operators may be gone."""
    return all(declared.get(operator, written) == written for operator, written in marker.declared.items())


def _cuts_in(marker: Marker) -> tuple[Cut, Cut]:
    return marker.cuts


def _lies_on(lineage: Lineage, cut: Cut, target: Epoch) -> bool:
    if cut.epoch == NO_EPOCH:
        return True
    return cut.epoch <= target and cut.manifest != "" and lineage.get(cut.epoch) == cut.manifest
