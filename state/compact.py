"""Merges stored segments into one equivalent segment.

Invariants
    - Restoring the result gives the state that restoring the pieces gives.
    - The result has the present declaration of every operator, whatever the pieces were written with.
    - A base, which follows nothing, has neither tombstones nor ranges; any other result keeps them.

Pure: bytes in, bytes out. DESIGN section 5; docs/design/0007, 0038.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from holdfast.model import NO_EPOCH, Epoch
from holdfast.state.changelog import SegmentHeader, seal, unseal
from holdfast.state.evolution import adapted
from holdfast.state.tables.delta import Delta, merge
from holdfast.state.tables.spec import TableSpec


def compact(
    header: SegmentHeader, pieces: Iterable[tuple[bytes, tuple[int, int]]], specs: Iterable[TableSpec]
) -> bytes:
    """Return one segment with the effect of these pieces.

    Args:
        header: Header of the result. With `follows` 0, the result is a base.
        pieces: Segments with the key groups [first, end) to use, in the order of their epochs.
            Pieces of one epoch have no key group in common.
        specs: The present operators; rows of others are left out.

    Raises:
        ConfigError: a piece was written with a declaration that the present one cannot read.
    """
    present = {spec.operator: spec for spec in specs}
    by_operator: dict[int, list[Delta]] = {}
    for rank, (data, key_groups) in enumerate(pieces):
        for delta in unseal(data, key_groups)[1]:
            if (spec := present.get(delta.operator)) is None:
                continue
            # Pieces of several owners may belong to one epoch; only their order matters here.
            ranked = replace(adapted(delta, spec), epoch=Epoch(rank + 1), follows=NO_EPOCH)
            by_operator.setdefault(delta.operator, []).append(ranked)
    merged = (_merged(deltas) for deltas in by_operator.values())
    if header.follows == NO_EPOCH:
        merged = (delta.take(np.flatnonzero(delta.puts)) for delta in merged)
    return seal(header, [replace(delta, epoch=header.epoch, follows=header.follows) for delta in merged])


def _merged(deltas: list[Delta]) -> Delta:
    """Merge adjacent deltas pairwise, so that each row is copied a logarithmic number of times."""
    while len(deltas) > 1:
        pairs = [merge(*deltas[i : i + 2]) if i + 1 < len(deltas) else deltas[i] for i in range(0, len(deltas), 2)]
        deltas = pairs
    return deltas[0]
