"""`holdfast rewind` on a running job, which expires checkpoints while a plan reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from words_job import Words

from holdfast.checkpoint.catalogue import Retention
from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError, Damaged
from holdfast.runtime.cli.operate.rewind import planned
from holdfast.runtime.inspect.stored import Stored
from holdfast.runtime.rewind.target import RewindPoint
from holdfast.storage.objects import LocalObjects


class Root(LocalObjects):
    """A job's folder; before a manifest is read from it, other things happen."""

    def __init__(self, words: Words, goes_on: int) -> None:
        super().__init__(words.store.root)
        self.words, self.goes_on, self.lost = words, goes_on, ""

    def get(self, path: str) -> bytes:
        if path.startswith("manifests/"):
            if self.goes_on:
                self.goes_on -= 1
                for _ in range(4):
                    self.words.cluster.driver.close_epoch()
                    self.words.cluster.pass_time(1.25)
            if path == self.lost:
                self.delete(path)
        return super().get(path)


@pytest.fixture
def words(tmp_path: Path) -> Words:
    """A job that keeps two checkpoints, one for each of its seconds."""
    job = Words(tmp_path)
    job.cluster.change_rules(retention=Retention(2, 0, 50))
    job.cluster.replace_driver()
    job.say(a=1, b=2)
    return job


def stored(words: Words, goes_on: int) -> Stored:
    root = Root(words, goes_on)
    return Stored("words", str(root.root), root, Repository(root), words.job)


class TestPlan:
    @pytest.mark.parametrize("times", [1, 3])
    def test_starts_over_if_a_checkpoint_expires_while_it_is_read(self, words: Words, times: int) -> None:
        before = stored(words, times)
        after, base, shown, _ = planned(before, RewindPoint(at_us=1 << 60), words.plan, stop=False)
        assert before.job.base_epoch < after.job.expired_through
        assert base in after.job.completed and shown["to"]["epoch"] == base.body.epoch

    def test_to_an_epoch_that_expires_during_the_plan_is_refused_as_too_old(self, words: Words) -> None:
        before = stored(words, 1)
        with pytest.raises(ConfigError, match=f"cannot be rewound to epoch {before.job.base_epoch}"):
            planned(before, RewindPoint(epoch=before.job.base_epoch), words.plan, stop=False)

    def test_names_a_missing_object_if_nothing_has_expired(self, words: Words) -> None:
        found = stored(words, 0)
        assert isinstance(found.store, Root)
        found.store.lost = found.job.completed[-1].body.manifest.path
        with pytest.raises(Damaged, match="is missing"):
            planned(replace(found), RewindPoint(epoch=found.job.base_epoch), words.plan, stop=False)
