"""Reports a call with wrong arguments in one sentence with its place in the job, not as a traceback.

`checked` decorates the functions and constructors that users call. Python's own error names an `__init__` and no line
of the job; this error names the call as users write it, the missing or unknown argument, and an example of the call.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from typing import ParamSpec, TypeVar

from holdfast.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")


class WrongArguments(ConfigError, TypeError):
    """A call lacks an argument, or names one that does not exist."""


def checked(called: str, example: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Refuse calls whose arguments do not fit the function's signature.

    Args:
        called: The function as users write it: "hf.SQLite", ".filter".
        example: A call that fits.
    """

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise _wrong(called, example, signature, args, kwargs) from error
            return function(*args, **kwargs)

        return call

    return decorated


def position() -> str:
    """Return the file and line of the nearest caller outside Holdfast."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "holdfast":
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"


def _wrong(
    called: str, example: str, signature: inspect.Signature, args: tuple[object, ...], kwargs: dict[str, object]
) -> WrongArguments:
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    names = [each.name for each in parameters]
    by_place = [each.name for each in parameters if each.kind is not each.KEYWORD_ONLY]
    positional_count = len(args) - ("self" in signature.parameters)
    missing = [
        each.name
        for each in parameters
        if each.default is each.empty and each.name not in by_place[:positional_count] and each.name not in kwargs
    ]
    unknown = [name for name in kwargs if name not in names]
    what = f"{called} at {position()}"
    example = f"for example {called}{example}"
    if unknown:
        close = get_close_matches(unknown[0], names, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(names)}"
        return _refused(f"{what} has no argument {unknown[0]!r}", f"{hint}; {example}")
    if missing:
        return _refused(f"{what} lacks {' and '.join(repr(name) for name in missing)}", f"give it, {example}")
    return _refused(
        f"{what} has too many arguments: {positional_count} by position, or one given twice", f"write {example}"
    )


def _refused(what: str, next_step: str) -> WrongArguments:
    return WrongArguments(what, not_done="the job was not planned", next_step=next_step)
