"""C10: what CUDA's kernels refuse beside dtypes, and what it takes that is next to that, target by target."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.estimating import estimating


def on(capability: tuple[int, int], program: str, name: str = "Test GPU") -> None:
    names: dict[str, Any] = {
        "torch": torch,
        "nn": nn,
        "F": F,
        "C": "cuda",
        "G": {"device": "cuda", "requires_grad": True},
    }
    with estimating(Accelerator(name, 80 * 10**9, capability=capability)):
        exec(compile(program.strip(), "program.py", "exec"), names)


INT8 = "torch._int_mm(torch.ones({}, {}, device=C, dtype=torch.int8), torch.ones({}, {}, device=C, dtype=torch.int8))"


@pytest.mark.parametrize(("sizes", "words"), [
    ((17, 32, 32, 8), None), ((16, 32, 32, 8), "self.size(0) needs to be greater than 16, but got 16"),
    ((8, 32, 32, 32), "but got 8"), ((32, 12, 12, 8), "self.size(1) needs to be greater than 0 and a multiple of 8"),
    ((32, 16, 16, 9), "mat2.size(1) needs to be greater than 0 and a multiple of 8, but got 9"),
])  # fmt: skip
def test_C10_products_of_int8_have_many_rows(sizes: tuple[int, ...], words: str | None) -> None:
    with pytest.raises(RuntimeError) if words else contextlib.nullcontext() as error:
        on((8, 0), INT8.format(*sizes))
    assert words is None or words in str(error.value)
    on((8, 0), INT8.format(*sizes).replace("device=C", "device='cpu'"))


def test_C10_multinomial_has_a_most_of_categories() -> None:
    on((8, 0), "torch.multinomial(torch.empty(2**24, device=C), 1)")
    with pytest.raises(RuntimeError) as ours:
        on((8, 0), "torch.multinomial(torch.empty(2**24 + 1, device=C), 1)")
    with pytest.raises(RuntimeError) as torchs:
        torch.multinomial(torch.ones(2**24 + 1), 1)
    assert str(ours.value) == str(torchs.value)


SCALED = """
a = torch.ones({rows}, 32, device=C).to(torch.float8_e4m3fn)
s = torch.ones((), device=C)
torch._scaled_mm(a, a.t(), scale_a=s, scale_b=s, out_dtype=torch.bfloat16)
"""


@pytest.mark.parametrize("rows", [16, 64])
def test_C10_scaled_products_want_a_recent_gpu(rows: int) -> None:
    for capability in ((8, 9), (9, 0), (10, 0)):
        on(capability, SCALED.format(rows=rows))
    for capability in ((7, 0), (8, 0), (8, 6)):
        with pytest.raises(
            RuntimeError, match=r"only supported on CUDA devices with compute capability >= 9\.0 or 8\.9"
        ):
            on(capability, SCALED.format(rows=rows + capability[1] * 16 + 16))  # a call that nobody has asked about


@pytest.mark.parametrize("program", [
    "torch.compile(lambda x: x * 2)(torch.ones(3, device=C))",
    "torch.compile(nn.Linear(3, 3).cuda())(torch.ones(3, 3, device=C))",
    "m = nn.Linear(3, 3).cuda(); m.compile(); m(torch.ones(3, 3, device=C))",
])  # fmt: skip
def test_C10_triton_wants_a_gpu_of_volta(program: str) -> None:
    on((7, 0), program)
    with pytest.raises(RuntimeError, match=r"Found NVIDIA P100 which is too old .* CUDA capability 6\.0"):
        on((6, 0), program, "NVIDIA P100")
    on((6, 0), program.replace("compile(", "compile(backend='eager', model=", 1) if "m.compile" not in program else "")
    on((6, 0), program.replace(".cuda()", "").replace(", device=C", ""))


CAPTURE = """
x, g = torch.ones(3, device=C), torch.cuda.CUDAGraph()
host = torch.empty(3).pin_memory()
with torch.cuda.graph(g):
    y = x * 2
    assert torch.cuda.is_current_stream_capturing()
    {inside}
assert not torch.cuda.is_current_stream_capturing()
g.replay()
y.sum().item(), y.cpu(), torch.cuda.synchronize()
"""
WAITS = ["y.sum().item()", "y.cpu()", "y.tolist()", "bool(y[0] > 0)", "print(y[0].item())", "y[y > 0]", "y.nonzero()",
         "torch.cuda.synchronize()", "y.to('cpu')", "float(y[1])"]  # fmt: skip
NO_WAITS = ["y.relu_()", "host.copy_(y, non_blocking=True)", "y.to('cpu', non_blocking=True)",
            "torch.ones(2).sum().item()", "y[1:].mul_(2)"]  # fmt: skip


@pytest.mark.parametrize("inside", WAITS)
def test_C10_nothing_waits_while_a_graph_is_captured(inside: str) -> None:
    with pytest.raises(RuntimeError, match="operation not permitted when stream is capturing"):
        on((9, 0), CAPTURE.format(inside=inside))
    on((9, 0), "torch.ones(3, device=C).sum().item(); assert not torch.cuda.is_current_stream_capturing()")


@pytest.mark.parametrize("inside", NO_WAITS)
def test_C10_a_graph_captures_what_does_not_wait(inside: str) -> None:
    on((9, 0), CAPTURE.format(inside=inside))


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    torch.use_deterministic_algorithms(True)
    yield monkeypatch
    torch.use_deterministic_algorithms(False)


CUBLAS = [
    "torch.ones(3, {n}, device=C) @ torch.ones({n}, 3, device=C)",
    "torch.bmm(torch.ones(2, 3, {n}, device=C), torch.ones(2, {n}, 3, device=C))",
    "torch.ones(3, {n}, device=C) @ torch.ones({n}, device=C)",
    "torch.dot(torch.ones({n}, device=C), torch.ones({n}, device=C))",
    "nn.Linear({n}, 3).cuda()(torch.ones(2, {n}, device=C)).sum().backward()",
    "nn.Linear({n}, 3, bias=False).cuda()(torch.ones(2, {n}, device=C))",
]


@pytest.mark.parametrize("program", CUBLAS)
def test_C10_cublas_is_deterministic_where_its_variable_says_so(deterministic: Any, program: str) -> None:
    with pytest.raises(RuntimeError, match="CUBLAS_WORKSPACE_CONFIG=:4096:8"):
        on((9, 0), program.format(n=11))
    on((9, 4), program.format(n=12), "AMD Instinct MI300X")
    on((9, 0), program.format(n=13).replace("device=C", "device='cpu'").replace(".cuda()", ""))
    for value in (":4096:8", ":16:8"):
        deterministic.setenv("CUBLAS_WORKSPACE_CONFIG", value)
        on((9, 0), program.format(n=11))
    deterministic.delenv("CUBLAS_WORKSPACE_CONFIG")
    torch.use_deterministic_algorithms(True, warn_only=True)
    on((9, 0), program.format(n=14))
    torch.use_deterministic_algorithms(False)
    on((9, 0), program.format(n=11))


#: By torch's documentation of `torch.use_deterministic_algorithms`.
NEVER = {
    "AvgPool3d": "nn.AvgPool3d(2)(torch.ones(1, 1, 4, 4, 4, **G)).sum().backward()",
    "AdaptiveAvgPool2d": "nn.AdaptiveAvgPool2d(2)(torch.ones(1, 1, 5, 5, **G)).sum().backward()",
    "AdaptiveAvgPool3d": "nn.AdaptiveAvgPool3d(2)(torch.ones(1, 1, 5, 5, 5, **G)).sum().backward()",
    "AdaptiveMaxPool2d": "nn.AdaptiveMaxPool2d(2)(torch.ones(1, 1, 5, 5, **G)).sum().backward()",
    "FractionalMaxPool2d":
        "nn.FractionalMaxPool2d(2, 2)(torch.ones(1, 1, 5, 5, **G)).sum().backward()",
    "MaxUnpool2d": "nn.MaxUnpool2d(2)(*nn.MaxPool2d(2, return_indices=True)(torch.ones(1, 1, 4, 4, device=C)))",
    "ReflectionPad1d": "nn.ReflectionPad1d(1)(torch.ones(1, 1, 4, **G)).sum().backward()",
    "ReflectionPad2d": "nn.ReflectionPad2d(1)(torch.ones(1, 1, 4, 4, **G)).sum().backward()",
    "ReflectionPad3d": "nn.ReflectionPad3d(1)(torch.ones(1, 1, 4, 4, 4, **G)).sum().backward()",
    "NLLLoss": "F.nll_loss(torch.ones(1, 3, 4, 4, device=C), torch.zeros(1, 4, 4, device=C).long())",
    "put_": "torch.ones(3, device=C).put_(torch.tensor([1], device=C), torch.ones(1, device=C))",
    "histc": "torch.histc(torch.ones(3, device=C), 3)",
    "bincount": "torch.bincount(torch.tensor([1, 2], device=C), torch.ones(2, device=C))",
    "median": "torch.ones(3, 4, device=C).median(0)",
    "grid_sample":
        "F.grid_sample(torch.ones(1, 1, 4, 4, **G), torch.zeros(1, 2, 2, 2, device=C)).sum().backward()",
    "cumsum": "torch.ones(3, device=C).cumsum(0)",
}  # fmt: skip
ALWAYS = [
    "torch.histc(torch.ones(3, device=C).long(), 3)", "torch.bincount(torch.tensor([1, 2], device=C))",
    "torch.ones(3, device=C).median()", "torch.ones(3, device=C).long().cumsum(0)",
    "F.nll_loss(torch.ones(4, 3, device=C), torch.zeros(4, device=C).long())",
    "nn.AvgPool3d(2)(torch.ones(1, 1, 4, 4, 4, device=C))",
    "torch.ones(4, 4, device=C).index_add_(0, torch.tensor([1], device=C), torch.ones(1, 4, device=C))",
]  # fmt: skip


@pytest.mark.parametrize("name", NEVER)
def test_C10_what_is_never_deterministic_is_refused_where_it_has_to_be(deterministic: Any, name: str) -> None:
    documented = str(torch.use_deterministic_algorithms.__doc__).partition("will throw a\n")[2]
    assert name in documented
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        on((9, 0), NEVER[name])
    torch.use_deterministic_algorithms(True, warn_only=True)
    on((9, 0), NEVER[name])
    torch.use_deterministic_algorithms(False)
    on((9, 0), NEVER[name])


@pytest.mark.parametrize("program", ALWAYS)
def test_C10_what_is_deterministic_is_taken(deterministic: Any, program: str) -> None:
    on((9, 0), program)


DTYPES = [
    ("'ComplexFloat'", "torch.ones(3, device=C, dtype=torch.complex64).cummax(0)"),
    ("'Half'", "torch.cdist(torch.ones(3, 3, device=C).half(), torch.ones(3, 3, device=C).half())"),
    ("'UInt16'", "torch.ones(3, device=C).to(torch.uint16) + 1"),
    ("'Float8_e5m2'",
     "F.conv3d(*[torch.ones(1, 1, 3, 3, 3, device=C).to(torch.float8_e5m2)] * 2)"),
    ("'Int'", "F.conv2d(torch.ones(1, 1, 3, 3, device=C).int(), torch.ones(1, 1, 1, 1, device=C).int())"),
    ("'Long'", "F.conv1d(torch.ones(1, 1, 3, device=C).long(), torch.ones(1, 1, 1, device=C).long())"),
    ("'Int'", "F.max_pool2d(torch.ones(1, 1, 4, 4, device=C).int(), 2)"),
    ("'Byte'", "F.max_pool2d(torch.ones(1, 1, 4, 4, device=C).byte(), 2)"),
    ("'Long'", "F.avg_pool2d(torch.ones(1, 1, 4, 4, device=C).long(), 2)"),
    ("'Half'", "torch.special.zeta(torch.ones(3, device=C).half(), torch.ones(3, device=C).half())"),
    ("'Half'", "torch.igamma(torch.ones(3, device=C).half(), torch.ones(3, device=C).half())"),
    ("'Bool'", "torch.ones(3, device=C).bool().cumsum_(0)"),
    ("'Long'", "torch.ones(3, 3, device=C).long().logcumsumexp(0)"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "program"), DTYPES)
def test_C10_dtypes_that_cuda_does_not_take_are_refused(words: str, program: str) -> None:
    with pytest.raises((NotImplementedError, RuntimeError)) as error:
        on((9, 0), program)
    assert words in str(error.value) or "Bool" in words
    for dtype in (".half()", ".int()", ".long()", ".byte()", ".bool()", ".to(torch.uint16)", ".to(torch.float8_e5m2)"):
        program = program.replace(dtype, "")
    on((9, 0), program.replace(", dtype=torch.complex64", ""))


FORGOTTEN = [
    ("is not supported for complex", "torch.floor(torch.ones({n}, device=C, dtype=torch.complex64))"),
    ("does not support complex", "torch.sort(torch.ones({n}, device=C, dtype=torch.complex64))"),
    ("'Float'", "torch.ones({n}, device=C) & torch.ones({n}, device=C)"),
    ("'Half'", "torch.ones({n}, device=C).half() ^ torch.ones({n}, device=C).half()"),
    ("'Long'", "F.interpolate(torch.ones(1, 1, {n}, 4, device=C).long(), scale_factor=2)"),
    ("'Bool'", "torch.kthvalue(torch.ones({n}, device=C).bool(), 2)"),
    ("'Bool'", "F.pad(torch.ones(1, 1, {n}, 4, device=C).bool(), (1, 1, 1, 1), mode='reflect')"),
    ("'Bool'", "F.pad(torch.ones(1, 4, {n}, device=C).bool(), (1, 1), mode='reflect')"),
    ("driver", "a = torch.randn({n}, 3, device=C); torch.linalg.lstsq(a, a, driver='gelss')"),
    ("invalid device ordinal", "torch.cuda.Stream(device={n})"),
    ("invalid device ordinal", "torch.cuda.Stream(torch.device('cuda:{n}'))"),
    ("different device", "p = torch.ones({n}, **G); p.grad = torch.ones({n})"),
    ("different device", "m = nn.Linear({n}, 2).cuda(); m.bias.grad = torch.ones(2)"),
]


@pytest.mark.parametrize(("words", "program"), FORGOTTEN)
def test_C10_what_kernels_refuse_by_dtype_is_asked_in_the_calls_own_sizes(words: str, program: str) -> None:
    """They were taken: one element was too few for the kernel, or its words were none that were looked for."""
    with pytest.raises((RuntimeError, NotImplementedError), match=words):
        on((9, 0), program.format(n=5))
    for near in (program.replace("complex64", "float32").replace(".bool()", "").replace(".long()", ""),):
        if near != program and "lstsq" not in near:
            on((9, 0), near.format(n=6))


@pytest.mark.parametrize("name", ["nansum", "nanmean"])
def test_C10_complex_numbers_that_cuda_alone_takes_are_taken(name: str) -> None:
    on((9, 0), f"torch.{name}(torch.ones(3, device=C, dtype=torch.complex64))")


@pytest.mark.parametrize("made", ["randn", "ones", "zeros"])
@pytest.mark.parametrize("sizes", ["4, 3", "2, 4, 3"])
def test_C10_no_solver_of_cuda_looks_at_the_rank(made: str, sizes: str) -> None:
    """The CPU's kernel refused what was assumed of unknown matrices."""
    on((9, 0), f"a = torch.{made}({sizes}, device=C); x = torch.linalg.lstsq(a, a, driver='gels').solution")
    on((9, 0), f"a = torch.{made}({sizes}, device=C); assert torch.linalg.lstsq(a, a)[0].shape[-2:] == (3, 3)")


def test_C10_gradients_may_be_assigned_on_the_tensors_own_device() -> None:
    on((9, 0), "p = torch.ones(3, **G); p.grad = torch.ones(3, device=C); p.grad = None")
    on((9, 0), "p, q = torch.ones(3, **G), torch.ones(3, **G); q.grad = p.detach()")


@pytest.mark.parametrize(("program", "words"), [
    ("torch.fft.fft(torch.ones({n}, device=C).half())", "powers of two .* signal size of"),
    ("torch.fft.rfft(torch.ones(4, {n}, device=C).half(), dim=-1)", "powers of two"),
    ("torch.fft.irfft(torch.ones(4, {n} // 2 + 1, device=C, dtype=torch.complex32), n={n})", "powers of two"),
    ("torch.fft.fft2(torch.ones(2, 8, {n}, device=C).half())", "powers of two"),
    ("torch.fft.rfftn(torch.ones({n}, 8, device=C).half())", "powers of two"),
    ("torch.fft.rfft(torch.ones(12, device=C).half(), n={n})", "powers of two"),
    ("torch.fft.ihfft2(torch.ones(8, {n}, device=C).half())", "powers of two"),
    ("torch.fft.hfftn(torch.ones(8, {n} // 2 + 1, device=C, dtype=torch.complex32))", "powers of two"),
])  # fmt: skip
def test_C10_half_precision_is_transformed_in_powers_of_two(program: str, words: str) -> None:
    """An estimate failed by what C++ says of half precision on CPUs."""
    on((9, 0), f"y = {program.format(n=16)}; assert y.dtype in (torch.float16, torch.complex32) and y.is_cuda")
    with pytest.raises(RuntimeError, match=words):
        on((9, 0), program.format(n=12))
    on((9, 0), program.format(n=12).replace(".half()", "").replace("complex32", "complex64"))


SIZED = """
a, b = torch.ones({m}, {k}, device=C).to(torch.float8_{first}), torch.ones({n}, {k}, device=C).to(torch.float8_{second})
s = torch.ones((), device=C)
torch._scaled_mm(a, b.t(), scale_a=s, scale_b=s, out_dtype=torch.bfloat16)
"""


@pytest.mark.parametrize(("sizes", "words"), [
    ((5, 32, 48), ""), ((5, 24, 48), r"divisible by 16 but got mat1 shape: \(5x24\)"),
    ((5, 32, 40), r"mat2 shape \(32x40\) must be divisible by 16"),
])  # fmt: skip
def test_C10_scaled_products_have_sizes_in_sixteens(sizes: tuple[int, int, int], words: str) -> None:
    given = dict(zip("mkn", sizes, strict=True)) | {"first": "e4m3fn", "second": "e5m2"}
    with pytest.raises(RuntimeError, match=words) if words else contextlib.nullcontext():
        on((9, 0), SIZED.format(**given))
    with pytest.raises((RuntimeError, ValueError), match=words or "two Float8_e5m2 matrices"):
        on((9, 0), SIZED.format(**given | {"first": "e5m2"}))


def test_C10_documented_kernels_are_not_deterministic(deterministic: Any) -> None:
    most = "nn.EmbeddingBag(9, 4, mode='{}').cuda()(torch.tensor([[1, 2]], device=C)).sum().backward()"
    reduce = (
        "x, i = torch.ones(3, device=C), torch.zeros(3, dtype=torch.long, device=C); x.scatter_reduce(0, i, x, '{}')"
    )
    for program, bad, good in ((most, "max", "sum"), (reduce, "prod", "mean")):
        with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
            on((9, 0), program.format(bad))
        on((9, 0), program.format(good))


def test_C10_a_call_that_one_chip_took_is_asked_of_another_one() -> None:
    """Of the first chip's answer the second one's was made."""
    program = SIZED.format(m=7, k=32, n=64, first="e4m3fn", second="e4m3fn")
    for capability, taken in (((8, 9), True), ((8, 0), False), ((9, 0), True), ((8, 0), False)):
        with contextlib.nullcontext() if taken else pytest.raises(RuntimeError, match="compute capability"):
            on(capability, program)
