"""How the memory of a worker's state is divided, and the least that a plan needs.

`state_memory` covers all that grows with the state or waits in a worker: tables, changes that no completed epoch holds
yet, channels, the cache and the write buffers of the local RocksDB. The interpreter and its libraries come on top.
Output that waits for delivery (`staged_bytes_max`) is not part of it: it is in the root, and read object by object.

Pure: no clock, thread or I/O.
Source: docs/design/0039-state-larger-than-memory.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import ConfigError
from holdfast.runtime.plan.compiler import Plan

MIB = 1 << 20
ROCKS_SHARE, UNFINISHED_SHARE = 8, 4
"""One part in so many of what channels leave is for RocksDB, and for changes that no completed epoch holds."""
ROCKS_BYTES_MAX = 192 * MIB
"""With more, restores are not faster: RocksDB is read once, and written in small batches."""
ROCKS_BYTES_MIN = 16 * MIB
"""With less, RocksDB writes files so small that it refuses writes until it has merged them."""
TABLE_BYTES_MIN = 16 * MIB
"""For each operator with state: regions of its slabs and index, and the share that may become resident at a time."""


@dataclass(frozen=True)
class Budget:
    """The parts of `state_memory`, in bytes; the tables may use all that the others leave."""

    total: int
    channels: int
    """What may wait in the channels to and from other workers, at most."""

    @property
    def rocks(self) -> int:
        """RocksDB's block cache, to which its write buffers are charged."""
        return max(ROCKS_BYTES_MIN, min(ROCKS_BYTES_MAX, (self.total - self.channels) // ROCKS_SHARE))

    @property
    def unfinished(self) -> int:
        """Changes that are dirty, or frozen and not committed; above it sources stop."""
        return (self.total - self.channels) // UNFINISHED_SHARE

    @property
    def early_from(self) -> int:
        """With so many bytes dirty, a worker asks for a barrier before it is due: the freeze will double them."""
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


def check_state_memory(plan: Plan, state_memory: int | None, parallelism: int, channel_bytes_max: int) -> None:
    """Refuse a budget in which the plan cannot run.

    Raises:
        ConfigError: it is smaller than what the plan needs.
    """
    needed = least(plan, parallelism, channel_bytes_max)
    if state_memory is None or state_memory >= needed:
        return
    channels = channel_bytes(plan, parallelism, channel_bytes_max)
    raise ConfigError(
        f"state_memory is {_mib(state_memory)}, and every worker of job {plan.app!r} needs at least {_mib(needed)}: "
        f"{_mib(channels)} for what waits in channels to other workers (channel_bytes_max), "
        f"{_mib(needed - channels)} for {len(plan.operators)} tables and the local RocksDB",
        not_done="the job was not started",
        next_step=f"set state_memory to at least {_mib(needed)}, or lower channel_bytes_max or parallelism",
    )


def _mib(size: int) -> str:
    return f"{-(-size // MIB):,}MiB"
