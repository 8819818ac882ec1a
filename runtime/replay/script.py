"""The steps of the subtasks of an epoch, as its checkpoint recorded them; and whether the present code takes them.

An epoch that was given up is a section of its own: its barrier lies between the steps of the epoch that completed.

Invariants
    - A script is complete: the checkpoint names a record for every subtask that took anything.
    - Objects are verified against the hashes in the manifest before they are read.

Source: docs/decisions/0131-recorded-order.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import read_each
from holdfast.errors import ConfigError
from holdfast.model import Epoch, Subtask
from holdfast.ports import ObjectStore
from holdfast.runtime.worker.order import FragmentSteps, FromPartition, SubtaskOrder, decode

NOTHING = FragmentSteps((), ())


@dataclass
class Script:
    """The steps of an epoch.

    Args:
        parallelism: How many subtasks there were.
        sections: The epochs whose steps it has, oldest first; the last one completed.
        steps: By section, subtask and fragment.
    """

    parallelism: int
    sections: tuple[Epoch, ...]
    steps: Mapping[tuple[Epoch, Subtask, int], FragmentSteps]
    unlike: str | None = field(default=None)
    """How the present code turned out to do something else; None: it has not."""

    def of(self, subtask: Subtask, fragment: int) -> list[FragmentSteps]:
        """Return the steps of a fragment, a section after the other."""
        return [self.steps.get((epoch, subtask, fragment), NOTHING) for epoch in self.sections]

    def read_by(self, subtask: Subtask) -> list[tuple[int, FromPartition]]:
        """Return the partitions that a subtask reads, each once, with the fragment; from where it is read first."""
        places: dict[tuple[int, str, int], tuple[int, FromPartition]] = {}
        for epoch in self.sections:
            for (at, who, fragment), steps in self.steps.items():
                for place in steps.places if (at, who) == (epoch, subtask) else ():
                    if isinstance(place, FromPartition):
                        places.setdefault((fragment, place.source, place.partition), (fragment, place))
        return list(places.values())

    def does_not_fit(self, what: str) -> ConfigError:
        """Note that the code does something else than the record has, and return the error that ends the replay."""
        self.unlike = what
        return ConfigError(
            f"the recorded order does not fit the code: {what}",
            not_done="the epoch was not replayed in that order",
            next_step="replay with the code that the job had",
        )


def script_of(store: ObjectStore, manifest: Manifest) -> Script | None:
    """Return the script of the epoch of a manifest; None if its order was not recorded.

    Raises:
        Damaged: a record is missing, or is not the one that the manifest names.
        Unavailable: the store cannot be read.
    """
    if manifest.recorded is None:
        return None
    refs = manifest.recorded
    data = read_each(store, refs)
    return _script(manifest, (decode(each, ref.path) for ref, each in zip(refs, data, strict=True)))


def _script(manifest: Manifest, orders: Iterable[SubtaskOrder]) -> Script:
    steps: dict[tuple[Epoch, Subtask, int], FragmentSteps] = {}
    for order in orders:
        for fragment, each in order.fragments.items():
            steps[order.epoch, order.subtask, fragment] = each
    sections = sorted({manifest.epoch, *(epoch for epoch, _, _ in steps)})
    return Script(manifest.parallelism, tuple(sections), steps)
