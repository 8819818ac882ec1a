"""What the driver can tell of a job that gets nowhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.runtime.microbatch.job_watch import JobWatch, LayerProgress

FRAGMENTS = tuple(SimpleNamespace(calls=lambda names=names: names) for names in (["parse"], [], ["score", "map 2"]))
PLAN: Any = SimpleNamespace(fragments=FRAGMENTS)
LAYERS = (frozenset({0, 1}), frozenset({2}))


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([2, 0, 0, 0, 0, 0], ["", "", "", "", "15 s", "20 s"]),
        ([2, 0, 0, 0, 0, 1, 0], ["", "", "", "", "15 s", "", ""]),
        ([2, 2, 2], ["", "", ""]),
    ],
)
def test_how_long_spark_has_had_no_executor_is_known(counts: list[int], said: list[str]) -> None:
    watch = JobWatch(PLAN, LAYERS, 0.0)
    found = [watch.look(5.0 * number, count, ()) for number, count in enumerate(counts)]
    assert [text.partition(" executor for ")[2].partition(";")[0] for text in found] == said


def test_tasks_that_take_long_are_named_with_the_functions_that_they_call() -> None:
    watch = JobWatch(PLAN, LAYERS, 100.0)
    assert watch.look(109.0, 2, [LayerProgress(4, 1, 0)]) == "", "a task has ended since the last look"
    said = watch.look(113.0, 2, [LayerProgress(4, 1, 0)])
    assert said == (
        "its Spark job has run for 13 s; 3 of 4 tasks of stage 1 of 2 still run; "
        "they call the Python function of step 'parse'"
    )
    assert watch.look(114.0, 2, [LayerProgress(4, 4, 0), LayerProgress(4, 0, 2)]) == "", "the next stage runs"
    said = watch.look(118.0, 2, [LayerProgress(4, 4, 0), LayerProgress(4, 0, 2)])
    assert "4 of 4 tasks of stage 2 of 2 still run, 2 attempts have failed; they call" in said
    assert said.endswith("the Python function of step 'score', the Python function of step 'map 2'")


def test_a_job_that_has_not_begun_waits_for_no_task() -> None:
    watch = JobWatch(PLAN, LAYERS, 0.0)
    assert watch.look(60.0, 2, cast(Any, [])) == ""
