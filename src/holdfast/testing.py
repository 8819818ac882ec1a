"""Test your own job: `from holdfast.testing import TestDriver`."""

from __future__ import annotations

from holdfast.runtime.testing import TestDriver

__all__ = ["TestDriver"]
