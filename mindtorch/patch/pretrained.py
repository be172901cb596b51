"""``from_pretrained`` of transformers while the default device is a recording one: the model is loaded, then moved.

transformers itself would ask for accelerate, whose hooks move parameters one by one.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from ..devices import mode
from ..devices.lazy_device import torch_device
from . import generators

__all__ = ["patch"]


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

    base.from_pretrained = classmethod(from_pretrained)
