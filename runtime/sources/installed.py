"""Connectors by name: our own, and those of installed packages.

A package names its connectors in the entry point group `holdfast.connectors`. Code normally imports the class itself; a
name is for code that takes it from configuration, and for `holdfast connectors`.

Invariants
    - Connectors that share a name are never loaded by it, even if one of them is ours.
    - Nothing is imported before a connector is asked for by its name.

Source: docs/decisions/0032-connectors.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

import holdfast
from holdfast.errors import ConfigError

GROUP = "holdfast.connectors"
OWN = {
    "delta": "holdfast:Delta",
    "files": "holdfast:Files",
    "generator": "holdfast:Generator",
    "http": "holdfast:Http",
    "iceberg": "holdfast:Iceberg",
    "kafka": "holdfast:Kafka",
    "log": "holdfast:Log",
    "postgres": "holdfast:Postgres",
    "postgres-changes": "holdfast:PostgresChanges",
    "redis": "holdfast:Redis",
    "spark-frame": "holdfast:SparkFrame",
    "sqlite": "holdfast:SQLite",
    "sqlite-changes": "holdfast:SQLiteChanges",
    "webhook": "holdfast:Webhook",
}


@dataclass(frozen=True)
class Installed:
    """A connector that can be had by its name."""

    name: str
    target: str
    """Where it is, as `module:name`."""
    package: str
    version: str | None


def installed() -> list[Installed]:
    """Return all connectors, by name; a name that two packages use comes twice."""
    own = [Installed(name, target, "holdfast", holdfast.__version__) for name, target in OWN.items()]
    return sorted([*own, *map(_described, _others())], key=lambda each: (each.name, each.package))


def connector(name: str, *args: Any, **options: Any) -> Any:
    """Make a connector by the name under which its package registers it, for `app.source` or `stream.sink`.

    Args:
        name: As `holdfast connectors` lists it.
        args: Positional arguments of the connector's class.
        options: Keyword arguments of the connector's class.

    Raises:
        ConfigError: no installed package registers the name, two do, or its module cannot be imported.
    """
    return connector_class(name)(*args, **options)


def connector_class(name: str) -> Any:
    """Return the class of a connector by its name. Raises as `connector`."""
    candidates = [each for each in installed() if each.name == name]
    if len(candidates) != 1:
        packages = " and ".join(each.package for each in candidates)
        names = ", ".join(dict.fromkeys(each.name for each in installed()))
        raise ConfigError(
            f"the connector {name!r} is registered by {packages}" if candidates else f"there is no connector {name!r}",
            not_done="no connector was created",
            next_step="import its class from the package that you mean"
            if candidates
            else f"use one of {names}; or install the package that has it, here and on every worker",
        )
    return loaded(candidates[0])


def loaded(each: Installed) -> Callable[..., Any]:
    """Return the class of a connector.

    Raises:
        ConfigError: its module or the name in it is missing, or the module cannot be imported.
    """
    module, _, attribute = each.target.partition(":")
    try:
        target: Any = import_module(module)
        for part in attribute.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the connector {each.name!r} of package {each.package} cannot be loaded from {each.target}: {error}",
            not_done="no connector was created",
            next_step="install the package again, in a version that fits this version of Holdfast",
        ) from error
    return cast(Callable[..., Any], target)


def _others() -> Iterable[EntryPoint]:
    return entry_points(group=GROUP)


def _described(point: EntryPoint) -> Installed:
    package = point.dist
    return Installed(
        point.name,
        point.value,
        "an unknown package" if package is None else package.name,
        None if package is None else package.version,
    )
