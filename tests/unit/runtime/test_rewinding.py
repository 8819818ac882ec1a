from __future__ import annotations

from dataclasses import dataclass

import pytest

import holdfast as hf
from holdfast.errors import ConfigError, Fenced
from holdfast.model import Generation
from holdfast.runtime.driver import master
from holdfast.runtime.driver.events import Moment
from holdfast.runtime.driver.state import Over
from holdfast.runtime.testing.driver import TestDriver
from holdfast.runtime.wire import messages as m
from holdfast.sinks.memory.sink import MemorySink

IN_BOTH_MODES = True


@dataclass
class Bid:
    auction: int
    price: int


def counted() -> hf.App:
    app = hf.App("counted", key_groups=8)
    bids = app.source("bids", hf.Log("unused", Bid))
    bids.key_by("auction").agg("per_auction", bids=hf.count(), sum=hf.sum("price")).sink(
        "totals", MemorySink(key=["auction"])
    )
    bids.sink("all", MemorySink())
    return app


def bid(auction: int, price: int) -> dict[str, int]:
    return {"auction": auction, "price": price}


def totals(t: TestDriver) -> dict[int, tuple[int, int]]:
    return {row["auction"]: (row["bids"], row["sum"]) for row in t.rows("totals")}


class TestRewind:
    def test_rows_are_processed_again_from_the_checkpoint_and_count_once(self) -> None:
        with TestDriver(counted()) as t:
            t.push("bids", [bid(1, 10), bid(2, 20)])
            base = t.checkpoint()
            t.push("bids", [bid(1, 1), bid(3, 30)], partition=1)
            t.checkpoint()
            t.rewind(base)
            t.checkpoint()
            assert totals(t) == {1: (2, 11), 2: (1, 20), 3: (1, 30)}
            assert sorted(row["price"] for row in t.rows("all")) == [1, 10, 20, 30]

    def test_targets_are_at_the_base_before_anything_is_processed_again(self) -> None:
        with TestDriver(counted()) as t:
            t.push("bids", [bid(1, 10)])
            base = t.checkpoint()
            t.push("bids", [bid(1, 1), bid(3, 30)])
            t.checkpoint()
            t.rewind(base)
            assert totals(t) == {1: (1, 10)}
            assert [row["price"] for row in t.rows("all")] == [10]

    @pytest.mark.continuous("it is about workers")
    def test_survivors_beyond_the_base_restore_it(self) -> None:
        with TestDriver(counted()) as t:
            t.push("bids", [bid(i, 1) for i in range(20)])
            base = t.checkpoint()
            t.push("bids", [bid(i, 1) for i in range(20)])
            t.checkpoint()
            t.rewind(base)
            assert set(t.how().values()) == {"restored"}
            assert t.state("per_auction", 3) is not None

    def test_epochs_of_the_new_timeline_have_new_numbers(self) -> None:
        with TestDriver(counted()) as t:
            t.push("bids", [bid(1, 10)])
            base = t.checkpoint()
            t.push("bids", [bid(1, 1)])
            abandoned = t.checkpoint()
            t.rewind(base)
            job = t.cluster.driver.state.job
            assert (job.timeline, job.base_epoch) == (2, base)
            assert t.checkpoint() > abandoned + 100

    def test_a_job_can_be_rewound_again_before_and_after_a_new_checkpoint(self) -> None:
        with TestDriver(counted()) as t:
            t.push("bids", [bid(1, 1)])
            first = t.checkpoint()
            t.push("bids", [bid(1, 2)])
            second = t.checkpoint()
            t.push("bids", [bid(1, 4)])
            t.checkpoint()
            t.rewind(second)
            assert totals(t) == {1: (2, 3)}
            t.rewind(first)
            assert totals(t) == {1: (1, 1)}
            t.checkpoint()
            assert totals(t) == {1: (3, 7)}
            t.rewind(first)
            assert totals(t) == {1: (1, 1)}
            t.finish()
            assert totals(t) == {1: (3, 7)}
            assert sorted(row["price"] for row in t.rows("all")) == [1, 2, 4]

    def test_a_rewind_to_the_last_checkpoint_undoes_nothing(self) -> None:
        with TestDriver(counted()) as t:
            t.push("bids", [bid(1, 10)])
            last = t.checkpoint()
            t.rewind(last)
            assert totals(t) == {1: (1, 10)}
            t.push("bids", [bid(1, 1)])
            t.checkpoint()
            assert totals(t) == {1: (2, 11)}

    def test_an_unknown_or_abandoned_epoch_is_refused(self) -> None:
        with TestDriver(counted()) as t:
            t.push("bids", [bid(1, 10)])
            base = t.checkpoint()
            t.push("bids", [bid(1, 1)])
            abandoned = t.checkpoint()
            with pytest.raises(ConfigError, match="no checkpoint of epoch 99"):
                t.rewind(99)
            t.rewind(base)
            with pytest.raises(ConfigError, match="an earlier rewind abandoned epoch"):
                t.rewind(abandoned)

    def test_a_driver_that_dies_before_the_repair_is_succeeded_by_one_that_repairs(self) -> None:
        with TestDriver(counted()) as t:
            t.push("bids", [bid(1, 10)])
            base = t.checkpoint()
            t.push("bids", [bid(1, 1)])
            t.checkpoint()
            driver = t.cluster.driver
            driver.asked("rewind", {"epoch": base, "timeline": 1}, 1, 1)  # type: ignore[arg-type]
            while t.cluster.repository.read_log().timeline == 1:  # type: ignore[union-attr]
                t.cluster.step()
            t.cluster.replace_driver()
            t.cluster.pass_time(5.0)
            assert totals(t) == {1: (2, 11)}
            assert sorted(row["price"] for row in t.rows("all")) == [1, 10]


class TestRequest:
    def refused(self, t: TestDriver, **args: object) -> str | None:
        job = t.cluster.driver.state.job
        answer = t.cluster.driver.asked("rewind", args, job.generation, job.generation)
        assert answer is not None
        return None if answer["accepted"] else str(answer["reason"])

    def test_one_of_two_simultaneous_requests_wins(self) -> None:
        with TestDriver(counted()) as t:
            t.push("bids", [bid(1, 10)])
            base = t.checkpoint()
            assert self.refused(t, epoch=base, timeline=1) is None
            assert (
                self.refused(t, epoch=base, timeline=1)
                == "another rewind of the job was accepted since the plan was made"
            )
            t.advance("5s")
            assert (
                self.refused(t, epoch=base, timeline=1)
                == "another rewind of the job was accepted since the plan was made"
            )

    def test_a_plan_from_before_a_recovery_is_refused_but_not_for_new_checkpoints(self) -> None:
        with TestDriver(counted()) as t:
            t.push("bids", [bid(1, 10)])
            base = t.checkpoint()
            planned = t.cluster.driver.state.job.generation
            t.crash()
            t.recover()
            reason = self.refused(t, epoch=base, timeline=1, planned=planned)
            assert reason == "the job has recovered since the plan was made: it is in generation 2, not 1"
            t.checkpoint()
            assert self.refused(t, epoch=base, timeline=1, planned=planned + 1) is None

    def test_only_a_plan_that_the_job_has_overtaken_is_refused_as_outdated(self) -> None:
        with TestDriver(counted()) as t:
            t.push("bids", [bid(1, 10)])
            base = t.checkpoint()
            generation = t.cluster.driver.state.job.generation
            for args, outdated in (
                ({"epoch": base, "timeline": 1, "planned": generation + 1}, True),
                ({"epoch": base, "timeline": 2}, True),
                ({"timeline": 2}, False),
                ({"epoch": base + 1, "timeline": 1}, False),
            ):
                answer = t.cluster.driver.asked("rewind", args, generation, generation)
                assert answer is not None and not answer["accepted"]
                assert answer.get("outdated", False) is outdated, args

    def test_a_request_whose_accept_is_no_list_is_refused(self) -> None:
        with TestDriver(counted()) as t:
            t.push("bids", [bid(1, 10)])
            for accept in ("out:impossible", [1]):
                reason = self.refused(t, epoch=t.checkpoint(), timeline=1, accept=accept)
                assert reason == "the request's `accept` is not a list of SINK:VERDICT"

    def test_a_request_without_an_epoch_or_at_the_end_is_refused(self) -> None:
        with TestDriver(counted()) as t:
            t.push("bids", [bid(1, 10)])
            base = t.checkpoint()
            assert self.refused(t, timeline=1) == "the request does not name an epoch and a timeline to rewind to"
            t.cluster.driver.stop()
            assert self.refused(t, epoch=base, timeline=1) == "the job is ending; rewind it when it has ended"

    def test_a_rewind_with_stop_leaves_the_job_repaired_at_the_base(self) -> None:
        with TestDriver(counted()) as t:
            t.push("bids", [bid(1, 10)])
            base = t.checkpoint()
            t.push("bids", [bid(1, 1)])
            t.checkpoint()
            assert self.refused(t, epoch=base, timeline=1, stop=True) is None
            t.cluster.pass_time(3.0)
            assert t.cluster.driver.outcome == ("stopped", None)
            assert totals(t) == {1: (1, 10)}

    def test_a_rewind_with_stop_accepts_no_savepoint_and_no_other_end(self) -> None:
        with TestDriver(counted()) as t:
            base = self.with_a_checkpoint(t)
            assert self.refused(t, epoch=base, timeline=1, stop=True) is None
            driver, reason = t.cluster.driver, "the job is rewinding and will stop there"
            for _ in range(2):  # before the record, and after it
                generation = driver.state.job.generation
                for kind, args in (("savepoint", {"name": "v1"}), ("stop", {"how": "finish"})):
                    answer = driver.asked(kind, args, generation, generation)
                    assert answer is not None and reason in str(answer["reason"])
                while t.cluster.repository.read_log().timeline == 1:  # type: ignore[union-attr]
                    t.cluster.step()

    def test_a_rewind_with_stop_is_refused_while_a_savepoint_is_pending(self) -> None:
        with TestDriver(counted()) as t:
            base = self.with_a_checkpoint(t)
            generation = t.cluster.driver.state.job.generation
            t.cluster.driver.asked("savepoint", {"name": "v1"}, generation, generation)
            reason = self.refused(t, epoch=base, timeline=1, stop=True)
            assert reason == "savepoint 'v1' has not been taken yet; rewind when it is complete"
            assert self.refused(t, epoch=base, timeline=1) is None

    def with_a_checkpoint(self, t: TestDriver) -> int:
        t.push("bids", [bid(1, 10)])
        return t.checkpoint()

    def test_a_worker_fenced_by_the_rewind_of_its_own_job_is_no_failure(self) -> None:
        with TestDriver(counted()) as t:
            t.push("bids", [bid(1, 10)])
            t.rewind(t.checkpoint())
            state = t.cluster.driver.state
            worker = next(iter(state.workers))
            for generation, past in ((state.job.generation - 1, True), (state.job.generation, False)):
                refused = Fenced("refused", next_step="leave").report()
                failed = m.Failed(worker, Generation(generation), refused, permanent=True)
                after, _ = master.step(state, failed, Moment(0.0))
                assert isinstance(after.phase, Over) is not past
