"""`make soak`: run tests for hours that are too long for `make test`.

HOURS (2 by default) is the total time. One process runs the growth test for a quarter of it, then the simulator and
live faults; another one runs the slow tests, and the total takes longer if those do. The growth test reads at a fixed
rate (RATE, records a second), far below the capacity of two cores: sizes follow the rate, which must not follow the
load of the machine. It needs half an hour to be judged, so HOURS must be at least 2.

Exit status: 0 if every part passed, else 1; the last lines name those that did not.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

HOURS_LEAST = 2.0
GROWTH_SHARE = 0.25
GROWTH_RATE = "500000"
GROWTH_TEST = "tests/soak/test_growth.py"
FOLDER = Path("chaos-soak")
TESTS_LOG = FOLDER / "slow-tests.log"
LOG_LINES_SHOWN = 30
PYTEST = (sys.executable, "-m", "pytest", "-q", "--timeout=0", "-m", "slow", "--durations=30")


def main(live: Sequence[str]) -> int:
    """Run all parts.

    Args:
        live: Arguments of `holdfast chaos soak` for its live runs.
    """
    text = os.environ.get("HOURS") or f"{HOURS_LEAST:g}"
    hours = float(text) if text.replace(".", "", 1).isdecimal() else 0.0
    if hours < HOURS_LEAST:
        print(f"HOURS={text} is not a number of at least 2: growth needs a quarter of it, half an hour.")
        print("Nothing was run. Next: make soak HOURS=2")
        return 2
    rate = os.environ.get("RATE") or GROWTH_RATE
    if not rate.isdecimal() or int(rate) == 0:
        print(f"RATE={rate} is not a number of records a second. Nothing was run. Next: make soak RATE={GROWTH_RATE}")
        return 2
    FOLDER.mkdir(exist_ok=True)
    growth = hours * GROWTH_SHARE
    print(f"slow tests: see {TESTS_LOG}", flush=True)
    tests = [*PYTEST, "--ignore", GROWTH_TEST, "tests"]
    with TESTS_LOG.open("w") as log, _started(tests, _environment(hours), log) as running:
        ended = _one_by_one(growth, rate, hours - growth, live)
        ended["slow tests"] = running.wait()
    print(*TESTS_LOG.read_text().splitlines()[-LOG_LINES_SHOWN:], sep="\n")
    for part, status in ended.items():
        print(f"{part}: {'passed' if status == 0 else f'FAILED (exit status {status})'}")
    return int(any(ended.values()))


def _one_by_one(growth: float, rate: str, rest: float, live: Sequence[str]) -> dict[str, int]:
    """Run the growth test, then the simulator and live faults, for this many hours; return the exit status of each."""
    print(f"growth of a job: {growth:g} h at {int(rate):,} records/s", flush=True)
    with _started([*PYTEST, "-s", GROWTH_TEST], {**_environment(growth), "RATE": rate}) as test:
        ended = {"growth": test.wait()}
    print(f"simulator and live faults: {rest:g} h", flush=True)
    command = [str(Path(sys.executable).with_name("holdfast")), "chaos", "soak", "--hours", f"{rest:g}"]
    soak = subprocess.run([*command, "--folder", str(FOLDER), *live], check=False)
    return {**ended, "simulator and live faults": soak.returncode}


@contextmanager
def _started(
    command: Sequence[str], environment: dict[str, str], log: IO[str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process, which ends with the block, with all that it has started."""
    process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def _environment(hours: float) -> dict[str, str]:
    return {**os.environ, "HOURS": f"{hours:g}"}


def _end(*_: object) -> None:
    sys.exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    sys.exit(main(sys.argv[1:]))
