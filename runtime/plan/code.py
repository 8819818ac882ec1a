"""The modules of a job that travel to workers by value, as modules there: functions and classes can be pickled by name.

A worker cannot import the job's file, and has no module of its name. The functions themselves work there, but `pickle`
finds a function by the name of its module. So does `multiprocessing` when a function gives work to forked children. So
a plan carries, for each of these modules, a function with the module's names; where the plan arrives, a module is made
of the names that travelled.

Invariants
    - Functions of one plan share their names with the module, so pickle finds the same objects.
    - A module that the worker has already is not replaced; it also finds names that it lacks itself.
    - Code that imports such a module itself, as a worker on the driver's machine can, gets names that have not
      travelled.

Source: cloudpickle, which keeps one dictionary of globals per module and pickle; pickle, save_global.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import FunctionType, ModuleType
from typing import Any

_PICKLERS = ("cloudpickle", "pyspark.cloudpickle")
"""They send modules by value that have arrived by value: the receiving processes cannot import them either."""


class JobModule:
    """One module, for the pickle of a plan. Unpickling it makes the module."""

    def __init__(self, module: ModuleType) -> None:
        self.name = module.__name__
        self._names = FunctionType(_nothing.__code__, vars(module), "names")

    def __reduce__(self) -> tuple[Any, ...]:
        return arrived, (self.name, self._names)


def _nothing() -> None:
    """Belongs to the job's module when it is shipped: the globals of a function travel with it."""


class ArrivedModule(ModuleType):
    """A module of the job in a process that got it by value."""

    _holdfast_names: dict[str, Any]
    _holdfast_real: ModuleType | None

    def __getattr__(self, name: str) -> Any:
        if name in self._holdfast_names:
            return self._holdfast_names[name]
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if (found := self._travelled(name)) is not None:
            return found
        return getattr(self._imported(), name)

    def _travelled(self, name: str) -> FunctionType | type | None:
        """Return a function or class that no function names as a global, such as one of another module's attributes."""
        for holder in gc.get_referrers(self._holdfast_names):
            if isinstance(holder, FunctionType) and holder.__qualname__ == name:
                return holder
        return next(
            (each for each in _classes(object) if (each.__module__, each.__qualname__) == (self.__name__, name)), None
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        elif name in self._holdfast_names:
            self._holdfast_names[name] = value
        else:
            try:
                setattr(self._imported(), name, value)
            except AttributeError:
                super().__setattr__(name, value)

    def _imported(self) -> ModuleType:
        """Return the module itself, if it can be imported here. Raises AttributeError: it cannot."""
        if self._holdfast_real is not None:
            return self._holdfast_real
        spec = None if self.__name__ == "__main__" else PathFinder.find_spec(self.__name__)
        if spec is None or spec.loader is None:
            raise AttributeError(f"module {self.__name__!r} has only the names here that the job's functions use")
        real = module_from_spec(spec)
        spec.loader.exec_module(real)
        vars(self)["_holdfast_real"] = real
        return real


def arrived(name: str, names: FunctionType) -> str:
    """Make a module of the names that travelled, or add them to one; return its name."""
    module = sys.modules.get(name)
    if module is None:
        module = sys.modules[name] = ModuleType(name)
    if type(module) is ModuleType:
        module.__class__ = ArrivedModule
        vars(module)["_holdfast_real"] = None
    if isinstance(module, ArrivedModule):
        vars(module)["_holdfast_names"] = names.__globals__
        if name != "__main__":  # which goes by value anyway
            for pickler in _PICKLERS:
                if (found := sys.modules.get(pickler)) is not None:
                    found.register_pickle_by_value(module)
    return name


def _classes(base: type) -> Iterator[type]:
    """Return all classes of this process."""
    below: list[type] = type.__subclasses__(base)
    for each in below:
        yield each
        if each is not type:
            yield from _classes(each)
