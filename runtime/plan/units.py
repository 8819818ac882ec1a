"""Units of the offsets of a job's sources, read from the shape of its code without loading the code that makes a shape.

Pure.
Source: docs/formats.md, `shape`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def units_of(shape: Mapping[str, Any]) -> dict[str, str]:
    """Return the units of sources, as far as a shape records them: of files of text, bytes."""
    return {name: each["counts"] for name, each in shape.get("sources", {}).items() if "counts" in each}
