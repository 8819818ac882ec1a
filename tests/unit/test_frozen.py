"""Changes to frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

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


@dataclass(frozen=True)
class Shared:
    unit: ClassVar[str] = "rows"
    a: int = 0

    @cached_property
    def doubled(self) -> int:
        return 2 * self.a


@dataclass(frozen=True, init=False)
class Computed:
    a: int
    doubled: int

    def __init__(self, a: int, doubled: int | None = None) -> None:
        object.__setattr__(self, "a", a)
        object.__setattr__(self, "doubled", 2 * a)


class TestReplace:
    def test_returns_a_copy_of_the_same_class_and_leaves_the_original(self) -> None:
        before = Plain(1, (2,))

        assert replace(before, a=3) == Plain(3, (2,))
        assert before == Plain(1, (2,))
        assert replace(before) is not before

    @pytest.mark.parametrize("value", [Plain(1), Checked(1), Slotted(1)])
    def test_refuses_an_unknown_field(self, value: Any) -> None:
        with pytest.raises(TypeError):
            replace(value, c=1)

    def test_keeps_the_checks_of_a_class(self) -> None:
        with pytest.raises(AssertionError):
            replace(Checked(1), a=-1)

    def test_a_value_computed_from_the_fields_is_computed_again(self) -> None:
        before = Plain(1, (2,))
        assert before.total == 3

        assert replace(before, a=10).total == 12

    def test_recomputes_derived_values_in_a_class_with_a_class_variable(self) -> None:
        before = Shared(1)
        assert before.doubled == 2

        assert replace(before, a=10).doubled == 20

    def test_runs_an_initializer_that_a_class_wrote_itself(self) -> None:
        assert replace(Computed(1), a=10) == Computed(10)

    def test_copies_classes_with_slots_too(self) -> None:
        assert replace(Slotted(1), a=2) == Slotted(2)

    def test_refuses_a_field_that_the_initializer_does_not_take(self) -> None:
        with pytest.raises((TypeError, ValueError)):
            replace(Numbered(1), doubled=5)
