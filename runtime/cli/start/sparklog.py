"""Keeps Spark's own log off the terminal.

Spark prints warnings at every start, and a Java stack trace for every lost worker: both are normal here, and bury the
few lines that matter. They go to a file instead, which is removed unless a run ends with an error. A user who has
configured Spark's logging, or starts the job with spark-submit, gets that configuration.

The JVM reads its configuration once and lives as long as the process. So there is one file for all runs of a process,
and it stays until the process exits. The next process removes the files of a killed one.

Source: Spark, SPARK_SUBMIT_OPTS; Log4j 2, configuration with properties.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from holdfast.errors import ConfigError, Fenced
from holdfast.runtime.cli.reporting import advise

VARIABLE = "SPARK_SUBMIT_OPTS"
_PREFIX, _LOCK, _LOCK_UNLOCKED = "holdfast-spark-", "lock", "lock.new"
NEWS_WITHIN_S = 1.0
"""How long a run that failed waits for Spark to log why."""
# runtime/spark/launch.py silences the root logger, for users whose Spark logs to the terminal. Here Spark's logger has
# its own level, so the file still gets its warnings, but not those of every start: a file that is named has news.
_PROPERTIES = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
logger.spark.name = org.apache.spark
logger.spark.level = warn
logger.host.name = org.apache.spark.util.Utils
logger.host.level = error
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""


@contextmanager
def diverted(*, enabled: bool) -> Iterator[None]:
    """Make a JVM that starts inside this context log to a file; print the file's name if the context fails."""
    if not enabled or _configured():
        yield
        return
    place = _place()
    size_before = place.size()
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = f'{before or ""} "-Dlog4j2.configurationFile={place.properties}"'.strip()
    is_failure = True
    try:
        yield
        is_failure = False
    except (ConfigError, Fenced, KeyboardInterrupt):
        is_failure = False
        raise
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
        if is_failure and place.has_news(size_before):
            place.keep()
            advise(f"Spark's own log is in {place.log}")


class _Place:
    """The folder with the log of this process's JVM; removed when the process exits unless it is kept.

    It holds a file that is locked for as long as the process lives, and that a folder to be kept does not have. The
    file gets its name only once it is locked: another process would assume that an unlocked file belongs to a killed
    process. Where files cannot be locked, it never gets that name, and the folder of a killed process stays.
    """

    def __init__(self) -> None:
        self.folder, self._kept = Path(tempfile.mkdtemp(prefix=_PREFIX)), False
        unlocked = self.folder / _LOCK_UNLOCKED
        self._locked = os.open(unlocked, os.O_RDWR | os.O_CREAT, 0o600)
        if _take(self._locked):
            unlocked.rename(self.folder / _LOCK)
        _remove_left(self.folder.parent)
        self.properties, self.log = self.folder / "log4j2.properties", self.folder / "spark.log"
        self.properties.write_text(_PROPERTIES.format(path=self.log))
        atexit.register(self._leave)

    def keep(self) -> None:
        """Leave the folder where it is."""
        self._kept = True
        for name in (_LOCK, _LOCK_UNLOCKED):
            (self.folder / name).unlink(missing_ok=True)

    def size(self) -> int:
        """Return how much is logged so far, in bytes."""
        return self.log.stat().st_size if self.log.exists() else 0

    def has_news(self, written: int) -> bool:
        """Return whether more is logged than this; Spark may notice a lost worker a little later than the driver."""
        deadline, pause = time.monotonic() + NEWS_WITHIN_S, threading.Event()
        while self.size() <= written and time.monotonic() < deadline:
            pause.wait(0.02)
        return self.size() > written

    def _leave(self) -> None:
        if not self._kept:
            shutil.rmtree(self.folder, ignore_errors=True)


def _remove_left(parent: Path) -> None:
    """Remove the folders of processes that were killed."""
    for lock in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            descriptor = os.open(lock, os.O_RDWR)
        except OSError:  # removed meanwhile, or of another user
            continue
        try:
            if (
                _take(descriptor) and lock.exists()
            ):  # else its process lives, or has kept the folder since it was opened
                shutil.rmtree(lock.parent, ignore_errors=True)
        finally:
            os.close(descriptor)


def _take(opened: int) -> bool:
    """Lock a file; return False if another process has locked it, or the file system has no locks."""
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@cache
def _place() -> _Place:
    return _Place()


def _configured() -> bool:
    """Return whether the JVM runs already, or its logging is configured."""
    if "PYSPARK_GATEWAY_PORT" in os.environ or "log4j" in os.environ.get(VARIABLE, ""):
        return True
    folders = [os.environ.get("SPARK_CONF_DIR"), os.path.join(os.environ.get("SPARK_HOME", ""), "conf")]
    return any(folder and os.path.exists(os.path.join(folder, "log4j2.properties")) for folder in folders)
