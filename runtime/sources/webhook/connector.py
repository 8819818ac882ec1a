"""`hf.Webhook`: HTTP requests that a process of `holdfast capture` appends to a log, as a source.

A request cannot be read again, so a job never reads one: it reads the log. For the job this source is that log in
everything but its name; only `holdfast capture` looks at the rest, which is a `Receiving`.

Source: API.md (sources, captured); docs/decisions/0085-webhooks.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pyarrow as pa

from holdfast.arguments import checked
from holdfast.errors import ConfigError
from holdfast.runtime.config.durations import Duration, duration_ms
from holdfast.runtime.config.settings import size_bytes
from holdfast.runtime.formats.json_lines import JsonLines, Times
from holdfast.runtime.rows.row_types import ArrowSchema, RowsOf, T
from holdfast.runtime.sources.connector import SourceConnector
from holdfast.runtime.sources.kafka.values import JSON, RAW, Raw
from holdfast.runtime.sources.log import Log, LogSource
from holdfast.runtime.sources.webhook.signatures import Scheme, is_header, scheme_of
from holdfast.secrets import Secret, secret_argument
from holdfast.storage.log.format import LogMeta
from holdfast.storage.log.reader import read_meta
from holdfast.storage.objects import open_objects
from holdfast.traits import Library

KEY, AT = "webhook_key", "webhook_at"
META = pa.schema([pa.field(KEY, pa.utf8()), pa.field(AT, pa.timestamp("us", "UTC"))])
"""Columns of the log behind those of the schema: the idempotency key, and when the request was appended."""
BODY_MOST = 16 * 1024 * 1024
HORIZON_MOST_MS = 90 * 86_400_000
LINGER_MOST_MS = 5_000
_PATH = re.compile(r"/[A-Za-z0-9._~/-]*")
_PORT_MOST = 65_535


@dataclass(frozen=True)
class KeyPlace:
    """Where a request has its idempotency key."""

    part: Literal["header", "body"]
    name: str
    """The header, in lower case; or the field of the body's object."""


@dataclass(frozen=True, kw_only=True)
class Receiving:
    """All that a process needs to capture the requests; the arguments are those of `Webhook`."""

    host: str
    port: int
    path: str
    log: str
    partitions: int
    partition_key: tuple[str, ...]
    schema: pa.Schema
    times: Times
    defaults: Mapping[str, Any]
    raw: bool
    """Whether the only column is the body as it was sent."""
    key: KeyPlace | None
    horizon_us: int
    scheme: Scheme | None
    secrets: tuple[Secret, ...]
    tolerance_s: float
    body_max: int
    linger_ms: int
    capturer: ClassVar[str] = "holdfast.runtime.capture.webhook"
    """See Captured.capturer."""

    @property
    def columns(self) -> pa.Schema:
        """The columns of the log."""
        return pa.schema([*self.schema, *META])

    def lines(self) -> JsonLines | None:
        """Return what decodes bodies; None: they stay bytes."""
        return None if self.raw else JsonLines(self.schema, self.times, self.defaults)


class Webhook(SourceConnector, RowsOf[T]):
    """JSON objects that programs elsewhere send by HTTP POST, captured into a log and read from there.

    `holdfast capture JOB.py` runs the port, as a process of its own: it appends each request to the log and only then
    answers 200. The job reads the log, as `hf.Log` does; it may run, or not, at any time.

    Args:
        listen: "host:port" of the port, such as "127.0.0.1:8080"; port 0 takes a free one.
        into: The log, such as `hf.Log("data/payments")`; `capture` creates it if it is missing.
        schema: A dataclass or pyarrow.Schema: the fields of a body, decoded as `hf.JSON` decodes values. Or `hf.Raw()`:
            one column, `value`, with the body as it was sent, JSON or not.
        path: The path of the URL that requests are sent to.
        key: Where a request has its idempotency key: "header:NAME", or "body:FIELD" for a string or an integer. A
            repeated key is answered 200 and not stored again. None: requests have none, and each is stored.
        horizon: How long a key is known after its request was stored, at most "90d".
        signature: How requests are signed: "stripe", "github", "shopify", "slack" or "hmac-sha256:HEADER". None: they
            are not, and every program that reaches the port can append rows.
        secret: The secret of the signatures: `hf.secret("env:STRIPE_SECRET")`; several while one is replaced.
        tolerance: How far a signed time may be from the time here.
        body_max: The largest body, at most "16MiB".
        linger: How long a request may wait for others that are stored in the same commit, at most "5s". Every commit
            adds an object of rows to the log, so a longer time makes fewer of them.
        time: How times are written in JSON: "rfc3339", "s", "ms" or "us".
        meta: Add the columns webhook_key and webhook_at, the time at which the request was appended.

    Raises:
        ConfigError: an argument cannot be used.
    """

    library: ClassVar[Library] = Library(name="aiohttp", extra="http")

    @checked("hf.Webhook", '("127.0.0.1:8080", into=hf.Log("data/payments"), schema=Payment)')
    def __init__(
        self,
        listen: str,
        into: Log[Any],
        schema: type[T] | ArrowSchema | Raw,
        *,
        path: str = "/",
        key: str | None = None,
        horizon: Duration = "3d",
        signature: str | None = None,
        secret: Secret | Sequence[Secret] | None = None,
        tolerance: Duration = "5m",
        body_max: str | int = "1MiB",
        linger: Duration = "50ms",
        time: Times = "rfc3339",
        meta: bool = False,
    ) -> None:
        (host, port), log, secrets = _address(listen), _log_of(into), _secrets(secret)
        value = None if isinstance(schema, Raw) else JSON(schema, time)
        columns = RAW if value is None else _columns(value)
        if not _PATH.fullmatch(str(path)):
            raise _refused(f"path is {path!r}", 'give the path of a URL, such as "/payments"')
        if (signature is None) != (not secrets):
            given, lacking = ("secret", "signature") if signature is None else ("signature", "secret")
            raise _refused(f"{given} is given without {lacking}", "give both, or none if requests are not signed")
        self._row_type, self._meta = None if value is None else value.row_type, meta
        self.receiving = Receiving(
            host=host,
            port=port,
            path=path,
            log=log.path,
            partitions=log.partitions,
            partition_key=log.key or (),
            schema=columns,
            times=time,
            defaults={} if value is None else value.defaults(),
            raw=value is None,
            key=None if key is None else _key_place(key, columns),
            horizon_us=_within("horizon", duration_ms(horizon, "hf.Webhook(horizon=)"), HORIZON_MOST_MS) * 1_000,
            scheme=None if signature is None else scheme_of(signature),
            secrets=secrets,
            tolerance_s=duration_ms(tolerance, "hf.Webhook(tolerance=)") / 1_000,
            body_max=_within("body_max", size_bytes(body_max, "hf.Webhook(body_max=)"), BODY_MOST),
            linger_ms=_within("linger", duration_ms(linger, "hf.Webhook(linger=)"), LINGER_MOST_MS, 0),
        )

    @classmethod
    def example(cls) -> WebhookSource:
        """Return a source that has every trait; see listed.py."""
        return cls("127.0.0.1:8080", Log("data/payments"), pa.schema([pa.field("id", pa.utf8())])).source()

    def __repr__(self) -> str:
        return f"Webhook('{self.receiving.host}:{self.receiving.port}', into=Log({self.receiving.log!r}))"

    def source(self) -> WebhookSource:
        of = self.receiving
        columns = of.columns if self._meta else of.schema
        return WebhookSource(of.log, columns, self._row_type, of.partition_key or None, of.partitions, of)


@dataclass(frozen=True)
class WebhookSource(LogSource):
    """The log of a webhook: to the job it is a log."""

    receiving: Receiving | None = field(default=None, compare=False)

    @property
    def captured(self) -> Receiving:
        assert self.receiving is not None, "hf.Webhook gives it"
        return self.receiving

    def _meta(self) -> LogMeta:
        if (meta := read_meta(open_objects(self.path, writable=False))) is None:
            raise ConfigError(
                f"no log exists at {self.path}: no request was captured yet",
                not_done="the source was not opened",
                next_step="start the process that receives the requests, which creates the log: "
                "holdfast capture JOB.py, with the file of this job",
            )
        return meta


def _columns(value: JSON[Any]) -> pa.Schema:
    if value.schema is None:
        raise _refused("schema is None", "give the dataclass of the bodies")
    if twice := [name for name in META.names if name in value.schema.names]:
        raise _refused(f"the column {twice[0]!r} is one that the log gets", "rename the field")
    return value.schema


def _log_of(into: object) -> LogSource:
    if not isinstance(into, Log):
        raise _refused(f"into is {into!r}", 'give the log to append to, such as into=hf.Log("data/payments")')
    log = into.source()
    if log.expected is not None:
        raise _refused("into has a schema", "give the schema to hf.Webhook, and the log without one")
    return log


def _address(listen: object) -> tuple[str, int]:
    host, _, port = str(listen).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > _PORT_MOST or "/" in host or "@" in host:
        raise _refused(f"listen is {listen!r}", 'give host:port, such as "127.0.0.1:8080", or "[::1]:8080"')
    return host, int(port)


def _key_place(text: str, schema: pa.Schema) -> KeyPlace:
    part, _, name = str(text).partition(":")
    if part == "header" and is_header(name):
        return KeyPlace("header", name.lower())
    if part == "body" and name:
        return KeyPlace("body", name)
    close = "body" if text in schema.names else "header"
    raise _refused(f"key is {text!r}", f'say where the key is: "header:NAME" or "body:FIELD", such as "{close}:{text}"')


def _secrets(given: Secret | Sequence[Secret] | None) -> tuple[Secret, ...]:
    several = given if isinstance(given, list | tuple) else (given,)
    found = (secret_argument(each, "hf.Webhook(secret=)") for each in several)
    return tuple(each for each in found if each is not None)


def _within(name: str, value: int, most: int, least: int = 1) -> int:
    if not least <= value <= most:
        limit = {"horizon": "90 days", "body_max": "16 MiB", "linger": "5 seconds"}[name]
        raise _refused(f"{name} is {'0' if value < least else 'too large'}", f"give more than 0 and at most {limit}")
    return value


def _refused(what: str, next_step: str) -> ConfigError:
    return ConfigError(f"hf.Webhook: {what}", not_done="the job was not planned", next_step=next_step)
