"""The examples of the documentation work on Spark: complete pages, block after block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import environ
from pathlib import Path

import pytest
from postgres_server import LOGICAL
from postgres_server import running as postgres_running
from reader import Session, named, reading

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("session", named("e2e"))
def test_the_examples_of_a_page_work_on_spark(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(session, monkeypatch), reading(tmp_path, monkeypatch) as reader:
        reader.follows(session, "e2e")


@contextmanager
def serving(session: Session, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the server that the blocks of a page need."""
    if not any(block.postgres for block in session):
        yield
        return
    with postgres_running(extra=LOGICAL) as server:
        monkeypatch.setenv("PATH", f"{environ['PATH']}:{server.binaries}")
        for name, value in {"PGHOST": str(server.folder), "PGUSER": "postgres", "PGDATABASE": "postgres"}.items():
            monkeypatch.setenv(name, value)
        yield
