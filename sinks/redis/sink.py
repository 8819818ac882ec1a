"""`hf.Redis`: keys of a Redis database as a sink, one per row.

redis-py is an extra (`pip install holdfast[redis]`), so it is loaded at the first connection.

Source: API.md (sinks); docs/decisions/0081-redis-sink.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from holdfast.arguments import checked
from holdfast.errors import ConfigError
from holdfast.extras import install
from holdfast.model import Writer
from holdfast.secrets import Secret, secret_argument
from holdfast.sinks.contract.owners import Claim, Holding, Ownership
from holdfast.sinks.contract.sink import Sink, check_key
from holdfast.sinks.contract.target import Fault, no_fault
from holdfast.sinks.json_values.rows import check_forms
from holdfast.sinks.redis.book import COLUMNS, RedisBook, columns_value
from holdfast.sinks.redis.place import RedisPlace, place_of
from holdfast.sinks.redis.rows import KeyValueRows
from holdfast.sinks.redis.target import RedisTarget
from holdfast.traits import Library, SinkTraits

if TYPE_CHECKING:
    from holdfast.sinks.redis.client import RedisConnection

_log = logging.getLogger("holdfast.redis")


@dataclass(frozen=True, init=False)
class Redis(Ownership, Sink):
    """Keys of a Redis database, one per row: `prefix` and the row's key, with a JSON object of all columns as value.

    The rows of an epoch become visible in one step, after its checkpoint.

    Args:
        url: The server and the database, "redis://app@redis.example:6379/0", without a password; "rediss://..." for
            an encrypted connection. Redis 6.0 or newer, no cluster.
        prefix: The prefix of all key names, such as "hot:"; 1 to 512 bytes that no other sink uses.
        key: The columns that make the rest of a key's name; a row replaces the one with its key. One column of text
            is used as it is, one of another type as its JSON value, several as a JSON object.
        password: Where the driver and each worker read the password: hf.secret("env:REDIS_PASSWORD").
    """

    url: str
    prefix: str
    key: tuple[str, ...]
    password: Secret | None
    library: ClassVar[Library] = Library(name="redis", extra="redis")

    @checked("hf.Redis", '("redis://app@redis.example:6379/0", prefix="hot:", key=["auction"])')
    def __init__(self, url: str, prefix: str, key: Iterable[str], password: Secret | None = None) -> None:
        object.__setattr__(self, "url", url)
        object.__setattr__(self, "prefix", prefix)
        object.__setattr__(self, "key", (key,) if isinstance(key, str) else tuple(key))
        object.__setattr__(self, "password", secret_argument(password, "hf.Redis(password=)"))
        place_of(url, prefix)  # refuses a password before any message repeats the URL

    @classmethod
    def example(cls) -> Redis:
        """Return a sink that has every trait; see sources/listed.py."""
        return cls("redis://app@redis.example:6379/0", "hot:", key=["auction"])

    @property
    def place(self) -> RedisPlace:
        """The server, the database and the prefix."""
        return place_of(self.url, self.prefix)

    @property
    def where(self) -> str:
        """How messages name the target."""
        return self.place.where

    @property
    def traits(self) -> SinkTraits:
        """No before-images are kept, as they would fill the memory: no rewind takes rows back."""
        return SinkTraits(
            kind="Redis",
            local_paths=(),
            place={"server": self.place.server, "prefix": self.prefix},
            secrets=() if self.password is None else (self.password,),
            keyed=True,
            exclusive=True,
        )

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        check_key(self.where, schema, upsert_key, self.key)
        check_forms(self.where, schema, self.key)

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """Notes the columns of the rows, which shows that this user may write."""
        self.check(schema, upsert_key)
        with closing(self._connection()) as connection:
            server = connection.server()
            server.check(self.where)
            connection.check_rights()
            connection.create(columns_value(schema, self.key))
            self._compare(connection.book(), schema)
        for warning in server.warnings(self.where):
            _log.warning("%s", warning)

    def probe(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> str:
        self.check(schema, upsert_key)
        with closing(self._connection()) as connection:
            server = connection.server()
            server.check(self.where)
            connection.check_rights()
            book = connection.book()
        risks = "".join(f"; {warning}" for warning in server.warnings(self.where))
        if not book.raw(COLUMNS):
            return f"no sink has used the prefix; the first start notes the columns there{risks}"
        self._compare(book, schema)
        return f"the rows under the prefix have the columns of the stream{risks}"

    def accept(self, batch: pa.RecordBatch) -> None:
        self._rows().accept(batch)

    def check_owner(self, job_uuid: str | None, name: str) -> None:
        """Rows of two jobs under one prefix would replace each other."""
        with closing(self._connection()) as connection:
            other = connection.book().another_job(job_uuid, name)
        if other is not None:
            raise ConfigError(
                f"{self.where}: holds rows of a sink {name!r} of another job, {other}",
                not_done="the job was not started, the rows were not changed",
                next_step="name another prefix. If that job was deleted and recreated, rows that the new one never "
                f"replaces would stay: delete the keys under the prefix, and the hash {self.place.book}",
            )

    def holding(self, job_uuid: str, name: str) -> Holding:
        with closing(self._connection()) as connection:
            book = connection.book()
        return Holding(book.held(job_uuid, name), book.newest(job_uuid, name), book.rival(job_uuid, name))

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> RedisTarget:
        return self.opened(job_uuid, writer, claim)

    def opened(self, job_uuid: str, writer: Writer, claim: Claim | None = None, fault: Fault = no_fault) -> RedisTarget:
        """Return a target that calls `fault` at every point of a delivery."""
        return RedisTarget(self.where, self._connection(), self._rows().pairs, job_uuid, writer, claim, fault)

    def _rows(self) -> KeyValueRows:
        return KeyValueRows(self.where, self.prefix.encode(), self.key)

    def _connection(self) -> RedisConnection:
        try:
            from holdfast.sinks.redis.client import RedisConnection
        except ImportError as error:
            raise ConfigError(
                f"hf.Redis needs redis-py, which cannot be imported: {error}",
                not_done="nothing was opened",
                next_step=f"install it here and on every worker: {install('redis')}",
            ) from error
        return RedisConnection(self.place, self.password)

    def _compare(self, book: RedisBook, schema: pa.Schema) -> None:
        """Refuse rows that differ from those under the prefix: readers would find both forms."""
        stream_columns, note = columns_value(schema, self.key), book.raw(COLUMNS)
        if note == stream_columns:
            return
        raise ConfigError(
            f"{self.where}: the rows there have other columns or another key than the stream: {note.decode()}, the "
            f"stream has {stream_columns.decode()}",
            not_done="nothing was written there",
            next_step="give the sink another prefix; or, if readers can distinguish both forms, remove the note: "
            f"HDEL {self.place.book} '{COLUMNS.decode()}'",
        )
