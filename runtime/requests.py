"""Requests to a running job: small records under its root, answered beside them.

No port is opened for commands; who may write to the root may ask. A request names the generation it
was made for, so one that comes too late is answered, not carried out by a later run.

Source: DESIGN section 13 (requests).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.errors import NotFound
from holdfast.ports import ObjectStore

FOLDER = "requests"


@dataclass(frozen=True)
class Request:
    """What somebody asks of the running job."""

    id: str
    kind: str
    args: Mapping[str, Any]
    generation: int


class _Asked(msgspec.Struct, frozen=True):
    """A request as it is stored."""

    kind: str
    generation: int
    args: dict[str, Any] = {}


class Inbox:
    """The driver's side."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._seen: set[str] = set()

    def poll(self) -> list[Request]:
        """Return requests that were not returned before and have no answer yet."""
        names = self._store.list(FOLDER)
        answered = {name.removesuffix(".reply.json") for name in names if name.endswith(".reply.json")}
        found, seen = [], set[str]()
        for name in names:
            stem = name.removesuffix(".json")
            if name.endswith(".reply.json") or stem in answered or stem in self._seen:
                continue
            try:
                asked = msgspec.json.decode(self._store.get(name), type=_Asked)
            except NotFound:
                continue  # withdrawn
            except msgspec.DecodeError:
                seen.add(stem)  # not one of ours: it is left where it is
                continue
            seen.add(stem)
            found.append(Request(stem.rpartition("/")[2], asked.kind, asked.args, asked.generation))
        # Only now: had the store gone away in between, all of them would have to be found again.
        self._seen |= seen
        return found

    def answer(self, request: Request, reply: Mapping[str, Any]) -> None:
        """Write the answer beside the request."""
        self._store.put(f"{FOLDER}/{request.id}.reply.json", json.dumps(reply).encode())


def ask(store: ObjectStore, kind: str, args: Mapping[str, Any], generation: int) -> str:
    """Write a request; return its id."""
    name = uuid.uuid4().hex
    body = {"kind": kind, "args": dict(args), "generation": generation}
    store.create(f"{FOLDER}/{name}.json", json.dumps(body).encode())
    return name


def answer_to(store: ObjectStore, name: str) -> Mapping[str, Any] | None:
    """Return the answer to a request, None if there is none yet."""
    try:
        reply: Mapping[str, Any] = json.loads(store.get(f"{FOLDER}/{name}.reply.json"))
    except NotFound:
        return None
    return reply
