"""Tests wait for conditions, by the limits of `patience`: no test has a fixed time limit that a busy machine exceeds.

A wait shorter than a second is a pause between two looks. Everything longer is a limit: it comes from `patience`, or
its place is listed here with the reason why that limit is the subject of the test.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
WAITS = {"wait": 0, "join": 0, "acquire": 1, "communicate": 1, "result": 0, "settimeout": 0, "select": 3}
"""Methods that wait, each with the place of its limit among the positional arguments."""
NAMED = {*WAITS, "get", "run", "check_output", "wait_procs", "urlopen", "open", "committed", "list_topics"}
"""Calls that wait, whose limit is named `timeout`."""
SHARED = ("WALL_S", "ANSWER_WITHIN_S")
"""Limits of `patience`, and of a Kafka client's own calls."""
PAUSES = ("PAUSE_S", "POLL_S", "LOOK_S", "EVERY_S")
SUBJECTS = {
    "unit/sinks/test_kafka_sending.py": "a wait ends before the broker answers, an abort before the library gives up",
    "bench/bench_kafka_latency.py": "records are sent at a rate, for as long as the size of the benchmark says",
    "bench/recovery_engines.py": "it looks for a task at work, a second at a time",
    "e2e/test_kafka.py": "a transaction that was left open ends by itself, but later than one that was committed",
    "soak/test_growth.py": "a job runs for as long as the caller asks",
}
"""Modules with limits of their own, each with the reason."""


def limits(module: ast.Module) -> Iterator[ast.expr]:
    """Yield every limit of time with which a module waits."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            places = {"timeout": NAMED, "within_s": {"wait"}}
            yield from (each.value for each in node.keywords if name in places.get(each.arg or "", ()))
            place = WAITS.get(name)
            if isinstance(node.func, ast.Attribute) and place is not None and len(node.args) == place + 1:
                yield node.args[place]
        elif isinstance(node, ast.Assert | ast.While) and "time.monotonic()" in ast.unparse(node.test):
            yield node.test


def is_fixed(limit: ast.expr) -> bool:
    """Return whether a limit is neither a pause nor one that is shared."""
    match limit:
        case ast.Constant(value=int() | float() as seconds):
            return seconds >= 1
        case ast.Compare(ops=[ast.Lt() | ast.LtE()]):
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.endswith("_S") and name not in SHARED and not name.endswith(PAUSES)
        case ast.BinOp(left=left, right=right):
            return is_fixed(left) or is_fixed(right)
    return False


class TestALimit:
    @pytest.mark.parametrize(
        "line",
        [
            "process.wait(10)",
            "thread.join(PATIENCE_S)",
            "event.wait(2 * LONG_S)",
            "queue.get(timeout=60)",
            "places.acquire(timeout=5.0)",
            "subprocess.run(command, timeout=LIMIT_S)",
            "psutil.wait_procs(left, timeout=90)",
            "select.select([end], [], [], 10)",
            "wait(found, 'an end', within_s=30.0)",
            "urllib.request.urlopen(url, timeout=30)",
            "assert time.monotonic() < deadline",
        ],
    )
    def test_a_fixed_limit_is_found(self, line: str) -> None:
        assert any(map(is_fixed, limits(ast.parse(line))))

    @pytest.mark.parametrize(
        "line",
        ["process.wait()", "event.wait(0.05)", "closed.wait(PAUSE_S)", "thread.join(WALL_S)", "count.get(0)", "at = 5"],
    )
    def test_patience_and_pauses_are_not_fixed_limits(self, line: str) -> None:
        assert not any(map(is_fixed, limits(ast.parse(line))))

    def test_is_written_nowhere_but_where_it_is_the_subject(self) -> None:
        found = [
            f"{path.relative_to(TESTS)}:{limit.lineno}: {ast.unparse(limit)}: use `patience`, or list it with a reason"
            for path in sorted(TESTS.rglob("*.py"))
            if str(path.relative_to(TESTS)) not in SUBJECTS
            for limit in limits(ast.parse(path.read_text()))
            if is_fixed(limit)
        ]
        assert not found, "\n" + "\n".join(found)

    @pytest.mark.parametrize("path", SUBJECTS)
    def test_each_listed_limit_exists(self, path: str) -> None:
        assert any(map(is_fixed, limits(ast.parse((TESTS / path).read_text()))))
