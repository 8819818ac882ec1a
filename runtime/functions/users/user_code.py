"""The functions of an aggregate of the user's own, how they are called, and the columns of state behind them.

Pure, as far as the user's functions are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import is_failure
from holdfast.runtime.functions.contract import CannotFold, StateColumn
from holdfast.runtime.functions.types import value_column
from holdfast.runtime.rows.failing import NOT_THE_ROWS_FAULT, raised
from holdfast.runtime.rows.forms import name_of

ROWS = "(rows)"
"""The role of the number of rows; no field of a dataclass has this name."""
CORRECT_IT = "correct the function; then run the job again, which resumes from the last checkpoint"


@dataclass(frozen=True)
class UserCode:
    """Four functions, the fields of the state, and the field of the result."""

    init: Callable[[], Any]
    add: Callable[..., Any]
    merge: Callable[[Any, Any], Any]
    result: Callable[[Any], Any]
    schema: pa.Schema
    gives: pa.Field

    def start(self) -> Any:
        """Return a state that shares nothing with another one, also if `init()` always returns the same object."""
        return copy(self.init())

    @property
    def columns(self) -> Mapping[str, StateColumn]:
        """The columns of state: one per field, and the number of rows."""
        fields = {field.name: value_column(field.type) for field in self.schema}
        return {ROWS: StateColumn(np.dtype(np.int64))} | fields


def called(function: Any, group: int | None, given: str, *arguments: Any) -> Any:
    """Return what a function of the user returns.

    Args:
        group: The state at fault if it fails, if only one can be.
        given: Its arguments, described for messages.

    Raises:
        CannotFold: it failed, or returned nothing.
    """
    try:
        result = function(*arguments)
    except NOT_THE_ROWS_FAULT:
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        what = f"failed: {name_of(function)} {raised(error, function, __file__)}{given}"
        raise CannotFold(what, CORRECT_IT, group) from error
    return result


def state_of(function: Any, group: int | None, given: str, *arguments: Any) -> Any:
    """Return the state that a function of the user returns.

    Raises:
        CannotFold: as `called`, or it returned None.
    """
    state = called(function, group, given, *arguments)
    if state is None:
        what = f"failed: {name_of(function)} returned None, not a state{given}"
        raise CannotFold(what, "let the function return the state, also if it changed it", group)
    return state
