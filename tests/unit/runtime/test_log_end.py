"""The end of a log is complete for every job that stores what drivers store, whatever form its manifests have."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import holdfast as hf
from holdfast.checkpoint import manifest
from holdfast.checkpoint.deltas import DELTA_ENDING
from holdfast.runtime.inspect.log_end import read_whole_log
from holdfast.testing import TestDriver


@dataclass
class Sale:
    shop: str
    amount: int


def app() -> hf.App:
    app = hf.App("sales", key_groups=16)
    sales = app.source("sales", hf.Generator(Sale, lambda i: Sale("x", i), count=1))
    sales.key_by("shop").agg("totals", turnover=hf.sum("amount")).sink("out", hf.Collect())
    return app


@pytest.mark.parametrize("mode", ["continuous", "microbatch"])
def test_a_job_with_manifests_of_both_forms_may_start_after_each_epoch(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Manifests of 64 KiB, of some hundred partitions, are stored as differences where that saves room."""
    monkeypatch.setattr(manifest, "COMPRESSED_FROM_BYTES", 0)
    monkeypatch.setattr(manifest, "DELTA_SHARE", 0)
    with TestDriver(app(), mode=mode) as t:
        repository = t.cluster.repository
        for amount in range(4):
            t.push("sales", [{"shop": "north", "amount": amount}])
            epoch = t.checkpoint()
            job = read_whole_log("sales", t.cluster.repository._store, repository)
            assert job is not None and job.base_epoch == epoch
        forms = [path.endswith(DELTA_ENDING) for path in repository.names("manifests")]
        assert any(forms) and not all(forms), "manifests of both forms are stored"
