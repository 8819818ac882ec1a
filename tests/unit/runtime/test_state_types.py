"""Types of state: what they leave on the classes of users, and what is refused inside containers."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark import cloudpickle

from holdfast.runtime.rows.state_types import misfit, shape_of, state_type


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


class TestContainers:
    def test_a_type_that_cannot_be_stored_is_refused_inside_two_containers(self) -> None:
        assert "Unknown is not a type" in str(misfit(list[dict[str, Unknown]]))
        assert misfit(list[dict[str, int]]) is None
