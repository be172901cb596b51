"""Sparse tensors on the device (SPEC L3, L7, L8): they know where they are, and so does what they give."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import mindtorch
from mindtorch.engine.remote.loopback import LoopbackExecutor
from tests.executors import using

LAZY = "remote_accelerator:0"
Same = Callable[..., None]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def coo(d: str) -> Any:
    matrix = torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0], [0.0, 0.0, 4.0]])
    return matrix.to_sparse().to(d)


def csr(d: str) -> Any:
    return coo("cpu").to_sparse_csr().to(d)


def dense(d: str) -> torch.Tensor:
    return torch.arange(9.0).view(3, 3).to(d)


CALLS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "to_dense": lambda s, x: s.to_dense(),
    "matmul": lambda s, x: s @ x,
    "matmul of a vector": lambda s, x: s @ x[0],
    "matmul from the left": lambda s, x: x @ s,
    "matmul of two": lambda s, x: (s @ s).to_dense(),
    "sparse.mm": lambda s, x: torch.sparse.mm(s, x),
    "sparse.addmm": lambda s, x: torch.sparse.addmm(x, s, x),
    "add": lambda s, x: (s + s).to_dense() + x,
    "add to a dense one": lambda s, x: x + s,
    "subtract": lambda s, x: (s - s * 2).to_dense(),
    "multiply": lambda s, x: (s * 2).to_dense() * x,
    "multiply by a dense one": lambda s, x: (s * x).to_dense(),
    "divide": lambda s, x: (s / 2).to_dense(),
    "values": lambda s, x: s.values() * x[0, 1],
    "transpose": lambda s, x: s.t().to_dense(),
    "clone": lambda s, x: s.clone().to_dense(),
    "relu": lambda s, x: torch.relu(s).to_dense(),
    "sqrt": lambda s, x: s.sqrt().to_dense(),
    "mask": lambda s, x: x.sparse_mask(s).to_dense(),
    "sparsify": lambda s, x: x.to_sparse().to_dense(),
    "zeros_like": lambda s, x: torch.zeros_like(s).to_dense(),
    "to another dtype": lambda s, x: s.to(torch.float64).to_dense(),
    "to a device and dtype": lambda s, x: s.to(x.device, torch.float64).to_dense(),
    "double": lambda s, x: s.double().to_dense(),
    "sum": lambda s, x: s.sum() + x.sum(),
    "a number": lambda s, x: x * s.sum().item(),
    "in place": lambda s, x: s.clone().mul_(3).to_dense(),
    "detached": lambda s, x: s.detach().to_dense() + x,
    "copy": lambda s, x: copy.copy(s).to_dense() + x,
    "parts written": lambda s, x: (s.values().mul_(2), s.to_dense())[1],
    "parts written and let go": lambda s, x: (s.detach().values().add_(1), s @ x)[1],
    "layout": lambda s, x: s.to_sparse_csc().to_dense(),
    "stacked with dense": lambda s, x: torch.stack([s.to_dense(), x]),
}
ONLY_COO: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "deepcopy": lambda s, x: copy.deepcopy(s).to_dense() + x,
    "coalesced": lambda s, x: s.coalesce().indices() + x.long()[:2, :1],
    "_values": lambda s, x: (s._values().mul_(2), s.to_dense())[1],
    "_indices": lambda s, x: s._indices() + x.long()[:2, :1],
    "sum of rows": lambda s, x: torch.sparse.sum(s, 1).to_dense() + x[0],
    "softmax": lambda s, x: torch.sparse.softmax(s, 1).to_dense() + x,
    "select": lambda s, x: s[1].to_dense() + x[1],
    "index_select": lambda s, x: s.index_select(0, x.long()[0, :2]).to_dense(),
    "cat": lambda s, x: torch.cat([s, s]).to_dense()[:3] + x,
    "made of parts": lambda s, x: torch.sparse_coo_tensor(s._indices(), s._values() * x[0, 1], (3, 3)).to_dense(),
    "made there": lambda s, x: torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (3, 3), device=x.device) @ x,
    "new": lambda s, x: s.new(s._indices(), s._values() * 2, s.size()).to_dense() + x,
}


def of(d: str, a: Any) -> None:
    for t in a if isinstance(a, (tuple, list)) else (a,):
        assert str(t.device) == d


@pytest.mark.parametrize(("name", "make"), [*((n, coo) for n in (CALLS | ONLY_COO)), *((n, csr) for n in CALLS)])
def test_L8_what_sparse_tensors_give_is_on_the_device(
    name: str, make: Callable[[str], Any], same_as_eager: Same
) -> None:
    call = (CALLS | ONLY_COO)[name]

    def program(d: str) -> object:
        s, x = make(d), dense(d) * 1
        if make is coo and name.startswith(("values", "parts")):
            s = s.coalesce()
        try:
            out = call(s, x)
        except (RuntimeError, NotImplementedError) as error:  # not for this layout
            return type(error) is RuntimeError, str(error).split("'")[0][:30]
        of(d, out)
        return out

    same_as_eager(program)


#: s, x: on the device; p, y: the same on the CPU.
MIXED: dict[str, Callable[..., Any]] = {
    "sparse.mm": lambda s, x, p, y: torch.sparse.mm(s, y),
    "sparse.mm of the CPU's": lambda s, x, p, y: torch.sparse.mm(p, x),
    "matmul": lambda s, x, p, y: s @ y,
    "matmul of the CPU's": lambda s, x, p, y: p @ x,
    "matmul from the left": lambda s, x, p, y: y @ s,
    "add": lambda s, x, p, y: s + p,
    "add to the CPU's": lambda s, x, p, y: p + s,
    "add to a dense one": lambda s, x, p, y: y + s,
    "add to a dense one of the device": lambda s, x, p, y: x + p,
    "in place": lambda s, x, p, y: s.clone().add_(p),
    "multiply": lambda s, x, p, y: s * y,
    "addmm": lambda s, x, p, y: torch.addmm(x, p, x),
    "sparse.addmm": lambda s, x, p, y: torch.sparse.addmm(y, s, y),
    "linear": lambda s, x, p, y: nn.functional.linear(y, s),
    "cat": lambda s, x, p, y: torch.cat([s, p]),
}


@pytest.mark.parametrize("make", [coo, csr])
@pytest.mark.parametrize("name", MIXED)
def test_D4_sparse_tensors_of_the_device_do_not_mix_with_the_cpus(name: str, make: Callable[[str], Any]) -> None:
    with pytest.raises(RuntimeError, match="found at least two devices") as refused:
        MIXED[name](make(LAZY), dense(LAZY), make("cpu"), dense("cpu"))
    assert LAZY in str(refused.value) and "cpu" in str(refused.value)


def test_D4_what_may_be_on_the_cpu_beside_a_sparse_tensor(same_as_eager: Same) -> None:
    def program(d: str) -> object:
        s, number = coo(d), torch.tensor(2.0)
        return (
            (s * number).to_dense() + dense(d),
            (s / number).to_dense(),
            s.clone().copy_(coo("cpu")).to_dense(),
            s.to(coo("cpu")).to_dense(),
        )

    same_as_eager(program)


def test_L3_a_sparse_tensor_knows_its_device() -> None:
    s = coo("cpu").to("remote_accelerator:1")
    assert str(s.device) == "remote_accelerator:1" and s.get_device() == 1 and not s.is_cpu and s.is_sparse
    assert isinstance(s, torch.Tensor) and s.to(s.device) is s and s.to("remote_accelerator:1", torch.float32) is s
    for moved in (s.cpu(), s.to("cpu"), s.to(torch.device("cpu")), s.to(torch.ones(1)), s.to(device="cpu")):
        assert type(moved) is torch.Tensor and moved.device.type == "cpu"
        assert torch.equal(moved.to_dense(), coo("cpu").to_dense())
    assert str(s.to(LAZY).device) == str((s.to(LAZY) * 2).device) == LAZY
    assert repr(s).startswith("tensor(indices=") and "device='remote_accelerator:1'" in repr(s)
    file = io.BytesIO()
    torch.save({"s": s}, file)
    file.seek(0)
    assert torch.load(file)["s"].device.type == "cpu"


def test_L7_gradients_through_sparse_tensors(same_as_eager: Same) -> None:
    def program(d: str) -> object:
        values, x = torch.tensor([1.0, 2.0]).to(d).requires_grad_(), dense(d).requires_grad_()
        s = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]).to(d), values, (3, 3))
        leaf = coo(d).requires_grad_()
        ((s @ x).to_dense() if s.layout is not torch.sparse_coo else (s @ x)).square().sum().backward()
        (torch.sparse.mm(leaf, x) * x).sum().backward()
        leaf.to_dense().sum().backward()
        of(d, (leaf.grad, values.grad, x.grad))
        return values.grad, x.grad, leaf.grad.to_dense()

    same_as_eager(program)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SparseAdam(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.Adagrad(p),
    ],
    ids=["SparseAdam", "SGD", "Adagrad"],
)
def test_L7_sparse_gradients_train_an_embedding(make: Callable[..., Any], same_as_eager: Same) -> None:
    def program(d: str) -> object:
        torch.manual_seed(0)
        embedding = nn.Embedding(5, 3, sparse=True).to(d)
        optimizer = make(embedding.parameters())
        for step in range(3):
            optimizer.zero_grad()
            embedding(torch.tensor([1, 2, 2 + step % 2]).to(d)).square().sum().backward()
            assert embedding.weight.grad is not None and embedding.weight.grad.is_sparse
            of(d, embedding.weight.grad)
            optimizer.step()
        return embedding.weight, embedding.weight.grad.to_dense()  # type: ignore[union-attr]

    same_as_eager(program)


def test_L8_a_sparse_tensor_of_the_device_stays_what_it_is_in_modules() -> None:
    module = nn.Module()
    module.register_buffer("adjacency", coo("cpu"))
    module.to(LAZY)
    assert isinstance(module.adjacency @ torch.ones(3, 2, device=LAZY), mindtorch.LazyTensor)
    assert str(module.adjacency.device) == LAZY and module.state_dict()["adjacency"] is not None
    module.cpu()
    assert module.adjacency.device.type == "cpu" and type(module.adjacency) is torch.Tensor
    assert str(copy.deepcopy(module.to(LAZY)).adjacency.device) == LAZY


def test_L7_a_copy_has_its_gradient_and_attributes() -> None:
    for d in ("cpu", LAZY):
        s = coo(d).requires_grad_()
        s.grad, s.title = coo(d), ["a"]
        copied, gradient = copy.deepcopy([s, s.grad])
        assert copied.grad is gradient and gradient.device == s.device and copied.requires_grad
        assert torch.equal(gradient.to_dense().cpu(), coo("cpu").to_dense())
        assert copied.title == ["a"] and copied.title is not s.title
        with pytest.raises(RuntimeError, match="graph leaves"):
            copy.deepcopy(s * 2)


def test_L3_gradients_of_sparse_tensors_are_where_they_are() -> None:
    for d in ("cpu", LAZY):
        s = coo(d).requires_grad_()
        (gradient,) = torch.autograd.grad(s.to_dense().sum(), s)
        assert gradient.device == s.device == torch.device(d) and gradient.layout is torch.sparse_coo


def test_L7_modules_are_given_sparse_parameters() -> None:
    """By ``Module._apply``: other parameter objects, as on the CPU."""
    for d in ("cpu", LAZY):
        layer = nn.Linear(2, 2, bias=False, device=d)
        before = layer.weight
        layer.weight.grad = torch.ones(2, 2, device=d)
        layer._apply(lambda t: t.to_sparse())
        assert layer.weight is not before and isinstance(layer.weight, nn.Parameter) and layer.weight.is_sparse
        assert before.layout is torch.strided and layer.weight.device == torch.device(d)
        assert layer.weight.grad is not None and layer.weight.grad.is_sparse


def test_L7_gradients_that_are_not_recorded_come_back_to_sparse_inputs() -> None:
    """Sparse ones, and zeros that torch makes."""
    for d in ("cpu", LAZY):
        for incoming in (torch.ones(3, 3).to(d).to_sparse(), torch._efficientzerotensor((3, 3))):
            s = coo(d).requires_grad_()
            (gradient,) = torch.autograd.grad(s.to_dense(), s, incoming)
            assert gradient.device == torch.device(d)
            assert torch.equal(gradient.to_dense().cpu() != 0, (coo("cpu").to_dense() != 0) & (incoming.is_sparse))


LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]


def of_layout(layout: torch.layout, d: str, requires_grad: bool = False) -> Any:
    blocks = {"blocksize": (1, 1)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    matrix = torch.tensor([[0.0, 2.0], [1.0, 3.0]])
    return matrix.to_sparse(layout=layout, **blocks).to(d).requires_grad_(requires_grad)  # type: ignore[arg-type]


def write(part: torch.Tensor) -> None:
    with torch.no_grad():
        part[0] = 5
        part.mul_(2)


def of_two(s: Any) -> object:
    a, b = s.values(), s.values()
    b += 1
    a *= 2
    return b * 1, s.to_dense()


def read_before(s: Any) -> object:
    doubled = s.values() * 2
    s.mul_(3)
    return doubled


#: What writes to a sparse tensor by way of its parts, and is seen in it.
WRITES: dict[str, Callable[[Any], object]] = {
    "values": lambda s: write(s.values()),
    "values of the data": lambda s: write(s.data.values()),
    "values of what is detached": lambda s: write(s.detach().values()),
    "data of the values": lambda s: write(s.values().data),
    "detached values": lambda s: write(s.values().detach()),
    "in grad mode": lambda s: s.values().mul_(2),
    "a view, in grad mode": lambda s: s.values()[:1].mul_(2),
    "values of a result": lambda s: ((t := s * 2).values().mul_(2), t.to_dense()),
    "a view of those": lambda s: ((t := s * 2).values()[:1].mul_(2), t.detach().to_dense()),
    "twice": of_two,
    "a reader comes first": read_before,
}


@pytest.mark.parametrize("requires_grad", [False, True], ids=["data", "leaf"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: str(layout).removeprefix("torch.sparse_"))
@pytest.mark.parametrize("name", WRITES)
def test_L7_parts_of_a_sparse_tensor_are_its_own_memory(
    name: str, layout: torch.layout, requires_grad: bool, same_as_eager: Same
) -> None:
    def program(d: str) -> object:
        s = of_layout(layout, d, requires_grad)
        before, refused = s._version, ""
        try:
            seen = WRITES[name](s)
        except RuntimeError as error:
            seen, refused = None, str(error)
        if s.layout is torch.sparse_coo and not s.is_coalesced():
            return seen, refused, s.detach().to_dense(), s._version - before
        return seen, refused, s.detach().to_dense(), s._version - before, s.values()._is_view(), s.values()._base is s

    same_as_eager(program, False)


def saved_and_written(s: Any, x: Any) -> None:
    y = s @ x
    write(s.values())
    y.sum().backward()


def saved_and_written_unseen(s: Any, x: Any) -> None:
    y = s @ x
    s.values().data.mul_(2)
    y.sum().backward()


def values_saved(s: Any, x: Any) -> None:
    y = s.values() * x[0, 0]
    write(s.values())
    y.sum().backward()


def gradient_of_values(s: Any, x: Any) -> Any:
    (s.values() * x[0, 0]).square().sum().backward()
    return s.grad.to_dense()


def gradient_of_a_view(s: Any, x: Any) -> Any:
    (s.values()[1:] * x[0, 0]).square().sum().backward()
    return s.grad.to_dense()


@pytest.mark.parametrize("layout", LAYOUTS[:2], ids=["coo", "csr"])
@pytest.mark.parametrize(
    "call", [saved_and_written, saved_and_written_unseen, values_saved, gradient_of_values, gradient_of_a_view]
)
def test_L7_backward_sees_what_was_written_to_parts(
    call: Callable[..., Any], layout: torch.layout, same_as_eager: Same
) -> None:
    def program(d: str) -> object:
        s, x = of_layout(layout, d, True), torch.eye(2).to(d).requires_grad_()
        try:
            found = call(s, x)
        except RuntimeError:  # torch does not always find the words: it looks for strides of a compressed tensor
            return "refused"
        return found, x.grad

    same_as_eager(program)


@pytest.mark.parametrize("layout", LAYOUTS[:2], ids=["coo", "csr"])
def test_L7_a_sparse_tensor_shares_memory_with_what_it_is_made_of(layout: torch.layout, same_as_eager: Same) -> None:
    def program(d: str) -> object:
        seen = []
        for where in ({}, {"device": d}):
            values, rows, ends = torch.tensor([1.0, 2.0]).to(d), torch.tensor([0, 1]).to(d), torch.arange(3).to(d)
            if layout is torch.sparse_coo:
                made: Any = torch.sparse_coo_tensor(torch.stack([rows, rows]), values, (2, 2), **where)  # type: ignore[arg-type]
            else:
                made = torch.sparse_csr_tensor(ends, rows, values, (2, 2), **where)  # type: ignore[arg-type]
            values.mul_(2)
            seen.append(made.to_dense())
            made._values().add_(1) if layout is torch.sparse_coo else made.values().add_(1)
            seen.append(values * 1)
        return seen

    same_as_eager(program)


@pytest.mark.parametrize("layout", LAYOUTS[:2], ids=["coo", "csr"])
def test_L7_what_is_written_to_a_sparse_tensor_outlives_it(layout: torch.layout, same_as_eager: Same) -> None:
    def program(d: str) -> object:
        values, rows, ends = torch.tensor([1.0, 2.0]).to(d), torch.tensor([0, 1]).to(d), torch.arange(3).to(d)
        if layout is torch.sparse_coo:
            made: Any = torch.sparse_coo_tensor(torch.stack([rows, rows]), values, (2, 2))
        else:
            made = torch.sparse_csr_tensor(ends, rows, values, (2, 2))
        before = values + 1
        made.mul_(3)
        del made
        return before, values * 1, values.add_(1) * 1

    same_as_eager(program)


COO_FORMS: dict[str, Callable[[Any, Any, str], Any]] = {
    "with its size": lambda at, v, d: torch.sparse_coo_tensor(at, v, (3, 3)),
    "without": lambda at, v, d: torch.sparse_coo_tensor(at, v),
    "checked": lambda at, v, d: torch.sparse_coo_tensor(at, v, (3, 3), check_invariants=True),
    "by name": lambda at, v, d: torch.sparse_coo_tensor(indices=at, values=v, size=(3, 3), device=d),
    "where it is": lambda at, v, d: torch.sparse_coo_tensor(at, v, device=d),
    "of the CPU's indices": lambda at, v, d: torch.sparse_coo_tensor(at.cpu().clone(), v, (3, 3), device=d),
    "of the CPU's values": lambda at, v, d: torch.sparse_coo_tensor(at, v.cpu().clone(), (3, 3), device=d),
}


@pytest.mark.parametrize("form", COO_FORMS)
def test_L7_indices_that_are_written_later_are_those_of_the_sparse_tensor(form: str, same_as_eager: Same) -> None:
    """Each form shares what is on the device already, and copies the rest."""

    def program(d: str) -> object:
        at, values = torch.tensor([[0, 1], [1, 0]]).to(d), torch.tensor([1.0, 2.0]).to(d)
        made, seen = COO_FORMS[form](at, values, d), []
        for write in (lambda: at[0].copy_(at[0].flip(0)), lambda: values.mul_(2), lambda: at[0, 0].fill_(0)):
            write()
            seen += [made.to_dense(), made._indices() * 1, made._values() * 1]
        return (seen, made.shape)

    same_as_eager(program)


def test_L7_zeros_are_written_into_a_sparse_tensor(same_as_eager: Same) -> None:
    def program(d: str) -> object:
        out = coo(d)
        found = torch.zeros(3, 3, out=out, device=d)
        return (found is out, out._nnz(), found.to_dense())

    same_as_eager(program, lazily=False)


def test_L7_what_checks_a_sparse_tensors_parts_reads_them(same_as_eager: Same) -> None:
    def program(d: str) -> object:
        s = coo(d)
        try:
            torch._validate_sparse_coo_tensor_args(s._indices(), s._values(), (2, 2))
        except RuntimeError as error:
            refused = str(error)
        return (torch._validate_sparse_coo_tensor_args(s._indices(), s._values(), s.shape), refused)

    same_as_eager(program, lazily=False)


@pytest.mark.parametrize("check", [False, True], ids=["", "checked"])
def test_L7_a_sparse_tensor_is_made_of_indices_on_the_device(check: bool, same_as_eager: Same) -> None:
    """Which torch reads for the size, and where it checks them."""

    def program(d: str) -> object:
        at, values, seen = torch.tensor([[0, 1], [1, 0]]).to(d), torch.tensor([1.0, 2.0]).to(d), []
        for where in ({}, {"device": d}):
            for size in ((), ((2, 2),)):
                made: Any = torch.sparse_coo_tensor(at * 1, values * 1, *size, check_invariants=check, **where)  # type: ignore[call-overload]
                seen.append((made.shape == (2, 2), made.to_dense()))
        return seen

    same_as_eager(program)


def test_L8_results_of_sparse_tensors_do_not_keep_each_others_memory() -> None:
    s = of_layout(torch.sparse_csr, LAZY)
    first = s._lent
    for _ in range(5):
        s = s * 2
        s.values().mul_(1)
        s.detach().values()
    assert len(s._lent) == 1 and s._lent is not first and not first
    assert s.detach()._lent is s._lent


def test_L7_undefined_gradients_stay_undefined_across_devices() -> None:
    for d in ("cpu", LAZY):
        s, x = of_layout(torch.sparse_coo, d, True), torch.ones(2, requires_grad=True)
        for leaf, result in (
            (s, s.to_dense() * 2),
            (x, x.to(d) * 2),
            (y := x.detach().to(d).requires_grad_(), y.cpu()),
        ):
            undefined = torch._C._functions.UndefinedGrad()(result)  # type: ignore[attr-defined]
            assert torch.autograd.grad(undefined, leaf, torch.zeros_like(undefined), allow_unused=True) == (None,)


def test_L7_a_sparse_tensor_of_another_executor_is_in_no_backward_passes_way() -> None:
    """Each backward pass, on the CPU too, wanted the memory of all sparse tensors from the executor in use."""
    with using(LoopbackExecutor()):
        earlier = torch.sparse_coo_tensor([[0, 1]], torch.ones(2), (3,)).to(LAZY)
        earlier._values().mul_(2)  # recorded
        with using(LoopbackExecutor()):
            for device in ("cpu", LAZY):
                weight = torch.ones(2, device=device, requires_grad=True)
                (weight * 3).sum().backward()
                assert weight.grad is not None and weight.grad.tolist() == [3, 3]
        assert earlier.to_dense().tolist() == [2, 2, 0]
