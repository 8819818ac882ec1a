"""P10: a survivor rolls back in place to the base that the manifest names, never to another of the same number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import pytest

import holdfast as hf
from holdfast.model import Epoch, WorkerId
from holdfast.runtime.wire import messages as m
from holdfast.testing import TestDriver


@dataclass
class Bid:
    auction: int


def app() -> hf.App:
    app = hf.App("hot", key_groups=16)
    bids = app.source("bids", hf.Generator(Bid, lambda i: Bid(i), count=1))
    bids.key_by("auction").agg("hot", bids=hf.count()).sink("out", hf.SQLite("unused.db", table="hot", key=["auction"]))
    return app


def survivor(t: TestDriver, change: Callable[[m.Deploy], m.Deploy], quiet: bool = False) -> str | None:
    """Return how the survivor of a crash comes to its state if its deployment is changed so.

    Args:
        quiet: Announcements of the last epoch are lost.
    """
    send = t.cluster.send

    def changing(worker: WorkerId, message: m.FromDriver) -> None:
        if isinstance(message, m.Deploy) and message.subtask == 0:
            message = change(message)
        if not (quiet and isinstance(message, m.Committed)):
            send(worker, message)

    t.cluster.send = changing  # type: ignore[method-assign]
    t.push("bids", [Bid(auction) for auction in range(50)])
    before = t.cluster.driver.state.job.base_epoch
    while t.cluster.driver.state.job.base_epoch == before:
        t.cluster.pass_time(0.25)
    t.crash(1)
    t.recover()
    return t.how()[0]


def as_it_is(deploy: m.Deploy) -> m.Deploy:
    return deploy


def other_manifest(deploy: m.Deploy) -> m.Deploy:
    return msgspec.structs.replace(deploy, lineage={**deploy.lineage, deploy.base_epoch: "f" * 64})


def without_the_last_segment(deploy: m.Deploy) -> m.Deploy:
    handle = deploy.handle
    assert [each.epoch for each in handle.segments] == [Epoch(1)]
    return msgspec.structs.replace(deploy, handle=replace(handle, segments=()))


@pytest.mark.parametrize("quiet", [False, True])
def test_a_survivor_that_holds_the_same_base_needs_no_restore(quiet: bool) -> None:
    with TestDriver(app()) as t:
        assert survivor(t, as_it_is, quiet) == "rolled back"


def test_a_committed_epoch_of_another_manifest_is_restored() -> None:
    with TestDriver(app()) as t:
        assert survivor(t, other_manifest) == "restored"


def test_a_frozen_epoch_with_other_segments_in_the_manifest_is_restored() -> None:
    with TestDriver(app()) as t:
        assert survivor(t, without_the_last_segment, quiet=True) == "empty"
