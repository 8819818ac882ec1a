"""Operations of kernels that Python cannot express: loads and stores by address, prefetch, 128-bit products.

Inside kernels, memory is an address and words are numbered from there. An array would be passed to every inner function
as seven numbers and counted, and each index checked for being negative. That makes a row five times as expensive.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic as untyped_intrinsic

from holdfast.state.compiled.jit import inner

_I8, _I32, _I64, _I128 = (ir.IntType(bits) for bits in (8, 32, 64, 128))


def intrinsic(function: Any) -> Any:
    """Numba's decorator, whose result is called with other parameters than the function has."""
    return untyped_intrinsic(function)


def _loads(kind: Any, stored: Any) -> Any:
    @intrinsic
    def load(typing: Any, address: Any, index: Any) -> Any:
        def generated(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            first = builder.inttoptr(arguments[0], stored.as_pointer())
            return builder.load(builder.gep(first, [arguments[1]]), align=1)

        return kind(types.int64, types.int64), generated

    return load


def _stores(kind: Any, stored: Any) -> Any:
    @intrinsic
    def store(typing: Any, address: Any, index: Any, value: Any) -> Any:
        def generated(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            first = builder.inttoptr(arguments[0], stored.as_pointer())
            builder.store(arguments[2], builder.gep(first, [arguments[1]]), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, kind), generated

    return store


get, get_u8 = _loads(types.int64, ir.IntType(64)), _loads(types.uint8, ir.IntType(8))
get_f64, get_f32 = _loads(types.float64, ir.DoubleType()), _loads(types.float32, ir.FloatType())
put, put_u16, put_u8 = (
    _stores(kind, ir.IntType(bits)) for kind, bits in ((types.int64, 64), (types.uint16, 16), (types.uint8, 8))
)
put_i32 = _stores(types.int32, ir.IntType(32))
put_f64, put_f32 = _stores(types.float64, ir.DoubleType()), _stores(types.float32, ir.FloatType())


@intrinsic
def address_of(typing: Any, array: Any) -> Any:
    """Return where the elements of an array begin. The array must outlive the use: only pass a kernel's arguments."""

    def generated(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, value=arguments[0]).data
        return builder.ptrtoint(data, _I64)

    return types.int64(array), generated


@intrinsic
def prefetch(typing: Any, address: Any, index: Any) -> Any:
    """Have the processor load the line of a word; it may lie anywhere."""

    def generated(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first = builder.inttoptr(arguments[0], _I64.as_pointer())
        pointer = builder.bitcast(builder.gep(first, [arguments[1]]), _I8.as_pointer())
        call = builder.module.declare_intrinsic(
            "llvm.prefetch", [_I8.as_pointer()], ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
        )
        builder.call(call, [pointer, _I32(1), _I32(3), _I32(1)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generated


@inner
def word_at(address: int, at: int) -> Any:
    """Return the 8 bytes that begin at this byte, little-endian, uint64."""
    return np.uint64(get(address + at, 0))


@intrinsic
def fold_product(typing: Any, one: Any, other: Any) -> Any:
    """Return low XOR high half of the 128-bit product of two uint64."""

    def generated(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        product = builder.mul(*(builder.zext(each, _I128) for each in arguments))
        high = builder.trunc(builder.lshr(product, _I128(64)), _I64)
        return builder.xor(builder.trunc(product, _I64), high)

    return types.uint64(types.uint64, types.uint64), generated


@intrinsic
def byte_swapped(typing: Any, word: Any) -> Any:
    """Return a uint64 with its bytes in reverse order."""

    def generated(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bswap(arguments[0])

    return types.uint64(types.uint64), generated


@inner
def is_valid(validity: int, at: int) -> bool:
    """Return a bit of a validity bitmap."""
    return bool((np.int64(get_u8(validity, at >> 3)) >> (at & 7)) & 1 != 0)
