"""var: the variance, by sums of squared distances from the mean.

State is the number of values, their mean, and the sum of their squared distances from it. Two states are merged by the
formula of Chan, Golub and LeVeque. So no square of a value is ever summed, and the variance of values far from zero
keeps its digits. Like all sums of floats, it depends on the order of rows up to rounding.

Pure.
Source: Chan, Golub, LeVeque, Updating formulae and a pairwise algorithm for computing sample variances, 1979.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast.runtime.functions.contract import AggregateFunction, Groups, Kind, State, StateColumn
from holdfast.runtime.functions.types import is_number

SEEN, MEAN, SQUARES = "seen", "mean", "squares"


@dataclass(frozen=True)
class Var(Kind):
    """The variance: the squares divided by the number of values less `ddof`."""

    ddof: int = 1

    name: ClassVar[str] = "var"

    def __post_init__(self) -> None:
        if self.ddof not in (0, 1):
            raise ConfigError(
                f"var(..., ddof={self.ddof!r}): ddof is neither 0 nor 1",
                not_done="the job was not planned",
                next_step="use ddof=1 for the variance of a sample, ddof=0 for that of all values",
            )

    def nullable(self, given: bool) -> bool:
        return given or self.ddof > 0

    def over(self, given: Sequence[pa.Field], nullable: bool) -> AggregateFunction | None:
        kind = given[0].type
        return Variance(self.ddof) if is_number(kind) else None


@dataclass(frozen=True)
class Variance(AggregateFunction):
    """Number, mean and squares in plain columns."""

    ddof: int
    result: pa.DataType = pa.float64()

    @property
    def columns(self) -> Mapping[str, StateColumn]:
        dtypes = {SEEN: np.int64, MEAN: np.float64, SQUARES: np.float64}
        return {role: StateColumn(np.dtype(dtype)) for role, dtype in dtypes.items()}

    def partial(self, inputs: Sequence[pa.Array], groups: Groups, count: int) -> State:
        values = inputs[0].cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        single = {SEEN: np.ones(values.size, np.int64), MEAN: values, SQUARES: np.zeros(values.size)}
        return self.combine(single, groups, count)

    def combine(self, states: State, groups: Groups, count: int) -> State:
        some = states[SEEN] > 0
        counts, means, squares = (states[role][some] for role in (SEEN, MEAN, SQUARES))
        groups = groups[some]
        total = np.zeros(count, np.int64)
        np.add.at(total, groups, counts)
        # Distances from one of the group's means, not from zero, keep the digits.
        near = np.zeros(count)
        near[groups] = means
        with np.errstate(invalid="ignore", over="ignore"):
            mean = near + _added(groups, counts * (means - near[groups]), count) / np.maximum(total, 1)
            apart = means - mean[groups]
            return {SEEN: total, MEAN: mean, SQUARES: _added(groups, squares + counts * apart * apart, count)}

    def results(self, states: State) -> pa.Array:
        degrees = states[SEEN] - self.ddof
        return pa.array(states[SQUARES] / np.maximum(degrees, 1), mask=degrees <= 0, from_pandas=False)


def _added(groups: Groups, values: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    return np.asarray(np.bincount(groups, weights=values, minlength=count), np.float64)
