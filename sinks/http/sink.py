"""`hf.Http`: rows as JSON in POST requests, each with an idempotency key.

Source: API.md (sinks); docs/decisions/0100-http-sink.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from holdfast.arguments import checked
from holdfast.errors import ConfigError
from holdfast.extras import install
from holdfast.model import Writer
from holdfast.secrets import Secret, secret_argument
from holdfast.sinks.contract.owners import Claim, Ownership
from holdfast.sinks.contract.sink import Sink, check_key
from holdfast.sinks.contract.target import Fault, no_fault
from holdfast.sinks.http.place import BATCH_ROWS_MAX, HttpPlace, Value, place_of, refused
from holdfast.sinks.http.target import HttpTarget
from holdfast.sinks.json_values.rows import check_finite, check_forms
from holdfast.sinks.log.sink import LogSink
from holdfast.storage.paths import refuse_password
from holdfast.traits import Library, SinkTraits, local

if TYPE_CHECKING:
    from holdfast.sinks.http.client import HttpClient


@dataclass(frozen=True, init=False)
class Http(Sink):
    """POST requests with the rows of each epoch, after its checkpoint: at least once, each with an idempotency key.

    Args:
        url: Where to POST, "https://api.example.com/rows", without a user or a password.
        progress: A folder that all workers see, or a URL such as "s3://bucket/progress", of no other sink: it records
            deliveries.
        batch_rows: How many rows a request has at most, 1 to 10,000: its body is a JSON array of objects. With 1, its
            body is the object of one row.
        headers: More headers: text, or hf.secret("env:HTTP_AUTHORIZATION") for one that must not be seen.
        signature: "hmac-sha256:HEADER": each request has this header with `sha256=` and the HMAC of its body.
        secret: With `signature`, the key that signs: hf.secret("env:HTTP_SECRET").
        timeout_s: How many seconds to wait for a connection, and for an answer.
        ca: A file with the certificates of the authorities that sign the receiver's; None: those of the system.
    """

    key = None
    url: str
    progress: str
    batch_rows: int
    place: HttpPlace
    library: ClassVar[Library] = Library(name="urllib3", extra="http")

    @checked("hf.Http", '("https://api.example.com/rows", progress="s3://bucket/progress")')
    def __init__(
        self,
        url: str,
        *,
        progress: str | os.PathLike[str],
        batch_rows: int = 100,
        headers: Mapping[str, Value] | None = None,
        signature: str | None = None,
        secret: Secret | None = None,
        timeout_s: float = 10.0,
        ca: str | os.PathLike[str] | None = None,
    ) -> None:
        named = None if ca is None else os.path.abspath(ca)
        signs = secret_argument(secret, "hf.Http(secret=)")
        place = place_of(url, headers, signature, signs, timeout_s, named)
        if isinstance(batch_rows, bool) or not isinstance(batch_rows, int) or not 1 <= batch_rows <= BATCH_ROWS_MAX:
            raise refused(f"batch_rows is {batch_rows!r}", f"give a number from 1 to {BATCH_ROWS_MAX:,}")
        path = os.fspath(progress)
        refuse_password(path, "progress= of hf.Http")
        if not path:
            raise refused("progress is empty", "name a folder or a URL in which the sink records deliveries")
        object.__setattr__(self, "url", url)
        object.__setattr__(self, "progress", path if "://" in path else os.path.abspath(path))
        object.__setattr__(self, "batch_rows", batch_rows)
        object.__setattr__(self, "place", place)

    @classmethod
    def example(cls) -> Http:
        """Return a sink that has every trait; see sources/listed.py."""
        return cls("https://api.example.com/rows", progress="s3://bucket/progress")

    def __repr__(self) -> str:
        return f"Http({self.place.shown!r}, progress={self.progress!r})"

    @property
    def where(self) -> str:
        """How messages name the target."""
        return self.place.where

    @property
    def traits(self) -> SinkTraits:
        """Sent rows cannot be taken back."""
        return SinkTraits(
            kind="Http",
            local_paths=local(self.progress),
            place={"url": self.place.shown, "progress": self.progress},
            secrets=self.place.secrets,
        )

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        if upsert_key is not None:
            raise ConfigError(
                f"{self.where}: the stream replaces rows by {list(upsert_key)}, but a request only adds rows",
                not_done="the job was not planned",
                next_step='use emit="each" or emit="final", or .to_changes() of a table, which gives changes as rows',
            )
        check_key(self.where, schema, upsert_key, None)
        check_forms(self.where, schema)
        self._noted.check(schema, None)

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """Connects to the receiver, and sends nothing."""
        self.check(schema, upsert_key)
        self._client().connect()
        self._noted.prepare(schema, None)

    def probe(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> str:
        self.check(schema, upsert_key)
        found = self._noted.probe(schema, None)
        self._client().connect()
        return f"the receiver takes connections; as for progress, {found}"

    @property
    def ownership(self) -> Ownership:
        return self._noted

    def accept(self, batch: pa.RecordBatch) -> None:
        check_finite(self.where, batch)

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> HttpTarget:
        return self.opened(job_uuid, writer, claim)

    def opened(self, job_uuid: str, writer: Writer, claim: Claim | None = None, fault: Fault = no_fault) -> HttpTarget:
        """Return a target that calls `fault` at every point of a delivery."""
        progress = self._noted.open(job_uuid, writer, claim)
        return HttpTarget(self.where, self._client, progress, job_uuid, writer, self.batch_rows, fault)

    @property
    def _noted(self) -> LogSink:
        """The log of progress: it has the columns of the stream, tags and owners, and never a row."""
        return LogSink(self.progress, partitions=1)

    def _client(self) -> HttpClient:
        try:
            from holdfast.sinks.http.client import HttpClient
        except ImportError as error:
            raise ConfigError(
                f"hf.Http needs urllib3, which cannot be imported: {error}",
                not_done="nothing was opened",
                next_step=f"install it here and on every worker: {install('http')}",
            ) from error
        return HttpClient(self.place)
