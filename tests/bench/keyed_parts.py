"""Breaks down the time of the keyed benchmark: each part alone, in one thread, on the same data."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from keyed_job import SCHEMA, make

from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.runtime.worker.routing import Router
from holdfast.runtime.worker.subtask import READ_BYTES_MAX
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.compiled.sources import KernelInput, sources_of
from holdfast.state.tables.kernels.layout import Do
from holdfast.state.tables.table import StateTable
from holdfast.storage.log.log import LogReader
from holdfast.storage.objects import open_objects
from holdfast.storage.rowhash import digest_of

Result = TypeVar("Result")


def parts_ns(folder: Path, rows_max: int) -> dict[str, float]:
    """Return CPU nanoseconds per row by part; `seal` is per changed key."""
    plan = make(folder).plan()
    edge, (operator,) = plan.edges[0], plan.operators
    spec, router = operator.table, Router(edge, 2, plan.key_groups)
    table = StateTable(spec, plan.key_groups)
    number, total = (column.name for column in spec.columns)
    program = table.program([(Do.COUNT, number, 0), (Do.ADD_INT, total, 0)])
    reader, offset, spent = LogReader(open_objects(str(folder / "input"))), 0, dict[str, float]()
    reader.refresh()
    done = known = 0

    def timed(part: str, work: Callable[[], Result]) -> Result:
        start = time.thread_time()
        result = work()
        spent[part] = spent.get(part, 0.0) + time.thread_time() - start
        return result

    while done < rows_max:
        batch, offset = timed("read", lambda: reader.read(0, offset, READ_BYTES_MAX))  # noqa: B023 - called at once
        if batch is None:
            break
        if done < rows_max // 2 <= done + batch.num_rows:
            # The first half introduces the keys; only the cost of known keys is measured.
            spent, known = {"read": 0.0}, done
        done += batch.num_rows
        timed("digest", lambda: digest_of(batch))  # noqa: B023 - called at once
        for _, share in timed("hash and split", lambda: router.split(batch)):  # noqa: B023
            wire = timed("encode", lambda: share.serialize().to_pybytes())  # noqa: B023
            came = timed("decode", lambda: pa.ipc.read_record_batch(pa.py_buffer(wire), SCHEMA))  # noqa: B023
            keys = timed("keys", lambda: spec.key.encode([came.column("k")]))  # noqa: B023
            given = KernelInput(came.column("v").to_numpy())
            timed("find, mark, count and sum", lambda: table.fold(keys, program, sources_of([given])))  # noqa: B023
    timed("freeze", lambda: table.freeze(Epoch(1), Epoch(0)))
    delta = table.delta(Epoch(1))
    header = SegmentHeader(JobUuid("j"), Generation(1), Timeline(1), Epoch(1), Epoch(0), WorkerId("w"))
    timed("seal", lambda: seal(header, [delta]))
    per = dict.fromkeys(spent, done - known) | {"freeze": len(delta), "seal": len(delta)}
    return {part: seconds / per[part] * 1e9 for part, seconds in spent.items()}
