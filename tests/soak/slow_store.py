"""An object store as a job finds it in a cloud: an S3 server on this machine, whose answers Toxiproxy delays.

HOLDFAST_S3_SERVER names the program, versitygw: `go install github.com/versity/versitygw/cmd/versitygw@latest`. It
keeps objects as files, so that a test can measure them without asking it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import wait

from holdfast.chaos.live.faults.proxy import Toxiproxy

VARIABLE, BUCKET = "HOLDFAST_S3_SERVER", "soak"
DELAY_MS, JITTER_MS = 20, 10


@dataclass(frozen=True)
class Root:
    """Where a job's root is.

    Args:
        url: For the job.
        files: The folder with its objects as files.
        environment: For the job's processes.
    """

    url: str
    files: Path
    environment: dict[str, str]


@contextlib.contextmanager
def root_of(folder: Path) -> Iterator[Root]:
    """Return a root in the slow store if its server is named, else in a folder."""
    program = os.environ.get(VARIABLE)
    if not program:
        yield Root(str(folder / "root"), folder / "root", {})
        return
    data, port, meant = folder / "objects", _free_port(), _free_port()
    for each in (data / BUCKET, folder / "about"):
        each.mkdir(parents=True)
    keys = {"AWS_ACCESS_KEY_ID": "soak", "AWS_SECRET_ACCESS_KEY": "soak-secret"}
    own = {"ROOT_ACCESS_KEY": keys["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": keys["AWS_SECRET_ACCESS_KEY"]}
    with (folder / "s3.log").open("wb") as log, contextlib.closing(Toxiproxy(folder / "toxiproxy.log")) as proxies:
        server = subprocess.Popen(
            [program, "--port", f"127.0.0.1:{port}", "posix", "--sidecar", str(folder / "about"), str(data)],
            env={**os.environ, **own},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            wait(lambda: _listens(port), "the S3 server")
            _ask(proxies.address, "/proxies", name="s3", listen=f"127.0.0.1:{meant}", upstream=f"127.0.0.1:{port}")
            delay = {"latency": DELAY_MS, "jitter": JITTER_MS}
            _ask(proxies.address, "/proxies/s3/toxics", type="latency", stream="downstream", attributes=delay)
            endpoint = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{meant}", **keys}
            yield Root(f"s3://{BUCKET}/root", data / BUCKET / "root", endpoint)
        finally:
            server.terminate()
            server.wait(10)


def _ask(address: str, path: str, **body: Any) -> None:
    request = urllib.request.Request(f"http://{address}{path}", json.dumps(body).encode(), method="POST")
    request.add_header("Content-Type", "application/json")
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10).close()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0
