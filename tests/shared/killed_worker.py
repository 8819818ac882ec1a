"""Shared by the state machines for one worker's state: a cold store that is killed, in memory or on RocksDB."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from rocksdict import AccessType, Options, Rdict

from holdfast.model import Epoch
from holdfast.ports import KeyValue
from holdfast.state.memory import MemoryKeyValue
from holdfast.state.rocks import RocksKeyValue, RocksMemory
from holdfast.state.store import StateStore


class KilledWorker(RuleBasedStateMachine):
    """A worker over a cold store in memory. A machine starts with `new_cold` and sets `store`."""

    cold: KeyValue | None
    store: StateStore
    completed: dict[Epoch, Any]
    """The state that a restore of each completed epoch must return."""

    def new_cold(self) -> KeyValue | None:
        return MemoryKeyValue()

    def killed_cold(self, survived: float) -> KeyValue | None:
        """Return the store after a kill that this share of the unflushed writes survived, from 0 to 1."""
        assert isinstance(self.cold, MemoryKeyValue)
        return self.cold.after_kill(round(survived * self.cold.unflushed))

    @property
    def head(self) -> Epoch:
        return max(self.completed)

    @rule(steps=st.integers(1, 12), keys_max=st.integers(1, 5))
    def apply(self, steps: int, keys_max: int) -> None:
        for _ in range(steps):
            if not self.store.apply(keys_max):
                break


class OnRocks(KilledWorker):
    """A kill leaves the contents that another reader sees in the files: writes not flushed by RocksDB are lost."""

    memory = RocksMemory()

    def new_cold(self) -> KeyValue | None:
        self.root = Path(tempfile.mkdtemp(prefix="holdfast-test-"))
        self.number = 0
        return RocksKeyValue(self.root / "0", self.memory)

    def killed_cold(self, survived: float) -> KeyValue | None:
        assert isinstance(self.cold, RocksKeyValue)
        if survived > 0.5:
            self.cold.flush()
        files = Rdict(str(self.cold.path), options=Options(raw_mode=True), access_type=AccessType.read_only())
        pairs: list[tuple[Any, Any]] = list(files.items())
        files.close()
        self.cold.close()
        self.number += 1
        left = RocksKeyValue(self.root / str(self.number), self.memory)
        left.write(pairs, [])
        return left

    def teardown(self) -> None:
        if hasattr(self, "store"):
            super().teardown()
            assert isinstance(self.cold, RocksKeyValue)
            self.cold.close()
            shutil.rmtree(self.root)
