"""The `holdfast why` command that explains a difference between two versions of a job."""

from __future__ import annotations

import base64
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

from holdfast.model import Epoch


def typed(values: Sequence[Any]) -> str | None:
    """Return a key as a user types it; None if a value has no such form."""
    plain = [_plain(value) for value in values]
    if _UNTYPED in plain:
        return None
    match plain:
        case [str(only)] if not only.startswith(("[", "-")):
            return only
        case [bool() | int() as only]:
            return json.dumps(only)
        case _:
            return json.dumps(plain, ensure_ascii=False)


def columns_typed(row: Mapping[str, Any]) -> str | None:
    """Return the columns of a row as a JSON object, those that can be typed; None if there are none."""
    plain = {name: _plain(value) for name, value in row.items()}
    plain = {name: value for name, value in plain.items() if value is not _UNTYPED}
    return json.dumps(plain, ensure_ascii=False) if plain else None


def why(file: str, name: str, key: str, epoch: Epoch | None, flags: Sequence[str]) -> str:
    """Return the command.

    Args:
        name: The operator or the sink.
        epoch: That in which the version's result begins to differ; None: it is unknown.
    """
    at = [] if epoch is None else ["--at", str(epoch)]
    return shlex.join(["holdfast", "why", file, name, key, *at, *flags])


_UNTYPED = object()


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float() if math.isfinite(value):
            return value
        case datetime() | date():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case _:
            return _UNTYPED
