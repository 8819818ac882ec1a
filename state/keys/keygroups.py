"""Maps keys to key groups, and key groups to subtasks.

A key group is the smallest piece of keyed state that moves between subtasks. The mapping
key -> hash -> key group is fixed for a job's life, so state written years ago can still be found.

Invariants
    - The same key always has the same hash and key group: golden values in tests/formats.
    - Key groups use the high half of a hash, the index of a table its low half. So the keys of one subtask spread over
      its whole index.
    - The ranges of all subtasks are contiguous, disjoint and cover every key group.

Pure: no clock, thread or I/O.
Source: Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators, 2014 (splitmix64);
Lemire, Fast Random Integer Generation in an Interval, 2019 (multiply-shift).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast.model import KEY_GROUPS_MAX

GAMMA = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
_UNMIX_1 = np.uint64(pow(0xBF58476D1CE4E5B9, -1, 1 << 64))
_UNMIX_2 = np.uint64(pow(0x94D049BB133111EB, -1, 1 << 64))
_27, _30, _31, _32, _54, _60, _62 = (np.uint64(bits) for bits in (27, 30, 31, 32, 54, 60, 62))


def splitmix64(values: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Mix every integer into a hash. A bijection: equal hashes mean equal integers."""
    hashes = np.ascontiguousarray(values).view(np.uint64) + GAMMA
    scratch = hashes >> _30
    hashes ^= scratch
    hashes *= MIX_1
    np.right_shift(hashes, _27, out=scratch)
    hashes ^= scratch
    hashes *= MIX_2
    np.right_shift(hashes, _31, out=scratch)
    hashes ^= scratch
    return hashes


def splitmix64_inverse(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the integers whose splitmix64 these are."""
    words = hashes ^ (hashes >> _31) ^ (hashes >> _62)
    words *= _UNMIX_2
    words ^= (words >> _27) ^ (words >> _54)
    words *= _UNMIX_1
    words ^= (words >> _30) ^ (words >> _60)
    words -= GAMMA
    values: NDArray[np.int64] = words.view(np.int64)
    return values


def key_groups_of(hashes: NDArray[np.uint64], count: int) -> NDArray[np.uint16]:
    """Map every key to the key group that owns it.

    Args:
        hashes: uint64, shape (n,). Routing hashes of the keys (see batch.py).
        count: Key groups in the job, 1 to KEY_GROUPS_MAX. Fixed for the job's life:
            a change would separate keys from their state.

    Returns:
        uint16, shape (n,), each value in [0, count).

    Raises:
        ConfigError: count is out of range.
    """
    check_count(count)
    return (((hashes >> _32) * np.uint64(count)) >> _32).astype(np.uint16)


def key_of_group(groups: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return, for each key group, one fixed integer key in it: the key for the state of the group itself.

    It is the lowest hash that multiply-shift maps to the group, inverted through splitmix64.
    """
    check_count(count)
    high = (groups.astype(np.uint64) << _32) + np.uint64(count - 1)
    return splitmix64_inverse((high // np.uint64(count)) << _32)


def range_of(subtask: int, parallelism: int, count: int) -> tuple[int, int]:
    """Return the key groups [first, end) that a subtask owns; may be empty if parallelism > count."""
    check_count(count)
    assert 0 <= subtask < parallelism
    return subtask * count // parallelism, (subtask + 1) * count // parallelism


def owners(parallelism: int, count: int) -> NDArray[np.int64]:
    """Return the owning subtask of every key group, shape (count,)."""
    check_count(count)
    widths = [end - first for first, end in (range_of(subtask, parallelism, count) for subtask in range(parallelism))]
    return np.repeat(np.arange(parallelism, dtype=np.int64), widths)


def check_count(count: int) -> None:
    if not 1 <= count <= KEY_GROUPS_MAX:
        raise ConfigError(
            f"key_groups is {count}, but must be between 1 and {KEY_GROUPS_MAX}",
            not_done="no key was assigned",
            next_step="choose another key_groups for this job; it cannot change later",
        )
