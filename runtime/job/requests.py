"""Requests to a running job: small records under its root, answered beside them.

Commands need no open port: every user with write access to the root may send requests. A request names the generation
for which it was made, so a later run refuses one that arrives too late.

Invariants
    - A request is handed out once, and again only if it could not be read or was put back.
    - A request that cannot be read, answered or removed does not hold up the others.
    - A request that was changed since it was written is not carried out.
    - An accepted request that the run did not carry out is answered again at the end of the run, as refused.
    - Request and answer are removed an hour after the request was made.

Source: DESIGN section 13 (requests).
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from holdfast.errors import Damaged, NotFound, TooLarge, Unavailable
from holdfast.ports import ObjectStore
from holdfast.storage.bulk import get_at_most
from holdfast.storage.hashed import fits_hash, with_hash

FOLDER = "requests"
BYTES_MAX = 64 << 10
"""Limit for a request and for an answer. Each has a few hundred bytes, but any user of the root may write more."""
KEPT_US = 3_600_000_000
"""How long a request and its answer stay, microseconds."""
UNREADABLE_AFTER = 3
"""Consecutive polls after which a refusal of the store is reported; a single one may be transient."""
_NAME = re.compile(rf"({FOLDER}/[A-Za-z0-9_-]{{1,64}})(\.reply)?\.json")
"""Requests and answers; other names are left alone."""


@dataclass(frozen=True)
class JobRequest:
    """A user's request to the running job."""

    id: str
    kind: str
    args: Mapping[str, Any]
    generation: int


class Inbox:
    """The driver's side."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._made_at: dict[str, int] = {}
        """When each request that was read was made; if it contains no time, when it was found."""
        self._owed: dict[str, bytes] = {}
        """Answers that could not be written yet."""
        self._found: list[JobRequest] = []
        """Requests that were read and not handed out yet."""
        self._refused: dict[str, tuple[int, str]] = {}
        """Objects that the store refused at the last poll: for how many consecutive polls, and why."""
        self._accepted: dict[str, JobRequest] = {}
        """Accepted requests of the last hour, by path."""

    def poll(self) -> list[JobRequest]:
        """Return the new requests that have no answer yet; remove old ones.

        If the store refuses an operation on one request, the others are handled, and the next poll retries it.

        Raises:
            Unavailable: the store cannot be listed.
        """
        refusals: dict[str, str] = {}
        for path, data in list(self._owed.items()):
            with _noted(refusals, path):
                self._write(path, data)
        names = [match for name in self._store.list(FOLDER) if (match := _NAME.fullmatch(name)) is not None]
        reply_stems = {match[1] for match in names if match[2]}
        request_stems = [match[1] for match in names if not match[2]]
        now_us = time.time_ns() // 1000
        for stem in request_stems:
            with _noted(refusals, f"{stem}.json"):
                self._look_at(stem, stem in reply_stems, now_us)
        for stem in reply_stems - set(request_stems):
            with _noted(refusals, f"{stem}.reply.json"):
                self._store.delete(f"{stem}.reply.json")  # an earlier attempt removed only its request
        self._refused = {path: (self._refused.get(path, (0, ""))[0] + 1, why) for path, why in refusals.items()}
        found, self._found = self._found, []
        return found

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Return the objects that the store has refused for several polls, and why; any thread may call this."""
        return {path: why for path, (polls, why) in self._refused.items() if polls >= UNREADABLE_AFTER}

    def _look_at(self, stem: str, is_answered: bool, now_us: int) -> None:
        request = None if stem in self._made_at else self._read(stem, now_us)
        if now_us - self._made_at.get(stem, now_us) > KEPT_US:
            self._remove(stem)
        elif request is not None and not is_answered:
            self._found.append(request)

    def put_back(self, request: JobRequest) -> None:
        """Hand the request out again with the next poll."""
        self._made_at.pop(f"{FOLDER}/{request.id}", None)

    def answer(self, request: JobRequest, reply: Mapping[str, Any]) -> None:
        """Write the answer beside the request; every poll retries until it is written."""
        stem = f"{FOLDER}/{request.id}"
        if reply.get("accepted"):
            self._accepted[stem] = request
        self._write(f"{stem}.reply.json", with_hash(json.dumps(reply).encode()))

    def close(self, left_undone: Callable[[str, Mapping[str, Any]], str | None]) -> None:
        """At the end of the run, refuse accepted requests that it did not carry out, so that their senders know.

        Args:
            left_undone: Returns why a request, by kind and arguments, was not carried out; None if it was.
        """
        for stem, request in list(self._accepted.items()):
            if (why := left_undone(request.kind, request.args)) is not None:
                del self._accepted[stem]
                with suppress(Unavailable):  # the others are still answered; this command sees the end of the run
                    self.answer(request, {"accepted": False, "generation": request.generation, "reason": why})

    def _read(self, stem: str, now_us: int) -> JobRequest | None:
        """Return the request; None if it was withdrawn or this version cannot read it."""
        try:
            raw = _read_back(get_at_most(self._store, f"{stem}.json", BYTES_MAX))
        except NotFound:
            return None
        except TooLarge:
            raw = None
        reported = raw or {}
        kind, args, generation, at = (reported.get(name) for name in ("kind", "args", "generation", "at"))
        self._made_at[stem] = at if isinstance(at, int) else now_us
        if isinstance(kind, str) and isinstance(generation, int) and isinstance(args, dict | None):
            return JobRequest(stem.rpartition("/")[2], kind, args or {}, generation)
        reply = {"accepted": False, "generation": None, "reason": "this version cannot read the request"}
        self._write(f"{stem}.reply.json", with_hash(json.dumps(reply).encode()))
        return None

    def _write(self, path: str, data: bytes) -> None:
        self._owed[path] = data
        self._store.put(path, data)
        del self._owed[path]

    def _remove(self, stem: str) -> None:
        """Remove the answer last: it marks the request as handled."""
        self._store.delete(f"{stem}.json")
        self._store.delete(f"{stem}.reply.json")
        self._made_at.pop(stem, None)  # the loop's thread may have put the request back meanwhile
        self._accepted.pop(stem, None)


def ask(store: ObjectStore, kind: str, args: Mapping[str, Any], generation: int) -> str:
    """Write a request; return its id."""
    name = uuid.uuid4().hex
    body = {"kind": kind, "args": dict(args), "generation": generation, "at": time.time_ns() // 1000}
    store.create(f"{FOLDER}/{name}.json", with_hash(json.dumps(body).encode()))
    return name


def answer_to(store: ObjectStore, name: str) -> Mapping[str, Any] | None:
    """Return the answer to a request, None before it is written. Raises Damaged."""
    path = f"{FOLDER}/{name}.reply.json"
    try:
        reply = _read_back(get_at_most(store, path, BYTES_MAX))
    except NotFound:
        return None
    if reply is None:
        raise Damaged(
            f"the answer {path} was changed after it was written",
            not_done="whether the request was carried out is unknown",
            next_step="check the job before you repeat the request: holdfast status JOB, holdfast events JOB",
        )
    return reply


@contextmanager
def _noted(refused: dict[str, str], path: str) -> Iterator[None]:
    """Record that the store refuses this object, instead of raising."""
    try:
        yield
    except Unavailable as error:
        refused[path] = error.what


def _read_back(data: bytes) -> dict[str, Any] | None:
    """Return the JSON object; None if the data is not one, or was changed since it was written."""
    try:
        found = None if fits_hash(data) is False else json.loads(data)
    except (ValueError, RecursionError):
        return None
    return {name: value for name, value in found.items() if name != "xxh3"} if isinstance(found, dict) else None
