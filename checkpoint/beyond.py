"""Finds objects that prove that a job log was cut short or restored from an older copy.

A driver stores objects only after the start of its generation is in the log, and a manifest only while it decides an
epoch, one at a time. So records are missing if there are objects of an unknown generation, objects of another owner,
or two manifests after the last completed epoch. One such manifest is normal: its append never happened. Objects of
generation 0 prove nothing: forks store them before the log exists, also forks that were killed.

Invariants
    - Nothing is reported for a complete log, if names and `live.json` were read before the log.

Pure: no clock, thread or I/O.
Source: PROTOCOL P2, P4, P6, P16; docs/decisions/0020-histories.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from holdfast.checkpoint.deltas import DELTA_ENDING, WHOLE_ENDING
from holdfast.checkpoint.joblog import Job
from holdfast.model import NO_EPOCH, Epoch, Generation

_NAME = re.compile(r"(\w+)/(\d{8})/(\d{12})[-/](.+)")
_SHOWN_MAX = 3


class LastWord(NamedTuple):
    """The content of `live.json`: the driver's generation, and the last epoch that it completed."""

    generation: Generation
    epoch: Epoch


class Beyond(NamedTuple):
    """A trace in storage that a complete log would account for."""

    path: str
    """An object, or a folder of the job that ends with a slash."""
    what: str


def beyond(job: Job | None, listed: Iterable[str], live: LastWord | None) -> list[Beyond]:
    """Return the proofs that records are missing at the end of the log, none if it is complete.

    Args:
        job: The fold of the log; None if it has no record.
        listed: Names of objects, read before the log.
        live: Also read before the log; None if the job has no `live.json`.
    """
    generation, base = (Generation(0), NO_EPOCH) if job is None else (job.generation, job.base_epoch)
    newer: Counter[tuple[str, int]] = Counter()
    foreign: list[Beyond] = []
    later_epochs: list[Beyond] = []
    for path in sorted(listed):
        if (match := _NAME.fullmatch(path)) is None:
            continue  # Holdfast did not name this object
        folder, of, epoch = match[1], int(match[2]), int(match[3])
        if of > generation:
            newer[folder, of] += 1
        elif of == generation > 0 and folder == "manifests" and job is not None:
            if match[4] not in (f"{job.owner}{WHOLE_ENDING}", f"{job.owner}{DELTA_ENDING}"):
                foreign.append(Beyond(path, f"{path} is not of the driver of generation {generation} in the log"))
            elif epoch > base:
                later_epochs.append(Beyond(path, f"{path} belongs to an epoch after {base}, the last one in the log"))
    proofs = [
        Beyond(path := f"{folder}/{of:08d}/", f"{path} has {count:,} objects; the log ends at generation {generation}")
        for (folder, of), count in sorted(newer.items())
    ]
    proofs += foreign[:_SHOWN_MAX] + (later_epochs[:_SHOWN_MAX] if len(later_epochs) > 1 else [])
    if live is not None and live > (generation, base):
        said = f"live.json names generation {live.generation} and epoch {live.epoch}"
        proofs.append(Beyond("live.json", f"{said}; the log ends at {generation} and {base}"))
    return proofs
