"""What tests of whole jobs let a cluster in memory do: rewind, start with another parallelism, finish."""

from __future__ import annotations

from holdfast.runtime.testing.cluster import Cluster
from holdfast.state.keys.keygroups import range_of


def rescale(cluster: Cluster, parallelism: int, key_groups: int) -> None:
    """Distribute the key groups over so many subtasks, from the next start of a driver on."""
    cluster.change_rules(key_ranges=tuple(range_of(i, parallelism, key_groups) for i in range(parallelism)))


def epoch_before(cluster: Cluster, back: int) -> int:
    """Return the epoch of the checkpoint so many before the last one, or the first."""
    completed = cluster.driver.state.job.completed
    return int(completed[-1 - min(back, len(completed) - 1)].body.epoch)


def rewind(cluster: Cluster, epoch: int, *accept: str) -> None:
    """Ask the driver for a rewind, and wait until the job is on the new timeline.

    Args:
        accept: Sinks that cannot be repaired, as the command's option names them.
    """
    before = cluster.driver.state.job
    wanted = {"epoch": epoch, "timeline": before.timeline, "accept": list(accept)}
    answer = cluster.driver.asked("rewind", wanted, before.generation, before.generation)
    assert answer is not None and answer["accepted"], answer
    while cluster.driver.state.job.timeline == before.timeline:
        cluster.pass_time(0.25)


def finish(cluster: Cluster) -> None:
    """Wait until the job, whose input is sealed, has finished."""
    for _ in range(400):
        if cluster.driver.outcome is not None:
            break
        cluster.pass_time(0.5)
    assert cluster.driver.outcome is not None and cluster.driver.outcome[0] == "finished", cluster.driver.outcome
