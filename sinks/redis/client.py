"""The connection of a Redis target: redis-py without its own retries, as only the tag decides what is repeated.

Source: redis-py.readthedocs.io; redis.io/docs; docs/decisions/0081-redis-sink.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, RedisError
from redis.retry import Retry

from holdfast.errors import ConfigError, NotAdmitted
from holdfast.secrets import Secret
from holdfast.sinks.redis.book import COLUMNS, RedisBook
from holdfast.sinks.redis.errors import meaning_of
from holdfast.sinks.redis.place import RedisPlace
from holdfast.sinks.redis.script import RIGHTS, SCRIPT, BookChange
from holdfast.sinks.redis.server import ServerFacts
from holdfast.sinks.redis.target import BookConnection

CONNECT_WITHIN_S = 10.0
ANSWER_WITHIN_S = 30.0
"""How long a script of the largest delivery may take, with those of other clients before it."""


class RedisConnection(BookConnection):
    """One connection. See target.Connection.

    Args:
        password: Where the password is read, for each connection; None: the server wants none.
    """

    def __init__(self, place: RedisPlace, password: Secret | None) -> None:
        self._place, self._password = place, password
        self._client: Any = None
        self._may_ask = True

    def book(self) -> RedisBook:
        with self._raising() as client:
            return RedisBook(self._place.where, client.execute_command("HGETALL", self._place.book))

    def apply(self, change: BookChange) -> bool:
        """A setting that lets the server evict rows may have come since the start."""
        with self._raising() as client:
            if self._may_ask:
                memory = _permitted(lambda: client.info("memory"))
                self._may_ask = bool(memory)  # each refusal would be in the server's log of them
                ServerFacts(memory).check_keeps(self._place.where)
            done = client.execute_command("EVAL", SCRIPT, 1, self._place.book, *change.arguments())
        return bool(done == 1)

    def create(self, columns: bytes) -> None:
        """Note the columns of the rows, unless some are noted."""
        with self._raising() as client:
            client.execute_command("HSETNX", self._place.book, COLUMNS, columns)

    def check_rights(self) -> None:
        """Run the commands of a delivery without rows: this reveals a missing right before a commit."""
        unused = f"{self._place.prefix}holdfast:{uuid4()}"
        with self._raising() as client:
            client.execute_command("HGETALL", self._place.book)
            client.execute_command("EVAL", RIGHTS, 2, self._place.book, unused, COLUMNS)

    def server(self) -> ServerFacts:
        """Return the server's settings, as far as this user may read them."""
        with self._raising() as client:
            facts = _permitted(client.info)
            fsync = _permitted(lambda: client.config_get("appendfsync")) if facts else {}
            return ServerFacts({**facts, **fsync})

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    @contextmanager
    def _raising(self) -> Iterator[Any]:
        """Lend the client; raise its errors as a HoldfastError. Any exception drops the connection."""
        try:
            if self._client is None:
                self._client = self._opened()
            yield self._client
        except RedisError as error:
            self.close()
            raise meaning_of(self._place.where, error) from None
        except BaseException:
            self.close()
            raise

    def _opened(self) -> Any:
        place = self._place
        tls: dict[str, Any] = {"ssl": True, "ssl_check_hostname": True} if place.tls else {}
        return redis.Redis(
            host=place.host,
            port=place.port,
            db=place.database,
            username=place.user,
            password=self._value(),
            protocol=2,
            socket_timeout=ANSWER_WITHIN_S,
            socket_connect_timeout=CONNECT_WITHIN_S,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
            **tls,
        )

    def _value(self) -> str | None:
        """Read the password; an error names the server too."""
        try:
            return None if self._password is None else self._password.value()
        except (ConfigError, NotAdmitted) as error:
            error.what = f"{self._place.where}: {error.what}"
            raise


def _permitted(question: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the answer; nothing if this user may not ask."""
    try:
        return question()
    except NoPermissionError:
        return {}
