"""The conditions of a pattern's steps, and the calls of the user's functions.

A row is at fault only if a function of the user raises an error for it. An error anywhere else is a defect, which ends
the job.

Pure, as far as the user's functions are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl

from holdfast.errors import is_failure
from holdfast.runtime.rows.failing import NOT_THE_ROWS_FAULT, raised


@dataclass(frozen=True, eq=False)
class PatternCondition:
    """Conditions of one step; a matching row meets all of them."""

    step: str
    expressions: tuple[pl.Expr, ...]
    functions: tuple[tuple[Callable[..., Any], bool], ...]
    """Each with whether it also takes the rows of earlier steps."""


class MatchFunctionFailed(Exception):
    """A function of the user failed for a row; the text describes how, and the cause is the function's error."""


def called(function: Callable[..., Any], *arguments: Any, into: Callable[[Any], Any] | None = None) -> Any:
    """Return the result of a function of the user.

    Args:
        into: Converts it; `bool` can fail, for example for an array.

    Raises:
        MatchFunctionFailed: it failed, or its result cannot be converted.
    """
    try:
        found = function(*arguments)
        return found if into is None else into(found)
    except NOT_THE_ROWS_FAULT:
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        raise MatchFunctionFailed(raised(error, function, __file__)) from error
