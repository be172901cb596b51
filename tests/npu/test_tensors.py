"""Tensors on NPUs: where they are, how they move, what they share, what is refused (SPEC D4, D5, D6, N4, N5)."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest
import torch
import torch.utils.checkpoint

import mindtorch
from mindtorch.npu import staging
from mindtorch.npu.tensor import NpuTensor, block_of
from mindtorch.patch import assumed_cuda


@pytest.fixture(autouse=True)
def two_devices(devices: Callable[[int], None]) -> None:
    """On the second device, so that an index that gets lost shows."""
    devices(2)


def on(index: int, *size: int) -> torch.Tensor:
    return torch.randn(*size).to(f"npu:{index}")


# ---- where a tensor is ----------------------------------------------------------------------------------------------
def test_D5_index_of_creation(npu: ModuleType) -> None:
    assert mindtorch.ones(2, device="npu:0").device.index == 0
    assert torch.ones(2, device="npu:1").device == mindtorch.device("npu", 1)
    assert torch.zeros(2, device=mindtorch.device("npu:1")).device.index == 1
    for like in (torch.zeros_like, torch.empty_like, torch.rand_like):
        assert like(torch.ones(2, device="npu:1")).device.index == 1
    x = torch.ones(2, device="npu:1")
    assert x.new_zeros(3).device == x.new_tensor([1.0]).device == x.device
    assert torch.zeros_like(x, device="cpu").device.type == torch.tensor(x.detach(), device="cpu").device.type == "cpu"
    assert torch.as_tensor(x) is x and torch.tensor([x[0], 2.0], device="npu:1").tolist() == [1.0, 2.0]
    assert x.get_device() == 1 and x.is_npu and not x.is_cpu and not x.is_meta


def test_D5_bare_name_is_the_threads_current_device(npu: ModuleType) -> None:
    npu.set_device(1)
    assert torch.ones(2, device="npu").device.index == 1
    assert torch.ones(2, device="npu:0").device.index == 0  # 0 is an index, not "none"
    assert torch.ones(2).npu().device.index == 1 and torch.ones(2).npu(0).device.index == 0
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(torch.ones(2, device="npu").device))
    thread.start()
    thread.join()
    assert found == [mindtorch.device("npu:0")]  # a new thread inherits nothing


def test_D3_default_device(npu: ModuleType) -> None:
    with mindtorch.device("npu:1"):
        assert torch.ones(2).device == mindtorch.ones(2).device == mindtorch.device("npu:1")
        assert torch.nn.Linear(2, 2).weight.device.index == 1
    mindtorch.set_default_device("npu:1")
    try:
        assert torch.zeros(1).device.index == 1
    finally:
        mindtorch.set_default_device(None)
    assert torch.zeros(1).device.type == "cpu"


def test_D5_index_travels_through_ops() -> None:
    x = on(1, 3, 4)
    for made in (x + 1, x.t() @ x, x.sum(), x[0], x.max(0).values, torch.cat([x, x]), x.double(), x.view(-1)):
        assert made.device == x.device and isinstance(made, NpuTensor)
    assert torch.nn.functional.one_hot(torch.tensor([1, 2]).to("npu:1")).device == x.device
    assert torch.nn.utils.rnn.pad_sequence([x[0], x[1][:2]]).device == x.device


def test_D2_no_such_device(npu: ModuleType) -> None:
    count = npu.device_count()
    with pytest.raises(RuntimeError, match=f"{count} NPU"):
        torch.ones(2, device=f"npu:{count}")
    with pytest.raises(RuntimeError, match=f"{count} NPU"):
        torch.ones(2).to(f"npu:{count}")


# ---- mixing ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "other", [lambda: on(0, 2), lambda: torch.ones(2), lambda: torch.ones(2, device="remote_accelerator:0")]
)
def test_D4_mixed_devices_are_named(other: Callable[[], torch.Tensor]) -> None:
    x, y = on(1, 2), other()
    for pair in ((x, y), (y, x)):
        with pytest.raises(RuntimeError, match="same device") as error:
            torch.add(*pair)
        assert "npu:1" in str(error.value) and str(y.device) in str(error.value)


def test_D4_scalars_and_meta_join() -> None:
    x = on(1, 2)
    assert (x + torch.tensor(1.0)).device == (torch.tensor(1.0) * x).device == x.device
    assert (x + torch.ones(2, device="meta")).device.type == "meta"
    assert (x + mindtorch.ones(2, device="meta")).device.type == "meta"
    assert isinstance(x[torch.tensor([0, 1])], NpuTensor)  # indices may be on the CPU


def test_D4_sizes_may_come_from_elsewhere() -> None:
    a, x = torch.ones(1, 3), on(1, 2, 3)
    assert type(a.expand_as(x)) is torch.Tensor and x.view_as(torch.ones(6, 1)).device == x.device
    assert a.type_as(x).device == x.device and x.type_as(a.double()).dtype is torch.float64
    assert x.type_as(a).device.type == "cpu"


def test_D4_numbers_on_an_npu_are_numbers() -> None:
    a, two = torch.zeros(5, 3), torch.tensor(2, device="npu:1")
    a[two].copy_(torch.ones(3))
    assert a.sum() == 3  # a view of the CPU's tensor
    assert type(torch.zeros(two, 2)) is type(torch.zeros(1, 2).repeat(two, 1)) is torch.Tensor
    assert torch.get_device(two) == 1
    assert torch.nn.Linear(2, 2).to("npu:1").to(0).weight.device == mindtorch.device("npu:0")


def test_M5_nothing_is_read_from_meta_tensors() -> None:
    x = on(1, 2)
    for meta in (torch.ones(2, device="meta"), mindtorch.ones(2, device="meta")):
        for write in (
            x.copy_,
            x.add_,
            lambda m: x.__setitem__(0, m[0]),
            lambda m: torch.add(x, m, out=x),
            lambda m: torch._foreach_add_([x], [m]),
        ):
            with pytest.raises(RuntimeError, match="meta tensor has no data"):
                write(meta)


# ---- copies ---------------------------------------------------------------------------------------------------------
def test_N4_values_survive_a_round() -> None:
    a = torch.randn(4, 5)
    for plain in (
        a,
        a.t(),
        a[1:3, ::2],
        a[:0],
        torch.tensor(3.5),
        a.to(torch.bfloat16),
        a > 0,
        a.long(),
        torch.complex(a, a).conj(),
        a.expand(3, 4, 5),
    ):
        there = plain.to("npu:0")
        back = there.to("npu:1").cpu()
        assert torch.equal(back, plain) and back.dtype is plain.dtype
        assert there.stride() == plain.to("cpu", copy=True).stride()


def test_N4_same_index_is_the_same_tensor() -> None:
    x = on(1, 3)
    assert x.to("npu:1") is x and x.npu(1) is x and x.to(1) is x
    assert x.to("npu:0") is not x and x.to("npu:1", copy=True) is not x


def test_N4_moves_are_differentiable() -> None:
    a = torch.randn(3, requires_grad=True)
    (a.to("npu:0").to("npu:1") * 2).cpu().sum().backward()
    assert torch.equal(a.grad, torch.full((3,), 2.0))
    x = on(1, 3).requires_grad_()
    x.cpu().sum().backward()
    assert x.grad.device == x.device and x.grad.tolist() == [1.0] * 3


def test_N4_copy_between_kinds_of_tensors() -> None:
    a, x, y = torch.randn(3), on(0, 3), on(1, 3)
    x.copy_(a)
    y.copy_(x)
    b = torch.empty(3)
    b.copy_(y)
    assert torch.equal(a, b)
    lazy = torch.ones(3, device="remote_accelerator").to("npu:1")
    assert lazy.tolist() == [1.0] * 3 and lazy.to("remote_accelerator").device.type == "remote_accelerator"


def test_N4_pinned_memory_does_not_wait(npu: ModuleType, library: Any) -> None:
    a = torch.arange(1000.0)
    pinned = npu.pin_memory(a)
    assert npu.is_pinned(pinned) and not npu.is_pinned(a) and npu.pin_memory(pinned) is pinned
    assert torch.equal(pinned, a)
    x, back = torch.zeros(1000, device="npu:1"), npu.pin_memory(torch.zeros(1000))
    npu.synchronize(1)
    stream = npu.default_stream(1)
    library.hold(stream.npu_stream)
    y = pinned.to("npu:1", non_blocking=True)
    x.copy_(pinned, non_blocking=True)
    back.copy_(y, non_blocking=True)
    assert not stream.query()
    library.release()
    stream.synchronize()
    assert torch.equal(back, a) and torch.equal(x.cpu(), a)


def test_M4_meta_to_npu_gives_memory() -> None:
    for meta in (torch.empty(2, 3, device="meta"), mindtorch.empty(2, 3, device="meta")):
        made = mindtorch.zeros_like(meta, device="npu:1") if type(meta) is torch.Tensor else meta.to("npu:1")
        assert made.device == mindtorch.device("npu:1") and made.shape == (2, 3)
    assert on(1, 2).to("meta").is_meta


# ---- memory that is shared ------------------------------------------------------------------------------------------
def test_N5_views_and_writes() -> None:
    a = torch.randn(3, 4)
    x = a.to("npu:1")
    x.t()[1:3].add_(5)
    a.t()[1:3].add_(5)
    x[0] = 7
    a[0] = 7
    x.view(-1)[::2].mul_(x.view(-1)[1::2])
    a.view(-1)[::2].mul_(a.view(-1)[1::2])
    assert torch.equal(x.cpu(), a)
    assert block_of(x[1]) is block_of(x) and x._version == a._version
    x.t_()
    assert x.shape == (4, 3) and torch.equal(x.cpu(), a.t())
    assert x.data.zero_().sum() == 0 and x.sum() == 0


def test_N5_out_and_resize() -> None:
    x, out = on(1, 3), torch.empty(0, device="npu:1")
    assert torch.add(x, x, out=out) is out and torch.equal(out.cpu(), (x + x).cpu())
    x.resize_(2, 5)
    assert x.shape == (2, 5) and block_of(x).nbytes >= 40
    x.set_(out)
    assert block_of(x) is block_of(out)
    for target, source in ((x, on(0, 3)), (torch.empty(0), x), (x, torch.ones(3))):
        with pytest.raises(RuntimeError, match="npu:1"):
            target.set_(source)


def test_N5_deepcopy_and_files_keep_what_is_shared() -> None:
    x = on(1, 4)
    both = {"whole": x, "part": x[1:]}
    file = io.BytesIO()
    torch.save(both, file)
    for made in (copy.deepcopy(both), _loaded(file), _loaded(file, map_location="npu:0")):
        made["whole"].zero_()
        assert made["part"].sum() == 0 and x.abs().sum() != 0
    assert _loaded(file, map_location="npu:0")["part"].device == mindtorch.device("npu:0")
    assert _loaded(file, map_location=x.device)["part"].device == x.device
    assert type(_loaded(file)["whole"]) is torch.Tensor  # loads without us
    assert torch.equal(pickle.loads(pickle.dumps(x)), x.cpu())


def _loaded(file: io.BytesIO, **options: Any) -> Any:
    file.seek(0)
    return torch.load(file, weights_only=True, **options)


# ---- reads ----------------------------------------------------------------------------------------------------------
def test_N5_reads() -> None:
    x = torch.tensor([[1.0, 2.0]]).to("npu:1")
    assert repr(x) == "tensor([[1., 2.]], device='npu:1')"
    assert x.tolist() == [[1.0, 2.0]] and x[0, 1].item() == 2.0 and f"{x.sum():.1f}" == "3.0" and bool(x.any())
    assert x.numpy(force=True).tolist() == [[1.0, 2.0]] and x.data_ptr() != x[:, 1].data_ptr() != 0
    for read in (x.numpy, lambda: numpy.asarray(x)):
        with pytest.raises(TypeError, match=r"npu:1.*cpu\(\)"):
            read()
    for read in (x.share_memory_, x.pin_memory):
        with pytest.raises(RuntimeError, match="npu:1"):
            read()


def test_L7_devices_that_are_used_later_have_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    from mindtorch.npu import random as npu_random

    monkeypatch.setattr(npu_random, "_generators", {})
    monkeypatch.setattr(npu_random, "_seed", None)
    unseeded = npu_random._generator(0).initial_seed()
    npu_random.manual_seed_all(0)
    assert npu_random._generator(0).initial_seed() == npu_random._generator(1).initial_seed() == 0 != unseeded
    npu_random.manual_seed_all(2**63 - 1)
    assert {npu_random._generator(i).initial_seed() for i in range(3)} == {2**63 - 1}
    expected = torch.rand(3, generator=torch.Generator().manual_seed(2**63 - 1))
    assert torch.equal(torch.rand(3, generator=npu_random._generator(5)), expected)


def test_L7_a_seed_gives_the_cpus_numbers() -> None:
    torch.manual_seed(5)
    expected = torch.randn(3), torch.nn.functional.dropout(torch.ones(20)), torch.randperm(9)
    torch.manual_seed(5)
    torch.randn(7)  # the CPU's generator is another one
    got = (
        torch.randn(3, device="npu:1"),
        torch.nn.functional.dropout(torch.ones(20, device="npu:1")),
        torch.randperm(9, device="npu:1"),
    )
    assert all(torch.equal(e, g.cpu()) for e, g in zip(expected, got, strict=True))
    assert torch.equal(torch.randn(3, device="npu:0").cpu(), expected[0])  # a generator per device


# ---- modules --------------------------------------------------------------------------------------------------------
def test_N5_a_network_trains_as_on_the_cpu() -> None:
    torch.manual_seed(0)
    here = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 3))
    there = copy.deepcopy(here)
    first = there[0].weight
    optimizers = torch.optim.AdamW(here.parameters(), lr=0.01), torch.optim.AdamW(there.parameters(), lr=0.01)
    there.to("npu:1")
    assert there[0].weight is first and isinstance(first, torch.nn.Parameter)  # identity: optimizers keep working
    assert isinstance(torch.nn.Parameter(first), torch.nn.Parameter) and type(first) is NpuTensor
    x, y = torch.randn(32, 4), torch.randint(3, (32,))
    losses: list[list[float]] = [[], []]
    for _ in range(20):
        for model, optimizer, device, seen in zip((here, there), optimizers, ("cpu", "npu:1"), losses, strict=True):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-5) and losses[0][-1] < losses[0][0]
    there.cpu()
    assert type(there[0].weight) is torch.nn.Parameter
    torch.testing.assert_close(there.state_dict(), here.state_dict())


def test_N5_staged_training_has_the_cpus_bits() -> None:
    torch.manual_seed(0)
    here = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    there = copy.deepcopy(here).to("npu:1")
    x, y = torch.randn(8, 4), torch.randint(2, (8,))
    staging.use_native(False)
    try:
        for _ in range(5):
            for model, device in ((here, "cpu"), (there, "npu:1")):
                optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
                torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
                optimizer.step()
                optimizer.zero_grad()
    finally:
        staging.use_native(True)
    for a, b in zip(here.state_dict().values(), there.state_dict().values(), strict=True):
        assert torch.equal(a, b.cpu())


def test_N5_inference_mode() -> None:
    x, layer = on(1, 2, 4), torch.nn.Linear(4, 3).to("npu:1")
    with torch.inference_mode():
        y = layer(x + 1).softmax(-1).clone()
    assert y.is_inference() and torch.allclose(y.sum(-1).cpu(), torch.ones(2))


@pytest.mark.parametrize("forked", [None, [0, 1]])
def test_N3_a_torch_that_assumes_cuda_forks_the_generators_of_npus(forked: list[int] | None) -> None:
    """Torch 2.12 asked its own devices for ``npu``: checkpoints failed in the backward pass."""
    torch.manual_seed(3)
    drawn = []
    for _ in range(2):
        with assumed_cuda._fork_rng(forked, device_type="npu"):
            drawn.append([torch.rand(2), *(torch.rand(2, device=f"npu:{i}").cpu() for i in (0, 1))])
    assert all(map(torch.equal, *drawn))
    with assumed_cuda._fork_rng(forked, False, device_type="npu"):
        drawn.append([torch.rand(2)])
    assert torch.equal(drawn[2][0], drawn[0][0]) and not torch.equal(torch.rand(2), drawn[0][0])


def test_N3_a_torch_that_assumes_cuda_pins_storages_for_the_accelerator() -> None:
    """Torch 2.12 pinned storages for CUDA in programs for torch_npu, too, and asked CUDA's driver whether they are."""
    for npus, unnamed in ((True, (None,)), (False, ())):
        asks = assumed_cuda._of_the_accelerator(lambda *args, **kwargs: (args[1:], kwargs), lambda npus=npus: npus)
        assert [asks(0), asks(0, None), asks(0, device=None)] == [(unnamed, {})] * 3
        assert asks(0, "cuda") == (("cuda",), {}) and asks(0, device="cuda") == ((), {"device": "cuda"})


@pytest.mark.parametrize("reentrant", [True, False])
def test_L7_checkpointing_draws_the_same_again(reentrant: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Dropout(0.5)).to("npu:1")
    x, found = on(1, 3, 4).requires_grad_(), []
    for run in (model, lambda x: torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant)):
        torch.manual_seed(3)
        run(x).sum().backward()
        found.append(model[0].weight.grad.clone())
        model.zero_grad()
    assert torch.equal(*found)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_N5_packed_sequences(kind: Any) -> None:
    layer, x = kind(4, 5), torch.randn(3, 6, 4)
    found = []
    for device in ("cpu", "npu:1"):
        layer.to(device)
        packed = torch.nn.utils.rnn.pack_padded_sequence(x.to(device), [6, 4, 2], batch_first=True)
        out, _ = torch.nn.utils.rnn.pad_packed_sequence(layer(packed)[0], batch_first=True)
        assert out.device == mindtorch.device(device)
        found.append(out.detach().cpu())
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", ["new_empty", "new_zeros", "new_ones", "new_full", "new_tensor", "new_empty_strided"])
def test_D5_what_is_made_after_an_npu_tensor_is_where_it_is_said(npu: ModuleType, name: str) -> None:
    more = {"new_full": (3,), "new_empty_strided": ((1,),)}.get(name, ())
    x = torch.ones(2, dtype=torch.float16, device="npu:1")
    for device, expected in ((None, "npu:1"), ("cpu", "cpu"), ("npu:0", "npu:0"), (torch.device("cpu"), "cpu")):
        made = getattr(x, name)([2], *more, device=device)
        assert str(made.device) == expected and made.dtype is torch.float16, device


def test_N2_pythons_types_are_dtypes() -> None:
    plain = torch.tensor([1.5, 0.0])
    for there in (plain.to("npu:1", int), plain.to(device="npu:1", dtype=int), plain.to("npu:1").to(int)):
        assert there.dtype is torch.int64 and str(there.device) == "npu:1" and there.tolist() == [1, 0]
    assert torch.ones(2, dtype=bool, device="npu:1").tolist() == [True, True]
    assert plain.to("npu:1").to("cpu", bool).tolist() == [True, False]


def test_N5_what_cpp_would_read_is_refused(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2).to("npu:1")
    with pytest.raises(mindtorch.UnsupportedOperationError, match="npu:1"):
        torch.jit.script(model).save(tmp_path / "model.pt")
    with pytest.raises(mindtorch.UnsupportedOperationError, match="npu:1"):
        torch.jit.trace(model, on(1, 1, 2))


def test_N5_stats_say_what_ran_where() -> None:
    mindtorch.reset_stats()
    x = on(1, 2, 2)
    torch.linalg.inv(x + x + torch.eye(2, device="npu:1"))
    stats = mindtorch.stats()
    assert stats["npu_native"] == {"aten::add": 2}
    assert "aten::linalg_inv_ex" in stats["npu_staged"]


def test_N3_ops_run_on_the_current_stream(npu: ModuleType, library: Any) -> None:
    stream = npu.Stream(device=1)
    x = on(1, 1000)
    npu.synchronize(1)
    library.hold(stream.npu_stream)
    with npu.stream(stream):
        y = x + x
    assert not stream.query()
    library.release()
    stream.synchronize()
    npu.current_stream(1).wait_stream(stream)
    assert torch.equal(y.cpu(), x.cpu() * 2)


def test_N3_recorded_memory_is_not_reused_before_the_stream_is_done(npu: ModuleType, library: Any) -> None:
    stream, x = npu.Stream(device=1), torch.ones(1000, device="npu:1")
    npu.synchronize(1)
    library.hold(stream.npu_stream)
    with npu.stream(stream):
        y = x + x
    x.record_stream(stream)
    address = x.data_ptr()
    del x
    assert torch.empty(1000, device="npu:1").data_ptr() != address
    library.release()
    stream.synchronize()
    npu.current_stream(1).wait_stream(stream)
    assert y.sum().item() == 2000
