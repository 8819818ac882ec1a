"""Jobs whose drivers store the fold of their log after every few records, and start from it, under all faults."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.chaos.sim.simulator import simulate
from holdfast.checkpoint import folds
from holdfast.checkpoint.joblog import Job
from holdfast.checkpoint.repository import Repository

SEEDS = 12


def test_no_job_ends_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folds, "EVERY", 4)
    used = 0
    right = Repository._backwards

    def counted(repository: Repository, highest: int, fold: Job | None) -> Any:
        nonlocal used
        found = right(repository, highest, fold)
        used += found[0] is not None
        return found

    monkeypatch.setattr(Repository, "_backwards", counted)
    for seed in range(SEEDS):
        assert simulate(seed).violations == (), f"seed {seed}"
    assert used > SEEDS, "starts from stored folds"
