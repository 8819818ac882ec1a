"""Values in Avro, as the source of one process decodes them: by the schema whose id they name, or by one for all.

A value in the wire format of Confluent is a zero byte, the id of its schema in four bytes (big endian), and the
encoding.

Invariants
    - Whether a record is undecodable depends on it alone. The registry's answer never makes a dead letter: no
      answer is `Unavailable`; an unknown id, or a schema that does not fit, ends the run at this record.
    - A schema is asked for once, and compared with the columns once: an id never changes its meaning.

Source: docs.confluent.io, wire format; docs/decisions/0088-avro-values.md.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import ConfigError, Unavailable
from holdfast.runtime.rows.dead_letters import Refused
from holdfast.runtime.sources.kafka.avro_columns import AvroColumns, AvroMisfit
from holdfast.runtime.sources.kafka.messages import Values, listed
from holdfast.secrets import Secret
from holdfast.storage.kafka.avro import BadSchema, parsed
from holdfast.storage.kafka.registry import UNKNOWN_NEXT, Registered, Registry, RegistryPlace, no_library

HEADER_BYTES = 5
UNKNOWN_FOR_S = 5.0
"""How long an id is unknown before that is believed: a replica of the registry may lag behind."""
NO_ROW_SKIPPED = "no record was skipped; the job is at its last checkpoint"
_PLAIN = -1
"""In place of an id: the one schema of values without a header."""


@dataclass(frozen=True)
class AvroForm:
    """How the values of a topic are read; it travels to the workers.

    Args:
        registry: Has the schemas; None: all values have the schema `avsc`, and no header.
        subject: The registry's name for the topic's schemas; None: several topics have one each.
        defaults: Values for columns that a schema does not have.
    """

    registry: RegistryPlace | None
    avsc: str | None
    subject: str | None
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """The secrets that reading needs."""
        return () if self.registry is None else self.registry.secrets

    def opened(self, columns: pa.Schema) -> AvroValues:
        """Return what decodes values. Raises ConfigError if the library is missing."""
        return AvroValues(self, columns)


class AvroValues:
    """Decodes values to rows. For one thread at a time.

    Args:
        columns: The columns of the rows.

    Raises:
        ConfigError: the library is missing, or `avsc` does not fit the columns.
    """

    def __init__(self, form: AvroForm, columns: pa.Schema) -> None:
        try:
            import fastavro  # noqa: F401
        except ImportError as error:
            raise no_library("fastavro", error) from error
        self._form, self._columns = form, columns
        self._registry = None if form.registry is None else Registry(form.registry)
        self._known: dict[int, AvroColumns] = {}
        self._unknown_since: dict[int, float] = {}
        if form.avsc is not None:
            self._known[_PLAIN] = plain(form.avsc, columns, form.defaults)

    def check(self) -> None:
        """Refuse a registry that does not answer, and a newest schema of the topic that does not fit the columns.

        A subject that the registry does not have is none: values name their schemas by id.
        """
        if self._registry is None or self._form.subject is None:
            return
        if (found := self._registry.newest(self._form.subject)) is not None:
            self._fitted(*found)

    def decode(self, values: Values) -> tuple[pa.RecordBatch, dict[int, Refused]]:
        """Return the rows of these values, and those that are refused, by their index.

        Raises:
            ConfigError: the registry does not know an id, or its schema does not fit the columns.
            Unavailable: the registry gives no answer now; nothing was decoded.
        """
        why: dict[int, str] = {}
        values = listed(values)
        groups = self._by_schema(values, why)
        known = {number: self._decoder(number) for number in groups}
        batches, order = list[pa.RecordBatch](), list[int]()
        for number, (lines, places) in groups.items():
            batches += known[number].decode(lines, places, why)
            order += [place for place in places if place not in why]
        rows = pa.Table.from_batches(batches, self._columns).combine_chunks()
        if len(groups) > 1:
            rows = rows.take(pa.array(np.argsort(order)))
        refused = {place: Refused(why[place], "bytes", values[place] or b"") for place in sorted(why)}
        found = rows.combine_chunks().to_batches()
        return (found[0] if found else pa.RecordBatch.from_pylist([], self._columns)), refused

    def _by_schema(
        self, values: Sequence[bytes | None], why: dict[int, str]
    ) -> dict[int, tuple[list[bytes], list[int]]]:
        """Return values without headers, and their places, by the ids of their schemas; refuse those without one."""
        groups: dict[int, tuple[list[bytes], list[int]]] = {}
        plain = self._registry is None
        for place, value in enumerate(values):
            if value is None:
                why[place] = "the value is null: a tombstone, which is no row"
            elif plain:
                _add(groups, _PLAIN, value, place)
            elif len(value) < HEADER_BYTES or value[0] != 0:
                why[place] = "it does not begin with a zero byte and the id of a schema, as values of a registry do"
            else:
                _add(groups, int.from_bytes(value[1:HEADER_BYTES], "big"), value[HEADER_BYTES:], place)
        return groups

    def _decoder(self, number: int) -> AvroColumns:
        """Return what decodes the values of a schema. Raises as `decode`."""
        decoder = self._known.get(number)
        if decoder is None:
            assert self._registry is not None
            given = self._registry.schema(number)
            if given is None:
                raise self._unknown(number)
            decoder = self._known[number] = self._fitted(number, given)
        return decoder

    def _fitted(self, number: int, given: Registered) -> AvroColumns:
        """Return what decodes the values of a schema. Raises ConfigError if there is none."""
        try:
            if given.kind != "AVRO":
                raise AvroMisfit(f"it is {given.kind}, not Avro")
            return AvroColumns(parsed(given.text, given.references), self._columns, self._form.defaults)
        except (BadSchema, AvroMisfit) as error:
            assert self._registry is not None and self._form.registry is not None
            subjects = self._registry.subjects(number) or (self._form.subject or "any",)
            raise ConfigError(
                f"schema {number} of subject {', '.join(map(repr, subjects))} in {self._form.registry.where} does not "
                f"fit the job's columns: {error}",
                not_done=NO_ROW_SKIPPED,
                next_step="correct the columns that hf.Avro is given, with a default or `| None` for those that only "
                "some schemas have, and start the job again; or read the bytes with hf.Raw()",
            ) from None

    def _unknown(self, number: int) -> Unavailable | ConfigError:
        """Return the error for an id that the registry does not have."""
        assert self._form.registry is not None
        since = self._unknown_since.setdefault(number, time.monotonic())
        what = f"{self._form.registry.where} does not know schema {number}, which a record names"
        if time.monotonic() - since < UNKNOWN_FOR_S:
            return Unavailable(
                what, not_done="the record was not read yet", next_step="no action needed: it is asked again"
            )
        return ConfigError(
            what,
            not_done=NO_ROW_SKIPPED,
            next_step=f"{UNKNOWN_NEXT}, and that no schema was permanently deleted; then start the job again. To read "
            "records of which some are not Avro of this registry, use hf.Raw()",
        )


def plain(avsc: str, columns: pa.Schema, defaults: Mapping[str, Any]) -> AvroColumns:
    """Return what decodes the values of a schema that the job gives. Raises ConfigError if it does not fit."""
    try:
        return AvroColumns(parsed(avsc), columns, defaults)
    except (BadSchema, AvroMisfit) as error:
        raise ConfigError(
            f"hf.Avro: the schema avsc does not fit the columns: {error}",
            not_done="the job was not planned",
            next_step="give the schema with which the values were written, and columns that it has",
        ) from None


def _add(groups: dict[int, tuple[list[bytes], list[int]]], number: int, line: bytes, place: int) -> None:
    lines, places = groups.setdefault(number, ([], []))
    lines.append(line)
    places.append(place)
