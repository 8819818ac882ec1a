"""The output of `holdfast connectors`: which connectors are installed, what each can do, and what it is made with.

All of it is data of the connectors. A class may have two attributes for it; ours have both where they apply:

    library: ClassVar[Library]      the library that it is made with
    def example(cls) -> object      a classmethod: the connector in its fullest configuration; nothing is opened. A
                                    tuple of two, if options of a source exclude those of a sink

The traits are those of the example, or of the class if they do not depend on its arguments. A package that cannot be
loaded is listed with the reason, and hides no other one.

Source: docs/decisions/0032-connectors.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import metadata
from importlib.util import find_spec

from holdfast.errors import HoldfastError
from holdfast.extras import install
from holdfast.runtime.sources.connector import sink_of, source_of
from holdfast.runtime.sources.installed import Installed, installed, loaded
from holdfast.sinks.contract.sink import abilities
from holdfast.traits import Library, SinkTraits, SourceTraits, Traits

SOURCE, SINK = "source", "sink"


@dataclass(frozen=True)
class ListedConnector:
    """A connector in the list.

    Args:
        library: The library it is made with; None: nothing besides its own package, or unknown.
        version: The version of the library; None: it is missing, or unknown.
        sides: "source", "sink" or both -> trait -> whether a configuration can have it; None: traits are unknown.
        problem: Why jobs cannot use it here; None if they can.
        next: The next step to solve the problem.
    """

    installed: Installed
    library: Library | None = None
    version: str | None = None
    sides: Mapping[str, Mapping[str, bool] | None] = field(default_factory=dict)
    problem: str | None = None
    next: str | None = None


def listed() -> list[ListedConnector]:
    """Return all connectors that packages register, by name."""
    found = installed()
    return [_listed(each, [other.package for other in found if other.name == each.name]) for each in found]


def version_of(library: Library) -> str | None:
    """Return the version of a library; None if it is missing, or lies on the path without metadata."""
    if library.version is not None:
        return library.version
    try:
        return metadata.version(library.name)
    except metadata.PackageNotFoundError:
        return None


def _listed(each: Installed, packages: list[str]) -> ListedConnector:
    if len(packages) > 1:
        problem = f"the name is registered by {' and '.join(packages)}"
        return ListedConnector(
            each, problem=problem, next="import its class from the package that you mean, or uninstall one"
        )
    try:
        kind = loaded(each)
        library: Library | None = getattr(kind, "library", None)
        if library is None:
            return ListedConnector(each, sides=_sides(kind))
        version = version_of(library)
        if version is None and find_spec(library.name) is None:
            problem = f"{library.name} is not installed"
            named = f"pip install '{library.name}'"
            advice = (
                f"{named if library.extra is None else install(library.extra, of=each.package)}, on every worker too"
            )
            return ListedConnector(each, library, sides=_by_methods(kind), problem=problem, next=advice)
        return ListedConnector(each, library, version, _sides(kind))
    except HoldfastError as error:
        return ListedConnector(each, problem=error.what, next=error.next_step)
    except Exception as error:  # noqa: BLE001  whatever the code of another package raised
        problem = f"{each.target} of package {each.package} cannot be used: {type(error).__name__}: {error}"
        return ListedConnector(each, problem=problem, next="report it to the authors of the package, or uninstall it")


def _sides(kind: object) -> Mapping[str, Mapping[str, bool] | None]:
    """Return the sides of a class with their traits, from its example or from its own traits."""
    if callable(make := getattr(kind, "example", None)):
        example = make()
        read, written = example if isinstance(example, tuple) else (example, example)
        source, sink = source_of(read), sink_of(written)
        sides: dict[str, Mapping[str, bool] | None] = {}
        if isinstance(source.traits, SourceTraits):
            publishes, captured = source.publishes is not None, source.captured is not None
            sides[SOURCE] = {**_named(source.traits), "publishes": publishes, "captured": captured}
        if isinstance(sink.traits, SinkTraits):
            sides[SINK] = abilities(sink)
        return sides
    own = getattr(kind, "traits", None)
    if not isinstance(own, Traits):
        return _by_methods(kind)
    return {SOURCE if isinstance(own, SourceTraits) else SINK: _named(own)}


def _named(traits: Traits) -> Mapping[str, bool]:
    given = {each.name: getattr(traits, each.name) for each in fields(traits)}
    return {name: value for name, value in given.items() if isinstance(value, bool)}


def _by_methods(kind: object) -> Mapping[str, None]:
    """Return the sides of a class whose traits are unknown, by the methods that a connector, a source or a sink has."""
    is_sink = _has(kind, SINK) or _has(kind, "prepare", "accept", "open")
    is_source = _has(kind, SOURCE) or (_has(kind, "check", "open") and not is_sink)
    return {side: None for side, given in ((SOURCE, is_source), (SINK, is_sink)) if given}


def _has(kind: object, *methods: str) -> bool:
    return all(callable(getattr(kind, name, None)) for name in methods)
