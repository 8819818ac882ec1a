"""The two JSON records of the embedded log, and the rules for each.

`meta.json` describes the log; `commits/<sequence>.json` are its append-only history. Both end with an xxh3 hash over
everything before it, since JSON with a flipped digit would still be valid. docs/formats.md describes every field.

Invariants
    - Sequences start at 1 and have no gap; only compactions follow a sealing commit.
    - A commit's `ends` are its predecessor's plus its own rows; so the newest commit alone gives the end of the log,
      and bisection over the commits finds an offset.
    - `tags` holds the newest tag of every writer, so the newest commit alone gives these too (PROTOCOL P17).
    - A commit that takes rows back (kind `void`) and all after it have format 2, which an older release refuses as
      newer: it would read those rows. Before the first such commit, a log is written byte for byte as format 1.
    - `void` names the newest commit of that kind, which lists every void range of the log.
    - `owners` holds, per job and sink, the owner of the job that appended last; the first commit that has owners and
      all after it have format 5, which an older release refuses: it would drop them.
    - A commit of kind `compact` and all after it have format 3: readers find the rows that it replaced in its segments
      (compacted.py), where an older release would look for deleted objects. It is the only kind that may follow a
      seal; its `seal` then names the sealing commit.
    - A commit of kind `widen` and all after it have format 6: its `ends` are longer than those before it, by partitions
      without rows. A log with a key has none: equal keys would be in two partitions.
    - A commit of kind `grow` and all after it have format 4: segments after it may have the columns that it adds,
      which may be null and come last. `grown` names the newest such commit.
    - The first commit with a sequence of at least BLOCK and all after it have format 7 and `packs`: later commits may
      be in packs instead of their own objects (packs.py), where an older release would not look for them.
    - `meta.json` of a changelog has format 2, which an older release refuses: it would read deletes as rows.

Pure: no clock, random or I/O.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypeVar

import msgspec
import pyarrow as pa
import xxhash

from holdfast.errors import ConfigError, Damaged
from holdfast.model import Tag
from holdfast.storage.log import changelog
from holdfast.storage.log.compacted import Compaction, problem_of
from holdfast.storage.log.packs import BLOCK, Packing
from holdfast.storage.paths import is_object_in

FORMAT_VERSION = 1
CHANGELOG_VERSION = 2
"""Format of the `meta.json` of a changelog; commits have their own versions."""
VOID_VERSION = 2
"""Format of the first commit that takes rows back, and of all after it."""
COMPACT_VERSION = 3
"""Format of the first compaction and of all commits after it."""
GROW_VERSION = 4
"""Format of the first commit that adds columns, and of all after it."""
OWNER_VERSION = 5
"""Format of the first commit that names an owner, and of all after it."""
WIDEN_VERSION = 6
"""Format of the first commit that adds partitions, and of all after it."""
PACK_VERSION = 7
"""Format of the first commit after which commits may be packed, and of all after it."""
PARTITIONS_MAX = 4_096
OFFSETS_MAX = 1 << 62
META_PATH = "meta.json"
META_BYTES_MAX = 16 << 20
"""Limit for the description of a log, which other programs may write too; a thousand columns take a hundredth of it."""
COMMITS_FOLDER, DATA_FOLDER = "commits", "data"
_HASH_FIELD = b',"xxh3":"'
_HASH_BYTES = len(_HASH_FIELD) + 16 + 2


Kind: TypeAlias = Literal["append", "seal", "void", "compact", "grow", "widen"]


@dataclass(frozen=True)
class LogMeta:
    """The description of a log, fixed at its creation except for added columns and partitions."""

    uuid: str
    schema: pa.Schema
    partitions: int
    key: tuple[str, ...]
    """Columns whose equal values always share a partition; empty: the writer chooses."""
    created_with: int | None = None
    """With how many columns the log was created, if more were added since."""
    changelog: bool = False
    """Its records put and delete rows by key; the first column holds the operation (changelog.py)."""

    @property
    def rows(self) -> pa.Schema:
        """The columns of the rows: all of them, but in a changelog without the mark."""
        return changelog.row_schema(self.schema) if self.changelog else self.schema

    def fits(self, columns: pa.Schema) -> bool:
        """Return whether rows with these columns can be appended: at least the original columns, in order."""
        first = list(self.schema)[: len(columns)]
        least = len(self.schema) if self.created_with is None else self.created_with
        return (
            len(columns) >= least
            and columns.names == [f.name for f in first]
            and columns.types == [f.type for f in first]
        )


@dataclass(frozen=True)
class LogSegment:
    """Rows of one partition in one object; `base` is the offset of the first."""

    partition: int
    base: int
    rows: int
    path: str
    size: int
    xxh3: str


@dataclass(frozen=True)
class VoidRange:
    """Offsets of one partition, `end` excluded, whose rows a rewind took back; whole segments, never used again."""

    partition: int
    first: int
    end: int

    def __len__(self) -> int:
        return self.end - self.first


@dataclass(frozen=True)
class WriterTag:
    """How far one writer's output has reached in this log; the sink defines the writer's name."""

    writer: str
    tag: Tag


@dataclass(frozen=True)
class LogOwner:
    """The owner that last took the log over for one sink of a job; the sink defines the names."""

    sink: str
    owner: str
    generation: int


@dataclass(frozen=True)
class Commit:
    """One step of the log: rows for any number of partitions, visible together."""

    v: int
    log: str
    sequence: int
    kind: Kind
    owner: str
    """Identifies the append that made this record, so that its writer recognizes it (PROTOCOL P4)."""
    at_us: int
    """Wall clock of the writer; for human readers and retention, never for order (PROTOCOL P3)."""
    ends: tuple[int, ...]
    segments: tuple[LogSegment, ...] = ()
    tag: WriterTag | None = None
    tags: tuple[WriterTag, ...] = ()
    void: int = 0
    """Sequence of the newest commit that took rows back, this one included; 0: none did."""
    voids: tuple[VoidRange, ...] = ()
    """In a commit that takes rows back: all void ranges of the log, in order."""
    compact: int = 0
    """Sequence of the newest compaction, this commit included; 0: there was none."""
    seal: int = 0
    """In a commit that follows the seal: the sequence of the seal; else 0."""
    compaction: Compaction | None = None
    """In a commit of kind `compact`: the record of the compaction."""
    grown: int = 0
    """Sequence of the newest commit that added columns, this one included; 0: none did."""
    schema: str = ""
    """In a commit that adds columns: all columns of the log, as in `meta.json`."""
    owners: tuple[LogOwner, ...] = ()
    packs: Packing | None = None
    """Which commits may be packed; None: none yet."""

    def end_of(self, partition: int) -> int:
        """Return the end of a partition; 0 if it was added later."""
        return self.ends[partition] if partition < len(self.ends) else 0

    def owner_of(self, sink: str) -> LogOwner | None:
        """Return the owner that last took the log over for this sink; None if none was recorded."""
        return next((known for known in self.owners if known.sink == sink), None)

    @property
    def sealed(self) -> bool:
        return self.kind == "seal" or self.seal > 0

    def tag_of(self, writer: str) -> Tag | None:
        """Return the newest tag of a writer, None if it never wrote."""
        return next((known.tag for known in self.tags if known.writer == writer), None)


@dataclass(frozen=True)
class _StoredMeta:
    v: int
    uuid: str
    partitions: int
    key: tuple[str, ...]
    columns: tuple[str, ...]
    """For human readers; `schema` is authoritative."""
    schema: str
    changelog: bool = False
    """Only in format 2, where it is true."""


@dataclass(frozen=True)
class _Versioned:
    v: int


_Record = TypeVar("_Record")


@dataclass(frozen=True)
class Draft:
    """A commit that has no sequence yet; the rows of one partition are in order."""

    kind: Kind
    owner: str
    at_us: int
    segments: tuple[LogSegment, ...] = ()
    """Their bases count from the first row of this draft in the partition."""
    tag: WriterTag | None = None
    follows: tuple[WriterTag, ...] = ()
    """The tags that these writers must have for the append; the writer of `tag`, if not listed, any older tag."""
    after: int = 0
    """In a draft that takes rows back: the only commit that it may follow, since it was made for that tail."""
    voids: tuple[VoidRange, ...] = ()
    moved: tuple[WriterTag, ...] = ()
    """Tags that move with this commit."""
    compaction: Compaction | None = None
    owned: LogOwner | None = None
    """The owner that takes the log over with this commit."""
    admit: Callable[[Commit], None] = lambda _tail: None
    """Called with the commit that this one would follow; raises to refuse it."""
    built_on: tuple[int, int] = (0, 0)
    """In a compaction: the newest `compact` and `void` commits that it knows; they must still be the newest."""
    schema: pa.Schema | None = None
    """In a draft that adds columns: all columns; `after` names the only commit that it may follow."""
    partitions: int = 0
    """In a draft that adds partitions: how many there are then; it may follow any commit that has fewer."""


def before_the_first(meta: LogMeta) -> Commit:
    """Return the commit that represents the empty log before commit 1."""
    return Commit(FORMAT_VERSION, meta.uuid, 0, "append", "", 0, (0,) * meta.partitions)


def placed(draft: Draft, tail: Commit, block: int = BLOCK) -> Commit:
    """Give a draft its place right after the newest commit; `block`: how many commits the log's packs will hold."""
    assert draft.kind == "compact" or not tail.sealed, "only a compaction follows a seal"
    ends = [*tail.ends, *[0] * max(0, draft.partitions - len(tail.ends))]
    segments = []
    for segment in draft.segments:
        base = tail.end_of(segment.partition) + segment.base
        assert base == ends[segment.partition], "segments of a partition leave no gap"
        ends[segment.partition] += segment.rows
        segments.append(replace(segment, base=base))
    moved_tags = draft.moved if draft.tag is None else (draft.tag,)
    voids, compacts, sequence = draft.kind == "void", draft.kind == "compact", tail.sequence + 1
    grows = draft.schema is not None
    version = GROW_VERSION if grows else COMPACT_VERSION if compacts else VOID_VERSION if voids else FORMAT_VERSION
    version = version if draft.owned is None else OWNER_VERSION
    version = WIDEN_VERSION if draft.partitions else version
    packs = Packing(sequence, block) if tail.packs is None and sequence >= block else tail.packs
    version = version if packs is None else PACK_VERSION
    return Commit(
        max(tail.v, version),
        tail.log,
        sequence,
        draft.kind,
        draft.owner,
        draft.at_us,
        tuple(ends),
        tuple(segments),
        draft.tag,
        _tags_after(tail, moved_tags),
        sequence if voids else tail.void,
        draft.voids,
        sequence if compacts else tail.compact,
        seal_of(tail),
        draft.compaction,
        sequence if grows else tail.grown,
        "" if draft.schema is None else encode_schema(draft.schema),
        _owners_after(tail, draft.owned),
        packs,
    )


def seal_of(tail: Commit) -> int:
    """Return the `seal` of a commit that follows this one, 0 if the log is not sealed."""
    return tail.sequence if tail.kind == "seal" else tail.seal


def check_meta(meta: LogMeta) -> None:
    """Raise ConfigError unless this describes a valid log."""
    problem = None
    names = meta.schema.names
    if not 1 <= meta.partitions <= PARTITIONS_MAX:
        problem = f"{meta.partitions} partitions were requested, but a log has 1 to {PARTITIONS_MAX}"
    elif meta.changelog and (wrong := changelog.problem_of(meta.schema, meta.key)):
        problem = wrong
    elif not names or len(set(names)) < len(names):
        problem = "the schema has no column, or one twice"
    elif encoded := [column.name for column in meta.schema if pa.types.is_dictionary(column.type)]:
        problem = f"column {encoded[0]!r} is dictionary-encoded, which a log does not store"
    elif missing := [name for name in meta.key if name not in names]:
        problem = f"the key column {missing[0]!r} is not in the schema ({', '.join(names)})"
    if problem:
        raise ConfigError(problem, not_done="no log was created", next_step="correct it and create the log again")


def commit_path(sequence: int) -> str:
    return f"{COMMITS_FOLDER}/{sequence:020d}.json"


def sequence_of(path: str) -> int:
    """Return the sequence in a commit's path."""
    digits = path.removeprefix(f"{COMMITS_FOLDER}/").removesuffix(".json")
    if len(digits) != 20 or not digits.isdecimal() or path != commit_path(int(digits)):
        raise damaged(path, "is not named as a commit")
    return int(digits)


def encode_meta(meta: LogMeta) -> bytes:
    columns = tuple(describe_column(column) for column in meta.schema)
    schema = encode_schema(meta.schema)
    version = CHANGELOG_VERSION if meta.changelog else FORMAT_VERSION
    record = msgspec.to_builtins(
        _StoredMeta(version, meta.uuid, meta.partitions, meta.key, columns, schema, meta.changelog)
    )
    if not meta.changelog:
        del record["changelog"]
    return _hashed(record)


def encode_schema(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def decode_schema(path: str, text: str) -> pa.Schema:
    """Return the columns in a record. Raises Damaged."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (ValueError, pa.ArrowException, OSError) as error:
        raise damaged(path, f"holds no schema: {error}") from error


def extends(schema: pa.Schema, before: pa.Schema) -> bool:
    """Return whether a log's columns are those before, followed by new ones that may be null."""
    behind = list(schema)[len(before) :]
    named = len(set(schema.names)) == len(schema.names)
    return named and list(schema)[: len(before)] == list(before) and all(column.nullable for column in behind)


def decode_meta(data: bytes) -> LogMeta:
    document = _unhashed(META_PATH, data, _META, CHANGELOG_VERSION)
    schema, is_changelog = decode_schema(META_PATH, document.schema), document.v == CHANGELOG_VERSION
    if document.changelog != is_changelog or (is_changelog and changelog.problem_of(schema, document.key)):
        raise damaged(META_PATH, "describes a changelog that cannot exist")
    return LogMeta(document.uuid, schema, document.partitions, document.key, changelog=is_changelog)


def encode_commit(commit: Commit) -> bytes:
    record = msgspec.to_builtins(commit)
    for version, fields in _FIELDS_SINCE.items():
        for field in fields if commit.v < version else ():
            record.pop(field, None)
    return _hashed(record)


def decode_commit(meta: LogMeta, sequence: int, data: bytes) -> Commit:
    """Return the commit, checked against itself, its name and its log."""
    path = commit_path(sequence)
    commit = _unhashed(path, data, _COMMIT, PACK_VERSION)
    if commit.log != meta.uuid:
        raise damaged(path, f"belongs to log {commit.log}, not to {meta.uuid}")
    if commit.sequence != sequence:
        raise damaged(path, f"claims to be commit {commit.sequence}")
    parts = range(len(commit.ends))
    if not _has_so_many(meta, commit) or not all(segment.partition in parts for segment in commit.segments):
        raise damaged(path, f"names partitions that a log of {meta.partitions} does not have")
    if not all(0 <= end < OFFSETS_MAX for end in commit.ends) or not all(_fits(s, commit) for s in commit.segments):
        raise damaged(path, "has impossible rows or offsets")
    if not all(is_object_in(DATA_FOLDER, segment.path) for segment in commit.segments):
        raise damaged(path, f"names a path that is not below {DATA_FOLDER}/")
    if (commit.void == sequence) != (commit.kind == "void") or (commit.voids and commit.kind != "void"):
        raise damaged(path, "has void ranges but is not of kind void, or vice versa")
    if not all(r.partition in parts and 0 <= r.first < r.end <= commit.ends[r.partition] for r in commit.voids):
        raise damaged(path, "has void ranges that lie outside the log")
    if not (commit.grown == sequence) == (commit.kind == "grow") == (commit.schema != ""):
        raise damaged(path, "has columns but is not of kind grow, or vice versa")
    if not (commit.compact == sequence) == (commit.kind == "compact") == (commit.compaction is not None):
        raise damaged(path, "has a compaction but is not of kind compact, or vice versa")
    if (commit.v >= PACK_VERSION) != (commit.packs is not None) or not _may_pack(commit):
        raise damaged(path, "has packs but not format 7, or vice versa, or packs that cannot exist")
    if commit.compaction is not None and (problem := problem_of(commit.compaction, sequence, commit.ends)):
        raise damaged(path, problem)
    return commit


def check_follows(commit: Commit, before: Commit) -> None:
    """Raise Damaged unless the commit continues exactly where its predecessor ended."""
    added = len(commit.ends) - len(before.ends)
    ends = [*before.ends, *[0] * added]
    path = commit_path(commit.sequence)
    if (added > 0) != (commit.kind == "widen") or added < 0:
        raise damaged(path, f"has {len(commit.ends)} partitions, its predecessor has {len(before.ends)}")
    if before.sealed and commit.kind != "compact":
        raise damaged(path, "follows a seal, but no row may follow a seal")
    if commit.seal != seal_of(before):
        raise damaged(path, "contradicts its predecessor on whether the log is sealed")
    if commit.kind != "compact" and commit.compact != before.compact:
        raise damaged(path, f"says that commit {commit.compact} compacted last, but it was {before.compact}")
    if commit.kind != "grow" and commit.grown != before.grown:
        raise damaged(path, f"says that commit {commit.grown} added columns last, but it was {before.grown}")
    if commit.packs != before.packs and (before.packs or commit.packs is None or commit.packs.since != commit.sequence):
        raise damaged(path, "contradicts its predecessor on which commits are packed")
    for segment in commit.segments:
        if segment.base != ends[segment.partition]:
            raise damaged(path, f"leaves a gap at offset {ends[segment.partition]} of partition {segment.partition}")
        ends[segment.partition] += segment.rows
    if commit.kind != "void" and commit.void != before.void:
        raise damaged(path, f"says that commit {commit.void} took rows back last, but it was {before.void}")
    if tuple(ends) != commit.ends:
        raise damaged(path, "has end offsets that do not fit its rows")


def hash_in(data: bytes) -> str:
    """Return the hash at the end of a record. It identifies the record, since a commit names its append."""
    return data[-18:-2].decode("ascii", "replace")


def describe_column(column: pa.Field) -> str:
    """Return the column as users write it: `price:double?`, with a question mark for nullable."""
    return f"{column.name}:{column.type}{'?' if column.nullable else ''}"


def damaged(path: str, what: str) -> Damaged:
    """Return the error for a record that cannot be trusted."""
    return Damaged(
        f"{path} of the log {what}",
        not_done="nothing was read from it and nothing was appended",
        next_step="restore this object from a backup; nothing else in the log needs to change",
    )


def _has_so_many(meta: LogMeta, commit: Commit) -> bool:
    """Return whether a commit may have its number of partitions; `meta` is that of the creation."""
    if commit.v < WIDEN_VERSION or meta.key:
        return len(commit.ends) == meta.partitions and commit.kind != "widen"
    return meta.partitions <= len(commit.ends) <= PARTITIONS_MAX and (commit.kind != "widen" or not commit.segments)


def _may_pack(commit: Commit) -> bool:
    return commit.packs is None or (commit.packs.block >= 1 and commit.packs.since <= commit.sequence)


def _fits(segment: LogSegment, commit: Commit) -> bool:
    return segment.rows >= 1 and 0 <= segment.base <= commit.ends[segment.partition] - segment.rows


def _tags_after(tail: Commit, moved: tuple[WriterTag, ...]) -> tuple[WriterTag, ...]:
    if not moved:
        return tail.tags
    newest = {known.writer: known for known in (*tail.tags, *moved)}
    return tuple(sorted(newest.values(), key=lambda known: known.writer))


def _owners_after(tail: Commit, owned: LogOwner | None) -> tuple[LogOwner, ...]:
    if owned is None:
        return tail.owners
    others = (known for known in tail.owners if known.sink != owned.sink)
    return tuple(sorted((*others, owned), key=lambda known: known.sink))


def _hashed(record: object) -> bytes:
    body = msgspec.json.encode(record)[:-1]
    return body + _HASH_FIELD + xxhash.xxh3_64_hexdigest(body).encode("ascii") + b'"}'


_FIELDS_SINCE = {
    VOID_VERSION: ("void", "voids"),
    COMPACT_VERSION: ("compact", "seal", "compaction"),
    GROW_VERSION: ("grown", "schema"),
    OWNER_VERSION: ("owners",),
    PACK_VERSION: ("packs",),
}
_VERSIONED = msgspec.json.Decoder(_Versioned)
_META, _COMMIT = msgspec.json.Decoder(_StoredMeta), msgspec.json.Decoder(Commit)


def _unhashed(path: str, data: bytes, kind: msgspec.json.Decoder[_Record], newest: int = FORMAT_VERSION) -> _Record:
    body, found = data[:-_HASH_BYTES], data[-_HASH_BYTES:]
    if found != _HASH_FIELD + xxhash.xxh3_64_hexdigest(body).encode("ascii") + b'"}':
        raise damaged(path, "does not match the hash at its end")
    try:
        version = _VERSIONED.decode(body + b"}").v
        if not FORMAT_VERSION <= version <= newest:
            raise ConfigError(
                f"{path} of the log has format {version}, but this release reads formats up to {newest}",
                not_done="the log was not opened",
                next_step="use the release of Holdfast that wrote it, or a newer one",
            )
        return kind.decode(body + b"}")
    except msgspec.DecodeError as error:
        raise damaged(path, f"cannot be decoded: {error}") from error
