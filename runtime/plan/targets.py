"""Which targets of a plan are one and the same, and which ones its sources read.

Links and the spellings of paths, URLs and servers are recognised. Two names of a host that only a name server knows to
be one are not: a target that belongs to one sink refuses the second one when it delivers.

Pure, but for links in paths. Source: docs/decisions/0086-fork.md, 0095, 0104, 0115-own-output.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from holdfast.errors import ConfigError, Where
from holdfast.runtime.plan.model import Plan, SinkSpec
from holdfast.runtime.plan.source import Source
from holdfast.runtime.plan.topic import outputs_of
from holdfast.sinks.contract.immediate import IMMEDIATE
from holdfast.sinks.contract.sink import Sink
from holdfast.storage.kafka.place import LOOPBACK, is_one_cluster
from holdfast.storage.paths import is_same_place

_PORT = re.compile(r"(.+):(\d+)")
POSTGRES_PORT = "5432"


def target_of(sink: Sink) -> Mapping[str, str]:
    """Return kind and place of a sink's target; see `same_target`."""
    return same_target({"kind": sink.traits.kind, **sink.traits.place})


def same_target(there: Mapping[str, str]) -> Mapping[str, str]:
    """Return kind and place of a target, which are the same if a sink writes to it immediately."""
    return {**there, "kind": there["kind"].removeprefix(IMMEDIATE)}


def refuse_shared_targets(plan: Plan) -> None:
    """Refuse two sinks that write to one target, if it belongs to one sink.

    Raises:
        ConfigError: names the first two.
    """
    earlier_sinks: list[SinkSpec] = []
    for spec in plan.sinks:
        for other in earlier_sinks:
            exclusive = spec.sink.traits.exclusive or other.sink.traits.exclusive
            if exclusive and _is_one_target(spec.sink, other.sink):
                raise ConfigError(
                    f"sinks {other.name!r} and {spec.name!r} write to {spec.sink.where}: rows of one would be replaced "
                    "or undone by the other",
                    not_done="the job was not planned",
                    next_step="give one of them a target of its own",
                    where=Where(job=plan.app),
                )
        earlier_sinks.append(spec)


def refuse_own_output(plan: Plan) -> None:
    """Refuse a source that reads the output of a sink of the job: each row would be read again, endlessly.

    Raises:
        ConfigError: the first such sink.
    """
    for spec in outputs_of(plan):
        for source in plan.sources:
            if reads_target(source.source, spec.sink.traits.place):
                raise ConfigError(
                    f"source {source.name!r} reads {source.source.where}, and so also the rows that sink "
                    f"{spec.name!r} writes to {spec.sink.where}: its rows would be read again endlessly",
                    not_done="the job was not planned",
                    next_step="give the sink a target that the source does not read; a pattern of topics can leave one "
                    "out by (?!...)",
                    where=Where(job=plan.app, source=source.name),
                )


def reads_target(source: Source, target: Mapping[str, str]) -> bool:
    """Return whether a source reads rows that are written to a target: there, by a pattern, or as a captured table.

    Args:
        target: `SinkTraits.place`.
    """
    there = source.traits.place, source.traits.captures
    return source.would_read(target) or any(is_same_place_of(place, target) for place in there)


def is_same_place_of(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return whether two places, by argument, are one and the same, in any spelling; no place is none's."""
    if not one or one.keys() != other.keys():
        return False
    same = {**_SAME, "table": _is_one_sqlite_table} if "path" in one else _SAME
    return all(same.get(name, str.__eq__)(value, other[name]) for name, value in one.items())


def _is_one_target(one: Sink, other: Sink) -> bool:
    kinds = {each.traits.kind.removeprefix(IMMEDIATE) for each in (one, other)}
    return len(kinds) == 1 and is_same_place_of(one.traits.place, other.traits.place)


def _is_one_sqlite_table(one: str, other: str) -> bool:
    """SQLite takes names of tables in any case."""
    return one.lower() == other.lower()


def _is_one_database(one: str, other: str) -> bool:
    return _database(one) == _database(other)


def _database(text: str) -> tuple[str, str, str]:
    """Return host, port and name of a database of Postgres, as `place` has them; the names of this machine are one."""
    server, _, name = text.rpartition("/")
    found = _PORT.fullmatch(server)
    host, port = (found[1], found[2]) if found else (server, POSTGRES_PORT)
    return "localhost" if host.lower() in LOOPBACK else host.lower(), port, name


_SAME: Mapping[str, Callable[[str, str], bool]] = {
    "path": is_same_place,
    "warehouse": is_same_place,
    "servers": is_one_cluster,
    "database": _is_one_database,
}
"""Arguments of a place that have several spellings."""
