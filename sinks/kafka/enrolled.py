"""The schema of a sink's values in a registry: its registration, and the header with its id.

Source: docs.confluent.io, wire format; docs/decisions/0088-avro-values.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import ConfigError
from holdfast.sinks.contract.phrases import NOTHING
from holdfast.storage.kafka.registry import Registry, RegistryPlace


@dataclass(frozen=True)
class Enrolled:
    """The schema of a sink's values in a registry.

    Args:
        register: Add it at the start; else it must be there.
    """

    registry: RegistryPlace
    subject: str
    avsc: str
    register: bool

    def prepare(self) -> None:
        """Register the schema, or find it.

        Raises:
            ConfigError: it is not compatible with former ones, or not registered.
            Unavailable: the registry does not answer, or does not admit the user.
        """
        if self.register:
            Registry(self.registry).register(self.subject, self.avsc)
        else:
            self.number(Registry(self.registry), "the job was not started")

    def probe(self) -> None:
        """Ask the registry, and add nothing. Raises as `prepare`; whether former schemas fit is seen at a start."""
        registry = Registry(self.registry)
        if self.register:
            registry.newest(self.subject)
        else:
            self.number(registry, "nothing was changed")

    def number(self, registry: Registry, not_done: str) -> int:
        """Return the id. Raises as `prepare`."""
        schema_id = registry.registered(self.subject, self.avsc)
        if schema_id is None:
            raise ConfigError(
                f"{self.registry.where} does not have the schema of the sink's values under subject {self.subject!r}",
                not_done=not_done,
                next_step="register it, or let the start do so: leave register= out. The schema is " + self.avsc,
            )
        return schema_id


class Header:
    """The header of each value; the registry is asked for the id of the schema once."""

    def __init__(self, enrolled: Enrolled) -> None:
        self._enrolled = enrolled
        self._registry = Registry(enrolled.registry)
        self._known: bytes | None = None

    def __call__(self) -> bytes:
        """Return the header. Raises as Enrolled.number."""
        if self._known is None:
            number = self._enrolled.number(self._registry, NOTHING)
            self._known = b"\0" + number.to_bytes(4, "big")
            self._registry.close()
        return self._known
