"""The two JSON records below `_holdfast/` of a folder of files; docs/formats.md describes every field.

`files.json` describes the folder; `commits/<sequence>.json` are its history. Both end with a hash of themselves.

Invariants
    - Sequences start at 1 and have no gap, and no commit is ever deleted: a writer that was suspended cannot create
      one again.
    - `tags` holds the newest tag of every writer and `owners` the newest owner per job and sink. So the newest commit
      alone gives these (PROTOCOL P17).
    - The name of a file holds the random id of its commit, so no two histories of a folder share a name.

Pure: no clock, random or I/O. Source: docs/decisions/0083-files-sink.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa

from holdfast.errors import ConfigError, Damaged
from holdfast.model import Epoch, Generation, Tag, Timeline, Writer
from holdfast.sinks.contract.owners import Claim, Held
from holdfast.sinks.files.hive import Partitioning
from holdfast.storage.hashed import fits_hash, with_hash
from holdfast.storage.log.format import commit_path, decode_schema, encode_schema
from holdfast.storage.paths import is_object_in

FORMAT_VERSION = 1
OWN_FOLDER = "_holdfast"
"""Readers leave out folders that begin with an underscore."""
META_PATH = "files.json"
STAGING = "staging"
_Record = TypeVar("_Record", "Meta", "FolderCommit")


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of `files.json`. It never changes.

    Args:
        schema: The stream's columns, as a message of Arrow IPC in base64.
    """

    uuid: str
    schema: str
    partition_by: tuple[str, ...]
    date_of: str | None
    v: int = FORMAT_VERSION

    @property
    def columns(self) -> pa.Schema:
        """The stream's columns. Raises Damaged."""
        return decode_schema(META_PATH, self.schema)

    @property
    def partitioning(self) -> Partitioning:
        """How rows are spread over folders."""
        return Partitioning(self.partition_by, self.date_of)


class StagedFile(NamedTuple):
    """A file that no commit names yet.

    Args:
        folder: Where it belongs, "" for the root.
        path: Where it is now, below `_holdfast/`.
    """

    folder: str
    rows: int
    size: int
    path: str


class DataFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a commit.

    Args:
        path: Its final name, relative to the folder.
        size: Bytes.
        staged: Where its bytes are until it is published, below `_holdfast/`.
    """

    path: str
    rows: int
    size: int
    staged: str


class FolderTag(msgspec.Struct, frozen=True, array_like=True):
    """The tag of a writer, which is named as in a log."""

    writer: str
    timeline: int
    epoch: int

    @property
    def tag(self) -> Tag:
        """The tag."""
        return Tag(Timeline(self.timeline), Epoch(self.epoch))


class FolderOwner(msgspec.Struct, frozen=True, array_like=True):
    """The driver that last took the folder over for a sink, named `<job uuid>/<sink>`."""

    sink: str
    owner: str
    generation: int


class FolderCommit(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a commit.

    Args:
        id: Random.
        folder: The uuid in `files.json`.
        moved: The writer that delivered, and the tag of its files; None: a rewind.
        files: Files that the delivery added.
        emptied: Final names of files that a rewind replaces by files without rows.
    """

    sequence: int
    id: str
    folder: str
    moved: FolderTag | None = None
    files: tuple[DataFile, ...] = ()
    emptied: tuple[str, ...] = ()
    tags: tuple[FolderTag, ...] = ()
    owners: tuple[FolderOwner, ...] = ()
    v: int = FORMAT_VERSION

    def tag_of(self, writer: str) -> Tag | None:
        """Return a writer's newest tag."""
        return next((each.tag for each in self.tags if each.writer == writer), None)

    def held(self, job_uuid: str, sink: str) -> Held | None:
        """Return who owns the folder for a sink of a job."""
        name = f"{job_uuid}/{sink}"
        found = next((each for each in self.owners if each.sink == name), None)
        return None if found is None else Held(found.owner, Generation(found.generation))

    def newest_of(self, job_uuid: str, sink: str) -> Tag | None:
        """Return the newest tag of a sink's writers."""
        return max((each.tag for each in self.tags if is_writer_of(each.writer, job_uuid, sink)), default=None)


_META, _COMMIT = msgspec.json.Decoder(Meta), msgspec.json.Decoder(FolderCommit)


class Claimed(NamedTuple):
    """A sink of a job, with the driver that writes to it."""

    job_uuid: str
    sink: str
    claim: Claim | None


def delivery(tail: FolderCommit, id: str, moved: FolderTag, staged: Sequence[StagedFile], by: Claimed) -> FolderCommit:
    """Return the commit that follows and adds the files of one delivery."""
    sequence = tail.sequence + 1
    files = tuple(
        DataFile(final_path(each.folder, sequence, id, number), each.rows, each.size, each.path)
        for number, each in enumerate(staged)
    )
    return FolderCommit(
        sequence=sequence,
        id=id,
        folder=tail.folder,
        moved=moved,
        files=files,
        tags=_tags_after(tail, [moved]),
        owners=_owners_after(tail, by),
    )


def taking_back(
    tail: FolderCommit, id: str, moved: Iterable[FolderTag], emptied: Iterable[str], by: Claimed
) -> FolderCommit:
    """Return the commit that follows and records a rewind."""
    return FolderCommit(
        sequence=tail.sequence + 1,
        id=id,
        folder=tail.folder,
        emptied=tuple(emptied),
        tags=_tags_after(tail, moved),
        owners=_owners_after(tail, by),
    )


def before_the_first(meta: Meta) -> FolderCommit:
    """Return the empty commit that precedes all commits of a folder."""
    return FolderCommit(sequence=0, id="", folder=meta.uuid)


def final_path(folder: str, sequence: int, id: str, number: int) -> str:
    """Return the name under which readers find a file."""
    name = f"part-{sequence:010d}-{id[:8]}-{number:04d}.parquet"
    return f"{folder}/{name}" if folder else name


def staged_path(job_uuid: str, writer: Writer, tag: Tag, id: str, number: int) -> str:
    """Return where a file waits for its commit. It does not end with `.parquet`: patterns must not find it."""
    at = f"{tag.timeline}-{tag.epoch}-{id}-{number}.staged"
    return f"{STAGING}/job={quote(job_uuid, safe='')}/sink={quote(writer.sink, safe='')}/{writer.subtask}/{at}"


def staged_by(path: str) -> FolderTag | None:
    """Return the writer that staged a file, and the tag under which; None for a foreign name."""
    parts = path.split("/")
    if len(parts) != 5 or not parts[1].startswith("job=") or not parts[2].startswith("sink="):
        return None
    timeline, _, rest = parts[4].partition("-")
    epoch = rest.partition("-")[0]
    if not (timeline.isdecimal() and epoch.isdecimal() and parts[3].isdecimal()):
        return None
    job, sink = unquote(parts[1].removeprefix("job=")), unquote(parts[2].removeprefix("sink="))
    return FolderTag(f"{job}/{sink}/{parts[3]}", int(timeline), int(epoch))


def writer_name(job_uuid: str, writer: Writer) -> str:
    """Return the writer's name in commits; it names the job too (P1)."""
    return f"{job_uuid}/{writer.sink}/{writer.subtask}"


def is_writer_of(name: str, job_uuid: str, sink: str) -> bool:
    """Return whether this is the name of any writer of a sink."""
    prefix = f"{job_uuid}/{sink}/"
    return name.startswith(prefix) and name.removeprefix(prefix).isdecimal()


def new_meta(uuid: str, schema: pa.Schema, partitioning: Partitioning) -> Meta:
    """Return the description of a new folder."""
    return Meta(
        uuid=uuid,
        schema=encode_schema(schema),
        partition_by=partitioning.columns,
        date_of=partitioning.date_of,
    )


def encode(record: Meta | FolderCommit) -> bytes:
    """Return a record as it is stored."""
    return with_hash(msgspec.json.encode(record))


def decode_meta(data: bytes) -> Meta:
    """Return the contents of `files.json`. Raises Damaged, ConfigError."""
    return _decoded(META_PATH, data, _META)


def decode_commit(folder: str, sequence: int, data: bytes) -> FolderCommit:
    """Return the contents of a commit. Raises Damaged, ConfigError."""
    path = commit_path(sequence)
    commit = _decoded(path, data, _COMMIT)
    if (commit.folder, commit.sequence) != (folder, sequence):
        raise damaged(path, f"belongs to folder {commit.folder}, as commit {commit.sequence}")
    for file in commit.files:
        if not is_object_in(STAGING, file.staged) or not _is_final(file.path):
            raise damaged(path, f"names the file {file.path!r}, staged as {file.staged!r}")
    if not all(map(_is_final, commit.emptied)):
        raise damaged(path, "names emptied files that cannot be its own")
    return commit


def damaged(path: str, what: str) -> Damaged:
    """Return the error for a record that cannot be trusted."""
    return Damaged(
        f"{OWN_FOLDER}/{path} {what}",
        not_done="nothing was written to the folder",
        next_step="restore this object from a backup; nothing else in the folder needs to change",
    )


def _decoded(path: str, data: bytes, decoder: msgspec.json.Decoder[_Record]) -> _Record:
    if not fits_hash(data):
        raise damaged(path, "has no hash, or one that does not match its bytes")
    try:
        record = decoder.decode(data)
    except msgspec.DecodeError as error:
        raise damaged(path, f"cannot be read: {error}") from error
    if record.v > FORMAT_VERSION:
        raise ConfigError(
            f"{OWN_FOLDER}/{path} has version {record.v}, this version of Holdfast reads {FORMAT_VERSION}",
            not_done="the folder was not opened",
            next_step="run the job with the newer version",
        )
    return record


def _is_final(path: str) -> bool:
    return is_object_in("in", f"in/{path}") and not path.startswith(OWN_FOLDER)


def _tags_after(tail: FolderCommit, moved: Iterable[FolderTag]) -> tuple[FolderTag, ...]:
    tags = {each.writer: each for each in (*tail.tags, *moved)}
    return tuple(tags[name] for name in sorted(tags))


def _owners_after(tail: FolderCommit, by: Claimed) -> tuple[FolderOwner, ...]:
    owners = {each.sink: each for each in tail.owners}
    if by.claim is not None:
        name = f"{by.job_uuid}/{by.sink}"
        owners[name] = FolderOwner(name, by.claim.owner, by.claim.generation)
    return tuple(owners[name] for name in sorted(owners))
