"""Wrong versions of the end of a job, of a run and of a checkpoint; mutants.py names the rule that each negates.

Source: PROTOCOL P6, P8, P13, P16, P17.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from holdfast.chaos.sim.ports.stores import ProcessStore
from holdfast.checkpoint import joblog
from holdfast.checkpoint.catalogue import ObjectCatalogue
from holdfast.checkpoint.repository import Repository
from holdfast.model import Epoch
from holdfast.runtime.driver.state import Master
from holdfast.state.store import StateStore
from holdfast.state.tables.delta import OperatorDelta
from holdfast.state.tables.table import StateTable

Right = Callable[..., Any]
"""The function that a mutant replaces."""


def forgets_tags(right: Right) -> Right:
    """The driver that appended `Finished` cleans up the targets."""

    def create(repository: Repository, record: joblog.Record) -> joblog.Record:
        log_record: joblog.Record = right(repository, record)
        if isinstance(log_record.body, joblog.Finished):
            assert isinstance(repository._store, ProcessStore)
            for table in repository._store._world.tables.values():
                table._tags = {}
        return log_record

    return create


def seals_what_is_there_now(_: Right) -> Right:
    """The operators of a worker freeze one after another; values are collected when the last one has."""

    def of_now(table: StateTable, epoch: Epoch) -> OperatorDelta:
        frozen = table.delta(epoch)
        delta, slots = frozen.whole(), frozen.copies.slots[: frozen.copies.count]
        now = {column.id: table.column(column.name)[slots] for column in table.spec.columns if column.plain}
        columns = {name: np.where(delta.puts, values, delta.columns[name]) for name, values in now.items()}
        given = delta.epoch, delta.follows, delta.operator, delta.key_group_count
        return OperatorDelta(*given, delta.keys, delta.puts, {**delta.columns, **columns}, delta.through)

    def deltas(store: StateStore, epoch: Epoch) -> list[OperatorDelta]:
        return [of_now(table, epoch) for table in store._tables.values()]

    return deltas


def forgets_savepoints(right: Right) -> Right:
    def carry_out(state: Master, kind: str, *rest: Any) -> Any:
        after, effects, answer = right(state, kind, *rest)
        return state if kind == "savepoint" else after, effects, answer

    return carry_out


def forgets_to_stop(_: Right) -> Right:
    return lambda state: (state, [])


def gives_up_the_backlog(right: Right) -> Right:
    return lambda run, drop_unread: right(run, drop_unread=True)


def forgets_to_rewind(_: Right) -> Right:
    def accept(state: Master, args: Mapping[str, Any]) -> Master:
        return state

    return accept


def finds_nothing(_: Right) -> Right:
    return lambda catalogue, job, *listed: []


def deletes_whole_folders(right: Right) -> Right:
    def delete_all(repository: Repository, paths: Sequence[str]) -> None:
        folders = sorted({path.rpartition("/")[0] for path in paths})
        right(repository, sorted({*paths, *(path for folder in folders for path in repository.names(folder))}))

    return delete_all


def counts_the_latest_alone(right: Right) -> Right:
    def expire(known: ObjectCatalogue, job: joblog.Job) -> list[str]:
        found: list[str] = right(known, replace(job, completed=job.completed[-1:], abandoned=()))
        return found

    return expire
