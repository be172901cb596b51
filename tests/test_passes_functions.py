"""What stands for a function that was recorded makes the same call, or gives the same bits (SPEC L13)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

from mindtorch._ext import intern
from mindtorch.base import torch_facts
from mindtorch.engine.passes.direct import DIRECT, direct
from mindtorch.engine.passes.in_place import POINTWISE, InPlace

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


class _Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def calls_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Call]:
    """What it comes to in the dispatcher."""
    with _Seen() as seen, torch.no_grad():
        function(*args, **kwargs)
    return seen.calls


def _key(func: Any) -> str:
    return f"{func._schema.name.removeprefix('aten::')}.{func._overloadname}"


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return a is b
    if isinstance(a, (tuple, list)):
        return isinstance(b, (tuple, list)) and len(a) == len(b) and all(map(_equal, a, b))
    return type(a) is type(b) and bool(a == b or a != a)


def _samples(op: Any, most: int = 12) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    for n, sample in enumerate(op.sample_inputs("cpu", torch.float32)):
        if n == most:
            return
        yield sample.input, sample.args, sample.kwargs


def _recorded() -> Iterator[Call]:
    """Calls of the overloads in `DIRECT`, with all kinds of arguments that torch's own samples have."""
    names = {each.partition(".")[0].rstrip("_") for each in DIRECT} | {
        "nn.functional.batch_norm", "nn.functional.conv2d", "nn.functional.embedding", "nn.functional.layer_norm",
        "nn.functional.relu", "nn.functional.silu", "nn.functional.scaled_dot_product_attention", "softmax",
        "log_softmax", "sum", "mean", "T", "rsub", "true_divide",
    }  # fmt: skip
    x, y = torch.rand(2, 3), torch.rand(3)
    aten = torch.ops.aten
    yield aten._safe_softmax.default, (x, -1), {}
    yield aten.lerp_.Scalar, (x, x + 1, 0.25), {}
    yield aten.mul_.Tensor, (x, 0.9), {}
    yield aten.add_.Tensor, (x, y), {"alpha": 2}
    yield aten.addcdiv_.default, (x, x, x + 1), {"value": -0.5}
    yield aten.addcmul_.default, (x, x, x), {"value": 0.1}
    yield aten.copy_.default, (x, y), {}
    yield aten.copy_.default, (x, y, True), {}
    yield aten.zero_.default, (x,), {}
    yield aten.t.default, (y,), {}
    yield aten.pow.Tensor_Scalar, (x, 3.0), {}
    yield aten.pow.Tensor_Scalar, (x, 2), {}
    for op in op_db:
        if op.name in names:
            for value, args, kwargs in _samples(op):
                for function in (op.op, op.inplace_variant):
                    try:
                        calls = [] if function is None else calls_of(function, value, *args, **kwargs)
                    except RuntimeError:  # an in-place function whose result does not fit
                        continue
                    yield from (call for call in calls if _key(call[0]) in DIRECT)


def test_L13_a_direct_call_is_the_operators_own() -> None:
    met = set()
    for func, args, kwargs in _recorded():
        function = direct(func)
        assert function is not None, func
        found = calls_of(function, *args, **kwargs)
        assert len(found) == 1 and found[0][0] is func, f"{func}{args}: {[str(call[0]) for call in found]}"
        assert _equal(found[0][1], args), f"{func}: {found[0][1]} for {args}"
        assert found[0][2].keys() == kwargs.keys() and all(_equal(v, kwargs[k]) for k, v in found[0][2].items())
        met.add(_key(func))
    assert met == DIRECT


def test_L13_direct_calls_are_on_where_they_were_proven(after_torch: Callable[..., Any]) -> None:
    code = """
        import torch
        torch.__version__ = {!r}
        from mindtorch.engine import passes
        print([each.on for each in passes.known_passes() if each.name == "direct calls"])
    """
    for version, on in ((torch.__version__, torch_facts.is_tested()), ("2.14.1", True), ("2.99.0", False)):
        assert after_torch(code.format(str(version))).stdout == f"[{on}]\n", version


def _in_place(func: Any, name: str) -> Any:
    info = intern.OpInfo(func, name, intern.RECORD)
    InPlace().function(info)
    assert info.fresh
    return info.in_place


def _bits(t: Tensor) -> Tensor:
    return t.contiguous().view(torch.uint8) if t.dim() else t.reshape(1).view(torch.uint8)


@pytest.mark.parametrize("name", sorted(POINTWISE))
def test_L13_in_place_gives_the_same_bits(name: str) -> None:
    short = name.removeprefix("aten::")
    function = getattr(torch, short, None) or getattr(torch._C._nn, short)
    replacement = _in_place(function, name)
    assert replacement is not None
    tried = 0
    others = {"add": 1, "sub": 1, "mul": 1, "div": 1, "addcmul": 2, "addcdiv": 2, "lerp": 2, "pow": 1, "clamp": 2,
              "clamp_min": 1, "clamp_max": 1}.get(short, 0)  # fmt: skip
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.complex64):
        for size in ((), (5,), (37, 41), (3, 70, 1), (64, 513)):
            made = [torch.randn(size).mul(3).to(dtype) for _ in range(others + 1)]
            if made[0].numel() > 8 and dtype.is_floating_point:  # denormals, infinities, NaN with a payload
                made[0].view(-1)[:4] = torch.tensor([1e-40, float("inf"), -0.0, -float("inf")]).to(dtype)
                if dtype == torch.float32:
                    made[0].view(torch.int32).view(-1)[4:6] = torch.tensor([0x7FC12345, 0x7F812345])
            layouts = [made, [t.t() for t in made]] if len(size) == 2 else [made]
            for given in (*layouts, [made[0], *[0.7] * others], [*made[:others], 0.7][: others + 1]):
                try:
                    expected = function(*given)
                except (RuntimeError, TypeError):  # it takes none of this dtype, or no numbers
                    continue
                if (expected.dtype, expected.stride()) != (given[0].dtype, given[0].stride()):
                    continue
                copied = given[0].clone(memory_format=torch.preserve_format)
                found = replacement(copied, *given[1:])
                assert found is copied and torch.equal(_bits(found), _bits(expected)), (dtype, size)
                tried += 1
    assert tried >= 20, tried


def test_L13_python_functions_of_torch_have_their_place_too() -> None:
    silu = torch.nn.functional.silu
    replacement = _in_place(silu, "aten::silu")
    x = torch.linspace(-2, 2, 10)
    expected = silu(x)
    assert replacement(x, inplace=False) is x and torch.equal(x, expected)
    assert _in_place(torch.nn.functional.leaky_relu, "aten::leaky_relu") is None  # its arguments come otherwise
