"""The journal of a real run: every event, written as it happens.

One JSON object per line, each with `at_ms` since the start and `kind`. A run that is cut short leaves a journal that is
correct up to that moment. docs/decisions/0016-live-chaos.md lists the kinds and their fields.

Invariant
    - Lines are complete and in the order of their times: a reader may follow the file.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any


class JournalWriter:
    """Writes one journal. Safe for any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w", encoding="utf-8")
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self.lines: list[dict[str, Any]] = []
        """All lines, for the verdict."""

    def at_ms(self) -> int:
        """Return the milliseconds since the start."""
        return round((time.monotonic() - self._began) * 1000)

    def write(self, kind: str, **fields: Any) -> None:
        """Write a line."""
        with self._lock:
            line = {"at_ms": self.at_ms(), "kind": kind, **fields}
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
            self.lines.append(line)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the lines of a kind."""
        with self._lock:
            return [line for line in self.lines if line["kind"] == kind]

    def close(self) -> None:
        """Close the journal."""
        self._file.close()
