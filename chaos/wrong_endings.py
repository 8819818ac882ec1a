"""Wrong versions of the end of a job, of a run and of a checkpoint; chaos/mutants.py says which rule each negates.

Source: PROTOCOL P13, P16, P17.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.chaos.stores import ProcessStore
from holdfast.checkpoint import joblog
from holdfast.checkpoint.repository import Repository

Right = Callable[..., Any]
"""The function that a mutant replaces."""


def forgets_tags(right: Right) -> Right:
    """Who appended `Finished` tidies the targets up."""

    def create(repository: Repository, record: joblog.Record) -> joblog.Record:
        found: joblog.Record = right(repository, record)
        if isinstance(found.body, joblog.Finished):
            assert isinstance(repository._store, ProcessStore)
            for table in repository._store._world.tables.values():
                table._tags = {}
        return found

    return create
