"""The form of an incident file: a zip archive with `incident.json` and members that only this names.

    incident.json       version of the form, job, epoch, settings, versions, and place, size and SHA-256 of every member
    start/, end/        the two checkpoints: manifest.json, and an Arrow IPC stream per operator
    input/              an Arrow IPC stream per partition of a source, in the batches that the source gave
    rows/               an Arrow IPC stream per sink: the rows that the epoch staged

Invariants
    - A member that `incident.json` does not name is not read; one that differs from what it says is Damaged.
    - Nothing is read beyond the limits, whatever an archive says of itself: sizes are counted while it is unpacked.
    - Nothing in it is executed or unpickled.

Pure: it reads and writes only the files that it is given. Source: docs/decisions/0133-incident-files.md.
"""

from __future__ import annotations

import hashlib
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, BinaryIO

import msgspec
import pyarrow as pa

from holdfast.errors import ConfigError, Damaged, Where

VERSION = 1
CONTENTS = "incident.json"
CONTENTS_BYTES_MAX = 64 << 20
MEMBERS_MAX = 100_000
BYTES_MAX = 16 << 30
"""Bytes of all members together, unpacked."""
PIECE_BYTES = 1 << 20
_EARLIEST = (1980, 1, 1, 0, 0, 0)
"""The time of every member: the same incident gives the same bytes."""
_UNREADABLE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, KeyError, EOFError),
    *(OSError, OverflowError, RuntimeError, ValueError),
)
"""`zipfile` raises these for bytes that are not an archive, or not one that it can read."""
Count = Annotated[int, msgspec.Meta(ge=0)]


class PackedMember(msgspec.Struct, frozen=True):
    """One file of the archive."""

    size: Annotated[int, msgspec.Meta(ge=0, le=BYTES_MAX)]
    sha256: str


class RecordedRead(msgspec.Struct, frozen=True, array_like=True):
    """One batch of a source, or a place without records."""

    rows: Count
    following: Count
    """The offset behind it."""
    watermark: int | None = None
    """The event time that the source itself reports there."""
    lost: bool = False
    """The source had removed the records before it."""


class RecordedPartition(msgspec.Struct, frozen=True):
    """The records of one partition of a source, from `first` to before `end`.

    Batches of one schema that follow one another share a member.
    """

    source: str
    partition: int
    first: Count
    end: Count
    watermark: int | None
    """The event time that the source itself reports at `first`."""
    members: tuple[tuple[str, tuple[RecordedRead, ...]], ...]


class PackedCheckpoint(msgspec.Struct, frozen=True):
    """One checkpoint: the member with its manifest, and those with the state of its operators, by name."""

    at: int
    manifest: str
    state: dict[str, str]


class OnlyKey(msgspec.Struct, frozen=True):
    """The key to which state is limited, and its key group."""

    key: str
    group: int


class IncidentContents(msgspec.Struct, frozen=True):
    """The content of `incident.json`.

    Args:
        start: The checkpoint that the epoch follows; None: it is the first epoch.
        rows: The member of each sink; sinks whose staged rows could not be read are missing.
        only: None: state of all key groups.
        redacted: Columns whose values are pseudonyms.
        code: SHA-256 of the job's file, by its name.
        verdict: Differences between the replay and the checkpoint when the file was written; none: it was equal.
    """

    v: int
    job: str
    epoch: int
    start: PackedCheckpoint | None
    end: PackedCheckpoint
    input: tuple[RecordedPartition, ...]
    rows: dict[str, str]
    only: OnlyKey | None
    redacted: tuple[str, ...]
    settings: dict[str, Any]
    versions: dict[str, str]
    code: dict[str, str]
    verdict: tuple[str, ...]
    members: Annotated[dict[str, PackedMember], msgspec.Meta(max_length=MEMBERS_MAX)]


class _FormVersion(msgspec.Struct):
    v: int


_VERSION, _CONTENTS = msgspec.json.Decoder(_FormVersion), msgspec.json.Decoder(IncidentContents)


class IncidentWriter:
    """Writes an incident file: members first, then what names them.

    Args:
        into: The file; it is complete when `finish` returns.
    """

    def __init__(self, into: BinaryIO) -> None:
        self._archive = zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED)
        self._members: dict[str, PackedMember] = {}

    def add(self, path: str, data: bytes) -> str:
        """Write a member, and return its path."""
        assert path not in self._members, path
        self._archive.writestr(_info(path), data)
        self._members[path] = PackedMember(len(data), hashlib.sha256(data).hexdigest())
        return path

    def add_batches(self, path: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> str:
        """Write batches of one schema as a member, and return its path."""
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, schema) as stream:
            for batch in batches:
                stream.write_batch(batch)
        return self.add(path, out.getvalue().to_pybytes())

    def finish(self, contents: Callable[[Mapping[str, PackedMember]], IncidentContents]) -> IncidentContents:
        """Write what names the members; the file is complete."""
        made = contents(self._members)
        self._archive.writestr(_info(CONTENTS), msgspec.json.format(msgspec.json.encode(made)))
        self._archive.close()
        return made


class Unpacked:
    """An incident file that is read.

    Args:
        file: It, readable at any place.
        name: Its path, for messages.

    Raises:
        ConfigError: it is no incident file, or one of a newer version.
        Damaged: it cannot be read.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._name = name
        try:
            self._archive = zipfile.ZipFile(file)
            infos = {info.filename: info for info in self._archive.infolist()}
        except _UNREADABLE as error:
            raise self._not_one(str(error)) from error
        if CONTENTS not in infos:
            raise self._not_one(f"it has no {CONTENTS}")
        self.contents = self._decoded(self._read(CONTENTS, CONTENTS_BYTES_MAX))
        if sum(member.size for member in self.contents.members.values()) > BYTES_MAX:
            raise self._damaged(f"its members have more than {BYTES_MAX:,} bytes together")

    def get(self, path: str) -> bytes:
        """Return the bytes of a member, verified. Raises Damaged."""
        if (member := self.contents.members.get(path)) is None:
            raise self._damaged(f"it does not name {path}")
        data = self._read(path, member.size)
        if len(data) != member.size or hashlib.sha256(data).hexdigest() != member.sha256:
            raise self._damaged(f"{path} differs from what was written")
        return data

    def batches(self, path: str) -> list[pa.RecordBatch]:
        """Return the batches of a member, checked. Raises Damaged."""
        return self.stream(path)[1]

    def stream(self, path: str) -> tuple[pa.Schema, list[pa.RecordBatch]]:
        """Return the schema of a member and its batches, checked. Raises Damaged."""
        try:
            with pa.ipc.open_stream(self.get(path)) as stream:
                schema, batches = stream.schema, list(stream)
            for batch in batches:
                batch.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(f"{path} is not a readable Arrow stream: {error}") from error
        return schema, batches

    def _read(self, path: str, bytes_max: int) -> bytes:
        """Unpack a member, at most one byte more than it may have."""
        pieces, size = list[bytes](), 0
        try:
            with self._archive.open(path) as file:
                while size <= bytes_max and (piece := file.read(min(PIECE_BYTES, bytes_max + 1 - size))):
                    pieces.append(piece)
                    size += len(piece)
        except _UNREADABLE as error:
            raise self._damaged(f"{path} cannot be unpacked: {error}") from error
        if size > bytes_max:
            raise self._damaged(f"{path} has more than {bytes_max:,} bytes")
        return b"".join(pieces)

    def _decoded(self, data: bytes) -> IncidentContents:
        try:
            version = _VERSION.decode(data).v
            if version == VERSION:
                return _CONTENTS.decode(data)
        except msgspec.DecodeError as error:
            raise self._damaged(f"{CONTENTS} cannot be read: {error}") from error
        raise ConfigError(
            f"{self._name} is an incident file of version {version}; this version of Holdfast reads version {VERSION}",
            not_done="nothing was replayed",
            next_step="replay it with the version of Holdfast that wrote it, or with a newer one",
            where=Where(object=self._name),
        )

    def _not_one(self, why: str) -> ConfigError:
        return ConfigError(
            f"{self._name} is not an incident file: {why}",
            not_done="nothing was replayed",
            next_step="give a file that holdfast incident has written",
            where=Where(object=self._name),
        )

    def _damaged(self, why: str) -> Damaged:
        return Damaged(
            f"incident file {self._name} is damaged: {why}",
            not_done="nothing was replayed",
            next_step="copy it again, and compare its checksum with that of the original",
            where=Where(object=self._name),
        )


def _info(path: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(path, _EARLIEST)
    info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o600 << 16
    return info
