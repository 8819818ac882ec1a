"""`holdfast capture JOB.py`: receives what a source cannot read again, and appends it to the log that the job reads.

Source: API.md, command line; docs/design/0085-webhooks.md, 0087-postgres-capture.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError
from holdfast.runtime.cli.arguments import add_app, add_command
from holdfast.runtime.cli.reporting import advise
from holdfast.runtime.cli.start.jobfile import load

if TYPE_CHECKING:
    from holdfast.runtime.api.app import App
    from holdfast.runtime.capture.server import Listening
    from holdfast.runtime.sources.postgres.connector import Capturing
    from holdfast.runtime.sources.webhook.connector import Receiving

_DESCRIPTION = """\
Append what a job's hf.Webhook receives, or the changes of the table of its hf.PostgresChanges, to the log of the
source, until SIGTERM or Ctrl-C. A request is answered 200, and a change is confirmed to the server, once it is in the
log. Run it beside the job, as a service of its own: neither needs the other to be running, and kill -9 at any time
loses nothing and stores nothing twice."""
_NOTHING = "nothing was received"


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = add_command(
        subparsers, "capture", _DESCRIPTION, "holdfast capture job.py\nholdfast capture job.py --source payments --json"
    )
    parser.add_argument("file", metavar="JOB.py", help="Python file that builds an hf.App with a captured source")
    add_app(parser)
    parser.add_argument("--source", metavar="NAME", help="which source, if the job has several that are captured")
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Capture until a signal.

    Exit status: 0 stopped, 2 wrong configuration, 4 damaged log, 5 log or server unreachable.
    """
    from holdfast.runtime.sources.postgres.connector import Capturing

    name, captured = _chosen(load(args.file, args.app), args.source)
    if isinstance(captured, Capturing):
        _capture_changes(args, name, captured)
    else:
        _capture_requests(args, name, captured)
    return 0


def _capture_requests(args: argparse.Namespace, name: str, receiving: Receiving) -> None:
    from holdfast.runtime.capture.appending import Appending
    from holdfast.storage.objects import open_objects

    try:
        from holdfast.runtime.capture.server import receive
    except ImportError as error:
        raise ConfigError(
            f"holdfast capture needs aiohttp, which cannot be imported: {error}",
            not_done=_NOTHING,
            next_step="install it on this machine: pip install 'holdfast[http]'",
        ) from error
    appending = Appending(open_objects(receiving.log), receiving)
    counts = receive(receiving, appending, partial(_report_listening, args, name, receiving))
    _report_end(args, name, counts)


def _capture_changes(args: argparse.Namespace, name: str, capturing: Capturing) -> None:
    from holdfast.runtime.sources.postgres.connector import no_driver
    from holdfast.storage.objects import open_objects

    try:
        from holdfast.runtime.capture.postgres.process import capture
    except ImportError as error:
        raise no_driver(error) from error
    counts = capture(capturing, open_objects(capturing.log), partial(_report_event, args, name, capturing))
    if args.json:
        _print_line({"event": "stopped", "source": name, "records": counts.records, "appends": counts.appends})
    else:
        print(f"stopped capturing {name}: {counts.records:,} records appended")


def _chosen(app: App, wanted: str | None) -> tuple[str, Receiving | Capturing]:
    """Return the source to capture.

    Raises:
        ConfigError: the job has none, several, or none of this name.
    """
    from holdfast.runtime.plan.source import capture_of
    from holdfast.runtime.sources.postgres.connector import Capturing
    from holdfast.runtime.sources.webhook.connector import Receiving

    captured = {spec.name: capture_of(spec.source) for spec in app.plan().sources}
    found = {name: what for name, what in captured.items() if isinstance(what, Receiving | Capturing)}
    names = ", ".join(found)
    if not found:
        raise ConfigError(
            f"app {app.name!r} has no source that is captured",
            not_done=_NOTHING,
            next_step='read one: app.source("payments", hf.Webhook("127.0.0.1:8080", hf.Log("data/pay"), Payment))',
        )
    if wanted is None and len(found) > 1:
        raise ConfigError(
            f"app {app.name!r} has several sources that are captured: {names}",
            not_done=_NOTHING,
            next_step=f"run one process for each: --source {next(iter(found))}",
        )
    if wanted is not None and wanted not in found:
        raise ConfigError(
            f"app {app.name!r} has no source {wanted!r} that is captured",
            not_done=_NOTHING,
            next_step=f"give one of {names}",
        )
    name = next(iter(found)) if wanted is None else wanted
    return name, found[name]


def _report_listening(args: argparse.Namespace, name: str, of: Receiving, listening: Listening) -> None:
    if args.json:
        _print_line(
            {"event": "listening", "source": name, "url": listening.url, "log": of.log, "known_keys": listening.keys}
        )
    else:
        print(f"receiving {name} at {listening.url}, appending to {of.log}; {listening.keys:,} known keys", flush=True)
    if of.scheme is None:
        advise("requests are not signed: every program that can connect can append rows; see signature of hf.Webhook")
    if of.key is None:
        advise("requests have no idempotency key: a request that is sent again is stored again; see key of hf.Webhook")


def _report_event(args: argparse.Namespace, name: str, of: Capturing, event: Mapping[str, Any]) -> None:
    """Report what a capture of changes does."""
    if args.json:
        _print_line({**event, "source": name})
        return
    match event["event"]:
        case "waiting":
            print(f"waiting: {event['reason']}", flush=True)
        case "snapshot":
            print(f"reading the rows of {of.where}, with the slot {event['slot']}", flush=True)
        case "captured":
            print(f"appended {event['rows']:,} rows as of {event['position']} to {of.log}", flush=True)
        case "streaming":
            print(f"capturing {name} from {event['position']} on: changes of {of.where} to {of.log}", flush=True)
        case _:
            print(
                f"{name} is at {event['position']}, {event['behind_bytes']:,} bytes behind; the server keeps "
                f"{event['retained_bytes']:,} bytes; {event['records']:,} records appended",
                flush=True,
            )


def _report_end(args: argparse.Namespace, name: str, counts: Mapping[str, int]) -> None:
    if args.json:
        _print_line({"event": "stopped", "source": name, **counts})
        return
    print(f"stopped receiving {name}: " + ", ".join(f"{number:,} {kind}" for kind, number in counts.items()))


def _print_line(value: Mapping[str, Any]) -> None:
    import json

    print(json.dumps(value, ensure_ascii=False), flush=True)
