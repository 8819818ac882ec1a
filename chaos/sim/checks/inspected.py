"""The state of a checkpoint as its readers get it, for comparison with the oracle.

The production reader runs on the objects that the manifest names; nothing of the job's code is used.

Source: docs/decisions/0037-state-inspection.md.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from holdfast.checkpoint.manifest import Manifest
from holdfast.runtime.inspect.reading import parts_of
from holdfast.runtime.inspect.view import view_of
from holdfast.storage.objects import MemoryObjects


class Inspected:
    """The state in one checkpoint."""

    def __init__(self, manifest: Manifest, store: MemoryObjects) -> None:
        refs = [ref for handle in manifest.state for ref in (*handle.base, *(each.object for each in handle.segments))]
        self._manifest = manifest
        self._objects = {ref.path: pa.py_buffer(store.get(ref.path)) for ref in refs}

    def rows(self, operator: str) -> list[dict[str, Any]]:
        """Return the rows of an operator, under the names of its results."""
        described = next(each for each in self._manifest.operators if each.name == operator and not each.dropped)
        view, whole = view_of(described), (0, self._manifest.key_groups)
        parts = parts_of(self._manifest, self._objects, view.spec, whole)
        return [row for part in parts for rows in part.rows() for row in view.table(rows).to_pylist()]
