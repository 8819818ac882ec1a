"""How long one barrier takes in the pure alignment step."""

from __future__ import annotations

from harness import Bench

from holdfast.checkpoint.alignment import Alignment, NoBarrier, step
from holdfast.model import Barrier, ChannelId, Epoch, Subtask


def bench_alignment(bench: Bench) -> None:
    """One subtask, every channel delivering every barrier: the worst case for step()."""
    width = bench.size("channels", smoke=4, full=256)
    rounds = bench.size("epochs", smoke=2, full=1_000)
    channels = [ChannelId(0, Subtask(sender), Subtask(0)) for sender in range(width)]
    state: Alignment = NoBarrier(frozenset(channels), Epoch(0))
    effects = 0
    with bench.timed():
        for epoch in range(1, rounds + 1):
            barrier = Barrier(Epoch(epoch), Epoch(epoch - 1), last=False)
            for channel in channels:
                state, now = step(state, channel, barrier)
                effects += len(now)
    assert effects == rounds * (width + 1)  # a faster run that did less is no result
    bench.report(per=rounds * width, unit="barrier", check=effects)
