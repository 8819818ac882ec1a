"""Copies the objects of a checkpoint into the folder of another job.

Invariants
    - Every object of the state is verified against its size and SHA-256 before a byte of it is written.
    - A copy of a segment differs from it in the job, generation and timeline that it names, and in nothing else.
    - The job that is copied from is only read.

Memory does not follow the size of the state, except in stores that take an object whole, and for state in a topic.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from holdfast.checkpoint.forks import GENERATION, TIMELINE, NewJob, copy_path, objects_of
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import open_verified, write_object
from holdfast.errors import AlreadyExists, ConfigError, NotFound, Where
from holdfast.model import ObjectRef
from holdfast.ports import ObjectStore
from holdfast.runtime.plan.source import COPIES
from holdfast.state.changelog import Block, write_as
from holdfast.storage.hashing import ByteSink

AGAIN = "check the store, then fork again"


@dataclass
class Copied:
    """Objects copied so far."""

    objects: int = 0
    bytes: int = 0
    by_operator: Counter[int] = field(default_factory=Counter)
    """Stored bytes of the state of each operator, by its number."""


def copy_state(
    of: ObjectStore, into: ObjectStore, new: NewJob, manifest: Manifest, done: Copied
) -> dict[str, ObjectRef]:
    """Copy the state of a checkpoint; return the copies by the path of the original.

    Args:
        manifest: Names all of the state as objects of `of`.
        done: Counts on.

    Raises:
        Damaged: an object is missing, or differs from what was written.
        Unavailable: a store cannot be read or written now.
    """
    copies: dict[str, ObjectRef] = {}
    for number, ref in enumerate(objects_of(manifest)):
        copies[ref.path], blocks = _copy(of, into, new, ref, copy_path(new, manifest.epoch, number))
        done.objects, done.bytes = done.objects + 1, done.bytes + copies[ref.path].size
        for block in blocks:
            done.by_operator[block.operator] += block.size
    return copies


def _copy(
    of: ObjectStore, into: ObjectStore, new: NewJob, ref: ObjectRef, path: str
) -> tuple[ObjectRef, tuple[Block, ...]]:
    """Copy a segment; return the copy and its blocks."""
    blocks = list[Block]()

    def write(out: ByteSink) -> None:
        blocks.extend(write_as(file, new.uuid, GENERATION, TIMELINE, out).blocks)

    with open_verified(of, ref) as file:
        return write_object(into, path, write, AGAIN), tuple(blocks)


def copy_sources(of: ObjectStore, into: ObjectStore, new: NewJob, done: Copied) -> None:
    """Copy the objects that sources keep in the job's folder: copies of rows, and lists of files.

    Such objects never change, so copies of an earlier attempt are kept. Objects that are removed
    meanwhile belong to no present source.

    Raises:
        ConfigError: an attempt to fork another job left something else there.
        Unavailable: a store cannot be read or written now.
    """
    for path in of.list(COPIES):
        try:
            data = of.get(path)
        except NotFound:
            continue
        try:
            into.create(path, data)
        except AlreadyExists:
            if into.get(path) != data:
                raise _taken(new, path) from None
        done.objects, done.bytes = done.objects + 1, done.bytes + len(data)


def _taken(new: NewJob, path: str) -> ConfigError:
    return ConfigError(
        f"the folder of {new.name!r} holds {path} of another fork, which was interrupted or is under way",
        not_done=f"job {new.name!r} was not created",
        next_step=f"fork under another name; or, if no other fork is under way, delete the folder {new.name} below the "
        "root and fork again",
        where=Where(job=new.name),
    )
