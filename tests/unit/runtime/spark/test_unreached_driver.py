"""A worker that cannot reach its driver reports it, and the driver's error has the address and advice."""

from __future__ import annotations

import ctypes
import signal
import socket
import traceback
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import Unavailable
from holdfast.runtime.spark import host
from holdfast.runtime.spark.host import WorkerTask, host_worker
from holdfast.runtime.spark.launch import first_line
from holdfast.runtime.spark.tls import make_credentials
from holdfast.sinks.memory import MemorySink

PR_SET_PDEATHSIG, PR_GET_PDEATHSIG = 1, 2
SPARK = (
    "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
    ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most "
    "recent failure: Lost task 0.0 in stage 0.0 (TID 0) (127.0.0.1 executor driver): "
    "org.apache.spark.api.python.PythonException: "
)


class TestAWorkerThatCannotReachItsDriver:
    def test_names_the_address_and_the_next_step(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        bound: list[bool] = []
        monkeypatch.setattr(host, "_die_with_parent", lambda: bound.append(True))  # this process is to live on
        app = hf.App("unreached")
        source = hf.Generator(pa.schema([("k", pa.int64())]), lambda i: {"k": i}, count=1)
        app.source("s", source).sink("out", MemorySink())
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))  # and does not listen
            address = ("127.0.0.1", int(nobody.getsockname()[1]))
            task = WorkerTask(app.plan(), str(tmp_path), address, make_credentials(False), 0.5, 10.0, None)
            with pytest.raises(Unavailable) as caught:
                list(host_worker(task, [1]))
        assert bound == [True]
        report = SPARK + "".join(traceback.format_exception(caught.value))
        reported = first_line(RuntimeError(report))
        assert reported.startswith(f"Unavailable: no stream to 127.0.0.1:{address[1]}: [Errno 111] Connection refused")
        assert reported.endswith("holdfast doctor")


class TestAWorkersProcess:
    def test_is_killed_when_the_daemon_that_started_it_ends(self) -> None:
        libc, found = ctypes.CDLL(None, use_errno=True), ctypes.c_int()
        host._die_with_parent()
        try:
            assert libc.prctl(PR_GET_PDEATHSIG, ctypes.byref(found)) == 0
        finally:
            libc.prctl(PR_SET_PDEATHSIG, 0)
        assert found.value == signal.SIGKILL
