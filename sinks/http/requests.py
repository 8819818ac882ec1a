"""Rows as requests: bodies and idempotency keys, the same for every delivery of one epoch.

The rows of an epoch are counted through, whatever batches they come in, and cut every `batch_rows` rows. A key is made
of the job, the sink, the writer, the tag, the number of the first row, and the body. The tag alone would do for one
history of a job whose sink never changes. The body keeps rows from being dropped if it is not so: a receiver must not
take rows of a copied job folder, or of a changed `batch_rows`, for a repetition.

Invariants
    - The same output gives the same bodies and keys, byte for byte.
    - Two requests with one key have one body.
    - An epoch is never held as a whole: the memory for its rows is bounded.

Pure: no clock, thread or I/O. Source: docs/decisions/0100-http-sink.md.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from holdfast.model import Tag, Writer
from holdfast.sinks.json_values.rows import objects

PIECE_REQUESTS = 100
PIECE_BYTES = 4 * 1024 * 1024
_ENCODED_ROWS = 10_000
_KEY_VERSION = 1


@dataclass(frozen=True)
class Request:
    """A POST request, with this many rows."""

    key: str
    body: bytes
    rows: int


def requests_of(
    job_uuid: str, writer: Writer, tag: Tag, batches: Iterable[pa.RecordBatch], batch_rows: int
) -> Iterator[Request]:
    """Yield the requests of an epoch in order. Batches are read as they are needed."""
    first, rows = 0, list[bytes]()
    for row in _objects(batches):
        rows.append(row)
        if len(rows) == batch_rows:
            yield _request(job_uuid, writer, tag, first, rows, batch_rows)
            first, rows = first + batch_rows, []
    if rows:
        yield _request(job_uuid, writer, tag, first, rows, batch_rows)


def in_pieces(requests: Iterable[Request]) -> Iterator[list[Request]]:
    """Yield requests in pieces, each limited in bytes and in requests."""
    piece, size = list[Request](), 0
    for request in requests:
        piece.append(request)
        size += len(request.body)
        if len(piece) == PIECE_REQUESTS or size >= PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def signature_of(secret: str, body: bytes) -> str:
    """Return the value of the header that signs a body."""
    return f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"


def _objects(batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    for batch in batches:
        for at in range(0, batch.num_rows, _ENCODED_ROWS):
            yield from objects(batch.slice(at, _ENCODED_ROWS), batch.schema.names)


def _request(job_uuid: str, writer: Writer, tag: Tag, first: int, rows: list[bytes], batch_rows: int) -> Request:
    body = rows[0] if batch_rows == 1 else b"[" + b",".join(rows) + b"]"
    return Request(_key(job_uuid, writer, tag, first, body), body, len(rows))


def _key(job_uuid: str, writer: Writer, tag: Tag, first: int, body: bytes) -> str:
    """Return a UUID of version 8, RFC 9562 section 5.8: receivers often take nothing longer."""
    made_of = [_KEY_VERSION, job_uuid, writer.sink, writer.subtask, tag.timeline, tag.epoch, first]
    head = json.dumps(made_of, separators=(",", ":")).encode()
    digest = bytearray(hashlib.sha256(head + b"\n" + body).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
