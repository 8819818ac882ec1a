"""The class of UUIDs, for rooms that decide: they may hold and compare them, but make none."""

from __future__ import annotations

from uuid import UUID

__all__ = ["UUID"]
