"""N5: what steps in bfloat16, float16 and autocast call runs natively, with torch's results."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from staged_share import count

import mindtorch

_FLOATS = [torch.float32, torch.float16, torch.bfloat16]
SHAPES = [((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 4), ()), ((), (3, 4)), ((), ()), ((3, 1), (1, 4))]
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: torch.add(x, y, alpha=2), "sub": torch.sub, "mul": torch.mul, "div": torch.div,
}  # fmt: skip


def _native(run: Callable[[], Any]) -> Any:
    """What ``run()`` gives, where none of its calls was staged."""
    found: list[Any] = []
    native, staged = count(lambda: found.append(run()))
    assert native and not staged, dict(staged)
    return found[0]


@pytest.mark.parametrize("dtypes", list(itertools.permutations(_FLOATS, 2)))
@pytest.mark.parametrize("name", list(OPERATIONS))
def test_N5_floats_of_two_dtypes_are_promoted_as_torch_does(name: str, dtypes: Any, library: Any) -> None:
    torch.manual_seed(0)
    for sizes in SHAPES:
        x, y = (torch.randn(size).to(dtype) for size, dtype in zip(sizes, dtypes))
        expected = OPERATIONS[name](x, y)
        found = _native(lambda x=x, y=y: OPERATIONS[name](x.npu(), y.npu()).cpu())
        assert found.dtype is expected.dtype, sizes
        torch.testing.assert_close(found, expected, rtol=2e-7 if found.dtype is torch.float32 else 0.008, atol=0)


@pytest.mark.parametrize("dtypes", list(itertools.permutations(_FLOATS, 2)))
@pytest.mark.parametrize("name", ["add_", "sub_", "mul_", "div_"])
def test_N5_in_place_the_first_operands_dtype_stays(name: str, dtypes: Any, library: Any) -> None:
    torch.manual_seed(0)
    for one, other in [((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 4), ()), ((), ())]:
        x, y = torch.randn(one).to(dtypes[0]), torch.randn(other).to(dtypes[1])
        there = x.npu()
        found = _native(lambda there=there, y=y: getattr(there, name)(y.npu()))
        assert found is there and there.dtype is dtypes[0]
        expected = getattr(x, name)(y)
        torch.testing.assert_close(there.cpu(), expected, rtol=2e-7 if x.dtype is torch.float32 else 0.008, atol=0)


def test_N5_gradients_of_casts_are_cast_there(library: Any) -> None:
    def run(where: str) -> Any:
        x = torch.arange(6.0).reshape(2, 3).to(where).requires_grad_()
        (x.half().double().bfloat16() * x.float()).half().sum().backward()
        return x.grad

    torch.testing.assert_close(_native(lambda: run("npu").cpu()), run("cpu"))


def test_N5_float64_is_converted_and_inverted(library: Any) -> None:
    x = torch.tensor([3.0, 7.0, 0.1, float("inf"), 65536.0], dtype=torch.float64)
    for dtype in (*_FLOATS, torch.float64):
        found = _native(lambda dtype=dtype: x.npu().to(dtype).double().reciprocal().float().cpu())
        assert torch.equal(found, x.to(dtype).double().reciprocal().float())


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("params", ["own", "float32"])
def test_N5_batch_norm_with_parameters_of_float32(params: str, dtype: Any, affine: bool, library: Any) -> None:
    found = []
    for where in ("cpu", "npu"):
        torch.manual_seed(0)
        norm = torch.nn.BatchNorm2d(3, affine=affine).to(where, torch.float32 if params == "float32" else dtype)
        x = torch.randn(4, 3, 5, 5).to(dtype)

        def run(norm: Any = norm, x: Any = x, where: str = where) -> list[torch.Tensor]:
            there = x.to(where).requires_grad_()
            y = norm(there)
            (y * torch.arange(5.0).to(where, dtype)).sum().backward()
            quiet = norm.eval()(there)
            results = [y, quiet, there.grad, *(p.grad for p in norm.parameters()), *norm.buffers()]
            return [each.detach().cpu() for each in results]

        found.append(_native(run) if where == "npu" else run())
    assert [each.dtype for each in found[0]] == [each.dtype for each in found[1]]
    for got, wanted in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got.float(), wanted.float(), rtol=0.03, atol=0.03 * wanted.abs().max().item())


@pytest.mark.parametrize("dtype", _FLOATS)
def test_N5_max_pool_in_every_float(dtype: torch.dtype, library: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 7, 7).to(dtype)
    expected, found = [], []
    for where, results in (("cpu", expected), ("npu", found)):

        def run(where: str = where) -> list[torch.Tensor]:
            there = x.detach().to(where).requires_grad_()
            out, places = torch.nn.functional.max_pool2d(there, 2, return_indices=True)
            out.backward(torch.arange(out.numel(), dtype=dtype).reshape(out.shape).to(where))
            return [out.detach().cpu(), places.cpu(), there.grad.cpu()]

        results.extend(_native(run) if where == "npu" else run())
    for got, wanted in zip(found, expected, strict=True):
        assert got.dtype is wanted.dtype and torch.equal(got, wanted)


@pytest.mark.parametrize("bad", [None, float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("dtype", _FLOATS)
def test_N5_gradients_are_unscaled_and_checked_there(dtype: torch.dtype, bad: Any, library: Any) -> None:
    torch.manual_seed(0)
    grads = [torch.randn(3).to(dtype), torch.randn(2, 2).to(dtype), torch.empty(0).to(dtype)]
    if bad is not None:
        grads[1][0, 1] = bad
    expected, flag = [each.clone() for each in grads], torch.zeros(1)
    torch._amp_foreach_non_finite_check_and_unscale_(expected, flag, torch.tensor(0.125))
    there, told = [each.npu() for each in grads], torch.zeros(1).npu()
    versions = [each._version for each in there]
    scale = torch.tensor(0.125).npu()
    _native(lambda: torch._amp_foreach_non_finite_check_and_unscale_(there, told, scale))
    assert told.item() == flag.item() == float(bad is not None)
    assert all(each._version > before for each, before in zip(there, versions))
    for got, wanted in zip(there, expected, strict=True):
        torch.testing.assert_close(got.cpu(), wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("factors", [(2.0, 0.5), (1.5, 0.75)])
def test_N5_a_scale_is_updated_there_as_on_the_cpu(factors: tuple[float, float], library: Any) -> None:
    scales = [torch.full((1,), 3e37), torch.full((1,), 3e37).npu()]
    counts = [torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32).npu()]
    for found in (0, 0, 0, 1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0):
        flag = torch.tensor([float(found)])
        torch._amp_update_scale_(scales[0], counts[0], flag, *factors, 2)
        there = flag.npu()
        _native(lambda there=there: torch._amp_update_scale_(scales[1], counts[1], there, *factors, 2))
        assert (scales[0].item(), counts[0].item()) == (scales[1].item(), counts[1].item())


def test_N5_a_factor_that_float32_has_not_is_the_cpus(library: Any) -> None:
    scales = [torch.full((1,), 0.1), torch.full((1,), 0.1).npu()]
    for scale in scales:
        where = scale.device.type
        count_of = torch.zeros(1, dtype=torch.int32, device=where)
        torch._amp_update_scale_(scale, count_of, torch.zeros(1, device=where), 1.1, 0.9, 1)
    assert scales[0].item() == scales[1].item()


DRAWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "bernoulli_": lambda t: t.bernoulli_(0.3), "uniform_": lambda t: t.uniform_(-1, 2),
    "normal_": lambda t: t.normal_(1, 2), "random_": lambda t: t.random_(), "random_to": lambda t: t.random_(7),
    "random_from": lambda t: t.random_(2, 9), "exponential_": lambda t: t.exponential_(2.0),
    "geometric_": lambda t: t.geometric_(0.2), "cauchy_": lambda t: t.cauchy_(),
    "log_normal_": lambda t: t.log_normal_(),
}  # fmt: skip


@pytest.mark.parametrize("name", list(DRAWS))
def test_N5_draws_are_the_cpus_and_read_nothing(name: str, library: Any) -> None:
    """Also of turned tensors, and of some with gaps, which keep what lies between their elements."""
    for view in (lambda t: t, lambda t: t.t(), lambda t: t[:, ::2], lambda t: t[1:]):
        base = torch.arange(24.0).reshape(4, 6)
        there = base.npu()
        seen = view(there)
        torch.manual_seed(3)
        DRAWS[name](view(base))
        follows = torch.rand(())
        torch.manual_seed(3)
        _, staged = count(lambda seen=seen: DRAWS[name](seen))
        assert not staged or not seen.is_contiguous() or seen.shape[0] == 3, dict(staged)
        assert torch.equal(there.cpu(), base)
        assert torch.rand((), device="npu").item() == follows.item()  # the device's generator is as far
    chosen = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    if name == "bernoulli_":
        own = torch.empty(5).npu().bernoulli_(0.5, generator=chosen[0]).cpu()
        assert torch.equal(own, torch.empty(5).bernoulli_(0.5, generator=chosen[1]))


def test_N5_a_number_that_is_read_is_a_copy(library: Any) -> None:
    for value in (torch.tensor(2.5), torch.tensor([[7]]), torch.tensor(True), torch.tensor(0.1).half()):
        there = value.npu()
        assert _native(lambda there=there: there.item()) == value.item()
    turned = torch.tensor(1 + 2j).npu().conj()
    assert turned.item() == 1 - 2j and mindtorch.stats()["npu_native"]
    with pytest.raises(RuntimeError, match="converted to Scalar"):
        torch.ones(2).npu().item()
