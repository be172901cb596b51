"""Function and dispatch modes of the program see on the device what they see on the CPU (SPEC L3, L7)."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import mindtorch

LAZY = "remote_accelerator:0"
Call = Callable[[str, torch.Tensor], Any]
CREATED: dict[str, Call] = {
    "zeros": lambda d, x: torch.zeros(2, device=d),
    "ones that require a gradient": lambda d, x: torch.ones(2, device=d, requires_grad=True),
    "empty": lambda d, x: torch.empty(2, device=d),
    "full": lambda d, x: torch.full((2,), 3.0, device=d, dtype=torch.float64),
    "eye": lambda d, x: torch.eye(2, device=d),
    "arange": lambda d, x: torch.arange(3, device=d),
    "linspace": lambda d, x: torch.linspace(0, 1, 3, device=d),
    "empty_strided": lambda d, x: torch.empty_strided((2, 2), (1, 2), device=d),
    "tril_indices": lambda d, x: torch.tril_indices(2, 2, device=d),
    "hann_window": lambda d, x: torch.hann_window(4, device=d),
    "scalar_tensor": lambda d, x: torch.scalar_tensor(1.0, device=d),
    "rand": lambda d, x: torch.rand(2, device=d),
    "randn": lambda d, x: torch.randn(2, device=d),
    "randint": lambda d, x: torch.randint(3, (2,), device=d),
    "randperm": lambda d, x: torch.randperm(3, device=d),
    "normal": lambda d, x: torch.normal(0.0, 1.0, (2,), device=d),
    "rand from a generator": lambda d, x: torch.rand(2, device=d, generator=torch.Generator(d).manual_seed(1)),
    "tensor": lambda d, x: torch.tensor([1.0, 2], device=d),
    "as_tensor": lambda d, x: torch.as_tensor([1.0, 2], device=d),
    "zeros_like": lambda d, x: torch.zeros_like(x),
    "rand_like": lambda d, x: torch.rand_like(x),
    "new_zeros": lambda d, x: x.new_zeros(2),
    "new_zeros there": lambda d, x: x.new_zeros(2, device=d),
    "new_tensor": lambda d, x: x.new_tensor([1.0]),
    "module": lambda d, x: nn.Linear(2, 2, device=d),
}
USED: dict[str, Call] = {
    "cpu": lambda d, x: x.cpu(),
    "to the cpu": lambda d, x: x.to("cpu"),
    "to it": lambda d, x: x.to(d),
    "to a dtype": lambda d, x: x.to(torch.float64),
    "numpy": lambda d, x: x.numpy(),
    "asarray": lambda d, x: numpy.asarray(x),
    "repr": lambda d, x: repr(x),
    "str": lambda d, x: str(x),
    "format": lambda d, x: f"{x}",
    "format of a number": lambda d, x: f"{x.sum():.2f}",
    "item": lambda d, x: x[0].item(),
    "tolist": lambda d, x: x.tolist(),
    "bool": lambda d, x: bool(x[0]),
    "float": lambda d, x: float(x[0]),
    "int": lambda d, x: int(x[0]),
    "complex": lambda d, x: complex(x[0]),
    "index": lambda d, x: [1, 2, 3][x[0].long()],
    "deepcopy of a parameter": lambda d, x: copy.deepcopy(nn.Parameter(x)),
    "parameter": lambda d, x: nn.Parameter(x),
    "pickle": lambda d, x: pickle.dumps(x),
    "save": lambda d, x: torch.save(x, io.BytesIO()),
    "data_ptr": lambda d, x: x.data_ptr(),
    "storage": lambda d, x: x.untyped_storage(),
    "set_": lambda d, x: x.set_(x.clone()),
    "new": lambda d, x: x.new(2),
    "add": lambda d, x: x + x,
    "add to a number": lambda d, x: 1 + x,
    "subtract from a number": lambda d, x: 1 - x,
    "relu": lambda d, x: torch.relu(x),
    "in place": lambda d, x: x.add_(1).mul_(x),
    "matmul": lambda d, x: x @ x,
    "getitem": lambda d, x: x[0],
    "setitem": lambda d, x: x.__setitem__(0, 1.0),
    "mask": lambda d, x: x[x > 0],
    "iteration": lambda d, x: list(x),
    "contains": lambda d, x: 1.0 in x,
    "nonzero": lambda d, x: x.nonzero(),
    "unique": lambda d, x: x.unique(),
    "linear": lambda d, x: F.linear(x, torch.ones(2, 2, device=d)),
    "dropout": lambda d, x: F.dropout(x),
    "layer_norm": lambda d, x: F.layer_norm(x, (2,)),
    "attention": lambda d, x: F.scaled_dot_product_attention(*[x.view(1, 1, 1, 2)] * 3),
    "svd": lambda d, x: torch.linalg.svd(torch.eye(2, device=d)),
    "inv": lambda d, x: torch.linalg.inv(torch.eye(2, device=d)),
    "allclose": lambda d, x: torch.allclose(x, x),
    "equal": lambda d, x: torch.equal(x, x),
    "apply_": lambda d, x: x.apply_(lambda v: v + 1),
    "copy_": lambda d, x: x.copy_(torch.ones(2)),
    "copied from": lambda d, x: torch.ones(2).copy_(x),
    "detach": lambda d, x: x.detach().clone().data,
    "backward": lambda d, x: x.detach().requires_grad_().square().sum().backward(),
    "multinomial": lambda d, x: torch.multinomial(x, 1),
    "normal_": lambda d, x: x.normal_(),
    "manual_seed": lambda d, x: torch.manual_seed(0),
    "shape": lambda d, x: x.shape,
    "dtype": lambda d, x: x.dtype,
    "device": lambda d, x: x.device,
    "is_cpu": lambda d, x: x.is_cpu,
    "is_cuda": lambda d, x: x.is_cuda,
    "is_meta": lambda d, x: x.is_meta,
    "get_device": lambda d, x: x.get_device(),
    "bits": lambda d, x: (x.is_conj(), x.is_neg(), x.is_inference()),
    "gradient": lambda d, x: (x.requires_grad_(), setattr(x, "grad", x.detach() * 2), x.grad, delattr(x, "grad")),
    "size": lambda d, x: (x.size(), x.dim(), x.numel(), x.stride(), len(x)),
    "attributes": lambda d, x: (x.ndim, x.layout, x.requires_grad, x.grad, x.is_leaf, x.nbytes, x.itemsize),
    "attributes of a parameter": lambda d, x: [getattr(nn.Parameter(x), name) for name in ("shape", "dtype", "device")],
    "is_pinned": lambda d, x: x.is_pinned(),
    "is_set_to": lambda d, x: x.is_set_to(x),
    "to_dlpack": lambda d, x: torch.utils.dlpack.to_dlpack(x),
    "one_hot": lambda d, x: F.one_hot(x.long()),
    "pad_sequence": lambda d, x: nn.utils.rnn.pad_sequence([x, x[:1]]),
    "pad_sequence on the left": lambda d, x: nn.utils.rnn.pad_sequence([x[:1], x], True, 2.0, "left"),
    "lstm": lambda d, x: nn.LSTM(2, 2, device=d)(x[None]),
    "self-attention": lambda d, x: nn.MultiheadAttention(2, 1, device=d)(x[None], x[None], x[None]),
    "load_state_dict": lambda d, x: nn.Linear(2, 2, device=d).load_state_dict(nn.Linear(2, 2).state_dict()),
    "module to it": lambda d, x: nn.BatchNorm1d(2, device=d).to(d),
    "module to a dtype there": lambda d, x: nn.BatchNorm1d(2, device=d).to(d, torch.float64),
    "module to a dtype": lambda d, x: nn.Linear(2, 2, device=d).double(),
    "module to the cpu": lambda d, x: nn.BatchNorm1d(2, device=d).cpu(),
    "module from the cpu": lambda d, x: nn.BatchNorm1d(2).to(d),
    "as_subclass": lambda d, x: x.as_subclass(Plain).as_subclass(torch.Tensor),
    "from_dlpack": lambda d, x: torch.from_dlpack(x),
    "assert_close": lambda d, x: torch.testing.assert_close(x, x),
}


class Plain(torch.Tensor):
    """A class without anything of its own."""


class Functions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        name = getattr(func, "__name__", str(func))
        self.seen.append(f"{func.__self__.__name__}.{name}" if name in ("__get__", "__set__") else name)
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.devices: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        self.seen.append(str(func))
        self.devices.add((kwargs or {}).get("device"))
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of copying tensors with torch.tensor, of typed storages
        yield


def seen(mode: type[Functions] | type[Operators], d: str, call: Call) -> list[str]:
    torch.manual_seed(0)
    x = torch.ones(2).to(d)
    with mode() as looking:
        call(d, x)
    return looking.seen


#: What is a copy between devices, and there is none to see on the CPU: how many.
COPIES = {"cpu": 1, "to the cpu": 1, "module to the cpu": 5, "module from the cpu": 5}


@pytest.mark.parametrize("mode", [Functions, Operators])
@pytest.mark.parametrize("name", [*CREATED, *USED])
def test_L3_modes_see_what_they_see_on_the_cpu(name: str, mode: type[Functions]) -> None:
    call = (CREATED | USED)[name]
    copies = COPIES.get(name, 0) if mode is Operators else 0
    assert seen(mode, LAZY, call) == seen(mode, "cpu", call) + copies * ["aten._to_copy.default"]


def trained() -> nn.Module:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    net(torch.ones(3, 2)).sum().backward()
    return net


@pytest.mark.parametrize("begin, end", [("cpu", LAZY), (LAZY, "cpu"), (LAZY, "remote_accelerator:1")])
@pytest.mark.parametrize("make", [lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), trained])
def test_L3_modes_see_modules_move_as_they_see_them_change_their_type(
    begin: str, end: str, make: Callable[[], nn.Module]
) -> None:
    def looked(mode: type[Functions] | type[Operators], begin: str, *target: Any) -> list[str]:
        net = make().to(begin)
        with mode() as looking:
            net.to(*target)
        return looking.seen

    assert looked(Functions, begin, end) == looked(Functions, "cpu", torch.float64)
    # The counter of batches is an integer: it keeps its type, but moves.
    assert looked(Operators, begin, end) == [*looked(Operators, "cpu", torch.float64), "aten._to_copy.default"]


def test_L3_dispatch_modes_see_moves_with_their_options() -> None:
    class Options(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Any] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
            told = {**(kwargs or {}), "device": (kwargs or {}).get("device")}
            self.seen.append((str(func), type(args[0]).__name__, {k: str(v) for k, v in told.items()}))
            return func(*args, **(kwargs or {}))

    def program(d: str) -> list[Any]:
        x = torch.ones(2, 3, requires_grad=True)
        wrapped = TwoTensor(torch.ones(2), torch.ones(2))
        with Options() as looking:
            moved = x.to(d), x.to(d, torch.float64), x.detach().to(d, non_blocking=True), wrapped.to(d)
            moved += (torch.ones(1, 2, 2, 2).to(d, memory_format=torch.channels_last),)
        assert all(t.device == torch.device(d) for t in moved) and type(moved[-2]) is TwoTensor
        assert moved[0].requires_grad and not moved[2].requires_grad and moved[1].dtype is torch.float64
        return eval(repr(looking.seen).replace(d, "there"))

    assert program(LAZY) == program("meta")


def test_L7_moves_that_modes_see_have_gradients(same_as_eager: Callable[..., None]) -> None:
    def program(d: str) -> object:
        x = torch.arange(3.0, requires_grad=True)
        with Operators():
            y = x.to(d, torch.float64).exp()
            (y.cpu() * 2).sum().backward()
            y2 = torch.arange(3.0).to(d).requires_grad_()
            (y2.cpu() * y2.to("cpu", torch.float64)).sum().backward()
            with torch.autograd.forward_ad.dual_level():
                dual = torch.autograd.forward_ad.make_dual(x.detach(), torch.ones(3))
                tangent = torch.autograd.forward_ad.unpack_dual(dual.to(d) * 2).tangent
        assert x.grad is not None and x.grad.device.type == "cpu" and y2.grad is not None
        return x.grad.to(d), y2.grad, y, tangent

    same_as_eager(program)


def test_L3_what_modes_and_classes_make_of_attributes() -> None:
    """What they say is what the program gets; a default device is no mode that is asked."""

    class Otherwise(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
            return "otherwise" if func == torch.Tensor.shape.__get__ else func(*args, **(kwargs or {}))

    class Named(torch.Tensor):
        seen: ClassVar[list[Any]] = []

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
            cls.seen.append(getattr(func, "__self__", func))
            return super().__torch_function__(func, types, args, kwargs or {})

    def program(d: str) -> object:
        x = torch.ones(2).to(d)
        with Otherwise():
            told = (x.shape, x.dtype, x.is_cpu == (d == "cpu"))
        with torch.device(d):
            told += (x.shape, x.device == torch.device(d))
        named = x.as_subclass(Named)
        Named.seen.clear()
        told += (named.shape, named.dtype, named.is_cuda, named.device == torch.device(d))
        with pytest.raises(AttributeError, match="is not writable"):
            x.shape = (1,)  # type: ignore[misc]
        return told, [getattr(f, "__name__", "?") for f in Named.seen]

    assert program(LAZY) == program("cpu")


def test_L3_modes_and_classes_see_gradients_thrown_away() -> None:
    """What an optimizer's zero_grad does; one may keep them."""

    class Keeps(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
            return None if func == torch.Tensor.grad.__set__ else func(*args, **(kwargs or {}))  # type: ignore[attr-defined]

    class Named(torch.Tensor):
        seen: ClassVar[list[Any]] = []

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
            cls.seen.append((getattr(func, "__name__", "?"), args[-1] is None))
            return super().__torch_function__(func, types, args, kwargs or {})

    def program(d: str) -> object:
        x = torch.ones(2).to(d).requires_grad_()
        x.sum().backward()
        with Keeps():
            x.grad = None
        told = [x.grad is None]
        x.grad = None
        told.append(x.grad is None)
        named = torch.ones(2).to(d).as_subclass(Named).requires_grad_()
        named.sum().backward()
        Named.seen.clear()
        named.grad = None
        return told, Named.seen[:], named.grad is None

    assert program(LAZY) == program("cpu") == ([False, True], [("__set__", True)], True)


@pytest.mark.parametrize("call", [lambda d, x: copy.copy(x), lambda d, x: copy.deepcopy(x), lambda d, x: x.__copy__()])
def test_L3_modes_see_nothing_of_how_the_engine_copies(call: Call) -> None:
    assert seen(Operators, LAZY, call) == [] and set(seen(Functions, LAZY, call)) <= {"__deepcopy__"}


def test_L2_what_modes_make_of_creation_on_the_device() -> None:
    """The device is there to be seen, results are on it, and a mode may change the call."""

    class Elsewhere(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
            return func(*args, **{**kwargs, "device": torch.device("cpu"), "dtype": torch.float64})

    with Operators() as outer, Operators() as inner:
        made = torch.zeros(2, device=LAZY)
    assert outer.seen == inner.seen == ["aten.zeros.default"] and outer.devices == {torch.device(LAZY)}
    assert isinstance(made, mindtorch.LazyTensor) and made.operation == "aten::zeros" and made.tolist() == [0, 0]
    with Operators() as outer, Elsewhere():
        moved = torch.zeros(2, device=LAZY)
    assert outer.seen == ["aten.zeros.default"] and moved.device.type == "cpu" and moved.dtype is torch.float64
    for make in (torch.ones, lambda size, **options: torch.tensor([1.0] * size, **options)):
        with Operators():
            leaf = make(2, device=LAZY, requires_grad=True)  # type: ignore[operator]
        (leaf * 2).sum().backward()
        assert leaf.is_leaf and leaf.grad is not None and leaf.grad.tolist() == [2, 2]


def test_L7_draws_under_dispatch_modes_are_the_devices(same_as_eager: Callable[..., None]) -> None:
    def program(d: str) -> object:
        g = torch.Generator(d).manual_seed(5)
        with Operators():
            return torch.rand(3, device=d), torch.randn(2, device=d, generator=g), torch.randperm(4, device=d)

    same_as_eager(program)


def test_L9_a_mode_that_raises_leaves_the_stack_as_it_was() -> None:
    class Refuses(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
            raise ValueError("no")

    with Operators() as outer:
        with pytest.raises(ValueError, match="no"), Refuses():
            torch.ones(2, device=LAZY)
        torch.ones(2, device=LAZY)
    assert outer.seen == ["aten.ones.default"] and torch._C._len_torch_dispatch_stack() == 0


def test_L2_a_device_context_makes_what_was_exchanged_before(
    in_python: Callable[..., Any],
) -> None:
    """As transformers does with ``torch.linspace`` while it loads a model; torch keeps its list for good."""
    made = in_python("""
import torch, mindtorch
torchs, torch.linspace = torch.linspace, lambda *args: torchs(*args, device="cpu")
with torch.device("meta"):
    torch.ones(1)
torch.linspace = torchs
with torch.device("remote_accelerator"):
    print(torch.linspace(0, 1, 3).device)
""")
    assert made.stdout == "remote_accelerator:0\n"
