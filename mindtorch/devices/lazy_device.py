"""Which device is meant: ``remote_accelerator[:i]``, one without data, as a number or as an object (SPEC D5)."""

from __future__ import annotations

import sys
from typing import Any

import torch

from .._ext import lazy as _core
from .._ext import ledger
from . import mode
from .names import device as mindtorch_device
from .places import BY_TYPE, RECORDED

DEVICE_TYPE = "remote_accelerator"
_torch_devices: dict[Any, torch.device] = {}


def torch_device(index: int, kind: str = DEVICE_TYPE) -> Any:
    """The device object of remote_accelerator ``index``: torch's own where torch can express it."""
    device = _torch_devices.get((kind, index))
    if device is None:
        with torch._C.DisableTorchFunction():  # the program did not ask for it
            device = _device(kind, index)
        if isinstance(device, torch.device):
            device = _torch_devices.setdefault((kind, index), device)
    return device


#: Has torch's slot the name ``npu`` by us (`mindtorch.patch.slot.claim_npu`)? Its device objects are then torch's.
torch_knows_npu = False
#: Does the program mean NPUs when it says ``cuda`` (`mindtorch.npu.compat.transfer_to_npu`)?
cuda_is_npu = False


def npu_device(index: int) -> Any:
    """The device object of npu ``index``: torch's own where torch can express it."""
    return torch_device(index, "npu") if torch_knows_npu else mindtorch_device("npu", index)


#: Devices that hold no data: place -1 is the first.
DATALESS: list[Any] = [torch.device("meta")]
#: What C++ takes the tensors of each such place for. Outside meta: for CPU tensors, as with all that is recorded.
BELOW: list[torch.device] = [torch.device("meta")]


def check_cuda(index: int, kind: str = "cuda") -> int:
    """``index``, unless an estimate was told that there are fewer such devices: then torch's error."""
    told = mode.now.cudas
    if told is not None and not 0 <= index < told:
        raise torch.AcceleratorError(
            f"{kind.upper()} error: invalid device ordinal\n"
            f"[estimate] {kind}:{index}: the program sees {told} device(s)"
        )
    return index


def device_at(place: int) -> Any:
    """The device object of a place: a remote_accelerator's index, or negative, one that holds no data."""
    return torch_device(place) if place >= 0 else DATALESS[-1 - place]


def device_of(t: torch.Tensor) -> Any:
    """The device of a tensor, also where torch's own code looks, to which those of ours are on the CPU."""
    return t.device if _core.get_handle(t) is None else device_at(_core.device_index(t))


def on_cuda(t: torch.Tensor) -> bool:
    """Is the tensor on a CUDA device, or in an estimate said to be?"""
    return bool(device_of(t).type == "cuda")


def place_of(device: Any, anywhere: bool = False) -> int:
    """The place of a device of ours or of one that holds no data; ``anywhere``: take it for one that does not."""
    kind, index = _parts(device)
    anywhere = anywhere or mode.now.estimate is not None
    if kind == DEVICE_TYPE and not anywhere:
        return index or 0
    if kind != "meta" and not anywhere:
        raise ValueError(f"[place_of] expected a {DEVICE_TYPE} or meta device, got {device}")
    if index is None and kind not in ("cpu", "meta"):
        index = mode.now.current_cuda() if kind in ledger.GRAIN else 0
    if kind in ledger.GRAIN:
        check_cuda(index or 0, kind)
    wanted = _device(kind, index)
    if wanted not in DATALESS:
        BELOW.append(wanted if kind == "meta" else torch.device("cpu"))
        DATALESS.append(wanted)
        ledger.round_to(-len(DATALESS), ledger.GRAIN.get(kind, 0))
    return -1 - DATALESS.index(wanted)


def _parts(device: Any) -> tuple[str, int | None]:
    if isinstance(device, int):
        return meant(), device
    spec = device if isinstance(device, torch.device) else mindtorch_device(device)
    if mode.now.estimate is not None and (spec.type == DEVICE_TYPE or (spec.type == "cuda" and cuda_is_npu)):
        return meant(), spec.index  # also torch's answer to `.to(0)`: the accelerator it knows is ours
    return DEVICE_TYPE if BY_TYPE.get(spec.type) is RECORDED else spec.type, spec.index


def meant() -> str:
    """The type of device that an index alone means. A program that says ``cuda`` where the accelerator is an NPU has
    its tensors there: one that neither imports torch_npu nor has put anything on ``npu``."""
    kind = mode.now.accelerator
    if kind != "npu" or "torch_npu" in sys.modules:
        return kind
    used = any(each.type == kind and ledger.live_bytes(-1 - i)[1] for i, each in enumerate(DATALESS))
    return kind if used else "cuda"


def _device(kind: str, index: int | None) -> Any:
    try:
        return torch.device(kind) if index is None else torch.device(kind, index)
    except RuntimeError:  # npu, where nobody registered it
        return mindtorch_device(kind, index)


def cuda_present() -> bool:
    """Is there a CUDA device, asked of the driver's management library where there is one.

    ``torch.cuda.is_available()`` starts the driver: processes forked afterwards could not use CUDA, and
    ``CUDA_VISIBLE_DEVICES`` would be read too early.
    """
    return torch.backends.cuda.is_built() and torch.cuda.device_count() > 0


def known_device(device: Any) -> Any:
    """``device`` as torch's object where torch can express it, else as ours."""
    return _device(*_parts(device))


def accelerator_at(index: int) -> Any:
    """What an index alone means: an estimate's accelerator, an NPU that torch knows by name; None: what torch says."""
    if mode.now.estimate is not None:
        return known_device(f"{meant()}:{index}")
    return npu_device(index) if torch_knows_npu else None


def index_of(device: Any) -> int:
    """The index a device names; a bare ``remote_accelerator`` is the current one, 0."""
    return mindtorch_device(device).index or 0
