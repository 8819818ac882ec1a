"""Segments of a store without a worker: what its epochs changed, as a later store restores them."""

from __future__ import annotations

from holdfast.model import Epoch
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.store import StateStore


def sealed_epoch(store: StateStore, epoch: int) -> bytes:
    """Return the segment of an epoch that all tables have frozen and that is not committed."""
    deltas = store.deltas(Epoch(epoch))
    own = store.identity
    follows = min(delta.follows for delta in deltas)
    return seal(SegmentHeader(own.job_uuid, own.generation, own.timeline, Epoch(epoch), follows, own.worker), deltas)
