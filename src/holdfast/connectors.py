"""Write your own connector: the contracts of sources and sinks, and tools to write one.

A package imports these names from here; where they are defined may change. `holdfast.testing.source_conformance` and
`sink_conformance` test the connector. Names load at first use.
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
    from holdfast.sinks.contract.audited import AuditQuery, Audits, TargetContents
    from holdfast.sinks.contract.immediate import ImmediateTarget, Owner, Written
    from holdfast.sinks.contract.owners import Claim, Held, Holding, Ownership, check_continues
    from holdfast.sinks.contract.sink import (
        ImmediateSink,
        Repair,
        Repairs,
        Rewinding,
        Sink,
        Uploader,
        check_key,
        check_null_keys,
    )
    from holdfast.sinks.contract.target import (
        DELETE,
        OP,
        PUT,
        AlreadyDelivered,
        Delivered,
        EpochOutput,
        Merges,
        Outcome,
        Target,
        Upload,
        UploadedOutput,
        already,
    )
    from holdfast.sinks.contract.transactions import Hidden, Transactions, Transacts
    from holdfast.traits import Endless, Library, SinkTraits, SourceTraits, local

_HOMES = {
    "holdfast.errors": ("NotAdmitted",),
    "holdfast.model": ("Tag", "Writer"),
    "holdfast.runtime.plan.ahead": ("Ahead", "Read", "ReaderAhead"),
    "holdfast.runtime.plan.source": ("OFFSETS", "Kept", "OpenSource", "PartitionReader", "Source", "direct_reader"),
    "holdfast.runtime.sources.connector": ("Connector",),
    "holdfast.secrets": ("Secret", "secret_argument"),
    "holdfast.sinks.contract.audited": ("AuditQuery", "Audits", "TargetContents"),
    "holdfast.sinks.contract.immediate": ("ImmediateTarget", "Owner", "Written"),
    "holdfast.sinks.contract.owners": ("Claim", "Held", "Holding", "Ownership", "check_continues"),
    "holdfast.sinks.contract.sink": (
        "ImmediateSink",
        "Repair",
        "Repairs",
        "Rewinding",
        "Sink",
        "Uploader",
        "check_key",
        "check_null_keys",
    ),
    "holdfast.sinks.contract.target": (
        "DELETE",
        "OP",
        "PUT",
        "AlreadyDelivered",
        "Delivered",
        "EpochOutput",
        "Merges",
        "Outcome",
        "Target",
        "Upload",
        "UploadedOutput",
        "already",
    ),
    "holdfast.sinks.contract.transactions": ("Hidden", "Transactions", "Transacts"),
    "holdfast.traits": ("Endless", "Library", "SinkTraits", "SourceTraits", "local"),
}

__all__ = [
    "DELETE",
    "OFFSETS",
    "OP",
    "PUT",
    "Ahead",
    "AlreadyDelivered",
    "AuditQuery",
    "Audits",
    "Claim",
    "Connector",
    "Delivered",
    "Endless",
    "EpochOutput",
    "Held",
    "Hidden",
    "Holding",
    "ImmediateSink",
    "ImmediateTarget",
    "Kept",
    "Library",
    "Merges",
    "NotAdmitted",
    "OpenSource",
    "Outcome",
    "Owner",
    "Ownership",
    "PartitionReader",
    "Read",
    "ReaderAhead",
    "Repair",
    "Repairs",
    "Rewinding",
    "Secret",
    "Sink",
    "SinkTraits",
    "Source",
    "SourceTraits",
    "Tag",
    "Target",
    "TargetContents",
    "Transactions",
    "Transacts",
    "Upload",
    "UploadedOutput",
    "Uploader",
    "Writer",
    "Written",
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
