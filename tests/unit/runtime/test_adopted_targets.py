"""Targets that are adopted after another history of the job has written to them, under the same numbers of epochs.

Source: PROTOCOL P1, P17, P21; docs/decisions/0021-owned-targets.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast as hf
from holdfast.checkpoint.joblog import Job
from holdfast.model import Epoch
from holdfast.runtime.driver.state import RewindWanted
from holdfast.runtime.execution.checks.ordered import refuse
from holdfast.runtime.execution.checks.targets import adoption
from holdfast.runtime.execution.holdings import adopted_from, read_holdings
from holdfast.runtime.rewind.stopped import rewind_stopped
from holdfast.runtime.testing.cluster import Cluster
from tests.unit.runtime.test_owned_targets import AT_THE_COMMIT, Site, outcome


@pytest.fixture(params=AT_THE_COMMIT)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return Site(tmp_path, request.param)


def stop(cluster: Cluster) -> None:
    cluster.driver.stop()
    cluster.pass_time(3)
    assert cluster.driver.outcome == ("stopped", None)


def both_delivered(site: Site) -> Job:
    """Let two roots complete an epoch of the same number; the copy delivers it, the original cannot."""
    site.say(site.start())
    site.copy_root("staging")
    original, copy = site.start(), site.start("staging")
    site.say(copy)
    stop(copy)
    site.say(original)
    assert outcome(original)[1] == "fenced" and site.numbers() == [0, 1, 2, 3, 4, 5]
    return original.driver.state.job


def go_back(site: Site, epoch: int) -> None:
    """Do what `holdfast rewind JOB.py --to-epoch --adopt-targets copy --apply` does."""
    started = site.prepare_for_rewind()
    job, plan, repository = started
    found = read_holdings(job, plan.sinks)
    to = next(each for each in job.completed if each.body.epoch == epoch)
    refuse(adoption.doubtful(repository, job, to, specs=plan.sinks, holdings=found, adopt=["copy"]))
    adopted = adopted_from(job, found, ["copy"])
    rewind_stopped(repository, job, RewindWanted(Epoch(epoch), True), plan.sinks, 60.0, lambda _reported: None, adopted)


class TestEpochInBothHistories:
    def test_a_run_does_not_treat_output_of_the_other_history_as_its_own(self, site: Site) -> None:
        both_delivered(site)
        with pytest.raises(hf.Damaged, match="which of the two delivered epoch 102") as refused:
            site.prepare(adopt=["copy"])
        assert "--to-epoch 1 --adopt-targets copy" in refused.value.next_step
        assert site.numbers() == [0, 1, 2, 3, 4, 5]

    def test_a_rewind_to_that_epoch_is_refused(self, site: Site) -> None:
        job = both_delivered(site)
        with pytest.raises(hf.Damaged, match="which of the two delivered epoch 102"):
            go_back(site, job.base_epoch)

    def test_a_rewind_to_the_checkpoint_before_it_makes_the_output_complete(self, site: Site) -> None:
        both_delivered(site)
        go_back(site, 1)
        assert site.numbers() == [0, 1, 2]
        site.say(site.start())
        assert site.numbers() == list(range(12))


class TestTargetWithoutAnAmbiguousEpoch:
    def test_a_stopped_job_can_be_rewound_to_its_newest_checkpoint(self, site: Site) -> None:
        first = site.start()
        site.say(first)
        stop(first)
        site.copy_root("staging")
        site.say(site.start("staging"))
        go_back(site, first.driver.state.job.base_epoch)
        assert site.numbers() == [0, 1, 2]
        site.say(site.start())
        assert site.numbers() == list(range(9))

    def test_a_run_adopts_the_target_of_an_immediate_sink(self, tmp_path: Path) -> None:
        site = Site(tmp_path, "sqlite immediate")
        site.say(site.start())
        site.copy_root("staging")
        staging = site.start("staging")
        site.say(staging)
        site.say(site.start(adopt=["copy"]))
        site.say(staging)
        assert outcome(staging)[1] == "fenced" and site.numbers() == list(range(9))
