"""Changes to frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pytest

from holdfast.frozen import replace


@dataclass(frozen=True)
class Plain:
    a: int
    b: tuple[int, ...] = ()

    @cached_property
    def total(self) -> int:
        return self.a + sum(self.b)


@dataclass(frozen=True)
class Checked:
    a: int

    def __post_init__(self) -> None:
        assert self.a >= 0


@dataclass(frozen=True, slots=True)
class Slotted:
    a: int


@dataclass(frozen=True)
class Numbered:
    a: int
    doubled: int = field(init=False, default=0)


class TestReplace:
    def test_returns_a_copy_of_the_same_class_and_leaves_the_original(self) -> None:
        before = Plain(1, (2,))

        assert replace(before, a=3) == Plain(3, (2,))
        assert before == Plain(1, (2,))
        assert replace(before) is not before

    @pytest.mark.parametrize("value", [Plain(1), Checked(1), Slotted(1)])
    def test_refuses_what_is_no_field(self, value: Any) -> None:
        with pytest.raises(TypeError):
            replace(value, c=1)

    def test_keeps_the_checks_of_a_class(self) -> None:
        with pytest.raises(AssertionError):
            replace(Checked(1), a=-1)

    def test_a_value_computed_from_the_fields_is_computed_again(self) -> None:
        before = Plain(1, (2,))
        assert before.total == 3

        assert replace(before, a=10).total == 12

    def test_copies_classes_with_slots_too(self) -> None:
        assert replace(Slotted(1), a=2) == Slotted(2)

    def test_refuses_a_field_that_is_not_given_when_an_object_is_made(self) -> None:
        with pytest.raises((TypeError, ValueError)):
            replace(Numbered(1), doubled=5)
