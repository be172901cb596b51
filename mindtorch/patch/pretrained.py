"""transformers and accelerate while the default device is a recording one.

``from_pretrained`` of transformers loads the model, then moves it: transformers itself would ask for accelerate, whose
hooks move parameters one by one. accelerate, and transformers' Trainer by it, move models and batches to a device that
they choose among those whose names they know: it is the default one.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from ..base.patching import for_good
from ..devices import mode
from ..devices.lazy_device import torch_device
from . import generators

__all__ = ["patch", "patch_accelerate", "patch_arguments"]


def patch(modeling: Any) -> None:
    """Have the classes in ``transformers.modeling_utils`` do so, once that is loaded. For good: it asks the mode."""
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

    for_good([(base, "from_pretrained", classmethod(from_pretrained))])


def patch_accelerate(state: Any) -> None:
    """Have ``accelerate.state.PartialState`` find the default device where it finds no other. For good, as above."""
    find = state.PartialState.default_device.fget
    found = property(functools.wraps(find)(lambda self: _or_default(find(self))))
    for_good([(state.PartialState, "default_device", found)])


def patch_arguments(module: Any) -> None:
    """The same of ``TrainingArguments.device`` of ``transformers.training_args``, which looks for itself."""
    arguments = module.TrainingArguments
    find = vars(arguments)["_setup_devices"].func

    @functools.wraps(find)
    def set_up(self: Any) -> Any:
        found = find(self)
        return found if self.use_cpu else _or_default(found)

    found = functools.cached_property(set_up)
    found.__set_name__(arguments, "_setup_devices")
    for_good([(arguments, "_setup_devices", found)])


def _or_default(found: Any) -> Any:
    return torch_device(mode.now.default) if found.type == "cpu" and mode.now.default is not None else found
