"""Creation functions on ``remote_accelerator`` (SPEC L2) and what a lazy tensor says of itself (L3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from torch.overrides import TorchFunctionMode

import mindtorch

LAZY = "remote_accelerator:0"
SPELLINGS = {
    "string": LAZY,
    "no_index": "remote_accelerator",
    "torch": torch.device(LAZY),
    "mindtorch": mindtorch.device(LAZY),
    "index_1": "remote_accelerator:1",
}
CREATIONS: dict[str, Callable[[object], torch.Tensor]] = {
    "randn": lambda d: torch.randn(3, 4, device=d),
    "randn_tuple": lambda d: torch.randn((3, 4), device=d, dtype=torch.float64),
    "randn_size": lambda d: torch.randn(size=(3, 4), device=d),
    "rand": lambda d: torch.rand(5, device=d),
    "rand_half": lambda d: torch.rand(5, device=d, dtype=torch.bfloat16),
    "zeros": lambda d: torch.zeros(2, 3, device=d),
    "zeros_0dim": lambda d: torch.zeros((), device=d, dtype=torch.int64),
    "zeros_empty": lambda d: torch.zeros(0, 3, device=d),
    "ones": lambda d: torch.ones([2, 3], dtype=torch.int32, device=d),
    "full": lambda d: torch.full((2, 2), 7, device=d),
    "full_float": lambda d: torch.full((2, 2), 7.5, device=d),
    "full_bool": lambda d: torch.full((2, 2), True, device=d),
    "full_complex": lambda d: torch.full((2,), 1 + 2j, device=d),
    "arange": lambda d: torch.arange(10, device=d),
    "arange_float": lambda d: torch.arange(1, 2, 0.25, device=d),
    "arange_step": lambda d: torch.arange(start=0, end=10, step=3, device=d),
    "range": lambda d: torch.range(1, 4, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 5, device=d),
    "logspace": lambda d: torch.logspace(0, 2, 3, device=d),
    "eye": lambda d: torch.eye(3, device=d),
    "eye_rect": lambda d: torch.eye(3, 2, dtype=torch.int64, device=d),
    "randint": lambda d: torch.randint(10, (3, 3), device=d),
    "randint_low": lambda d: torch.randint(5, 9, (4,), device=d, dtype=torch.int32),
    "randperm": lambda d: torch.randperm(10, device=d),
    "normal": lambda d: torch.normal(1.0, 2.0, (3,), device=d),
    "tensor": lambda d: torch.tensor([[1.0, 2.0]], device=d),
    "tensor_int": lambda d: torch.tensor(3, device=d),
    "tensor_bool": lambda d: torch.tensor([True, False], device=d),
    "as_tensor": lambda d: torch.as_tensor([1, 2], device=d),
    "as_tensor_numpy": lambda d: torch.as_tensor(numpy.arange(3.0), device=d),
    "asarray": lambda d: torch.asarray([1.0, 2.0], device=d),
    "scalar_tensor": lambda d: torch.scalar_tensor(2.5, device=d),
    "tril_indices": lambda d: torch.tril_indices(3, 3, device=d),
    "triu_indices": lambda d: torch.triu_indices(3, 3, device=d),
    "hann_window": lambda d: torch.hann_window(8, device=d),
    "hamming_window": lambda d: torch.hamming_window(8, device=d),
    "kaiser_window": lambda d: torch.kaiser_window(8, device=d),
    "bartlett_window": lambda d: torch.bartlett_window(8, device=d),
    "blackman_window": lambda d: torch.blackman_window(8, device=d),
    "zeros_like": lambda d: torch.zeros_like(torch.ones(2, 3), device=d),
    "ones_like": lambda d: torch.ones_like(torch.ones(2, 3, dtype=torch.int8), device=d),
    "rand_like": lambda d: torch.rand_like(torch.ones(2, 3), device=d),
    "randn_like": lambda d: torch.randn_like(torch.ones(2, 3), device=d, dtype=torch.float64),
    "full_like": lambda d: torch.full_like(torch.ones(2, 3), 4, device=d),
    "randint_like": lambda d: torch.randint_like(torch.ones(2, 3), 9, device=d),
    "zeros_like_transposed": lambda d: torch.zeros_like(torch.ones(2, 3).t(), device=d),
    "new_zeros": lambda d: torch.ones(2, dtype=torch.float64).new_zeros((2, 3), device=d),
    "new_zeros_varargs": lambda d: torch.ones(2).new_zeros(2, 3, device=d),
    "new_ones": lambda d: torch.ones(2, dtype=torch.int16).new_ones(4, device=d),
    "new_full": lambda d: torch.ones(2).new_full((2, 2), 3.0, device=d),
    "new_tensor": lambda d: torch.ones(2, dtype=torch.float64).new_tensor([1, 2, 3], device=d),
    "kwargs_names": lambda d: torch.zeros(size=(2,), dtype=torch.float16, device=d),
    "channels_last": lambda d: torch.zeros_like(torch.ones(1, 2, 3, 4), memory_format=torch.channels_last, device=d),
    "normal_tensor_mean": lambda d: torch.normal(torch.zeros(3, device=d), 1.0),
    "bernoulli": lambda d: torch.bernoulli(torch.full((10,), 0.5, device=d)),
    "multinomial": lambda d: torch.multinomial(torch.ones(10, device=d), 4),
    "vander": lambda d: torch.vander(torch.arange(3.0, device=d)),
    "from_numpy_to": lambda d: torch.from_numpy(numpy.arange(3)).to(d),
    "complex": lambda d: torch.complex(torch.ones(2, device=d), torch.zeros(2, device=d)),
    "polar": lambda d: torch.polar(torch.ones(2, device=d), torch.zeros(2, device=d)),
}


def draw(make: Callable[[object], torch.Tensor], device: object) -> torch.Tensor:
    torch.manual_seed(3)
    return make(device)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("name", CREATIONS)
def test_L2_creation_equals_the_cpus(name: str, spelling: str, same_bits: Callable[..., None]) -> None:
    device = SPELLINGS[spelling]
    if name == "from_numpy_to" and spelling == "mindtorch":
        device = mindtorch.device(LAZY)
    expected, got = draw(CREATIONS[name], "cpu"), draw(CREATIONS[name], device)
    assert isinstance(got, mindtorch.LazyTensor) and isinstance(got, torch.Tensor)
    assert got.device == torch.device("remote_accelerator", 1 if spelling == "index_1" else 0)
    assert (got.dtype, got.shape, got.stride()) == (expected.dtype, expected.shape, expected.stride())
    same_bits(got, expected, name)


EMPTY: dict[str, Callable[[object], torch.Tensor]] = {
    "empty": lambda d: torch.empty(2, 3, device=d),
    "empty_strided": lambda d: torch.empty_strided((2, 3), (1, 2), device=d),
    "empty_permuted": lambda d: torch.empty_permuted((2, 3), (1, 0), device=d),
    "empty_like": lambda d: torch.empty_like(torch.ones(2, 3).t(), device=d),
    "empty_channels_last": lambda d: torch.empty(1, 2, 3, 4, memory_format=torch.channels_last, device=d),
    "new_empty": lambda d: torch.ones(2, dtype=torch.float64).new_empty((2, 3), device=d),
    "new_empty_strided": lambda d: torch.ones(2).new_empty_strided((2, 3), (3, 1), device=d),
}


@pytest.mark.parametrize("name", EMPTY)
def test_L2_uninitialized_creation_has_the_cpus_layout(name: str) -> None:
    expected, got = EMPTY[name]("cpu"), EMPTY[name](LAZY)
    assert isinstance(got, mindtorch.LazyTensor)
    assert (got.dtype, got.shape, got.stride()) == (expected.dtype, expected.shape, expected.stride())
    assert got.fill_(2).cpu().eq(2).all()


FROM_LAZY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "full_like": lambda x: torch.full_like(x, 3),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda x: torch.randint_like(x, 2, 9),
    "zeros_like_int": lambda x: torch.zeros_like(x, dtype=torch.int64),
    "new_zeros": lambda x: x.new_zeros(2, 3),
    "new_ones": lambda x: x.new_ones((2, 3), dtype=torch.int64),
    "new_full": lambda x: x.new_full((2,), 9),
    "new_tensor": lambda x: x.new_tensor([1, 2]),
    "zeros_on_device": lambda x: torch.zeros(2, device=x.device),
    "tensor_on_device": lambda x: torch.tensor([1, 2], device=x.device),
    "arange_on_device": lambda x: torch.arange(x.shape[0], device=x.device, dtype=x.dtype),
    "clone": torch.clone,
}


@pytest.mark.parametrize("name", FROM_LAZY)
def test_L2_like_functions_stay_on_the_lazy_device(name: str, same_bits: Callable[..., None]) -> None:
    expected = draw(lambda d: FROM_LAZY[name](torch.ones(3, 2, device=d, dtype=torch.float64).t()), "cpu")
    for index in (0, 1):
        device = f"remote_accelerator:{index}"
        got = draw(lambda d: FROM_LAZY[name](torch.ones(3, 2, device=d, dtype=torch.float64).t()), device)
        assert isinstance(got, mindtorch.LazyTensor) and str(got.device) == device
        assert got.stride() == expected.stride()
        same_bits(got, expected, name)


@pytest.mark.parametrize("name", ["zeros_like", "new_zeros", "randn_like"])
def test_L2_a_lazy_like_can_be_made_on_the_cpu(name: str) -> None:
    x = torch.ones(2, 3, device=LAZY)
    made = x.new_zeros(2, 3, device="cpu") if name == "new_zeros" else getattr(torch, name)(x, device="cpu")
    assert type(made) is torch.Tensor and made.device.type == "cpu" and made.shape == (2, 3)


def test_L2_requires_grad() -> None:
    x = torch.randn(3, device=LAZY, requires_grad=True)
    assert x.requires_grad and x.is_leaf and x.grad_fn is None
    (x * x).sum().backward()
    assert x.grad is not None and torch.equal(x.grad.cpu(), (2 * x).detach().cpu())
    y = torch.tensor([1.0], device=LAZY, requires_grad=True)
    assert y.requires_grad and y.is_leaf
    with pytest.raises(RuntimeError, match="floating point"):
        torch.zeros(2, dtype=torch.int64, device=LAZY, requires_grad=True)


@pytest.fixture
def float64_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64_default")
@pytest.mark.parametrize(
    "name", ["randn", "zeros", "full_float", "linspace", "tensor", "normal", "arange_float", "eye"]
)
def test_L2_default_dtype_is_read_when_the_call_is_made(name: str, same_bits: Callable[..., None]) -> None:
    expected, got = draw(CREATIONS[name], "cpu"), draw(CREATIONS[name], LAZY)
    torch.set_default_dtype(torch.float32)
    assert got.dtype == torch.float64
    same_bits(got, expected, name)


def test_L2_default_dtype_changes_between_recording_and_running() -> None:
    x = torch.arange(3, device=LAZY)
    before = x / 2
    torch.set_default_dtype(torch.float64)
    try:
        after = x / 2
        made = torch.ones(2, device=LAZY)
    finally:
        torch.set_default_dtype(torch.float32)
    again = torch.ones(2, device=LAZY)
    for t, dtype in ((before, torch.float32), (after, torch.float64), (made, torch.float64), (again, torch.float32)):
        assert t.dtype == dtype and t.cpu().dtype == dtype


@pytest.mark.parametrize("spelling", ["string", "torch", "index_1"])
def test_L2_device_context(spelling: str) -> None:
    device = torch.device(SPELLINGS[spelling])
    with device:
        tensors = [
            torch.randn(2),
            torch.zeros(2),
            torch.tensor([1.0]),
            torch.arange(3),
            torch.as_tensor([1]),
            torch.nn.Linear(2, 2).weight,
            torch.empty(2),
            torch.eye(2),
        ]
        on_cpu = torch.zeros(2, device="cpu")
    assert [str(t.device) for t in tensors] == [str(device)] * len(tensors)
    assert type(on_cpu) is torch.Tensor and on_cpu.device.type == "cpu"
    assert torch.zeros(2).device.type == "cpu"


def test_L2_mindtorch_device_context() -> None:
    with mindtorch.device(LAZY):
        assert str(mindtorch.get_default_device()) == LAZY


def test_L2_what_is_made_on_the_way_is_not_on_the_default_device() -> None:
    x = torch.ones(2, dtype=torch.float64, device=LAZY)
    sequences = torch.nn.utils.rnn.pack_sequence([torch.ones(3, 2, device=LAZY), torch.ones(2, 2, device=LAZY)])
    torch.set_default_device(LAZY)
    try:
        made = x.new(), x.new(3), x.new([1, 2])
        other = [x.new_zeros(3, device="cpu"), x.new_full((3,), 1.0, device="cpu")]
        lengths = torch.nn.utils.rnn.pad_packed_sequence(sequences)[1]
    finally:
        torch.set_default_device(None)
    assert [(t.shape[0], t.dtype, str(t.device)) for t in made] == [(n, torch.float64, LAZY) for n in (0, 3, 2)]
    assert {str(t.device) for t in (*other, lengths)} == {"cpu"} and lengths.tolist() == [3, 2]


def test_L2_set_default_device() -> None:
    torch.set_default_device(LAZY)
    try:
        made = torch.randn(2), torch.tensor([1, 2]), torch.nn.Linear(2, 2).weight
        assert torch.get_default_device() == torch.device(LAZY)
    finally:
        torch.set_default_device(None)
    assert all(isinstance(t, mindtorch.LazyTensor) for t in made)
    assert torch.zeros(2).device.type == "cpu"


def test_L2_module_made_in_a_device_context_equals_the_cpus(same_bits: Callable[..., None]) -> None:
    def build() -> torch.nn.Module:
        torch.manual_seed(5)
        return torch.nn.Sequential(
            torch.nn.Linear(4, 8),
            torch.nn.Conv1d(1, 2, 3),
            torch.nn.LSTM(3, 4),
            torch.nn.Embedding(5, 3),
            torch.nn.BatchNorm1d(4),
        )

    eager = build()
    with torch.device(LAZY):
        lazy = build()
    assert all(isinstance(p, torch.nn.Parameter) for p in lazy.parameters())
    for (name, p), q in zip(eager.state_dict().items(), lazy.state_dict().values()):
        same_bits(q, p, name)


def test_L2_bad_calls_fail_as_on_the_cpu() -> None:
    for bad in (
        lambda d: torch.zeros(-1, device=d),
        lambda d: torch.randint(5, 1, (2,), device=d),
        lambda d: torch.zeros("x", device=d),
        lambda d: torch.arange(0, 5, -1, device=d),
        lambda d: torch.tensor([[1], [1, 2]], device=d),
        lambda d: torch.zeros(2, dtype="x", device=d),
        lambda d: torch.empty_strided((2,), (1, 2), device=d),
    ):
        with pytest.raises(Exception) as eager:
            bad("cpu")
        with pytest.raises(type(eager.value)):
            bad(LAZY)
    with pytest.raises(RuntimeError):
        torch.zeros(2, device="remote_accelerator:x")
    with pytest.raises(RuntimeError):
        torch.zeros(2, device="remote_acceleratorx")


WITH_OUT: dict[str, Callable[[str, torch.Tensor], torch.Tensor]] = {
    "zeros": lambda d, out: torch.zeros(3, out=out, device=d),
    "full": lambda d, out: torch.full((3,), 2.0, out=out, device=d, dtype=torch.float32),
    "arange": lambda d, out: torch.arange(3, out=out, device=d),
    "linspace": lambda d, out: torch.linspace(0, 1, 3, out=out, device=d),
    "randn": lambda d, out: torch.randn(3, out=out, device=d),
    "resized": lambda d, out: torch.ones(5, out=out, device=d),
    "generator": lambda d, out: torch.randn(3, out=out, device=d, generator=torch.Generator(d).manual_seed(3)),
}


@pytest.mark.parametrize("name", WITH_OUT)
def test_L2_out_is_what_comes_back(name: str, same_as_eager: Callable[..., None]) -> None:
    def program(d: str) -> object:
        out = torch.full((3,), 7.0, device=d)
        base = torch.full((4,), 7.0, device=d)
        assert WITH_OUT[name](d, out) is out
        return (out, base) if name == "resized" else (out, WITH_OUT[name](d, base[1:]), base)

    same_as_eager(program)
    with pytest.raises(RuntimeError, match=r"expected out= on remote_accelerator:0, got cpu"):
        WITH_OUT[name](LAZY, torch.zeros(3))
    with pytest.raises(RuntimeError, match=r"expected out= on remote_accelerator:0, got remote_accelerator:1"):
        WITH_OUT[name](LAZY, torch.zeros(3, device="remote_accelerator:1"))
    with pytest.raises(RuntimeError, match="does not match"):
        torch.zeros(3, out=torch.zeros(3, device=LAZY), device=LAZY, dtype=torch.float64)


def test_L2_generator_argument_draws_from_that_generator(same_bits: Callable[..., None]) -> None:
    expected = torch.randn(4, generator=torch.Generator().manual_seed(9))
    got = torch.randn(4, generator=torch.Generator(LAZY).manual_seed(9), device=LAZY)
    assert isinstance(got, mindtorch.LazyTensor)
    same_bits(got, expected)


# ---- L3 --------------------------------------------------------------------------------------------------------------
def test_L3_describes_itself_without_running_anything() -> None:
    ran = mindtorch.stats()["ops_executed"]
    x = torch.randn(2, 3, 4, device=LAZY)
    y = (x.transpose(0, 1) + 1).to(torch.float64)
    view = x.view(6, 4)[1:3]
    p = torch.nn.Parameter(torch.zeros(3, device=LAZY))
    z = (p * 2).sum()
    assert isinstance(x, torch.Tensor) and isinstance(x, mindtorch.LazyTensor) and torch.is_tensor(x)
    assert x.shape == (2, 3, 4) and x.size(1) == 3 and x.dim() == x.ndim == 3 and x.numel() == x.nelement() == 24
    assert len(x) == 2 and x.element_size() == 4 and x.nbytes == 96 and x.itemsize == 4
    assert y.shape == (3, 2, 4) and y.dtype == torch.float64 and y.is_floating_point() and not y.is_complex()
    assert x.stride() == (12, 4, 1) and x.stride(0) == 12 and x.storage_offset() == 0
    assert x.transpose(0, 2).stride() == (1, 4, 12) and not x.transpose(0, 2).is_contiguous()
    assert x.is_contiguous() and x.is_contiguous(memory_format=torch.contiguous_format)
    assert view.shape == (2, 4) and view.storage_offset() == 4
    assert x.device == torch.device(LAZY) and x.device.type == "remote_accelerator" and x.is_leaf
    assert not x.requires_grad and x.grad_fn is None and x.grad is None
    assert p.requires_grad and p.is_leaf and isinstance(p, torch.nn.Parameter)
    assert z.requires_grad and not z.is_leaf and type(z.grad_fn).__name__ == "SumBackward0"
    assert x.layout is torch.strided and not x.is_sparse and not x.is_inference()
    assert x.mT.shape == (2, 4, 3)
    assert x.is_signed() and not x.is_conj() and not x.is_neg()
    assert x.shape is not None and isinstance(x.shape, torch.Size)
    assert mindtorch.stats()["ops_executed"] == ran, "describing a lazy tensor ran something"


def test_L3_views_say_so_without_running_anything() -> None:
    ran = mindtorch.stats()["ops_executed"]
    x = torch.randn(4, 4, device=LAZY, requires_grad=True)
    y = x.view(16)
    assert y._is_view() and y._base is x
    assert x[0]._is_view() and x[0]._base is x
    assert not (x + 1)._is_view() and (x + 1)._base is None
    base = torch.zeros(4, device=LAZY)
    assert base[1:]._is_view() and base[1:]._base is base
    assert x.detach().is_leaf and not x.detach().requires_grad
    assert mindtorch.stats()["ops_executed"] == ran


def test_L3_shapes_of_a_model_without_running_anything() -> None:
    ran = mindtorch.stats()["ops_executed"]
    model = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).to(LAZY)
    out = model(torch.randn(2, 5, 16, device=LAZY))
    assert out.shape == (2, 5, 16) and out.requires_grad
    loss = out.sum()
    loss.backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in model.parameters())
    assert mindtorch.stats()["ops_executed"] == ran


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("grad", [False, True])
def test_L3_convolutions_are_laid_out_as_eager_lays_them_out(dtype: torch.dtype, grad: bool) -> None:
    shapes = ((8, 16, 40, 40), (32, 16, 3, 3)), ((8, 1, 40, 40), (32, 1, 3, 3)), ((1, 4, 9, 9), (8, 4, 1, 1))
    for image, weight in shapes:
        x, w = torch.randn(image, dtype=dtype), torch.randn(weight, dtype=dtype, requires_grad=grad)
        for last in (x.to(memory_format=torch.channels_last), x):
            eager = torch.conv2d(last, w)
            lazy = torch.conv2d(last.to("remote_accelerator"), w.to("remote_accelerator"))
            assert lazy.stride() == eager.stride() == lazy.detach().cpu().stride()
    volume, weight3 = (torch.randn(2, 4, 9, 30, 30, dtype=dtype).to(memory_format=torch.channels_last_3d),
                       torch.randn(4, 4, 3, 3, 3, dtype=dtype, requires_grad=grad))  # fmt: skip
    for convolve in (torch.conv3d, torch.conv_transpose3d):
        for padding in (0, "same") if convolve is torch.conv3d else (1,):
            eager = convolve(volume, weight3, padding=padding)
            assert convolve(volume.to(LAZY), weight3.to(LAZY), padding=padding).stride() == eager.stride()


def test_L3_their_class_makes_what_torch_tensor_makes(same_as_eager: Callable[..., None]) -> None:
    """As with ``type(t)(...)`` in programs: the legacy constructor, and so a tensor of the default device."""
    assert type(mindtorch.LazyTensor([1.0])) is torch.Tensor
    same_as_eager(lambda d: [type(torch.ones(1, device=d))(*given) for given in ((), ([1.0, 2.0],), (torch.ones(2),))])


# ---- L9 --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "call",
    [
        lambda device: torch.rand(3, dtype=torch.int64, device=device),
        lambda device: torch.randn(3, dtype=torch.bool, device=device),
        lambda device: torch.randperm(5, dtype=torch.bool, device=device),
        lambda device: torch.rand_like(torch.ones(3, dtype=torch.int64, device=device)),
        lambda device: torch.randn_like(torch.ones(3, device=device), dtype=torch.int32),
        lambda device: torch.randint_like(torch.ones(3, device=device), 5, dtype=torch.bool),
    ],
)
def test_L9_draws_that_the_kernel_refuses_raise_at_the_call(call: Callable[[str], object]) -> None:
    states = []
    for device in ("cpu", LAZY):
        torch.manual_seed(0)
        with pytest.raises((NotImplementedError, RuntimeError), match=r"not implemented for|out of bounds"):
            call(device)
        states.append(torch.rand(2, device=device).tolist())
    assert states[0] == states[1]


@pytest.mark.parametrize("spec", SPELLINGS.values(), ids=SPELLINGS)
def test_L2_function_modes_see_creation_once_and_nothing_of_the_engine(spec: object) -> None:
    class Seen(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append((func, (kwargs or {}).get("device")))
            return func(*args, **(kwargs or {}))

    for name, args in (
        ("zeros", (2,)),
        ("randn", (2,)),
        ("tensor", ([1.0, 2.0],)),
        ("arange", (3,)),
        ("eye", (2,)),
        ("full", ((2,), 3.0)),
        ("empty", (2,)),
        ("linspace", (0, 1, 3)),
        ("rand", (2,)),
    ):
        seen: list[tuple[Any, object]] = []
        with Seen(), Seen():
            made = getattr(torch, name)(*args, device=spec)
        assert seen == [(getattr(torch, name), spec)] * 2 and isinstance(made, mindtorch.LazyTensor)
        with Seen(), torch.device(LAZY):
            seen.clear()
            made = getattr(torch, name)(*args)
            calls = list(seen)
        assert [func for func, _ in calls] == [getattr(torch, name)] and isinstance(made, mindtorch.LazyTensor)
    assert isinstance(torch.zeros(2, device=spec), mindtorch.LazyTensor)  # type: ignore[call-overload]


LIKE: dict[str, Callable[..., torch.Tensor]] = {
    **{f"{name}_like": getattr(torch, f"{name}_like") for name in ("empty", "zeros", "ones", "rand", "randn")},
    "full_like": lambda x, **given: torch.full_like(x, 3, **given),
    "randint_like": lambda x, **given: torch.randint_like(x, 5, **given),
    **{f"new_{name}": getattr(torch.Tensor, f"new_{name}") for name in ("empty", "zeros", "ones")},
    "new_full": lambda x, size, **given: x.new_full(size, 3, **given),
}
DEVICES: dict[str, tuple[Any, Any]] = {  # as said of a lazy one, and of a plain one instead
    "nowhere": (None, None),
    "there": (LAZY, "cpu"),
    "the other": ("remote_accelerator:1", "cpu"),
    "here": ("cpu", "cpu"),
    "no data": ("meta", "meta"),
}


@pytest.mark.parametrize("name", LIKE)
@pytest.mark.parametrize("where", DEVICES)
def test_L2_what_is_made_like_another_is_what_torch_makes(name: str, where: str) -> None:
    """Of any layout, and with each of the arguments by name."""
    plain = [torch.ones(2, 3), torch.ones(2, 3).t(), torch.ones(2, 1, dtype=torch.int16).expand(2, 3), torch.ones(())]
    plain += [torch.ones(1, 2, 3, 4).contiguous(memory_format=torch.channels_last), torch.ones(2, 6)[:, ::2]]
    options: list[dict[str, Any]] = [{}, {"dtype": torch.float64}, {"dtype": torch.float32, "requires_grad": True}]
    options += [{"pin_memory": False}, {"layout": torch.strided}]
    if name.endswith("_like"):
        options += [{"memory_format": form} for form in (torch.preserve_format, torch.contiguous_format)]
    there, instead = DEVICES[where]
    for x in plain:
        lazy = x.to(LAZY) if x.is_contiguous() else x.to(LAZY).as_strided(x.shape, x.to(LAZY).stride())
        x = torch.empty_strided(x.shape, lazy.stride(), dtype=x.dtype)
        for given in options:
            if name.startswith("rand") and name.endswith("_like") and not given.get("dtype", x.dtype).is_floating_point:
                continue
            sizes = () if name.endswith("_like") else ((3, 4),)
            expected = LIKE[name](x, *sizes, **given, device=instead)
            made = LIKE[name](lazy, *sizes, **given, device=there)
            assert (made.shape, made.stride(), made.dtype) == (expected.shape, expected.stride(), expected.dtype)
            assert str(made.device) == (there or LAZY) and made.requires_grad == expected.requires_grad
            if not name.startswith(("empty", "rand", "new_empty")) and where != "no data":
                assert torch.equal(made.cpu(), expected)
