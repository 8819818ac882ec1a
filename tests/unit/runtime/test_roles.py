"""What a worker is for in a generation: it runs a subtask, or it is spare; a standby is refused by this version."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import msgpack, structs

import holdfast as hf
from holdfast.model import Generation, Subtask
from holdfast.runtime.driver.master import Send
from holdfast.runtime.wire import messages as m
from holdfast.testing import TestDriver
from tests.unit.runtime.test_master import A, B, C, running


@dataclass
class Word:
    word: str


def counting() -> hf.App:
    app = hf.App("counting")
    words = app.source("words", hf.Generator(Word, lambda i: Word("a"), count=1))
    words.key_by("word").agg("counts", rows=hf.count()).sink(
        "out", hf.SQLite("unused.db", table="counts", key=["word"])
    )
    return app


class TestRoles:
    def test_a_worker_without_a_subtask_has_no_role(self) -> None:
        run = running()
        run.register(C)
        roles = {worker: hosted.role for worker, hosted in run.state.workers.items()}
        assert roles == {A: m.Active(Subtask(0)), B: m.Active(Subtask(1)), C: None}

    def test_a_deployment_names_the_role(self) -> None:
        sent = [effect.message for effect in running().effects if isinstance(effect, Send)]
        deploy = next(message for message in sent if isinstance(message, m.Deploy))
        assert deploy.role == m.Active(Subtask(0))
        assert m.FROM_DRIVER.decode(msgpack.encode(deploy)) == deploy

    def test_a_standby_is_refused_with_an_error_that_ends_the_run(self) -> None:
        with TestDriver(counting()) as t:
            member = next(iter(t.cluster.members.values()))
            active = member.loop._active
            assert active is not None
            role = m.Standby(Subtask(0))
            later = Generation(active.deploy.generation + 1)
            member.loop.received(structs.replace(active.deploy, generation=later, role=role))
            t.cluster.pass_time(1)
            assert t.cluster.driver.outcome is not None
            how, error = t.cluster.driver.outcome
        assert how == "failed" and error is not None and error.kind == "config"
        assert error.what == "this worker was to be a standby of subtask 0, and this version has no standbys"
