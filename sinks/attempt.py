"""Carries out the effects of the delivery machine against a target.

What a target raises becomes the machine's event: an unknown outcome is tried again after the tag
was read; everything else is permanent and stops the job with its own kind of error. Anything that
is not a HoldfastError is a bug or the end of the process, and is not caught.

Runs on the delivery thread of a worker, never on the operator thread. PROTOCOL P17, P18.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from holdfast.errors import HoldfastError, Unavailable
from holdfast.model import ObjectRef, Pending, Staged, Tag
from holdfast.sinks import staging
from holdfast.sinks.contract import AlreadyDelivered, Target
from holdfast.sinks.delivery import AlreadyThere, Failed, Opened, Succeeded


def read_tag(target: Target, confirmed_by_manifest: Tag | None) -> Opened | Failed:
    """Carry out `Open`."""
    try:
        return Opened(target.delivered(), confirmed_by_manifest)
    except HoldfastError as error:
        return _failed(error)


def attempt(target: Target, pending: Pending, read: Callable[[ObjectRef], bytes]) -> Succeeded | AlreadyThere | Failed:
    """Carry out `Attempt`; `read` returns an object's bytes, or raises Damaged if they are not what was staged."""
    try:
        outcome = target.deliver(pending.tag, _batches(pending.staged, read))
    except HoldfastError as error:
        return _failed(error)
    return AlreadyThere(outcome.tag) if isinstance(outcome, AlreadyDelivered) else Succeeded(pending.tag)


def _batches(staged: Staged, read: Callable[[ObjectRef], bytes]) -> Iterator[pa.RecordBatch]:
    for part in staged.parts:
        yield from staging.decode(read(part))


def _failed(error: HoldfastError) -> Failed:
    return Failed(str(error), permanent=not isinstance(error, Unavailable), kind=error.kind)
