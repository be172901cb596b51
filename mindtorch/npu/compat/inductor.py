"""``torch_npu._inductor``, whose import registers a compiler for NPUs there: ``torch.compile`` leaves calls on our NPU
tensors as they are, so there is nothing to register."""

from __future__ import annotations

__all__: list[str] = []
