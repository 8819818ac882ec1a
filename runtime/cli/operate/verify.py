"""`holdfast checkpoints verify`: reads every object that the checkpoints name and reports the damaged ones.

An object is intact if its size and SHA-256 are those in the manifest; of a changelog segment, all rows must also be
readable, and so must the records of a changelog's topic. Objects that several checkpoints share are read once, part by
part. Nothing is changed.

Source: DESIGN section 4 (every object has size and hash).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.beyond import Beyond
from holdfast.checkpoint.catalogue import FOLDERS, ObjectCatalogue
from holdfast.checkpoint.joblog import Completed
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import open_verified
from holdfast.errors import ConfigError, Damaged
from holdfast.model import Epoch, ObjectRef
from holdfast.ports import ObjectStore
from holdfast.runtime.cli import text
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.inspect.log_end import beyond_the_log, way_out
from holdfast.runtime.inspect.stored import Stored
from holdfast.runtime.inspect.topic import check_topic
from holdfast.sinks.contract.changelogs import shown_place
from holdfast.state.blocks import deltas_of
from holdfast.state.changelog import opened

PROGRESS_EVERY_S = 1.0
EPOCHS_SHOWN_MAX = 3


@dataclass
class CheckpointObject:
    """An object, its kind, and the checkpoints that need it."""

    ref: ObjectRef
    kind: str
    """manifest, segment, base, snapshot, staged or order."""
    epochs: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Counts:
    """How much was checked."""

    checkpoints: int
    objects: int
    bytes: int


@dataclass(frozen=True)
class DamagedObject:
    """An object that differs from the bytes that were written."""

    path: str
    kind: str
    """As above; log: it proves that records are missing at the end of the job log; topic: the changelog's."""
    what: str
    epochs: tuple[int, ...]


def verify_all(stored: Stored, chosen: Sequence[Completed], *, as_json: bool) -> int:
    """Check all these checkpoints and print the verdict. Exit status: 0 intact, 4 damaged."""
    objects_by_path, manifests = dict[str, CheckpointObject](), list[Manifest]()
    _, missing = beyond_the_log(stored.store, stored.repository, FOLDERS, every_record=True)
    damaged_objects = [
        DamagedObject(each.path, "log", f"the job log was cut short: {each.what}", ()) for each in missing
    ]
    for each in chosen:
        try:
            manifest = stored.repository.load_manifest(each.body.manifest)
        except Damaged as error:
            damaged_objects.append(DamagedObject(each.body.manifest.path, "manifest", error.what, (each.body.epoch,)))
            continue
        _collect(manifest, objects_by_path)
        manifests.append(manifest)
    try:
        check_topic(stored, manifests)
    except (Damaged, ConfigError) as error:
        place = shown_place(manifests[-1].topic or {})
        damaged_objects.append(DamagedObject(place, "topic", error.what, tuple(each.epoch for each in manifests)))
    damaged_objects += damaged_of(stored.store, stored.job.key_groups, list(objects_by_path.values()))
    lost = {epoch for each in damaged_objects for epoch in each.epochs}
    whole = [each.body.epoch for each in chosen if each.body.epoch not in lost]
    total = sum(each.ref.size for each in objects_by_path.values()) + sum(each.body.manifest.size for each in chosen)
    counts = Counts(len(chosen), len(objects_by_path) + len(chosen), total)
    if as_json:
        print_json(_as_json(stored, counts, damaged_objects, whole))
    else:
        _print(stored, counts, damaged_objects, whole)
    return Damaged.exit_status if damaged_objects else 0


def orphans(stored: Stored, *, as_json: bool) -> int:
    """List objects that no retained checkpoint names. Exit status: 0; 4 if a manifest is damaged."""
    catalogue = ObjectCatalogue()
    stored_paths = [path for folder in FOLDERS for path in stored.store.list(folder)]  # first, because uploads continue
    job = stored.repository.read_log()
    assert job is not None
    for named in stored.repository.named_in([each.body.manifest for each in catalogue.unread(job)]):
        catalogue.add(named)
    orphan_paths = catalogue.orphans(stored_paths)
    garbage_paths = set(catalogue.garbage(job, orphan_paths))
    if as_json:
        print_json(
            {
                "job": stored.name,
                "orphans": [{"path": path, "swept_next": path in garbage_paths} for path in orphan_paths],
            }
        )
        return 0
    if orphan_paths:
        rows = [(path, "deleted" if path in garbage_paths else "stays") for path in orphan_paths]
        print(text.table(("object", "next sweep"), rows))
    advise(
        f"{text.plural(len(orphan_paths), 'object')} of {stored.name} that no retained checkpoint names; those that "
        "stay may "
        "belong to the next one. The running driver deletes them later"
    )
    return 0


def _collect(manifest: Manifest, named: dict[str, CheckpointObject]) -> None:
    references: list[tuple[str, ObjectRef]] = []
    for handle in manifest.state:
        # A base made of segments is one itself; anything else would be a file of another kind.
        references += [("base" if ref.path.startswith("base/") else "snapshot", ref) for ref in handle.base]
        references += [("segment", segment.object) for segment in handle.segments]
    for item in manifest.pending:
        references += [("staged", ref) for ref in item.staged.parts]
    references += [("order", ref) for ref in manifest.recorded or ()]
    for kind, ref in references:
        epochs = named.setdefault(ref.path, CheckpointObject(ref, kind)).epochs
        if not epochs or epochs[-1] != manifest.epoch:
            epochs.append(manifest.epoch)


def damaged_of(store: ObjectStore, key_groups: int, objects: Sequence[CheckpointObject]) -> list[DamagedObject]:
    """Read every object, in memory that does not follow its size; return those that are damaged."""
    damaged_objects: list[DamagedObject] = []
    next_line = time.monotonic() + PROGRESS_EVERY_S
    for index, each in enumerate(objects):
        try:
            with open_verified(store, each.ref) as file:
                if each.kind in ("segment", "base"):
                    _read_rows(file, key_groups)
        except (Damaged, ConfigError) as error:
            damaged_objects.append(DamagedObject(each.ref.path, each.kind, error.what, tuple(each.epochs)))
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + PROGRESS_EVERY_S
            print(f"objects read: {index + 1:,} of {len(objects):,}", file=sys.stderr, flush=True)
    return damaged_objects


def _read_rows(file: pa.NativeFile, key_groups: int) -> None:
    """Decode every row of a segment. Raises Damaged or ConfigError if that fails."""
    for _ in deltas_of(opened(file), (0, key_groups)):
        pass


def _as_json(stored: Stored, counts: Counts, broken: list[DamagedObject], whole: list[Epoch]) -> dict[str, Any]:
    return {
        "job": stored.name,
        "checkpoints": counts.checkpoints,
        "objects": counts.objects,
        "bytes": counts.bytes,
        "damaged": [
            {"path": each.path, "kind": each.kind, "what": each.what, "epochs": list(each.epochs)} for each in broken
        ],
        "newest_whole_epoch": whole[-1] if whole else None,
    }


def _print(stored: Stored, counts: Counts, broken: list[DamagedObject], whole: list[Epoch]) -> None:
    coverage = (
        f"{text.plural(counts.checkpoints, 'checkpoint')}, {text.plural(counts.objects, 'object')}, "
        f"{text.size(counts.bytes)}"
    )
    if not counts.checkpoints and not broken:
        print(f"{stored.name}: there is no checkpoint to verify yet")
        return
    if not broken:
        print(f"{stored.name}: everything is intact ({coverage})")
        return
    print(text.table(("kind", "epochs", "what"), [(each.kind, _epochs(each), each.what) for each in broken]))
    missing = [Beyond(each.path, each.what) for each in broken if each.kind == "log"]
    if missing:
        advise(
            f"holdfast: the job log of {stored.name} was cut short or restored from an older copy.\n"
            "Not done: nothing was changed.\n"
            f"Next: {way_out(stored.job, missing)}"
        )
    if len(missing) == len(broken):
        return
    newest = f"the newest intact checkpoint is epoch {whole[-1]}" if whole else "no checkpoint here is intact"
    advise(
        f"holdfast: {text.plural(len(broken) - len(missing), 'object')} of {stored.name} damaged ({coverage}); "
        f"{newest}.\n"
        "Not done: nothing was changed.\n"
        f"Next: restore the named objects from a copy of {stored.folder}; then verify again{_else_rewind(whole)}"
    )


def _else_rewind(whole: list[Epoch]) -> str:
    return f". Without a copy, rewind state and outputs: holdfast rewind JOB.py --to-epoch {whole[-1]}" if whole else ""


def _epochs(each: DamagedObject) -> str:
    shown = ", ".join(str(epoch) for epoch in each.epochs[:EPOCHS_SHOWN_MAX])
    left_out = len(each.epochs) - EPOCHS_SHOWN_MAX
    return f"{shown} and {left_out} later" if left_out > 0 else shown
