"""Executors: what runs segments of the tape."""

from __future__ import annotations

from ...base import config
from . import tensors, values  # noqa: F401  (tensors hands the extension its classes)
from .base import Executor
from .local import LocalExecutor

__all__ = ["Executor", "LocalExecutor"]

values.set_default_executor(lambda: LocalExecutor(config.executor_device()))
