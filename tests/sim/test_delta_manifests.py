"""Jobs whose drivers store manifests as differences wherever they may, under all faults."""

from __future__ import annotations

import pytest

from holdfast.chaos.sim.simulator import simulate
from holdfast.checkpoint import manifest, repository
from holdfast.checkpoint.repository import Repository
from holdfast.model import ObjectRef

SEEDS = 12


@pytest.fixture(autouse=True)
def differences(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small a manifest is, and however much has changed."""
    monkeypatch.setattr(manifest, "COMPRESSED_FROM_BYTES", 0)
    monkeypatch.setattr(manifest, "DELTA_SHARE", 0)


def test_no_job_ends_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = read = 0
    store, load = Repository.store_manifest, Repository.load_manifest

    def storing(self: Repository, made: manifest.Manifest, owner: str) -> ObjectRef:
        nonlocal stored
        ref = store(self, made, owner)
        stored += ref.path.endswith("-delta.json")
        return ref

    def loading(self: Repository, ref: ObjectRef) -> manifest.Manifest:
        nonlocal read
        read += ref.path.endswith("-delta.json")
        return load(self, ref)

    monkeypatch.setattr(Repository, "store_manifest", storing)
    monkeypatch.setattr(Repository, "load_manifest", loading)
    for seed in range(SEEDS):
        assert simulate(seed).violations == (), f"seed {seed}"
    assert read and stored > SEEDS, "recoveries from differences"


def test_a_sweep_that_forgets_the_base_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong version: the sweep keeps what the difference names, and not what it is a difference from."""
    right = manifest.named_in

    def forgetful(data: bytes, ref: ObjectRef, base: bytes | None = None) -> manifest.Named:
        named, needed = right(data, ref, base), manifest.base_of(data, ref)
        return (
            named if needed is None else manifest.Named(named.epoch, tuple(p for p in named.paths if p != needed.path))
        )

    monkeypatch.setattr(repository, "named_in", forgetful)
    lost = "was deleted, but the retained checkpoint"
    assert any(lost in each for seed in range(4 * SEEDS) for each in simulate(seed).violations)
