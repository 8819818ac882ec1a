"""The first messages of a process, decoded by several threads: msgspec prepares a type at its first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROCESSES = 8
"""Each crashes one time in four if every thread makes msgspec prepare the types itself."""
READS = """
import sys, threading
from holdfast.model import Generation, WorkerId
from holdfast.runtime.wire import messages as m
import msgspec

sys.setswitchinterval(1e-6)
hello = msgspec.msgpack.encode(m.Register(WorkerId("w"), 1, "host", 2, "boot", ("host", 1)))
beat = msgspec.msgpack.encode(m.Heartbeat(WorkerId("w"), Generation(0), False, False, (), m.WorkerProgress()))
together, read = threading.Barrier(8), []

def reader(number):
    together.wait()
    read.append(m.FROM_WORKER.decode(beat) if number % 2 else m.HELLO.decode(hello))

threads = [threading.Thread(target=reader, args=(number,)) for number in range(8)]
for each in threads:
    each.start()
for each in threads:
    each.join()
print(len(read))
"""


@pytest.mark.thorough
def test_threads_that_decode_simultaneously_do_not_crash_the_process() -> None:
    for _ in range(PROCESSES):
        ended = subprocess.run([sys.executable, "-c", READS], capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stdout.strip()) == (0, "8"), ended.stderr
