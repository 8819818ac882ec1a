"""Shows the positions of completed checkpoints to sources that publish them, on a lane of the driver.

Tools of another system see there how far a job is. Nothing of the job depends on it: what cannot be published is a
problem of the status, and the next checkpoint tries again.

Invariants
    - Only positions of a completed checkpoint are published, and later ones never before earlier ones.
    - One publication at a time; of the checkpoints completed meanwhile only the last one is published.

Source: docs/design/0075-kafka-source.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import HoldfastError
from holdfast.ports import Lane
from holdfast.runtime.plan.model import SourceSpec
from holdfast.runtime.plan.source import Publisher, publisher_of


class Publications:
    """What one run publishes.

    Args:
        lane: Returns the lane of the publications; it opens, uses and closes the publishers.
    """

    def __init__(self, sources: Sequence[SourceSpec], lane: Callable[[], Lane]) -> None:
        self._sources = tuple(spec for spec in sources if spec.source.traits.publishes)
        self._lane = lane
        self._publishers: dict[str, Publisher] = {}
        self._seen: Manifest | None = None
        self._due: Manifest | None = None
        self._busy = False
        self.problem: HoldfastError | None = None
        """Why the last publication did not succeed; the next checkpoint tries again."""

    def completed(self, manifest: Manifest | None) -> None:
        """Take the last completed checkpoint; it may be the same as before."""
        if self._sources and manifest is not None and manifest is not self._seen:
            self._seen = self._due = manifest
            self._go_on()

    def close(self) -> None:
        """Close the publishers, after what is still due."""
        if self._sources:
            self._lane().submit(self._close, lambda _: None)

    def _go_on(self) -> None:
        if self._busy or self._due is None:
            return
        self._busy, manifest, self._due = True, self._due, None
        self._lane().submit(lambda: self._publish(manifest), self._ended)

    def _publish(self, manifest: Manifest) -> None:
        for spec in self._sources:
            offsets = {at.partition: at.offset for at in manifest.positions if at.source == spec.name}
            if offsets:
                if spec.name not in self._publishers:
                    self._publishers[spec.name] = publisher_of(spec.source)
                self._publishers[spec.name].publish(offsets)

    def _ended(self, result: object) -> None:
        self._busy = False
        if isinstance(result, BaseException) and not isinstance(result, HoldfastError):
            raise result
        self.problem = result if isinstance(result, HoldfastError) else None
        self._go_on()

    def _close(self) -> None:
        for publisher in self._publishers.values():
            publisher.close()
        self._publishers.clear()
