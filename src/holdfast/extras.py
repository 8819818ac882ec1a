"""Gives the command that installs the packages of a connector or a command.

Holdfast may have been installed from a checkout, from a wheel or from an index, and only the last one knows the name
`holdfast[kafka]`. The packages that an extra stands for can be named in each of them.

Source: packaging.python.org, core metadata (Requires-Dist).
"""

from __future__ import annotations

import re
from importlib import metadata

_REQUIRED = re.compile(r"""(?P<package>[^<>=!~; ]+)(?P<versions>[^;]*?)\s*;\s*extra\s*==\s*["'](?P<extra>[^"']+)["']""")


def install(*extras: str, of: str = "holdfast") -> str:
    """Return the command that installs the packages of extras, such as "pip install 'confluent-kafka>=2.6,<3'".

    Where the versions are unknown, as in a zip archive of modules, the extras are named.

    Args:
        of: The package that has the extras.
    """
    known = packages(of)
    wanted = dict.fromkeys(each for extra in extras for each in known.get(extra, []))
    return " ".join(["pip install", *(f"'{each}'" for each in wanted or [f"{of}[{','.join(extras)}]"])])


def packages(of: str = "holdfast") -> dict[str, list[str]]:
    """Return the packages of each extra of a package, with the versions that it takes; none if it is not installed."""
    try:
        requirements = metadata.requires(of) or []
    except metadata.PackageNotFoundError:
        return {}
    packages_by_extra: dict[str, list[str]] = {}
    for each in requirements:
        if (match := _REQUIRED.fullmatch(each.strip())) is not None:
            bounds = sorted(match["versions"].split(","), key=lambda bound: not bound.startswith((">", "=")))
            packages_by_extra.setdefault(match["extra"], []).append(f"{match['package']}{','.join(bounds)}")
    return packages_by_extra
