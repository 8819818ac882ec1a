"""The compiled parser of flat JSON objects. It accepts only text with a single possible reading.

An object that it accepts is `{"name":value,...}` with spaces between tokens at most, where a value is an integer of at
most 18 digits, a number of at most 15 digits without an exponent, true, false, null, or a string without an escape.

Pure: memory only. Source: RFC 8259; Clinger, How to Read Floating Point Numbers Accurately, 1990 (the fast path).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.state.compiled.jit import inner, kernel
from holdfast.state.compiled.memory import address_of, get_u8, put, put_f64, put_i32, put_u8

INTEGER, FLOAT, BOOL, STRING = 0, 1, 2, 3
"""How a column is read."""
MISSING, NULL, GIVEN = 0, 1, 2
"""Whether an object has a value for a column."""
_IGNORED = -1
_FIELDS_MAX = 64
"""Fields of an object whose columns are remembered for the next object."""
_INT_DIGITS_MAX, _FLOAT_DIGITS_MAX = 18, 15
_SPACE, _QUOTE, _COMMA, _MINUS, _POINT, _ZERO, _NINE, _COLON = 32, 34, 44, 45, 46, 48, 57, 58
_BACKSLASH, _OPEN, _CLOSE, _N, _T, _F = 92, 123, 125, 110, 116, 102
_ASCII_MAX = 127


@inner
def _past_spaces(at: int, end: int) -> Any:
    while at < end and get_u8(at, 0) == _SPACE:
        at += 1
    return at


@inner
def _string_end(at: int, end: int) -> Any:
    """Return the address of the quote that ends a plain string, which begins at `at`; -1 if it is not plain."""
    while at < end:
        found = get_u8(at, 0)
        if found == _QUOTE:
            return at
        if found < _SPACE or found == _BACKSLASH:
            return -1
        at += 1
    return -1


@inner
def _is(at: int, end: int, name: int, size: int) -> bool:
    """Return whether these bytes come next."""
    if end - at < size:
        return False
    for each in range(size):
        if get_u8(at, each) != get_u8(name, each):
            return False
    return True


@inner
def _is_word(at: int, end: int, second: int, third: int, fourth: int, fifth: int) -> bool:
    """Return whether these letters follow the first one; `fifth` is 0 for words of four."""
    size = 4 if fifth == 0 else 5
    if end - at < size or get_u8(at, 1) != second or get_u8(at, 2) != third or get_u8(at, 3) != fourth:
        return False
    return bool(fifth == 0 or get_u8(at, 4) == fifth)


@inner
def _number(at: int, end: int, kind: int, value: int) -> Any:
    """Read a number, and store it at the address `value`; return the end, or -1."""
    negative = get_u8(at, 0) == _MINUS
    if negative:
        at += 1
    total: Any = 0
    first, fraction = at, 0
    while at < end and get_u8(at, 0) >= _ZERO and get_u8(at, 0) <= _NINE and at - first <= _INT_DIGITS_MAX:
        total = total * 10 + (np.int64(get_u8(at, 0)) - _ZERO)
        at += 1
    digits = at - first
    if digits == 0 or digits > _INT_DIGITS_MAX or (digits > 1 and get_u8(first, 0) == _ZERO):
        return -1
    if at < end and get_u8(at, 0) == _POINT:
        if kind == INTEGER:
            return -1
        at += 1
        point = at
        while at < end and get_u8(at, 0) >= _ZERO and get_u8(at, 0) <= _NINE and digits <= _FLOAT_DIGITS_MAX:
            total = total * 10 + (np.int64(get_u8(at, 0)) - _ZERO)
            at += 1
            digits += 1
        fraction = at - point
        if fraction == 0:
            return -1
    if negative and total == 0:
        return -1
    if kind != FLOAT:
        put(value, 0, -total if negative else total)
        return at
    if digits > _FLOAT_DIGITS_MAX:
        return -1
    scale = 1.0
    for _ in range(fraction):
        scale *= 10.0
    exact = np.float64(total) / scale  # both are exact, so the quotient is rounded once
    put_f64(value, 0, -exact if negative else exact)
    return at


@inner
def _value(at: int, end: int, kind: int, value: int, size: int, state: int) -> Any:
    """Read a value and store it; return where it ends, or -1.

    Args:
        kind: How the column is read; -1: the field is ignored.
        value: Gets a number, or where a string begins; `size` gets its length.
    """
    if at >= end:
        return -1
    first_byte = get_u8(at, 0)
    put_u8(state, 0, GIVEN)
    if first_byte == _QUOTE:
        stop = _string_end(at + 1, end)
        if stop < 0 or (kind != STRING and kind != _IGNORED):
            return -1
        put(value, 0, at + 1)
        put(size, 0, stop - at - 1)
        return stop + 1
    if first_byte == _N:
        put_u8(state, 0, NULL)
        put(value, 0, 0)
        put(size, 0, 0)
        return at + 4 if _is_word(at, end, 117, 108, 108, 0) else -1
    if first_byte == _T or first_byte == _F:
        if kind != BOOL and kind != _IGNORED:
            return -1
        put(value, 0, np.int64(first_byte == _T))
        if first_byte == _T:
            return at + 4 if _is_word(at, end, 114, 117, 101, 0) else -1
        return at + 5 if _is_word(at, end, 97, 108, 115, 101) else -1
    if kind == STRING or kind == BOOL:
        return -1
    return _number(at, end, kind, value)


@inner
def _column_of(at: int, size: int, names: int, bounds: Any) -> Any:
    """Return the column of this name, or -1."""
    for column in range(bounds.size - 1):
        if bounds[column + 1] - bounds[column] == size and _is(at, at + size, names + bounds[column], size):
            return column
    return _IGNORED


@inner
def _row(at: int, end: int, row: int, rows: int, names: int, bounds: Any, kinds: Any, out: Any, order: Any) -> bool:
    """Read one object; return whether it is accepted."""
    values, sizes, states = out
    scratch_place = kinds.size * rows  # where ignored values are stored
    if end - at < 2 or get_u8(at, 0) != _OPEN:
        return False
    at = _past_spaces(at + 1, end)
    if at < end and get_u8(at, 0) == _CLOSE:
        return bool(at + 1 == end)
    field = 0
    while True:
        if at >= end or get_u8(at, 0) != _QUOTE:
            return False
        at += 1
        column = order[field] if field < _FIELDS_MAX else _IGNORED
        size = bounds[column + 1] - bounds[column] if column >= 0 else 0
        name = names + bounds[column] if column >= 0 else 0
        if column >= 0 and at + size < end and get_u8(at, size) == _QUOTE and _is(at, end, name, size):
            at += size + 1
        else:
            stop = _string_end(at, end)
            if stop < 0:
                return False
            for each in range(stop - at):
                if get_u8(at, each) > _ASCII_MAX:
                    return False
            column = _column_of(at, stop - at, names, bounds)
            if field < _FIELDS_MAX:
                order[field] = column
            at = stop + 1
        at = _past_spaces(at, end)
        if at >= end or get_u8(at, 0) != _COLON:
            return False
        at = _past_spaces(at + 1, end)
        kind, place = (kinds[column], column * rows + row) if column >= 0 else (_IGNORED, scratch_place)
        if column >= 0 and get_u8(states + place, 0) != MISSING:  # a field that occurs twice
            return False
        at = _value(at, end, kind, values + (place << 3), sizes + (place << 3), states + place)
        if at < 0:
            return False
        at = _past_spaces(at, end)
        if at >= end:
            return False
        found = get_u8(at, 0)
        if found == _CLOSE:
            return bool(at + 1 == end)
        if found != _COMMA:
            return False
        at = _past_spaces(at + 1, end)
        field += 1


@kernel("number", "number", "words", "bytes", "words", "words", "words", "words", "bytes", "flags")
def parsed(
    data: int, starts: Any, names: Any, bounds: Any, kinds: Any, values: Any, sizes: Any, states: Any, accepted: Any
) -> Any:
    """Read objects into columns, one after the other in each array, with one more place for ignored values.

    Args:
        data: The address of the text; `starts` are where each object begins in it, and where the last one ends.
        names: The names of the columns; they have no quote, no backslash, and ASCII only. `bounds` as `starts`.
        kinds: How each column is read.
        values: Numbers, bits of floats, or the addresses of strings; `sizes` are lengths of strings.
        states: Whether each object has a value for each column; all `MISSING` before.
        accepted: Whether an object was read.

    Returns:
        How many were read.
    """
    rows, names_at, count = starts.size - 1, address_of(names), 0
    out = (address_of(values), address_of(sizes), address_of(states))
    order = np.full(_FIELDS_MAX, _IGNORED, np.int64)
    for row in range(rows):
        end = data + starts[row + 1]
        accepted[row] = _row(data + starts[row], end, row, rows, names_at, bounds, kinds, out, order)
        count += accepted[row]
    return count


@kernel("none", "words", "words", "bytes", "bytes")
def copied(places: Any, sizes: Any, bounds: Any, data: Any) -> None:
    """Copy strings, which are at these addresses, into one array; `bounds` gets int32 offsets, as Arrow has them."""
    at, bounds_at, total = address_of(data), address_of(bounds), 0
    put_i32(bounds_at, 0, 0)
    for row in range(places.size):
        source = places[row]
        for each in range(sizes[row]):
            put_u8(at + total, each, get_u8(source, each))
        total += sizes[row]
        put_i32(bounds_at, row + 1, total)
