"""When a worker applies committed values to its local state, and how long the disk has refused them.

Committed values are in memory and in the root; the local state is a copy that shortens the next restore. So a disk
that refuses writes stops nothing: the worker continues, retries, and reports the refusal. The backlog is a list of
slots without duplicates: whatever the lag, it is small compared with the state itself, which is in memory anyway.

Invariants
    - The worker retries a disk that refuses for as long as the state is open.
    - A refusal is reported from TOLD_AFTER_S after the first one until a batch is applied; a short stall is not.

Source: DESIGN section 5 (apply).
"""

from __future__ import annotations

from holdfast.errors import Unavailable
from holdfast.ports import Clock
from holdfast.runtime.wire.messages import LocalRefusal
from holdfast.state.store import StateStore

LAG_EPOCHS_MAX, LAG_BYTES_MAX = 8, 64 << 20
"""How far the local state may lag before values are applied even while there is other work."""
APPLY_EVERY_TURNS = 16
TOLD_AFTER_S = 5.0
"""RocksDB refuses briefly while it compacts; a longer refusal comes from the disk."""
RETRY_AFTER_S = 1.0
"""Time between two attempts once the refusal is reported: each may block on a faulty disk."""


class Applying:
    """Applies the committed values of one worker, a batch at a time.

    Args:
        after_idle_s: Time without other work after which a batch is applied although the lag is small.
    """

    def __init__(self, clock: Clock, after_idle_s: float) -> None:
        self._clock, self._after_idle_s = clock, after_idle_s
        self._turns, self._busy_until = 0, 0.0
        self.begin()

    def begin(self) -> None:
        """Begin with a new state: forget the refusals of the old state's folder."""
        self._refused_since: float | None = None
        self._refused_with, self._tried_at = "", 0.0

    def some(self, state: StateStore | None, worked: bool) -> bool:
        """Apply a batch if there is time for it, or if the local state lags too far; return whether that happened.

        Raises:
            LocalDamaged: the worker must start over in another folder.
        """
        now = self._clock.monotonic()
        if worked:
            self._busy_until = now
        self._turns += 1
        if state is None or (worked and self._turns % APPLY_EVERY_TURNS != 1) or self._waits(now):
            return False
        lag = state.lag
        far = lag.epochs >= LAG_EPOCHS_MAX or lag.bytes >= LAG_BYTES_MAX
        if not far and (worked or now - self._busy_until < self._after_idle_s):
            return False
        try:
            more = state.apply()
        except Unavailable as error:
            self._busy_until = self._tried_at = now
            if self._refused_since is None:
                self._refused_since, self._refused_with = now, error.what
            return False
        self._refused_since = None
        return more

    def refusal(self, state: StateStore) -> LocalRefusal | None:
        """Return the refusal of the local state if it has lasted long enough to be reported."""
        for_s = self._refused_for(self._clock.monotonic())
        if for_s < TOLD_AFTER_S:
            return None
        return LocalRefusal(self._refused_with, round(for_s * 1000), *state.lag)

    def _waits(self, now: float) -> bool:
        return self._refused_for(now) >= TOLD_AFTER_S and now - self._tried_at < RETRY_AFTER_S

    def _refused_for(self, now: float) -> float:
        return 0.0 if self._refused_since is None else now - self._refused_since
