"""What a small job costs: from the start of the command to its end, with every process that it starts.

The README's job over two rows and a windowed job over 66, as local processes and on Spark. With PEERS_HOME, which holds
the environments of the peers (see bench_peers.py), Bytewax and Quix count the same two rows in the same run: Bytewax
from a file, Quix from the broker of the tests, as it reads nothing else.

Each command runs once before it is measured, so that bytecode and kernels are on disk.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil
import pytest
from confluent_kafka import Producer
from cpu_clock import CpuClock
from harness import Bench
from kafka_server import KafkaServer

MAIN = (sys.executable, "-m", "holdfast.runtime.cli.main")
LOOK_EVERY_S = 0.02
SALES = """
from dataclasses import dataclass

import holdfast as hf

@dataclass
class Sale:
    shop: str
    amount: float

app = hf.App("sales", checkpoint_every="1s")
sales = app.source("sales", hf.Log("data/sales", Sale))
totals = sales.key_by("shop").agg("totals", sales=hf.count(), turnover=hf.sum("amount"))
totals.sink("out", hf.SQLite("totals.db", table="totals", key=["shop"]))
if __name__ == "__main__":
    app.main()
"""
ROWS = [{"shop": "north", "amount": 2.5}, {"shop": "south", "amount": 4.0}]
BYTEWAX = """
import json
import bytewax.operators as op
from bytewax.connectors.files import FileSource
from bytewax.connectors.stdio import StdOutSink
from bytewax.dataflow import Dataflow

flow = Dataflow("sales")
lines = op.input("in", flow, FileSource("rows.jsonl"))
rows = op.map("rows", lines, json.loads)
keyed = op.key_on("shop", rows, lambda row: row["shop"])
def add(state, row):
    state = (1 + (state or (0, 0.0))[0], row["amount"] + (state or (0, 0.0))[1])
    return state, state
totals = op.stateful_map("totals", keyed, add)
op.output("out", op.map("shown", totals, str), StdOutSink())
"""
QUIX = """
import os, sys
from quixstreams import Application

given = {"broker_address": sys.argv[1], "consumer_group": sys.argv[2], "state_dir": "state", "loglevel": "ERROR"}
app = Application(**given, auto_offset_reset="earliest", processing_guarantee="exactly-once")
rows = app.dataframe(app.topic(sys.argv[3], value_deserializer="json", key_deserializer="str"))
def add(row, state):
    count, total = state.get("total") or (0, 0.0)
    state.set("total", (count + 1, total + row["amount"]))
    return row["shop"], count + 1, total + row["amount"]
rows.apply(add, stateful=True).update(print)
app.run(count=2, timeout=60.0)
"""


@dataclass
class Cost:
    """What one run of a command used."""

    wall_s: float
    cpu_s: float
    peak_bytes: int = 0
    """Most memory at once, in which what processes share counts once (PSS)."""
    private_bytes: int = 0
    """Of that, what no other process shares."""


@dataclass
class _Memory:
    """Watches the memory of a process and all below it, in a thread."""

    pid: int
    peak: int = 0
    private: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        while not self.over.wait(LOOK_EVERY_S):
            try:
                top = psutil.Process(self.pid)
                sizes = [_sizes(each.pid) for each in (top, *top.children(recursive=True))]
            except psutil.NoSuchProcess:
                continue
            total = sum(pss for pss, _ in sizes)
            if total > self.peak:
                self.peak, self.private = total, sum(private for _, private in sizes)


def _sizes(pid: int) -> tuple[int, int]:
    """Return the proportional and the private bytes of a process; nothing if it has ended."""
    try:
        lines = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]]
    except OSError:
        return 0, 0
    found = {words[0]: int(words[1]) << 10 for words in lines if len(words) == 3}
    return found.get("Pss:", 0), found.get("Private_Clean:", 0) + found.get("Private_Dirty:", 0)


def cost(command: Sequence[str], folder: Path, **environment: str) -> Cost:
    """Run a command in a folder, to its end."""
    clock = CpuClock()
    variables = {**os.environ, **environment}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        before, began = clock.seconds(), time.perf_counter()
        with subprocess.Popen(
            command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            memory = _Memory(process.pid)
            watching = threading.Thread(target=memory.watch)
            watching.start()
            said, _ = process.communicate()
            wall_s = time.perf_counter() - began
            memory.over.set()
            watching.join()
        cpu_s = clock.seconds() - before
    finally:
        clock.close()
    assert process.returncode == 0, said
    return Cost(wall_s, cpu_s, memory.peak, memory.private)


def cpu_alone(command: Sequence[str], folder: Path, **environment: str) -> Cost:
    """Run a command like `cost`, without a look at its memory, which costs CPU itself."""
    clock = CpuClock()
    variables = {**os.environ, **environment}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        before, began = clock.seconds(), time.perf_counter()
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
        wall_s, cpu_s = time.perf_counter() - began, clock.seconds() - before
    finally:
        clock.close()
    assert done.returncode == 0, done.stdout + done.stderr
    return Cost(wall_s, cpu_s)


def prepare_sales(folder: Path) -> None:
    """Write the README's job and its log."""
    folder.mkdir()
    (folder / "sales.py").write_text(SALES)
    create = [*MAIN, "log", "create", "data/sales", "--schema", "shop:string,amount:double", "--key", "shop"]
    subprocess.run(create, cwd=folder, capture_output=True, check=True)
    rows = "".join(f"{json.dumps(row)}\n" for row in ROWS)
    append = [*MAIN, "log", "append", "data/sales"]
    subprocess.run(append, cwd=folder, input=rows, capture_output=True, check=True, text=True)


def prepare_windowed(folder: Path) -> None:
    """Write the project of `holdfast new`: windows of an hour, with late records."""
    subprocess.run([*MAIN, "new", folder.name], cwd=folder.parent, capture_output=True, check=True)


@contextmanager
def ours(folder: Path, prepare: Callable[[Path], None], job: str, *flags: str) -> Iterator[list[str]]:
    """The command of a run of ours over new input."""
    shutil.rmtree(folder, ignore_errors=True)
    prepare(folder)
    yield [*MAIN, "run", job, "--once", "--progress", "none", *flags]


@pytest.mark.e2e
def bench_first_row(bench: Bench, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Budget: the README's job as local processes in 1.5 s of CPU, 1 s of wall and 250 MiB."""
    runs = bench.size("runs", smoke=1, full=5)
    jobs: dict[str, tuple[Callable[[Path], None], str]] = {
        "README": (prepare_sales, "sales.py"),
        "windowed": (prepare_windowed, "job.py"),
    }
    places = {"local": ("--local",)} | ({"Spark": ("--master", "local[3]")} if bench.full else {})
    done = 0
    with bench.timed():
        for job, (prepare, file) in jobs.items():
            for place, flags in places.items():
                costs = []
                for number in range(runs + 1):
                    with ours(tmp_path / job, prepare, file, *flags) as command:
                        if number:
                            costs.append(cpu_alone(command, tmp_path / job))
                        else:
                            memory = cost(command, tmp_path / job)
                bench.note(line(f"{job}, {place}", costs, memory))
                done += len(costs)
        if bench.full and "PEERS_HOME" in os.environ:
            done += peers(bench, Path(os.environ["PEERS_HOME"]), tmp_path, request.getfixturevalue("kafka"), runs)
    bench.report(per=done, unit="run", check=done)


def peers(bench: Bench, home: Path, folder: Path, kafka: KafkaServer, runs: int) -> int:
    """Measure the peers; return the number of runs."""
    python = str(home / "vmisc/bin/python")
    (folder / "flow.py").write_text(BYTEWAX)
    (folder / "quix.py").write_text(QUIX)
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    topic, producer = kafka.topic(), Producer({"bootstrap.servers": kafka.servers})
    for row in ROWS:
        producer.produce(topic, json.dumps(row).encode(), str(row["shop"]).encode())
    producer.flush()
    flow = [python, "-m", "bytewax.run", "flow:flow"]
    bench.note(line("Bytewax", [cpu_alone(flow, folder) for _ in range(runs)], cost(flow, folder)))
    groups = iter(range(1_000))

    def quix() -> list[str]:
        shutil.rmtree(folder / "state", ignore_errors=True)
        return [python, "quix.py", kafka.servers, f"group-{next(groups)}", topic]

    memory = cost(quix(), folder)
    bench.note(line("Quix, from Kafka", [cpu_alone(quix(), folder) for _ in range(runs)], memory))
    return 2 * runs


def line(name: str, costs: Sequence[Cost], memory: Cost) -> str:
    """Return a line of the report."""
    cpu_s, wall_s = median(each.cpu_s for each in costs), median(each.wall_s for each in costs)
    shared = f"{memory.peak_bytes / 2**20:.0f} MiB ({memory.private_bytes / 2**20:.0f} private)"
    return f"{name:<20} {cpu_s:6.2f} s CPU  {wall_s:6.2f} s wall  {shared}"
