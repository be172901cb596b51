"""What a lazy tensor knows (SPEC L4, L5), what computes it (L6), and what is written to files (L7)."""

from __future__ import annotations

import copy
import io
import logging
import pickle
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import mindtorch

LAZY = "remote_accelerator:0"


def lazy(*values: float) -> torch.Tensor:
    """A pending lazy tensor with these values."""
    out = torch.zeros(len(values), device=LAZY)
    for i, v in enumerate(values):
        out = out + torch.nn.functional.one_hot(torch.tensor(i), len(values)).to(torch.float32).to(LAZY) * v
    return out


def triggered(reason: str, action: Callable[[], Any]) -> Any:
    """Runs ``action``; it must run one segment, and for this reason."""
    mindtorch.flush("before")  # elsewhere, what other tests have left would run after the read
    mindtorch.reset_stats()
    result = action()
    assert mindtorch.stats()["triggers"] == {reason: 1}
    assert mindtorch.stats()["segments"] == 1
    return result


# ---- L4, L5 ----------------------------------------------------------------------------------------------------------
NAMES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "add": (lambda x: x + x, "aten::add"),
    "add_scalar": (lambda x: x + 1, "aten::add"),
    "radd": (lambda x: 1 + x, "aten::add"),
    "torch_add": (lambda x: torch.add(x, x, alpha=2), "aten::add"),
    "method_add": (lambda x: x.add(1), "aten::add"),
    "sub": (lambda x: x - 1, "aten::sub"),
    "rsub": (lambda x: 1 - x, "aten::rsub"),
    "mul": (lambda x: x * x, "aten::mul"),
    "div": (lambda x: x / 2, "aten::div"),
    "matmul": (lambda x: x @ x, "aten::matmul"),
    "torch_matmul": (lambda x: torch.matmul(x, x), "aten::matmul"),
    "mm": (lambda x: torch.mm(x, x), "aten::mm"),
    "relu": (torch.relu, "aten::relu"),
    "f_relu": (torch.nn.functional.relu, "aten::relu"),
    "softmax": (lambda x: torch.softmax(x, -1), "aten::softmax"),
    "f_softmax": (lambda x: torch.nn.functional.softmax(x, dim=-1), "aten::softmax"),
    "linear": (lambda x: torch.nn.functional.linear(x, x), "aten::linear"),
    "layer_norm": (lambda x: torch.nn.functional.layer_norm(x, (4,)), "aten::layer_norm"),
    "sum": (lambda x: x.sum(), "aten::sum"),
    "sum_dim": (lambda x: x.sum(1), "aten::sum"),
    "neg": (lambda x: -x, "aten::neg"),
    "eq": (lambda x: x == x, "aten::eq"),
    "cat": (lambda x: torch.cat([x, x]), "aten::cat"),
    "clone": (torch.clone, "aten::clone"),
    "randn": (lambda x: torch.randn(2, device=LAZY), "aten::randn"),
    "zeros_like": (torch.zeros_like, "aten::zeros_like"),
}


@pytest.mark.parametrize("name", NAMES)
def test_L4_operation_names_are_normalized(name: str) -> None:
    call, expected = NAMES[name]
    with torch.no_grad():
        assert call(torch.randn(4, 4, device=LAZY)).operation == expected


def test_L4_attributes_of_a_pending_tensor() -> None:
    a, b = torch.randn(3, 2, device=LAZY), torch.ones(3, 2, device=LAZY)
    c = torch.add(a, b, alpha=2)
    assert c.operation == "aten::add" and c.kwargs == {"alpha": 2}
    assert [t.id for t in c.inputs] != [] and all(isinstance(t, mindtorch.LazyTensor) for t in c.inputs)
    assert [t.operation for t in c.inputs] == ["aten::randn", "aten::ones"]
    assert len({a.id, b.id, c.id}) == 3 and isinstance(c.id, int)
    assert not c.materialized and c.concrete_value is None
    value = c.materialize()
    assert type(value) is torch.Tensor and value.device.type == "cpu"
    assert c.materialized and torch.equal(c.concrete_value, value) and a.materialized
    assert c.operation == "aten::add"
    assert torch.equal(value, a.cpu() + 2 * b.cpu())


def test_L4_inputs_are_the_values_the_op_reads() -> None:
    a = torch.arange(3.0, device=LAZY)
    b = a * 2
    again = b.inputs[0]
    assert again.shape == (3,) and again.tolist() == [0.0, 1.0, 2.0]


def test_L4_values_from_outside_say_so() -> None:
    x = torch.ones(2).to(LAZY)
    assert x.operation == "genie::data" and x.inputs == [] and x.kwargs == {} and x.materialized


def test_L5_metadata_is_a_view() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(2, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x)

    model = Net().to("remote_accelerator:1")
    with torch.no_grad():
        y = model(torch.ones(4, 2, device="remote_accelerator:1"))
    m = y.metadata
    assert m.operation_type == "aten::linear" and m.tensor_shape == (4, 3) and type(m.tensor_shape) is tuple
    assert m.dtype is torch.float32 and m.device_hint == "remote_accelerator:1"
    assert m.module_path == "Net.fc" and m.execution_phase == "forward"
    assert isinstance(m.workload_hints, dict) and m.workload_hints["bytes"] == 48
    assert not y.materialized, "reading metadata ran something"
    assert torch.ones(2, device=LAZY).metadata.module_path == ""


# ---- L6 --------------------------------------------------------------------------------------------------------------
def one() -> torch.Tensor:
    return torch.ones((), device=LAZY) * 3


READS: dict[str, tuple[Callable[[], object], object]] = {
    "item": (lambda: one().item(), 3.0),
    "tolist": (lambda: (torch.ones(2, device=LAZY) + 1).tolist(), [2.0, 2.0]),
    "cpu": (lambda: one().cpu(), torch.tensor(3.0)),
    "to": (lambda: one().to("cpu"), torch.tensor(3.0)),
    "numpy": (lambda: one().numpy(), numpy.float32(3)),
    "materialize": (lambda: one().materialize(), torch.tensor(3.0)),
    "print": (lambda: repr(one()), "tensor(3., device='remote_accelerator:0')"),
    "bool": (lambda: bool(one() > 2), True),
    "int": (lambda: int(one()), 3),
    "float": (lambda: float(one()), 3.0),
    "complex": (lambda: complex(one()), 3 + 0j),
    "index": (lambda: [0, 1, 2, 3][one().to(torch.int64)], 3),
    "pickle": (lambda: pickle.loads(pickle.dumps(one())), torch.tensor(3.0)),
    "dlpack": (lambda: torch.from_dlpack(one()), torch.tensor(3.0)),
}


@pytest.mark.parametrize("reason", READS)
def test_L6_each_read_is_a_trigger(reason: str) -> None:
    action, expected = READS[reason]
    got = triggered(reason, action)
    if isinstance(expected, torch.Tensor):
        assert type(got) is torch.Tensor and torch.equal(got, expected)
    else:
        assert got == expected


def test_L6_printing_in_all_its_forms() -> None:
    x = torch.ones(2, device=LAZY) + 1
    assert repr(x) == "tensor([2., 2.], device='remote_accelerator:0')" == str(x) == f"{x}"
    assert f"{x.sum():.2f}" == "4.00" and format(x.sum()) == "4.0"
    p = torch.nn.Parameter(torch.zeros(1, device=LAZY))
    assert repr(p) == "Parameter containing:\ntensor([0.], device='remote_accelerator:0', requires_grad=True)"
    assert repr(p * 2) == "tensor([0.], device='remote_accelerator:0', grad_fn=<MulBackward0>)"
    assert repr(torch.zeros(1, dtype=torch.int64, device=LAZY)) == "tensor([0], device='remote_accelerator:0')"
    assert "dtype=torch.float64" in repr(torch.zeros(1, dtype=torch.float64, device=LAZY))
    assert repr(torch.zeros(0, 2, device=LAZY)) == "tensor([], device='remote_accelerator:0', size=(0, 2))"


DATA_DEPENDENT: dict[str, Callable[[torch.Tensor], object]] = {
    "nonzero": lambda x: torch.nonzero(x > 1),
    "where_one_argument": lambda x: torch.where(x > 1),
    "masked_index": lambda x: x[x > 1],
    "masked_select": lambda x: torch.masked_select(x, x > 1),
    "unique": lambda x: torch.unique(x),
    "unique_all": lambda x: torch.unique(x, return_inverse=True, return_counts=True),
    "unique_consecutive": lambda x: torch.unique_consecutive(x),
    "repeat_interleave": lambda x: torch.repeat_interleave(x, x.to(torch.int64)),
    "bincount": lambda x: torch.bincount(x.to(torch.int64)),
    "histc": lambda x: torch.histc(x, 4),
    "equal": lambda x: torch.equal(x, x.clone()),
    "allclose": lambda x: torch.allclose(x, x + 0.0),
    "is_nonzero": lambda x: torch.is_nonzero(x[1]),
    "split_by_tensor": lambda x: torch.tensor_split(x, torch.tensor([1, 3])),
    "masked_assign": lambda x: (x.__setitem__(x > 1, 0), x)[1],
    "combinations": lambda x: torch.combinations(x),
    "boolean_mask_rows": lambda x: x.reshape(3, 2)[torch.tensor([True, False, True]).to(x.device)],
    "argwhere": lambda x: torch.argwhere(x),
    "if": lambda x: 1 if x.sum() > 0 else 0,
    "while": lambda x: (x.sum() > 100).item(),
    "max_python": lambda x: max(x).item(),
    "sorted": lambda x: [float(v) for v in sorted(x)],
    "in": lambda x: 2 in x,
    "not_in": lambda x: 77 in x,
    "iterate": lambda x: [v * 2 for v in x],
    "unpack": lambda x: tuple(x[:2]),
    "enumerate_rows": lambda x: [r.sum() for r in x.reshape(3, 2)],
    "len": lambda x: len(x),
    "range": lambda x: list(range(x[2].to(torch.int64))),
    "all_any": lambda x: (bool((x >= 0).all()), bool((x > 100).any())),
    "list_of_ints": lambda x: x.to(torch.int64).tolist(),
}


@pytest.mark.parametrize("name", DATA_DEPENDENT)
def test_L6_data_dependent(name: str, same_as_eager: Callable[..., None]) -> None:
    same_as_eager(lambda d: DATA_DEPENDENT[name](torch.tensor([0.0, 1, 2, 3, 2, 1]).to(d) * 1))


INDEXING: dict[str, Callable[[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]], object]] = {
    "int": lambda x, i: x[1],
    "slice": lambda x, i: x[1:, ::2],
    "none_ellipsis": lambda x, i: x[..., None, 0],
    "tensor": lambda x, i: x[i(torch.tensor([2, 0]))],
    "tensor_0dim": lambda x, i: x[i(torch.tensor(1))],
    "two_tensors": lambda x, i: x[i(torch.tensor([0, 1])), i(torch.tensor([1, 2]))],
    "mixed": lambda x, i: x[i(torch.tensor([0, 1])), 1:],
    "list": lambda x, i: x[[2, 1]],
    "bool_list": lambda x, i: x[[True, False, True]],
    "mask": lambda x, i: x[i(torch.tensor([True, False, True]))],
    "numpy_index": lambda x, i: x[numpy.array([0, 2])],
    "numpy_int": lambda x, i: x[numpy.int64(1)],
    "gather": lambda x, i: x.gather(1, torch.zeros(3, 1, dtype=torch.int64, device=x.device)),
    "index_select": lambda x, i: x.index_select(0, torch.tensor([1], device=x.device)),
    "take": lambda x, i: x.take(torch.tensor([0, 5], device=x.device)),
    "set_int": lambda x, i: (x.__setitem__(1, 0.0), x)[1],
    "set_slice": lambda x, i: (x.__setitem__((slice(None), slice(1, 3)), -1), x)[1],
    "set_slice_tensor": lambda x, i: (x.__setitem__(slice(0, 2), x[1:].clone()), x)[1],
    "set_slice_cpu_scalar": lambda x, i: (x.__setitem__(0, torch.tensor(5.0)), x)[1],
    "set_overlap": lambda x, i: (x.__setitem__(0, x[1]), x.__setitem__(1, x[0] * 2), x)[2],
    "set_index": lambda x, i: (x.__setitem__(i(torch.tensor([0, 2])), 9.0), x)[1],
    "set_index_value": lambda x, i: (x.__setitem__(i(torch.tensor([0, 2])), x[:2] * 2), x)[1],
    "set_mask": lambda x, i: (x.__setitem__(x > 5, 0.0), x)[1],
    "augmented": lambda x, i: (x.__setitem__(0, x[0].__iadd__(10)), x)[1],
    "augmented_index": lambda x, i: (x.__setitem__(i(torch.tensor([0])), x[i(torch.tensor([0]))] + 1), x)[1],
}


@pytest.mark.parametrize("where", ["lazy_index", "cpu_index"])
@pytest.mark.parametrize("name", INDEXING)
def test_L6_indexing_and_assignment(name: str, where: str, same_as_eager: Callable[..., None]) -> None:
    def program(d: str) -> object:
        x = torch.arange(12.0, device=d).reshape(3, 4) * 1
        return INDEXING[name](x, (lambda t: t.to(d)) if where == "lazy_index" else (lambda t: t))

    same_as_eager(program)


def test_L6_indexing_errors_come_at_the_call() -> None:
    x = torch.arange(12.0, device=LAZY).reshape(3, 4)
    for bad in (lambda: x[3], lambda: x[0, 0, 0], lambda: x[:, 4], lambda: x[-4]):
        with pytest.raises(IndexError):
            bad()
    with pytest.raises(IndexError):
        x[torch.tensor([True, False])]


def test_L6_copy_into_a_cpu_tensor_computes() -> None:
    target = torch.zeros(2)
    assert triggered("aten::copy_", lambda: target.copy_(torch.ones(2, device=LAZY) * 4)) is target
    assert target.tolist() == [4.0, 4.0]
    target[0] = torch.ones((), device=LAZY) * 7
    target[1:] = torch.ones(1, device=LAZY) * 8
    assert target.tolist() == [7.0, 8.0] and type(target) is torch.Tensor


def test_L6_copy_from_a_cpu_tensor_takes_its_value_now() -> None:
    x, source = torch.zeros(2, device=LAZY), torch.ones(2)
    x.copy_(source)
    moved = source.to(LAZY)
    source.fill_(5)
    assert x.tolist() == [1.0, 1.0] and moved.tolist() == [1.0, 1.0]


def test_L6_reading_gives_a_copy() -> None:
    x = torch.ones(2, device=LAZY) * 2
    x.cpu().zero_()
    x.numpy()[:] = 0
    x.to("cpu").fill_(9)
    torch.from_dlpack(x).fill_(9)
    assert x.tolist() == [2.0, 2.0]


def test_L6_numpy_functions_accept_lazy_tensors() -> None:
    x = torch.arange(4.0, device=LAZY) * 2
    assert numpy.asarray(x).tolist() == [0.0, 2.0, 4.0, 6.0]
    assert numpy.asarray(x, dtype=numpy.int32).dtype == numpy.int32
    assert numpy.array(x).sum() == 12.0 and numpy.mean(x.numpy()) == 3.0
    with pytest.raises(RuntimeError, match="requires grad"):
        torch.ones(1, device=LAZY, requires_grad=True).numpy()
    assert torch.ones(1, device=LAZY, requires_grad=True).detach().numpy().tolist() == [1.0]
    assert torch.ones(1, device=LAZY, requires_grad=True).numpy(force=True).tolist() == [1.0]
    assert torch.tensor(x).tolist() == [0.0, 2.0, 4.0, 6.0]
    assert torch.tensor([x[0], x[1]]).tolist() == [0.0, 2.0]


def test_L6_item_of_many_elements_fails_as_in_eager() -> None:
    with pytest.raises(RuntimeError):
        torch.ones(2, device=LAZY).item()
    with pytest.raises(RuntimeError, match="ambiguous"):
        bool(torch.ones(2, device=LAZY))
    with pytest.raises(TypeError):
        torch.ones((), device=LAZY).__index__()


# ---- files -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("weights_only", [True, False])
def test_L7_saved_tensors_load_as_plain_ones(weights_only: bool, same_bits: Callable[..., None]) -> None:
    x = torch.randn(3, device=LAZY)
    p = torch.nn.Parameter(x * 2)
    file = io.BytesIO()
    torch.save({"x": x, "p": p, "view": x[1:], "n": [x.to(torch.bfloat16)]}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=weights_only)
    assert type(loaded["x"]) is torch.Tensor and type(loaded["p"]) is torch.nn.Parameter
    assert loaded["p"].requires_grad and loaded["p"].device.type == "cpu"
    same_bits(loaded["x"], x.cpu())
    same_bits(loaded["view"], x[1:].cpu())


def test_L7_a_state_dict_goes_to_a_file_and_back(same_bits: Callable[..., None]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to(LAZY)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert all(type(t) is torch.Tensor for t in state.values())
    plain = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    plain.load_state_dict(state)
    again = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to(LAZY)
    again.load_state_dict(state)
    for name, t in model.state_dict().items():
        same_bits(plain.state_dict()[name], t.cpu(), name)
        same_bits(again.state_dict()[name], t.cpu(), name)
        assert isinstance(again.state_dict()[name], mindtorch.LazyTensor)


def test_L7_a_whole_model_and_its_optimizer_are_saved(same_bits: Callable[..., None]) -> None:
    model = torch.nn.Linear(3, 3).to(LAZY)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3, device=LAZY)).sum().backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save((model, optimizer.state_dict()), file)
    file.seek(0)
    loaded, state = torch.load(file, weights_only=False)
    assert type(loaded.weight) is torch.nn.Parameter
    same_bits(loaded.weight, model.weight.cpu())
    same_bits(state["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"].cpu())
    fresh = torch.optim.Adam(model.parameters())
    fresh.load_state_dict(state)
    assert isinstance(fresh.state_dict()["state"][0]["exp_avg"], mindtorch.LazyTensor)


def test_L7_deepcopy_and_copy(same_bits: Callable[..., None]) -> None:
    x = torch.randn(3, device=LAZY)
    y = copy.deepcopy(x)
    x.zero_()
    assert isinstance(y, mindtorch.LazyTensor) and y.cpu().abs().sum() > 0 and x.cpu().abs().sum() == 0
    alias = copy.copy(x)
    assert isinstance(alias, mindtorch.LazyTensor) and alias.tolist() == x.tolist()
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)).to(LAZY)
    model[1].weight = model[0].weight
    twin = copy.deepcopy(model)
    assert twin[1].weight is twin[0].weight and twin[0].weight is not model[0].weight
    assert isinstance(twin[0].weight, torch.nn.Parameter) and twin[0].weight.requires_grad
    with torch.no_grad():
        model[0].weight.zero_()
    assert twin[0].weight.cpu().abs().sum() > 0
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(torch.ones(1, device=LAZY, requires_grad=True) * 2)


# ---- L11 -------------------------------------------------------------------------------------------------------------
def test_L11_intercepts_are_logged(after_torch: Callable[..., Any]) -> None:
    code = """
        import logging
        logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
        import torch, mindtorch
        x = torch.ones(2, device="remote_accelerator:0")
        y = (x + 1).relu()
        y.add_(1)
        print(y.tolist())
    """
    on, off = after_torch(code, GENIE_LOG_INTERCEPTS="1"), after_torch(code)
    assert on.stdout == off.stdout == "[3.0, 3.0]\n"
    lines = [line for line in on.stderr.splitlines() if line.startswith("mindtorch.intercept captured")]
    assert [line.rsplit(" ", 1)[1] for line in lines] == ["aten::ones", "aten::add", "aten::relu", "aten::add_"]
    assert "captured" not in off.stderr


def test_L11_dispatcher_registrations_catch_calls_that_bypass_the_hooks(after_torch: Callable[..., Any]) -> None:
    code = """
        import torch
        from torch import randn, zeros, ones, empty, full, arange, eye, rand, linspace, randint, randperm, empty_strided
        import mindtorch
        d = torch.device("remote_accelerator:0")
        torch.manual_seed(0)
        expected = torch.randn(2, 3)
        torch.manual_seed(0)
        x = randn(2, 3, device=d)
        assert torch.equal(x.cpu(), expected), (x, expected)
        made = [zeros(2, device=d), ones(2, device="remote_accelerator"), empty(2, device=d), full((2,), 3, device=d),
                arange(3, device=d), eye(2, device=d), rand(2, device=d), linspace(0, 1, 3, device=d),
                randint(3, (2,), device=d), randperm(3, device=d), empty_strided((2,), (1,), device=d),
                arange(1, 5, 2, device=d), zeros(2, device=d, dtype=torch.int64), ones(1, device=d, requires_grad=True)]
        assert all(isinstance(t, mindtorch.LazyTensor) for t in made)
        print(made[3].tolist(), made[4].tolist(), made[3].dtype,
              made[11].tolist(), made[12].dtype, made[13].requires_grad)
    """
    done = after_torch(code, GENIE_ENABLE_ATEN_IMPL="1")
    assert done.stdout == "[3, 3] [0, 1, 2] torch.int64 [1, 3] torch.int64 True\n"


def test_L11_torch_tensor_from_before_the_import_is_caught(after_torch: Callable[..., Any]) -> None:
    code = """
        from torch import tensor
        import mindtorch
        made = tensor([1, 2.0], device="remote_accelerator:0")
        print(type(made).__name__, made.device, made.tolist())
    """
    for asked in ("0", "1"):
        printed = after_torch(code, GENIE_ENABLE_ATEN_IMPL=asked).stdout
        assert printed.split() == ["LazyTensor", "remote_accelerator:0", "[1.0,", "2.0]"]


def test_L11_logging_goes_to_a_logger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="mindtorch.intercept"):
        torch.nonzero(torch.ones(2, device=LAZY))
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("mask", [[True, False, True], [False, True, True], [True, True, False], [False, False, True]])
def test_L7_results_that_are_none_leave_the_others_in_their_places(mask: list[bool]) -> None:
    found = []
    for device in ("cpu", LAZY):
        x, w = (torch.arange(12.0, device="cpu").view(3, 4) % 5).to(device), torch.ones(4).to(device)
        _, mean, rstd = torch.ops.aten.native_layer_norm(x, [4], w, w, 1e-5)
        for _ in range(2):
            made = torch.ops.aten.native_layer_norm_backward(x + 1, x, [4], mean, rstd, w, w, mask)
        found.append([None if t is None else t.tolist() for t in made])
    assert found[0] == found[1] and [each is not None for each in found[1]] == mask
