"""SPEC L7: what the comparison with torch's operator database found, as small programs."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy
import pytest
import torch

import mindtorch
from mindtorch.base import torch_facts

Same = Callable[..., None]


def test_L7_results_have_torchs_named_types(same_as_eager: Same) -> None:
    def program(device: str) -> object:
        x = torch.arange(12.0).reshape(3, 4).to(device)
        found = x.max(1), torch.topk(x, 2), torch.linalg.eigh(x @ x.T), x.sort()
        assert [type(f) for f in found] == [
            torch.return_types.max,
            torch.return_types.topk,
            torch.return_types.linalg_eigh,
            torch.return_types.sort,
        ]
        return found[0].values, found[1].indices, found[2].eigenvalues, found[3].values

    same_as_eager(program)


def test_L7_large_results_have_torchs_named_types_too() -> None:
    x = torch.zeros(300, 300, device="remote_accelerator")  # too large to be tried on the kernel
    assert type(x.max(1)) is torch.return_types.max
    assert type(torch.linalg.slogdet(x)) is torch.return_types.linalg_slogdet


def test_L7_conjugated_and_negated_views(same_as_eager: Same) -> None:
    def program(device: str) -> object:
        x = torch.randn(4, 4, dtype=torch.complex64).to(device)
        y = x.conj()
        flags = [t.is_conj() for t in (x, y, y[1:], y.t(), y.clone(), y.conj())] + [y.imag.is_neg(), y.real.is_neg()]
        y[0] = 2j  # through the view
        return flags, y.imag, torch.view_as_real(y.resolve_conj()), y @ x, y.mul_(3j), x

    same_as_eager(program)


def test_L7_a_conjugated_view_is_not_handed_to_numpy() -> None:
    x = torch.randn(3, dtype=torch.complex64, device="remote_accelerator")
    with pytest.raises(RuntimeError, match="conjugate bit"):
        x.conj().numpy()
    assert (x.conj().numpy(force=True) == x.numpy().conj()).all()


def test_L7_conjugated_views_in_a_segment_that_an_eager_op_runs(same_as_eager: Same) -> None:
    def program(device: str) -> object:
        x = torch.randn(4, dtype=torch.complex64).to(device)
        y = x.conj() * 2
        picked = y.real[y.imag > 0]  # the mask is read inside torch's dispatcher, where conjugation is off
        a = torch.randn(5, 3, dtype=torch.complex64).to(device)
        return picked, torch.linalg.lstsq(a.conj(), a[:, :2].conj(), driver="gels").residuals

    same_as_eager(program)


def test_L7_gradients_that_torch_makes_of_nothing_are_lazy(same_as_eager: Same) -> None:
    def program(device: str) -> object:
        a = torch.randn(3).to(device).requires_grad_()
        b = torch.randn(3).to(device).requires_grad_()
        torch.copysign(a, b).sum().backward()
        first, b.grad = b.grad, None
        (second,) = torch.autograd.grad(torch.copysign(a, b).sum(), b)
        assert str(first.device) == str(second.device) == str(b.device)
        return first, second, a.grad

    same_as_eager(program)


def test_L7_grad_can_be_set_and_deleted() -> None:
    x = torch.ones(3, device="remote_accelerator", requires_grad=True)
    x.grad = torch.full((3,), 2.0, device="remote_accelerator")
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
    del x.grad
    assert x.grad is None
    with pytest.raises(RuntimeError):
        x.grad = torch.ones(4, device="remote_accelerator")


@pytest.mark.parametrize("call", [
    lambda x: torch.linalg.cond(x), lambda x: torch.linalg.svdvals(x), lambda x: torch.linalg.eigvalsh(x @ x.T),
    lambda x: torch.linalg.eigvals(x), lambda x: torch.norm(x, p="nuc"), lambda x: x.norm(p="nuc"),
    lambda x: torch.linalg.norm(x, ord="nuc"), lambda x: torch.linalg.matrix_norm(x, ord=2),
    lambda x: torch.linalg.matrix_rank(x), lambda x: torch.linalg.pinv(x),
    lambda x: torch.linalg.svdvals(x, out=torch.empty(0, device=x.device)),
    lambda x: torch.linalg.cond(x, out=torch.empty((), device=x.device)),
])  # fmt: skip
@pytest.mark.parametrize("grad", [False, True])
def test_L7_decompositions_are_those_of_eager(call: Callable, grad: bool, same_as_eager: Same) -> None:
    def program(device: str) -> object:
        x = torch.randn(7, 7).to(device)
        with torch.set_grad_enabled(grad):
            return call(x)

    same_as_eager(program, lazily=False)  # what may be refused for its values runs at the call


@pytest.mark.parametrize("call", [
    lambda x, w: x.cumprod(0), lambda x, w: x.prod(), lambda x, w: torch.prod(x, 1), lambda x, w: x.clone().cumprod_(1),
    lambda x, w: x.masked_fill(x > 0, w), lambda x, w: x.clone().masked_fill_(x > 0, w),
    lambda x, w: torch.ormqr(x, x[0], x),
])  # fmt: skip
def test_L7_gradient_formulas_are_those_of_eager(call: Callable, same_as_eager: Same) -> None:
    def program(device: str) -> object:
        x = torch.randn(8, 8).to(device).requires_grad_()
        w = torch.randn(()).to(device).requires_grad_()
        out = call(x, w)
        return torch.autograd.grad(out, (x, w), torch.randn(out.shape).to(device), allow_unused=True)[0]

    same_as_eager(program)


def test_L7_gradients_of_values_notice_writes_and_can_be_differentiated() -> None:
    x = torch.tensor([2.0, 3.0], device="remote_accelerator", requires_grad=True)
    y = x * 1
    out = y.prod()
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()
    (g,) = torch.autograd.grad(x.prod(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    assert (g.tolist(), h.tolist()) == ([3.0, 2.0], [1.0, 1.0])


def test_L7_reflected_operators_keep_their_order(same_as_eager: Same) -> None:
    def program(device: str) -> object:
        x, y = torch.randn(200, 150).to(device), torch.randn(150, 200).to(device)  # too large to be tried on the kernel
        a, b = torch.randn(5, 5, 5, dtype=torch.complex64).to(device), torch.randn(1, 5, 5, dtype=torch.complex64)
        return x.__rmatmul__(y), x.__rsub__(y.t()), x.__rpow__(2.0), x.__rtruediv__(3.0), b.to(device).__rmatmul__(a)

    same_as_eager(program)


def test_L6_indexing_with_integers_is_recorded(same_as_eager: Same) -> None:
    def program(device: str) -> object:
        x = torch.randn(60, 70, 80).to(device)
        rows, columns = torch.tensor([3, 1, 3]).to(device), torch.tensor([[0], [2]])
        return x[rows], x[:, rows, columns], x[rows, 2:5], x[:, None, rows], x.transpose(0, 1)[:, rows], x[..., rows]

    mindtorch.reset_stats()
    same_as_eager(program)
    # The permuted one is too large to be tried on the kernel, whose strides torch cannot predict then.
    assert mindtorch.stats()["fallbacks"] == {"aten::index": 1}


def test_L6_indexing_with_a_mask_runs(same_as_eager: Same) -> None:
    def program(device: str) -> object:
        x = torch.arange(6.0).to(device)
        return x[x > 2], x.reshape(2, 3)[torch.tensor([True, False])]

    mindtorch.reset_stats()
    same_as_eager(program)
    assert mindtorch.stats()["fallbacks"]["aten::index"] == 2


def test_L7_values_that_linear_algebra_refuses_are_refused_at_the_call(same_as_eager: Same) -> None:
    def program(device: str) -> object:
        a = torch.ones(3, 3).to(device)
        a[0, 0] = 0.5
        jitter, tries = 1e-6, 0
        while True:  # as Gaussian processes do
            try:
                return torch.linalg.cholesky(a + jitter * torch.eye(3).to(device)), tries
            except torch.linalg.LinAlgError:
                jitter, tries = jitter * 10, tries + 1

    same_as_eager(program)
    for call in (torch.linalg.inv, torch.linalg.solve, torch.inverse, torch.linalg.cholesky, torch.linalg.lu_factor):
        singular = torch.zeros(2, 2, device="remote_accelerator")
        with pytest.raises(RuntimeError, match=r"zero|singular|positive-definite"):
            call(*(singular,) * (2 if call is torch.linalg.solve else 1))


def test_L9_an_index_out_of_range_is_told_where_it_was_recorded() -> None:
    x = torch.zeros(5, device="remote_accelerator")
    y = x[torch.tensor([7])]
    with pytest.raises(mindtorch.MaterializationError, match=r"aten::index.*test_lazy_operators\.py") as caught:
        y.cpu()
    assert isinstance(caught.value.__cause__, IndexError)


def test_L7_tensor_split_reads_where_to_split(same_as_eager: Same) -> None:
    def program(device: str) -> object:
        x = torch.arange(10.0).to(device)
        at = torch.tensor([2, 5]).to(device)
        count = torch.tensor(3).to(device)
        return [*torch.tensor_split(x, at), *x.tensor_split(indices=(2, 5)), *x.tensor_split(count)]

    same_as_eager(program)


def test_L8_strides_that_depend_on_the_kernel_are_recorded(same_as_eager: Same) -> None:
    def program(device: str) -> object:
        x = torch.randn(2, 150, 130).to(device)  # too large to be tried on the kernel, but for these it is asked
        return torch.linalg.svd(x), torch.fft.rfftn(x), torch.fft.irfft(x + 0j, dim=1)

    mindtorch.reset_stats()
    same_as_eager(program)
    assert mindtorch.stats()["fallbacks"] == {"aten::_linalg_svd": 1}, "which may be refused for its values"


@pytest.mark.skipif(
    torch_facts.cross_entropy_options() is None, reason="torch 2.12 has no linear_cross_entropy to choose it for"
)
def test_L7_precision_chosen_by_device_name_is_that_of_the_executor(same_as_eager: Same) -> None:
    def program(device: str) -> object:
        x, w = torch.randn(16, 8).bfloat16().to(device), torch.randn(4, 8).bfloat16().to(device)
        options = torch.nn.modules.linear_cross_entropy_options.LinearCrossEntropyOptions(batch_chunk_size=4)
        target = torch.arange(16).remainder(4).to(device)
        return torch.nn.functional.linear_cross_entropy(x, w, target, options=options)

    same_as_eager(program)


def _torchscripts_own() -> list[tuple[str, tuple]]:
    """Operators that have no kernel, only C++ code of TorchScript's, with arguments after the tensor."""
    names = [
        "aten::sym_size",
        "aten::sym_stride",
        "aten::len.Tensor",
        "aten::is_non_overlapping_and_dense",
        "prim::dtype",
        "prim::layout",
        "prim::itemsize",
        "prim::nbytes",
        "prim::requires_grad",
        "prim::is_sparse",
        "prim::abs",
        "prim::data",
        "aten::cpu",
        "aten::_no_grad_fill_",
    ]
    assert not any(torch._C._dispatch_has_kernel(name) for name in names)
    return [(name, (2.0,) if name.endswith("fill_") else ()) for name in names]


@pytest.mark.parametrize(("name", "more"), _torchscripts_own())
def test_L7_torchscripts_own_operators(name: str, more: tuple, same_as_eager: Same) -> None:
    def program(device: str) -> object:
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        operator = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
        return operator(torch.randn(3, 4).to(device).t(), *more)

    same_as_eager(program)
    assert torch.ops.prim.device.default(torch.zeros(2, device="remote_accelerator:1")).index == 1


def test_L3_a_class_whose_sizes_are_asked_of_python_holds_a_lazy_tensor(after_a_step: Callable) -> None:
    """C++ asks for them where an error of Python's ends the process."""
    after_a_step("""
        import torch, mindtorch

        class Sized(torch.Tensor):
            @staticmethod
            def __new__(cls, inner):
                return torch.Tensor._make_wrapper_subclass(
                    cls, inner.size(), inner.stride(), None, None, inner.dtype, inner.layout, torch.device("cpu"),
                    False, inner.requires_grad, "sizes")

            def __init__(self, inner):
                self.inner = inner

            @classmethod
            def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
                out = func(*[a.inner if isinstance(a, cls) else a for a in args], **(kwargs or {}))
                return cls(out) if isinstance(out, torch.Tensor) else out

        x = Sized(torch.randn(6, 2, device="remote_accelerator", requires_grad=True))
        assert (x * x.sum()).view(-1).view(4, 3).shape == (4, 3)
    """)


def test_L6_updating_a_part_in_place_is_recorded(same_as_eager: Same) -> None:
    def program(device: str) -> object:
        x, y = torch.randn(5, 4).to(device), torch.randn(4).to(device)
        x[0] += 1  # a write to the part, and then a copy of the part to itself
        x[:, 1:3] *= y[:2]
        x[3, 1] -= y[0]
        return x

    mindtorch.reset_stats()
    same_as_eager(program)
    assert mindtorch.stats()["fallbacks"] == {}


def test_L7_a_long_tensor_can_be_taken_apart() -> None:
    """More results than a record has room for: it runs at once, and they are views as ever."""
    x = torch.zeros(70_000, device="remote_accelerator")
    elements = list(x)
    elements[-1].fill_(3)
    assert len(elements) == 70_000 and type(elements[0]) is type(x) and x[-1].item() == 3
    small = torch.zeros(1, 70_000, device="meta:0")
    assert len(small.unbind(1)) == 70_000


def test_L6_values_of_tensors_that_require_grad_are_read_as_torch_reads_them() -> None:
    def program(device: str) -> list[object]:
        x = torch.tensor(2.5, device=device, requires_grad=True)
        with torch.no_grad():
            read: list[object] = [x.numpy().tolist(), numpy.asarray(x).tolist()]
        with pytest.raises(RuntimeError, match=r"Use tensor.detach\(\).numpy\(\)"):
            x.numpy()
        torch._C._set_warnAlways(True)
        try:
            for convert in (float, int, torch.Tensor.item):
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    read += [convert(x), [str(w.message).splitlines()[0] for w in caught]]
        finally:
            torch._C._set_warnAlways(False)
        return read

    assert program("remote_accelerator") == program("cpu")


@pytest.mark.parametrize("data", [None, 3, [1.0]])
def test_L9_data_wants_a_tensor(data: object) -> None:
    x = torch.ones(2, device="remote_accelerator")
    with pytest.raises(TypeError, match="data has to be a tensor"):
        x.data = data  # type: ignore[assignment]
