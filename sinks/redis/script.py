"""The script by which every delivery changes a Redis target, and its arguments.

Redis runs a script alone, and keeps all of its changes or, after a crash, none. It does not take changes back when a
command fails in the middle: the script's own comparisons come before its first write, and the tag is its last one. So a
script that is broken off, by a right that is taken away from some keys, leaves the tag where it was; the same
delivery then puts the same rows again.

Invariants
    - The script writes nothing unless every value that it compares is the one that its caller has read.
    - The tag moves after the last row.

Pure: no clock, thread or I/O. Source: redis.io/docs, programmability; docs/decisions/0081-redis-sink.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

CHUNK_BYTES = 1 << 20
"""Rows go to the server in arguments of about this size: an argument per row would cost more than the row."""
REQUEST_BYTES_MAX = 768 << 20
"""The largest delivery. A server drops a client that sends more than 1 GiB (client-query-buffer-limit)."""
PUT, DELETE = 0, 1
_OP_AND_LENGTH, _LENGTH = struct.Struct(">BI"), struct.Struct(">I")

SCRIPT = """\
local at = 0
local function following()
  at = at + 1
  return ARGV[at]
end
local fields = following()
if fields ~= '' and redis.call('HLEN', KEYS[1]) ~= tonumber(fields) then return 0 end
for _ = 1, tonumber(following()) do
  local name = following()
  local read = following()
  if (redis.call('HGET', KEYS[1], name) or '') ~= read then return 0 end
end
local values = {}
for _ = 1, 2 * tonumber(following()) do values[#values + 1] = following() end
local doing, group = 0, {}
local function flush()
  if #group > 0 then redis.call(doing == 1 and 'DEL' or 'MSET', unpack(group)) end
  group = {}
end
for n = at + 1, #ARGV do
  local chunk, place = ARGV[n], 1
  while place <= #chunk do
    local op, key, value
    op, key, value, place = struct.unpack('>BI4c0I4c0', chunk, place)
    if op ~= doing or #group >= 1000 then flush() end
    doing = op
    group[#group + 1] = key
    if op == 0 then group[#group + 1] = value end
  end
end
flush()
redis.call('HSET', KEYS[1], unpack(values))
return 1
"""
"""Rows go in groups: Redis keeps a list of a script's changes, which older versions extend one by one. Returns 1 if
it changed the target, 0 if a value was not the one that was read."""
RIGHTS = """\
local fields = redis.call('HLEN', KEYS[1])
local columns = redis.call('HGET', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
redis.call('MSET', KEYS[2], '')
redis.call('DEL', KEYS[2])
if columns then
  redis.call('HSET', KEYS[1], ARGV[1], columns)
elseif fields == 0 then
  redis.call('HSET', KEYS[1], ARGV[1], '')
  redis.call('DEL', KEYS[1])
end
return 1
"""
"""Runs every command of a delivery, on the hash and on a key that no row has, and leaves both as they were: commands
that may be refused come before those that would leave traces."""


@dataclass(frozen=True)
class BookChange:
    """One change of a target.

    Args:
        read: Fields of the hash with the values that must still be there; empty: the field must be missing.
        sets: Fields with their new values; at least one.
        fields: How many fields the hash must have; None: any number.
        chunks: Packed rows.
    """

    read: Mapping[bytes, bytes]
    sets: Mapping[bytes, bytes]
    fields: int | None = None
    chunks: Sequence[bytes] = field(default=(), repr=False)

    def arguments(self) -> list[bytes]:
        """Return the script's arguments."""
        fields = b"" if self.fields is None else b"%d" % self.fields
        return [fields, *_pairs(self.read), *_pairs(self.sets), *self.chunks]


def packed(rows: Iterable[tuple[bytes, bytes | None]]) -> Iterator[bytes]:
    """Yield rows as chunks, in order. A value of None deletes the key."""
    chunk = bytearray()
    for key, value in rows:
        chunk += _OP_AND_LENGTH.pack(PUT if value is not None else DELETE, len(key))
        chunk += key
        chunk += _LENGTH.pack(len(value or b""))
        chunk += value or b""
        if len(chunk) >= CHUNK_BYTES:
            yield bytes(chunk)
            chunk.clear()
    if chunk:
        yield bytes(chunk)


def _pairs(fields: Mapping[bytes, bytes]) -> list[bytes]:
    return [b"%d" % len(fields), *(part for pair in fields.items() for part in pair)]
