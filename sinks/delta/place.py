"""Where a Delta table is, and the options of its object store, which hold no secret.

Invariants
    - No value of this module but the result of `settings` holds a secret.
    - An option that lets two commits take the same version is refused.

Source: delta-rs, object store options; docs/decisions/0084-delta-sink.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.secrets import Secret
from holdfast.sinks.lakehouse.options import Option, Options, check_option, refused, revealed, secrets_of
from holdfast.sinks.lakehouse.options import without_secrets as without

_MISREAD = re.compile(r"[#?\[\]\\^|\x00-\x1f\x7f]|%[0-9A-Fa-f]{2}")
"""Characters that the library treats as a part of a URL, or reads as another character."""
_UNSAFE = {
    "aws_s3_allow_unsafe_rename": "two commits could take the same version of the table, and one of them be lost",
    "mount_allow_unsafe_rename": "two commits could take the same version of the table, and one of them be lost",
    "aws_s3_locking_provider": "commits are made by conditional puts, which need no lock",
    "aws_conditional_put": "commits are made by conditional puts",
    "conditional_put": "commits are made by conditional puts",
}
DEFAULTS: Mapping[str, str] = {"max_retries": "3", "retry_timeout": "20s"}
"""Options that a job may change. The library would try for three minutes before a status could report anything."""
_SCHEMES = ("s3://", "s3a://", "gs://", "az://", "abfs://", "abfss://")


@dataclass(frozen=True)
class DeltaPlace:
    """A table.

    Args:
        path: An absolute path, or a URL.
        options: Options of the object store, sorted by name.
    """

    path: str
    options: Options = ()

    @property
    def where(self) -> str:
        """How messages name it."""
        return f"Delta table {self.path}"

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """The secrets that the options name."""
        return secrets_of(self.options)

    def settings(self) -> dict[str, str]:
        """Return the options with the values of secrets.

        Raises:
            ConfigError, NotAdmitted: a secret cannot be read.
        """
        given = revealed(self.options)
        return {**DEFAULTS, **given} if "://" in self.path else given

    def without_secrets(self, text: str) -> str:
        """Return a text of a library without the values of this place's secrets."""
        return without(text, self.secrets)


def place_of(path: str, options: Mapping[str, Option] | None) -> DeltaPlace:
    """Return the place that a job gives.

    Args:
        path: An absolute path, or a URL without a password.

    Raises:
        ConfigError: it is malformed, holds a secret, or makes commits unsafe.
    """
    if "://" in path and not path.startswith(_SCHEMES):
        raise refused(
            "hf.Delta",
            f"{path.partition('://')[0]}:// is not a place for tables",
            f"give a path, or a URL that begins with {', '.join(_SCHEMES)}",
        )
    if found := _MISREAD.search(path):
        raise refused(
            "hf.Delta",
            f"the path contains {found[0]!r}, with which the library would look for the table in another place",
            "rename the folder; what follows a ? in a URL belongs in options=",
        )
    given = {} if options is None else dict(options)
    for name, value in given.items():
        _check(name, value)
    return DeltaPlace(path.rstrip("/") or path, tuple(sorted(given.items())))


def unsafe(environment: Mapping[str, str]) -> str | None:
    """Return the variable that makes commits unsafe, None if there is none; delta-rs reads its options there too."""
    names = (name for name in environment if name.lower() in _UNSAFE and "unsafe" in name.lower())
    return next((name for name in names if environment[name].lower() in ("1", "true", "on", "yes", "y")), None)


def _check(name: str, value: object) -> None:
    if name.lower() in _UNSAFE:
        raise refused("hf.Delta", f"the option {name!r} is refused: {_UNSAFE[name.lower()]}", "leave it out")
    check_option("hf.Delta", name, value)
