"""The step of a keyed function: the common part of functions of records and functions of batches.

Pure.
Source: docs/decisions/0065-keyed-functions.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from holdfast.errors import JobFailed, Where
from holdfast.runtime.functions.users.keyed_process import KeyedProcess, declared_by
from holdfast.runtime.operators.contract import KeyedStep, Needed
from holdfast.runtime.operators.process.changes import parts_of, states_without
from holdfast.runtime.rows.dead_letters import OnError
from holdfast.runtime.rows.expressions import Use
from holdfast.runtime.rows.forms import code_of
from holdfast.runtime.rows.state_types import shape_of

NOT_DONE = "the epoch was not completed; state and output stay as of the last checkpoint"


@dataclass(frozen=True, eq=False)
class FunctionStep(KeyedStep):
    """Call a keyed function."""

    operator: str
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    """Columns of the rows that the function takes, in order."""
    process: KeyedProcess[Any, Any]
    on_error: OnError
    use: Use

    shown: ClassVar[str]
    """The first words of its text."""

    def keyed_by(self, port: int) -> tuple[str, ...]:
        return self.keys

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.keys, *self.columns)))

    def states(self) -> dict[str, dict[str, Any]]:
        """Return the declared state and timers as a part of the identity."""
        return {
            name: {
                "kind": each.what,
                "types": [shape_of(kind) for kind in each.types()],
                "ttl_us": each.ttl_us,
                "clock": each.clock,
            }
            for name, each in declared_by(self.process).all().items()
        }

    def parts(self, before: Mapping[str, Any]) -> tuple[str, ...]:
        return parts_of(before)

    def without(self, before: Mapping[str, Any], parts: Collection[str]) -> Mapping[str, Any]:
        return states_without(before, parts)

    def text(self) -> str:
        called = f"{self.shown} {self.operator} by {', '.join(self.keys)}: {type(self.process).__name__}"
        return called if self.on_error == "fail" else f"{called}, on error: {self.on_error}"

    def code(self) -> list[str]:
        methods = [each for owner in type(self.process).__mro__ for each in vars(owner).values() if callable(each)]
        return [self.on_error, *map(code_of, methods)]

    def busy_with(self) -> tuple[str, ...]:
        return (self.operator,)

    def leaves_out(self) -> bool:
        return self.on_error != "fail"

    def described(self, did: str) -> str:
        """Return the function's action in words, with its name and the place of the call."""
        return f"{self.use}: {type(self.process).__name__} {did}"

    def failure(self, did: str, job: str | None) -> JobFailed:
        """Return the failure of a job whose function did this, and whose errors are not left out."""
        return JobFailed(
            self.described(did),
            not_done=NOT_DONE,
            next_step='correct the function, or leave such records out with on_error="dlq" or on_error="drop"; then '
            "run the job again, which resumes from the last checkpoint",
            where=Where(job=job, operator=self.operator),
        )
