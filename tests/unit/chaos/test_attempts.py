"""The checker of attempts finds every mix of attempts and jobs that an epoch must not have (P26)."""

from __future__ import annotations

import pytest

from holdfast.chaos.sim.checks.attempts import Attempts, Job
from holdfast.model import Subtask
from holdfast.runtime.microbatch.blocks import Attempt, Result

JOB, NEXT_JOB, OTHER_DRIVER = ("d1", 4), ("d1", 5), ("d2", 4)


def attempt(layer: int, subtask: int, number: int) -> Attempt:
    return Attempt(layer, Subtask(subtask), f"{number:012x}")


FIRST, TWIN, SECOND = attempt(0, 0, 1), attempt(0, 0, 2), attempt(0, 1, 3)
IDLE, LAST, OTHER = attempt(1, 0, 4), attempt(2, 0, 5), attempt(2, 1, 6)


class World:
    """A checker and what it has found."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.attempts = Attempts(lambda rule, what: self.found.append(f"{rule}: {what}"))

    def made(self, made: Attempt, *read_from: Attempt, job: Job = JOB) -> None:
        self.attempts.made(job, Result(made, read_from))

    def completed(self, epoch: int, *named: tuple[int, Attempt]) -> list[str]:
        """Complete an epoch whose manifest names an object of each of these epochs and attempts."""
        paths = (f"staged/000001/{of:012d}/{each.layer}-{each.subtask}-{each.id}-0" for of, each in named)
        self.attempts.completed(epoch, paths)
        return self.found


@pytest.fixture
def world() -> World:
    return World()


class TestAnEpochInMicrobatchMode:
    def test_may_have_one_attempt_of_each_task_of_one_job(self, world: World) -> None:
        world.made(FIRST)
        world.made(SECOND)
        world.made(IDLE, FIRST, SECOND)
        world.made(LAST, IDLE)
        assert world.completed(7, (7, FIRST), (7, SECOND), (7, LAST)) == []
        assert world.attempts.accepted == 3

    def test_has_no_objects_of_two_attempts_of_a_task(self, world: World) -> None:
        world.made(FIRST)
        world.made(TWIN)
        [found] = world.completed(7, (7, FIRST), (7, TWIN))
        assert f"attempts {FIRST.id} and {TWIN.id} of task (0, 0)" in found

    @pytest.mark.parametrize("job", [NEXT_JOB, OTHER_DRIVER])
    def test_has_no_objects_of_two_jobs_at_different_places(self, world: World, job: Job) -> None:
        world.made(FIRST, job=JOB)
        world.made(SECOND, job=job)
        [found] = world.completed(7, (7, FIRST), (7, SECOND))
        assert f"several jobs: [{JOB}, {job}]" in found

    def test_rests_on_no_other_attempt_than_the_one_whose_objects_it_has(self, world: World) -> None:
        world.made(FIRST)
        world.made(TWIN)
        world.made(IDLE, TWIN)
        [found] = world.completed(7, (7, FIRST), (7, IDLE))
        assert "rests on attempts" in found

    def test_rests_on_no_other_attempt_behind_one_without_objects(self, world: World) -> None:
        world.made(FIRST)
        world.made(TWIN)
        world.made(IDLE, TWIN)
        world.made(LAST, IDLE)
        [found] = world.completed(7, (7, FIRST), (7, LAST))
        assert f"attempts {FIRST.id} and {TWIN.id} of task (0, 0)" in found

    def test_does_not_rest_on_two_attempts_without_objects(self, world: World) -> None:
        world.made(FIRST)
        world.made(TWIN)
        world.made(LAST, FIRST)
        world.made(OTHER, TWIN)
        [found] = world.completed(7, (7, LAST), (7, OTHER))
        assert "rests on attempts" in found

    def test_keeps_the_objects_of_earlier_epochs(self, world: World) -> None:
        world.made(FIRST, job=JOB)
        world.made(TWIN, job=NEXT_JOB)
        assert world.completed(7, (7, FIRST)) == []
        assert world.completed(8, (7, FIRST), (8, TWIN)) == []

    def test_takes_no_objects_of_an_earlier_epoch_that_did_not_have_them(self, world: World) -> None:
        world.made(FIRST, job=JOB)
        world.made(TWIN, job=JOB)
        assert world.completed(7, (7, FIRST)) == []
        [found] = world.completed(8, (7, FIRST), (7, TWIN))
        assert f"names an object of epoch 7 whose attempt {TWIN.id} never counted" in found

    def test_may_follow_epochs_of_continuous_mode(self, world: World) -> None:
        world.made(FIRST)
        world.attempts.completed(7, ["segments/000001/000000000006/w3-0a1b2c.seg", "manifests/000001/7.json"])
        assert world.completed(8, (8, FIRST)) == []
