"""`hf.Avro`: values in Avro, with the schemas of a registry or with one that the job gives.

Source: API.md (sources); docs/decisions/0088-avro-values.md.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pyarrow as pa

from holdfast.arguments import checked
from holdfast.errors import ConfigError
from holdfast.runtime.rows.row_types import ArrowSchema, RowsOf, T
from holdfast.runtime.rows.schema import data_schema_of, defaults_of
from holdfast.runtime.sources.kafka.avro_columns import check_columns
from holdfast.runtime.sources.kafka.schemas import AvroForm, plain
from holdfast.secrets import Secret, secret_argument
from holdfast.sinks.kafka.avro import AvroRows
from holdfast.sinks.kafka.avro_schema import derived
from holdfast.sinks.kafka.enrolled import Enrolled
from holdfast.storage.kafka.registry import RegistryPlace
from holdfast.storage.paths import refuse_password

_NO_NAME = re.compile(r"[^A-Za-z0-9_]|^(?=[0-9])")


class Avro(RowsOf[T]):
    """Values in Avro: those of a schema registry, or all of one schema.

    With `registry`, a value begins with a zero byte and the id of its schema, the wire format of Confluent. A source
    decodes each value with the schema of its id, and takes the columns by name; a sink registers the schema of its
    columns. With `avsc` alone, values are the encoding, without a header.

    Args:
        schema: A dataclass or pyarrow.Schema: the columns. A sink with `avsc` may leave it out.
        registry: The URL of a schema registry, without a password.
        avsc: A schema as JSON text. For a source without a registry, the one that all values have; for a sink, the one
            to write, whose fields are the columns of the stream.
        subject: The name of the topic's schemas in the registry; None: TOPIC-value.
        user: For a registry that asks for a login, with `password`.
        password: `hf.secret("env:NAME")`; driver and workers read it with each request.
        ca: A file, on every machine, with certificates of the authorities that sign the registry's; None: the system's.
        register: As a sink: register the schema at the start. False: it must be registered.

    Raises:
        ConfigError: an argument cannot be used, a column has no form in Avro, or `avsc` does not fit the columns.
    """

    @checked("hf.Avro", '(Bid, registry="https://registry.example:8081")')
    def __init__(
        self,
        schema: type[T] | ArrowSchema | None = None,
        registry: str | None = None,
        avsc: str | None = None,
        subject: str | None = None,
        user: str | None = None,
        password: Secret | None = None,
        ca: str | None = None,
        register: bool = True,
    ) -> None:
        if registry is None and avsc is None:
            raise _refused("neither registry= nor avsc= is given", "name a registry, or give the schema of the values")
        if avsc is not None and not isinstance(avsc, str):
            raise _refused(f"avsc is a {type(avsc).__name__}", "give the JSON text of the schema")
        self.registry = _place(registry, user, password, ca)
        self.row_type = schema if isinstance(schema, type) else None
        self.schema: pa.Schema | None = None if schema is None else data_schema_of(schema)
        self.avsc, self.subject, self.register = avsc, subject, register
        if self.schema is not None:
            check_columns(self.schema)

    def __repr__(self) -> str:
        named = self.schema.names if self.row_type is None and self.schema is not None else self.row_type
        return f"Avro({getattr(named, '__qualname__', named)})"

    def form(self, topic: str | None) -> AvroForm:
        """Return how a source reads values of a topic, or of several (None). Raises ConfigError."""
        assert self.schema is not None
        if self.registry is not None and self.avsc is not None:
            raise _refused("a source has registry= and avsc=, but ids name the schemas", "leave one of them out")
        defaults = defaults_of(self.row_type)
        if self.avsc is not None:
            plain(self.avsc, self.schema, defaults)
        subject = self.subject if topic is None else self._subject(topic)
        return AvroForm(self.registry, self.avsc, subject, defaults)

    def rows(self, topic: str) -> tuple[AvroRows, Enrolled | None]:
        """Return how a sink writes values, and where it registers their schema. Raises ConfigError."""
        if self.avsc is not None:
            avsc = self.avsc
        elif self.schema is not None:
            name = topic if self.row_type is None else self.row_type.__name__
            avsc = derived(self.schema, _NO_NAME.sub("_", name))
        else:
            raise _refused("a sink has neither columns nor avsc=", "give a dataclass, or the schema to write")
        if self.registry is None:
            return AvroRows(avsc), None
        return AvroRows(avsc), Enrolled(self.registry, self._subject(topic), avsc, self.register)

    def _subject(self, topic: str) -> str:
        return f"{topic}-value" if self.subject is None else self.subject


def _place(url: str | None, user: str | None, password: object, ca: str | None) -> RegistryPlace | None:
    secret = secret_argument(password, "hf.Avro(password=)")
    if url is None:
        if user is not None or secret is not None or ca is not None:
            raise _refused("user=, password= or ca= is given without registry=", "leave it out")
        return None
    refuse_password(url, "hf.Avro(registry=)")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or "@" in url:
        raise _refused(
            "the registry is not a URL such as https://registry.example:8081; it is not repeated here, as it may hold "
            "a password",
            "write the URL without user, query and fragment",
        )
    if (user is None) != (secret is None):
        raise _refused("only one of user= and password= is given", "give both, or none")
    return RegistryPlace(url.rstrip("/"), user, secret, ca)


def _refused(what: str, next_step: str) -> ConfigError:
    return ConfigError(f"hf.Avro: {what}", not_done="the job was not planned", next_step=next_step)
