"""An independent reading of the job log and its manifests: plain JSON, by the rules of PROTOCOL, without runtime code.

Source: PROTOCOL P1, P2, P5, P6, P7, P13, P16, P18; research I6 to I8.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Collection
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.chaos.sim.jobs.oracle import Cut
from holdfast.errors import NotFound
from holdfast.ports import ObjectStore

Fail = Callable[[str, str], None]
Standing = Callable[[str, int], tuple[int, int]]
"""standing(sink, subtask): the writer's tag in its target."""
BY_ANYBODY = ("JobCreated", "SavepointNamed")
MERGES = ("base", "merged")
SWEPT = ("manifests", "segments", "staged", *MERGES)
EPOCH_DIGITS = 12


class History:
    """The records appended and epochs triggered so far."""

    def __init__(self, fail: Fail) -> None:
        self._fail = fail
        self.cuts: dict[int, Cut] = {}
        """By completed epoch: the offset it reached in each partition."""
        self.finished = False
        self.job_uuid: str | None = None
        self.owner: str | None = None
        self.generation = 0
        self.first_epochs: dict[int, int] = {}
        """By generation."""
        self._records = 0
        self._log_start = 0
        self.named: dict[int, set[str]] = {}
        """By retained epoch: the paths that its manifest names, and the manifest's own."""
        self._spans: dict[str, tuple[int, int]] = {}
        """By path: the first and the last epoch that named it, retained or not."""
        self.savepoints: dict[str, int] = {}
        """Epochs by savepoint name."""
        self._triggers: dict[int, tuple[int, str]] = {}
        self.manifests: dict[int, dict[str, Any]] = {}
        """By completed epoch."""
        self.lineage: list[int] = []
        """The completed epochs of the job's lineage, oldest first."""
        self.lineages = {1: self.lineage}
        """By timeline: its lineage."""
        self.timeline = 1
        self.bases: dict[int, int] = {}
        """The epoch from which each timeline but the first continues."""
        self._expired_through = 0

    @property
    def triggers(self) -> int:
        """Return how many epochs were triggered."""
        return len(self._triggers)

    @property
    def generations_that_completed(self) -> int:
        """Return how many generations completed an epoch."""
        return len({self._triggers[epoch][0] for epoch in self.cuts if epoch in self._triggers})

    def triggered(self, generation: int, epoch: int, owner: str) -> None:
        """A driver opens an epoch: the number belongs permanently to its generation (P2)."""
        first = self._triggers.setdefault(epoch, (generation, owner))
        if first != (generation, owner):
            self._fail("I6 epochs", f"epoch {epoch} of generation {first[0]} is triggered again in {generation}")

    def record(self, path: str, data: bytes, objects: ObjectStore, standing: Standing) -> bool:
        """A record was appended. Return whether it has any effect; one in a hole below a LogStart has none (P7)."""
        record = msgspec.json.decode(data)
        if record["seq"] <= self._log_start:
            return False
        self._records += 1
        if path != f"log/{self._records:020d}.json" or record["seq"] != self._records:
            self._fail("I6 log", f"{path} is record {self._records}")
        self.job_uuid = self.job_uuid or record["job_uuid"]
        if record["job_uuid"] != self.job_uuid:
            self._fail("P1", f"{path} is of another job")
        kind = record["body"]["kind"]
        if self.finished and kind != "SavepointNamed":
            self._fail("P13", f"{path} follows the end of the job")
        if record["timeline"] != self.timeline + (kind == "Rewound"):
            self._fail("P6", f"{path} is of timeline {record['timeline']}, the job is on {self.timeline}")
        if kind == "GenerationStarted":
            self._started(record)
        elif kind == "Rewound":
            self._rewound(record)
        elif kind not in BY_ANYBODY and (record["generation"], record["owner"]) != (self.generation, self.owner):
            self._fail("I7 fence", f"{path}: {kind} of generation {record['generation']} in {self.generation}")
        if kind == "CheckpointCompleted":
            self._completed(record, objects, standing)
            if (name := record["body"].get("savepoint")) is not None:
                self._named(path, name, record["body"]["epoch"])
        elif kind == "SavepointNamed":
            self._named(path, record["body"]["name"], record["body"]["epoch"])
        elif kind == "Expired":
            self._expired(record["body"]["through"])
        elif kind == "LogStart":
            self._log_start = record["seq"]
            self._began(record["body"]["job"])
        self.finished = self.finished or kind == "Finished"
        return True

    def deleted(self, path: str) -> None:
        """An object was deleted: no retained checkpoint may name it (P16)."""
        for epoch, named in self.named.items():
            if path in named:
                self._fail("P16 sweep", f"{path} was deleted, but the retained checkpoint {epoch} names it")
        if path.startswith("log/") and int(path[4:-5]) >= self._log_start:
            self._fail("P7", f"{path} was pruned, but the log begins at {self._log_start}")

    def swept(self, generation: int, retained: Collection[int], objects: ObjectStore) -> None:
        """A sweep ended: among decided objects exactly those that the checkpoints need are left.

        Objects of earlier generations are decided and, except for merges, objects of this generation up to its last
        epoch. An object may stay if epochs on both sides of a retained one named it and a rewind abandoned one of them.
        """
        decided = max(retained, default=0)
        for path in (path for folder in SWEPT for path in objects.list(folder)):
            folder, its_generation, name = path.split("/", 2)
            is_decided = folder not in MERGES and int(name[:EPOCH_DIGITS]) <= decided
            first, last = self._spans.get(path, (0, 0))
            needed = any(first <= epoch <= last for epoch in retained)
            if not needed and (int(its_generation) < generation or int(its_generation) == generation and is_decided):
                self._fail("I8 orphans", f"{path} still exists after a sweep of generation {generation}")

    def _named(self, path: str, name: str, epoch: int) -> None:
        if name in self.savepoints or epoch not in self.named:
            self._fail("P6", f"{path} gives epoch {epoch} of {sorted(self.named)} the name {name}: {self.savepoints}")
        self.savepoints[name] = epoch

    def _expired(self, through: int) -> None:
        if not self.named or not min(self.named) <= through < self.lineage[-1]:
            self._fail("P16", f"epochs through {through} of {sorted(self.named)} expired")
        self._expired_through = through
        pinned = set(self.savepoints.values())
        self.named = {epoch: named for epoch, named in self.named.items() if epoch > through or epoch in pinned}

    def _began(self, job: dict[str, Any]) -> None:
        if {each["name"]: each["epoch"] for each in job["savepoints"]} != self.savepoints:
            self._fail("P7", f"a new log start drops the savepoints {self.savepoints}")
        kept = (*job["completed"], *job.get("abandoned", ()))
        if sorted(each["body"]["epoch"] for each in kept) != sorted(self.named):
            self._fail("P7", f"a new log start drops the checkpoints {sorted(self.named)}")

    def _started(self, record: dict[str, Any]) -> None:
        body = record["body"]
        if record["generation"] != self.generation + 1:
            self._fail("I6 generations", f"generation {record['generation']} follows {self.generation}")
        if body["base_epoch"] != (self.lineage[-1] if self.lineage else 0):
            self._fail("P5", f"generation {record['generation']} builds on {body['base_epoch']}, not on the last epoch")
        if self._triggers and body["first_epoch"] <= max(self._triggers):
            self._fail("I6 epochs", f"generation {record['generation']} begins at a number used before")
        self.generation, self.owner = record["generation"], record["owner"]
        self.first_epochs[self.generation] = body["first_epoch"]

    def _rewound(self, record: dict[str, Any]) -> None:
        base = record["body"]["base_epoch"]
        if not self.is_kept(base):
            self._fail("P16", f"the job goes back to epoch {base}, of {self.lineage} kept {sorted(self.named)}")
        self.timeline += 1
        self.bases[self.timeline] = base
        self.lineage = self.lineages[self.timeline] = [epoch for epoch in self.lineage if epoch <= base]
        self._started(record)

    def is_kept(self, epoch: int) -> bool:
        """Return whether this epoch is in the job's lineage and the job can still go back to it (P16)."""
        return epoch in self.lineage and epoch in self.named and epoch >= self._expired_through

    def _completed(self, record: dict[str, Any], objects: ObjectStore, standing: Standing) -> None:
        body = record["body"]
        epoch = body["epoch"]
        if self.cuts and epoch <= max(self.cuts):
            self._fail("I6 epochs", f"epoch {epoch} completed after {max(self.cuts)}")
        if self._triggers.get(epoch) != (record["generation"], record["owner"]):
            self._fail("I6 epochs", f"epoch {epoch} completed, but its generation never triggered it")
        data = self._verified(body["manifest"], objects)
        if data is None:
            self.cuts[epoch] = {}
            self.lineage.append(epoch)
            return
        base_ref = msgspec.json.decode(data).get("base")
        base = None if base_ref is None else self._verified(base_ref, objects)
        manifest = msgspec.json.decode(_plain(data, base))
        self.named[epoch] = {body["manifest"]["path"], *(ref["path"] for ref in _named(manifest))}
        self.named[epoch] |= set() if base_ref is None else {base_ref["path"]}
        for path in self.named[epoch]:
            self._spans[path] = self._spans.get(path, (epoch, epoch))[0], epoch
        for ref in _named(manifest):
            self._verified(ref, objects)
        offsets = {at["partition"]: at["offset"] for at in manifest["positions"]}
        follows = self.lineage[-1] if self.lineage else 0
        if body["follows"] != follows:
            self._fail("P5", f"epoch {epoch} follows {body['follows']}, not {follows}")
        before = self.cuts.get(follows, {})
        if any(offsets.get(partition, 0) < offset for partition, offset in before.items()):
            self._fail("I6 offsets", f"epoch {epoch} goes back from {before} to {offsets}")
        self.cuts[epoch] = offsets
        self._check_pending(manifest, self.manifests.get(follows), standing)
        self.manifests[epoch] = manifest
        self.lineage.append(epoch)

    def _check_pending(self, manifest: dict[str, Any], before: dict[str, Any] | None, standing: Standing) -> None:
        """P18: pending output is named again, or it is in the target."""
        named = {_tagged(item) for item in manifest["pending"]}
        for item in before["pending"] if before is not None else ():
            sink, subtask, timeline, epoch = _tagged(item)
            if (sink, subtask, timeline, epoch) not in named and standing(sink, subtask) < (timeline, epoch):
                self._fail(
                    "P18", f"epoch {manifest['epoch']} drops the pending output of {sink}/{subtask} for epoch {epoch}"
                )
        for done in manifest["confirmed"]:
            writer, tag = done["writer"], (done["tag"]["timeline"], done["tag"]["epoch"])
            if standing(writer["sink"], writer["subtask"]) < tag:
                self._fail("P18", f"epoch {manifest['epoch']} claims {tag} of {writer}, which is not in its target")

    def _verified(self, ref: dict[str, Any], objects: ObjectStore) -> bytes | None:
        try:
            data = objects.get(ref["path"])
        except NotFound:
            self._fail("I8 objects", f"{ref['path']} is named by a completed checkpoint and does not exist")
            return None
        if len(data) != ref["size"] or hashlib.sha256(data).hexdigest() != ref["sha256"]:
            self._fail("I8 objects", f"{ref['path']} is not what the checkpoint names")
        return data


def plain_manifest(objects: ObjectStore, path: str) -> bytes:
    """Return the JSON of a manifest that exists, however it is stored."""
    data = objects.get(path)
    base = msgspec.json.decode(data).get("base")
    return _plain(data, None if base is None else objects.get(base["path"]))


def _plain(data: bytes, base: bytes | None) -> bytes:
    """Return a manifest's JSON; it may be compressed, or a difference from the base (docs/formats.md)."""
    envelope = msgspec.json.decode(data)
    if "zstd" not in envelope:
        return data
    frame = base64.b64decode(envelope["zstd"])
    content: bytes = pa.Codec("zstd").decompress(frame, decompressed_size=envelope["size"], asbytes=True)
    if "base" not in envelope:
        return content
    pieces, found = [] if base is None else _plain(base, None).split(b"},"), list[bytes]()
    for step in msgspec.msgpack.decode(content):
        found += [step] if isinstance(step, bytes) else pieces[step[0] : step[0] + step[1]]
    return b"},".join(found)


def _named(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    refs = [segment["object"] for handle in manifest["state"] for segment in handle["segments"]]
    refs += [ref for handle in manifest["state"] for ref in handle["base"]]
    return refs + [ref for item in manifest["pending"] for ref in item["staged"]["parts"]]


def _tagged(item: dict[str, Any]) -> tuple[str, int, int, int]:
    return item["writer"]["sink"], item["writer"]["subtask"], item["tag"]["timeline"], item["tag"]["epoch"]
