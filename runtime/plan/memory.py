"""How the memory of a worker's state is divided, and the least that a plan needs.

`state_memory` covers all that grows with the state or waits in a worker: tables, changes that no completed epoch holds
yet, channels, the cache and the write buffers of the local RocksDB. The interpreter and its libraries come on top.
Output that waits for delivery (`staged_bytes_max`) is not part of it: it is in the root, and read object by object.

Pure: no clock, thread or I/O.
Source: docs/decisions/0039-state-larger-than-memory.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.errors import ConfigError
from holdfast.runtime.plan.compiler import Plan

MIB = 1 << 20
ROCKS_SHARE, UNFINISHED_SHARE = 8, 4
"""Parts of the memory that channels leave: 1/ROCKS_SHARE is for RocksDB, 1/UNFINISHED_SHARE for unfinished changes."""
ROCKS_BYTES_MAX = 192 * MIB
"""With more, restores are not faster: RocksDB is read once, and written in small batches."""
ROCKS_BYTES_MIN = 16 * MIB
"""With less, RocksDB writes files so small that it refuses writes until it has merged them."""
TABLE_BYTES_MIN = 16 * MIB
"""For each operator with state: regions of its slabs and index, and the share that may become resident at a time."""


OVERHEAD_FACTOR, OVERHEAD_MIN, HEAP = "0.1", "384m", "1g"
"""Spark's defaults for the memory of a container beside the Java heap, and for the heap.

Kubernetes has the factor 0.4 for Python programs only in cluster mode. There spark-submit writes it into the driver's
configuration, so a configuration without a factor belongs to a driver in client mode, whose executors get 0.1.
Source: Spark 4.3.0, BasicDriverFeatureStep.getAdditionalPodSystemProperties, BasicExecutorFeatureStep.
"""
_SIZE = re.compile(r"(\d+)\s*([bkmgtp]?)b?", re.IGNORECASE)
_POWERS = {"b": 0, "k": 1, "m": 2, "": 2, "g": 3, "t": 4, "p": 5}
"""Powers of 1,024; a number without a unit counts MiB."""


@dataclass(frozen=True)
class ContainerShare:
    """Memory that an executor's container leaves each worker beside the Java heap.

    Args:
        size: Bytes.
        origin: The settings of Spark that it was computed from.
        workers: How many workers share it.
    """

    size: int
    origin: str
    workers: int

    @property
    def default(self) -> int:
        """The default of `state_memory`: the other half is for the interpreter, batches and the Java process."""
        return self.size // 2


@dataclass(frozen=True)
class Budget:
    """The parts of `state_memory`, in bytes; the tables may use all that the others leave."""

    total: int
    channels: int
    """Maximum that may wait in the channels to and from other workers."""

    @property
    def rocks(self) -> int:
        """RocksDB's block cache, to which its write buffers are charged; in microbatch mode, blocks of the shuffle."""
        return max(ROCKS_BYTES_MIN, min(ROCKS_BYTES_MAX, (self.total - self.channels) // ROCKS_SHARE))

    @property
    def unfinished(self) -> int:
        """Changes that are dirty, or frozen and not committed; above it sources stop, or the next epoch reads less."""
        return (self.total - self.channels) // UNFINISHED_SHARE

    @property
    def early_from(self) -> int:
        """With this many bytes dirty, a worker asks for a barrier before it is due: the freeze will double them."""
        return self.unfinished // 2

    @property
    def tables(self) -> int:
        """Records and indexes; larger tables are swapped out."""
        return self.total - self.channels - self.rocks - self.unfinished


def channel_bytes(plan: Plan, parallelism: int, channel_bytes_max: int) -> int:
    """Return the bytes that may wait in the channels between one worker and the others."""
    return 2 * (parallelism - 1) * channel_bytes_max * sum(1 for edge in plan.edges if edge.key)


def least(plan: Plan, parallelism: int, channel_bytes_max: int) -> int:
    """Return the least `state_memory` with which a worker can run this plan."""
    tables = TABLE_BYTES_MIN * len(plan.operators)
    shared = max(2 * ROCKS_BYTES_MIN + 2 * tables, ROCKS_BYTES_MIN * ROCKS_SHARE // 2)
    return channel_bytes(plan, parallelism, channel_bytes_max) + shared


def too_little_memory(
    plan: Plan, state_memory: int | None, parallelism: int, channel_bytes_max: int
) -> ConfigError | None:
    """Return why a budget is refused in which the plan cannot run.

    Args:
        parallelism: Workers that exchange records; 1 where they do it through Spark's shuffle.
    """
    needed_bytes = least(plan, parallelism, channel_bytes_max)
    if state_memory is None or state_memory >= needed_bytes:
        return None
    channels = channel_bytes(plan, parallelism, channel_bytes_max)
    waiting = (
        f"{_mib(channels)} for data that waits in channels to other workers (channel_bytes_max), " if channels else ""
    )
    return ConfigError(
        f"state_memory is {_mib(state_memory)}, and every worker or task of job {plan.app!r} needs at least "
        f"{_mib(needed_bytes)}: {waiting}{_mib(needed_bytes - channels)} for {len(plan.operators)} tables and buffers",
        not_done="the job was not started",
        next_step=f"set state_memory to at least {_mib(needed_bytes)}"
        + (", or lower channel_bytes_max or parallelism" if channels else ""),
    )


def check_container(plan: Plan, state_memory: int | None, container: ContainerShare | None) -> None:
    """Refuse executors whose containers leave their workers too little memory.

    Raises:
        ConfigError: less than the plan needs without channels, or less than `state_memory`.
    """
    if container is None or not plan.operators:
        return
    needed_bytes, share_text = least(plan, 1, 0), f"{_mib(container.size)} to each worker ({container.origin})"
    if container.size < needed_bytes:
        raise ConfigError(
            f"the containers of the executors leave {share_text}, and job {plan.app!r} needs at least "
            f"{_mib(needed_bytes)} there "
            "for its tables",
            not_done="nothing was read",
            next_step="raise spark.executor.memoryOverhead, or give each executor fewer cores (spark.executor.cores)",
        )
    if state_memory is not None and state_memory > container.size:
        raise ConfigError(
            f"state_memory is {_mib(state_memory)}, but the containers of the executors leave {share_text}",
            not_done="nothing was read",
            next_step="lower state_memory, or raise spark.executor.memoryOverhead",
        )


def _mib(size: int) -> str:
    return f"{-(-size // MIB):,}MiB"


def container_share(conf: Mapping[str, str], workers: int) -> ContainerShare | None:
    """Return the memory that executors' containers leave each worker; None if there are no containers of a known size.

    Args:
        conf: Spark's configuration.
        workers: Workers of the job.

    Source: Spark configuration; YARN and Kubernetes kill an executor whose container exceeds the sum of these settings.
    """
    master = conf.get("spark.master", "")
    if master != "yarn" and not master.startswith("k8s://"):
        return None
    try:
        overhead, origin = _overhead(conf, kubernetes=master != "yarn")
        python = _python_bytes(conf, kubernetes=master != "yarn")
        slots = int(conf.get("spark.executor.cores", "1")) // max(1, int(conf.get("spark.task.cpus", "1")))
    except ValueError:
        return None  # Spark refuses the value itself
    workers = max(1, min(workers, slots))
    origin += " + spark.executor.pyspark.memory" if python else ""
    return ContainerShare((overhead + python) // workers, origin, workers)


def _python_bytes(conf: Mapping[str, str], *, kubernetes: bool) -> int:
    """Return the bytes for Python that Spark adds to the container.

    On Kubernetes only in cluster mode, which sets the type; on YARN spark-submit marks every Python program.
    Source: Spark 4.3.0, BasicExecutorFeatureStep.isPythonApp, DriverCommandFeatureStep, SparkSubmit.
    """
    added = not kubernetes or conf.get("spark.kubernetes.resource.type") == "python"
    return _spark_bytes(conf.get("spark.executor.pyspark.memory", "0")) if added else 0


def _overhead(conf: Mapping[str, str], *, kubernetes: bool) -> tuple[int, str]:
    """Return the bytes beside heap and Python's own limit, and the settings that they come from."""
    if given := conf.get("spark.executor.memoryOverhead"):
        return _spark_bytes(given), "spark.executor.memoryOverhead"
    names = ["spark.executor.memoryOverheadFactor", *(["spark.kubernetes.memoryOverheadFactor"] if kubernetes else [])]
    name = next((name for name in names if name in conf), names[0])
    heap = _spark_bytes(conf.get("spark.executor.memory", HEAP))
    scaled_bytes = int(heap * float(conf.get(name, OVERHEAD_FACTOR)))
    least = _spark_bytes(conf.get("spark.executor.minMemoryOverhead", OVERHEAD_MIN))
    if scaled_bytes < least:
        return least, "the minimum of spark.executor.memoryOverhead"
    return scaled_bytes, f"{name} of spark.executor.memory"


def _spark_bytes(given: str) -> int:
    """Return the bytes of a size as Spark writes it, such as "512m". Raises ValueError."""
    match = _SIZE.fullmatch(given.strip())
    if match is None:
        raise ValueError(given)
    return int(int(match[1]) * 1024 ** _POWERS[match[2].lower()])
