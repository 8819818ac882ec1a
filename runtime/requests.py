"""Requests to a running job: small records under its root, answered beside them.

No port is opened for commands; who may write to the root may ask. A request names the generation it
was made for, so one that comes too late is answered, not carried out by a later run.

Invariants
    - A request is handed out once; only one that could not be read, or was put back, is handed out again.
    - A request that was changed since it was written is not carried out.
    - A request that was accepted and is not carried out when the run ends is answered again, as refused.
    - Request and answer are removed an hour after the request was made.

Source: DESIGN section 13 (requests).
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import Damaged, NotFound
from holdfast.ports import ObjectStore
from holdfast.storage.hashed import fits_hash, with_hash

FOLDER = "requests"
KEPT_US = 3_600_000_000
"""How long a request and its answer stay, microseconds."""


@dataclass(frozen=True)
class Request:
    """What somebody asks of the running job."""

    id: str
    kind: str
    args: Mapping[str, Any]
    generation: int


class Inbox:
    """The driver's side."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._made_at: dict[str, int] = {}
        """Every request that was read, with when it was made; for one that does not tell, when it was found."""
        self._owed: dict[str, bytes] = {}
        """Answers that could not be written yet."""
        self._found: list[Request] = []
        """Read and not handed out yet: a poll may be cut short by a store that is away."""
        self._accepted: dict[str, Request] = {}
        """By path, what was answered with yes and is younger than an hour."""

    def poll(self) -> list[Request]:
        """Return requests that were not returned before and have no answer yet; remove old ones."""
        for path, data in list(self._owed.items()):
            self._write(path, data)
        names = self._store.list(FOLDER)
        answered = {name.removesuffix(".reply.json") for name in names if name.endswith(".reply.json")}
        now_us = time.time_ns() // 1000
        for stem in (name.removesuffix(".json") for name in names if not name.endswith(".reply.json")):
            if stem not in self._made_at:
                request = self._read(stem, now_us)
                if request is not None and stem not in answered:
                    self._found.append(request)
            if now_us - self._made_at.get(stem, now_us) > KEPT_US:
                self._remove(stem)
        for stem in answered - {name.removesuffix(".json") for name in names}:
            self._store.delete(f"{stem}.reply.json")  # its request went before it, at an earlier attempt
        found, self._found = self._found, []
        return [request for request in found if f"{FOLDER}/{request.id}" in self._made_at]

    def put_back(self, request: Request) -> None:
        """Hand the request out again with the next poll."""
        self._made_at.pop(f"{FOLDER}/{request.id}", None)

    def answer(self, request: Request, reply: Mapping[str, Any]) -> None:
        """Write the answer beside the request; with every poll again until it is written."""
        stem = f"{FOLDER}/{request.id}"
        if reply.get("accepted"):
            self._accepted[stem] = request
        self._write(f"{stem}.reply.json", with_hash(json.dumps(reply).encode()))

    def close(self, left_undone: Callable[[str, Mapping[str, Any]], str | None]) -> None:
        """The run is over: refuse what it had accepted and did not carry out, so that the user who asks hears of it.

        Args:
            left_undone: Returns why a request, by kind and arguments, was not carried out; None if it was.
        """
        for stem, request in list(self._accepted.items()):
            if (why := left_undone(request.kind, request.args)) is not None:
                del self._accepted[stem]
                self.answer(request, {"accepted": False, "generation": request.generation, "reason": why})

    def _read(self, stem: str, now_us: int) -> Request | None:
        """Return the request; None if it was withdrawn or is none that this version can read."""
        try:
            raw = _read_back(self._store.get(f"{stem}.json"))
        except NotFound:
            return None
        told = raw or {}
        kind, args, generation, at = (told.get(name) for name in ("kind", "args", "generation", "at"))
        self._made_at[stem] = at if isinstance(at, int) else now_us
        if isinstance(kind, str) and isinstance(generation, int) and isinstance(args, dict | None):
            return Request(stem.rpartition("/")[2], kind, args or {}, generation)
        reply = {"accepted": False, "generation": None, "reason": "it is no request that this version can read"}
        self._write(f"{stem}.reply.json", with_hash(json.dumps(reply).encode()))
        return None

    def _write(self, path: str, data: bytes) -> None:
        self._owed[path] = data
        self._store.put(path, data)
        del self._owed[path]

    def _remove(self, stem: str) -> None:
        """Remove the answer last: it is what says that the request was heard."""
        self._store.delete(f"{stem}.json")
        self._store.delete(f"{stem}.reply.json")
        del self._made_at[stem]
        self._accepted.pop(stem, None)


def ask(store: ObjectStore, kind: str, args: Mapping[str, Any], generation: int) -> str:
    """Write a request; return its id."""
    name = uuid.uuid4().hex
    body = {"kind": kind, "args": dict(args), "generation": generation, "at": time.time_ns() // 1000}
    store.create(f"{FOLDER}/{name}.json", with_hash(json.dumps(body).encode()))
    return name


def answer_to(store: ObjectStore, name: str) -> Mapping[str, Any] | None:
    """Return the answer to a request, None if there is none yet. Raises Damaged."""
    path = f"{FOLDER}/{name}.reply.json"
    try:
        reply = _read_back(store.get(path))
    except NotFound:
        return None
    if reply is None:
        raise Damaged(
            f"the answer {path} is not what was written",
            not_done="it is not known here whether the request was carried out",
            next_step="look at the job before asking again: holdfast status JOB, holdfast events JOB",
        )
    return reply


def _read_back(data: bytes) -> dict[str, Any] | None:
    """Return the object that the JSON says; None if it says none, or was changed since it was written."""
    try:
        found = None if fits_hash(data) is False else json.loads(data)
    except ValueError:
        return None
    return {name: value for name, value in found.items() if name != "xxh3"} if isinstance(found, dict) else None
