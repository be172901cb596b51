"""R3: what a message may call, and that kernels which believe indices and sizes are not reached with wrong ones.

On memory that nobody may read or write beyond: ``tests/remote/guarded.c``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mindtorch.engine.remote import functions
from mindtorch.engine.remote.wire import Reference, WireError, dumps, loads

from ..executors import greeted

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize(
    "name",
    [
        "aten::save.default",
        "aten::append.t", "aten::from_file.default", "aten::_print.default",
        "aten::set_data.default", "aten::set_.source_Storage",
        "aten::record_stream.default", "aten::segment_reduce.default", "aten::segment_reduce.out", "aten::add.nothing",
        "aten::_segment_reduce_backward.default", "aten::_convert_indices_from_coo_to_csr.default", "aten::add.t",
        "aten::_slow_conv2d_forward.default", "aten::slow_conv_transpose3d.default", "aten::thnn_conv2d.default",
        "aten::_wrapped_quantized_linear_prepacked.default", "aten::_dyn_quant_matmul_4bit.default",
        "aten::_transform_bias_rescale_qkv.default", "aten::_masked_softmax_backward.default", "aten::_stack.default",
        "aten::batch_norm_update_stats.default", "aten::quantized_lstm_cell.default", "aten::_stack.out",
        "aten::_cholesky_solve_helper.default", "aten::_compute_linear_combination.default",
        "aten::_nnpack_spatial_convolution.default",
        "aten::_cummax_helper.default", "prim::rpc_async.default", "prims::add.default", "c10d::allreduce_.default",
        "inductor::_reinterpret_tensor.default", "profiler::_record_function_enter.default", "quantized::add.default",
        "genie_test_remote::scaled.default", "aten::", "", "::", ".",
    ],
)  # fmt: skip
def test_R3_only_atens_operators_on_tensors_are_for_messages(name: str) -> None:
    with pytest.raises(WireError):
        functions.called(f"op {name}")
    with pytest.raises(WireError):
        functions.called(f"like {name}")


def test_R3_what_programs_call_is_for_messages() -> None:
    for name in ("op aten::add.Tensor", "op aten::embedding_dense_backward.default", "torch.relu", "functional.linear"):
        assert functions.called(name)
    assert not {"torch.save", "torch.load", "torch.from_file"} & set(functions.names())


def test_R3_a_view_beyond_its_storage_fails_where_it_is_made() -> None:
    worker = greeted()
    worker.handle(dumps([("upload", 1, bytes(16))]))
    given = [(1, torch.float32, (4,), (1,), 0, 0)]
    name, args = "op aten::_reshape_alias.default", (Reference(0), [1000], [1])
    (answer,) = loads(worker.handle(dumps([("call", 50, given, name, args, {}, False, -1)])))
    kind, results, changed, raised = answer
    assert (kind, results, changed, raised[:2]) == ("gave", None, [], ("raised", "RuntimeError")), answer
    assert "within 16 bytes" in raised[2], answer


@pytest.mark.parametrize("name", ["op aten::_ctc_loss.default", "op aten::ctc_loss.IntList", "torch.ctc_loss"])
def test_R3_targets_of_ctc_loss_out_of_range_are_an_error(name: str) -> None:
    """Torch's own kernel reads outside there; a function that is made of it is looked into."""
    worker = greeted()
    targets = b"".join(n.to_bytes(8, "little") for n in (1, 2, 3, 1 << 20))
    worker.handle(dumps([("upload", 1, bytes(5 * 2 * 4 * 4)), ("upload", 2, targets)]))
    given = [(1, torch.float32, (5, 2, 4), (8, 4, 1), 0, 0), (2, torch.int64, (2, 2), (2, 1), 0, 0)]
    args = (Reference(0), Reference(1), [5, 5], [2, 2])
    (answer,) = loads(worker.handle(dumps([("call", 50, given, name, args, {}, False, -1)])))
    assert answer == ("gave", None, [], ("raised", "IndexError", "expected indices in 0..3, got 1048576"))


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library to be loaded before all others, after which tensors end where a page begins that nobody may touch."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler, or no Linux")
    path = tmp_path_factory.mktemp("guarded") / "guarded.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", HERE / "guarded.c", "-o", path, "-ldl"], check=True)
    return path


def hostile(library: Path, *arguments: str, guard: str = "after") -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", HERE / "hostile_calls.py", *arguments],
        env={**os.environ, "LD_PRELOAD": str(library), "GUARD": guard},
        capture_output=True, text=True, timeout=24 * 3600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout.splitlines()


def test_R3_memory_is_guarded(guarded: Path) -> None:
    """Without a look at its arguments, a kernel of torch's dies here."""
    names = ("adaptive_max_pool2d_backward", "_ctc_loss_backward")
    assert any(line.startswith("died") for line in hostile(guarded, "--without-looking", *names))


@pytest.mark.sample(1)
@pytest.mark.parametrize("guard", ["after", "before"])
def test_R3_hostile_calls_are_errors(guarded: Path, guard: str, pytestconfig: pytest.Config) -> None:
    *found, last = hostile(guarded, "--each", str(pytestconfig.getoption("--messages") // 100), guard=guard)
    assert not found, "\n".join(found)
    assert int(last.split()[1]) > 400, last
