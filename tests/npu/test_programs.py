"""SPEC N5: what surrounds a program works with NPU tensors, too: compiled functions, modules that learn their shapes,
packed sequences, numbers in lists, sparse tensors, models named on the command line."""

from __future__ import annotations

import copy
import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

import mindtorch
from mindtorch.npu import staging
from mindtorch.program.program import Program


@pytest.fixture(autouse=True)
def two_devices(devices: Callable[[int], None]) -> None:
    devices(2)


@pytest.fixture(autouse=True)
def nothing_stays_compiled() -> Iterator[None]:
    """What torch keeps of compiled functions holds their models."""
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
        gc.collect()


@pytest.fixture
def staged() -> Iterator[None]:
    staging.use_native(False)
    yield
    staging.use_native(True)


def same_on_both(program: Callable[[str], Any]) -> None:
    """What ``program(device)`` gives on the CPU and, staged or natively, on an NPU; it is there, and alike."""
    found = []
    for device in ("cpu", "npu:1"):
        torch.manual_seed(0)
        out = program(device)
        assert all(t.device == mindtorch.device(device) for t in out)
        found.append([t.detach().cpu() for t in out])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_N5_compiled_functions(backend: str) -> None:
    def program(device: str) -> Any:
        torch._dynamo.reset()
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
        scale = torch.ones(2, device=device)

        @torch.compile(backend=backend)
        def f(x: torch.Tensor) -> torch.Tensor:
            y = model(x) + scale + torch.ones(2, device=device)
            if x.sum() > 0:
                y = y + x[:, :2]
            scale.add_(1)
            return y + (x[:, 2:].cpu() * 2).to(device)

        out = [f(torch.full((3, 4), value, device=device)) for value in (1.0, -1.0, 2.0)]
        sum(o.sum() for o in out).backward()
        return *out, scale, *(p.grad for p in model.parameters())

    same_on_both(program)


def test_N5_compiled_modules() -> None:
    def program(device: str) -> Any:
        torch._dynamo.reset()
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU()).to(device)
        x = torch.randn(3, 4).to(device)
        out = torch.compile(model, backend="eager")(x)
        whole = torch.compile(model, backend="eager", fullgraph=True)(x)
        model.compile(backend="eager")
        return out, whole, model(x)

    same_on_both(program)


def test_N5_compiled_functions_refuse_mixed_devices() -> None:
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match="at least two devices, npu:1 and cpu"):
        torch.compile(lambda a, b: a * b, backend="eager")(torch.ones(2, device="npu:1"), torch.ones(2))


def test_N5_export_is_refused() -> None:
    with pytest.raises(mindtorch.UnsupportedOperationError, match=r"inputs on the CPU, got one on npu:1"):
        torch.export.export(nn.Linear(2, 2).to("npu:1"), (torch.ones(1, 2),))
    with pytest.raises(ValueError, match="Expected `mod` to be"):
        torch.export.export(lambda x: x, (torch.ones(2),))  # type: ignore[arg-type]


@pytest.mark.parametrize("made_there", [False, True])
@pytest.mark.parametrize("make", [lambda **kw: nn.LazyLinear(3, **kw), lambda **kw: nn.LazyBatchNorm1d(**kw)])
def test_L7_modules_that_learn_their_shapes_on_an_npu(make: Callable[..., nn.Module], made_there: bool) -> None:
    def program(device: str) -> Any:
        net = make(device=device) if made_there else make().to(device)
        assert all(p.device == mindtorch.device(device) for p in net.parameters())
        x = torch.linspace(-1, 1, 8).view(4, 2).to(device)
        net(x)
        nn.init.constant_(net.weight, 0.5)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        net(x).square().sum().backward()
        optimizer.step()
        return *net.parameters(), *net.buffers()

    same_on_both(program)


def test_L7_an_uninitialized_layer_is_copied_with_its_place() -> None:
    layer = copy.deepcopy(nn.LazyLinear(3).to("npu:1"))
    assert layer(torch.ones(2, 4, device="npu:1")).device == layer.weight.device == mindtorch.device("npu:1")


def test_N4_packed_sequences_move() -> None:
    packed = rnn.pack_sequence([torch.ones(2, 4), torch.zeros(3, 4)], enforce_sorted=False)
    there = packed.to("npu:1")
    assert there.to("npu:1") is there
    assert {t.device for t in (there.data, there.sorted_indices, there.unsorted_indices)} == {mindtorch.device("npu:1")}
    assert there.batch_sizes.device.type == "cpu"
    for got, expected in zip(rnn.unpack_sequence(there), rnn.unpack_sequence(packed)):
        assert torch.equal(got.cpu(), expected)


@pytest.mark.parametrize("value", [2.5, 3, True, 1 + 2j])
def test_N5_numbers_in_lists(value: complex) -> None:
    s = torch.tensor(value, device="npu:1")
    for made in (torch.tensor([s, s]), torch.as_tensor([s, s]), torch.asarray([s, s])):
        assert made.device.type == "cpu" and torch.equal(made, torch.tensor([value, value]))
    there = torch.tensor([s, s], device="npu:0")
    assert there.device == mindtorch.device("npu:0") and there.dtype is s.dtype
    assert torch.tensor([s.to(torch.complex128)], device="npu:0").dtype is torch.complex128
    assert complex(s) == value and bool(s)
    assert isinstance(value, complex) or (float(s) == value and int(s) == int(value))
    with pytest.raises(ValueError, match="only one element tensors"):
        float(torch.stack([s, s]))


def test_N5_sparse_tensors_are_made_on_the_host() -> None:
    at, values = torch.tensor([[0, 1], [1, 0]], device="npu:1"), torch.ones(2, device="npu:1", requires_grad=True)
    made = torch.sparse_coo_tensor(at, values, (2, 2))
    assert made.device.type == "cpu"
    (torch.mm(made, torch.ones(2, 3, device="npu:1")) * 2).sum().backward()
    assert values.grad is not None and values.grad.device == mindtorch.device("npu:1")
    assert values.grad.tolist() == [6.0, 6.0]


def test_N5_an_empty_view_keeps_its_place_in_the_storage() -> None:
    base = torch.arange(6.0).to("npu:1")
    assert copy.deepcopy(base[4:4]).storage_offset() == base[4:4].storage_offset() == 4
    assert base[4:4].unbind() == () and base.view(2, 3)[:, 3:].unbind(1) == ()
    assert (base[4:4] + 1).tolist() == []


def test_N5_out_of_too_small_a_size_grows_to_what_the_kernel_took() -> None:
    a, b = torch.randn(5, 3), torch.randn(5, 2)
    dtypes = [t.dtype for t in torch.linalg.lstsq(a, b)]
    expected, found = (
        torch.linalg.lstsq(a.to(d), b.to(d), out=tuple(torch.empty(0, dtype=t, device=d) for t in dtypes))
        for d in ("cpu", "npu:1")
    )
    for got, value in zip(found, expected):
        torch.testing.assert_close(got.cpu(), value)  # MKL's last bits depend on where in memory the operands are
        assert got.stride() == value.stride()


def test_N5_a_model_on_an_npu_gets_its_inputs_there(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(
        "import torch\n"
        "def build():\n    return torch.nn.Linear(4, 2).to('npu:1')\n"
        "def scale():\n    return torch.nn.BatchNorm1d(4, affine=False).to('npu:1')\n"  # has buffers only
    )
    for name in ("build", "scale"):
        outcome = Program.parse(f"{path}:{name}", inputs=["3x4"]).run()
        assert outcome.error is None and outcome.result.device == mindtorch.device("npu:1")


@pytest.mark.parametrize("device", ["npu:1", "remote_accelerator:0"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("bins", [(4, 0, 3), (5,), (3, 1, 7), (10, 2, 2), (7, 3, 3)])
def test_N5_whole_numbers_are_counted_as_accelerators_do(device: str, dtype: torch.dtype, bins: Any) -> None:
    """The CPU's kernel counts floats only."""
    x = torch.randint(0, 9, (50,)).to(dtype)
    for t in (x, x[:0], x[:1]):
        found = torch.histc(t.to(device), *bins)
        assert found.dtype is dtype and found.device == mindtorch.device(device)
        assert torch.equal(found.cpu().double(), torch.histc(t.double(), *bins))
    assert torch.histc(x.to(device), 3, out=None).sum() == 50
    for bad, why in (((0, 0, 1), "bins must be > 0"), ((3, 4, 1), "max must be larger than min")):
        with pytest.raises(RuntimeError, match=why):
            torch.histc(x.to(device), *bad)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_N5_staged_layers_multiply_as_on_the_cpu(kind: str, mode: Any, staged: None) -> None:
    """Torch chooses how to multiply by whether the weights require grad, with grad mode off, too."""
    layer, x = getattr(nn, kind)(16, 24, batch_first=True), torch.randn(3, 6, 16)
    with mode():
        expected = layer(x)[0]
        assert torch.equal(layer.to("npu:1")(x.to("npu:1"))[0].cpu(), expected)


def test_N5_inference_mode_makes_inference_tensors() -> None:
    with torch.inference_mode():
        x = torch.ones(3, device="npu:1")
        for t in (
            x,
            x + 1,
            x.cpu(),
            x.to("npu:0"),
            torch.ones(2).to("npu:1"),
            torch.tensor([1], device="npu:1"),
            torch.ones(2, device="remote_accelerator:0").to("npu:1"),
        ):
            assert t.is_inference()
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        x.add_(1)


def test_N5_an_npu_tensor_taken_as_one_is_the_same_tensor() -> None:
    w = torch.ones(3, device="npu:1", requires_grad=True)
    a = w * 2
    loss = (a * a).sum()
    with torch.inference_mode():
        assert torch.as_tensor(a, device="npu:1") is a
        torch.as_tensor(a, device="npu:1").zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_N5_lengths_of_packed_sequences_stay_on_the_host() -> None:
    padded, lengths = rnn.pad_packed_sequence(rnn.pack_sequence([torch.ones(3, 4), torch.ones(2, 4)]).to("npu:1"))
    assert padded.device == mindtorch.device("npu:1") and lengths.device.type == "cpu" and lengths.tolist() == [3, 2]


def test_N5_what_a_kernel_gives_with_gaps() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    for x in (base.t(), base[:, ::2], base[1:, 1:5]):
        expected = torch.select_scatter(x, torch.zeros(x.shape[1]), 0, 1)
        there = base.to("npu:1").as_strided(x.shape, x.stride(), x.storage_offset())
        found = torch.select_scatter(there, torch.zeros(x.shape[1], device="npu:1"), 0, 1)
        assert torch.equal(found.cpu(), expected) and found.stride() == expected.stride()


def test_N5_a_warning_names_the_programs_line() -> None:
    def said(device: str) -> list[tuple[str, str, int]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            x = torch.ones(2, 1, device=device)
            nn.functional.mse_loss(x, torch.ones(2, device=device))
            nn.MSELoss()(x, torch.ones(2, device=device))  # a line of torch's
            x[:1, 0].std()
            nn.functional.softmax(x)
        return [(str(w.message), w.filename, w.lineno) for w in caught]

    assert said("npu:1") == said("cpu")
    assert len(said("cpu")) == 4


def test_N5_a_warning_of_an_operator_called_by_name_names_the_line_that_torch_names() -> None:
    """Which some releases say in Python, in the line of torch's that calls the kernel, and some do not."""

    def said(device: str) -> list[tuple[str, str, int]]:
        x = torch.ones(1, device=device)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.ops.aten.std.correction(x)
            torch.ops.aten.std(x)
        return [(str(w.message), w.filename, w.lineno) for w in caught]

    assert said("npu:1") == said("cpu")
