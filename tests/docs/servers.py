"""The servers that the commands of a page find: they stand in for those of the person who reads it.

A page names them, `<!-- needs kafka, postgres -->`, and finds them by the environment variables that it tells its
readers to set. Each session has servers of its own, without topics and tables.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import kafka_server
import postgres_server
import pytest


@contextmanager
def standing_in(names: Collection[str], programs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run these servers, and set the variables by which a page finds them.

    Args:
        programs: A folder on the PATH, for what a reader has beside the servers.
    """
    with ExitStack() as stack:
        for name in sorted(names):
            stack.enter_context(SERVERS[name](programs, monkeypatch))
        yield


@contextmanager
def _kafka(_: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with kafka_server.running() as server:
        monkeypatch.setenv("KAFKA", server.servers)
        yield


@contextmanager
def _postgres(programs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with postgres_server.running(extra=postgres_server.LOGICAL) as server:  # a page may capture changes
        psql = programs / "psql"
        psql.write_text(f'#!/bin/sh\nexec {shlex.quote(str(server.binaries / "psql"))} "$@"\n')
        psql.chmod(0o755)
        variables = {"HOST": str(server.folder), "USER": "postgres", "PASSWORD": "not asked for"}
        for name, value in {**variables, "DATABASE": "postgres"}.items():
            monkeypatch.setenv(f"PG{name}", value)
        yield


SERVERS: dict[str, Callable[[Path, pytest.MonkeyPatch], AbstractContextManager[None]]] = {
    "kafka": _kafka,
    "postgres": _postgres,
}
