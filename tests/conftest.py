"""What all tests share."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
import textwrap
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from http_receiver import HttpReceiver, receiving
from hypothesis import settings
from kafka_server import KafkaServer
from kafka_server import running as running_kafka
from measuring import Measuring
from postgres_server import LOGICAL, PostgresServer, running
from redis_server import RedisServer
from redis_server import running as running_redis
from tiering import ALL, QUICK, ROTATE, Tiering

from holdfast.chaos.live.cluster import QUICK_JAVA
from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH, MODES

# A machine that others use too may be slow at any moment: the time of a test case is no evidence about the code.
settings.register_profile("holdfast", deadline=None)
settings.load_profile("holdfast")

# A shell starts what it runs in the background with interrupts ignored, and processes of tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

CAUGHT = "wrong version"
"""A property of a test: the name of a wrong version that was caught, and after how many seeds or examples."""
WITH_JOBS = ("tests/bench/", "tests/docs/test_on_spark.py", "tests/e2e/", "tests/soak/")
"""Tests that start jobs as processes."""
WITH_SPARK = (
    *("tests/bench/", "tests/soak/"),
    *(
        f"tests/e2e/test_{name}.py"
        for name in ("archive", "cluster", "cron", "demo", "interpreters", "kills", "microbatch", "ports")
    ),
    *(f"tests/e2e/test_{name}.py" for name in ("several_hosts", "spark_frame", "spark_sources", "standbys", "wheel")),
)
"""Tests of which most start Spark; of others, those in microbatch mode do."""
FAILED = pytest.StashKey[bool]()
CLASSES = Path(sys.prefix) / "spark-classes.jsa"
"""Written by tools/spark_classes.py."""


def pytest_configure(config: pytest.Config) -> None:
    """Measure tests. Let Spark start in half of the time; in a benchmark at full size it runs as it does for users."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Measuring())
    tiering = Tiering(config.getoption("--tiers", None), config.getoption("--update-costs", False), WITH_JOBS)
    config.pluginmanager.register(tiering)
    if config.getoption("--bench", "smoke") == "full":
        return
    archive = f" -XX:SharedArchiveFile={CLASSES}" if CLASSES.exists() and CLASSES.stat().st_size else ""
    # A Java with other classes says so at every start; it starts as well.
    # With -Xshare, jobs leave the archives of the user who runs the tests alone.
    options = f"{QUICK_JAVA} -Xshare:auto{archive} -Xlog:cds=off,cds+dynamic=off"
    os.environ.setdefault("SPARK_SUBMIT_OPTS", options)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", QUICK_JAVA)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let jobs on Spark be slow: the limits of `patience` find one that hangs, by the CPU time that it uses."""
    for item in items:
        if item.nodeid.startswith(WITH_JOBS) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(1_200))


def pytest_collection_finish() -> None:
    """Let the collector of garbage leave out modules and tests, which stay: they were a seventh of a run."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let one of several processes run all that starts Spark, one test after the other; other files are not split."""
    from xdist.scheduler import LoadScopeScheduling

    class OneSpark(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.split("::")[0]
            return "spark" if path.startswith(WITH_SPARK) or _in_microbatches(nodeid) else path

    return OneSpark(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say of every wrong version that was hunted after how many seeds or examples it was caught."""
    passed = terminalreporter.stats.get("passed", [])
    caught = [str(value) for report in passed for name, value in report.user_properties if name == CAUGHT]
    if caught:
        said = f"{len(caught)} wrong versions caught, each after so many seeds or examples: {', '.join(sorted(caught))}"
        terminalreporter.write_line(textwrap.fill(said, 120, break_on_hyphens=False))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flags that write files of the repository."""
    parser.addoption("--update-costs", action="store_true", help="write CPU seconds of these tests to tests/costs.txt")
    parser.addoption("--tiers", choices=(ROTATE, ALL, QUICK), help="run some tests, as make test and make quick do")
    parser.addoption("--rewrite-transcripts", action="store_true", help="write down what transcripts now lead to")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note that a test failed, for fixtures that keep what it left."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


def _in_microbatches(nodeid: str) -> bool:
    """Return whether a test starts a job in microbatch mode."""
    return nodeid.startswith(WITH_JOBS) and MICROBATCH in nodeid


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder of the test. Pytest's may be in memory; that of a test that starts jobs is on disk, as jobs have it."""
    if not request.node.nodeid.startswith(WITH_JOBS):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="holdfast-test-"))
    yield folder
    if FAILED not in request.node.stash:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The mode of every job that the test starts as a process; the test runs in all of them.

    Jobs in continuous mode are local processes, unless they are given a master.
    """
    wanted: str = request.param
    monkeypatch.setenv("HOLDFAST_MODE", wanted)
    if wanted == CONTINUOUS:
        monkeypatch.setenv("HOLDFAST_LOCAL", "1")
    return wanted


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A Postgres server for all tests of the session that ask for it."""
    with running() as server:
        yield server


@pytest.fixture(scope="session")
def logical_postgres() -> Iterator[PostgresServer]:
    """A Postgres server whose changes can be captured."""
    with running(extra=LOGICAL) as server:
        yield server


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    """A receiver of HTTP requests."""
    with receiving() as running:
        yield running


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """A Redis server for all tests of the session that ask for it."""
    with running_redis() as server:
        yield server


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaServer]:
    """A Kafka broker for the tests of a module that ask for it; they carry the marker `kafka`.

    A broker with the topics of several modules would use a fifth of a core for the rest of the session.
    """
    with running_kafka() as server:
        yield server


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether transcripts are written and not compared."""
    return bool(request.config.getoption("--rewrite-transcripts"))
