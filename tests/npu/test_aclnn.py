"""N5: native operations through the two-phase calls, over the test library, compared with torch on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import acl_library
import pytest
import torch
from device_memory import block_of, get

import mindtorch
from mindtorch._ext import aclnn, blocks
from mindtorch.npu.kernels import DTYPES, NATIVE, Calls


class Fake:
    """A tensor on npu:0, laid out as a CPU tensor is."""

    def __init__(self, device: Device, like: torch.Tensor) -> None:
        self.device, self.dtype, self.sizes, self.strides = device, like.dtype, tuple(like.shape), like.stride()
        self.offset, self.numel = like.storage_offset(), like.untyped_storage().nbytes() // like.itemsize
        self.block = block_of(0, bytes(like.untyped_storage()))
        self.base = self.block.ptr

    @property
    def description(self) -> tuple:
        return self.base, self.sizes, self.strides, self.offset, self.numel, DTYPES[self.dtype]

    def back(self) -> torch.Tensor:
        flat = torch.frombuffer(bytearray(get(self.block)) or bytearray(1), dtype=torch.uint8)[: self.block.nbytes]
        return flat.view(self.dtype).as_strided(self.sizes, self.strides, self.offset)


class Device:
    """What the tensors' layer gives kernels."""

    def __init__(self, library: acl_library.Library) -> None:
        self.library = library
        self.calls = Calls(self.describe, self.empty, 0)

    def describe(self, value: object) -> tuple | None:
        return value.description if isinstance(value, Fake) else None

    def empty(self, sizes: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...] | None) -> Fake:
        made = torch.empty(sizes, dtype=dtype) if strides is None else torch.empty_strided(sizes, strides, dtype=dtype)
        return Fake(self, made)

    def give(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return Fake(self, value)
        return [self.give(each) for each in value] if isinstance(value, list) else value

    def run(self, name: str, *args: Any, **kwargs: Any) -> Any:
        result = NATIVE[name](self.calls, tuple(self.give(each) for each in args), kwargs)
        if isinstance(result, tuple):
            return tuple(each.back() for each in result)
        return result.back() if isinstance(result, Fake) else result

    def queued(self, name: str) -> int:
        """How many second phases there were."""
        return self.library.calls(f"aclnn{name}")


@pytest.fixture
def device(npu_library: acl_library.Library) -> Iterator[Device]:
    """npu:0 with the product's own pool and allocator; no description or executor may be left at the end."""
    npu_library.clear()
    yield Device(npu_library)
    npu_library.release()
    for index in range(mindtorch.npu.device_count()):
        mindtorch.npu.synchronize(index)
    assert npu_library.violations() == []
    assert [line for line in npu_library.leaks() if " acl" in line] == []


@pytest.fixture
def npu(device: Device) -> ModuleType:
    return mindtorch.npu


def eager(name: str, *args: Any, **kwargs: Any) -> Any:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")(*args, **kwargs)


def same(native: Any, expected: Any, exact: bool) -> None:
    if isinstance(expected, tuple):
        for one, other in zip(native, expected, strict=True):
            same(one, other, exact)
        return
    assert (native.dtype, native.shape, native.stride()) == (expected.dtype, expected.shape, expected.stride())
    if exact:
        torch.testing.assert_close(native, expected, rtol=0, atol=0, equal_nan=True)
    else:
        torch.testing.assert_close(native, expected, equal_nan=True)


def layouts(*sizes: int) -> list[torch.Tensor]:
    """Tensors of one shape: contiguous, transposed, with gaps and an offset, expanded."""
    plain = torch.randn(sizes)
    gaps = torch.randn(3, *(2 * size + 1 for size in sizes))[1][tuple(slice(1, None, 2) for _ in sizes)]
    turned = torch.randn(sizes[::-1]).permute(*range(len(sizes))[::-1])
    return [plain, turned, gaps, torch.randn(sizes[-1]).expand(sizes)]


LAYOUTS = range(4)
EXACT = ["add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", EXACT)
def test_N5_binary_operations_are_exact(device: Device, name: str, layout: int) -> None:
    one = layouts(3, 4)[layout]
    numbers = [2.5, -3] if name == "sub.Tensor" else [2.5, -3, True]
    for other in [*layouts(3, 4), *map(torch.randn, [(4,), (3, 1), (2, 1, 1), ()]), *numbers]:
        same(device.run(f"aten::{name}", one, other), eager(f"aten::{name}", one, other), True)


@pytest.mark.parametrize("name", ["add.Tensor", "sub.Tensor"])
def test_N5_alpha_scales_the_other_operand(device: Device, name: str) -> None:
    one, other = torch.randn(3, 4), torch.randn(4)
    for alpha in (2, -0.5):
        native = device.run(f"aten::{name}", one, other, alpha=alpha)
        same(native, eager(f"aten::{name}", one, other, alpha=alpha), False)
    same(device.run(f"aten::{name}", one, 3, alpha=2), eager(f"aten::{name}", one, 3, alpha=2), True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["neg", "relu", "exp", "sigmoid", "tanh", "silu", "gelu"])
def test_N5_unary_operations(device: Device, name: str, layout: int) -> None:
    for one in [layouts(3, 4)[layout], torch.tensor([0.0, -0.0, float("inf"), float("nan")]), torch.randn(()),
                torch.empty(0, 2)]:  # fmt: skip
        same(device.run(f"aten::{name}", one), eager(f"aten::{name}", one), name in ("neg", "relu"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_N5_short_floats(device: Device, dtype: torch.dtype) -> None:
    one, other = torch.randn(4, 5).to(dtype), torch.randn(5).to(dtype)
    same(device.run("aten::add.Tensor", one, other), one + other, True)
    same(device.run("aten::mul.Tensor", one, 1.5), one * 1.5, True)
    same(device.run("aten::exp", one), one.exp(), False)
    same(device.run("aten::mm", one, one.t()), one @ one.t(), False)
    same(device.run("aten::_to_copy", one, dtype=torch.float32), one.float(), True)


def test_N5_conversions_round_as_torch_does(device: Device) -> None:
    values = torch.cat([torch.randn(500) * 10.0**p for p in range(-9, 6)] + [torch.tensor([65504.0, 65519.9, 65520.0])])
    for dtype in (torch.float16, torch.bfloat16):
        same(device.run("aten::_to_copy", values, dtype=dtype), values.to(dtype), True)


def test_N5_gelu_in_both_modes(device: Device) -> None:
    one = torch.randn(100) * 3
    for mode in ("none", "tanh"):
        same(device.run("aten::gelu", one, approximate=mode), torch.nn.functional.gelu(one, approximate=mode), False)


@pytest.mark.parametrize("name", ["add_.Tensor", "sub_.Tensor", "mul_.Tensor", "div_.Tensor"])
def test_N5_in_place_operations_change_the_tensor_itself(device: Device, name: str) -> None:
    for one in layouts(3, 4)[:3]:
        for other in (torch.randn(3, 4), torch.randn(4), 2.0):
            held = device.give(one)
            result = NATIVE[f"aten::{name}"](device.calls, (held, device.give(other)), {})
            assert result is held
            same(held.back(), eager(f"aten::{name}", one, other), True)


def test_N5_in_place_operations_refuse_overlaps(device: Device) -> None:
    expanded = device.give(torch.randn(4).expand(3, 4))
    assert NATIVE["aten::add_.Tensor"](device.calls, (expanded, 1.0), {}) is NotImplemented
    assert NATIVE["aten::relu_"](device.calls, (expanded,), {}) is NotImplemented
    assert NATIVE["aten::zero_"](device.calls, (expanded,), {}) is NotImplemented
    whole = device.give(torch.randn(6))
    part = device.give(torch.randn(5))
    part.base, part.numel, part.offset = whole.base, whole.numel, 1
    shorter = device.give(torch.randn(5))
    shorter.base, shorter.numel = whole.base, whole.numel
    assert NATIVE["aten::copy_"](device.calls, (part, shorter), {}) is NotImplemented
    assert NATIVE["aten::add_.Tensor"](device.calls, (part, shorter), {}) is NotImplemented
    assert NATIVE["aten::copy_"](device.calls, (part, part), {}) is part


@pytest.mark.parametrize(("one", "other"), [((3, 4), (4, 5)), ((1, 4), (4, 1)), ((0, 4), (4, 2))])
def test_N5_matrix_products(device: Device, one: tuple[int, ...], other: tuple[int, ...]) -> None:
    a, b = torch.randn(one), torch.randn(other)
    same(device.run("aten::mm", a, b), a @ b, False)
    transposed = torch.randn(one[::-1]).t(), torch.randn(other[::-1]).t()
    same(device.run("aten::mm", *transposed), transposed[0] @ transposed[1], False)
    for added in (torch.randn(other[1]), torch.randn(one[0], other[1]), torch.randn(1, 1), torch.randn(())):
        same(device.run("aten::addmm", added, a, b), torch.addmm(added, a, b), False)
        same(device.run("aten::addmm", added, a, b, beta=0.5, alpha=2),
             torch.addmm(added, a, b, beta=0.5, alpha=2), False)  # fmt: skip


def test_N5_addmm_with_beta_0_does_not_look_at_what_is_added(device: Device) -> None:
    a, b, added = torch.randn(2, 3), torch.randn(3, 2), torch.full((2,), float("nan"))
    same(device.run("aten::addmm", added, a, b, beta=0), a @ b, False)


def test_N5_batched_products(device: Device) -> None:
    a, b = torch.randn(3, 2, 4), torch.randn(3, 4, 5)
    same(device.run("aten::bmm", a, b), torch.bmm(a, b), False)
    same(device.run("aten::bmm", a.transpose(1, 2), a), torch.bmm(a.transpose(1, 2), a), False)
    for one, other in [((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 2)), ((2, 3, 4), (4,)), ((2, 1, 3, 4), (5, 4, 2)),
                       ((4,), (2, 4, 3))]:  # fmt: skip
        x, y = torch.randn(one), torch.randn(other)
        same(device.run("aten::matmul", x, y), x @ y, False)


def test_N5_float32_products_are_computed_in_float32(device: Device) -> None:
    a, b = torch.full((1, 1), 1 + 2.0**-20), torch.ones(1, 1)
    assert device.run("aten::mm", a, b).item() == a.item()  # the cube unit's shorter formats would lose this


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["sum", "mean"])
def test_N5_sums_and_means(device: Device, name: str, layout: int) -> None:
    one = layouts(2, 3, 4)[layout]
    same(device.run(f"aten::{name}", one), eager(f"aten::{name}", one), False)
    overload = "sum.dim_IntList" if name == "sum" else "mean.dim"
    for dims in ([0], [1, 2], [-1], [0, 1, 2], [], None):
        for keepdim in (False, True):
            native = device.run(f"aten::{overload}", one, dims, keepdim)
            same(native, eager(f"aten::{overload}", one, dims, keepdim), False)


def test_N5_maxima(device: Device) -> None:
    for one in [*layouts(3, 4), torch.tensor([[1.0, float("nan"), 3.0], [5.0, 5.0, -1.0]])]:
        same(device.run("aten::max", one), one.max(), True)
        for dim, keepdim in ((0, False), (1, True), (-1, False)):
            expected = one.max(dim, keepdim)
            same(device.run("aten::max.dim", one, dim, keepdim), (expected.values, expected.indices), True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_N5_softmax(device: Device, layout: int) -> None:
    one = layouts(2, 3, 4)[layout] * 10
    for dim in (0, 1, -1):
        same(device.run("aten::_softmax", one, dim, False), eager("aten::_softmax", one, dim, False), False)
    assert device.queued("Softmax") == 3
    assert device.run("aten::softmax.int", one, 0, torch.float64) is NotImplemented


@pytest.mark.parametrize("layout", LAYOUTS)
def test_N5_layer_norm(device: Device, layout: int) -> None:
    one = layouts(3, 4, 5)[layout]
    for shape in ([5], [4, 5]):
        weight, bias = torch.randn(shape), torch.randn(shape)
        for arguments in ((weight, bias), (weight, None), (None, bias), (None, None)):
            native = device.run("aten::native_layer_norm", one, shape, *arguments, 1e-5)
            same(native, eager("aten::native_layer_norm", one, shape, *arguments, 1e-5), False)


def test_N5_fills(device: Device) -> None:
    for dtype, value in [(torch.float32, 2.5), (torch.float32, -1), (torch.int64, 7), (torch.bool, True)]:
        zeros = torch.zeros(6, 9, dtype=dtype)
        for one in (zeros, zeros.t(), zeros[::2, 1::2]):
            held = device.give(one)
            assert NATIVE["aten::fill_.Scalar"](device.calls, (held, value), {}) is held
            assert torch.equal(held.back(), torch.full(held.sizes, value, dtype=dtype))
            assert NATIVE["aten::zero_"](device.calls, (held,), {}) is held
            assert torch.equal(held.back(), torch.zeros(held.sizes, dtype=dtype))
    assert device.run("aten::fill_.Scalar", torch.zeros(3, dtype=torch.int64), 1.5) is NotImplemented


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_N5_copies_and_clones_of_every_dtype(device: Device, dtype: torch.dtype) -> None:
    source = torch.randint(0, 2, (3, 4)).to(dtype) if dtype is torch.bool else (torch.randn(3, 4) * 50).to(dtype)
    for one in (source, source.t(), source[:, ::2], source[1].expand(2, 4)):
        same(device.run("aten::clone", one), one.clone(), True)
        same(device.run("aten::clone", one, memory_format=torch.contiguous_format), one.contiguous(), True)
    target = device.give(torch.zeros(4, 3, dtype=dtype))
    assert NATIVE["aten::copy_"](device.calls, (target, device.give(source.t())), {}) is target
    assert torch.equal(target.back(), source.t())
    NATIVE["aten::copy_"](device.calls, (target, device.give(source[0, :3])), {"non_blocking": True})
    assert torch.equal(target.back(), source[0, :3].expand(4, 3))


def test_N5_large_integers_are_moved_exactly(device: Device) -> None:
    one = torch.tensor([2**62 + 1, -(2**62) - 3])
    same(device.run("aten::clone", one), one, True)
    same(device.run("aten::cat", [one, one], 0), torch.cat([one, one]), True)
    same(device.run("aten::index_select", one, 0, torch.tensor([1, 0, 1])), one[[1, 0, 1]], True)


def test_N5_concatenation(device: Device) -> None:
    parts = [torch.randn(2, 3), torch.randn(1, 3), torch.empty(0), torch.empty(0, 3)]
    same(device.run("aten::cat", parts), torch.cat(parts), True)
    wide = [torch.randn(2, 3, 4), torch.randn(2, 1, 4)]
    same(device.run("aten::cat", wide, -2), torch.cat(wide, -2), True)
    same(device.run("aten::cat", [torch.randn(3, 0)] * 2, 0), torch.empty(6, 0), True)
    many = [torch.randn(2) for _ in range(100)]
    same(device.run("aten::cat", many), torch.cat(many), True)
    for wrong in ([torch.randn(2, 3), torch.randn(2, 4)], [torch.randn(2), torch.randn(2, 2)]):
        assert device.run("aten::cat", wrong) is NotImplemented


@pytest.mark.parametrize("index", [torch.int64, torch.int32])
def test_N5_selections(device: Device, index: torch.dtype) -> None:
    one, chosen = torch.randn(3, 4, 5).transpose(0, 2), torch.tensor([2, 0, 2], dtype=index)
    for dim in (0, 1, -1):
        same(device.run("aten::index_select", one, dim, chosen), one.index_select(dim, chosen), True)
    weight, rows = torch.randn(7, 3), torch.randint(0, 7, (2, 4)).to(index)
    same(device.run("aten::embedding", weight, rows, -1, False, False), torch.embedding(weight, rows), True)


NOT_TAKEN: list[tuple[str, tuple]] = [
    ("add.Tensor", (torch.ones(2, dtype=torch.int64), 1)),
    ("add.Tensor", (torch.ones(2), torch.ones(2, dtype=torch.float16))),
    ("add.Tensor", (torch.ones(2), torch.ones(3))),
    ("add.Tensor", (torch.ones(2), 1j)),
    ("add.Tensor", (torch.ones(2), 2**70)),
    ("add.Tensor", (torch.ones(2), 1, True)),
    ("sub.Tensor", (torch.ones(2), True)),
    ("mul.Tensor", (torch.ones([1] * 9), 2)),
    ("mm", (torch.ones(2, 3), torch.ones(2, 3))),
    ("mm", (torch.ones(2, 0), torch.ones(0, 3))),
    ("bmm", (torch.ones(2, 3, 3), torch.ones(1, 3, 3))),
    ("addmm", (torch.ones(3, 1, 1), torch.ones(2, 3), torch.ones(3, 2))),
    ("sum", (torch.empty(0),)),
    ("sum.dim_IntList", (torch.ones(2, 3), [0, 0])),
    ("sum.dim_IntList", (torch.ones(2, 3), [2])),
    ("max", (torch.empty(0),)),
    ("max.dim", (torch.ones(2), 1)),
    ("_softmax", (torch.ones(2), 5, False)),
    ("native_layer_norm", (torch.ones(2, 3), [2], None, None, 1e-5)),
    ("exp", (torch.ones(2, dtype=torch.float64),)),
    ("index_select", (torch.ones(2), 0, torch.ones(2))),
    ("embedding", (torch.ones(2), torch.tensor([0]))),
    ("copy_", (torch.ones(2), torch.ones(3))),
    ("copy_", (torch.ones(2, dtype=torch.int64), torch.ones(2))),
]


@pytest.mark.parametrize(("name", "args"), NOT_TAKEN)
def test_N5_what_is_not_taken_is_left_to_the_cpu(device: Device, name: str, args: tuple) -> None:
    before = device.library.calls()
    assert device.run(f"aten::{name}", *args) is NotImplemented
    assert device.library.calls("aclCreateTensor") == 0
    assert before <= device.library.calls()


def test_N5_a_tensor_elsewhere_is_not_taken(device: Device) -> None:
    here, elsewhere = device.give(torch.ones(2)), torch.ones(2)
    for name, args in [("add.Tensor", (here, elsewhere)), ("mm", (here, elsewhere)), ("cat", ([here, elsewhere],)),
                       ("copy_", (here, elsewhere))]:  # fmt: skip
        assert NATIVE[f"aten::{name}"](device.calls, args, {}) is NotImplemented


def test_N5_work_is_queued_on_the_current_stream(device: Device, npu: ModuleType) -> None:
    one, target = device.give(torch.ones(4)), device.give(torch.zeros(4))
    npu.synchronize(0)
    stream = npu.Stream(0)
    device.library.hold(stream.npu_stream)
    with npu.stream(stream):
        assert aclnn.unary("Neg", one.description, target.description, 0)
    npu.default_stream(0).synchronize()
    assert not stream.query() and device.library.peek(target.base, 16) == bytes(16)
    device.library.release()
    stream.synchronize()
    assert torch.equal(target.back(), -torch.ones(4))


def test_N5_each_device_has_its_own_calls(device: Device, npu: ModuleType, devices: Callable[[int], None]) -> None:
    devices(2)
    blocks = [block_of(index, bytes(torch.full((4,), index + 1.0).untyped_storage())) for index in (0, 1)]
    for index, block in [(1, blocks[1]), (0, blocks[0]), (1, blocks[1])]:
        description = (block.ptr, (4,), (1,), 0, 4, 0)
        assert aclnn.binary("Add", description, description, 1, description, index)
    assert [torch.frombuffer(bytearray(get(block)), dtype=torch.float32)[0].item() for block in blocks] == [2.0, 8.0]
    assert npu.current_device() == 0
    with pytest.raises(RuntimeError, match="99"):
        aclnn.binary("Add", description, description, 1, description, 99)


def test_N5_threads_call_at_the_same_time(device: Device, npu: ModuleType) -> None:
    """Each on a stream of its own: results right, and no two uses of workspace or results unordered."""
    failures: list[BaseException] = []
    count = npu.device_count()

    def work(number: int) -> None:
        index = number % count
        try:
            with npu.stream(npu.Stream(index)):
                one = block_of(index, bytes(torch.full((4, 4), 0.25).untyped_storage()))
                other = block_of(index, bytes(64))
                forth, back = ((block.ptr, (4, 4), (4, 1), 0, 16, 0) for block in (one, other))
                for _ in range(25):
                    assert aclnn.product("Mm", forth, forth, back, index)
                    assert aclnn.with_number("Softmax", back, -1, forth, index)
                    joined = blocks.allocate(index, 128)
                    assert aclnn.cat([forth, back], 0, (joined.ptr, (8, 4), (4, 1), 0, 32, 0), index)
                assert get(one) == bytes(torch.full((4, 4), 0.25).untyped_storage())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_N5_a_refusal_of_the_library_is_no_error(device: Device) -> None:
    integers = device.give(torch.ones(4, dtype=torch.int64))
    assert aclnn.unary("Exp", integers.description, integers.description, 0) is False
    assert not aclnn.available("NoSuchOperation")
    with pytest.raises(NotImplementedError, match="aclnnNoSuchOperation"):
        aclnn.unary("NoSuchOperation", integers.description, integers.description, 0)


def test_N5_no_memory_for_a_workspace_leaves_nothing_behind(in_npu_process: Callable[..., str]) -> None:
    out = in_npu_process("""
        import mindtorch
        from mindtorch._ext import aclnn, blocks
        from device_memory import block_of
        mindtorch.npu.init()
        held = []
        data = block_of(0, bytes(16))
        description = (data.ptr, (2, 2), (2, 1), 0, 4, 0)
        target = block_of(0, bytes(16))
        try:
            while True:
                held.append(blocks.allocate(0, 512))
        except RuntimeError as error:
            print(str(error)[:100])
        try:
            aclnn.product("Mm", description, description, (target.ptr, (2, 2), (2, 1), 0, 4, 0), 0)
        except RuntimeError as error:
            print(error)
        held.clear()
        assert aclnn.product("Mm", description, description, (target.ptr, (2, 2), (2, 1), 0, 4, 0), 0)
    """, GENIE_TEST_NPU_MEMORY=str(5 << 20))
    first, second = out.splitlines()
    assert "out of memory" in first and "512 bytes of workspace for aclnnMm on npu:0" in second


def every_call(device: Device) -> list[Callable[[], Any]]:
    one, weight, index = device.give(torch.randn(2, 2)), device.give(torch.randn(2)), device.give(torch.tensor([1, 0]))
    arguments: list[tuple[str, tuple]] = [
        ("add.Tensor", (one, one)), ("add.Tensor", (one, 2.0)), ("mul.Tensor", (one, one)), ("mul.Tensor", (one, 2)),
        ("exp", (one,)), ("gelu", (one,)), ("mm", (one, one)), ("addmm", (weight, one, one)), ("sum", (one,)),
        ("max", (one,)), ("max.dim", (one, 0)), ("_softmax", (one, 0, False)),
        ("native_layer_norm", (one, [2], weight, weight, 1e-5)), ("fill_.Scalar", (one, 1.0)), ("clone", (one,)),
        ("cat", ([one, one],)), ("index_select", (one, 0, index)), ("embedding", (one, index)),
    ]  # fmt: skip
    calls: list[Callable[[], Any]] = []
    for name, args in arguments:
        calls.append(lambda name=name, args=args: NATIVE[f"aten::{name}"](device.calls, args, {}))
    calls.append(lambda: NATIVE["aten::_to_copy"](device.calls, (one,), {"dtype": torch.float16}))
    return calls


def test_N5_every_call_may_fail_once_and_leaves_nothing_behind(device: Device, npu: ModuleType) -> None:
    """Each library call of each operation: an exception with the function and the code; the next try works."""
    for call in every_call(device):
        device.library.clear()
        call()
        npu.synchronize(0)
        for nth in range(1, device.library.calls()):
            device.library.fail("*", nth)
            try:
                result = call()
            except (RuntimeError, MemoryError) as error:
                assert "acl" in str(error) and ("507899" in str(error) or "561103" in str(error))
            else:
                assert result is not NotImplemented
            device.library.clear()
            npu.synchronize(0)
            assert not [line for line in device.library.leaks() if " acl" in line], nth
            assert call() is not NotImplemented
            npu.synchronize(0)


def test_N5_names_are_overloads_of_torch() -> None:
    for name in NATIVE:
        packet, _, overload = name.removeprefix("aten::").partition(".")
        assert getattr(getattr(torch.ops.aten, packet), overload or "default").name() == name


def test_N5_missing_operations_are_just_not_there(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    monkeypatch.setattr(aclnn, "available", lambda name: False)
    for name, args in [("exp", (torch.ones(2),)), ("mm", (torch.ones(2, 2),) * 2), ("sum", (torch.ones(2),))]:
        assert device.run(f"aten::{name}", *args) is NotImplemented
    monkeypatch.setattr(aclnn, "available", lambda name: name == "Gelu")
    assert device.run("aten::gelu", torch.ones(2)) is NotImplemented  # it computes the approximation
    expected = torch.nn.functional.gelu(torch.ones(2), approximate="tanh")
    same(device.run("aten::gelu", torch.ones(2), approximate="tanh"), expected, False)
