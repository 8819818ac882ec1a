"""Stored folds: the fold of the job log up to one of its records, so that a start reads only the records after it.

A stored fold is a copy of something that the log holds. It may be missing, damaged, of another version, or of another
history of the job: then it is ignored, and the whole log is read. It is used only if the log still has the record up to
which it folds, with the same hash; by the chain of hashes, every earlier record is then the same too.

Invariants
    - A job read with a stored fold is the job read without it.
    - Nothing that is in the log is deleted because a stored fold holds it.

Pure: no clock, thread or I/O. checkpoint/repository.py moves the bytes.
Source: PROTOCOL P5, P7; docs/decisions/0020, 0053.
"""

from __future__ import annotations

import msgspec

from holdfast.checkpoint.joblog import Job, in_pieces
from holdfast.storage.hashed import fits_hash, with_hash

FOLDER = "folds"
VERSION = 2
"""Changes with every change of the fold or of `Job`: no version reads the stored folds of another."""
EVERY = 500
"""How many records may follow the newest stored fold, at least."""
SHARE = 32
"""With many retained checkpoints it is one record per this many, or the bytes per epoch would grow with their
number."""
KEPT = 2
"""A reader may have listed the one before when the newest is stored."""


class StoredFold(msgspec.Struct, frozen=True):
    """The object."""

    v: int
    job: Job


_DECODER = msgspec.json.Decoder(StoredFold)


def due(job: Job, stored: int) -> bool:
    """Return whether to store this fold.

    Args:
        stored: Number of the last record of the newest fold that is known to be stored; 0: none.
    """
    return last_of(job) - max(stored, job.log_start) >= max(EVERY, len(job.completed) // SHARE)


def last_of(job: Job) -> int:
    """Return the number of the last record that is folded."""
    return job.next_seq - 1


def path_of(last: int) -> str:
    """Return where the fold up to this record is stored."""
    return f"{FOLDER}/{last:020d}.json"


def number_in(path: str) -> int | None:
    """Return the number of the last record that is folded there; None if the object has another name."""
    name = path.removeprefix(f"{FOLDER}/").removesuffix(".json")
    return int(name) if len(name) == 20 and name.isdecimal() and path == path_of(int(name)) else None


def encode(job: Job) -> bytes:
    """Return the fold as it is stored."""
    return with_hash(msgspec.json.encode(StoredFold(VERSION, job), enc_hook=in_pieces))


def decode(data: bytes, last: int) -> Job | None:
    """Return the fold up to this record; None if these bytes are not it."""
    if not fits_hash(data):
        return None
    try:
        found = _DECODER.decode(data)
    except msgspec.DecodeError:
        return None
    return found.job if found.v == VERSION and last_of(found.job) == last else None
