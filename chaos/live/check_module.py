"""Loads the function that a scenario names as its check, `module:function`.

The module is in the folder of the job, in that of the scenario, or on Python's path. Both folders stay on the path,
because a check may import its neighbours when it is called.

Invariant
    - A module beside the job or the scenario is never confused with a module of the same name from elsewhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

from holdfast.chaos.judge.findings import Check
from holdfast.errors import ConfigError


def function(named: str, folders: Sequence[Path]) -> Check:
    """Return the function.

    Args:
        named: module:function.
        folders: The folders of the job and of the scenario; the first takes precedence.

    Raises:
        ConfigError: there is no such function, or its module cannot be loaded.
    """
    module, _, name = named.partition(":")
    before = [str(folder) for folder in folders]
    sys.path[:] = [*before, *(path for path in sys.path if path not in before)]
    try:
        _check_same(module.partition(".")[0], before)
        attribute = getattr(import_module(module), name)
        if not callable(attribute):
            raise TypeError(f"{name} is a {type(attribute).__name__}, not a function")
    except (Exception, SystemExit) as error:  # the user's module may raise anything, and the user has to correct it
        location_hint = f" beside the job or the scenario ({', '.join(before)})," if before else ""
        raise ConfigError(
            f"the check {named!r} cannot be loaded: {type(error).__name__}: {error}",
            not_done="nothing was started",
            next_step=f"name a function as module:function, in a module{location_hint} or on PYTHONPATH",
        ) from error
    check: Check = attribute
    return check


def _check_same(module: str, folders: Sequence[str]) -> None:
    """Refuse a module if another of the same name is loaded: a process can hold only one."""
    spec, loaded = PathFinder.find_spec(module, folders), sys.modules.get(module)
    if spec is None or spec.origin is None or loaded is None:
        return
    there = getattr(loaded, "__file__", None)
    if there is None or os.path.realpath(there) != os.path.realpath(spec.origin):
        raise ImportError(f"{spec.origin} has the same name as a loaded module, {there}; rename it")
