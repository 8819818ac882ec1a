"""Shows the positions of completed checkpoints to sources that publish them, on a lane of the driver.

Tools of another system see there how far a job is. The job does not depend on it: a failed publication is a problem of
the status, and is tried again: a job whose topic is silent completes no further checkpoint.

Invariants
    - Only positions of a completed checkpoint are published, and later ones never before earlier ones.
    - Those of the last checkpoint are tried until they are published.
    - One publication at a time; of the checkpoints completed meanwhile only the last one is published.
    - `close` publishes the positions that are due, also while a publication is under way, and nothing is opened after
      it.
    - A source whose positions cannot be published keeps no other source's positions from being published.

Source: docs/decisions/0075-kafka-source.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import HoldfastError
from holdfast.ports import Lane
from holdfast.runtime.plan.model import SourceSpec

RETRY_S = 2.0
"""How long to wait before positions that could not be published are tried again."""


class Publications:
    """Publications of one run.

    Args:
        lane: Returns the lane of the publications; it opens, uses and closes the publishers.
        after: Calls a function after this many seconds.
    """

    def __init__(
        self,
        sources: Sequence[SourceSpec],
        lane: Callable[[], Lane],
        after: Callable[[float, Callable[[], object]], None],
    ) -> None:
        found = ((spec.name, spec.source.publishes) for spec in sources)
        self._publishers = {name: publisher for name, publisher in found if publisher is not None}
        self._lane, self._after = lane, after
        self._seen: Manifest | None = None
        self._due: Manifest | None = None
        """The last checkpoint, until its positions are published."""
        self._published: Manifest | None = None
        """Set and read in the lane."""
        self._busy = self._closed = False
        self.problem: HoldfastError | None = None
        """Why the last publication did not succeed; it is tried again."""

    def completed(self, manifest: Manifest | None) -> None:
        """Take the last completed checkpoint; it may be the same as before."""
        if self._publishers and not self._closed and manifest is not None and manifest is not self._seen:
            self._seen = self._due = manifest
            self._go_on()

    def close(self) -> None:
        """Publish the positions that are still due, then close the publishers."""
        if self._publishers and not self._closed:
            # The lane ends before a publication under way could hand on to the one that is due.
            self._closed, manifest, self._due = True, self._due, None
            self._lane().submit(lambda: self._end(manifest), self._noted if manifest is not None else lambda _: None)

    def _go_on(self) -> None:
        if self._busy or self._due is None:
            return
        self._busy, manifest = True, self._due
        self._lane().submit(lambda: self._publish(manifest), lambda result: self._ended(manifest, result))

    def _publish(self, manifest: Manifest) -> None:
        """Publish the positions of every source. Raises the first HoldfastError, after the other sources."""
        first: HoldfastError | None = None
        for name, publisher in self._publishers.items():
            offsets = {at.partition: at.offset for at in manifest.positions if at.source == name}
            if not offsets:
                continue
            try:
                publisher.publish(offsets)
            except HoldfastError as error:
                first = first or error
        if first is not None:
            raise first
        self._published = manifest

    def _ended(self, manifest: Manifest, result: object) -> None:
        self._busy = False
        if isinstance(result, BaseException) and not isinstance(result, HoldfastError):
            raise result
        self._noted(result)
        if self._due is not manifest:
            self._go_on()
        elif self.problem is None:
            self._due = None
        else:
            self._after(RETRY_S, self._go_on)

    def _noted(self, result: object) -> None:
        self.problem = result if isinstance(result, HoldfastError) else None

    def _end(self, manifest: Manifest | None) -> None:
        try:
            if manifest is not None and manifest is not self._published:
                self._publish(manifest)
        finally:
            for publisher in self._publishers.values():
                publisher.close()
