"""`LazyTensor.metadata`: a view on the tape, nothing stored twice (SPEC L5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._ext import context as _context

_hints: Callable[[Any], dict[str, Any]] = lambda tensor: {}  # noqa: E731 - replaced when there is something to say


def set_hints(hints: Callable[[Any], dict[str, Any]]) -> None:
    """Install what says more of a tensor that waits (called once, when mindtorch is imported; imports go one way)."""
    global _hints
    _hints = hints


class TensorMetadata:
    """What the engine knows about one lazy value."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    @property
    def operation_type(self) -> str:
        """Op that makes the value, ``aten::add``."""
        return self._tensor.operation

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """Sizes, as a plain tuple."""
        return tuple(self._tensor.shape)

    @property
    def dtype(self) -> Any:
        """Element type."""
        return self._tensor.dtype

    @property
    def device_hint(self) -> str:
        """Device the program asked for, ``remote_accelerator:0``."""
        return str(self._tensor.device)

    @property
    def module_path(self) -> str:
        """Path of the nn.Module that recorded the op, ``GPT2.h.0.attn``; empty outside modules."""
        return _context.module_path(self._tensor._handle.module)

    @property
    def execution_phase(self) -> str:
        """``forward``, ``backward``, ``optimizer`` or ``other``."""
        return _context.phase_name(self._tensor._handle.phase)

    @property
    def source_line(self) -> str:
        """``file:line in function`` of the user's line that recorded the op; empty if unknown."""
        place = _context.location(self._tensor._handle.loc)
        return f"{place[0]}:{place[1]} in {place[2]}" if place else ""

    @property
    def workload_hints(self) -> dict[str, Any]:
        """Facts that a scheduler can use: the op's tag, the bytes of the value.

        Until it is computed also what the analyzer in use says of it, see `mindtorch.graph.analysis.Analysis.hints`.
        """
        from ... import ops

        tag = ops.about(self._tensor.operation).tag
        known = {"tag": tag, "bytes": self._tensor.numel() * self._tensor.dtype.itemsize}
        return known | _hints(self._tensor)

    def as_dict(self) -> dict[str, Any]:
        """All fields as a plain dict."""
        names = (
            "operation_type",
            "tensor_shape",
            "dtype",
            "device_hint",
            "module_path",
            "execution_phase",
            "source_line",
            "workload_hints",
        )
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        return "TensorMetadata(" + ", ".join(f"{k}={v!r}" for k, v in self.as_dict().items()) + ")"


__all__ = ["TensorMetadata", "set_hints"]
