"""What the channels of one shuffle take: sockets, threads and memory of all workers, here in one process."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pyarrow as pa
from harness import Bench
from patience import wait

from holdfast.model import Barrier, ChannelId, Epoch, Generation, JobUuid, Subtask
from holdfast.runtime.processes.exchange import TcpNetwork
from holdfast.runtime.processes.tls import Credentials
from holdfast.runtime.wire.channels import Links, OpenLinks
from holdfast.runtime.wire.mailbox import Mailbox

SCHEMA = pa.schema([pa.field("n", pa.int64())])
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def held() -> tuple[int, int, int]:
    """Return the file descriptors, threads and bytes of memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), pages * PAGE_BYTES


def bench_channels(bench: Bench) -> None:
    """Every worker sends a barrier to every other one."""
    workers = bench.size("workers", smoke=4, full=50)
    credentials, subtasks = Credentials(b"s" * 32), [Subtask(n) for n in range(workers)]
    broken = list[str]()
    before = held()
    networks = [TcpNetwork("127.0.0.1", credentials, Mailbox()) for _ in subtasks]
    links = list[Links]()
    channels = [ChannelId(0, sender, receiver) for sender in subtasks for receiver in subtasks if sender != receiver]
    with bench.timed():
        for own, network in zip(subtasks, networks, strict=True):
            ins = tuple(c for c in channels if c.receiver == own)
            outs = tuple(c for c in channels if c.sender == own)
            peers = {subtask: each.address for subtask, each in zip(subtasks, networks, strict=True)}
            report = lambda _generation, channel, why, _silent: broken.append(f"{channel}: {why}")
            links.append(
                network.open(OpenLinks(JobUuid("job"), Generation(1), own, ins, outs, peers, {0: SCHEMA}, report))
            )
        for channel in channels:
            links[channel.sender].put(channel, Barrier(Epoch(1), Epoch(0), last=False))
        missing = set(channels)

        def arrived() -> bool:
            missing.difference_update([c for c in missing if links[c.receiver].take(c) is not None])
            return not missing

        wait(arrived, "all barriers")
    files, threads, memory = (now - then for now, then in zip(held(), before, strict=True))
    assert not broken and threads >= 2 * len(channels)
    for each in links:
        each.close()
    for network in networks:
        network.close()
    bench.note(
        f"per worker: {files / workers:.0f} sockets, {threads / workers:.0f} threads, {memory / workers / 1e6:.1f} MB"
    )
    bench.report(per=len(channels), unit="channel", check=len(channels))
