"""How much state a job holds: the rows of every table, and the slots that its workers have for them.

Results may be right although a row, a counter or a slot stays for as long as the job runs. So a play of a job compares
sizes too: once its input has ended and time has passed, each table has as many rows as the oracle of the play keeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from holdfast.model import WorkerId
from holdfast.runtime.time.windows import CLOCK_KEY
from holdfast.runtime.worker.local.opened import MemoryState
from holdfast.state.store import StateStore
from holdfast.testing import TestDriver

VACANT_MAX = 4
"""With `few_slots`: so many slots without a row are not worth dropping."""


class Sizes(NamedTuple):
    """By table, over all workers."""

    rows: Counter[str]
    slots: Counter[str]


def sizes_of(t: TestDriver) -> Sizes:
    """Return what the tables of a job hold; of a job in microbatch mode, what its next task would restore.

    Tables of one row per key group, such as those of clocks, are left out: they are as large as they will ever be.
    """
    found = Sizes(Counter(), Counter())
    for store in _stores(t):
        for operator in t.cluster._plan.operators:
            table = store.table(operator.id)
            if table.spec.key == CLOCK_KEY:
                continue
            found.rows[operator.name] += int(table.present().size)
            found.slots[operator.name] += len(table)
    return found


def check(t: TestDriver, kept: Mapping[str, int], besides: str = "") -> None:
    """Compare the rows of each table with those that it has to keep; tables that are not named keep none.

    Args:
        besides: A table that the caller knows no number for.
    """
    rows = sizes_of(t).rows
    rows.pop(besides, None)
    assert +rows == +Counter(kept)


@contextmanager
def few_slots() -> Iterator[None]:
    """Let tables drop slots without a row once they are a few, so that small tests see it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.state.tables.table.VACANT_SLOTS_MIN", VACANT_MAX)
        patch.setattr("holdfast.state.collections.rows.ABSENT_MIN", VACANT_MAX)
        yield


def _stores(t: TestDriver) -> Iterator[StateStore]:
    if t.cluster.batches is None:
        yield from (state for member in t.cluster.members.values() if (state := member.loop.state()) is not None)
        return
    for deploy in t.cluster.batches.host.deploys():
        yield MemoryState().open(t.cluster._plan, deploy, WorkerId("reader"), t.cluster._store).store
