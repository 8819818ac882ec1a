"""Write your own connector: what a source or sink has to be, and what helps to write one.

A package imports these names from here; where they are defined may change. `holdfast.testing.source_conformance` and
`sink_conformance` test what is written. Names load at first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.errors import NotAdmitted
    from holdfast.model import Tag, Writer
    from holdfast.runtime.plan.ahead import Ahead, Read, ReaderAhead
    from holdfast.runtime.plan.source import OFFSETS, Kept, OpenSource, PartitionReader, Source, direct_reader
    from holdfast.runtime.sources.connector import Connector
    from holdfast.secrets import Secret, secret_argument
    from holdfast.sinks.contract.owners import Claim, check_continues
    from holdfast.sinks.contract.sink import (
        DELETE,
        OP,
        PUT,
        AlreadyDelivered,
        Delivered,
        Outcome,
        Sink,
        Target,
        already,
        check_key,
        check_null_keys,
    )
    from holdfast.sinks.contract.transactions import Hidden
    from holdfast.traits import Endless, Library, SinkTraits, SourceTraits, local

_HOMES = {
    "holdfast.errors": ("NotAdmitted",),
    "holdfast.model": ("Tag", "Writer"),
    "holdfast.runtime.plan.ahead": ("Ahead", "Read", "ReaderAhead"),
    "holdfast.runtime.sources.connector": ("Connector",),
    "holdfast.runtime.plan.source": ("OFFSETS", "Kept", "OpenSource", "PartitionReader", "Source", "direct_reader"),
    "holdfast.sinks.contract.sink": (
        "DELETE",
        "OP",
        "PUT",
        "AlreadyDelivered",
        "Delivered",
        "Outcome",
        "Sink",
        "Target",
        "already",
        "check_key",
        "check_null_keys",
    ),
    "holdfast.secrets": ("Secret", "secret_argument"),
    "holdfast.sinks.contract.owners": ("Claim", "check_continues"),
    "holdfast.sinks.contract.transactions": ("Hidden",),
    "holdfast.traits": ("Endless", "Library", "SinkTraits", "SourceTraits", "local"),
}

__all__ = [
    "DELETE",
    "OFFSETS",
    "OP",
    "PUT",
    "Ahead",
    "AlreadyDelivered",
    "Claim",
    "Connector",
    "Delivered",
    "Endless",
    "Hidden",
    "Kept",
    "Library",
    "NotAdmitted",
    "OpenSource",
    "Outcome",
    "PartitionReader",
    "Read",
    "ReaderAhead",
    "Secret",
    "Sink",
    "SinkTraits",
    "Source",
    "SourceTraits",
    "Tag",
    "Target",
    "Writer",
    "already",
    "check_continues",
    "check_key",
    "check_null_keys",
    "direct_reader",
    "local",
    "secret_argument",
]


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'holdfast.connectors' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
