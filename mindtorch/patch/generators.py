"""``torch.Generator(device="remote_accelerator:i")``, or ``"npu:i"``: what a program draws from, apart from the
device's own (SPEC L7).

To C++ it is a generator of the device that recordings run on, seeded as the program says. Draws with a generator run
when they are called, so they come in program order.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from .._ext import hooks as _hooks
from .._ext import lazy as _core
from .._ext.guards import Together
from ..base.patching import Patch
from ..devices import mode
from ..devices.lazy_device import npu_device
from ..engine.execute import tensors, values
from ..engine.record import eager
from ..npu.moves import index_of as npu_index
from ..npu.tensor import is_npu
from . import held

__all__ = ["Generator", "NpuGenerator", "draw", "drawing_from", "may_draw", "where_it_draws"]
_functions = torch._C._VariableFunctions


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
    """``function(..., generator=g)`` with a generator of ours: refused, as torch would, where the CPU's is wanted.

    While torch's default generator is one of ours: what draws on the CPU, or may.
    """
    given = (*args, *kwargs.values())
    ours = any(_core.get_handle(a) is not None or is_npu(a) for a in given)  # they look themselves whose it is
    found = next((g.device.type for g in given if isinstance(g, Generator)), None)
    if found is None:
        kwargs = without_default(kwargs)
        with nullcontext() if ours or not _draws(function.__name__, args, kwargs) else one_sequence():
            return function(*args, **kwargs)
    alike = mode.now.meets is not None and values.executor().device.type == "cpu"  # which it is to C++, too
    if torch._C._is_torch_function_enabled() and not ours and not alike:
        where = kwargs.get("device") or next((a.device for a in given if isinstance(a, torch.Tensor)), "cpu")
        raise RuntimeError(f"Expected a '{torch.device(where).type}' device type for generator but found '{found}'")
    return function(*args, **kwargs)


def without_default(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments; torch's default generator is the same as none."""
    if kwargs.get("generator") is not torch.default_generator:
        return kwargs
    return {name: value for name, value in kwargs.items() if name != "generator"}


def one_sequence() -> AbstractContextManager[object]:
    """A block in which torch draws on the CPU from the device's generator, if that is torch's default one: the program
    has one sequence of numbers then, in the order in which it asks for them, as it has without us."""
    index = sequence_of()
    if index is None:
        return nullcontext()
    return drawing_from(index, "draw on the CPU")


def drawing_from(index: int, reason: str) -> AbstractContextManager[object]:
    """A block in which torch draws from the generator of device ``index``, if that is of the kind that it needs.

    ``reason``: for which recorded draws run before.
    """
    executor = values.executor()
    if executor.device.type == "cpu" and not _is_of_the_cpu(executor, index):
        return nullcontext()
    values.materialize([], reason, generator=index)  # those that come before
    return Together(values.lock, executor.rng(index))


def may_draw(name: str, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Does the call of torch's function ``name`` draw, as far as its arguments tell?"""
    return name in _ALL and _draws(name, args, kwargs)


def sequence_of() -> int | None:
    """The index of the device whose generator torch's default one is, or None.

    It has to be of the CPU's kind: where recordings run on a GPU there are two sequences.
    """
    index = mode.now.draws
    return index if index is not None and _is_of_the_cpu(values.executor(), index) else None


def _is_of_the_cpu(executor: Any, index: int) -> bool:
    """Are the executor's generators those of a CPU? One that is elsewhere is asked once."""
    if executor not in _of_the_cpu:
        asked = getattr(executor, "generator_state", None)
        same = asked is None or asked(index).numel() == torch.Generator().get_state().numel()
        _of_the_cpu[executor] = same and executor.device.type == "cpu"
    return _of_the_cpu[executor]


_of_the_cpu: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def _draws(name: str, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Does the call of a function that may draw, do so? False when it certainly does not."""
    if kwargs.get("generator") is not None:
        return False  # from that one
    if "dropout" in name and len(args) > 2:
        return bool(args[1] and args[2])
    return name not in _RARELY or any(type(a) is float and a > 0 for a in (*args, *kwargs.values()))


#: Draw when they have a dropout among their arguments.
_RARELY = ("lstm", "gru", "rnn_tanh", "rnn_relu", "scaled_dot_product_attention")
_FUNCTIONS = ("bernoulli", "multinomial", "poisson", "binomial")
#: The same on the way to something else.
_ON_THE_WAY = ("dropout", "dropout_", "alpha_dropout", "alpha_dropout_", "feature_dropout", "feature_dropout_",
               "feature_alpha_dropout", "feature_alpha_dropout_", "native_dropout", "rrelu", "rrelu_",
               "_standard_gamma", "_sample_dirichlet", "lstm", "gru", "rnn_tanh", "rnn_relu")  # fmt: skip
_ALL = frozenset({*_FUNCTIONS, *_ON_THE_WAY, "scaled_dot_product_attention"})
_METHODS = ("bernoulli", "multinomial", "bernoulli_", "normal_", "uniform_", "random_", "exponential_", "cauchy_",
            "log_normal_", "geometric_")  # fmt: skip


def _watch() -> None:
    """There is a generator of ours: from now on everything that draws is asked whose it was given."""
    if (_functions, _FUNCTIONS[0]) not in held:
        _hooks.take_generators(Generator)
        held.put(_draws_of(_functions, _FUNCTIONS))
        held.put(_draws_of(torch._C.TensorBase, _METHODS))


def watch_all() -> None:
    """Everything that may draw is asked, where it does so (`one_sequence`)."""
    _watch()
    if (_functions, _ON_THE_WAY[0]) not in held:
        held.put(_draws_of(_functions, _ON_THE_WAY))
        held.put(_draws_of(torch._C._nn, ("scaled_dot_product_attention",)))


def _draws_of(owner: Any, names: tuple[str, ...]) -> Iterator[Patch]:
    return ((owner, name, _hooks.DrawHook(draw, owner is torch._C.TensorBase)) for name in names)
