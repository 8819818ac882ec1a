"""The commits of a folder of files, and the life of their files: staged, published, emptied.

A writer stages files below `_holdfast/`, where no reader looks. One conditional create of the next commit decides that
they count. Then each is *published*: created under its final name, and its staged copy deleted. A rewind *empties*
files: it replaces each by a file without rows, so a process that was suspended while it published one finds the name
taken and cannot bring the rows back.

Invariants
    - A commit is created only after the files of the commit before it are published, or emptied.
    - A final name is created, never replaced, except by a file without rows; so publishing again changes nothing.
    - A staged file is deleted only after its final name was created, or when its writer's tag shows that no commit
      will ever name it.

A commit whose reply was lost may appear late. Its sequence then is taken, or it is the newest commit, and the next
look finds it (PROTOCOL P4). Not safe to share between threads.

Source: docs/decisions/0083-files-sink.md.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from itertools import dropwhile
from typing import NamedTuple

import pyarrow as pa

from holdfast.errors import AlreadyExists, ConfigError, Damaged, NotFound, Unavailable
from holdfast.ports import ObjectStore
from holdfast.sinks.files.format import (
    META_PATH,
    OWN_FOLDER,
    STAGING,
    DataFile,
    FolderCommit,
    Meta,
    before_the_first,
    damaged,
    decode_commit,
    decode_meta,
    encode,
    new_meta,
    staged_by,
)
from holdfast.sinks.files.hive import Partitioning
from holdfast.sinks.files.rolling import empty_file, is_empty
from holdfast.storage.bulk import delete_each
from holdfast.storage.log.format import commit_path
from holdfast.storage.log.tail import newest_sequence
from holdfast.storage.objects import open_objects
from holdfast.storage.paths import join

FOLLOWED_MAX = 16
"""How many commits are read one after the other before the newest one is searched for."""
_log = logging.getLogger(__name__)


class Stores(NamedTuple):
    """A folder, in two parts."""

    data: ObjectStore
    """Files that readers see."""
    own: ObjectStore
    """Files below `_holdfast/`."""


def open_stores(path: str, *, writable: bool = False) -> Stores:
    """Open a folder. Raises ConfigError, Unavailable; see `open_objects`."""
    return Stores(open_objects(path, writable=writable), open_objects(join(path, OWN_FOLDER), writable=writable))


def read_meta(own: ObjectStore) -> Meta | None:
    """Return the contents of `files.json`; None if it does not exist. Raises Damaged, ConfigError."""
    try:
        return decode_meta(own.get(META_PATH))
    except NotFound:
        return None


def create_folder(own: ObjectStore, schema: pa.Schema, partitioning: Partitioning) -> Meta:
    """Describe a new folder; return the description, which may be that of another, faster process.

    Raises:
        Unavailable: the folder may or may not have been described.
    """
    meta = new_meta(str(uuid.uuid4()), schema, partitioning)
    try:
        own.create(META_PATH, encode(meta))
    except AlreadyExists:
        meta = decode_meta(own.get(META_PATH))
    return meta


def new_id() -> str:
    """Return the id of a commit that is about to be made: 32 random hexadecimal digits."""
    return uuid.uuid4().hex


class FolderCommits:
    """The commits of a folder as one process knows them.

    Args:
        where: How messages name the folder.
        stores: Opens the folder, at the first use.
    """

    def __init__(self, where: str, stores: Callable[[], Stores]) -> None:
        self._where, self._open_stores = where, stores
        self._stores: Stores | None = None
        self._meta: Meta | None = None
        self._tail: FolderCommit | None = None
        self._published = -1
        """The sequence of the newest commit whose files this process knows to be published."""

    @property
    def meta(self) -> Meta:
        """Description of the folder; after `refresh`."""
        assert self._meta is not None
        return self._meta

    @property
    def tail(self) -> FolderCommit:
        """The newest commit; after `refresh`."""
        assert self._tail is not None
        return self._tail

    @property
    def stores(self) -> Stores:
        """The opened folder."""
        if self._stores is None:
            self._stores = self._open_stores()
        return self._stores

    def refresh(self) -> FolderCommit:
        """Look for newer commits; return the newest. Begins again if the known one no longer exists.

        Raises:
            ConfigError: the folder was never prepared.
            Unavailable: it is unreachable, or was deleted or replaced while it was open.
            Damaged: a commit is broken.
        """
        tail = self._tail
        if tail is None or tail.sequence == 0 or not self._stands(tail):
            tail = self._newest()
        steps = 0
        while (following := self._read(tail.sequence + 1)) is not None:
            tail, steps = following, steps + 1
            if steps == FOLLOWED_MAX:  # other sinks have committed for a long time
                tail, steps = self.at(newest_sequence(self.stores.own, tail.sequence)), 0
        self._tail = tail
        return tail

    def at(self, sequence: int) -> FolderCommit:
        """Return a commit up to the newest one. Raises Damaged if it is missing."""
        if sequence == 0:
            return before_the_first(self.meta)
        if (found := self._read(sequence)) is None:
            raise damaged(commit_path(sequence), "is missing, though later commits exist")
        return found

    def append(self, commit: FolderCommit) -> bool:
        """Create the commit that follows the newest one; false if another process was faster.

        Raises:
            Unavailable: the outcome is unknown; `refresh` finds it out.
        """
        assert commit.sequence == self.tail.sequence + 1
        try:
            self.stores.own.create(commit_path(commit.sequence), encode(commit))
        except AlreadyExists:
            if not self._stands(commit):  # else the reply to the first of two sends was lost
                return False
        self._tail = commit
        return True

    def settle(self) -> None:
        """Publish the newest commit's files, and delete files that no commit will name. Raises Unavailable."""
        if self._published == self.tail.sequence:
            return
        staged = set(self.stores.own.list(STAGING))
        self.publish(file for file in self.tail.files if file.staged in staged)
        self.discard(staged - {file.staged for file in self.tail.files} - set(self._may_count(staged)))

    def publish(self, files: Iterable[DataFile]) -> None:
        """Publish these files of the newest commit, of which all others are, and empty those that it takes back.

        Raises:
            Unavailable: some are not published; repeat it.
            Damaged: one no longer exists.
        """
        for file in files:
            self._publish(file)
        self._empty(self.tail.emptied)
        self._published = self.tail.sequence

    def discard(self, staged: Iterable[str]) -> None:
        """Delete staged files that no commit names. They only take space, so an error is not passed on."""
        paths = sorted(staged)
        if not paths:
            return
        try:
            delete_each(self.stores.own, paths)
        except Unavailable as error:
            _log.warning("%s: %d staged files that no commit names may be left: %s", self._where, len(paths), error)

    def close(self) -> None:
        """Forget all cached state; the next use opens the folder again."""
        self._stores = self._tail = None
        self._published = -1

    def _publish(self, file: DataFile) -> None:
        try:
            data = self.stores.own.get(file.staged)
        except NotFound:
            self._must_be_published(file)  # by another process
            return
        try:
            self.stores.data.create(file.path, data)
        except AlreadyExists:
            pass  # published before a crash, or emptied
        self.stores.own.delete(file.staged)

    def _must_be_published(self, file: DataFile) -> None:
        try:
            self.stores.data.get(file.path)
        except NotFound:
            raise Damaged(
                f"{self._where}: {file.path}, with {file.rows:,} rows, is neither there nor in {OWN_FOLDER}/{STAGING}: "
                "the folder was restored meanwhile, or another process deletes files in it",
                not_done="these rows are not visible, and nothing more was delivered",
                next_step="bring the newer folder back, or rewind the job to a checkpoint before this delivery",
            ) from None

    def _empty(self, paths: Sequence[str]) -> None:
        """Replace files by ones without rows, in order.

        Those that were emptied before a crash come first, and stay as they are: a job that reads them compares the
        times of their changes.
        """
        if not paths:
            return
        data, empty = self.stores.data, empty_file(self.meta.partitioning.in_files(self.meta.columns))
        for path in dropwhile(self._is_empty, paths):
            data.put(path, empty)

    def _is_empty(self, path: str) -> bool:
        try:
            return is_empty(self.stores.data.get(path))
        except NotFound:
            return False  # removed since; its name must stay taken

    def _may_count(self, staged: Iterable[str]) -> Iterable[str]:
        """Yield staged files that a commit may still name: those above the tag of their writer."""
        for path in staged:
            if (by := staged_by(path)) is None:
                yield path  # not ours
                continue
            standing = self.tail.tag_of(by.writer)
            if standing is None or standing < by.tag:
                yield path

    def _stands(self, commit: FolderCommit) -> bool:
        """Return whether the folder holds this commit, byte for byte; one of another folder is not decoded."""
        try:
            return self.stores.own.get(commit_path(commit.sequence)) == encode(commit)
        except NotFound:
            return False

    def _read(self, sequence: int) -> FolderCommit | None:
        assert self._meta is not None
        try:
            return decode_commit(self._meta.uuid, sequence, self.stores.own.get(commit_path(sequence)))
        except NotFound:
            return None

    def _newest(self) -> FolderCommit:
        """Find the newest commit from nothing."""
        known, self._meta = self._meta, read_meta(self.stores.own)
        if self._meta is None or (known is not None and known.uuid != self._meta.uuid):
            gone, self._meta = self._meta is None, known
            raise self._replaced("missing" if gone else "another one than before", known)
        self._published = -1
        return self.at(newest_sequence(self.stores.own))

    def _replaced(self, what: str, known: Meta | None) -> ConfigError | Unavailable:
        if known is None:
            return ConfigError(
                f"{self._where}: {OWN_FOLDER}/{META_PATH} is missing; it existed when the job ran",
                not_done="nothing was changed there",
                next_step="restore the folder, or start the job so that it is recreated",
            )
        return Unavailable(
            f"{self._where}: {OWN_FOLDER}/{META_PATH} is {what}: the folder was deleted or replaced while it was open",
            not_done="nothing was written to it",
            next_step="bring the folder back from a backup: delivery retries. To compute its rows again, delete the "
            "job's folder too and run the job",
        )
