"""DTensors of an estimated rank: where they are, and how they come there, their local tensors say (SPEC C4).

C++ takes a DTensor to be where it takes the local tensor to be, which for tensors without data is not where they are.
"""

from __future__ import annotations

import copy
import importlib
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from ...base.patching import Patch
from ...engine.record.arguments import to_call
from ..measure import peak

__all__ = ["classes_forgotten", "create", "patches"]


def patches() -> Iterator[Patch]:
    import torch.distributed._functional_collectives as functional
    from torch.distributed.tensor import DTensor, _op_schema, _random
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    yield DTensor, "device", property(lambda self: self._local_tensor.device)
    for name in ("is_meta", "is_cuda", "is_cpu"):
        yield DTensor, name, property(operator.attrgetter(f"_local_tensor.{name}"))
    yield DTensor, "get_device", lambda self: self._local_tensor.get_device()
    yield DTensor, "to", _to
    yield DTensor, "cpu", lambda self, *args, **kwargs: _moved(self, "cpu", {})
    yield (
        DTensor,
        "cuda",
        lambda self, device=None, *args, **kwargs: _moved(self, "cuda" if device is None else device, {}),
    )
    shapes = ShardingPropagator._propagate_tensor_meta_non_cached

    def without_us(self: Any, schema: Any) -> Any:
        """What comes out as a whole: asked of torch's fake tensors, none of which is the program's."""
        if "device" in schema.kwargs_schema:  # which C++ may not know
            schema = copy.copy(schema)
            schema.kwargs_schema = {k: v for k, v in schema.kwargs_schema.items() if k != "device"}
        with torch._C.DisableTorchFunction():
            return shapes(self, schema)

    def as_fake(spec: Any) -> torch.Tensor:
        meta = spec.tensor_meta
        return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device="cpu")

    yield _op_schema, "_rebuild_tensor_from_dtensor_meta", as_fake
    yield ShardingPropagator, "_propagate_tensor_meta_non_cached", without_us
    fsdp: Any = importlib.import_module("torch.distributed.fsdp._fully_shard._fsdp_param").FSDPParam
    gathers = fsdp.to_unsharded

    def gathered(self: Any) -> None:
        peak.say(self.all_gather_outputs, peak.GATHERED)
        gathers(self)

    yield fsdp, "to_unsharded", gathered
    yield _random.OffsetBasedRNGTracker, "_distribute_region", _same_everywhere
    # Waited for at once: what would be wrapped until it is used knows nothing of tensors without data.
    yield functional, "_maybe_wrap_tensor", lambda t: functional.wait_tensor(t)


@contextmanager
def classes_forgotten() -> Iterator[None]:
    """Classes that FSDP makes of the program's within the block are not kept longer: they hold the whole program."""
    fsdp: Any = importlib.import_module("torch.distributed.fsdp._fully_shard._fully_shard")
    kept = fsdp.get_cls_to_fsdp_cls() if hasattr(fsdp, "get_cls_to_fsdp_cls") else {}
    before = dict(kept)
    try:
        yield
    finally:
        kept.clear()
        kept.update(before)


@contextmanager
def _same_everywhere(self: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
    """What ranks draw differently has no values here."""
    yield


_tensor_to = torch.Tensor.to


def _to(self: Any, *args: Any, **kwargs: Any) -> Any:
    target, options = to_call(args, kwargs)
    changed = _tensor_to(self, **options) if options else self
    if target is None or torch.device(target) == self.device:
        return changed
    return _moved(changed, target, {})


def _moved(t: Any, device: Any, options: dict[str, Any]) -> Any:
    if isinstance(device, int):
        device = torch.device("cuda", device)
    if not torch.is_grad_enabled() or t.is_leaf:
        with torch.no_grad():
            return _like(t, t._local_tensor.to(device)).requires_grad_(t.requires_grad)
    local = t.to_local().to(device)
    return type(t).from_local(local, t.device_mesh, t.placements, run_check=False, shape=t.shape, stride=t.stride())


def _like(t: Any, local: torch.Tensor) -> Any:
    """A DTensor with this local tensor, otherwise as ``t``."""
    from torch.distributed.tensor import DTensor

    spec = t._spec
    if local.dtype is not t.dtype:
        spec = type(spec)(spec.mesh, spec.placements, tensor_meta=spec.tensor_meta._replace(dtype=local.dtype))
    return DTensor(local, spec, requires_grad=False)


def create(func: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    """``torch.empty_like(dtensor, device=...)`` and its like; NotImplemented for anything else."""
    if not args or type(args[0]) is torch.Tensor or not func.__name__.endswith("_like"):
        return NotImplemented
    t: Any = args[0]
    if not hasattr(t, "_local_tensor") or not isinstance(t, dist.tensor.DTensor):
        return NotImplemented
    requires_grad = kwargs.get("requires_grad", False)
    options = {name: value for name, value in kwargs.items() if name != "requires_grad"}
    with torch.no_grad():
        return _like(t, func(t._local_tensor, *args[1:], **options)).requires_grad_(requires_grad)
