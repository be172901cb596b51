"""``torch.Generator(device="remote_accelerator:i")``: what a program draws from, apart from the device's own (SPEC L7).

To C++ it is a generator of the device that recordings run on, seeded as the program says. Draws with a generator run
when they are called, so they come in program order.
"""

from __future__ import annotations

from typing import Any

import torch

from . import tensors

__all__ = ["Generator", "where_it_draws"]


class Generator(torch.Generator):
    """A generator on ``remote_accelerator``; gives the numbers of a generator of the executor's device."""

    _device: Any

    def __new__(cls, device: Any) -> Any:
        tensors.on_device()
        made = super().__new__(cls, tensors.executor().device)
        made._device = tensors.torch_device(tensors.index_of(device))
        return made

    @property
    def device(self) -> Any:  # type: ignore[override]
        return self._device

    def clone_state(self) -> Generator:
        """Another generator on the device, which goes on from where this one stands."""
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict) -> Generator:
        made = memo[id(self)] = type(self)(self._device)
        made.set_state(self.get_state())
        return made

    def __reduce__(self) -> Any:
        # One on the CPU, as with tensors. The state of a CUDA generator means nothing to one there.
        plain = torch.Generator()
        if tensors.executor().device.type == "cpu":
            plain.set_state(self.get_state())
        else:
            plain.manual_seed(self.initial_seed())
        return plain.__reduce__()


def where_it_draws(generator: Any) -> torch.device:
    """The device on which torch takes ``generator``, which a creation function was given, or None."""
    return tensors.executor().device if isinstance(generator, Generator) else torch.device("cpu")
