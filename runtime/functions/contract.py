"""The contract of an aggregate function.

A `Kind` is a function that a user names, with its parameters, not bound to types. `over` binds it to the types of its
inputs. The `AggregateFunction` that results works on whole arrays. Its state is one column per *role* ("sum", "seen");
row i of all columns is one state.

There are two ways to fold rows into state. A function with `operations` has one compiled operation per role, and the
table folds all such functions in one pass over the rows. Any other function has `fold`, which gets the held states of
the keys of a batch and returns the new ones; `combine` merges states by group, which sessions need as well.

Invariants
    - The defaults of a state are its neutral element: combining them with another state gives that state.
    - Folding a and then b equals combining the fold of a with the fold of b, in either order (floats: up to rounding).
    - No function changes the arrays that it gets.
    - The result depends on the values alone, not on their order or on batches (floats: up to rounding).

Pure.
Source: docs/decisions/0061-aggregate-functions.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.state.tables.kernels.layout import Do
from holdfast.state.tables.values import concatenated

Slots = NDArray[np.int64]
Groups = NDArray[np.int64]
"""The number of the group of every row, 0 up to the number of groups."""
State = Mapping[str, Any]
"""Columns of state by role: NumPy arrays if the column is plain, else Arrow arrays."""


@dataclass(frozen=True)
class StateColumn:
    """A column of state: its type (NumPy's, or Arrow's for text and bytes), default, and whether it may be null."""

    dtype: np.dtype[Any] | pa.DataType
    default: int | float = 0
    nullable: bool = False


class SlotValues(Protocol):
    """The values of one column of a batch that are not null, and the slots that they belong to."""

    @property
    def slots(self) -> Slots:
        """The slots, looked up at first use, which may move the columns of state: take views of them afterwards."""

    def values(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the values as this type; times as their underlying integers."""


@dataclass
class Known:
    """The findings of earlier checks of one column of state."""

    bound: int | None = None
    """An upper bound on all absolute sums; None: unknown."""
    beyond: int | None = None
    """The slot whose sum did not fit; a check that fails sets it."""


class CannotFold(Exception):
    """A value does not fit the state, or user code failed.

    Args:
        what: Completes "aggregate x = f('v') of operator 'o' ...".
        group: The group of the row at fault; None if it is unknown.
    """

    def __init__(self, what: str, next_step: str, group: int | None) -> None:
        self.what, self.next_step, self.group = what, next_step, group
        super().__init__(what)


class AggregateFunction(ABC):
    """An aggregate function over inputs of known types."""

    result: pa.DataType
    """The type of the result."""
    takes_nulls: ClassVar[bool] = False
    """Whether rows in which an input is null count."""

    @property
    @abstractmethod
    def columns(self) -> Mapping[str, StateColumn]:
        """The columns of state by role."""

    @property
    def counter(self) -> str | None:
        """The role that counts values: where it is 0, other plain columns have their defaults."""
        return None

    @property
    def operations(self) -> Mapping[str, Do] | None:
        """The operation that folds a value into each column of state; None if `fold` does."""
        return None

    def check(self, state: State, given: SlotValues, known: Known) -> bool:
        """Return whether the operations can fold these values; `known` holds the findings of earlier calls.

        Args:
            state: Columns indexed by slot.
        """
        return True

    def fold(self, held: State, inputs: Sequence[pa.Array], groups: Groups) -> State:
        """Return the states `held`, one per group, with rows folded in.

        Args:
            inputs: The input columns of the rows in which none of them is null.
            groups: The group of every row.

        Raises:
            CannotFold: a value does not fit.
        """
        count = len(next(iter(held.values())))
        return self.combine(stacked(held, self.partial(inputs, groups, count)), np.tile(np.arange(count), 2), count)

    def partial(self, inputs: Sequence[pa.Array], groups: Groups, count: int) -> State:
        """Return the state of the rows of each group, as `fold` takes them."""
        raise AssertionError("its operations fold it")

    @abstractmethod
    def combine(self, states: State, groups: Groups, count: int) -> State:
        """Return one state per group: all states of the group merged; for a group without any, the defaults.

        Raises:
            CannotFold: the merged state does not fit.
        """

    @abstractmethod
    def results(self, states: State) -> pa.Array:
        """Return the result of every state, in the type of the result; null as SQL has it."""


class Kind(ABC):
    """An aggregate function as a user names it; a frozen dataclass of its parameters."""

    name: ClassVar[str]
    """Its name in `.agg(...)` and in the identity of state."""
    calls: ClassVar[bool] = False
    """Whether it calls the user's functions, which may be slow."""
    null_free_state: ClassVar[bool] = True
    """Whether its state is the same for inputs that may be null and for those that may not."""

    def parameters(self) -> dict[str, Any]:
        """Return its parameters as JSON-able values, a part of the identity of state."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def code(self) -> list[str]:
        """Return hashes that differ if the code of its functions does; [] if it calls none."""
        return []

    def state(self) -> dict[str, Any]:
        """Return the columns of a state that its functions define, each as JSON-able `{type, nullable, init}`.

        `init` is the text of the value with which a state begins. {} if it calls no functions.
        """
        return {}

    def nullable(self, given: bool) -> bool:
        """Return whether its result may be null.

        Args:
            given: A row may have no value, so a key may have none.
        """
        return given

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Kind:
        """Return the kind with the parameters of an identity."""
        return cls(**parameters)

    @abstractmethod
    def over(self, given: Sequence[pa.Field], nullable: bool) -> AggregateFunction | None:
        """Bind it to inputs of these types; None if it does not take them.

        Args:
            nullable: A row may have no value, so a key may have none.
        """


def stacked(one: State, other: State) -> State:
    """Return the rows of two states, one after the other."""
    return {role: concatenated([values, other[role]]) for role, values in one.items()}


def defaults_of(columns: Mapping[str, StateColumn], count: int) -> dict[str, NDArray[Any]]:
    """Return states without any value, of plain columns."""
    return {role: np.full(count, column.default, column.dtype) for role, column in columns.items()}
