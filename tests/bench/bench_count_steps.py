"""Where the time of a keyed count over a topic goes: each step of q_count alone, on the same bids, in one process.

Reading is measured with all threads of the process, so what the client library does in the background counts; the
other steps in the thread that does them. Beside it stands what `consume()` of the client library takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from harness import Bench
from kafka_server import KafkaServer
from peer_data import PARTITIONS, bids, filled
from peer_jobs import Bid, Places, make

import holdfast as hf
from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.runtime.formats.json_lines import JsonLines
from holdfast.runtime.plan.ahead import inline
from holdfast.runtime.sources.kafka.feed import MessageFeed
from holdfast.runtime.worker.routing import Router
from holdfast.runtime.worker.subtask import READ_BYTES_MAX
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.compiled.sources import KernelInput, sources_of
from holdfast.state.tables.kernels.layout import Do
from holdfast.state.tables.table import StateTable
from holdfast.storage.kafka.place import place_of
from holdfast.storage.rowhash import digest_of

pytestmark = pytest.mark.kafka

Result = TypeVar("Result")
ROUNDS = 3


def bench_count_steps(bench: Bench, kafka: KafkaServer, tmp_path: Path) -> None:
    """Budget: reading and decoding take less than everything else did before."""
    records = bench.size("bids", smoke=20_000, full=1_000_000)
    topic = filled(kafka, bids(records))
    steps = dict[str, float]()
    with bench.timed():
        for _ in range(bench.size("rounds", smoke=1, full=ROUNDS)):
            found = {
                "consume() and value() of the client library": consumed(kafka.servers, topic, records),
                **read_steps(kafka.servers, topic, records),
            }
            steps = {name: min(each, steps.get(name, each)) for name, each in found.items()}
        steps |= later_steps(kafka.servers, topic, tmp_path, records)
    for name, each in steps.items():
        bench.note(f"| {name} | {each:.2f} |")
    bench.report(per=records, unit="record", check=records)


def consumed(servers: str, topic: str, records: int) -> float:
    """Return the microseconds per record for messages and their values, by `consume()`."""
    feed, began, count = MessageFeed(place_of(servers, topic, None)), time.process_time(), 0
    offsets = [0] * PARTITIONS
    while count < records:
        for partition, offset in enumerate(offsets):
            taken = feed.take(partition, offset, READ_BYTES_MAX)
            if taken.messages is not None:
                count += len(taken.messages.values)
            offsets[partition] = taken.following
    feed.close()
    return (time.process_time() - began) / records * 1e6


def read_steps(servers: str, topic: str, records: int) -> dict[str, float]:
    """Return the microseconds per record until there are bytes in Arrow, and until there are rows."""
    lines, spent, count = JsonLines(hf.JSON(Bid).schema or pa.schema([]), "ms"), 0.0, 0
    began = time.process_time()
    for batch in batches(servers, topic, hf.Raw(), records):
        now = time.thread_time()
        rows, refused = lines.decode(batch.column("value"))
        spent += time.thread_time() - now
        count += rows.num_rows
        assert not refused
    assert count == records
    whole = time.process_time() - began
    return {"fetch, into Arrow": (whole - spent) / records * 1e6, "decode JSON": spent / records * 1e6}


def later_steps(servers: str, topic: str, folder: Path, records: int) -> dict[str, float]:
    """Return the microseconds per record of what follows, once most keys are known."""
    plan = make("q_count", Places("broker.example:9092", folder)).plan()
    edge, (operator,) = plan.edges[0], plan.operators
    spec, router = operator.table, Router(edge, 2, plan.key_groups)
    table = StateTable(spec, plan.key_groups)
    count, total = (column.name for column in spec.columns)
    program, spent = table.program([(Do.COUNT, count, 0), (Do.ADD_INT, total, 0)]), dict[str, float]()

    def timed(part: str, work: Callable[[], Result]) -> Result:
        start = time.thread_time()
        result = work()
        spent[part] = spent.get(part, 0.0) + time.thread_time() - start
        return result

    def fold(share: pa.RecordBatch) -> None:
        keys = spec.key.encode([share.column("bidder")])
        table.fold(keys, program, sources_of([KernelInput(share.column("price").to_numpy())]))

    for batch in list(batches(servers, topic, hf.JSON(Bid, time="ms"), records)):
        timed("digest for the audit", lambda: digest_of(batch))  # noqa: B023 - called immediately
        sent = batch.select(edge.schema.names)
        for _, share in timed("choose the worker", lambda: router.split(sent)):  # noqa: B023
            wire = timed("encode for the other worker", lambda: share.serialize().to_pybytes())  # noqa: B023
            read = partial_read(wire, edge.schema)
            came = timed("decode", read)
            timed("count and sum", lambda: fold(came))  # noqa: B023
    timed("freeze the changed keys", lambda: table.freeze(Epoch(1), Epoch(0)))
    header = SegmentHeader(JobUuid("j"), Generation(1), Timeline(1), Epoch(1), Epoch(0), WorkerId("w"))
    delta = table.delta(Epoch(1))
    timed(f"seal the changelog, {len(delta) / records:.2f} keys per record", lambda: seal(header, [delta]))
    return {part: seconds / records * 1e6 for part, seconds in spent.items()}


def partial_read(wire: bytes, schema: pa.Schema) -> Callable[[], pa.RecordBatch]:
    """Return what decodes a batch."""
    return lambda: pa.ipc.read_record_batch(pa.py_buffer(wire), schema)


def batches(servers: str, topic: str, value: Any, records: int) -> Iterator[pa.RecordBatch]:
    """Yield all records of a topic."""
    opened = hf.Kafka(servers, topic, value).source().open()
    readers, count = [opened.reader(partition, 0, inline()) for partition in range(PARTITIONS)], 0
    while count < records:
        for reader in readers:
            read = reader.poll(READ_BYTES_MAX)
            if read is not None and read.batch is not None:
                count += read.batch.num_rows
                yield read.batch
    for reader in readers:
        reader.close()
    opened.close()
