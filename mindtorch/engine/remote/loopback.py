"""A worker in this process: every message becomes bytes and is read again, so that nothing else can cross."""

from __future__ import annotations

from .client import RemoteExecutor
from .worker import Worker

__all__ = ["LoopbackExecutor"]


class LoopbackExecutor(RemoteExecutor):
    """An executor whose worker is in this process, on ``device``."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(
            Worker(device, folders=["/"]).handle, lambda message: None
        )  # which is done when its reply is wanted
        self._settings = ()  # of this process
