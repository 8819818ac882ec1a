"""Start worker processes as ordinary resident Spark tasks, each its own one-partition job.

A failed Spark barrier stage is never retried and kills healthy tasks; a separate job per worker
leaves the others running and is resubmitted in 0.3 to 0.6 s.

Source: DESIGN section 3; measured there.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pyspark import RDD, SparkConf, SparkContext
from pyspark.serializers import BatchedSerializer, CPickleSerializer

import holdfast
from holdfast.errors import ConfigError, Unavailable
from holdfast.runtime.driver.state import Site
from holdfast.runtime.processes.host import WorkerTask, host_worker
from holdfast.runtime.spark import reach
from holdfast.runtime.spark.jvm import note_context, start_jvm, uninterrupted

_log = logging.getLogger(__name__)

_JAVA = (
    "install Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless) and check JAVA_HOME; "
    "or run the job with --local, which needs neither Spark nor Java"
)
SLOTS_WAIT_S = 60.0
"""How long to wait for executors with slots for all subtasks and standbys. Each may take 20 s to start."""
SLOTS_NOTED_S = 5.0
"""After this time the user is shown the reason of the wait."""
_CONF = {
    "spark.locality.wait": "0",
    "spark.locality.wait.node": "2s",  # of use where a launch avoids hosts: a slot elsewhere may be free in a moment
    "spark.speculation": "false",
    "spark.task.maxFailures": "1",
    "spark.task.reaper.enabled": "true",
    "spark.task.reaper.killTimeout": "20s",
    "spark.python.worker.reuse": "true",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.python.daemon.module": "holdfast.runtime.spark.daemon",
    "spark.scheduler.mode": "FAIR",
    "spark.excludeOnFailure.enabled": "false",
}


def start_context(
    name: str,
    master: str | None,
    workers: int,
    settings: Mapping[str, str] | None = None,
    note: Callable[[str], None] = _log.info,
) -> SparkContext:
    """Return the Spark context: that of spark-submit, or a new one.

    Args:
        workers: How many tasks run at the same time; without a master there is a slot for each, and one more.
        settings: Defaults that replace those for resident workers, for settings that the user did not give.
        note: Receives a line for the user at each step.

    Raises:
        ConfigError: the master's URL does not name a host and port.
        Unavailable: Spark cannot be started, for instance without Java, or its master accepts no connection.
    """
    if SparkContext._active_spark_context is None:
        note("starting Spark: its Java process")
        share_environment()
        # SparkConf reads spark-defaults.conf only with a JVM.
        try:
            start_jvm()
        except Exception as error:  # no Java, or a broken installation
            raise _no_spark(error) from error
    conf = SparkConf()
    if master is not None:
        conf.setMaster(master)
    elif not conf.contains("spark.master"):
        conf.setMaster(f"local[{workers + 1}]")
    if not conf.contains("spark.app.name"):
        conf.setAppName(f"holdfast-{name}")
    for key, value in {**_CONF, **(settings or {})}.items():
        conf.setIfMissing(key, value)
    if (conf.get("spark.master") or "").startswith("local"):
        conf.setIfMissing("spark.driver.host", "127.0.0.1").setIfMissing("spark.driver.bindAddress", "127.0.0.1")
    else:
        conf.setIfMissing("spark.executorEnv.PYTHONPATH", executor_path(conf.get("spark.submit.pyFiles") or ""))
    conf.setIfMissing("spark.ui.enabled", "false")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        # With resident tasks Spark's progress bar never ends; users of spark-submit may have requested it.
        conf.set("spark.ui.showConsoleProgress", "false")
    if SparkContext._active_spark_context is None:
        note(f"starting Spark: its context on {conf.get('spark.master')}")
        reach.check(conf.get("spark.master") or "")
    try:
        context = uninterrupted(lambda: SparkContext.getOrCreate(conf))
    except Exception as error:  # py4j raises several kinds; each means that Spark did not start
        raise _no_spark(error) from error
    note_context()
    # A killed worker fails its Spark job; the Holdfast job reports the consequence, in one line.
    context.setLogLevel("FATAL")
    return context


def check_java(environment: Mapping[str, str]) -> None:
    """Refuse to start Spark without Java; Spark itself would take longer to report that.

    Raises:
        Unavailable: there is no Java where Spark's scripts look for it.
    """
    if SparkContext._active_spark_context is not None or "PYSPARK_GATEWAY_PORT" in environment:
        return
    home = environment.get("JAVA_HOME")
    if shutil.which(str(Path(home) / "bin" / "java") if home else "java", path=environment.get("PATH")) is None:
        where = f"in JAVA_HOME={home}" if home else "on the PATH, and JAVA_HOME is not set"
        raise Unavailable(
            f"Spark needs Java, and there is none {where}",
            not_done="no record was read; missing targets were created and are empty",
            next_step=_JAVA,
        )


def share_environment() -> None:
    """Let workers on this machine run the driver's Python and import its modules, unless the user set these."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    package = str(Path(holdfast.__file__).resolve().parent.parent)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if package not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([package, *paths])


def executor_path(py_files: str) -> str:
    """Return the module search path for executors, which their Python daemon needs before the first task.

    Spark puts `--py-files` on the path only inside a task, later than the daemon imports Holdfast. But by then the
    files are in the executor's working directory, so relative names find them. Without such files, executors use the
    driver's path: they may have the same folders, and a missing folder does no harm.

    Args:
        py_files: Value of `spark.submit.pyFiles`.
    """
    names = [file.rsplit("/", 1)[-1] for file in py_files.split(",") if file.endswith((".zip", ".egg"))]
    return os.pathsep.join(names or [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path])


def driver_host(context: SparkContext) -> str:
    """Return the address at which executors reach this machine."""
    return str(context.getConf().get("spark.driver.host", "127.0.0.1"))


def check_slots(context: SparkContext, needed: int, standbys: int = 0, note: Callable[[str], None] = _log.info) -> int:
    """Wait for executors, then refuse a cluster that cannot host all subtasks at the same time.

    Args:
        note: Receives a line for the user when executors are late.

    Returns:
        How many standbys have a slot too.

    Raises:
        ConfigError: too few slots; gives needed, found and the setting to change.
        Unavailable: Spark has stopped in the meantime.
    """
    began, at_most, is_late = time.monotonic(), most_slots(context.master or ""), False
    target_slots = needed + standbys if at_most is None else min(needed + standbys, at_most)
    try:
        while (slots := context.defaultParallelism) < target_slots and (
            waited := time.monotonic() - began
        ) < SLOTS_WAIT_S:
            if waited > SLOTS_NOTED_S and not is_late:
                is_late = True
                note(f"waiting for Spark's executors: {slots} task slots, {target_slots} wanted")
            time.sleep(0.1)
    except Exception as error:  # py4j raises several kinds; each means that Spark stopped: no master took the app
        raise _no_spark(error) from error
    if slots < needed:
        raise ConfigError(
            f"the job needs {needed} task slots at the same time, but Spark at {context.master} has {slots}",
            not_done="no worker was started and nothing was read",
            next_step=f"run with --parallelism {slots}, or give Spark more cores (here: --master 'local[{needed}]')",
        )
    return min(standbys, slots - needed)


def most_slots(master: str) -> int | None:
    """Return how many task slots a master can ever have; None if its URL does not show it."""
    if master == "local" or master.startswith("local["):
        return 0  # its only process has all of its slots from the start
    cluster = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master)
    return int(cluster[1]) * int(cluster[2]) if cluster else None


class SparkHost:
    """Submits and cancels the Spark jobs that host workers."""

    def __init__(self, context: SparkContext, task: WorkerTask, ended: Callable[[int, str | None], None]) -> None:
        self._context, self._ended = context, ended
        self._prefix = f"holdfast-{task.plan.app}-{id(self)}"
        self._warming = threading.Lock()
        self._launched = 0

        def run(launches: Iterable[int]) -> Iterator[str]:
            (launch,) = list(launches)  # consumed, so that Spark reuses this Python process
            yield host_worker(task, launch)

        self._run = run

    def launch(self, number: int, avoid: Sequence[Site]) -> None:
        """Start one worker; the end of its Spark job is reported, whatever the cause."""
        self._launched = number
        threading.Thread(target=self._submit, args=(number, avoid), name=f"launch-{number}", daemon=True).start()

    def cancel(self, number: int) -> None:
        """End the worker's Spark job; Spark kills the process if it does not exit."""
        self._context.cancelJobGroup(self._group(number))

    def close(self, *, hurry: bool) -> None:
        """End the Spark jobs of all workers; Spark waits for none."""
        for number in range(1, self._launched + 1):
            self.cancel(number)

    def warm_up(self, workers: int) -> None:
        """Run empty tasks in the background on the slots that this number of workers leaves free.

        The first Python task of an executor starts its daemon, which takes a second or two; a worker that has to start
        there after a failure then saves that time. The tasks are submitted on a separate thread, because Spark may have
        stopped. A call has no effect while a warm-up is in progress.
        """
        if not is_one_process(self._context) and self._warming.acquire(blocking=False):
            threading.Thread(target=self._do_nothing, args=(workers,), name="warm-up", daemon=True).start()

    def _do_nothing(self, workers: int) -> None:
        context = self._context
        try:
            slots = context.defaultParallelism - workers
            if slots > 0:
                context.setJobGroup(f"{self._prefix}-warm-up", "holdfast warms up free slots", interruptOnCancel=True)
                context.parallelize(range(slots), slots).mapPartitions(_nothing).collect()
        except Exception as error:  # noqa: BLE001 - nothing depends on it; what is wrong with Spark shows elsewhere
            _log.info("free slots were not warmed up: %s", first_line(error))
        finally:
            self._warming.release()

    def _submit(self, number: int, avoid: Sequence[Site]) -> None:
        context = self._context
        context.setJobGroup(self._group(number), f"holdfast worker {number}", interruptOnCancel=True)
        try:
            placed(context, number, avoid).mapPartitions(self._run).collect()
        except Exception as error:  # noqa: BLE001 - any end of the job means that the worker has ended
            self._ended(number, first_line(error))
        else:
            self._ended(number, None)

    def _group(self, number: int) -> str:
        return f"{self._prefix}-{number}"


def placed(context: SparkContext, number: int, avoid: Sequence[Site]) -> RDD[int]:
    """Return the number as a dataset of one partition, whose task Spark prefers to run elsewhere than in these places.

    Spark waits for a free slot there for `spark.locality.wait.node`, then takes any.
    """
    preferred_hosts = elsewhere(executor_hosts(context), avoid) if avoid else []
    if not preferred_hosts:
        return context.parallelize([number], 1)
    jvm, serializer = context._jvm, CPickleSerializer()
    assert jvm is not None
    scala = jvm.scala.jdk.javaapi.CollectionConverters
    data: bytes = serializer.dumps([number])  # type: ignore[no-untyped-call]
    element = jvm.scala.Tuple2(data, scala.asScala(preferred_hosts).toSeq())
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
    made = context._jsc.sc().makeRDD(scala.asScala([element]).toSeq(), tag).toJavaRDD()
    return RDD(made, context, BatchedSerializer(serializer))  # type: ignore[no-untyped-call]


def executor_hosts(context: SparkContext) -> list[str]:
    """Return the hosts of the executors, as Spark names them."""
    listed = context._jsc.sc().statusStore().executorList(True)  # those that are alive, and the driver
    found = (listed.apply(number) for number in range(listed.size()))
    return sorted({str(each.hostPort()).rpartition(":")[0] for each in found if each.id() != "driver"})


def elsewhere(
    hosts: Sequence[str], avoid: Sequence[Site], resolve: Callable[[str], str] = socket.gethostbyname
) -> list[str]:
    """Return the hosts that are none of these places; if none is left, those that are not the worst of them.

    Args:
        hosts: Names or addresses, as Spark has them.
        resolve: Returns the address of a host. Raises OSError.

    Returns:
        Empty if there is no choice.
    """
    addresses = {host: _address_of(host, resolve) for host in hosts}
    for count in range(len(avoid), 0, -1):
        names, places = {name for name, _ in avoid[:count]}, {address for _, address in avoid[:count]}
        left = [host for host in hosts if host not in names and addresses[host] not in places]
        if left:
            return left if len(left) < len(hosts) else []
    return []


def _address_of(host: str, resolve: Callable[[str], str]) -> str | None:
    try:
        return resolve(host)
    except OSError:
        return None


def is_one_process(context: SparkContext) -> bool:
    return (context.master or "").startswith("local[")


def _nothing(numbers: Iterable[int]) -> Iterator[int]:
    return iter(())


_CAUSE = re.compile(r"(?:[A-Za-z]\w*(?:Error|Exception)|exited)\b[^:]*: \S.*")


_LOST = re.compile(r"ExecutorLostFailure .*?Reason: (\S.*)")
_OWN = re.compile(r"\bholdfast\.errors\.([A-Z]\w*: \S.*)")
_NEXT = "Next: "
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*([\w.]+(?:: .*)?)$", re.MULTILINE)
"""A traceback of Python; what it ends with, an error's type and message, is the first line that is not indented."""


def first_line(error: Exception) -> str:
    """Return the line of a long Java or Python report that names the cause, with the advice of a Holdfast error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for at in reversed(range(len(lines))):  # the last error ended the worker; its causes come before it
        if line_match := _OWN.search(lines[at]):
            advice = next((line for line in lines[at + 1 :] if line.startswith(_NEXT)), "")
            what = line_match.group(1).rstrip(".")[:300]
            return f"{what}; {advice.removeprefix(_NEXT)[:200]}" if advice else what
    if raised := _RAISED.findall(str(error)):
        return str(raised[-1])[:300]
    causes = [m.group(0) for line in lines if "SparkException: Job aborted" not in line and (m := _CAUSE.search(line))]
    if not causes and (lost := next((line_match for line in lines if (line_match := _LOST.search(line))), None)):
        return f"its executor was lost: {lost.group(1)}"[:300]
    own = [cause for cause in causes if not cause.startswith("SparkException")]
    return (own or causes or lines or [type(error).__name__])[0][:300]


def _no_spark(error: Exception) -> Unavailable:
    no_jvm = "JAVA_GATEWAY_EXITED" in str(error)
    return Unavailable(
        f"Spark did not start: {first_line(error).rstrip('.')}",
        not_done="no record was read; missing targets were created and are empty",
        next_step=(_JAVA if no_jvm else "see the messages above; holdfast doctor checks Java and Spark"),
    )
