"""Normal forms of column expressions and Python functions, which a later run can compare with its own.

A form is a JSON value. That of an expression is the tree that Polars serialises, without what it leaves at its
default (null, false, empty), so that an option which a newer Polars adds at its default changes nothing. The display
text of an expression is never compared. What the tree cannot hold exactly (NaN and the infinities are null in it) or
holds at great length is replaced by a hash.

Forms of one Polars version differ if and only if the expressions do. Between two versions equal forms mean the same
expression; forms that differ may mean nothing, so the caller keeps the version beside them.

Pure.
Source: docs/design/0024-identity-of-state.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from types import CodeType
from typing import Any

import polars as pl

Form = Any
"""A JSON value: dict, list, str, int, float, bool or None."""
POLARS: str = pl.__version__
FORM_LENGTH_MAX = 2_000
"""Characters of JSON up to which a form is kept as it is; a longer one is hashed."""


def form_of(expr: pl.Expr) -> Form:
    """Return the normal form of an expression, its outer name left out."""
    inner = expr.meta.undo_aliases()
    try:
        tree = json.loads(inner.meta.serialize(format="json"))
    except (pl.exceptions.PolarsError, TypeError, ValueError):
        tree = None
    if tree is None or _is_ambiguous(tree):
        return {"sha256": hashlib.sha256(inner.meta.serialize()).hexdigest()}
    return bounded(_pruned(tree))


def columns_replaced(form: Form, replaced: Callable[[str], Form]) -> Form:
    """Return the form with every column that it reads replaced by the form of that column."""
    match form:
        case {"Column": str(name)} if len(form) == 1:
            return replaced(name)
        case dict():
            return {name: columns_replaced(value, replaced) for name, value in form.items()}
        case list():
            return [columns_replaced(value, replaced) for value in form]
    return form


def bounded(form: Form) -> Form:
    """Return the form, or its hash if it is long."""
    text = json.dumps(form, sort_keys=True)
    return form if len(text) <= FORM_LENGTH_MAX else {"sha256": hashlib.sha256(text.encode()).hexdigest()}


def code_of(function: Callable[..., Any]) -> str:
    """Return a text that differs if the compiled code of a function does."""
    code = getattr(function, "__code__", None)
    return _shown(code) if isinstance(code, CodeType) else type(function).__qualname__


def code_hash(function: Callable[..., Any]) -> str:
    """Return the hash of `code_of`; it differs between Python versions."""
    return hashlib.sha256(code_of(function).encode()).hexdigest()[:16]


def _is_ambiguous(tree: Form) -> bool:
    """Return whether a number in the tree is NaN or infinite: JSON has null for all three."""
    match tree:
        case {"Float": None} | {"Float32": None} | {"Float64": None}:
            return True
        case dict():
            return any(_is_ambiguous(value) for value in tree.values())
        case list():
            return any(_is_ambiguous(value) for value in tree)
    return False


def _pruned(tree: Form) -> Form:
    match tree:
        case {"Literal": _}:
            return tree
        case dict():
            parts = {name: _pruned(value) for name, value in tree.items()}
            return {name: value for name, value in parts.items() if value not in (None, {}, []) and value is not False}
        case list():
            return [_pruned(value) for value in tree]
    return tree


def _shown(code: CodeType) -> str:
    constants = [_shown(each) if isinstance(each, CodeType) else _ordered(each) for each in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _ordered(constant: object) -> str:
    """Return the constant as a text that is the same in every process."""
    return repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)
