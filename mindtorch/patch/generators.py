"""``torch.Generator(device="remote_accelerator:i")``, or ``"npu:i"``: what a program draws from, apart from the
device's own (SPEC L7).

To C++ it is a generator of the device that recordings run on, seeded as the program says. Draws with a generator run
when they are called, so they come in program order.
"""

from __future__ import annotations

from typing import Any

import torch

from .._ext import hooks as _hooks
from .._ext import lazy as _core
from ..devices.lazy_device import npu_device
from ..engine.execute import tensors, values
from ..engine.record import eager
from ..npu.moves import index_of as npu_index
from ..npu.tensor import is_npu

__all__ = ["Generator", "NpuGenerator", "draw", "unwatch", "where_it_draws"]
_watching: list[Any] = []  # functions of torch's that are asked about


class Generator(torch.Generator):
    """A generator on ``remote_accelerator``; gives the numbers of a generator of the executor's device."""

    _device: Any

    def __new__(cls, device: Any) -> Any:
        tensors.on_device()
        _watch()
        made = super().__new__(cls, values.executor().device)
        eager.generators[made._cdata] = made  # type: ignore[attr-defined]
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
        if where_it_draws(self).type == "cpu":
            plain.set_state(self.get_state())
        else:
            plain.manual_seed(self.initial_seed())
        return plain.__reduce__()


class NpuGenerator(Generator):
    """A generator on ``npu``; gives the numbers of one on the CPU, as `mindtorch.npu.random` does."""

    def __new__(cls, device: Any) -> Any:
        _watch()
        made = torch.Generator.__new__(cls, "cpu")
        made._device = npu_device(npu_index(device))
        return made


def where_it_draws(generator: Any) -> torch.device:
    """The device on which torch takes ``generator``, which a creation function was given, or None."""
    recording = isinstance(generator, Generator) and not isinstance(generator, NpuGenerator)
    return values.executor().device if recording else torch.device("cpu")


def draw(function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """``function(..., generator=g)`` with a generator of ours: refused, as torch would, where the CPU's is wanted."""
    given = (*args, *kwargs.values())
    ours = any(_core.get_handle(a) is not None or is_npu(a) for a in given)  # they look themselves whose it is
    if torch._C._is_torch_function_enabled() and not ours:
        where = kwargs.get("device") or next((a.device for a in given if isinstance(a, torch.Tensor)), "cpu")
        found = next(g.device.type for g in given if isinstance(g, Generator))
        raise RuntimeError(f"Expected a '{torch.device(where).type}' device type for generator but found '{found}'")
    return function(*args, **kwargs)


_FUNCTIONS = ("bernoulli", "multinomial", "poisson", "binomial")
_METHODS = ("bernoulli", "multinomial", "bernoulli_", "normal_", "uniform_", "random_", "exponential_", "cauchy_",
            "log_normal_", "geometric_")  # fmt: skip


def _watch() -> None:
    """There is a generator of ours: from now on everything that draws is asked whose it was given."""
    if _watching:
        return
    _hooks.take_generators(Generator)
    for owner, names in ((torch._C._VariableFunctions, _FUNCTIONS), (torch._C.TensorBase, _METHODS)):
        for name in names:
            function = getattr(owner, name)
            _watching.append(function)
            _hooks.hook(function, _hooks.DrawHook(draw, names is _METHODS))


def unwatch() -> None:
    """Leave what draws to torch alone."""
    while _watching:
        _hooks.unhook(_watching.pop())
