"""The cost of TLS on the data plane: frames through one loopback connection, in plain and encrypted, in one run."""

from __future__ import annotations

import socket
import threading
import time

from harness import Bench

from holdfast.runtime.processes.streams import accept, connect
from holdfast.runtime.processes.tls import Credentials, make_credentials

FRAME_BYTES = 1 << 20


def bench_streams(bench: Bench) -> None:
    """Frames of 1 MiB, about the size of a batch; the reader only reads."""
    frames = bench.size("frames of 1 MiB", smoke=8, full=4_000)
    with bench.timed():
        plain = seconds(Credentials(b"s" * 32), frames)
        encrypted = seconds(make_credentials(encrypted=True), frames)
    bench.report(per=2 * frames, unit="frame", check=2 * frames)
    mib = [frames / each for each in (plain, encrypted)]
    bench.note(f"plain {mib[0]:,.0f} MiB/s, TLS {mib[1]:,.0f} MiB/s: ratio {mib[1] / mib[0]:.2f}")


def seconds(credentials: Credentials, frames: int) -> float:
    """Return how long the frames took from the first byte sent to the last one received."""
    listener = socket.create_server(("127.0.0.1", 0))
    payload = bytes(range(256)) * (FRAME_BYTES // 256)
    right = 0

    def read() -> None:
        nonlocal right
        stream, _ = accept(listener.accept()[0], credentials)
        for _ in range(frames):
            right += stream.receive()[1] == payload
        stream.close()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    stream = connect(listener.getsockname()[:2], credentials, b"hello")
    start = time.perf_counter()
    for _ in range(frames):
        stream.send(1, memoryview(payload))
    reader.join()
    took = time.perf_counter() - start
    stream.close()
    listener.close()
    assert right == frames
    return took
