"""Checks that a Redis server keeps the rows that it has confirmed: refused settings, and settings that lose rows.

Pure: no clock, thread or I/O. Source: redis.io/docs, persistence and eviction; docs/decisions/0081-redis-sink.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ConfigError, Unavailable
from holdfast.sinks.contract.phrases import NOTHING

VERSION_MIN = (6, 0)


@dataclass(frozen=True)
class ServerFacts:
    """Answers of INFO, and of CONFIG GET appendfsync; without those that this user may not ask for."""

    facts: Mapping[str, Any]

    def check(self, where: str) -> None:
        """Refuse a server that cannot keep the promises.

        Raises:
            ConfigError: it is too old, part of a cluster, or evicts rows.
            Unavailable: it is a replica, which takes no writes.
        """
        version = str(self.facts.get("redis_version", "6.0"))
        if tuple(map(int, version.split(".")[:2])) < VERSION_MIN:
            raise _refused(f"{where}: the server has version {version}, needed is 6.0 or newer", "use a newer server")
        if self.facts.get("cluster_enabled"):
            raise _refused(
                f"{where}: the server is a node of a Redis Cluster, which cannot change keys of several slots in one "
                "script",
                "name a server that is not a cluster",
            )
        if (evicts := self._evicts(where)) is not None:
            raise _refused(
                evicts,
                "set maxmemory-policy noeviction; a full server then refuses writes, and delivery waits. For a cache, "
                "use another server",
            )
        if self.facts.get("role") == "slave":
            raise Unavailable(
                f"{where}: the server is a replica, which takes no writes",
                not_done="the job was not started",
                next_step="name the primary in the URL",
            )

    def check_keeps(self, where: str) -> None:
        """Refuse a delivery to a server that has been told to evict rows since the job started.

        Raises:
            Unavailable: as long as it has that setting.
        """
        if (evicts := self._evicts(where)) is not None:
            raise Unavailable(
                evicts,
                not_done=NOTHING,
                next_step="set maxmemory-policy noeviction: delivery retries. If evicted_keys of INFO stats has grown, "
                "rows are missing until the job replaces them",
            )

    def _evicts(self, where: str) -> str | None:
        """Return the keys that the server deletes when its memory is full; None if it deletes none of this sink."""
        policy = str(self.facts.get("maxmemory_policy", "noeviction"))
        if not self.facts.get("maxmemory") or not policy.startswith("allkeys"):
            return None
        return (
            f"{where}: the server has maxmemory-policy {policy}: when its memory is full, it deletes rows, or the tags "
            "that make each delivery happen once"
        )

    def warnings(self, where: str) -> Iterator[str]:
        """Yield settings that let the server lose rows that it has confirmed."""
        effect = "Then a delivery finds its tag gone back, and the job ends (damaged)"
        if not self.facts:
            yield f"{where}: this user may not ask for INFO, so persistence and eviction are not checked"
        elif not self.facts.get("aof_enabled"):
            yield (
                f"{where} has appendonly no: after a crash, rows since its last snapshot are lost. {effect}. "
                "Next: set appendonly yes and appendfsync always"
            )
        elif "appendfsync" not in self.facts:
            yield f"{where}: this user may not ask for CONFIG GET appendfsync, which has to be always; not checked"
        elif self.facts["appendfsync"] != "always":
            yield (
                f"{where} has appendfsync {self.facts['appendfsync']}: after a power failure, confirmed rows of the "
                f"last second or more are lost. {effect}. Next: set appendfsync always"
            )


def _refused(what: str, next_step: str) -> ConfigError:
    return ConfigError(what, not_done="nothing was written there", next_step=next_step)
