"""Values of segments that were computed before, in memory or on disk: `mindtorch.cache` (SPEC L14)."""

from __future__ import annotations

from .keeping import Cache, cache

__all__ = ["Cache", "cache"]
