"""`holdfast rewind`, killed at every step with an effect and repeated, has the result of an uninterrupted run."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from words_job import Words, durable, visible

pytestmark = pytest.mark.thorough

KILLED_AT_EACH = Path(__file__).parents[1] / "e2e" / "killed_at_each.py"
EVERY = 5
"""Every run of the tests checks one in so many steps; long runs check the others."""


class Rewound:
    """A stopped job that is rewound again and again, each time from the same files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.copy = folder / "here", folder / "copy"
        self.folder.mkdir()
        self.words = Words(self.folder)
        self.words.say(a=1, b=2)
        self.words.say(a=10, c=3)
        self.words.say(b=5, d=4)
        self.words.stop()
        shutil.copytree(self.folder, self.copy)
        self.arguments = ["rewind", self.words.file, "--to-epoch", str(self.words.epochs[0]), "--apply"]

    def turns(self, first: int, every: int, *more: str) -> list[dict[str, Any]]:
        """Return the result of each turn."""
        command = [sys.executable, str(KILLED_AT_EACH), str(self.folder), str(self.copy), str(first), str(every)]
        ended = subprocess.run([*command, *self.arguments, *more], capture_output=True, text=True, check=True)
        return [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.fixture
def rewound(tmp_path: Path) -> Rewound:
    return Rewound(tmp_path)


@pytest.mark.parametrize(
    "first", [pytest.param(first, marks=[pytest.mark.slow] if first > 1 else []) for first in range(1, EVERY + 1)]
)
def test_a_rewind_killed_at_any_step_and_repeated_equals_an_uninterrupted_one(rewound: Rewound, first: int) -> None:
    *killed, unhurt = rewound.turns(first, EVERY)
    assert unhurt["killed"] == 0, "the last turn is the one that the command outlives"
    assert len(killed) * EVERY > 60, "so many steps there are at least: records, tags, rows of four targets"
    expected = json.loads(json.dumps(durable(rewound.folder)))
    assert expected["job"]["base"] == rewound.words.epochs[0] and expected["job"]["ended"] == "Stopped"
    assert expected["out"] == expected["tagged"] == [["a", 1, 1], ["b", 1, 2]]
    assert expected["said"] == expected["log"] == [["a", 1], ["b", 2]]
    assert [turn["killed"] for turn in killed] == [-signal.SIGKILL] * len(killed)
    assert [turn["again"] for turn in killed] == [0] * len(killed)
    assert [turn["step"] for turn in killed if turn["left"] != expected] == []
    rewound.words.cluster.replace_driver()
    rewound.words.say(e=6)
    after = visible(rewound.folder)
    assert after["out"] == after["tagged"] == [["a", 2, 11], ["b", 2, 7], ["c", 1, 3], ["d", 1, 4], ["e", 1, 6]]
    assert after["said"] == after["log"] == [["a", 1], ["a", 10], ["b", 2], ["b", 5], ["c", 3], ["d", 4], ["e", 6]]


@pytest.mark.slow
def test_a_killed_and_repeated_rewind_keeps_accepted_rows(rewound: Rewound) -> None:
    rewound.words.forget("out")
    shutil.rmtree(rewound.copy)
    shutil.copytree(rewound.folder, rewound.copy)
    *killed, unhurt = rewound.turns(1, 2, "--accept", "out:impossible")
    assert unhurt["killed"] == 0 and len(killed) > 30
    expected = json.loads(json.dumps(durable(rewound.folder)))
    assert expected["out"] == [["a", 2, 11], ["b", 2, 7], ["c", 1, 3], ["d", 1, 4]]
    assert expected["tagged"] == [["a", 1, 1], ["b", 1, 2]]
    assert {tuple(tag[1:]) for tag in expected["out tags"]} == {(0, rewound.words.epochs[0])}
    assert [turn["again"] for turn in killed] == [0] * len(killed)
    assert [turn["step"] for turn in killed if turn["left"] != expected] == []
