"""Objects in a bucket that fsspec reaches; a conditional create is S3's `If-None-Match`.

Listing caches are off, since a tail must see the objects of other writers. If the client retries a create whose reply
was lost, the retry looks like a lost race; callers settle that by the owner token in the object (PROTOCOL P4).

Source: fsspec `pipe_file(mode="create")`, s3fs >= 2025.7 (older ones skip the condition for small objects).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import Any, BinaryIO, NamedTuple, NoReturn, cast
from urllib.parse import urlsplit

import pyarrow as pa
from fsspec.asyn import sync
from fsspec.config import conf as fsspec_settings
from fsspec.core import url_to_fs

from holdfast.errors import AlreadyExists, ConfigError, NotAdmitted, NotFound, TooLarge, Unavailable
from holdfast.extras import install
from holdfast.storage.bulk import Page
from holdfast.storage.paths import checked_folder, checked_path
from holdfast.storage.s3_errors import EXISTS, NO_BUCKET, Refusal, code_of, lasting, meaning
from holdfast.storage.uploading import PART_BYTES, uploading

_log = logging.getLogger(__name__)

_NO_SUCH = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_S3FS_OLDEST = (2025, 7)
_WHOLE: dict[str, Any] = {"start": 0}
"""How s3fs reads an object that is not large with one request; by default it asks for the size first."""
_UNORDERED = re.compile(r"^[^/]+--x-s3/")
"""Directory buckets of S3 list objects in no order, and not from a name on."""
TOGETHER_MAX = 32
"""How many objects are read or written at the same time."""
_IN_PARTS: dict[str, Any] = {"chunksize": PART_BYTES, "max_concurrency": 2}
"""How s3fs copies files to this machine; by default it has ten parts of 50 MiB in memory."""


class FsspecObjects:
    """Objects below a URL of fsspec."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._files, self._root, self._failures = reached(self.url)
        self._in_parts = _IN_PARTS if urlsplit(url).scheme == "s3" else {}
        self._whole = _WHOLE if urlsplit(url).scheme == "s3" else {}

    def __repr__(self) -> str:
        return self.url

    def create(self, path: str, data: bytes) -> None:
        assert data, f"{path}: an object is never empty"
        try:
            self._files.pipe_file(self._place(path), data, mode="create")
        except FileExistsError:
            raise AlreadyExists(path) from None
        except self._failures as error:
            if code_of(error) == EXISTS:  # some stores do not report which condition failed
                raise AlreadyExists(path) from None
            self._refused(error, f"writing {path}", "the object may or may not exist")

    def put(self, path: str, data: bytes) -> None:
        assert data, f"{path}: an object is never empty"
        try:
            self._files.pipe_file(self._place(path), data)
        except self._failures as error:
            self._refused(error, f"writing {path}", "the object may hold its old or its new bytes")

    def get(self, path: str) -> bytes:
        try:
            return bytes(self._files.cat_file(self._place(path), **self._whole))
        except _NO_SUCH as error:
            self._must_have_bucket(error, f"reading {path}")
            raise NotFound(path) from None
        except self._failures as error:
            self._refused(error, f"reading {path}", "nothing was changed")

    def get_at_most(self, path: str, bytes_max: int) -> bytes:
        try:
            data = bytes(self._files.cat_file(self._place(path), start=0, end=bytes_max + 1))
        except _NO_SUCH as error:
            self._must_have_bucket(error, f"reading {path}")
            raise NotFound(path) from None
        except self._failures as error:
            self._refused(error, f"reading {path}", "nothing was changed")
        if len(data) > bytes_max:
            raise TooLarge(path, bytes_max)
        return data

    def opened(self, path: str) -> pa.NativeFile:
        with tempfile.NamedTemporaryFile() as copy:  # it stays readable without its name
            try:
                self._files.get_file(self._place(path), copy.name, **self._in_parts)
                return pa.OSFile(copy.name)
            except _NO_SUCH as error:
                self._must_have_bucket(error, f"reading {path}")
                raise NotFound(path) from None
            except self._failures as error:
                self._refused(error, f"copying {path} to {copy.name}", "nothing was changed")

    @contextmanager
    def writing(self, path: str) -> Iterator[BinaryIO]:
        def refused(error: BaseException) -> NoReturn:
            if _exists(error):
                raise AlreadyExists(path) from None
            self._refused(error, f"writing {path}", "the object may or may not exist")

        if self._in_parts:
            with uploading(self._files, self._place(path), self._failures, refused) as file:
                yield cast(BinaryIO, file)
            return
        with tempfile.NamedTemporaryFile() as copy:
            yield cast(BinaryIO, copy.file)
            try:
                copy.flush()
                self._files.put_file(copy.name, self._place(path), mode="create")
            except FileExistsError:
                raise AlreadyExists(path) from None
            except self._failures as error:
                refused(error)

    def _keys(self, folder: str) -> Iterator[str]:
        """Yield the paths below a folder of S3. s3fs sends two more requests if there are none."""
        further: dict[str, str] = {}
        while True:
            paths, answer = self._listed(folder, **further)
            yield from paths
            if not answer.get("IsTruncated"):
                return
            further = {"ContinuationToken": answer["NextContinuationToken"]}

    def _listed(self, folder: str, **further: str) -> tuple[list[str], dict[str, Any]]:
        """Return the paths of one page, and S3's answer."""
        bucket, prefix, _ = self._files.split_path(folder)
        below = f"{prefix}/" if prefix else ""
        answer = self._files.call_s3("list_objects_v2", Bucket=bucket, Prefix=below, **further)
        begin = len(self._root) + 1
        return [f"{bucket}/{each['Key']}"[begin:] for each in answer.get("Contents", ())], answer

    def list(self, prefix: str) -> list[str]:
        folder = f"{self._root}/{checked_folder(prefix)}".rstrip("/")
        try:
            if self._in_parts:
                return sorted(self._keys(folder))
            self._files.invalidate_cache()
            return sorted(found[len(self._root) + 1 :] for found in self._files.find(folder))
        except _NO_SUCH as error:
            self._must_have_bucket(error, f"listing {prefix or 'the root'}")
            return []
        except self._failures as error:
            self._refused(error, f"listing {prefix or 'the root'}", "nothing was changed")

    def list_after(self, folder: str, path: str) -> Page:
        place = self._place(folder)
        if not self._in_parts or _UNORDERED.search(place):
            return Page([found for found in self.list(folder) if found > path], more=False)
        try:
            paths, answer = self._listed(place, StartAfter=self._files.split_path(self._place(path))[1])
        except self._failures as error:
            self._refused(error, f"listing {folder}", "nothing was changed")
        return Page(sorted(paths), bool(paths) and bool(answer.get("IsTruncated")))

    def delete(self, path: str) -> None:
        try:
            with suppress(*_NO_SUCH):
                self._files.rm_file(self._place(path))
        except self._failures as error:
            self._refused(error, f"deleting {path}", "the object may or may not exist")

    def get_many(self, paths: Sequence[str]) -> dict[str, bytes]:
        places = [self._place(path) for path in paths]
        if not self._in_parts:
            answers = [_answer(self._files.cat_file, place) for place in places]
        else:
            answers = sync(self._files.loop, _side_by_side, partial(self._files._cat_file, **self._whole), places)
        data_by_path = {}
        for path, answer in zip(paths, answers, strict=True):
            if isinstance(answer, bytes):
                data_by_path[path] = answer
            elif isinstance(answer, _NO_SUCH):
                self._must_have_bucket(answer, f"reading {path}")
            elif isinstance(answer, self._failures):
                self._refused(answer, f"reading {path}", "nothing was changed")
            else:
                raise answer
        return data_by_path

    def create_many(self, objects: Mapping[str, bytes]) -> Sequence[str]:
        taken_paths = []
        if not self._in_parts:
            for path, data in objects.items():
                try:
                    self.create(path, data)
                except AlreadyExists:
                    taken_paths.append(path)
            return taken_paths
        assert all(objects.values()), "an object is never empty"
        places = {self._place(path): data for path, data in objects.items()}
        write = partial(_write, partial(self._files._pipe_file, mode="create"), places)
        answers = sync(self._files.loop, _side_by_side, write, list(places))
        for path, answer in zip(objects, answers, strict=True):
            if _exists(answer):
                taken_paths.append(path)
            elif isinstance(answer, self._failures):
                self._refused(answer, f"writing {path}", "the object may or may not exist")
            elif isinstance(answer, BaseException):
                raise answer
        return taken_paths

    def delete_many(self, paths: Sequence[str]) -> None:
        if not self._in_parts:
            for path in paths:
                self.delete(path)
            return
        places = [self._files.split_path(self._place(path))[:2] for path in paths]
        objects = [{"Key": key} for _, key in places]
        try:
            for bucket in {bucket for bucket, _ in places}:  # one, or none
                answer = self._files.call_s3(
                    "delete_objects", Bucket=bucket, Delete={"Objects": objects, "Quiet": True}
                )
                _check_deleted(answer)
        except self._failures as error:
            which = f" ({error})" if isinstance(error.__cause__, Refusal) else ""
            self._refused(error, f"deleting {len(paths)} objects{which}", "some of them may still exist")

    def _place(self, path: str) -> str:
        return f"{self._root}/{checked_path(path)}"

    def _must_have_bucket(self, error: BaseException, doing: str) -> None:
        """Refuse to take a bucket that does not exist for one without objects."""
        if code_of(error) == NO_BUCKET:
            self._refused(error, doing, "nothing was changed")

    def _refused(self, error: BaseException, doing: str, not_done: str) -> NoReturn:
        raise unreachable(self.url, error, doing, not_done) from error


class RemotePath(NamedTuple):
    """The file system and path that a URL names."""

    files: Any
    """A file system of fsspec."""
    root: str
    """The path in it, without a final slash."""
    failures: tuple[type[BaseException], ...]
    """The errors that it raises if it is unreachable."""


def reached(url: str) -> RemotePath:
    """Return the file system of a path or URL, without caches of listings."""
    scheme = urlsplit(url).scheme
    options = _client() if scheme == "s3" else {}
    files, root = url_to_fs(url, use_listings_cache=False, skip_instance_cache=True, **options)
    if options:
        files.loop.call_soon_threadsafe(files.loop.set_exception_handler, _without_lost_connections)
    return RemotePath(files, root.rstrip("/"), _failures_of(scheme))


def unreachable(url: str, error: BaseException, doing: str, not_done: str) -> Unavailable:
    """Return the error of Holdfast for one of `RemotePath.failures`; raise it unchanged if it is a fault of a program.

    A fault that only a user can remove, such as wrong credentials, is NotAdmitted.
    """
    known = meaning(error) or _of_a_disk(url, error)
    if known is None and isinstance(error, RuntimeError):
        raise error
    cause, next_step = known or (
        f"{type(error).__name__}: {error}",
        f"check that {url} is reachable and the credentials are valid, then try again",
    )
    kind = NotAdmitted if lasting(error) is not None or isinstance(error, PermissionError) else Unavailable
    return kind(f"{doing} in {url} failed: {cause}", not_done=not_done, next_step=next_step)


def _of_a_disk(url: str, error: BaseException) -> tuple[str, str] | None:
    """Return cause and next step of an error of a local file system, where no network and no login is to blame."""
    if not isinstance(error, OSError) or error.errno is None or urlsplit(url).scheme not in ("", "file"):
        return None
    name = error.filename if isinstance(error.filename, str) else url
    if error.errno == errno.ELOOP:
        return f"{name} is a symbolic link that leads back to itself", f"remove the link {name}, then try again"
    return (
        f"{type(error).__name__}: {error}",
        f"check that {name} exists and that this user may read it, then try again",
    )


def _without_lost_connections(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Keep tracebacks of lost connections off the terminal; the request itself fails, and is repeated or reported."""
    if isinstance(error := context.get("exception"), ConnectionError):
        _log.debug("a connection was lost: %r", error)
    else:
        loop.default_exception_handler(context)


async def _side_by_side(ask: Callable[[str], Awaitable[bytes]], places: Sequence[str]) -> list[bytes | BaseException]:
    """Ask for all places, some at the same time; return each answer or error."""
    free = asyncio.Semaphore(TOGETHER_MAX)

    async def one(place: str) -> bytes:
        async with free:
            return bytes(await ask(place))

    return await asyncio.gather(*map(one, places), return_exceptions=True)


async def _write(pipe: Callable[[str, bytes], Awaitable[object]], objects: Mapping[str, bytes], place: str) -> bytes:
    await pipe(place, objects[place])
    return b""


def _exists(answer: object) -> bool:
    """Return whether an answer means that the name is taken; some stores do not report which condition failed."""
    return isinstance(answer, FileExistsError) or (isinstance(answer, BaseException) and code_of(answer) == EXISTS)


def _answer(ask: Callable[[str], bytes], place: str) -> bytes | BaseException:
    try:
        return bytes(ask(place))
    except OSError as error:
        return error


def _check_deleted(answer: dict[str, Any]) -> None:
    """Raise OSError if S3 could not delete some of the objects: it answers then as if it had succeeded."""
    failed = [each for each in answer.get("Errors", ()) if each.get("Code") != "NoSuchKey"]
    if failed:
        first = failed[0]
        refused = OSError(f"{len(failed)} were not deleted, the first: {first.get('Key')}, {first.get('Code')}")
        raise refused from Refusal(str(first.get("Code")), "DeleteObjects")


def require_s3fs(url: str) -> None:
    """Raise ConfigError unless the installed s3fs supports conditional creates."""
    advice = install("s3")
    try:
        import s3fs
    except ImportError as error:
        raise ConfigError(
            f"{url!r} needs s3fs, which is not installed", not_done="the store was not opened", next_step=advice
        ) from error
    found = tuple(int(part) for part in s3fs.__version__.split(".")[:2])
    if found < _S3FS_OLDEST:
        raise ConfigError(
            f"s3fs {s3fs.__version__} ignores conditional creates; version 2025.7 or later is needed",
            not_done="the store was not opened",
            next_step=advice,
        )


def _client() -> dict[str, Any]:
    """Return the settings of the client, with those of the user (FSSPEC_S3_CONFIG_KWARGS) in place of ours.

    A connection for each request at the same time; by default there are ten. Each of the five attempts of s3fs is
    repeated once by botocore; by default four times, which keeps a caller waiting for minutes when a store does not
    answer.
    """
    own = {"max_pool_connections": TOGETHER_MAX, "retries": {"max_attempts": 1}}
    return {"config_kwargs": {**own, **fsspec_settings.get("s3", {}).get("config_kwargs", {})}}


def _failures_of(scheme: str) -> tuple[type[BaseException], ...]:
    """Return the errors that a file system raises if it is unreachable; botocore's are not OSErrors."""
    if scheme != "s3":
        return (OSError,)
    raised = import_module("botocore.exceptions")
    # botocore raises a plain RuntimeError if renewed credentials have expired too.
    return (OSError, RuntimeError, raised.BotoCoreError, raised.ClientError)
