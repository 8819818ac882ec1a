"""The KeyValue port on RocksDB.

One column family and no write-ahead log: after a kill the store holds a prefix of the batches
written (PROTOCOL P15). Nothing is ingested from files.

Invariants
    - A scan that meets a damaged block raises; rocksdict's iterators would end silently, so
      every scan checks their status at its end.
    - A store that can never be written again raises LocalDamaged.
    - A write never waits for compaction inside RocksDB, where it would hold the interpreter
      lock; it is refused as Unavailable and may be retried later.
    - Nothing refers to the database after close(), else its lock would remain.
    - A directory in which damage was found is marked by a file, permanently: a process that opened it again would
      meet the damage again, perhaps only after hours.

I/O: local files.
Source: DESIGN section 5; the behaviour of rocksdict was measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from holdfast.errors import HoldfastError, LocalDamaged, Unavailable

STUCK_AFTER_S = 20.0
"""Once a full disk has room again, RocksDB resumes automatically within a few seconds."""
PROBE_BYTES = 64 << 10
GET_CHUNK = 1_000
"""Keys in one multi-get; it releases the interpreter lock once per chunk."""
BLOOM_BITS = 10
WRITE_BUFFER_BYTES = 32 << 20
RANGES_MAX = 2_048
"""Range tombstones that may accumulate before the write buffer is switched in the background: the first read after a
write to a buffer sorts all of its ranges, 10 ms for 1,300 ranges and 300 ms for 25,600."""
DAMAGED = "DAMAGED"
"""Name of the file that marks a directory in which damage was found."""


class RocksMemory:
    """The memory that all databases of one process share: the block cache and the budget of write buffers.

    Args:
        cache_bytes: Blocks, and the write buffers charged to the cache.
        write_bytes: Write buffers of all databases together.
    """

    def __init__(self, cache_bytes: int = 128 << 20, write_bytes: int = 64 << 20) -> None:
        self.cache = Cache(cache_bytes)
        self.buffers = WriteBufferManager.new_write_buffer_manager_with_cache(write_bytes, False, self.cache)


class RocksKeyValue:
    """Ordered bytes in one RocksDB directory, which it creates if there is none.

    Raises:
        Unavailable: another live process, or this one, holds the directory.
        LocalDamaged: the directory cannot be opened.
    """

    def __init__(self, path: Path, memory: RocksMemory | None = None) -> None:
        self.path = path
        options = _options(memory or RocksMemory())
        with _translated(path, "nothing was opened"):
            self._db = Rdict(str(path), options=options, access_type=AccessType.read_write())
        self._ranges = 0
        writing = WriteOptions()
        writing.disable_wal = True  # type: ignore[method-assign,assignment]  # a property, contrary to its stub
        writing.no_slowdown = True
        self._db.set_write_options(writing)
        self._fine_since: float | None = None
        """Since when RocksDB has refused to write although the disk accepts writes."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return one value per key; sorted keys are faster."""
        values: list[bytes | None] = []
        with _translated(self.path, "nothing was read"):
            for first in range(0, len(keys), GET_CHUNK):
                chunk: list[Any] = list(keys[first : first + GET_CHUNK])
                values.extend(self._db.get(chunk) or [])
        return values

    def write(self, puts: list[tuple[bytes, bytes]], deletes: list[bytes]) -> None:
        """Apply one batch atomically; at most about 1,000 keys, as this holds the interpreter lock."""
        batch = WriteBatch(raw_mode=True)
        for key, value in puts:
            batch.put(key, value)
        for key in deletes:
            batch.delete(key)
        self._write(batch)

    def _write(self, batch: WriteBatch) -> None:
        try:
            with _translated(self.path, "the batch may or may not have been written; writing it again is safe"):
                self._db.write(batch)
        except Unavailable as error:
            self._refuse_if_stuck(error)
            raise
        self._fine_since = None

    def _refuse_if_stuck(self, error: Unavailable) -> None:
        """After some disk errors RocksDB refuses every write until it is opened again, even if the disk has recovered.

        The data in its memory cannot be saved then, so the copies are discarded.
        """
        if "IO error" not in error.what or not takes_writes(self.path, 2 * WRITE_BUFFER_BYTES):
            self._fine_since = None
            return
        now = time.monotonic()
        self._fine_since = now if self._fine_since is None else self._fine_since
        if now - self._fine_since >= STUCK_AFTER_S:
            raise LocalDamaged(
                f"RocksDB in {self.path} refuses to write, although the disk accepts writes again: {error.what}",
                not_done="the newest copies were not written to it; the checkpoint has their contents",
                next_step="let the worker restart: it reopens the directory and restores the rest",
            ) from error

    def erase(self, ranges: list[tuple[bytes, bytes]]) -> None:
        """Remove ranges as one batch, with one range tombstone each."""
        batch = WriteBatch(raw_mode=True)
        for first, end in ranges:
            batch.delete_range(first, end)
        self._write(batch)
        self._ranges += len(ranges)
        if self._ranges > RANGES_MAX:
            with _translated(self.path, "the ranges are written, but the write buffer was not emptied"):
                self._db.flush(False)
            self._ranges = 0

    def scan(self, first: bytes, end: bytes, pairs_max: int | None = None) -> list[tuple[bytes, bytes]]:
        """Return the pairs with first <= key < end in order, all or the first `pairs_max`."""
        reading = ReadOptions()
        reading.set_iterate_lower_bound(first)
        reading.set_iterate_upper_bound(end)
        pairs: list[tuple[bytes, bytes]] = []
        with _translated(self.path, "the rows read so far were dropped"):
            cursor = self._db.iter(reading)
            try:
                cursor.seek(first)
                while cursor.valid() and len(pairs) != pairs_max:
                    pairs.append((cursor.key(), cursor.value()))
                    cursor.next()
                cursor.status()
            finally:
                del cursor  # a traceback would keep it alive, and with it the lock
        return pairs

    def flush(self, wait: bool = True) -> None:
        """Make everything written so far survive a kill; without `wait`, return before that is done."""
        with _translated(self.path, "the newest writes may or may not survive a kill"):
            self._db.flush(wait)

    def close(self) -> None:
        """Release the directory. Unflushed writes are lost."""
        with suppress(Unavailable), _translated(self.path, "unflushed writes are lost"):
            self._db.close()


def takes_writes(folder: Path, room_bytes: int) -> bool:
    """Return whether the disk of a folder accepts a small file and has this much room; a restart makes no room."""
    probe = folder / "probe"
    try:
        with open(probe, "wb") as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
        disk = os.statvfs(folder)
    except OSError:
        return False
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
    return disk.f_bavail * disk.f_frsize >= room_bytes


def _options(memory: RocksMemory) -> Options:
    blocks = BlockBasedOptions()
    blocks.set_block_cache(memory.cache)
    blocks.set_bloom_filter(BLOOM_BITS, False)
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(blocks)
    options.set_write_buffer_manager(memory.buffers)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(0.1)
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    return options


@contextmanager
def _translated(path: Path, not_done: str) -> Iterator[None]:
    """Translate RocksDB's errors, which are always bare Exceptions, into Holdfast's kinds of error."""
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:  # rocksdict raises no narrower kind
        message = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "orruption" in message or "checksum" in message:
            with suppress(OSError):
                (path / DAMAGED).write_text(message, encoding="utf-8")
            raise LocalDamaged(
                f"the local state in {path} is damaged: {message}",
                not_done=not_done,
                next_step="let the worker restore from the checkpoint; this directory will be removed",
            ) from error
        raise Unavailable(
            f"the local state in {path} cannot be used now: {message}",
            not_done=not_done,
            next_step="make sure that the disk has room and no other process holds the directory, then try again",
        ) from error
