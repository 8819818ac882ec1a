"""The two ways in which records go to the client library of Kafka; tests choose one."""

from __future__ import annotations

import pytest

from holdfast.sinks.kafka import by_batch

BY_BATCH, ONE_BY_ONE = "by batch", "one by one"
WAYS = (BY_BATCH, ONE_BY_ONE)


def take(way: str, patch: pytest.MonkeyPatch) -> None:
    """Let producers that are made from now on take records this way."""
    if way == ONE_BY_ONE:
        patch.setattr(by_batch, "found", lambda: None)
    else:
        assert by_batch.found() is not None, "the tests need a client library that is as expected"
