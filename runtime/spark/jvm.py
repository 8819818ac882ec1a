"""Starts Spark's JVM, and passes its standard error on without the lines that every start prints.

The JVM warns about a module that Spark itself asks for, and PySpark about a version of pandas that nothing here uses.
Everything else is passed on unchanged: errors of the JVM, and output of user functions, which reaches the driver
through the JVM.

Invariants
    - An interrupt leaves nothing half started. PySpark forgets a JVM whose launch is interrupted, and removes the
      folder in which that JVM is about to report its port; such a JVM fails, but never exits. A context whose creation
      is interrupted lives in the JVM alone, which refuses every later one.
    - A process that started a JVM ends after it and after the processes that the JVM started: programs that run after
      the exit of `holdfast run` find their ports, files and memory free.
    - A signal to the process group reaches the driver alone, which takes a last checkpoint and ends the JVM.

Source: PySpark, launch_gateway(popen_kwargs=); PythonGatewayServer, which exits when its standard input closes.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway

from holdfast.runtime.spark.archive import Boost, boost

R = TypeVar("R")
NOISE = (b"WARNING: Using incubator modules: jdk.incubator.vector\n",)
PANDAS = "PySpark does not yet fully support pandas"
"""Start of a warning; nothing here converts through pandas."""
_READ_BYTES = 65536
_LAST_WORDS_S = 2.0
"""How long the start of a JVM that failed waits until its last lines are shown."""
JVM_ENDS_WITHIN_S = 20.0
"""A JVM that needs longer after its standard input was closed is killed."""
JVM_STORES_WITHIN_S = 60.0
"""The same for a JVM that stores an archive of its classes, which takes five seconds on an idle machine."""
STORING = "Storing the classes of Spark in {}, once: later starts take less time. Ctrl-C skips this."
RETRIED = b"Spark's Java process did not start; trying again without the options that Holdfast adds\n"
CHILDREN_END_WITHIN_S = 2.0
"""Time for the Python daemons of a JVM that has ended. Processes that a user's functions started may stay longer."""
_POLL_S = 0.05
_STDERR = 2
_under_way: list[threading.Thread] = []
_boosts: list[Boost] = []


class Quieter:
    """Drops whole lines of noise from a stream of bytes."""

    def __init__(self, noise: tuple[bytes, ...] = NOISE) -> None:
        self._noise, self._held = noise, b""

    def feed(self, data: bytes) -> bytes:
        """Return the output that may be shown. Holds a last, incomplete line back only while it may become noise."""
        *lines, last = (self._held + data).splitlines(keepends=True) or [b""]
        if last.endswith(b"\n") or not any(line.startswith(last) for line in self._noise):
            lines, last = [*lines, last], b""
        self._held = last
        return b"".join(line for line in lines if line not in self._noise)

    def end(self) -> bytes:
        """Return the output that is still held back when the stream ends."""
        held, self._held = self._held, b""
        return held


def uninterrupted(work: Callable[[], R]) -> R:
    """Do the work on a separate thread, which no interrupt reaches; return its result or raise its error.

    Raises:
        KeyboardInterrupt: after the work has ended. A second interrupt is raised immediately; a program that continues
            then calls `finish_abandoned`.
    """
    doing: Future[R] = Future()

    def do() -> None:
        try:
            doing.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            doing.set_exception(error)

    thread = threading.Thread(target=do, name="uninterrupted", daemon=True)
    _under_way.append(thread)
    try:
        thread.start()
        _wait_for(thread)
    except KeyboardInterrupt:
        _wait_for(thread)
        raise
    _under_way.remove(thread)
    return doing.result()


def finish_abandoned() -> None:
    """Wait for work that interrupts left under way. A context that it creates is the active one afterwards."""
    while _under_way:
        _wait_for(_under_way[-1])
        _under_way.pop()


def _wait_for(thread: threading.Thread) -> None:
    """Wait, open to interrupts: Polars handles SIGINT in a way that lets waits for locks continue."""
    while thread.is_alive():
        time.sleep(_POLL_S)


def start_jvm() -> None:
    """Start the JVM of this process unless it runs already, or spark-submit has started one.

    Raises:
        KeyboardInterrupt: after the launch has ended, so that the next start finds the JVM, or the end of this process
            ends it.
    """
    uninterrupted(_start_jvm)


def _start_jvm() -> None:
    warnings.filterwarnings("ignore", message=PANDAS)
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        SparkContext._ensure_initialized()
        return
    read, write = os.pipe()
    passing_on = threading.Thread(target=_pass_on, args=(read,), name="jvm-stderr", daemon=True)
    passing_on.start()
    try:
        gateway, jvm_boost = _launch(write)
    except BaseException:
        os.close(write)
        passing_on.join(_LAST_WORDS_S)
        raise
    os.close(write)  # the JVM has its own
    SparkContext._ensure_initialized(gateway=gateway)
    _boosts.append(jvm_boost)
    atexit.register(_end, gateway.proc, jvm_boost)


def note_context() -> None:
    """Note that the JVM has a context, so it has loaded what jobs need: it may store that."""
    for boosted in _boosts:
        boosted.worthwhile = True


def _launch(stderr: int) -> tuple[Any, Boost]:
    """Launch the JVM with options for a shorter start; if it does not start, without them."""
    jvm_boost = boost(os.environ, Path(_find_spark_home()))
    try:
        with jvm_boost.applied(os.environ):
            return _gateway(stderr), jvm_boost
    except PySparkRuntimeError:
        jvm_boost.stored(None)
        if not jvm_boost.options:
            raise
        os.write(stderr, RETRIED)
        return _gateway(stderr), Boost()


def _gateway(stderr: int) -> Any:
    return launch_gateway(popen_kwargs={"stderr": stderr, "start_new_session": True})  # type: ignore[no-untyped-call]


def _end(jvm: subprocess.Popen[bytes], boosted: Boost) -> None:
    within_s, archive = JVM_ENDS_WITHIN_S, boosted.archive
    if archive is not None and jvm.poll() is None:
        if boosted.worthwhile:
            within_s = JVM_STORES_WITHIN_S
            with contextlib.suppress(OSError):  # the reader has ended
                _write(f"{STORING.format(archive)}\n".encode())
        else:
            jvm.kill()  # without a context it has nothing to remove
    _silence()
    end_jvm(jvm, within_s)
    boosted.stored(jvm.returncode)


def _silence() -> None:
    context = SparkContext._active_spark_context
    if context is not None:  # its server for accumulators would print that the JVM has closed the connection
        context._accumulatorServer.handle_error = lambda request, client_address: None  # type: ignore[method-assign]


def end_jvm(jvm: subprocess.Popen[bytes], within_s: float = JVM_ENDS_WITHIN_S) -> None:
    """End a JVM with its own session, as the end of this process would, and wait for the processes that it started."""
    assert jvm.stdin is not None
    try:
        with contextlib.suppress(OSError):
            jvm.stdin.close()
        jvm.wait(within_s)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):  # an interrupt has to end this process immediately
        jvm.kill()
        jvm.wait()
    deadline = time.monotonic() + CHILDREN_END_WITHIN_S
    while _session(jvm.pid) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _session(leader: int) -> list[int]:
    """Return the live processes of a session; none where the system does not show them."""
    pids = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session, *_ = each.read_text(errors="replace").rpartition(")")[2].split()
        except (OSError, ValueError):  # it has ended
            continue
        if int(session) == leader and state != "Z":
            pids.append(int(each.parent.name))
    return pids


def _pass_on(read: int) -> None:
    quieter = Quieter()
    with contextlib.suppress(OSError), os.fdopen(read, "rb", buffering=0) as stream:  # no standard error: nothing to do
        while data := stream.read(_READ_BYTES):
            _write(quieter.feed(data))
        _write(quieter.end())


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(_STDERR, data) :]
