"""``torch.npu.amp``: torch's own mixed precision, for NPUs; after ``torch.cuda.amp``."""

from __future__ import annotations

import functools
from typing import Any

import torch

__path__: list[str] = []  # what torch_npu has in modules of it is found here
__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(torch.amp.autocast):
    """``torch.autocast("npu")``, float16 unless said otherwise."""

    def __init__(
        self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool | None = True
    ) -> None:
        super().__init__("npu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler("npu")``. dynamic: False: the scale stays.

    Of several optimizers, those whose step comes after an infinity was found in the gradients of one are all skipped
    until `update`, as in torch_npu; torch's own skips that one's alone.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        dynamic: bool = True,
        enabled: bool = True,
    ) -> None:
        interval = growth_interval if dynamic else 2**31 - 1
        super().__init__("npu", init_scale, growth_factor, backoff_factor if dynamic else 1.0, interval, enabled)

    def _maybe_opt_step(
        self, optimizer: torch.optim.Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
    ) -> float | None:
        states: Any = self._per_optimizer_states.values()
        found = [each for state in states for each in state["found_inf_per_device"].values()]
        return None if any(each.item() for each in found) else optimizer.step(*args, **kwargs)


custom_fwd: Any = functools.partial(torch.amp.custom_fwd, device_type="npu")
custom_bwd: Any = functools.partial(torch.amp.custom_bwd, device_type="npu")
