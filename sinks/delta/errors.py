"""Maps an error of delta-rs to its meaning for a delivery: who acts.

The library raises few kinds. Its conflicts, refusals of the table and errors of the object store have fixed texts, so
class and text are compared.

Invariants
    - An error that may have come after the commit is Unavailable: the newest version decides.
    - No message shows the value of a secret.

Source: delta-rs, python/src/error.rs and crates/core/src/kernel/transaction.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, SchemaMismatchError

from holdfast.errors import HoldfastError
from holdfast.sinks.contract.phrases import broken, not_admitted, refused, unknown
from holdfast.sinks.delta.place import DeltaPlace
from holdfast.sinks.lakehouse.lost_files import data_file_gone, is_data_file_gone

RAISED = (DeltaError, OSError, ValueError, RuntimeError)
"""Errors that calls of the library raise."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m↳?")
_DOCUMENT = re.compile(r"(<\?xml[^>]*>\s*)?<Error>.*?</Error>", re.DOTALL)
"""The answer of S3, with identifiers of the request that do not help a user."""
_ABOUT = re.compile(r"<(?:Code|Message)>(.*?)</(?:Code|Message)>", re.DOTALL)
_CONFLICT = re.compile(r"Failed to commit transaction|existing table version|already exists", re.IGNORECASE)
_NOT_ADMITTED = re.compile(
    r"permission denied|access ?denied|forbidden|unauthori[sz]ed|unauthenticated|InvalidAccessKeyId|"
    r"SignatureDoesNotMatch|ExpiredToken|InvalidToken|\b40[13]\b",
    re.IGNORECASE,
)
_GAP = re.compile(r"contiguous commit files|found gap", re.IGNORECASE)
_REFUSED = re.compile(
    r"append-only|features? (must|required)|unsupported|not (yet )?implemented|invariant|constraint", re.IGNORECASE
)


def is_conflict(error: Exception) -> bool:
    """Return whether another commit took the version, so that ours is not in."""
    return isinstance(error, CommitFailedError) and bool(_CONFLICT.search(str(error)))


def meaning_of(place: DeltaPlace, error: Exception) -> HoldfastError:
    """Return the error's meaning for a delivery."""
    text = _DOCUMENT.sub(lambda found: ": ".join(_ABOUT.findall(found[0])), place.without_secrets(str(error)))
    message = " ".join(_COLOURS.sub(" ", text).split())
    nameless_text = _without_names(place, message)
    if _NOT_ADMITTED.search(nameless_text):
        return _LOGIN(place.where, message)
    if _GAP.search(nameless_text):
        return _HOLE(place.where, f"commits are missing in the middle of the table's log: {message[:300]}")
    if isinstance(error, DeltaProtocolError | SchemaMismatchError) or _REFUSED.search(nameless_text):
        return _CHANGED(place.where, message)
    if "NoSuchBucket" in nameless_text:
        return _BUCKET(place.where, message)
    return data_file_gone(place.where, message) if is_data_file_gone(message) else _UNREACHABLE(place.where, message)


_LOGIN = not_admitted(
    "the store did not let this user in",
    "give this user the rights to read, write and list below the table, or correct the credentials in options= or in "
    "the environment of the driver and of each worker",
)
_HOLE = broken("restore the table from a backup, and rewind the job to a checkpoint that the backup covers")
_CHANGED = refused(
    "the table refuses the delivery",
    "revert the schema change made after the job started, or give the sink another table",
)
_BUCKET = not_admitted("the bucket does not exist", "create the bucket, or correct its name")
_UNREACHABLE = unknown("check that the store is reachable from this host and has space left")


def _without_names(place: DeltaPlace, said: str) -> str:
    """Return a text without the names of the table's folders, which may contain any word."""
    whole = place.path.partition("://")[2] or place.path
    inner = whole.partition("/")[2]  # without the bucket, which may be part of the host's name
    for name in (whole, inner, quote(inner, safe="")):
        if name:
            said = re.sub(rf"(?<!\w){re.escape(name)}(?=[/?]|%2F)", "", said)
    return said
