"""`estimating()`: within it, whatever a program makes on whatever device has sizes only, and nothing is computed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils import _foreach_utils
from torch.utils._foreach_utils import _device_has_foreach_support

from ...base.clusters import Cluster
from ...base.errors import UsageError
from ...base.patching import Patch, replaced
from ...devices import mode
from ...devices.lazy_device import place_of
from ...devices.names import default_device_kept
from ...engine.execute import tensors, values
from ...engine.record import meta, unwrapping
from ...engine.record.meta import MetaParameter, MetaTensor, _FastMetaTensor, as_meta
from ...engine.tensor import classes
from ...patch import dispatch_modes, flags, hooks, triton_kernels
from . import (
    autocast,
    beams,
    checkpoints,
    cuda_tools,
    deciding,
    exporting,
    fused_attention,
    kernel_limits,
    known_values,
    process_groups,
    refusals,
    saved_objects,
    scripted,
    several_devices,
    sparse_tensors,
)
from .accelerator import Accelerator, answers, current_device, set_current
from .private_files import private

__all__ = ["estimating"]


@contextmanager
def estimating(
    accelerator: Accelerator | None = None,
    assume: float | None = None,
    cluster: Cluster | None = None,
    balanced: bool = False,
) -> Iterator[None]:
    """Run the body without data: ``cpu``, ``cuda``, ``npu`` … tensors know their sizes, dtype and device, no more.

    accelerator: what the program is told when it asks for a GPU; None: there is none.
    assume: the value assumed for tensor elements the estimate cannot know; see `assumptions.assumed`.
    cluster: which rank of how many the program is, as torchrun would start it; None: a process on its own.
    balanced: whether choices among unknown scores (``topk``, ``argmax``) choose all alike as often.
    Raises UsageError when lazy work is pending or an estimate is under way already.
    """
    if mode.now.estimate is not None:
        raise UsageError("[estimate] an estimate is already running")
    values.flush("estimate")
    enabled = hooks.is_enabled()
    with ExitStack() as stack:
        if not enabled:
            hooks.enable()
            stack.callback(hooks.disable)
        tensors.in_use()
        fused_attention.install()
        refusals.install()
        deciding.install()
        beams.install()
        flags.of_chip(None if accelerator is None else accelerator.capability)
        stack.callback(flags.of_chip, None)
        kernel_limits.of_accelerator(accelerator or Accelerator("", 0))
        fused_attention.of_capability(None if accelerator is None else accelerator.capability)
        cudas = None if accelerator is None else accelerator.count
        kind = Accelerator.kind if accelerator is None else accelerator.kind
        entered = known_values.knowing(
            assume,
            cudas=cudas,
            current_cuda=current_device,
            accelerator=kind,
            ranks=None if cluster is None else process_groups,
        )
        stack.enter_context(default_device_kept())
        stack.enter_context(entered)
        stack.callback(set_current, 0)
        stack.enter_context(deciding.balanced(balanced))
        stack.enter_context(private())
        saved_objects.forget()
        stack.callback(meta._emptied.clear)  # by slots, which other tensors get
        told = (
            *answers(accelerator),
            *(patch for each in _OTHERS for patch in each.patches()),
            *_foreach(),
            (torch.nn.Parameter, "__new__", _new_parameter),
        )
        stack.enter_context(replaced(told))
        stack.enter_context(autocast.as_on_cuda())
        stack.enter_context(dispatch_modes.made_by_estimate(kind))
        stack.enter_context(triton_kernels.imagined(deciding.lose, current_device))
        ranks = process_groups.one_alone() if cluster is None else process_groups.one_of_many(cluster)
        stack.enter_context(ranks)
        yield


def _foreach() -> list[Patch]:
    """Optimizers and clipping take lists of tensors at once where torch would, though our class is not torch's own."""
    optimizer = importlib.import_module("torch.optim.optimizer")  # which torch.optim has taken from its own names
    clip = torch.nn.utils.clip_grad
    types = [*optimizer._foreach_supported_types, *_TYPES]

    def has_support(tensors: Any, device: Any) -> bool:
        return _device_has_foreach_support(device) and all(t is None or type(t) in types for t in tensors)

    return [
        (optimizer, "_foreach_supported_types", types),
        *((owner, "_has_foreach_support", has_support) for owner in (_foreach_utils, clip)),
    ]


_OTHERS = (
    checkpoints, fused_attention, autocast, cuda_tools, scripted, exporting, sparse_tensors, several_devices,
)  # fmt: skip
# As torch's own: tensors and parameters, not what a program derives from them.
_TYPES = (MetaTensor, MetaParameter, _FastMetaTensor)


def _new_parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
    # Made from a plain tensor (``torch.Tensor(3, 4)``, a file's contents): weights are never read.
    plain = type(data) in (torch.Tensor, torch.nn.Parameter) and unwrapping.index_inside(data) is None
    if plain and mode.now.estimate is not None and not torch._C._is_torch_function_all_disabled():
        data = as_meta(data.detach(), place_of(data.device))
    return classes.new_parameter(cls, data, requires_grad)
