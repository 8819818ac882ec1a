"""Where a worker keeps its state: a local folder with RocksDB, or memory alone.

Source: DESIGN section 5 (restore); PROTOCOL P14.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.runtime.messages import Deploy
from holdfast.runtime.plan import Plan
from holdfast.state.store import StateStore


class LocalState(Protocol):
    """Opens the state of a subtask with whatever base is at hand."""

    def open(self, plan: Plan, deploy: Deploy) -> StateStore:
        """Return a store for the subtask's key groups; `applied` tells which epoch it holds."""


class MemoryState:
    """Keeps state in memory alone: for tests, and as the simplest base, none."""

    def open(self, plan: Plan, deploy: Deploy) -> StateStore:
        """Return an empty store."""
        specs = [operator.table for operator in plan.operators]
        return StateStore(specs, plan.key_groups, deploy.handle.key_groups)
