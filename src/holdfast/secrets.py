"""Secrets of a job: where a value is, never the value itself.

Code, plans, job logs and the tasks that Spark sends hold a `Secret`, which names an environment variable or a file. The
process that opens a connection reads the value there, on its own machine, each time it connects.

Invariants
    - No attribute, text or pickle of a Secret holds the value.
    - No message repeats a value, or a text that may be one.

Source: API.md (secrets); docs/decisions/0077-secrets.md.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass

from holdfast.arguments import checked
from holdfast.errors import ConfigError, NotAdmitted

SHOWN = "***"
BYTES_MAX = 64 * 1024
"""Length of a secret in a file."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACES = '"env:NAME" for an environment variable, "file:/path" for a file with an absolute path'


@dataclass(frozen=True, repr=False)
class Secret:
    """The place of a secret. Two are equal if they name the same place.

    Args:
        reference: "env:NAME" or "file:/path".

    Raises:
        ConfigError: the reference has another form.
    """

    reference: str

    def __post_init__(self) -> None:
        kind, _, name = str(self.reference).partition(":")
        known = kind == "env" and _VARIABLE.fullmatch(name), kind == "file" and name.startswith("/")
        if not any(known) or "\0" in name:
            raise ConfigError(
                "hf.secret takes the place of a secret, not the secret; its argument is not repeated here, as it may "
                "be the value",
                not_done="the job was not planned",
                next_step=f'write {_PLACES}, such as hf.secret("env:PG_PASSWORD")',
            )

    def __repr__(self) -> str:
        return SHOWN

    def value(self) -> str:
        """Read the value on this machine, now. One line end at the end of a file is not part of it.

        Raises:
            ConfigError: the environment variable is missing or empty, which cannot change while this process runs.
            NotAdmitted: the file cannot be read, or holds no text of 1 byte to 64 KiB; it may be replaced.
        """
        kind, _, name = self.reference.partition(":")
        return _from_environment(name) if kind == "env" else _from_file(name)


@checked("hf.secret", '("env:PG_PASSWORD")')
def secret(reference: str) -> Secret:
    """Name the place of a secret, such as a password, for a connector that takes one.

    The value stays out of the job: the driver and each worker read it when they connect, from their own environment or
    file. `repr` gives `***`.

    Args:
        reference: "env:NAME": the environment variable of this name. "file:/path": the file at this absolute path,
            without one line end at its end; it is read again for each connection.

    Raises:
        ConfigError: the reference has another form.
    """
    return Secret(reference)


def secret_argument(given: object, called: str) -> Secret | None:
    """Return a connector's argument that has to be an `hf.secret`, or None.

    Args:
        called: The argument in messages, such as "hf.Postgres(password=)".

    Raises:
        ConfigError: it is something else, which is not repeated.
    """
    if given is None or isinstance(given, Secret):
        return given
    raise ConfigError(
        f"{called} is not an hf.secret; it is not repeated here, as it may be the value",
        not_done="the job was not planned",
        next_step=f"name its place: hf.secret({_PLACES}); and change a value that is in the code",
    )


def _from_environment(name: str) -> str:
    value = os.environ.get(name)
    if not value or not _is_text(value):
        fault = "is not set" if value is None else "is not text in UTF-8" if value else "is empty"
        raise ConfigError(
            f"the environment variable {name}, which a secret names, {fault} on {socket.gethostname()}",
            not_done="no connection was opened",
            next_step=f"set {name} for the driver and for the executors on every host, and start the job again; or "
            'keep the value in a file that all of them have: hf.secret("file:/path")',
        )
    return value


def _from_file(path: str) -> str:
    try:
        if not os.path.isfile(path):
            raise _unreadable(path, "is not a file" if os.path.exists(path) else "does not exist")
        with open(path, "rb") as file:
            data = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(path, f"cannot be read ({error.strerror})") from error
    if len(data) > BYTES_MAX:
        raise _unreadable(path, f"is larger than {BYTES_MAX:,} bytes")
    text = data.decode(errors="replace").removesuffix("\n").removesuffix("\r")
    if "\ufffd" in text:  # an exception of the decoder would hold the value
        raise _unreadable(path, "is not text in UTF-8")
    if not text or "\0" in text:
        raise _unreadable(path, "holds a NUL character" if text else "is empty")
    return text


def _unreadable(path: str, fault: str) -> NotAdmitted:
    return NotAdmitted(
        f"the file {path}, which a secret names, {fault} on {socket.gethostname()}",
        not_done="no connection was opened",
        next_step="put the value into that file, on this host and on every other one, readable by the user of the job; "
        "the next attempt to connect reads it",
    )


def _is_text(value: str) -> bool:
    return value == value.encode(errors="replace").decode()  # Python keeps bytes that are not UTF-8 as surrogates
