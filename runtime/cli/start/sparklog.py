"""Keeps Spark's own log off the terminal.

Spark prints warnings at every start, and a Java stack trace for every lost worker: both are normal here, and bury the
few lines that matter. They go to a file instead, which is removed unless the run ends with an error. A user who has
configured Spark's logging, or starts the job with spark-submit, gets that configuration.

Source: Spark, SPARK_SUBMIT_OPTS; Log4j 2, configuration with properties.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import ConfigError, Fenced
from holdfast.runtime.cli.reporting import advise

VARIABLE = "SPARK_SUBMIT_OPTS"
_PROPERTIES = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""


@contextmanager
def diverted(job: str, *, enabled: bool) -> Iterator[None]:
    """Make a JVM that starts inside this context log to a file; print the file's name if the context fails."""
    if not enabled or _configured():
        yield
        return
    folder = Path(tempfile.mkdtemp(prefix=f"holdfast-{job}-"))
    properties, log = folder / "log4j2.properties", folder / "spark.log"
    properties.write_text(_PROPERTIES.format(path=log))
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = f'{before or ""} "-Dlog4j2.configurationFile={properties}"'.strip()
    keep = True
    try:
        yield
        keep = False
    except (ConfigError, Fenced, KeyboardInterrupt):
        keep = False
        raise
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
        if keep and log.exists() and log.stat().st_size:
            advise(f"Spark's own log is in {log}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _configured() -> bool:
    """Return whether the JVM runs already, or its logging is configured."""
    if "PYSPARK_GATEWAY_PORT" in os.environ or "log4j" in os.environ.get(VARIABLE, ""):
        return True
    folders = [os.environ.get("SPARK_CONF_DIR"), os.path.join(os.environ.get("SPARK_HOME", ""), "conf")]
    return any(folder and os.path.exists(os.path.join(folder, "log4j2.properties")) for folder in folders)
