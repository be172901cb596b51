"""SPEC M1-M5, D4-D6: tensors without data, and ``import mindtorch as torch``."""

from __future__ import annotations

import copy
import io
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import mindtorch
from mindtorch.profile import Profiler
from mindtorch.profile.estimate.estimator import Estimator

META = torch.device("meta")


def meta(*size: int, **options: Any) -> Any:
    return mindtorch.empty(*size, device="meta", **options)


# ---- M1 --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("read", [
    lambda t: t.numpy(), lambda t: t.item(), lambda t: t.tolist(), lambda t: t.data_ptr(), lambda t: bool(t),
    lambda t: int(t), lambda t: float(t), lambda t: complex(t), lambda t: [0][t], lambda t: numpy.asarray(t),
    lambda t: t.storage().to("cpu"), lambda t: t.untyped_storage().cpu(), lambda t: t.untyped_storage().data_ptr(),
    lambda t: t.storage().tolist(), lambda t: t.untyped_storage()[0], lambda t: torch.utils.dlpack.to_dlpack(t),
    lambda t: torch.from_dlpack(t), lambda t: "yes" if t > 0 else "no", lambda t: torch.equal(t, t),
])  # fmt: skip
def test_M1_reading_data_raises(read: Callable) -> None:
    with pytest.raises(RuntimeError, match="meta tensor has no data"):
        read(mindtorch.zeros((), dtype=torch.int64, device="meta"))


def test_M1_error_names_the_op_and_the_line() -> None:
    with pytest.raises(mindtorch.NoDataError, match=r"\[item\] .*test_meta\.py:\d+"):
        meta(1).item()


def test_M1_repr_shows_what_is_known() -> None:
    text = repr(meta(2, 3, dtype=torch.bfloat16))
    assert "size=(2, 3)" in text and "torch.bfloat16" in text and "device='meta'" in text
    assert "requires_grad=True" in repr(meta(2).requires_grad_()) and "grad_fn" in repr(meta(2).requires_grad_() * 2)
    assert "Parameter containing" in repr(torch.nn.Parameter(meta(2)))
    assert f"{meta(2):}" == repr(meta(2))


def test_M1_storage_knows_its_bytes() -> None:
    t = meta(4, 5, dtype=torch.float64)
    storage = t.untyped_storage()
    assert isinstance(storage, mindtorch.MetaStorage)
    assert (storage.nbytes(), storage.shape, storage.dtype, storage.device) == (160, (4, 5), torch.float64, META)
    assert t[1:3].untyped_storage().nbytes() == 120  # as far as the view reaches
    assert meta(0, 7).storage().nbytes() == 0
    assert "160" in repr(storage)
    assert (len(t.storage()), t.storage().size(), t.storage().element_size(), t.storage().nbytes()) == (20, 20, 8, 160)
    with pytest.raises(mindtorch.NoDataError, match="tolist"):
        t.storage().tolist()


# ---- M2 --------------------------------------------------------------------------------------------------------------
CREATIONS: list[tuple[str, tuple, dict[str, Any]]] = [
    ("zeros", (2, 3), {}), ("ones", ((2, 3),), {"dtype": torch.int8}), ("empty", (2,), {"requires_grad": True}),
    ("full", ((2, 2), 7), {}), ("full", ((2, 2), True), {}), ("rand", (3,), {}), ("randn", (3, 1), {}),
    ("randint", (0, 9, (4,)), {}), ("randperm", (6,), {}), ("arange", (5,), {}), ("arange", (1.0, 2.0, 0.25), {}),
    ("linspace", (0, 1, 7), {}), ("logspace", (0, 1, 7), {}), ("eye", (3, 4), {}), ("tensor", ([[1, 2]],), {}),
    ("tensor", (1.5,), {}), ("as_tensor", ([1, 2],), {}), ("scalar_tensor", (2,), {}), ("tril_indices", (3, 3), {}),
    ("empty_strided", ((2, 3), (1, 2)), {}), ("hann_window", (8,), {}), ("normal", (0.0, 1.0, (3,)), {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "options"), CREATIONS)
@pytest.mark.parametrize("device", ["meta", "meta:1", META, torch.device("meta", 2), mindtorch.device("meta", 3)])
def test_M2_creation(name: str, args: tuple, options: dict[str, Any], device: Any) -> None:
    t = getattr(mindtorch, name)(*args, **options, device=device)
    expected = getattr(torch, name)(*args, **options)
    assert type(t).__name__ == "MetaTensor" and isinstance(t, mindtorch.MetaTensor) and isinstance(t, torch.Tensor)
    assert (t.shape, t.dtype, t.stride(), t.requires_grad) == (
        expected.shape,
        expected.dtype,
        expected.stride(),
        expected.requires_grad,
    )
    assert str(t.device) == str(device) and t.is_meta and not t.is_cpu


@pytest.mark.parametrize("name", ["zeros_like", "ones_like", "empty_like", "rand_like", "randn_like"])
def test_M2_like(name: str) -> None:
    t = getattr(mindtorch, name)(meta(3, 4))
    assert isinstance(t, mindtorch.MetaTensor) and t.shape == (3, 4)
    moved = getattr(mindtorch, name)(torch.ones(3, 4), device="meta:1")
    assert isinstance(moved, mindtorch.MetaTensor) and str(moved.device) == "meta:1"


def test_M2_costs_bytes() -> None:
    before = mindtorch.stats()["bytes_held"]
    t = mindtorch.zeros(10**12, device="meta")
    assert t.nbytes == 4 * 10**12
    assert mindtorch.stats()["bytes_held"] - before < 100_000  # tables may grow
    assert (t + 1).relu().sum().shape == ()


# ---- M3, D4, D5 ------------------------------------------------------------------------------------------------------
def test_M3_results_stay_on_meta() -> None:
    out = (meta(3, 4) + meta(4)).relu().sum()
    assert out.shape == () and out.device == META and out.operation == "aten::sum" and not out.materialized


def test_M3_views_and_writes() -> None:
    t = meta(6, 4)
    v = t.t()[1:3]
    v += 1
    t[2] = 3.0
    t.mul_(2)
    assert v._base is t and v.stride() == (1, 4) and t._version == 3 == v._version
    assert t.view(2, 12).shape == (2, 12)
    t.resize_(2, 2)
    assert t.shape == (2, 2) and t.untyped_storage().nbytes() == 16
    t.squeeze_().unsqueeze_(0)
    assert t.shape == (1, 2, 2)


def test_M2_a_storage_that_an_estimate_emptied_is_no_other_tensors() -> None:
    with Estimator():
        emptied = [torch.ones(2, 2) for _ in range(8)]
        for t in emptied:
            t.untyped_storage().resize_(0)
    del emptied, t
    assert {meta(2, 2).untyped_storage().nbytes() for _ in range(8)} == {16}


def test_M3_shape_errors_come_at_the_call() -> None:
    with pytest.raises(RuntimeError):
        meta(2, 3) @ meta(2, 3)
    with pytest.raises(RuntimeError):
        meta(2, 3) + meta(2, 4)


def test_M3_nothing_is_recorded_to_run() -> None:
    mindtorch.flush("test")  # what other tests left
    mindtorch.reset_stats()
    t = meta(8, 8)
    for _ in range(100):
        t = torch.relu(t @ t).add_(1)
    stats = mindtorch.stats()
    assert stats["ops_pending"] == 0 and stats["ops_executed"] == 0
    mindtorch.flush("test")
    assert t.shape == (8, 8)


def test_D5_index_travels() -> None:
    a, b = mindtorch.ones(2, device="meta:1"), mindtorch.ones(2, device="meta:1")
    assert all(str(t.device) == "meta:1" for t in (a + b, a * 2, a[0], a.sum(), torch.stack([a, b]), a.clone()))


@pytest.mark.parametrize("other", [
    lambda: torch.ones(3), lambda: torch.ones(3, device="meta"), lambda: torch.ones(3, device="remote_accelerator:0"),
    lambda: mindtorch.ones(3, device="meta:1"),
])  # fmt: skip
def test_D4_any_meta_operand_makes_it_meta(other: Callable) -> None:
    mixed = torch.cat([other(), meta(3)]), torch.where(meta(3) > 0, 1.0, other())
    for out in (meta(3) + other(), other() + meta(3), *mixed):
        assert isinstance(out, mindtorch.MetaTensor)


@pytest.mark.parametrize("call", [
    lambda x, m: x + m, lambda x, m: m + x, lambda x, m: torch.cat([x, m]), lambda x, m: x * m.sum(),
    lambda x, m: torch.where(m > 0, 1.0, x), lambda x, m: torch.einsum("i,i", x, m), lambda x, m: m[x.long()],
    lambda x, m: x[m.long()], lambda x, m: torch.nn.functional.embedding(x.long(), m.view(2, 1)),
    lambda x, m: torch.nn.functional.batch_norm(x.view(1, 2), m, m), lambda x, m: torch.cumsum(x * 2, 0) / m,
])  # fmt: skip
def test_D4_torchs_own_meta_tensor_makes_a_lazy_one_meta(call: Callable) -> None:
    x = torch.ones(2, device="remote_accelerator:0")
    ours, torchs = call(x, meta(2)), call(x, torch.ones(2, device="meta"))
    for out in (ours, torchs):
        assert type(out) is type(meta(2)) and out.device == META
    assert (torchs.shape, torchs.dtype, torchs.stride()) == (ours.shape, ours.dtype, ours.stride())


@pytest.mark.parametrize("other", [lambda: meta(2), lambda: torch.ones(2, device="meta")])
def test_D4_what_has_data_is_not_written_from_meta(other: Callable) -> None:
    x = torch.ones(2, device="remote_accelerator:0")
    for write in (lambda: x.add_(other()), lambda: x.copy_(other()), lambda: torch.add(x, other(), out=x)):
        with pytest.raises(RuntimeError, match="meta tensor has no data"):
            write()
    assert x.tolist() == [1.0, 1.0]
    assert other().add_(x).is_meta and torch.add(x, 1, out=other()).is_meta


def test_D4_gradients_through_torchs_own_meta_tensor() -> None:
    w, x = torch.ones(2, 3, device="meta", requires_grad=True), torch.ones(1, 2, device="remote_accelerator:0")
    x.requires_grad_()
    (x @ w).sum().backward()
    assert w.grad.shape == w.shape and x.grad.shape == x.shape and w.grad.is_meta and x.grad.is_meta


def test_D4_other_mixtures_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"cpu.*remote_accelerator:0|remote_accelerator:0.*cpu"):
        torch.ones(3) + torch.ones(3, device="remote_accelerator:0")


# ---- autograd --------------------------------------------------------------------------------------------------------
def test_M3_gradients() -> None:
    x, w = meta(4, 8, requires_grad=True), meta(8, 3, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(torch.relu(x @ w), mindtorch.zeros(4, dtype=torch.int64, device="meta"))
    loss.backward()
    assert x.grad.shape == (4, 8) and w.grad.shape == (8, 3) and x.grad.is_meta


def test_M3_a_training_step() -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(8 * 6 * 6, 10)
    )
    for module in model.modules():
        for name, p in list(module._parameters.items()):
            if p is not None:
                module._parameters[name] = torch.nn.Parameter(mindtorch.empty_like(p, device="meta"))
        for name, b in list(module._buffers.items()):
            if b is not None:
                module._buffers[name] = mindtorch.empty_like(b, device="meta")
    optimizer = torch.optim.AdamW(model.parameters())
    loss = model(meta(2, 3, 8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    p = model[0].weight
    assert p.grad.shape == p.shape and optimizer.state[p]["exp_avg"].is_meta


# ---- M4 --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("move", [
    lambda t: t.cpu(), lambda t: t.to("cpu"), lambda t: t.to(torch.device("cpu")), lambda t: t.to(torch.ones(1)),
    lambda t: t.to("remote_accelerator:0"), lambda t: t.to(device="cpu", non_blocking=True),
])  # fmt: skip
def test_M4_moving_allocates_memory_of_the_same_kind(move: Callable) -> None:
    t = mindtorch.empty_strided((3, 4), (1, 3), device="meta").requires_grad_()
    out = move(t)
    assert (out.shape, out.stride(), out.dtype, out.requires_grad) == (t.shape, t.stride(), t.dtype, True)
    assert out.device.type != "meta" and out.is_leaf


def test_M4_cuda_by_number_is_cudas(monkeypatch: pytest.MonkeyPatch) -> None:
    went: list[Any] = []
    monkeypatch.setattr(mindtorch.MetaTensor, "to", lambda self, device: went.append(device))
    for given in ((), (1,), ("cuda:2",), (torch.device("cuda:3"),)):  # 1: of CUDA, whatever accelerator torch knows
        meta(2).cuda(*given)
    assert went == ["cuda", "cuda:1", "cuda:2", torch.device("cuda:3")]


def test_M4_dtype_and_layout_are_heeded() -> None:
    t = meta(2, 3, 4, 5)
    assert t.to("cpu", torch.float64).dtype is torch.float64
    assert t.to(torch.int32).dtype is torch.int32 and t.to(torch.int32).is_meta
    assert t.to("cpu", memory_format=torch.channels_last).is_contiguous(memory_format=torch.channels_last)
    assert t.to("meta") is t and t.to("meta:1").device == torch.device("meta", 1)


def test_M4_a_parameter_stays_one() -> None:
    p = torch.nn.Parameter(meta(3))
    assert isinstance(p, torch.nn.Parameter) and isinstance(p.to("cpu"), torch.nn.Parameter)


def test_M4_to_empty() -> None:
    module = torch.nn.Linear(3, 4)
    module.weight = torch.nn.Parameter(meta(4, 3))
    module.bias = torch.nn.Parameter(meta(4))
    module.to_empty(device="cpu")
    assert type(module.weight) is torch.nn.Parameter and module.weight.device.type == "cpu"
    assert module(torch.ones(2, 3)).shape == (2, 4)


# ---- M5 --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("call", [
    lambda t: torch.nonzero(t), lambda t: t[t > 0], lambda t: torch.unique(t), lambda t: t.masked_select(t > 0),
    lambda t: torch.allclose(t, t), lambda t: torch.bincount(t.long()), lambda t: torch.tensor_split(t, t.long()),
])  # fmt: skip
def test_M5_results_that_depend_on_data_raise(call: Callable) -> None:
    with pytest.raises(mindtorch.NoDataError, match=r"\[.*\] meta tensor has no data \(.*test_meta\.py:\d+\)"):
        call(meta(5))


def test_M5_what_torch_cannot_infer_is_said_so() -> None:
    with pytest.raises(mindtorch.UnsupportedOperationError, match=r"\[aten::geqrf\] torch cannot infer"):
        torch.geqrf(meta(3, 3))


# ---- copies ----------------------------------------------------------------------------------------------------------
def test_M1_copy_and_pickle() -> None:
    t = meta(2, 3, requires_grad=True)
    copied = copy.deepcopy(t)
    assert isinstance(copied, mindtorch.MetaTensor) and copied.requires_grad
    loaded = pickle.loads(pickle.dumps(t.detach()))
    assert loaded.is_meta and loaded.shape == (2, 3) and type(loaded) is torch.Tensor
    buffer = io.BytesIO()
    torch.save({"t": t}, buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True)["t"].shape == (2, 3)


# ---- D6 --------------------------------------------------------------------------------------------------------------
def test_D6_namespace_reaches_everything_torch_has() -> None:
    import mindtorch as namespace

    missing = [name for name in dir(torch) if not name.startswith("_") and not hasattr(namespace, name)]
    assert missing == []
    assert namespace.nn is torch.nn and namespace.float32 is torch.float32 and namespace.Tensor is torch.Tensor
    assert namespace.ops.aten.add is torch.ops.aten.add
    assert {"nn", "zeros", "stats"} <= set(dir(namespace))
    with pytest.raises(AttributeError, match="neither module 'mindtorch' nor torch has an attribute 'no_such_thing'"):
        namespace.no_such_thing


def test_D6_cpu_tensors_are_plain() -> None:
    for device in (None, "cpu", mindtorch.device("cpu"), torch.device("cpu")):
        assert type(mindtorch.ones(2, device=device)) is torch.Tensor
    assert type(mindtorch.tensor([1.0])) is torch.Tensor
    assert type(mindtorch.from_numpy(numpy.ones(2))) is torch.Tensor
    assert isinstance(mindtorch.from_numpy(numpy.ones(2), device="meta"), mindtorch.MetaTensor)
    assert isinstance(mindtorch.as_tensor([1], device="remote_accelerator"), mindtorch.LazyTensor)
    assert isinstance(mindtorch.ones(2, device=mindtorch.device("remote_accelerator:0")), mindtorch.LazyTensor)


def test_D6_default_device() -> None:
    with mindtorch.device("meta:1"):
        assert str(mindtorch.zeros(2).device) == "meta:1" and isinstance(mindtorch.zeros(2), mindtorch.MetaTensor)
    mindtorch.set_default_device("meta")
    try:
        assert isinstance(mindtorch.tensor([1, 2]), mindtorch.MetaTensor)
    finally:
        mindtorch.set_default_device(None)
    assert type(mindtorch.zeros(2)) is torch.Tensor


def test_D6_torchs_own_meta_tensors_stay_torchs() -> None:
    t = torch.ones(2, device="meta")
    assert type(t) is torch.Tensor and type(t + t) is torch.Tensor
    with pytest.raises(NotImplementedError):
        t.to("cpu")


def test_D6_a_module_of_torchs_own_meta_parameters_takes_ours() -> None:
    module = torch.nn.Linear(3, 4, device="meta")
    out = module(meta(2, 3))
    assert isinstance(out, mindtorch.MetaTensor) and out.grad_fn is not None
    out.sum().backward()
    assert module.weight.grad.is_meta and module.weight.grad.shape == (4, 3)


def test_M1_a_profile_of_a_program_without_data() -> None:
    model = torch.nn.Linear(3, 4).to_empty(device="cpu")
    model.weight = torch.nn.Parameter(mindtorch.ones(4, 3, device="meta"))
    with Profiler() as profiler:
        model(mindtorch.ones(2, 3, device="meta"))
    assert profiler.report()["totals"]["flops"] == 2 * 2 * 3 * 4


def test_D6_meta_is_ours_for_torchs_own_code_in_files_that_call_mindtorch_torch(
    after_a_step: Callable[..., Any],
) -> None:
    code = """
        import mindtorch as torch
        from mindtorch import MetaTensor, nn

        x = torch.ones(2, 3)
        for moved in (x.to("meta:1"), x.to(torch.device("meta:1")), x.to(device="meta:1", dtype=torch.float64),
                      x.new_zeros(2, device="meta:1"), (x.to("meta:1") + 1).sum()):
            assert isinstance(moved, MetaTensor) and str(moved.device) == "meta:1", moved
        assert x.to("meta:1", torch.float64).dtype is torch.float64 and str(x.to("meta").device) == "meta"
        for place in ("meta", "meta:1"):
            made = nn.Linear(2, 2, device=place)
            moved = torch.nn.Linear(2, 2).to(place)
            with torch.device(place):
                within = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
            for module in (made, moved, within):
                for p in module.parameters():
                    assert isinstance(p, nn.Parameter) and isinstance(p, MetaTensor) and str(p.device) == place, p
                out = module(torch.ones(4, 2, device=place))
                assert str(out.device) == place and out.shape == (4, 2) and out.requires_grad
                out.sum().backward()
                assert all(str(p.grad.device) == place for p in module.parameters())
        optimizer = torch.optim.AdamW(made.parameters())
        optimizer.step()
        back = made.to("cpu")
        assert back is made and type(back.weight) is nn.Parameter and back.weight.device.type == "cpu"
        assert nn.Linear(2, 2, device="meta").to_empty(device="cpu").weight.shape == (2, 2)

        def inside():
            import torch  # here it is torch's own
            return torch.nn.Linear(2, 2, device="meta").weight, torch.ones(2).to("meta")

        other = {}
        exec("import torch; made = torch.nn.Linear(2, 2, device='meta').weight, torch.ones(2).to('meta:1')", other)
        for parameter, moved in (inside(), other["made"]):
            assert type(parameter) is nn.Parameter and type(moved) is torch.Tensor and moved.is_meta
        print("done")
    """
    assert after_a_step(code).stdout.strip() == "done"


def test_D6_asking_whose_torch_it_is_keeps_no_variable_alive() -> None:
    """Until Python 3.12 a look at a function's variables keeps what they hold until it returns."""
    import mindtorch as torch

    def program() -> None:
        held = torch.nn.Linear(2, 2)
        gone = weakref.ref(held)
        assert torch.ones(2).to("meta:1").device.index == 1  # asks
        seen = locals()
        torch.ones(2).to("meta:1")
        assert seen["held"] is held  # somebody else's stays as it is
        del held, seen["held"]
        assert gone() is None

    def calls_a_global() -> None:
        held = torch_function()
        gone = weakref.ref(held)
        held.to("meta")
        del held
        assert gone() is None

    def torch_function() -> torch.nn.Module:
        return torch.nn.Linear(2, 2)

    program()
    calls_a_global()


@pytest.mark.parametrize(("size", "stride", "offset", "elements"), [
    ((2, 3), (3, 1), 0, 6), ((2, 3), (3, 1), 2, 8), ((2, 3), (1, 2), 0, 6), ((2,), (5,), 0, 6), ((0, 3), (3, 1), 0, 0),
    ((), (), 0, 1), ((), (), 3, 4), ((4,), (0,), 0, 1),
])  # fmt: skip
def test_M1_storages_reach_to_the_last_element(size: tuple, stride: tuple, offset: int, elements: int) -> None:
    x = mindtorch.empty(20, device="meta:1").as_strided(size, stride, offset)
    plain, typed = x.untyped_storage(), x.storage()
    assert (plain.nbytes(), plain.size(), len(plain), plain.element_size()) == (4 * elements,) * 3 + (1,)
    assert (typed.nbytes(), typed.size(), len(typed), typed.element_size()) == (4 * elements, elements, elements, 4)
    assert plain.clone() is plain and (x.get_device(), x.materialized) == (1, False)
    for ask in (
        plain.data_ptr, plain.tolist, plain.cpu, plain.cuda, lambda: plain[0], lambda: plain.resize_(4), typed.tolist,
        lambda: typed[0], lambda: plain.to("cpu"), x.materialize, x.__dlpack_device__,
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match="meta tensor has no data"):
            ask()


@pytest.mark.parametrize("make", [
    lambda x, d: x.new(), lambda x, d: x.new(2, 3), lambda x, d: x.new([1.5, 2.5]), lambda x, d: x.new(x),
    lambda x, d: x.new(size=(4,)), lambda x, d: x.new(torch.Size([2, 1])), lambda x, d: x.new(3, device=d),
    lambda x, d: x.new([[1.0], [2.0]], device=d),
])  # fmt: skip
def test_M2_the_old_constructor_makes_what_it_makes_on_the_cpu(make: Callable) -> None:
    expected = make(torch.ones(5, dtype=torch.float64), "cpu")
    found = make(mindtorch.ones(5, dtype=torch.float64, device="meta:2"), "meta:2")
    assert (found.shape, found.dtype, str(found.device)) == (expected.shape, expected.dtype, "meta:2")
    x = mindtorch.ones(5, device="meta:2")
    for wrong, error in ((lambda: x.new(3, device="cpu"), RuntimeError), (lambda: x.new(torch.ones(2)), TypeError)):
        with pytest.raises(error):
            wrong()
