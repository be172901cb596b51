"""Exceptions of the public contract (SPEC L9). Each also subclasses the builtin a user would catch."""

from __future__ import annotations


class LazyTensorError(RuntimeError):
    """Base of every error the lazy engine raises about its own work."""


class MaterializationError(LazyTensorError):
    """A recorded operation failed when it was run.

    The message names the op, the module path and the user's source line that recorded it;
    ``__cause__`` is torch's own error.
    """

    #: Should the operation have written to a tensor that there is? Then whoever reads next has to hear of it.
    lost_write = False


class SessionLost(MaterializationError):
    """What computes recordings elsewhere is gone, or cannot be relied on, and with it the values that it had."""


class UnsupportedOperationError(LazyTensorError, NotImplementedError):
    """Neither the engine nor eager torch can run the operation on these inputs."""


class NoDataError(NotImplementedError):
    """The value of a meta tensor was asked for; ``meta tensor has no data``. A RuntimeError, as in torch."""


class UsageError(ValueError):
    """Something the user asked for cannot be done as asked (bad target, bad ``--input`` …).

    The command line prints it as one line and exits with code 2.
    """


class NPUError(RuntimeError):
    """An AscendCL function failed: ``function``, ``code``, the code's ``name`` in the headers, ``detail`` as the
    library puts it."""

    def __init__(self, function: str, code: int, name: str, detail: str) -> None:
        super().__init__(f"[{function}] error {code} ({name})" + (f": {detail}" if detail else ""))
        self.function, self.code, self.name, self.detail = function, code, name, detail

    def __reduce__(self) -> tuple[type[NPUError], tuple[str, int, str, str]]:
        kind = NPUOutOfMemoryError if isinstance(self, NPUOutOfMemoryError) else NPUError
        return kind, (self.function, self.code, self.name, self.detail)


class NPUOutOfMemoryError(NPUError):
    """The device, or the host's pinned memory, has not enough. Where torch is loaded, what is raised is also a
    ``torch.OutOfMemoryError``."""
