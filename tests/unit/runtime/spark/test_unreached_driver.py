"""A worker that cannot reach its driver reports it, and the driver's error has the address and advice."""

from __future__ import annotations

import ctypes
import re
import signal
import socket
import sys
import traceback
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import Unavailable
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.processes import host
from holdfast.runtime.processes.host import WorkerTask, host_worker
from holdfast.runtime.processes.tls import make_credentials
from holdfast.runtime.spark.launch import first_line
from holdfast.runtime.wire.processes import die_with_parent
from holdfast.sinks.memory.sink import MemorySink

PR_SET_PDEATHSIG, PR_GET_PDEATHSIG = 1, 2
SPARK = (
    "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
    ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most "
    "recent failure: Lost task 0.0 in stage 0.0 (TID 0) (127.0.0.1 executor driver): "
    "org.apache.spark.api.python.PythonException: "
)


def run_worker(folder: Path) -> None:
    """Run a worker in this process whose driver does not listen."""
    app = hf.App("unreached")
    source = hf.Generator(pa.schema([("k", pa.int64())]), lambda i: {"k": i}, count=1)
    app.source("s", source).sink("out", MemorySink())
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        address = ("127.0.0.1", int(nobody.getsockname()[1]))
        task = WorkerTask(app.plan(), str(folder), address, make_credentials(False), resolve(app))
        host_worker(task, 1)


class TestAWorkerThatCannotReachItsDriver:
    def test_names_the_address_and_the_next_step(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        bound: list[bool] = []
        monkeypatch.setattr(host, "die_with_parent", lambda: bound.append(True))  # this process is to live on
        before = sys.getswitchinterval()
        try:
            with pytest.raises(Unavailable) as caught:
                run_worker(tmp_path)
        finally:
            sys.setswitchinterval(before)
        assert bound == [True]
        report = SPARK + "".join(traceback.format_exception(caught.value))
        reported = first_line(RuntimeError(report))
        assert re.match(r"Unavailable: no stream to 127\.0\.0\.1:[0-9]+: \[Errno 111\] Connection refused", reported)
        assert reported.endswith("holdfast doctor")


class TestAWorkersProcess:
    def test_lets_no_thread_keep_the_interpreter_for_as_long_as_python_does(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The threads that read, process and write a batch would wait up to 5 ms for each other, several times."""
        monkeypatch.setattr(host, "die_with_parent", lambda: None)  # this process is to live on
        before = sys.getswitchinterval()
        assert host.SWITCH_S <= 0.001 < before
        try:
            with pytest.raises(Unavailable):
                run_worker(tmp_path)
            assert sys.getswitchinterval() == pytest.approx(host.SWITCH_S)
        finally:
            sys.setswitchinterval(before)

    def test_is_killed_when_the_daemon_that_started_it_ends(self) -> None:
        libc, found = ctypes.CDLL(None, use_errno=True), ctypes.c_int()
        die_with_parent()
        try:
            assert libc.prctl(PR_GET_PDEATHSIG, ctypes.byref(found)) == 0
        finally:
            libc.prctl(PR_SET_PDEATHSIG, 0)
        assert found.value == signal.SIGKILL
