"""`holdfast capture JOB.py`: receives input that a source cannot read again, and appends it to the job's log.

Source: API.md, command line; docs/decisions/0085-webhooks.md, 0087-postgres-capture.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, NotAdmitted
from holdfast.runtime.cli.arguments import add_app, add_command
from holdfast.runtime.cli.reporting import advise
from holdfast.runtime.cli.start.jobfile import load

if TYPE_CHECKING:
    from holdfast.runtime.api.app import App
    from holdfast.runtime.capture.capturer import Event
    from holdfast.runtime.plan.source import Captured

_DESCRIPTION = """\
Append what a job's hf.Webhook receives, or the changes of the table of its hf.PostgresChanges or hf.SQLiteChanges, to
the log of the source, until SIGTERM or Ctrl-C. A request is answered 200, and a change is confirmed to the database,
once it is in the log. Run it beside the job, as a service of its own: neither needs the other to be running, and
kill -9 at any time loses nothing and stores nothing twice."""
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

    Exit status: 0 stopped, 2 wrong configuration, refused login or missing permission, 4 damaged log, 5 log or database
    unreachable.
    """
    from holdfast.runtime.capture.capturer import capturer_of

    name, capture_spec = _chosen(load(args.file, args.app), args.source)
    capturer = capturer_of(capture_spec)
    report = partial(report_event, args, name, partial(capturer.line, name, capture_spec))
    try:
        counts = capturer.capture(capture_spec, report)
    except NotAdmitted as error:  # a process that has captured before waits; this one has never begun
        raise ConfigError(error.what, not_done=error.not_done, next_step=error.next_step, where=error.where) from error
    report({"event": "stopped", **counts})
    return 0


def _chosen(app: App, wanted: str | None) -> tuple[str, Captured]:
    """Return the source to capture.

    Raises:
        ConfigError: the job has none, several, or none of this name.
    """

    captured = {spec.name: spec.source.captured for spec in app.plan().sources}
    captures = {name: what for name, what in captured.items() if what is not None}
    names = ", ".join(captures)
    if not captures:
        raise ConfigError(
            f"app {app.name!r} has no source that is captured",
            not_done=_NOTHING,
            next_step='read one: app.source("payments", hf.Webhook("127.0.0.1:8080", hf.Log("data/pay"), Payment))',
        )
    if wanted is None and len(captures) > 1:
        raise ConfigError(
            f"app {app.name!r} has several sources that are captured: {names}",
            not_done=_NOTHING,
            next_step=f"run one process for each: --source {next(iter(captures))}",
        )
    if wanted is not None and wanted not in captures:
        raise ConfigError(
            f"app {app.name!r} has no source {wanted!r} that is captured",
            not_done=_NOTHING,
            next_step=f"give one of {names}",
        )
    name = next(iter(captures)) if wanted is None else wanted
    return name, captures[name]


def report_event(args: argparse.Namespace, name: str, line: Callable[[Event], str], event: Event) -> None:
    """Report an event of a capture."""
    if event["event"] == "advice":
        advise(event["text"])
    elif args.json:
        import json

        print(json.dumps({**event, "source": name}, ensure_ascii=False), flush=True)
    else:
        print(line(event), flush=True)
