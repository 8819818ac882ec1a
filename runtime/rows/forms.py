"""Normal forms of column expressions and Python functions, which a later run can compare with its own.

A form is a JSON value. The form of an expression is the tree that Polars serialises, without values at their default
(null, false, empty). So an option that a newer Polars adds at its default changes nothing. The display text of an
expression is never compared. A hash replaces a tree that is not exact (NaN and the infinities become null in it) or
that is very long.

Within one Polars version, forms differ if and only if the expressions do. Between two versions, equal forms mean the
same expression, but different forms may do so too: the caller stores the version with them.

Pure.
Source: docs/decisions/0024-identity-of-state.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from functools import partial
from types import CodeType
from typing import Any

import polars as pl

Form = Any
"""A JSON value: dict, list, str, int, float, bool or None."""
POLARS: str = pl.__version__
FORM_LENGTH_MAX = 2_000
"""Characters of JSON up to which a form is kept in full; a longer one is hashed."""


def form_of(expr: pl.Expr) -> Form:
    """Return the normal form of an expression, without its outer name."""
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


def in_terms_of(form: Form, names: Iterable[str], origin: Callable[[str], Form]) -> Form:
    """Return the provenance of an expression's result, from that of the columns that it reads.

    Args:
        form: The normal form of the expression.
        names: The columns that it reads.
        origin: Returns the provenance of a column: {"column": name} or {"expr": ...}.
    """

    def replaced(name: str) -> Form:
        match origin(name):
            case {"column": column}:
                return {"Column": column}
            case {"expr": inner}:
                return inner
            case hashed:
                return hashed

    if isinstance(form, dict) and set(form) == {"sha256"}:  # a hash hides the columns that it reads
        inputs = {name: replaced(name) for name in sorted(set(names))}
        return bounded({"expr": form | {"inputs": inputs}})
    return bounded({"expr": columns_replaced(form, replaced)})


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


def name_of(function: Any) -> str:
    """Return the name of a function in messages."""
    inner = _inner(function)
    name = getattr(inner, "__name__", None) or type(inner).__name__
    return "lambda" if name == "<lambda>" else str(name)


def file_of(function: Any) -> str | None:
    """Return the file of the function's code; None if it is not written in Python."""
    inner = _inner(function)
    inside = vars(type(inner)).get("__call__")  # for a callable object
    code = getattr(inner, "__code__", None) or getattr(inside, "__code__", None)
    return None if code is None else str(code.co_filename)


def _inner(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return function


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
