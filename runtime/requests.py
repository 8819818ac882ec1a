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

from holdfast.errors import NotFound
from holdfast.ports import ObjectStore

FOLDER = "requests"
KEPT_S = 3_600.0
"""How long a request and its answer are kept after the driver first saw them."""


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
        self._since: dict[str, float] = {}
        self._seen: set[str] = set()

    def poll(self, now: float = 0.0) -> list[Request]:
        """Return requests that were not returned before and have no answer yet; remove old ones.

        Args:
            now: Seconds of a clock that never goes back.
        """
        names = self._store.list(FOLDER)
        self._since = {name: self._since.get(name, now) for name in names}
        self._seen &= {name.removesuffix(".json") for name in names}
        for name in [name for name, since in self._since.items() if now - since > KEPT_S]:
            self._store.delete(name)
        answered = {name.removesuffix(".reply.json") for name in names if name.endswith(".reply.json")}
        found = []
        for name in names:
            stem = name.removesuffix(".json")
            if name.endswith(".reply.json") or stem in answered or stem in self._seen:
                continue
            self._seen.add(stem)
            try:
                raw = json.loads(self._store.get(name))
                request = Request(stem.rpartition("/")[2], raw["kind"], raw.get("args", {}), raw["generation"])
            except (NotFound, ValueError, KeyError):
                continue  # withdrawn, or not one of ours: it is left where it is
            found.append(request)
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
