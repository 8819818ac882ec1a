"""Secrets that a job refers to and never holds: the passwords of systems that it reads and writes.

A `Secret` is a reference. It is compared, pickled and sent to workers like any configuration; each process resolves it
when it connects.

Invariants
    - Neither the repr of a `Secret` nor any message of this module shows a value, or what was given as a reference.

Source: API.md (secrets).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import ConfigError

_WAYS = 'write hf.secret("env:NAME"), the name of an environment variable, or hf.secret("file:/path"), a file'


@dataclass(frozen=True, repr=False)
class Secret:
    """A value that each process looks up for itself: see `secret`."""

    reference: str

    def __repr__(self) -> str:
        return "***"

    def resolve(self) -> str:
        """Return the value, of a file without its last line break.

        Raises:
            ConfigError: this process has no such variable or file, or it is empty.
        """
        kind, _, name = self.reference.partition(":")
        try:
            value = os.environ.get(name, "") if kind == "env" else Path(name).read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise _unresolved(f"the secret file {name} cannot be read: {why}") from None
        if not value:
            where = (
                f"the environment variable {name} is not set" if kind == "env" else f"the secret file {name} is empty"
            )
            raise _unresolved(where)
        return value


def secret(reference: str) -> Secret:
    """Refer to a password or key, which every process looks up when it connects; jobs and plans never hold it.

    Args:
        reference: "env:NAME", the name of an environment variable, or "file:/path", an absolute path. The driver and
            every worker need it.

    Raises:
        ConfigError: it is neither.
    """
    kind, _, name = reference.partition(":") if isinstance(reference, str) else ("", "", "")
    if kind not in ("env", "file") or not name or (kind == "file" and not os.path.isabs(name)):
        raise ConfigError(
            "hf.secret takes a reference to a secret, not the secret; what it was given is not repeated here",
            not_done="the job was not planned",
            next_step=f"{_WAYS} with an absolute path",
        )
    return Secret(reference)


def _unresolved(what: str) -> ConfigError:
    return ConfigError(
        what,
        not_done="no connection was opened",
        next_step="provide it to the driver and to every worker; for executors of Spark, for example by "
        "spark.executorEnv.NAME or a file that every machine has",
    )
