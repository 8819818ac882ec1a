"""Checks a job's requirements of its root, before the job starts.

A store that lets a second writer replace an object would lose the history of a job, silently. One that does not permit
to delete would only show it hours later.

Source: DESIGN section 4 (job log); docs/operate/stores.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from holdfast.errors import AlreadyExists, ConfigError, Unavailable
from holdfast.ports import ObjectStore
from holdfast.storage.s3_errors import lasting

_FIRST, _SECOND = b"first", b"second"
Result = TypeVar("Result")


def prove(store: ObjectStore, name: str, not_done: str = "nothing was started") -> None:
    """Create, list, read, create again and delete one object.

    Args:
        store: Holds the object meanwhile.
        name: How messages name it.
        not_done: See HoldfastError.

    Raises:
        ConfigError: an operation is not permitted, or a second create replaced the object.
        Unavailable: the store is unreachable.
    """
    path = f"probe-{uuid.uuid4().hex}"
    attempt = _Tried(name, not_done)
    try:
        with suppress(AlreadyExists):  # the answer to an attempt was lost, and it was repeated
            attempt(f"create objects in {name}", lambda: store.create(path, _FIRST))
        attempt(f"list {name}", lambda: store.list(path))
        if attempt(f"read objects in {name}", lambda: store.get(path)) != _FIRST:
            raise attempt.unfit(f"{name} returns other bytes than were written")
        with suppress(AlreadyExists):
            attempt(f"create objects in {name}", lambda: store.create(path, _SECOND))
            raise attempt.unfit(f"{name} lets a second writer replace an existing object")
    except (ConfigError, Unavailable):
        with suppress(Unavailable):
            store.delete(path)
        raise
    attempt(f"delete objects in {name}", lambda: store.delete(path))


class _Tried:
    def __init__(self, name: str, not_done: str) -> None:
        self._name, self._not_done = name, not_done

    def __call__(self, to: str, operation: Callable[[], Result]) -> Result:
        try:
            return operation()
        except Unavailable as error:
            if (why := lasting(error.__cause__)) is None:
                raise
            raise ConfigError(f"cannot {to}: {why.cause}", not_done=self._not_done, next_step=why.next_step) from error

    def unfit(self, what: str) -> ConfigError:
        return ConfigError(
            what,
            not_done=self._not_done,
            next_step="use a store that honours If-None-Match, such as Amazon S3, or a local file system",
        )
