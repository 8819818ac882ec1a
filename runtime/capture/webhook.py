"""Requests of `hf.Webhook`, as `holdfast capture` captures them. See capturer.py."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError
from holdfast.extras import install
from holdfast.ports import ObjectStore
from holdfast.quantities import plural
from holdfast.runtime.capture.appending import Appending
from holdfast.runtime.capture.capturer import Event, Report
from holdfast.runtime.sources.webhook.connector import Receiving
from holdfast.storage.objects import open_objects

if TYPE_CHECKING:
    from holdfast.runtime.capture.server import Listening


def capture(of: Receiving, report: Report) -> Mapping[str, int]:
    """See Capturer.capture."""
    try:
        from holdfast.runtime.capture.server import receive
    except ImportError as error:
        raise ConfigError(
            f"holdfast capture needs aiohttp, which cannot be imported: {error}",
            not_done="nothing was received",
            next_step=f"install it on this machine: {install('http')}",
        ) from error
    return receive(of, Appending(open_objects(of.log), of), partial(listens, of, report))


def listens(of: Receiving, report: Report, listening: Listening) -> None:
    """Report that requests are received, and explain that."""
    report({"event": "listening", "url": listening.url, "log": of.log, "known_keys": listening.keys})
    if of.scheme is None:
        unsigned = (
            "requests are not signed: every program that can connect can append rows; see signature of hf.Webhook"
        )
        report({"event": "advice", "text": unsigned})
    if of.key is None:
        keyless = (
            "requests have no idempotency key: a request that is sent again is stored again; see key of hf.Webhook"
        )
        report({"event": "advice", "text": keyless})


def line(name: str, of: Receiving, event: Event) -> str:
    """See Capturer.line."""
    if event["event"] == "stopped":
        counts = ", ".join(f"{number:,} {kind}" for kind, number in event.items() if kind != "event")
        return f"stopped receiving {name}: {counts}"
    return f"receiving {name} at {event['url']}, appending to {of.log}; {plural(event['known_keys'], 'known key')}"


def probe(of: Receiving, store: ObjectStore) -> None:
    """See Capturer.probe. Its port is free or taken, which no one can know beforehand."""
