"""Options of an object store, as a job gives them to a table: text, and references to secrets.

Options travel to the workers and are part of a pickled job. So an option that is secret takes a `Secret`, which each
process reads when it opens the table.

Invariants
    - No value of this module but the result of `revealed` holds a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress

from holdfast.errors import ConfigError, HoldfastError
from holdfast.secrets import SHOWN, Secret
from holdfast.storage.paths import refuse_password

Option = str | Secret
Options = tuple[tuple[str, Option], ...]
"""Options, sorted by name."""
_SECRET = re.compile(
    r"secret|password|token|adls\.credential$|(account|master|customer|sas)[_-]key|access[_-]key$|private|connection-string",
    re.IGNORECASE,
)
_PUBLIC = re.compile(r"token_file$|token[._-]expires|oauth2-server-uri$", re.IGNORECASE)


def check_option(sink: str, name: str, value: object) -> None:
    """Refuse an option that is not text, or holds a secret. Raises ConfigError."""
    if isinstance(value, Secret):
        return
    if _SECRET.search(name) and not _PUBLIC.search(name):
        raise refused(
            sink,
            f"the option {name!r} holds a secret, which a plan or a pickled job would expose",
            f'give a reference: options={{"{name}": hf.secret("env:NAME")}}; then change this secret, as it stands in '
            "the code",
        )
    if not isinstance(value, str):
        raise refused(sink, f"the option {name!r} is a {type(value).__name__}", "give text, or hf.secret(...)")
    refuse_password(value, f"the option {name!r} of {sink}")


def refused(sink: str, what: str, next_step: str) -> ConfigError:
    """Return the error for an argument that cannot be planned with."""
    return ConfigError(f"{sink}: {what}", not_done="the job was not planned", next_step=next_step)


def secrets_of(options: Options) -> tuple[Secret, ...]:
    """Return the secrets that the options name."""
    return tuple(each for _, each in options if isinstance(each, Secret))


def revealed(options: Options) -> dict[str, str]:
    """Return the options with the values of secrets. Raises ConfigError or NotAdmitted: a secret cannot be read."""
    return {name: each.value() if isinstance(each, Secret) else each for name, each in options}


def without_secrets(text: str, secrets: Iterable[Secret]) -> str:
    """Return a text of a library without the values of these secrets."""
    for each in secrets:
        with suppress(HoldfastError):  # it cannot be read any longer; the next commit reports that
            text = text.replace(each.value(), SHOWN)
    return text
