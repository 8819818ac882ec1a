"""Sinks and sources that keep rows in the job's own folder: `hf.Collect`, `hf.Console`, copies of sources.

Their place depends on the job's root, which is known when a run or a command starts, not when the code builds the app.

Source: sinks/program/collect.py, sinks/program/console.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from holdfast.errors import ConfigError, Where
from holdfast.runtime.plan.model import Plan, SinkSpec
from holdfast.runtime.plan.source import COPIES
from holdfast.sinks.program.collect import Collect
from holdfast.sinks.program.console import SUFFIX, Console
from holdfast.storage.paths import join

FOLDER = "results"


def with_places(plan: Plan, root: str) -> Plan:
    """Return the plan with such sinks and sources bound to their folders below the root.

    Raises:
        ConfigError: the root is not a folder of this machine, or one sink object is used twice.
    """
    specs = [spec for spec in plan.sinks if isinstance(spec.sink, Collect | Console)]
    if specs and "://" in root:
        raise ConfigError(
            f"sink {specs[0].name!r} is {specs[0].sink!r}, which keeps rows in the job's folder; the root is {root}",
            not_done="the job was not started",
            next_step="use a root on this machine, or write to hf.Log or hf.SQLite",
            where=Where(job=plan.app),
        )
    for spec in specs:
        if sum(other.sink is spec.sink for other in specs) > 1:
            raise ConfigError(
                f"sink {spec.name!r} shares its {spec.sink!r} with another sink",
                not_done="the job was not started",
                next_step="give each sink an object of its own",
                where=Where(job=plan.app),
            )
    folder = join(root, plan.app)
    copies = join(folder, COPIES)
    sources = tuple(replace(spec, source=spec.source.in_folder(join(copies, spec.name))) for spec in plan.sources)
    return replace(plan, sinks=tuple(_bound(spec, folder) for spec in plan.sinks), sources=sources)


def _bound(spec: SinkSpec, folder: str) -> SinkSpec:
    if not isinstance(spec.sink, Collect | Console):
        return spec
    place = join(join(folder, FOLDER), spec.name)
    return replace(spec, sink=spec.sink.bound(place, spec.schema, spec.upsert_key))


def collected(plan: Plan) -> Mapping[str, Collect]:
    """Return every `hf.Collect` of the plan, by the name of its sink."""
    return {spec.name: spec.sink for spec in plan.sinks if isinstance(spec.sink, Collect)}


def refuse_collect(plan: Plan) -> None:
    """Refuse sinks that only the program that runs the job could read.

    Raises:
        ConfigError: there is one.
    """
    for name in collected(plan):
        raise ConfigError(
            f"sink {name!r} is hf.Collect(), whose rows are read by the program that calls app.run()",
            not_done="the job was not started",
            next_step="run the job from a notebook or script with app.run(once=True), or write to hf.SQLite or hf.Log",
            where=Where(job=plan.app),
        )


class Printer:
    """Prints the rows in consoles, in the driver's process.

    Args:
        plan: With places.
        write: Takes whole lines.
    """

    def __init__(self, plan: Plan, write: Callable[[str], object]) -> None:
        self._folders = {spec.name: Path(spec.sink.path) for spec in plan.sinks if isinstance(spec.sink, Console)}
        self._write = write

    def poll(self) -> None:
        """Print and remove the rows delivered since the last call: epoch by epoch, sink by sink."""
        for name, folder in self._folders.items():
            for file in sorted(folder.glob(f"*{SUFFIX}")):
                text = file.read_text(encoding="utf-8")
                self._write("".join(f"{name}: {line}\n" for line in text.splitlines()))
                file.unlink()
