"""C10: an error of ours is never the accelerator's: exit code 2, and how to report it; its refusals stay refusals."""

from __future__ import annotations

import contextlib
import gc
import os
import struct
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from click.testing import CliRunner

from mindtorch.cli.main import cli
from mindtorch.profile.estimate import refusals
from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.estimating import estimating
from mindtorch.program import blame
from mindtorch.program.outcome import captured


def genie(*args: str) -> Any:
    return CliRunner().invoke(cli, ["check", *args], prog_name="genie")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    gc.collect()
    monkeypatch.chdir(tmp_path)
    return tmp_path


#: Programs that only ours could fail: what stands in torch's place takes or has less than torch's.
OURS = [
    "torch.cuda.synchronize(what=1)",
    "torch.ones(3, device='cuda').untyped_storage().pin_memory()",
    "torch.cuda.current_stream().no_such_attribute",
    "from torch.cuda import Stream; Stream(1, 2, 3, 4)",
    """
try:
    torch.cuda.current_stream().no_such_attribute
except AttributeError as error:
    raise RuntimeError("in other words") from error
""",
    "torch.ones(2**25, device='cuda').tolist()",
]
#: Programs that torch refuses in the same words, or Python, wherever they run.
THEIRS = [
    "torch.zeros('a')",
    "torch.frombuffer(bytearray(16), dtype=torch.int32, device='cpu')",
    "torch.complex(torch.ones(2), torch.ones(2), device='cpu')",
    "torch.frombuffer(bytearray(3), dtype=torch.int32)",
    "torch.ones(3, device='cuda') + 'a'",
    "torch.ones(3, device='cuda').view('a')",
    "torch.ones(3, device='cuda').to(object())",
    "torch.ones(3, device='cuda') + torch.ones(4, device='cuda')",
    "torch.ones(3, device='cuda') + torch.ones(3)",
    "torch.ones(3, device='cuda').numpy()",
    "torch.nn.functional.conv2d(torch.ones(1, 3, 3, 3, device='cuda'), torch.ones(1, 2, 3, 3, device='cuda'))",
    "torch.cuda.set_device(5)",
    "torch.cuda.get_device_name(5)",
    "torch.from_file('letters.bin', size=4, device='cuda')",
    "torch.from_file('nothing.bin', size=4)",
]
#: Errors that the program makes itself.
ITS_OWN = [
    "{}['a']",
    "None.what",
    "torch.ones(3, device='cuda').no_such_attribute",
    "open('nothing.txt')",
    "import nowhere.to_be_found",
    "assert torch.ones(2).cuda().is_cpu, 'a check of its own'",
    "10 % 0",
    "raise ValueError('wrong option')",
    "raise RuntimeError('wrong option')",
    "def f(:",
    "import json; json.loads('{')",
]
#: Errors that it puts into its own words, or meets on its way to another one.
CAUSED = [
    "try: torch.ones(3, device='cuda') + torch.ones(3)\nexcept RuntimeError as e: raise ValueError('no') from e",
    "try: torch.ones(3, device='cuda') + torch.ones(3)\nexcept RuntimeError: {}['a']",
]


@pytest.mark.parametrize(("program", "own"), [*((p, True) for p in ITS_OWN), *((p, False) for p in CAUSED)])
def test_C10_an_error_of_the_programs_own_is_not_the_accelerators(here: Path, program: str, own: bool) -> None:
    """ "NVIDIA L4 24 GB rejects this", it said: "ModuleNotFoundError: No module named 'mingpt'"."""
    (here / "bad.py").write_text(f"import torch\n{program}\n")
    result = genie("--target", "l4", "bad.py")
    assert result.exit_code == 1, result.output
    assert ("L4 24 GB is not the cause: the program itself fails" in result.output) == own, result.output
    assert ("rejects this" in result.output) != own, result.output


@pytest.mark.parametrize("program", OURS)
def test_C10_what_only_an_estimate_fails_at_is_no_refusal(here: Path, program: str) -> None:
    (here / "odd.py").write_text(f"import torch\n{program}\n")
    result = genie("--target", "l4", "odd.py")
    assert result.exit_code == 2 and "an estimate cannot tell" in result.output
    assert "rejects this" not in result.output
    assert ("please report it" in result.output) == ("meta tensor has no data" not in result.output)


@pytest.mark.parametrize(("program", "ours"), [(OURS[0], True), (OURS[-1], False), (THEIRS[0], False)])
def test_C10_an_estimate_says_whose_error_it_is(here: Path, program: str, ours: bool) -> None:
    (here / "odd.py").write_text(f"import torch\n{program}\n")
    result = CliRunner().invoke(cli, ["profile", "--target", "l4", "odd.py"], prog_name="genie")
    assert result.exit_code == 1 and ("please report it" in result.output) == ours, result.output


@pytest.mark.parametrize("program", THEIRS)
def test_C10_what_torch_itself_refuses_is_refused(here: Path, program: str) -> None:
    (here / "letters.bin").write_bytes(b"abcd")
    (here / "bad.py").write_text(f"import torch\n{program}\n")
    result = genie("--target", "l4", "bad.py")
    assert result.exit_code == 1 and "rejects this" in result.output and "report" not in result.output


def _unpacks(name: str, args: tuple) -> None:
    _a, _b, _c, _d = args


#: Mistakes in a rule of ours, as of a defect.
MISTAKES = {
    "a name": lambda name, args: no_such_name,  # type: ignore[name-defined]  # noqa: F821
    "a key": lambda name, args: {}["key"],
    "an index": lambda name, args: args[9],
    "a call": lambda name, args: len(name, args),  # type: ignore[call-arg, arg-type]
    "an attribute": lambda name, args: refusals.no_such_attribute,  # type: ignore[attr-defined]
    "too few values": _unpacks,
}


@contextlib.contextmanager
def _in_our_file(mistake: Any) -> Iterator[Any]:
    """The function, as if it stood in a file of the package."""
    code = mistake.__code__.replace(co_filename=os.path.join(blame.PACKAGE, "profile", "estimate", "refusals.py"))
    yield type(mistake)(code, globals())


@pytest.mark.parametrize("mistake", MISTAKES)
def test_C10_a_defect_of_a_rule_is_no_refusal(here: Path, monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    (here / "odd.py").write_text(
        f"import torch\ntorch.randn({list(MISTAKES).index(mistake) + 2}, 9, device='cuda').logcumsumexp(0)\n"
    )
    with monkeypatch.context() as patched, _in_our_file(MISTAKES[mistake]) as rule:
        patched.setitem(refusals._RULES, "aten::_logcumsumexp", rule)
        patched.setitem(refusals._RULES, "aten::logcumsumexp", rule)
        result = genie("--target", "l4", "odd.py")
    assert result.exit_code == 2 and "please report it" in result.output, result.output
    assert genie("--target", "l4", "odd.py").exit_code == 0


def test_C10_words_of_an_assertion_inside_torch_are_no_accelerators() -> None:
    def fails() -> None:
        raise RuntimeError('0 INTERNAL ASSERT FAILED at "x.cpp":1, please report a bug to PyTorch.')

    assert captured(fails).ours
    assert not captured(lambda: torch.ones(3) + torch.ones(4)).ours
    assert not captured(lambda: MADE[10**6]).ours


def test_C10_that_a_tensor_has_no_data_is_no_accelerators_word() -> None:
    """C++ that reads its tensors asks nobody: "rejects this" was said of a program that draws Sobol points."""
    state = torch.zeros(2, 30, dtype=torch.int64, device="meta")
    assert captured(lambda: torch._sobol_engine_initialize_state_(state, 2)).ours


def test_C4_sobol_sequences_go_through_an_estimate(here: Path) -> None:
    (here / "sobol.py").write_text(
        "import torch\nfrom torch.quasirandom import SobolEngine\n"
        "engine = SobolEngine(3, scramble=True, seed=1)\nfirst = engine.draw(4)\nengine.fast_forward(2)\n"
        "more = engine.draw(2, dtype=torch.float64)\nengine.reset()\n"
        "plain = SobolEngine(2).draw_base2(3).cuda()\n"
        "assert (first.shape, first.dtype, more.shape, more.dtype, plain.shape) == (\n"
        "    (4, 3), torch.float32, (2, 3), torch.float64, (8, 2)), (first, more)\n"
        "from torch.distributions import Normal\nNormal(0, 1).icdf(plain)\n"
    )
    result = genie("--target", "l4", "sobol.py")
    assert result.exit_code == 0, result.output


# ---- what makes tensors of what the host has -------------------------------------------------------------------------
BUFFER, ARRAY = bytearray(range(16)), numpy.arange(6)
MADE = [
    "torch.frombuffer(BUFFER, dtype=torch.uint8)",
    "torch.frombuffer(BUFFER, dtype=torch.int32, count=2, offset=4)",
    "torch.frombuffer(BUFFER, dtype=torch.float32, requires_grad=True)",
    "torch.frombuffer(memoryview(BUFFER), dtype=torch.float64)",
    "torch.frombuffer(ARRAY, dtype=torch.int64)",
    "torch.frombuffer(b'', dtype=torch.int32)",
    "torch.frombuffer(bytearray(3), dtype=torch.int32)",
    "torch.from_file('letters.bin', size=4, dtype=torch.uint8)",
    "torch.from_file('letters.bin', False, 1, dtype=torch.float32, requires_grad=True)",
    "torch.from_file('letters.bin', size=4, dtype=torch.uint8, device='cpu')",
    "torch.from_file('nothing.bin', size=4)",
    "torch.from_file('letters.bin', size=4000)",
    "torch.from_numpy(ARRAY)", "torch.from_dlpack(ARRAY)", "torch.asarray(ARRAY)", "torch.as_tensor(ARRAY)",
    "torch.tensor(bytearray(b'abc'))", "torch.asarray(memoryview(BUFFER), dtype=torch.int32)",
    "torch.ByteTensor(list(b'abc'))", "torch.Tensor(2, 3)", "torch.Tensor([1, 2])", "torch.scalar_tensor(2)",
    "torch.complex(torch.ones(2), torch.ones(2))", "torch.polar(torch.ones(2), torch.ones(2))",
    "torch.normal(torch.zeros(3), 1.)", "torch.normal(0., 1., (2,))", "torch.arange(3)", "torch.eye(2, 3)",
    "torch.cartesian_prod(torch.arange(2), torch.arange(3))", "torch.combinations(torch.arange(4))",
    "torch.tril_indices(3, 3)", "torch.triu_indices(3, 3)", "torch.kaiser_window(5)", "torch.bartlett_window(4)",
    "torch.blackman_window(4)", "torch.hamming_window(4)", "torch.hann_window(4)", "torch.signal.windows.hann(3)",
    "torch.fft.fftfreq(5)", "torch.fft.rfftfreq(5)", "torch.empty_permuted((2, 3), (1, 0))",
    "torch.empty_strided((2, 3), (1, 2))", "torch.logspace(0, 1, 3)", "torch.linspace(0, 1, 3)",
    "torch.full((2,), 3)", "torch.randperm(4)", "torch.randint(5, (2,))", "torch.rand(2)", "torch.randn(2)",
    "torch.full_like(torch.ones(2), 5)", "torch.rand_like(torch.ones(2))", "torch.empty_like(torch.ones(3))",
    "torch.randint_like(torch.ones(2), 5)", "torch.zeros(2).new_tensor([1])", "torch.zeros(2).new_full((2,), 1)",
]  # fmt: skip


def _facts(expression: str) -> Any:
    try:
        made = eval(expression)
    except (ValueError, RuntimeError) as error:
        return type(error), str(error)
    return str(made.device), tuple(made.shape), made.stride(), made.dtype, made.requires_grad


@pytest.mark.parametrize("expression", MADE)
def test_C10_what_makes_a_tensor_makes_the_same_without_data(here: Path, expression: str) -> None:
    (here / "letters.bin").write_bytes(b"abcd")
    eager = _facts(expression)
    with estimating(Accelerator("Test GPU", 80 * 10**9)):
        assert _facts(expression) == eager
    with torch.device("meta"):  # where torch leaves the default device aside, so does an estimate
        on_host = "cpu" in _facts(expression)
    if on_host:
        with estimating(Accelerator("Test GPU", 80 * 10**9)), torch.device("cuda"):
            assert _facts(expression) == eager


def test_C10_integers_of_a_buffer_are_known(here: Path) -> None:
    with estimating(Accelerator("Test GPU", 80 * 10**9)):
        assert torch.frombuffer(BUFFER, dtype=torch.uint8)[3:5].tolist() == [3, 4]


IMAGES = """
import sys
import numpy as np
import torch

def integer(data):
    return int.from_bytes(data, "big")

def read(path):
    with open(path, "rb") as file:
        data = file.read()
    dimensions = integer(data[0:4]) % 256
    sizes = [integer(data[4 * (i + 1) : 4 * (i + 2)]) for i in range(dimensions)]
    parsed = torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=4 * (dimensions + 1))
    assert parsed.shape[0] == np.prod(sizes)
    return parsed.view(*sizes)

images, labels = read("images-idx3-ubyte"), read("labels-idx1-ubyte").long()
assert labels.max() < 10, labels
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10)).cuda()
data = torch.utils.data.TensorDataset(images.float() / 255, labels)
for x, y in torch.utils.data.DataLoader(data, 32):
    torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
"""


def test_C10_images_are_read_by_frombuffer(here: Path) -> None:
    """As torchvision reads MNIST."""
    (here / "images-idx3-ubyte").write_bytes(struct.pack(">4i", 0x803, 64, 28, 28) + bytes(64 * 784))
    (here / "labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, 64) + bytes(i % 10 for i in range(64)))
    (here / "digits.py").write_text(IMAGES)
    result = genie("--target", "l4", "digits.py")
    assert result.exit_code == 0, result.output
    (here / "labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, 64) + bytes([10] * 64))
    result = genie("--target", "l4", "digits.py")
    assert result.exit_code == 1 and "AssertionError" in result.output, result.output


# ---- masks that nobody knows -----------------------------------------------------------------------------------------
POOLING = """
import torch
def scatter_sum(src, index):
    size = int(index.max()) + 1 if index.numel() else 0
    return src.new_zeros(size).scatter_add_(0, index, src)
def topk(x, ratio, batch):
    num = scatter_sum(batch.new_ones(x.size(0)), batch)
    k = (float(ratio) * num.to(x.dtype)).ceil().to(torch.long)
    x, x_perm = torch.sort(x.view(-1), descending=True)
    batch = batch[x_perm]
    batch, batch_perm = torch.sort(batch, descending=False, stable=True)
    arange = torch.arange(x.size(0), dtype=torch.long, device=x.device)
    ptr = torch.cat([num.new_zeros(1), num.cumsum(0)])
    mask = arange - ptr[batch] < k[batch]
    return x_perm[batch_perm[mask]]
def filter_adj(edge_index, perm, num_nodes):
    mask = perm.new_full((num_nodes,), -1)
    mask[perm] = torch.arange(perm.size(0), dtype=torch.long, device=perm.device)
    row, col = mask[edge_index[0]], mask[edge_index[1]]
    keep = (row >= 0) & (col >= 0)
    return torch.stack([row[keep], col[keep]], dim=0)
def gather(x, edge_index):
    try: return x.index_select(0, edge_index[0])
    except (IndexError, RuntimeError) as e:
        if edge_index.numel() and int(edge_index.max()) >= x.size(0):
            raise IndexError(f'Found indices that are larger than {x.size(0) - 1} (got {int(edge_index.max())})')
        raise
N, D = 60, 16
x = torch.randn(N, D, device='cuda')
edge_index = torch.randint(0, N, (2, 200)).to('cuda')
batch = torch.arange(3).repeat_interleave(20).to('cuda')
lin = torch.nn.Linear(D, D).cuda(); w = torch.nn.Linear(D, 1).cuda()
for step in range(2):
    h = torch.zeros_like(x).index_add_(0, edge_index[1], gather(lin(x), edge_index))
    score = torch.tanh(w(h)).squeeze(-1)
    perm = topk(score, 0.5, batch)
    h = h[perm] * score[perm].view(-1, 1)
    b = batch[perm]
    e = filter_adj(edge_index, perm, N)
    h = lin(torch.zeros_like(h).index_add_(0, e[1], gather(h, e)))
    size = int(b.max()) + 1
    out = h.new_zeros(size, D).index_add_(0, b, h)
    out.sum().backward()
print(h.shape, e.shape, out.shape)
"""


@pytest.mark.parametrize("assume", [[], ["--assume", "0"], ["--assume", "1"], ["--assume", "0.5"]])
def test_C10_pooling_by_unknown_scores_goes_on(here: Path, assume: list[str]) -> None:
    """What PyTorch Geometric's TopKPooling does: with no row left, its edges would lead nowhere."""
    (here / "pooling.py").write_text(POOLING)
    result = genie("--target", "l4", *assume, "pooling.py")
    assert result.exit_code == 0 and "torch.Size([60, 16]) torch.Size([2, 200])" in result.output, result.output


def test_C10_sizes_that_follow_from_an_unknown_mask_are_no_refusal(here: Path) -> None:
    program = (
        "import torch\nx = torch.randn(6, 2, device='cuda')\nkept = x[x[:, 0] > 0]\nkept + torch.ones({}, 2).cuda()\n"
    )
    (here / "odd.py").write_text(program.format(4))
    result = genie("--target", "l4", "odd.py")
    assert result.exit_code == 2 and "--assume sets another value" in result.output, result.output
    (here / "odd.py").write_text(program.format(6))
    assert genie("--target", "l4", "odd.py").exit_code == 0
    (here / "odd.py").write_text(program.format(6) + "x + torch.ones(6, 2)\n")
    assert genie("--target", "l4", "odd.py").exit_code == 1


def test_C10_an_assumption_is_named_only_if_the_error_may_come_of_it(here: Path) -> None:
    start = "import torch\nx = torch.randn(4, device='cuda')\nif x.sum() > 9: pass\nn = int(x.argmax())\n"
    (here / "odd.py").write_text(f"{start}kept = x[:n]\nkept[-1]\n")  # none is left: the second read decided that
    result = genie("--target", "l4", "odd.py")
    assert result.exit_code == 2 and "at odd.py:4 was assumed to be 0; --assume sets another value" in result.output
    (here / "odd.py").write_text(f"{start}torch._empty_affine_quantized([n + 2], scale=1.0, dtype=torch.qint8)\n")
    result = genie("--target", "l4", "odd.py")
    assert result.exit_code == 2 and "without quantized tensors" in result.output
    assert "--assume" not in result.output, "no other value would change that"


#: Programs that build kernels of their own, or load built ones, where there is no accelerator.
BUILDING = [
    "from torch.utils import cpp_extension; cpp_extension.include_paths('cuda')",
    "from torch.utils import cpp_extension; cpp_extension.load('k', ['k.cu'], build_directory='.')",
    "from torch.utils import cpp_extension; cpp_extension.CUDAExtension('k', ['k.cu'])",
    (
        "try: from torch.utils import cpp_extension; cpp_extension.include_paths('cuda')\n"
        "except OSError as e: raise RuntimeError('kernels are needed') from e"
    ),
    "raise ImportError('libcudart.so.12: cannot open shared object file: No such file or directory')",
    "import ctypes; ctypes.CDLL('libnvrtc.so.99')",
]


@pytest.mark.parametrize("program", BUILDING)
def test_C10_what_this_machine_lacks_to_build_kernels_is_not_the_programs_failure(
    here: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of xLSTM: "the program itself fails", as CUDA_HOME is not set here."""
    monkeypatch.setattr("torch.utils.cpp_extension.CUDA_HOME", None)
    (here / "k.cu").write_text("")
    (here / "kernels.py").write_text(f"import torch\nx = torch.ones(3).cuda() * 2\n{program}\n")
    result = genie("--target", "l4", "kernels.py")
    assert result.exit_code == 2 and blame.TOOLS in result.output, result.output
    assert "may accept this: an estimate cannot tell" in result.output
    result = CliRunner().invoke(cli, ["profile", "--target", "l4", "kernels.py"], prog_name="genie")
    assert result.exit_code == 1 and blame.TOOLS in result.stderr
    on_cpu = genie("--target", "cpu", "kernels.py")
    assert on_cpu.exit_code == 1 and blame.TOOLS not in on_cpu.output


def test_C10_a_compiled_modules_frame_is_asked_for_no_instruction() -> None:
    """On Python 3.10 its code is empty, and the frame is before it."""
    compiled = compile("", "keys.pyx", "exec").replace(co_code=b"")
    frame = types.SimpleNamespace(f_code=compiled)
    assert not blame._is_raised(types.SimpleNamespace(tb_frame=frame, tb_lasti=-1))  # type: ignore[arg-type]
    assert not blame._is_raised(types.SimpleNamespace(tb_frame=frame, tb_lasti=0))  # type: ignore[arg-type]
