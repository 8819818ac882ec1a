"""Starts Spark's JVM, and passes its standard error on without the lines that every start prints.

The JVM warns about a module that Spark itself asks for, and PySpark about a version of pandas that nothing here uses.
Everything else is passed on unchanged: errors of the JVM, and what user functions print, which reaches the driver
through the JVM.

Invariants
    - An interrupt leaves no JVM without an owner: PySpark forgets a JVM whose launch is interrupted, and removes the
      folder in which that JVM is about to report its port; such a JVM fails, but never exits.

Source: PySpark, launch_gateway(popen_kwargs=); PythonGatewayServer, which exits when its standard input closes.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from concurrent.futures import Future
from typing import Any

from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway

NOISE = (b"WARNING: Using incubator modules: jdk.incubator.vector\n",)
PANDAS = "PySpark does not yet fully support pandas"
"""Start of a warning; nothing here converts through pandas."""
_READ_BYTES = 65536
_LAST_WORDS_S = 2.0
"""How long the start of a JVM that failed waits until its last lines are shown."""
_POLL_S = 0.05
_STDERR = 2


class Quieter:
    """Drops whole lines of noise from a stream of bytes."""

    def __init__(self, noise: tuple[bytes, ...] = NOISE) -> None:
        self._noise, self._held = noise, b""

    def feed(self, data: bytes) -> bytes:
        """Return what may be shown by now. Holds a last, incomplete line back only while it may become noise."""
        *lines, last = (self._held + data).splitlines(keepends=True) or [b""]
        if last.endswith(b"\n") or not any(line.startswith(last) for line in self._noise):
            lines, last = [*lines, last], b""
        self._held = last
        return b"".join(line for line in lines if line not in self._noise)

    def end(self) -> bytes:
        """Return what is still held back when the stream ends."""
        held, self._held = self._held, b""
        return held


def start_jvm() -> None:
    """Start the JVM of this process unless it runs already, or spark-submit has started one.

    Raises:
        KeyboardInterrupt: after the launch has ended, so that the next start finds the JVM, or the end of this process
            ends it. A second interrupt is raised immediately.
    """
    warnings.filterwarnings("ignore", message=PANDAS)
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        SparkContext._ensure_initialized()
        return
    read, write = os.pipe()
    passing_on = threading.Thread(target=_pass_on, args=(read,), name="jvm-stderr", daemon=True)
    passing_on.start()
    launching: Future[Any] = Future()
    # An interrupt reaches the main thread only.
    threading.Thread(target=_launch, args=(write, launching), name="jvm-launch", daemon=True).start()
    try:
        gateway = _result(launching)
    except KeyboardInterrupt:
        with contextlib.suppress(Exception):  # no JVM, none to keep
            SparkContext._ensure_initialized(gateway=_result(launching))
        raise
    except Exception:
        passing_on.join(_LAST_WORDS_S)
        raise
    SparkContext._ensure_initialized(gateway=gateway)


def _result(launching: Future[Any]) -> Any:
    """Wait for the launch, open to interrupts: Polars handles SIGINT in a way that lets waits for locks continue."""
    while not launching.done():
        time.sleep(_POLL_S)
    return launching.result()


def _launch(write: int, launching: Future[Any]) -> None:
    try:
        gateway = launch_gateway(popen_kwargs={"stderr": write})  # type: ignore[no-untyped-call]
    except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
        os.close(write)
        launching.set_exception(error)
    else:
        os.close(write)  # the JVM has its own
        launching.set_result(gateway)


def _pass_on(read: int) -> None:
    quieter = Quieter()
    with contextlib.suppress(OSError), os.fdopen(read, "rb", buffering=0) as stream:  # no standard error: nothing to do
        while data := stream.read(_READ_BYTES):
            _write(quieter.feed(data))
        _write(quieter.end())


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(_STDERR, data) :]
