"""The checkpoints of a job as values, for lists and descriptions of them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from holdfast.checkpoint.joblog import Completed, Job
from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import Damaged
from holdfast.model import SnapshotHandle
from holdfast.runtime.inspect.stored import Stored


def described_checkpoint(found: Completed, manifest: Manifest) -> dict[str, Any]:
    """Return a checkpoint as JSON-able values."""
    return {
        "epoch": manifest.epoch,
        "follows": manifest.follows,
        "timeline": manifest.timeline,
        "generation": manifest.generation,
        "kind": "checkpoint",
        "name": None,
        "at": found.at,
        "duration_ms": found.body.duration_ms,
        "bytes_new": found.body.bytes_new,
        "bytes_total": found.body.bytes_total,
        "parallelism": manifest.parallelism,
        "key_groups": manifest.key_groups,
        "manifest": {"path": found.body.manifest.path, "bytes": found.body.manifest.size},
        "offsets": offsets_of(manifest),
        "state": [_subtask(handle) for handle in manifest.state],
        "pending": [
            {
                "sink": p.writer.sink,
                "subtask": p.writer.subtask,
                "timeline": p.tag.timeline,
                "epoch": p.tag.epoch,
                "rows": p.staged.rows,
                "bytes": sum(part.size for part in p.staged.parts),
            }
            for p in manifest.pending
        ],
        "delivered": [
            {"sink": c.writer.sink, "subtask": c.writer.subtask, "timeline": c.tag.timeline, "epoch": c.tag.epoch}
            for c in manifest.confirmed
        ],
        "operators": [{"name": operator.name, "id": operator.id} for operator in manifest.operators],
    }


def listed_checkpoint(stored: Stored, found: Completed) -> dict[str, Any]:
    """Return a checkpoint as one of a list, with JSON-able values; unknown ones are None."""
    offsets: dict[str, Any] | None
    try:
        offsets = offsets_of(stored.repository.load_manifest(found.body.manifest))
    except Damaged:
        offsets = None  # unknown here; `verify` names the damage
    return {
        "epoch": found.body.epoch,
        "timeline": found.timeline,
        "kind": kind_of(stored.job, found),
        "name": name_of(stored.job, found),
        "at": found.at,
        "duration_ms": found.body.duration_ms,
        "bytes_new": found.body.bytes_new,
        "bytes_total": found.body.bytes_total,
        "offsets": offsets,
        "verified": None,
    }


def kind_of(job: Job, found: Completed) -> str:
    """Return savepoint or checkpoint."""
    return "savepoint" if job.names_of(found.body.epoch) else "checkpoint"


def name_of(job: Job, found: Completed) -> str | None:
    """Return the names of a savepoint, with commas; None for other checkpoints."""
    return ", ".join(job.names_of(found.body.epoch)) or None


def offsets_of(manifest: Manifest) -> dict[str, dict[str, int]]:
    """Return the next offset to read, by source and partition."""
    offsets: dict[str, dict[str, int]] = defaultdict(dict)
    for at in manifest.positions:
        offsets[at.source][str(at.partition)] = at.offset
    return dict(offsets)


def _subtask(handle: SnapshotHandle) -> dict[str, Any]:
    segments = [
        {"epoch": s.epoch, "follows": s.follows, "path": s.object.path, "bytes": s.object.size} for s in handle.segments
    ]
    return {
        "subtask": handle.subtask,
        "key_groups": list(handle.key_groups),
        "base": {"epoch": handle.base_epoch, "files": len(handle.base), "bytes": sum(ref.size for ref in handle.base)}
        if handle.base
        else None,
        "segments": segments,
        "segment_bytes": sum(segment.object.size for segment in handle.segments),
    }
