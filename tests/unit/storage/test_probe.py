"""A store that a job cannot use is refused before the job starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import ConfigError, NotAdmitted, Unavailable
from holdfast.storage.objects import LocalObjects, MemoryObjects
from holdfast.storage.probe import prove
from holdfast.storage.remote import unreachable
from holdfast.storage.s3_errors import Refusal


class Replacing(MemoryObjects):
    """A store without conditional create."""

    def create(self, path: str, data: bytes) -> None:
        self.put(path, data)


class Refusing(MemoryObjects):
    """A store that refuses one operation with this code."""

    def __init__(self, operation: str, code: str) -> None:
        super().__init__()
        self._refuses, self._code = operation, code

    def refuse(self, operation: str) -> None:
        if operation == self._refuses:
            raise Unavailable("it failed", next_step="look") from Refusal(self._code, operation)

    def list(self, prefix: str) -> list[str]:
        self.refuse("ListObjectsV2")
        return super().list(prefix)

    def delete(self, path: str) -> None:
        self.refuse("DeleteObject")
        super().delete(path)


@pytest.mark.parametrize("make", [lambda _: MemoryObjects(), LocalObjects], ids=["memory", "folder"])
def test_a_store_that_can_be_used_is_left_as_it_was(
    tmp_path: Path, make: Callable[[Path], MemoryObjects | LocalObjects]
) -> None:
    store = make(tmp_path)
    prove(store, "the root")
    assert store.list("") == [] == list(tmp_path.iterdir())


def test_a_store_without_conditional_create_is_refused() -> None:
    store = Replacing()
    with pytest.raises(ConfigError, match="the root lets a second writer replace an existing object") as caught:
        prove(store, "the root", not_done="the job was not started")
    assert caught.value.not_done == "the job was not started" and "If-None-Match" in caught.value.next_step
    assert store.list("") == []


@pytest.mark.parametrize(
    ("operation", "permission"), [("ListObjectsV2", "s3:ListBucket"), ("DeleteObject", "s3:DeleteObject")]
)
def test_a_missing_permission_is_named(operation: str, permission: str) -> None:
    with pytest.raises(ConfigError, match=f"the store refused {permission}"):
        prove(Refusing(operation, "AccessDenied"), "the root")


def test_a_store_that_is_busy_is_no_reason_to_refuse() -> None:
    with pytest.raises(Unavailable, match="it failed"):
        prove(Refusing("ListObjectsV2", "SlowDown"), "the root")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("InvalidAccessKeyId", NotAdmitted),
        ("SignatureDoesNotMatch", NotAdmitted),
        ("AccessDenied", NotAdmitted),
        ("NoSuchBucket", NotAdmitted),
        ("SlowDown", Unavailable),
        ("InternalError", Unavailable),
    ],
)
def test_what_only_a_user_can_remove_is_a_mistake_at_a_start(code: str, kind: type[Unavailable]) -> None:
    error = OSError("refused")
    error.__cause__ = Refusal(code, "ListObjectsV2")
    assert type(unreachable("s3://bucket/root", error, "listing", "nothing was changed")) is kind


def test_files_that_this_user_may_not_read_are_a_mistake_at_a_start() -> None:
    linked = unreachable("/data", OSError(40, "Too many levels of symbolic links", "/data/loop"), "listing", "nothing")
    assert "/data/loop is a symbolic link that leads back to itself" in linked.what
    assert linked.next_step == "remove the link /data/loop, then try again"
    assert "credentials" not in str(unreachable("/data", OSError(5, "Input/output error"), "listing", "nothing"))
    assert type(unreachable("/data", PermissionError(13, "Permission denied"), "listing", "nothing")) is NotAdmitted
    assert type(unreachable("/data", OSError(5, "Input/output error"), "listing", "nothing")) is Unavailable
