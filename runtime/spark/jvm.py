"""Starts Spark's JVM, and passes its standard error on without the lines that every start prints.

The JVM warns about a module that Spark itself asks for, and PySpark about a version of pandas that nothing here uses.
Everything else is passed on unchanged: errors of the JVM, and what user functions print, which reaches the driver
through the JVM.

Source: PySpark, launch_gateway(popen_kwargs=).
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings

from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway

NOISE = (b"WARNING: Using incubator modules: jdk.incubator.vector\n",)
PANDAS = "PySpark does not yet fully support pandas"
"""Start of a warning; nothing here converts through pandas."""
_READ_BYTES = 65536
_LAST_WORDS_S = 2.0
"""How long the start of a JVM that failed waits until its last lines are shown."""
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
    """Start the JVM of this process unless it runs already, or spark-submit has started one."""
    warnings.filterwarnings("ignore", message=PANDAS)
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        SparkContext._ensure_initialized()
        return
    read, write = os.pipe()
    passing_on = threading.Thread(target=_pass_on, args=(read,), name="jvm-stderr", daemon=True)
    passing_on.start()
    try:
        gateway = launch_gateway(popen_kwargs={"stderr": write})  # type: ignore[no-untyped-call]
    except BaseException:
        os.close(write)
        passing_on.join(_LAST_WORDS_S)
        raise
    os.close(write)  # the JVM has its own
    SparkContext._ensure_initialized(gateway=gateway)


def _pass_on(read: int) -> None:
    quieter = Quieter()
    with contextlib.suppress(OSError), os.fdopen(read, "rb", buffering=0) as stream:  # no standard error: nothing to do
        while data := stream.read(_READ_BYTES):
            _write(quieter.feed(data))
        _write(quieter.end())


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(_STDERR, data) :]
