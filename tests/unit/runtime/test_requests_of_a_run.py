"""The requests that a run handles, played with its inbox, its lanes and the driver's loop."""

from __future__ import annotations

from dataclasses import dataclass

from start_facts import folder_of

import holdfast as hf
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.execution.asking import Asking
from holdfast.runtime.execution.prepare import Prepared
from holdfast.runtime.job.requests import Inbox, answer_to, ask
from holdfast.runtime.testing.lanes import InlineLanes
from holdfast.storage.objects import MemoryObjects
from holdfast.testing import TestDriver


@dataclass
class Bid:
    auction: int


def hot() -> hf.App:
    app = hf.App("hot", key_groups=16)
    bids = app.source("bids", hf.Generator(Bid, lambda i: Bid(i), count=1))
    bids.key_by("auction").agg("hot", bids=hf.count()).sink("out", hf.SQLite("unused.db", table="t", key=["auction"]))
    return app


class Played:
    """A running job with a checkpoint, and the handling of its requests."""

    def __init__(self, driver: TestDriver) -> None:
        self.driver, self.store, self._lanes = driver, MemoryObjects(), InlineLanes()
        driver.push("bids", [Bid(1)])
        self.epoch = driver.checkpoint()
        cluster = driver.cluster
        self.inbox, job = Inbox(self.store), cluster.driver.state.job
        plan, folder = cluster._plan, folder_of(cluster.repository, None)
        prepared = Prepared(plan, resolve(hot()), plan.sinks, folder)
        self.asking = Asking(self.inbox, cluster.driver, self._lanes.lane, prepared)
        self.generation, self.timeline = job.generation, job.timeline

    def rewind(self, generation: int, *accept: str) -> str:
        args = {"epoch": self.epoch, "timeline": self.timeline, "accept": list(accept)}
        return ask(self.store, "rewind", args, generation)

    def poll(self) -> None:
        self.asking.found(self.inbox.poll())
        while waiting := self._lanes.waiting():
            waiting[0].step()


class TestRewindRequest:
    def test_a_rewind_request_that_names_an_unknown_sink_is_refused(self) -> None:
        with TestDriver(hot()) as t:
            played = Played(t)
            name = played.rewind(played.generation, "new:impossible")
            played.poll()
            reply = answer_to(played.store, name)
            assert reply is not None and "no sink 'new'" in reply["reason"]

    def test_for_a_newer_run_is_left_to_it_even_if_its_sink_is_unknown_here(self) -> None:
        """Another process may have taken the job over with other code; this one does not know it yet."""
        with TestDriver(hot()) as t:
            played = Played(t)
            name = played.rewind(played.generation + 1, "new:impossible")
            played.poll()
            assert answer_to(played.store, name) is None
            assert [request.id for request in played.inbox.poll()] == [name]
