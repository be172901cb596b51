"""transformers and accelerate while the default device is a recording one.

``from_pretrained`` of transformers loads the model, then moves it: transformers itself would ask for accelerate, whose
hooks move parameters one by one. accelerate, and transformers' Trainer by it, move models and batches to a device that
they choose among those whose names they know: it is the default one.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from ..base.patching import Patch, Patches
from ..devices import mode
from ..devices.lazy_device import torch_device
from . import generators

__all__ = ["watch"]


def watch() -> None:
    """Have them do so, once they are loaded. For good: what stands there asks the mode."""
    for_good = Patches()
    for_good.put_when_loaded("transformers.modeling_utils", _loading)
    for_good.put_when_loaded("accelerate.state", _choosing)
    for_good.put_when_loaded("transformers.training_args", _arguments)


def _loading(modeling: Any) -> Iterator[Patch]:
    base = modeling.PreTrainedModel
    load = base.from_pretrained.__func__

    @functools.wraps(load)
    def from_pretrained(cls: type, *args: Any, **kwargs: Any) -> Any:
        index = mode.now.default
        if index is None or kwargs.get("device_map") is not None:
            return load(cls, *args, **kwargs)
        with generators.one_sequence(), mode.enter(default=None):  # heads that the file does not have are drawn
            found = load(cls, *args, **kwargs)
        models = found if isinstance(found, tuple) else (found,)  # with output_loading_info=True
        for model in models:
            if isinstance(model, torch.nn.Module):
                model.to(torch_device(index))
        return found

    yield base, "from_pretrained", classmethod(from_pretrained)


def _choosing(state: Any) -> Iterator[Patch]:
    """``PartialState`` finds the default device where it finds no other."""
    find = state.PartialState.default_device.fget
    yield state.PartialState, "default_device", property(functools.wraps(find)(lambda self: _or_default(find(self))))


def _arguments(module: Any) -> Iterator[Patch]:
    """The same of ``TrainingArguments.device``, which looks for itself."""
    arguments = module.TrainingArguments
    find = vars(arguments)["_setup_devices"].func

    @functools.wraps(find)
    def set_up(self: Any) -> Any:
        found = find(self)
        return found if self.use_cpu else _or_default(found)

    found = functools.cached_property(set_up)
    found.__set_name__(arguments, "_setup_devices")
    yield arguments, "_setup_devices", found


def _or_default(found: Any) -> Any:
    return torch_device(mode.now.default) if found.type == "cpu" and mode.now.default is not None else found
