"""The examples of the documentation work on Spark: complete pages, block after block."""

from __future__ import annotations

from pathlib import Path

import pytest
from reader import Session, named, needs, reading
from servers import standing_in

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("session", named("e2e"))
def test_the_examples_of_a_page_work_on_spark(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        reading(tmp_path, monkeypatch) as reader,
        standing_in(needs(session), reader.programs, monkeypatch),
    ):
        reader.follows(session, "e2e")
