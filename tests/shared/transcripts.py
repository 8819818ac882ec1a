"""Transcripts: scripts of events with the effects that follow, as text that people read and a test compares.

A file is a list of blocks. A block has one event per line, then `----`, then what follows from them: one effect per
line, and last the state of the machine. Lines that begin with `#` are for the reader.

    pytest tests/unit -k transcript --rewrite-transcripts

writes down what happens now; the difference in version control is the change of behaviour to be reviewed.

Source: cockroachdb/datadriven, and the `testdata` of etcd/raft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "transcripts"
SEPARATOR = "----"


def scripts(machine: str) -> list[Path]:
    """Return the transcripts of a machine; there are some."""
    found = sorted((FOLDER / machine).glob("*.txt"))
    assert found, f"{FOLDER / machine} holds no transcripts"
    return found


def played(text: str, play: Callable[[list[str]], list[str]]) -> str:
    """Return the transcript with what happens now.

    Args:
        play: Takes the words of one event; returns one line per effect, and the state as the last line.
    """
    return "\n".join(_played(text, play)) + "\n"


def _played(text: str, play: Callable[[list[str]], list[str]]) -> Iterator[str]:
    lines: list[str] = []
    answering = False
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            answering = False
            yield line.rstrip()
        elif line == SEPARATOR:
            yield line
            yield from lines[:-1]
            yield from _state(lines)
            lines, answering = [], True
        elif not answering:
            yield line
            *effects, state = play(line.split())
            lines = [*lines[:-1], *effects, state]


def _state(lines: list[str]) -> list[str]:
    assert lines, "a block without events"
    return [f"= {lines[-1]}"]


def compare(path: Path, play: Callable[[list[str]], list[str]], *, rewrite: bool) -> None:
    """Compare a transcript with what happens now, or write that down."""
    text = path.read_text(encoding="utf-8")
    now = played(text, play)
    if rewrite:
        path.write_text(now, encoding="utf-8")
    assert now == path.read_text(encoding="utf-8"), f"{path.name} differs; see tests/shared/transcripts.py to renew it"
