"""Where a topic is: servers, topic and the options of clients, which hold no secret.

Options travel to the workers and stand in a pickled job. So a password in them is refused: an option that is secret
takes a `Secret`, which each process reads when it creates a client.

Invariants
    - No value of this module but the result of `settings` holds a secret.
    - An option that decides which records are read, or whether they are read once, is Holdfast's own.

Source: librdkafka, CONFIGURATION.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ConfigError, HoldfastError
from holdfast.secrets import SHOWN, Secret

Option = str | int | float | bool | Secret
LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names of this machine, for itself."""
_SERVER = re.compile(r"([A-Za-z_]+://)?(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SECRET = re.compile(r"password|passphrase|secret|key\.pem|oauthbearer\.config|jaas")
OWN = (
    *("bootstrap.servers", "metadata.broker.list", "auto.offset.reset", "isolation.level", "allow.auto.create.topics"),
    *("enable.auto.commit", "enable.auto.offset.store", "enable.partition.eof", "group.instance.id", "group.protocol"),
    *("enable.idempotence", "transactional.id", "acks", "request.required.acks", "check.crcs", "debug"),
)
"""Options that Holdfast sets itself."""
DEFAULTS: Mapping[str, Option] = {
    "client.id": "holdfast",
    "reconnect.backoff.max.ms": 1_000,
    "log_level": 2,
}
"""Options that a job may change. Holdfast itself reports the lost connections that the library would log."""


@dataclass(frozen=True)
class KafkaPlace:
    """A topic, or some topics of one cluster.

    Args:
        servers: "host:port", several with commas between them.
        options: Options of librdkafka, sorted by name.
    """

    servers: str
    topic: str
    options: tuple[tuple[str, Option], ...] = ()
    many: bool = False
    """It stands for several topics: `topic` is a pattern, for messages."""

    @property
    def where(self) -> str:
        """How messages name it."""
        return f"Kafka {'topics' if self.many else 'topic'} {self.topic!r} at {self.servers}"

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """The secrets that the options name."""
        return tuple(each for _, each in self.options if isinstance(each, Secret))

    def settings(self, **own: Option) -> dict[str, Any]:
        """Return the configuration of a client, with secrets. Own settings have _ where Kafka has a full stop.

        Raises:
            ConfigError, NotAdmitted: a secret cannot be read.
        """
        given = {name: each.value() if isinstance(each, Secret) else each for name, each in self.options}
        forced = {name.replace("_", "."): value for name, value in own.items()}
        return {**DEFAULTS, **given, **forced, "bootstrap.servers": self.servers, "allow.auto.create.topics": False}

    def without_secrets(self, text: str) -> str:
        """Return a text of a library without the values of this place's secrets."""
        for each in self.secrets:
            with suppress(HoldfastError):  # it cannot be read any more; the next client reports that
                text = text.replace(each.value(), SHOWN)
        return text


def place_of(
    servers: str | Sequence[str], topic: str | re.Pattern[str], options: Mapping[str, Option] | None
) -> KafkaPlace:
    """Return the place that a job gives; that of a pattern stands for all topics that match.

    Raises:
        ConfigError: it is malformed, holds a secret, or sets what Holdfast sets itself.
    """
    text = _name_of(topic)
    parts = [each.strip() for each in (servers.split(",") if isinstance(servers, str) else servers)]
    if not parts or not all(_SERVER.fullmatch(each) for each in parts):
        raise _refused(
            "the servers are not a list of host:port; they are not repeated here, as they may hold a password",
            'write "broker1.example:9092,broker2.example:9092"',
        )
    given = {} if options is None else dict(options)
    for name, value in given.items():
        _check(name, value)
    return KafkaPlace(",".join(parts), text, tuple(sorted(given.items())), many=not isinstance(topic, str))


def is_one_cluster(one: str, other: str) -> bool:
    """Return whether two lists of servers have one in common: those of a cluster are its own."""
    return bool(set(map(_server, one.split(","))) & set(map(_server, other.split(","))))


def _server(text: str) -> str:
    """Return host and port in one spelling; the names of this machine are one."""
    host, _, port = text.rpartition("://")[2].lower().rpartition(":")
    host = host.strip("[]").rstrip(".")
    return f"{'localhost' if host in LOOPBACK else host}:{int(port) if port.isdecimal() else port}"


def _name_of(topic: str | re.Pattern[str]) -> str:
    """Return the name of a topic, or the text of a pattern. Raises ConfigError."""
    if isinstance(topic, re.Pattern):
        if not isinstance(topic.pattern, str):
            raise _refused("the pattern of topics is of bytes", 'compile text: re.compile(r"orders[.].*")')
        return topic.pattern
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise _refused(
            f"{topic!r} is not the name of a topic",
            "use letters, digits, '.', '_' and '-', at most 249 characters; to read all topics that match a pattern, "
            "compile it: hf.Kafka(servers, re.compile(PATTERN), ...)",
        )
    return topic


def _check(name: str, value: object) -> None:
    if name in OWN:
        raise _refused(f"the option {name!r} is set by Holdfast itself", "leave it out")
    if _SECRET.search(name) and not isinstance(value, Secret):
        raise _refused(
            f"the option {name!r} holds a secret, which a plan or a pickled job would expose",
            f'give a reference: options={{"{name}": hf.secret("env:NAME")}}; then change this secret, as it stands in '
            "the code",
        )
    if not isinstance(value, str | int | float | Secret):
        raise _refused(
            f"the option {name!r} is a {type(value).__name__}", "give text, a number, True or False, or hf.secret(...)"
        )


def _refused(what: str, next_step: str) -> ConfigError:
    return ConfigError(f"hf.Kafka: {what}", not_done="the job was not planned", next_step=next_step)
