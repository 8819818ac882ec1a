"""Packs: a thousand old commits of a log in one object, byte for byte, so that their own objects can be deleted.

The name of a pack is the sequence of its last commit, so a process that knows a sequence knows where its pack would
be. Every pack exists before any of its commits is deleted, and no pack is ever deleted. So an object under a commit's
name is that commit if its pack does not exist afterwards. Otherwise the object may be a ghost, which a suspended writer
created after the deletion: the pack alone counts (PROTOCOL P7).

Invariants
    - Packs follow each other without a gap, from the first one that has only commits after `since`.
    - Commits up to `since` are never packed: processes of older releases know some of them as the newest.

Pure: no clock, random or I/O.
Source: PROTOCOL P7; docs/decisions/0058-packed-commits.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import xxhash

from holdfast.errors import Damaged

PACKS_FOLDER = "packs"
BLOCK = 1_000
"""How many commits a pack holds."""
_MAGIC = b"hf.Log pack 1\n"
_DIGITS = 16
_CODEC = pa.Codec("zstd", compression_level=3)
BYTES_MAX = 1 << 32


@dataclass(frozen=True)
class Packing:
    """Which commits of a log may be packed; fixed by the first commit that has it."""

    since: int
    """The sequence of that commit; only later commits are packed."""
    block: int
    """How many commits a pack holds."""

    @property
    def first(self) -> int:
        """Return the sequence of the first commit that can be packed."""
        return -(-self.since // self.block) * self.block + 1

    def last_of(self, sequence: int) -> int:
        """Return the sequence of the last commit in the pack that would hold this one."""
        return -(-sequence // self.block) * self.block

    def covers(self, sequence: int) -> bool:
        """Return whether a commit with this sequence can be in a pack."""
        return sequence >= self.first

    def due(self, tail: int) -> int:
        """Return up to which commit packs are due if this one is the newest; 0: none."""
        last = (tail - self.block) // self.block * self.block
        return last if last >= self.first else 0


def pack_path(last: int) -> str:
    return f"{PACKS_FOLDER}/{last:020d}.pack"


def last_in(path: str) -> int:
    """Return the sequence of the last commit in the pack with this path. Raises Damaged."""
    digits = path.removeprefix(f"{PACKS_FOLDER}/").removesuffix(".pack")
    if len(digits) != 20 or not digits.isdecimal() or path != pack_path(int(digits)):
        raise _damaged(path, "is not named as a pack")
    return int(digits)


def encode_pack(commits: Sequence[bytes]) -> bytes:
    """Return the pack of these commits, which hold no line break."""
    lines = b"\n".join(commits)
    body: bytes = len(lines).to_bytes(8, "big") + _CODEC.compress(lines, asbytes=True)
    return _MAGIC + xxhash.xxh3_64_hexdigest(body).encode("ascii") + body


def decode_pack(path: str, data: bytes, block: int) -> list[bytes]:
    """Return the commits of a pack. Raises Damaged."""
    start = len(_MAGIC) + _DIGITS
    digits, body = data[len(_MAGIC) : start], data[start:]
    if data[: len(_MAGIC)] != _MAGIC or digits != xxhash.xxh3_64_hexdigest(body).encode("ascii"):
        raise _damaged(path, "does not match the hash at its beginning")
    size = int.from_bytes(body[:8], "big")
    if size > BYTES_MAX:
        raise _damaged(path, f"claims to hold {size} bytes")
    try:
        lines: bytes = _CODEC.decompress(body[8:], decompressed_size=size, asbytes=True)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, f"cannot be decompressed: {error}") from error
    commits = lines.split(b"\n")
    if len(commits) != block:
        raise _damaged(path, f"holds {len(commits)} commits instead of {block}")
    return commits


def _damaged(path: str, problem: str) -> Damaged:
    return Damaged(
        f"{path} of the log {problem}",
        not_done="nothing was read or changed beyond it",
        next_step="restore the object from a backup; commits of the log are only in it",
    )
