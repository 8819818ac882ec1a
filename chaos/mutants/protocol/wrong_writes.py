"""Wrong versions of writes to targets, stores and local folders; mutants.py names the rule that each negates.

Source: PROTOCOL P1, P14, P22, list of mutants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.chaos.sim.ports.immediate import ProcessWrites
from holdfast.chaos.sim.ports.stores import ProcessStore
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import Repository
from holdfast.runtime.rows.dead_letters import Letters
from holdfast.sinks.contract.immediate import Origin

Right = Callable[..., Any]
"""The function that a mutant replaces."""


def looks_before_it_writes(right: Right) -> Right:
    def write(target: ProcessWrites, origin: Origin, offset: int, batches: Any) -> int:
        target.table.check_fence(target.owner, origin)
        deleted: int = right(target, origin, offset, batches)
        return deleted

    return write


def trusts(_: Right) -> Right:
    return lambda table, owner, origin: None


def applies_anything(_: Right) -> Right:
    return lambda table, key, tag: True


def waits_for_nothing(_: Right) -> Right:
    return lambda writes, then: then()


def without_uuid(right: Right) -> Right:
    return lambda table, job_uuid, writer, *rest: right(table, "", writer, *rest)


def takes_any_range(_: Right) -> Right:
    return lambda wanted, head: True


class _Hasty:
    """A store that reports success before it has begun."""

    def __init__(self, store: ProcessStore) -> None:
        self._store = store

    def create(self, path: str, data: bytes) -> None:
        self._store.put_later(path, data)


def seals_hastily(right: Right) -> Right:
    return lambda job, store: right(job, _Hasty(store))


def stores_manifest_hastily(right: Right) -> Right:
    def store_manifest(repository: Repository, manifest: Manifest, owner: str) -> Any:
        return right(Repository(_Hasty(repository._store)), manifest, owner)  # type: ignore[arg-type]

    return store_manifest


def tells_letters_again(right: Right) -> Right:
    def take(letters: Letters) -> Any:
        batches = right(letters)
        letters._batches = list(batches)
        return batches

    return take
