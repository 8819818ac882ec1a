"""Checks the options that a Spark query gives to a data source of Holdfast.

Spark compares the names of options without case, and hands them over in lower case. A name that a source does not know
is refused when the query is planned: a misspelt option would otherwise have no effect.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from holdfast.errors import ConfigError


def checked_options(
    source: str, options: Mapping[str, str], required: Sequence[str], optional: Sequence[str], not_done: str
) -> dict[str, str]:
    """Return the options that were given, by their names as written here.

    Raises:
        ConfigError: an option is missing or empty, or its name is unknown.
    """
    names = {name.lower(): name for name in (*required, *optional)}
    unknown = sorted(name for name in options if name.lower() not in names)
    option_values = {names[name.lower()]: value for name, value in options.items() if name.lower() in names}
    missing = [name for name in required if not option_values.get(name)]
    if unknown or missing:
        what = f"no option {missing[0]!r} is given" if missing else f"there is no option {unknown[0]!r}"
        known = " and ".join(f'.option("{name}", ...)' for name in required)
        more = f" and, if wanted, {', '.join(optional)}" if optional else ""
        raise ConfigError(f"{source}: {what}", not_done=not_done, next_step=f"use {known}{more}")
    return option_values


def wrong_option(source: str, name: str, value: str, not_done: str, next_step: str) -> ConfigError:
    """Return the error that refuses the value of an option."""
    return ConfigError(f'{source}: option("{name}") is {value!r}', not_done=not_done, next_step=next_step)


def absolute(path: str) -> str:
    """Return a path that names the same folder for every task; a URL stays as it is."""
    return path if "://" in path else os.path.abspath(path)
