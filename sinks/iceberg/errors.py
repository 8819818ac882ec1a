"""Maps an error of pyiceberg, its catalogue or its object store to its meaning for a delivery: who acts.

Invariants
    - An error that may have come after the commit is Unavailable: the newest metadata decides.
    - No message shows the value of a secret.

Source: pyiceberg/exceptions.py; docs.sqlalchemy.org/en/20/errors.html.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchNamespaceError,
    NoSuchTableError,
    ValidationException,
)
from sqlalchemy.exc import SQLAlchemyError

from holdfast.errors import HoldfastError
from holdfast.sinks.contract.phrases import broken, not_admitted, refused, unknown
from holdfast.sinks.iceberg.place import IcebergPlace
from holdfast.sinks.lakehouse.lost_files import data_file_gone, is_data_file_gone

RAISED = (
    *(SQLAlchemyError, OSError, ValueError, RuntimeError),
    *(CommitFailedException, CommitStateUnknownException, NoSuchNamespaceError, NoSuchTableError, ValidationException),
)
"""Errors that calls of the library raise, besides those of a store's own library."""
_NOT_ADMITTED = re.compile(
    r"permission denied|access ?denied|forbidden|unauthori[sz]ed|unauthenticated|InvalidAccessKeyId|"
    r"SignatureDoesNotMatch|ExpiredToken|InvalidToken|authentication failed|no pg_hba\.conf entry|"
    r"role .* does not exist|\bHTTP status(?: code)?:? 40[13]\b|readonly database|unable to open database file",
    re.IGNORECASE,
)
_UNSUPPORTED = re.compile(r"not (yet )?(implemented|support)", re.IGNORECASE)


def raised() -> tuple[type[Exception], ...]:
    """Return the errors of the library's calls. With `py-io-impl`, these may be botocore's, which are not OSErrors."""
    loaded: Any = sys.modules.get("botocore.exceptions")
    return RAISED if loaded is None else (*RAISED, loaded.BotoCoreError, loaded.ClientError)


def meaning_of(place: IcebergPlace, error: Exception) -> HoldfastError:
    """Return the error's meaning for a delivery."""
    message = " ".join(place.without_secrets(str(error)).split())[:600]
    if _NOT_ADMITTED.search(_without_names(place, message)):
        return _LOGIN(place.where, message)
    if "NoSuchBucket" in message:
        return _BUCKET(place.where, message)
    if isinstance(error, ValueError | RuntimeError) and _UNSUPPORTED.search(message):
        return _CHANGED(place.where, message)
    if is_data_file_gone(message):
        return data_file_gone(place.where, message)
    return _UNREACHABLE(place.where, f"{type(error).__name__}: {message}")


_LOGIN = not_admitted(
    "the catalogue or the store did not let this user in",
    "give this user the rights to read and write the catalogue and the warehouse, or correct password= or options=, or "
    "the environment of the driver and of each worker",
)
_BUCKET = not_admitted("the bucket of the warehouse does not exist", "create the bucket, or correct its name")
_CHANGED = refused(
    "the table has what a sink does not support",
    "revert the schema change made after the job started, such as equality deletes, or give the sink another table",
)
_UNREACHABLE = unknown("check that the catalogue and the store are reachable from this host and have space left")
_NO_METADATA = broken(
    "restore the warehouse and the catalogue from backups of the same time, and rewind the job to a checkpoint that "
    "they cover"
)


def no_metadata(place: IcebergPlace, error: Exception) -> HoldfastError:
    """Return the error for a table whose metadata, which the catalogue names, is not there."""
    return _NO_METADATA(place.where, f"the file of metadata that the catalogue names is missing: {error}")


def _without_names(place: IcebergPlace, said: str) -> str:
    """Return a text without the names of the table's places, which may contain any word."""
    for name in (*place.paths, place.table):
        said = said.replace(name, "")
    return said
