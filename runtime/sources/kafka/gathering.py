"""Compiled loops over messages of librdkafka: their parts are copied into columns, without a Python object per message.

A message is a structure of nine words, `library.Message`; a batch of them is an array of addresses.

Pure: memory only, and functions of the library by their address. Source: librdkafka, rdkafka.h.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from holdfast.state.compiled.jit import inner, kernel
from holdfast.state.compiled.memory import address_of, get, get_u8, intrinsic, put, put_i32, put_u8

PAYLOAD, KEY = 3, 5
"""Words of a message; the length of the part is the next word."""
_OFFSET = 7
_ERROR_MASK = 0xFFFFFFFF
_AT_END = -191 & _ERROR_MASK
"""The error of a message that says only that a fetch has reached the end of the partition."""
_I32, _I64 = ir.IntType(32), ir.IntType(64)


@intrinsic
def _call(typing: Any, function: Any, message: Any) -> Any:
    """Call `void function(message)`."""

    def generated(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_I64])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [arguments[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generated


@intrinsic
def _asked(typing: Any, function: Any, message: Any, result: Any) -> Any:
    """Call `int64 function(message, result *)`."""

    def generated(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_I64, [_I64, _I64])
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [arguments[1], arguments[2]])

    return types.int64(types.int64, types.int64, types.int64), generated


@inner
def _copy(target: int, source: int, size: int) -> None:
    words = size >> 3
    for each in range(words):
        put(target, each, get(source, each))
    for each in range(words << 3, size):
        put_u8(target, each, get_u8(source, each))


@kernel("number", "words", "number", "number", "number")
def without_error(messages: Any, first: int, end: int, bytes_max: int) -> Any:
    """Return the end of the run of messages from the first on that are records, and have so many bytes together."""
    size, at = 0, first
    while at < end:
        message = messages[at]
        size += get(message, PAYLOAD + 1) + get(message, KEY + 1)
        if get(message, 0) & _ERROR_MASK != 0 or (size > bytes_max and at > first):
            break
        at += 1
    return at


@kernel("number", "words", "number", "words")
def ends_last(messages: Any, count: int, ends: Any) -> Any:
    """Move messages that only say that the end was reached behind all others; return how many others there are.

    Args:
        ends: Room for as many addresses.
    """
    others, end_count = 0, 0
    for each in range(count):
        message = messages[each]
        if get(message, 0) & _ERROR_MASK == _AT_END:
            ends[end_count] = message
            end_count += 1
        else:
            messages[others] = message
            others += 1
    for each in range(end_count):
        messages[others + each] = ends[each]
    return others


@kernel("number", "words", "number", "number", "words", "number")
def sized(messages: Any, first: int, end: int, offsets: Any, part: int) -> Any:
    """Note the offsets of messages; return the bytes of a part of them."""
    size = 0
    for each in range(first, end):
        message = messages[each]
        offsets[each - first] = get(message, _OFFSET)
        size += get(message, part + 1)
    return size


@kernel("number", "words", "number", "number", "number", "bytes", "bytes", "flags")
def gathered(messages: Any, first: int, end: int, part: int, bounds: Any, data: Any, present: Any) -> Any:
    """Copy a part of messages into one array.

    Args:
        bounds: Gets int32 offsets into `data`, as Arrow has them.
        present: Whether a message has the part.

    Returns:
        How many do not have it.
    """
    bounds_at, data_at, size, missing = address_of(bounds), address_of(data), 0, 0
    put_i32(bounds_at, 0, 0)
    for each in range(first, end):
        message = messages[each]
        source, length = get(message, part), get(message, part + 1)
        present[each - first] = source != 0
        if source == 0:
            missing += 1
        else:
            _copy(data_at + size, source, length)
            size += length
        put_i32(bounds_at, each - first + 1, size)
    return missing


@kernel("none", "words", "number", "number", "number", "words", "words")
def asked(messages: Any, first: int, end: int, function: int, answers: Any, results: Any) -> None:
    """Call `int64 function(message, result *)` for messages, and note both."""
    at = address_of(results)
    for each in range(first, end):
        results[each - first] = 0
        answers[each - first] = _asked(function, messages[each], at + ((each - first) << 3))


@kernel("none", "words", "number", "number")
def dropped(messages: Any, count: int, function: int) -> None:
    """Hand messages back to the library, with its own function."""
    for each in range(count):
        _call(function, messages[each])
