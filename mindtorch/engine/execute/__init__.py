"""Executors: what runs segments of the tape."""

from __future__ import annotations

from . import tensors  # noqa: F401  (hands the extension its classes)
from .base import Executor
from .local import LocalExecutor
from .wrapping import WrappingExecutor

__all__ = ["Executor", "LocalExecutor", "WrappingExecutor"]
