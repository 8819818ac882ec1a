"""How long a writer waits before it tries again to append to a log that other writers append to.

A sink of a job has one committer (docs/decisions/0056). The writers here have no committer in common: those of several
jobs or sinks, or of a sink that is delivered per writer. Each commit makes all others read it and try again. A writer
that lost waits for its turn: the writers whose names come before its own and whose tags are behind go first. Some of
these may have nothing to deliver. So no wait is longer than four times the last one, and the first is short: a writer
that is alone never waits, and a wrong guess costs little.

Pure: a wait decides when a writer tries, never whether its append is right (P3).
Source: PROTOCOL P3; docs/decisions/0053.
"""

from __future__ import annotations

from holdfast.storage.log.format import Commit, WriterTag

REQUESTS_PER_COMMIT = 2
"""How many requests pass from one commit to the next: a writer reads the last one, then creates its own."""
GROWTH = 4
"""How many times as long as the last a wait may be."""
WAIT_MAX_S = 5.0


def wait_s(tail: Commit, tag: WriterTag | None, owner: str, lost: int, request_s: float) -> float:
    """Return how long to wait.

    Args:
        tail: The newest commit.
        tag: The writer's tag that the append moves; None: it moves none.
        owner: Token of the append, which is random.
        lost: How often it has lost in a row.
        request_s: How long a request to the store takes.
    """
    limit = float(GROWTH ** min(lost, 8))
    before = None if tag is None else _before(tail, tag)
    turns = limit * int(owner[:4], 16) / 0xFFFF if before is None else min(limit, before)
    return min(WAIT_MAX_S, turns * REQUESTS_PER_COMMIT * request_s)


def _before(tail: Commit, tag: WriterTag) -> int | None:
    """Return how many writers of the same sink go first; None if this one has never written: then none are known."""
    sink = tag.writer.rpartition("/")[0] + "/"
    sibling_tags = [each for each in tail.tags if each.writer.startswith(sink)]
    if all(each.writer != tag.writer for each in sibling_tags):
        return None
    place = _place(tag.writer)
    return sum(each.tag < tag.tag and _place(each.writer) < place for each in sibling_tags)


def _place(writer: str) -> tuple[int, str]:
    return len(writer), writer  # numbers at the end of names sort as numbers
