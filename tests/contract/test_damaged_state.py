"""A job whose newest state is damaged: the run reports it; a rewind to an intact checkpoint repairs all of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from words_job import Words, visible

from holdfast.checkpoint.repository import Repository
from holdfast.runtime.cli.main import main


def segments(words: Words, epoch: int) -> list[str]:
    """Return the paths of all segments that restoring this checkpoint reads."""
    completed = next(each for each in words.job.completed if each.body.epoch == epoch)
    manifest = Repository(words.store).load_manifest(completed.body.manifest)
    return [piece.object.path for handle in manifest.state for piece in handle.segments]


@pytest.fixture
def damaged(tmp_path: Path) -> Words:
    """A stopped job whose last checkpoint has a flipped bit in its state."""
    words = Words(tmp_path)
    words.say(a=1, b=2)
    words.say(a=10, c=3)
    words.say(b=5, d=4)
    words.stop()
    older = {path for epoch in words.epochs[:2] for path in segments(words, epoch)}
    newest = [path for path in segments(words, words.job.base_epoch) if path not in older]
    path = tmp_path / "root" / "words" / newest[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return words


def test_the_run_fails_and_names_the_object_and_the_next_step(damaged: Words) -> None:
    damaged.cluster.replace_driver()
    damaged.cluster.pass_time(30.0)
    assert damaged.cluster.driver.outcome is not None
    outcome, error = damaged.cluster.driver.outcome
    assert outcome == "failed" and error is not None and error.kind == "damaged"
    assert "segments/" in error.what
    assert "holdfast checkpoints verify" in error.next and "holdfast rewind" in error.next


def test_a_rewind_to_an_undamaged_checkpoint_repairs_state_and_outputs(
    damaged: Words, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(damaged.folder / "root")
    assert main(["checkpoints", "verify", "words", "--root", root, "--json"]) == 4
    whole = json.loads(capsys.readouterr().out)["newest_whole_epoch"]
    assert whole is not None and whole < damaged.job.base_epoch
    assert main(["rewind", damaged.file, "--to-epoch", str(whole), "--apply"]) == 0
    damaged.cluster.replace_driver()
    damaged.say(e=6)
    after = visible(damaged.folder)
    assert after["out"] == after["tagged"] == [["a", 2, 11], ["b", 2, 7], ["c", 1, 3], ["d", 1, 4], ["e", 1, 6]]
    assert after["said"] == after["log"] == [["a", 1], ["a", 10], ["b", 2], ["b", 5], ["c", 3], ["d", 4], ["e", 6]]
