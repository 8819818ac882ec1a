"""When a worker brings its local state nearer to what is committed, and since when the disk refuses that.

Committed values are in memory and in the root; the local state is a copy that makes the next restore short. So a disk
that refuses stops nothing: the worker goes on, tries again, and says so. What waits is a list of slots, each in it
once: whatever the lag, it is small beside the state itself, which is in memory anyway.

Invariants
    - A disk that refuses is tried again for as long as the state is open.
    - A refusal is told from TOLD_AFTER_S after the first one until a batch is taken; a short stall is not.

Source: DESIGN section 5 (apply).
"""

from __future__ import annotations

from holdfast.errors import Unavailable
from holdfast.ports import Clock
from holdfast.runtime.messages import LocalRefusal
from holdfast.state.store import StateStore

LAG_EPOCHS_MAX, LAG_BYTES_MAX = 8, 64 << 20
"""How far the local state may fall behind before it is served between batches."""
APPLY_EVERY_TURNS = 16
TOLD_AFTER_S = 5.0
"""RocksDB refuses for a moment while it compacts; what lasts longer is the disk."""
RETRY_AFTER_S = 1.0
"""Time between two attempts once it is told: each may wait for an ill disk."""


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
        """The state is another one: what its folder refused is over."""
        self._refused_since: float | None = None
        self._refused_with, self._tried_at = "", 0.0

    def some(self, state: StateStore | None, worked: bool) -> bool:
        """Apply a batch if there is time for it, or if the local state has fallen far behind; return whether it did.

        Raises:
            LocalDamaged: the worker has to begin anew, from another folder.
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
        """Return what the local state has refused for so long that people should know."""
        for_s = self._refused_for(self._clock.monotonic())
        if for_s < TOLD_AFTER_S:
            return None
        return LocalRefusal(self._refused_with, round(for_s * 1000), *state.lag)

    def _waits(self, now: float) -> bool:
        return self._refused_for(now) >= TOLD_AFTER_S and now - self._tried_at < RETRY_AFTER_S

    def _refused_for(self, now: float) -> float:
        return 0.0 if self._refused_since is None else now - self._refused_since
