"""Types of state: what they leave on the classes of users, and what is refused inside containers."""

from __future__ import annotations

import enum
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from holdfast.runtime.rows.state_types import misfit, shape_of, state_type

JOB = """
from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import datetime

from pyspark import cloudpickle

from holdfast.runtime.rows.state_types import misfit, state_type


@dataclass
class Dated:
    at: datetime


@dataclass
class Offer(Dated):
    price: int


@dataclass
class Kept:
    offer: Offer
    last: Kept | None = None


assert misfit(Kept) is None
data = state_type("kept", Kept).encode(Kept(Offer(datetime(2026, 1, 2), 3)))
print(cloudpickle.dumps((Kept, data)).hex())
"""
WORKER = """
import sys

from pyspark import cloudpickle

from holdfast.runtime.rows.state_types import state_type

kind, data = cloudpickle.loads(bytes.fromhex(sys.stdin.read()))
print(state_type("kept", kind).decode(data))
"""


class Kind(enum.Enum):
    SMALL = "small"


@dataclass
class Part:
    kind: Kind


@dataclass
class Whole:
    parts: list[Part]
    again: Whole | None = None


class Unknown:
    pass


class TestClassesOfUsers:
    @pytest.mark.parametrize("look", [misfit, shape_of, lambda declared: state_type("s", declared)])
    def test_they_can_still_be_sent_as_values_after_a_type_was_used(self, look: Callable[[Any], Any]) -> None:
        look(dict[str, list[Whole]])
        assert not [kind for kind in (Kind, Part, Whole) if "__msgspec_cache__" in vars(kind)]
        here = sys.modules[__name__]
        cloudpickle.register_pickle_by_value(here)  # type: ignore[no-untyped-call]
        try:
            assert cloudpickle.dumps(Whole)  # type: ignore[no-untyped-call]
        finally:
            cloudpickle.unregister_pickle_by_value(here)  # type: ignore[no-untyped-call]

    def test_their_values_are_read_by_a_process_without_their_module(self, tmp_path: Path) -> None:
        """As in a worker, to which the classes of a job's file are sent."""
        (tmp_path / "job.py").write_text(JOB)
        sent = subprocess.run(
            [sys.executable, "job.py"], cwd=tmp_path, capture_output=True, check=True, text=True
        ).stdout
        found = subprocess.run([sys.executable, "-c", WORKER], input=sent, capture_output=True, text=True, check=False)
        assert (
            found.stdout.strip() == "Kept(offer=Offer(at=datetime.datetime(2026, 1, 2, 0, 0), price=3), last=None)"
        ), found.stderr


class TestContainers:
    def test_a_type_that_cannot_be_stored_is_refused_inside_two_containers(self) -> None:
        assert "Unknown is not a type" in str(misfit(list[dict[str, Unknown]]))
        assert misfit(list[dict[str, int]]) is None
