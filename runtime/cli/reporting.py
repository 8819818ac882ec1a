"""How a command ends: its exit status, and errors in three parts.

Results go to stdout, advice and errors to stderr; with --json an error is a JSON object on stdout.

Source: API.md, exit statuses and JSON `errors`.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from holdfast.errors import ConfigError, HoldfastError, NotAdmitted

INTERRUPTED = 130
PIPE_CLOSED = 141


class StoppedEarly(KeyboardInterrupt):
    """A signal asked a run to stop before it began."""


def expect_stop() -> None:
    """Let SIGTERM and SIGHUP end a command that is about to run a job, until the run itself handles them."""
    atexit.register(_ignore_to_the_end)  # as the first one, so it is called last
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` starts a command
            signal.signal(number, _stop_early)


def expect_end() -> None:
    """Let SIGTERM and SIGHUP not disturb a command whose run has ended: its outcome is about to be shown."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is _stop_early:
            signal.signal(number, _take_no_notice)


def _ignore_to_the_end() -> None:
    """Keep the exit status of a run that has ended: the interpreter restores default handlers before it exits."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is _take_no_notice:
            signal.signal(number, signal.SIG_IGN)


def _take_no_notice(number: int, frame: FrameType | None) -> None:
    """A handler, unlike SIG_IGN, is not inherited by programs."""


def _stop_early(number: int, frame: FrameType | None) -> None:
    raise StoppedEarly(f"{signal.Signals(number).name}: stopped before the job began; nothing was read or changed")


def guarded(arguments: Sequence[str], work: Callable[[], int]) -> int:
    """Do the work of a command; show any error; return the exit status.

    Args:
        arguments: The command line; its flags choose the form of errors even if it cannot be parsed.
    """
    as_json, debug = "--json" in arguments, "--debug" in arguments
    try:
        status = work()
        sys.stdout.flush()
        return status
    except HoldfastError as error:
        return _shown(error, as_json, debug)
    except StoppedEarly as stop:
        advise(str(stop))
        return 0
    except KeyboardInterrupt as interrupt:
        follows = str(interrupt) or "the next run reads uncommitted records again"
        print(f"\ninterrupted; {follows}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has exited; without this, Python would complain again at its own exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except SystemExit as leaving:  # argparse ends this way after --help and --version
        return leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1
    except FileNotFoundError as error:
        gone = _is_gone()
        return _shown(_no_folder() if gone else _unexpected(error), as_json, debug)
    except Exception as error:  # noqa: BLE001  shown, and the process ends: nothing is hidden
        return _shown(_unexpected(error), as_json, debug)


def _unexpected(error: Exception) -> HoldfastError:
    return HoldfastError(
        f"unexpected {type(error).__name__}" + (f": {error}" if str(error) else ""),
        not_done="the command did not complete",
        next_step="run it again with --debug to see where this arose, and report it",
    )


def _is_gone() -> bool:
    """Return whether the current directory was deleted, so that no relative path leads anywhere."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _no_folder() -> ConfigError:
    return ConfigError(
        "the current directory was deleted, so relative paths lead nowhere",
        not_done="the command did not complete",
        next_step="change to a folder that exists, and run it again",
    )


def print_json(value: Any) -> None:
    """Print a result as one JSON document."""
    print(json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def advise(text: str) -> None:
    """Print a line for the user that is not a result."""
    print(text, file=sys.stderr)


def settled(error: HoldfastError) -> HoldfastError:
    """Return an error as a command reports it, which does not wait until an administrator lets its user in."""
    if not isinstance(error, NotAdmitted):
        return error
    return ConfigError(error.what, not_done=error.not_done, next_step=error.next_step, where=error.where)


def _shown(error: HoldfastError, as_json: bool, debug: bool) -> int:
    error = settled(error)
    if debug:
        traceback.print_exc()
    if as_json:
        print_json(error.as_json())
    else:
        print(f"holdfast: {error}", file=sys.stderr)
    return error.exit_status
