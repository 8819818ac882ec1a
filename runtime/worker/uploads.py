"""Puts a worker's large output into targets before it is committed, so that one committer only has to name it.

The staged part in the root stays what counts: redelivery, rewinds and audits read it. An upload saves the committer
the work on the rows, which all writers then share. Small output is not uploaded: the committer makes one object of it.

Invariants
    - An upload that fails changes nothing: the committer reads the part.
    - Only the lane that stages output calls `upload`.

Source: docs/decisions/0056-one-committer.md; PROTOCOL P16, P23.
"""

from __future__ import annotations

from collections import Counter

from holdfast.errors import HoldfastError
from holdfast.runtime.plan.model import Plan
from holdfast.sinks.contract.sink import Uploader
from holdfast.sinks.contract.target import Upload
from holdfast.sinks.protocol.staging import StagedPart, decode

UPLOAD_FROM_BYTES = 1 << 20
"""A committer handles smaller parts itself: a request for each costs more than the work on their rows."""
REFUSED_PARTS = 8
"""How many parts are not uploaded after one was refused: an ack waits for an upload, however slow the refusal is."""


class Uploads:
    """The uploads of one worker.

    Args:
        least: Smaller parts are not uploaded.
        paused: How many parts of a sink are not to be uploaded; kept by a caller that outlives these uploads.
    """

    def __init__(self, plan: Plan, least: int = UPLOAD_FROM_BYTES, paused: Counter[str] | None = None) -> None:
        once, self._least = plan.committed_once(), least
        self._sinks = {spec.name: spec.sink for spec in plan.sinks if spec.name in once}
        self._open: dict[str, Uploader] = {}
        self._paused = Counter[str]() if paused is None else paused

    def upload(self, upload: Upload, part: StagedPart) -> str | None:
        """Return what names the rows of a part in its target; None if they are not there."""
        if upload.sink not in self._sinks or len(part.data) < self._least:
            return None
        if self._paused[upload.sink]:
            self._paused[upload.sink] -= 1
            return None
        try:
            uploader = self._uploader(upload.sink)
            return None if uploader is None else uploader.upload(upload, decode(part.data))
        except HoldfastError:
            self._open.pop(upload.sink, None)
            self._paused[upload.sink] = REFUSED_PARTS
            return None

    def _uploader(self, sink: str) -> Uploader | None:
        if sink not in self._open and (uploader := self._sinks[sink].uploads) is not None:
            self._open[sink] = uploader
        return self._open.get(sink)
