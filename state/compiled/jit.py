"""Decorators of compiled functions.

Importing this module imports Numba. A *kernel* is called from Python; its one signature is compiled, or loaded from the
cache, when its module is imported. So no batch ever waits for a compiler. A call with other types is an error. An
*inner* function is compiled into the kernels that call it.

Kernels release the interpreter lock. They allocate little and call nothing that can raise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

from holdfast.state.compiled.cache import KernelCache

Function = TypeVar("Function", bound=Callable[..., Any])
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False}
_ARRAYS = {
    "words": "int64[::1]",
    "matrix": "int64[:,::1]",
    "bytes": "uint8[::1]",
    "number": "int64",
    "flags": "bool_[::1]",
}
_ARRAYS |= {"hashes": "uint64[::1]", "groups": "uint16[::1]", "none": "void"}


def kernel(result: str, *parameters: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function for these types: words, matrix (both int64), bytes, flags, hashes, groups, number, none."""
    signature = f"{_ARRAYS[result]}({', '.join(_ARRAYS[each] for each in parameters)})"

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        dispatcher: Any = numba.njit(**_OPTIONS)(function)
        dispatcher._cache = KernelCache(function)
        dispatcher.compile(signature)
        dispatcher.disable_compile()
        return cast(Callable[..., Any], dispatcher)

    return compiled


def inner(function: Function) -> Function:
    """Compile a function as a part of the kernels that call it."""
    return cast(Function, numba.njit(forceinline=True, **_OPTIONS)(function))
