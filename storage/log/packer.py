"""Packs the old commits of a log, then deletes their objects.

Invariants
    - A commit's object is deleted only after its pack was read back and every commit in it was verified.
    - Packs are made in ascending order, and no pack is replaced: of two creates, the first one counts.
    - The newest commits, and those up to `since`, keep their objects.
    - Whatever is left behind after a crash or by a suspended writer is deleted by the next call.

Any number of processes may do this at the same time.
Source: PROTOCOL P7; docs/decisions/0058-packed-commits.md.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.errors import AlreadyExists, Damaged, NotFound
from holdfast.ports import ObjectStore
from holdfast.storage.bulk import delete_each, get_each, list_behind
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.format import COMMITS_FOLDER, check_follows, commit_path, damaged, decode_commit, sequence_of
from holdfast.storage.log.packs import PACKS_FOLDER, Packing, decode_pack, encode_pack, last_in, pack_path

PACKS_MAX = 16
"""How many packs one call makes at most; there are more only after errors."""


class PackCounts(NamedTuple):
    """Counts of the packs that a call made and of the objects that it deleted."""

    packs: int
    deleted: int


def pack(store: ObjectStore, commits: Commits) -> PackCounts:
    """Pack commits that are due as of the newest commit known here, and delete the objects of packed commits.

    Raises:
        Damaged: a commit or a pack cannot be read; its commits were not deleted.
        Unavailable: the store failed; some packs may have been made, and some objects deleted.
    """
    packing, pack_count, verified_packs = commits.tail.packs, 0, set[int]()
    if packing is None or not (due := packing.due(commits.tail.sequence)):
        return PackCounts(0, 0)
    through = _packed_through(store, packing)
    while through < due and pack_count < PACKS_MAX:
        through += packing.block
        read = _make(store, packing, through)
        _verify(store, commits, packing, through, read)
        verified_packs.add(through)
        pack_count += 1
    leftovers = [
        path
        for path in list_behind(store, COMMITS_FOLDER, commit_path(packing.first - 1))
        if sequence_of(path) <= through
    ]
    for last in sorted({packing.last_of(sequence_of(path)) for path in leftovers} - verified_packs):
        _verify(store, commits, packing, last, None)  # who made it may have ended before looking
    delete_each(store, leftovers)
    return PackCounts(pack_count, len(leftovers))


def _packed_through(store: ObjectStore, packing: Packing) -> int:
    """Return the sequence of the last commit that is packed, `first` - 1 if there is none."""
    packs = list_behind(store, PACKS_FOLDER, pack_path(0))
    return last_in(packs[-1]) if packs else packing.first - 1


def _make(store: ObjectStore, packing: Packing, last: int) -> list[bytes] | None:
    """Create a pack and return its commits; None if another process was first."""
    paths = [commit_path(sequence) for sequence in range(last - packing.block + 1, last + 1)]
    data_by_path = get_each(store, paths)
    try:
        if len(data_by_path) == packing.block:
            lines = [data_by_path[path] for path in paths]
            store.create(pack_path(last), encode_pack(lines))
            return lines
        store.get(pack_path(last))  # raises unless another process has packed them meanwhile
    except AlreadyExists:
        return None
    except NotFound as error:
        missing = next(path for path in paths if path not in data_by_path)
        raise Damaged(
            f"{missing} of the log is missing, but later commits exist",
            not_done="the commits around it were not packed",
            next_step="restore this object from a backup; nothing else in the log needs to change",
        ) from error
    return None


def _verify(store: ObjectStore, commits: Commits, packing: Packing, last: int, read: list[bytes] | None) -> None:
    """Read a pack back and check each of its commits. Raises Damaged."""
    before, path = commits.at(last - packing.block), pack_path(last)
    lines = decode_pack(path, store.get(path), packing.block)
    if read is not None and lines != read:
        raise damaged(path, "does not hold the commits that were written to it")
    for sequence, line in enumerate(lines, before.sequence + 1):
        commit = decode_commit(commits.created, sequence, line)
        check_follows(commit, before)
        before = commit
