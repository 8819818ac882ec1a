"""Processes that a function forks never come back to the worker, and have none of its descriptors."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from patience import run

PROGRAM = """
import fcntl, json, multiprocessing, os, signal, socket, sys, tempfile
from dataclasses import dataclass

import pyarrow as pa

import holdfast as hf
from holdfast import children
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.worker.fragment import FragmentRuntime
from holdfast.sinks.memory.sink import MemorySink
from planned_source import PlannedSource

@dataclass
class Item:
    n: int

def status_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def returns():
    return None

def exits():
    sys.exit(7)

def raises():
    raise ValueError("of the child")

seen = []

def forks(how):
    def function(item):
        given = item.column("n").to_pylist() if isinstance(item, pa.RecordBatch) else [item.n]
        if given[0] == 1 or how == "batches":
            if (pid := os.fork()) == 0:
                {"returns": returns, "exits": exits, "raises": raises, "batches": returns}[how]()
            else:
                seen.append(status_of(pid))
        if given[0] == 2:
            os.write(1, f"{json.dumps({'two in': os.getpid() == parent})}\\n".encode())
        return item
    return function

def play(how, function):
    app, out = hf.App("app"), []
    stream = app.source("items", PlannedSource(schema_of(Item)))
    stream = stream.map_batches(function, Item) if how == "batches" else stream.map(function, to=Item)
    stream.sink("out", MemorySink())
    fragment = FragmentRuntime(app.plan().fragments[0], {}, lambda *_: None, lambda _, rows: out.append(rows.num_rows))
    fragment.on_batch(pa.RecordBatch.from_pylist([{"n": n} for n in range(4)], schema=schema_of(Item)))
    return sum(out)

def shout(queue):
    queue.put("shouted" if sys.gettrace() is None else "traced")

def uses_multiprocessing(item):
    if item.n == 1:
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=shout, args=(queue,))
        child.start()
        seen.append(queue.get())
        child.join()
        seen.append(child.exitcode)
    return item

def shouts_and_stays(queue):
    queue.put("shouted")
    signal.pause()

def terminates(item):
    if item.n == 1:
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=shouts_and_stays, args=(queue,), daemon=True)
        child.start()
        queue.get(timeout=60)
        child.terminate()
        child.join(20)
        seen.append(child.exitcode)
    return item

parent = os.getpid()
signal.signal(signal.SIGTERM, lambda *_: None)  # as in workers, which end with the driver
far, near = socket.socketpair()  # as of a library that has connected before the first function is called
children.guard()
for how in ("returns", "exits", "raises", "batches"):
    seen.clear()
    rows = play(how, forks(how))
    print(json.dumps({"how": how, "rows": rows, "children": seen}), flush=True)
seen.clear()
print(json.dumps({"how": "multiprocessing", "rows": play("map", uses_multiprocessing), "children": seen}), flush=True)
seen.clear()
print(json.dumps({"how": "terminates", "rows": play("map", terminates), "children": seen}), flush=True)

here, there = socket.socketpair()
children.keep(here)
lock = tempfile.TemporaryFile()
fcntl.flock(lock, fcntl.LOCK_EX)
read, write = os.pipe()
with children.kept(lock.fileno()):
    if (pid := os.fork()) == 0:
        os.write(write, b".")
        os.read(there.fileno(), 1)  # it lives on until it is killed
        signal.pause()
os.read(read, 1)
lock_name = f"/proc/self/fd/{lock.fileno()}"
other = os.open(lock_name, os.O_RDWR)
lock.close()
here.close()
near.close()
try:
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    free = True
except BlockingIOError:
    free = False
print(json.dumps({"how": "lives on", "lock is free": free, "peer sees the end": there.recv(1) == b"",
    "peer of an earlier one too": far.recv(1) == b""}), flush=True)
os.kill(pid, 9)
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return what a process printed in which functions forked."""
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", PROGRAM]
    status, out, errors = run(command, tmp_path_factory.mktemp("said"), "functions that fork", environment)
    assert status == 0, errors
    lines = [json.loads(line) for line in out.splitlines()]
    found = {line["how"]: line for line in lines if "how" in line}
    found["twos"] = {"in the parent": [line["two in"] for line in lines if "two in" in line]}
    found["stderr"] = {"text": errors}
    return found


class TestAChildOfAFunction:
    @pytest.mark.parametrize(("how", "status"), [("returns", 0), ("exits", 7), ("raises", 1)])
    def test_ends_when_it_leaves_the_function(self, said: dict[str, dict[str, Any]], how: str, status: int) -> None:
        assert (said[how]["rows"], said[how]["children"]) == (4, [status])

    def test_is_given_no_other_row(self, said: dict[str, dict[str, Any]]) -> None:
        assert said["twos"]["in the parent"] == [True] * 3

    def test_ends_when_it_leaves_a_function_of_batches(self, said: dict[str, dict[str, Any]]) -> None:
        assert (said["batches"]["rows"], said["batches"]["children"]) == (4, [0])

    def test_a_multiprocessing_child_works_normally_and_is_not_slowed_down(
        self, said: dict[str, dict[str, Any]]
    ) -> None:
        assert said["multiprocessing"]["children"] == ["shouted", 0]

    def test_ends_when_multiprocessing_terminates_it_though_the_worker_takes_no_notice_of_that_signal(
        self, said: dict[str, dict[str, Any]]
    ) -> None:
        """`multiprocessing.Pool` ends its processes so, and waits for them."""
        assert said["terminates"]["children"] == [-15]

    def test_a_surviving_child_holds_no_socket_and_no_lock(self, said: dict[str, dict[str, Any]]) -> None:
        assert said["lives on"]["peer sees the end"] and said["lives on"]["lock is free"]
        assert said["lives on"]["peer of an earlier one too"]

    def test_says_why_it_has_ended(self, said: dict[str, dict[str, Any]]) -> None:
        assert "a process that a function forked came back from the function, and was ended" in said["stderr"]["text"]
        assert "ValueError: of the child" in said["stderr"]["text"]
