"""Servers of tests end with the process that started them, whatever ends that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from changes import ROOT
from patience import wait

from holdfast.runtime.wire.processes import is_gone

pytestmark = pytest.mark.thorough

FOLDERS = ("src", "tests/bench", "tests/shared")
START = {
    "postgres": "from postgres_server import running\nstarted = running()",
    "redis": "from redis_server import running\nstarted = running()",
    "s3": "from s3_store import s3_store\nfrom pathlib import Path\nstarted = s3_store(Path(sys.argv[1]))",
}
USE = "import sys\n{start}\nwith started:\n    print(flush=True)\n    sys.stdin.read()"


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
@pytest.mark.parametrize(
    "server",
    [
        "postgres",
        pytest.param("redis", marks=pytest.mark.redis),
        pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.toxiproxy]),
    ],
)
def test_a_server_ends_with_the_process_that_started_it(server: str, end: signal.Signals, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": ":".join(str(ROOT / each) for each in FOLDERS)}
    code = USE.format(start=START[server])
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], env=environment, stdin=-1, stdout=-1, stderr=-1
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n", "the server has started"
        below = psutil.Process(process.pid).children(recursive=True)
        assert below
        process.send_signal(end)
        wait(lambda: all(map(is_gone, below)), f"the end of {[each.name() for each in below if not is_gone(each)]}")
