"""What was recorded before a setting of torch's changes runs under the setting that it was recorded under (SPEC L7)."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import mindtorch
from mindtorch.base import torch_facts
from mindtorch.engine.execute import values
from mindtorch.patch import flags

LAZY = "remote_accelerator:0"
Same = Callable[..., None]
backends = torch.backends


@pytest.fixture(autouse=True)
def put_back(as_it_was: None) -> Iterator[None]:
    """Settings are put back, whatever the test does; torch's own test helpers, once imported, would forbid changes."""
    with backends.__allow_nonbracketed_mutation():
        yield


_ATTENTION = (backends.cuda.enable_flash_sdp, backends.cuda.enable_math_sdp, backends.cuda.enable_mem_efficient_sdp)


# ---- bits ------------------------------------------------------------------------------------------------------------
def convolutions(d: str) -> object:
    torch.manual_seed(1)
    x, w = torch.randn(2, 16, 20, 20).to(d), torch.randn(32, 16, 3, 3).to(d)
    made = [torch.conv2d(x, w, padding=1)]
    for _ in range(2):
        with backends.mkldnn.flags(enabled=False):
            made.append(torch.conv2d(x, w, padding=1))
        made.append(torch.conv2d(x, w, padding=1))
    return made


def sums_of_threads(d: str) -> object:
    torch.manual_seed(1)
    x = torch.randn(1_000_000).to(d)
    made = []
    for threads in (1, 2, 1):
        torch.set_num_threads(threads)
        made.append(x.sum())
    return made


def denormals(d: str) -> object:
    x = torch.full((5,), 1e-38, device=d)
    made = [x * 0.25]
    for mode in (True, False):
        torch.set_flush_denormal(mode)
        made.append(x * 0.25)
    return made


def products(d: str) -> object:
    torch.manual_seed(1)
    x = torch.randn(100, 300).to(d)
    made = [x @ x.t()]
    for precision in ("medium", "highest"):
        torch.set_float32_matmul_precision(precision)
        made.append(x @ x.t())
    for precision in ("bf16", "ieee"):
        backends.mkldnn.matmul.fp32_precision = precision  # type: ignore[assignment]
        made.append(x @ x.t())
    torch.set_float32_matmul_precision("highest")
    return made


def default_dtypes(d: str) -> object:
    x = torch.arange(5, device=d)
    made = [x / 3]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_default_tensor_type(torch.DoubleTensor)
        made.append(x / 3)
        torch.set_default_tensor_type("torch.FloatTensor")
    made.append(x / 3)
    torch.set_default_dtype(torch.bfloat16)
    made.append(x / 3)
    torch.set_default_dtype(torch.float32)
    return made


def filled_memory(d: str) -> object:
    torch.use_deterministic_algorithms(True)
    made = [
        torch.empty(5, device=d),
        torch.empty(3, dtype=torch.int32, device=d),
        torch.empty_like(torch.ones(2, device=d)),
        torch.zeros(2, device=d).resize_(4)[2:],
        torch.ones(2, device=d).new_empty(3),
        torch.empty_strided((2, 2), (1, 2), device=d),
    ]
    torch.use_deterministic_algorithms(False)
    return made


def backward_under_another_setting(d: str) -> object:
    torch.manual_seed(1)
    x = torch.randn(2, 16, 20, 20).to(d).requires_grad_()
    w = torch.randn(32, 16, 3, 3).to(d).requires_grad_()
    with backends.mkldnn.flags(enabled=False):
        loss = torch.conv2d(x, w).square().sum()
    loss.backward()
    return loss, x.grad, w.grad


PROGRAMS = (
    convolutions,
    sums_of_threads,
    denormals,
    products,
    default_dtypes,
    filled_memory,
    backward_under_another_setting,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_L7_settings_act_where_a_call_was_recorded(program: Callable[[str], object], same_as_eager: Same) -> None:
    same_as_eager(program)


# ---- every way to change one -----------------------------------------------------------------------------------------
def attribute(owner: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(owner, name, value)


def entered(make: Callable[[], Any]) -> Callable[[], None]:
    def enter() -> None:
        with make():
            pass

    return enter


WAYS: dict[str, Callable[[], Any]] = {
    "set_default_dtype": lambda: torch.set_default_dtype(torch.float64),
    "set_default_tensor_type": lambda: torch.set_default_tensor_type(torch.DoubleTensor),
    "set_num_threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "set_flush_denormal": lambda: torch.set_flush_denormal(True),
    "use_deterministic_algorithms": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "set_deterministic_debug_mode": lambda: torch.set_deterministic_debug_mode("warn"),
    "deterministic.fill_uninitialized_memory": attribute(torch.utils.deterministic, "fill_uninitialized_memory", False),
    "check_sparse_tensor_invariants.enable": torch.sparse.check_sparse_tensor_invariants.enable,
    "with check_sparse_tensor_invariants": entered(torch.sparse.check_sparse_tensor_invariants),
    "backends.fp32_precision": attribute(backends, "fp32_precision", "tf32"),
    "with backends.flags": entered(lambda: backends.flags(fp32_precision="ieee")),
    "set_float32_matmul_precision": lambda: torch.set_float32_matmul_precision("medium"),
    "mkldnn.enabled": attribute(backends.mkldnn, "enabled", False),
    "with mkldnn.flags": entered(lambda: backends.mkldnn.flags(enabled=False)),
    "mkldnn.set_flags": lambda: backends.mkldnn.set_flags(_enabled=False),
    "mkldnn.deterministic": attribute(backends.mkldnn, "deterministic", True),
    "mkldnn.allow_tf32": attribute(backends.mkldnn, "allow_tf32", False),
    "mkldnn.fp32_precision": attribute(backends.mkldnn, "fp32_precision", "bf16"),
    "mkldnn.matmul.fp32_precision": attribute(backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "mkldnn.conv.fp32_precision": attribute(backends.mkldnn.conv, "fp32_precision", "bf16"),
    "mkldnn.rnn.fp32_precision": attribute(backends.mkldnn.rnn, "fp32_precision", "bf16"),
    "nnpack.set_flags": lambda: backends.nnpack.set_flags(False),
    "with nnpack.flags": entered(lambda: backends.nnpack.flags(False)),
    "quantized.engine": attribute(backends.quantized, "engine", "onednn"),
    "cuda.allow_fp16_bf16_reduction_math_sdp": lambda: backends.cuda.allow_fp16_bf16_reduction_math_sdp(True),
    "_C._set_cpu_allow_fp16_reduced_precision_reduction": lambda: _half_reductions(),
    "from a thread": lambda: _in_thread(attribute(backends.mkldnn, "enabled", False)),
}


def _half_reductions() -> None:
    try:
        torch._C._set_cpu_allow_fp16_reduced_precision_reduction(True)
    except RuntimeError as error:  # this CPU has none
        assert "Float16" in str(error)


def _in_thread(work: Callable[[], Any]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
def test_L7_what_is_pending_runs_before_a_setting_changes(way: str) -> None:
    if way == "quantized.engine" and "onednn" not in backends.quantized.supported_engines:
        pytest.skip("one engine only")
    x = torch.ones(3, device=LAZY) * 1.5
    assert not x.materialized
    WAYS[way]()
    assert x.materialized


CUDA_ONLY: dict[str, Callable[[], Any]] = {
    "cuda.matmul.allow_tf32": attribute(backends.cuda.matmul, "allow_tf32", False),
    "cuda.matmul.allow_fp16_accumulation": attribute(backends.cuda.matmul, "allow_fp16_accumulation", False),
    "cudnn.enabled": attribute(backends.cudnn, "enabled", False),
    "with cudnn.flags": entered(lambda: backends.cudnn.flags(enabled=False)),
    "with sdpa_kernel": entered(lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)),
    "cuda.enable_flash_sdp": lambda: backends.cuda.enable_flash_sdp(False),
}


@pytest.mark.parametrize("way", CUDA_ONLY)
def test_L7_settings_of_cuda_run_what_is_pending_only_where_that_is_on_cuda(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU nothing that is recorded looks at them: a loop with such a block in it stays lazy."""
    cudnn = backends.cudnn.enabled
    x = torch.ones(3, device=LAZY) * 1.5
    CUDA_ONLY[way]()
    assert not x.materialized
    backends.cudnn.enabled = cudnn
    for enable in _ATTENTION:
        enable(True)
    settled: list[str] = []
    monkeypatch.setattr(values.executor(), "device", torch.device("cuda", 0))
    monkeypatch.setattr(values, "settle", settled.append)
    CUDA_ONLY[way]()
    assert settled
    monkeypatch.undo()
    backends.cudnn.enabled = cudnn
    assert x.cpu().tolist() == [1.5] * 3


def test_L7_setting_what_is_set_already_runs_nothing() -> None:
    x = torch.ones(3, device=LAZY) * 1.5
    torch.set_num_threads(torch.get_num_threads())
    torch.set_default_dtype(torch.get_default_dtype())
    torch.set_flush_denormal(False)
    backends.mkldnn.enabled = True
    torch.use_deterministic_algorithms(False)
    torch.backends.fp32_precision = "none"  # type: ignore[attr-defined]
    torch.set_grad_enabled(True)
    assert not x.materialized


#: Setters of torch._C that no recorded operation can see, by the reason.
UNSEEN = {
    "looked at when an operation is called": (
        "_set_autograd_fallback_mode _set_fwd_grad_enabled _set_grad_enabled _set_grad_layout_enforcement_enabled "
        "_set_multithreading_enabled _set_view_replay_enabled set_anomaly_enabled set_autocast_cache_enabled "
        "set_autocast_cpu_dtype set_autocast_cpu_enabled set_autocast_dtype set_autocast_enabled "
        "set_autocast_gpu_dtype set_autocast_ipu_dtype set_autocast_ipu_enabled set_autocast_xla_dtype "
        "set_autocast_xla_enabled _set_skip_next_torch_function _set_torch_function_state _set_dispatch_mode "
        "_set_meta_in_tls_dispatch_include _SetExcludeDispatchKeyGuard _set_only_lift_cpu_tensors "
        "_set_dtensor_allow_implicit_replication"
    ),
    "warnings and words": (
        "_set_backcompat_broadcast_warn _set_backcompat_keepdim_warn _set_warnAlways "
        "_set_should_use_format_with_string_table _set_warn_deprecated_on_mutable_data_ptr "
        "_set_warn_on_accumulate_grad_stream_mismatch _set_print_stack_traces_on_fatal_signal _set_thread_name "
        "_set_storage_access_error_msg _set_storage_data_ptr_access_error_msg"
    ),
    "of one tensor": "_set_conj _set_neg _set_tensor_metadata _set_throw_on_mutable_data_ptr",
    "TorchScript, graphs, processes, allocators": (
        "_set_graph_exec_group _set_graph_executor_optimize _set_tracing_state _set_value_trace "
        "_set_worker_pids _set_worker_signal_handlers _set_generator_metaclass _set_cached_tensors_enabled "
        "_set_override_stale_capture_stream _set_default_mobile_cpu_allocator _set_fake_constant _setenv"
    ),
    "how many operations run at a time, not how": "set_num_interop_threads",
}


#: What came later, or is of CUDA's builds.
NOT_IN_2_13 = set(
    "_set_storage_access_error_msg _set_storage_data_ptr_access_error_msg _set_cublaslt_prefer_grouped_gemm _setenv "
    "_set_fake_constant _set_native_aot_enabled _set_native_aot_unconditional_masked _set_sdp_use_fa4".split()
)


def test_L7_every_setter_of_torch_is_known() -> None:
    """A new torch has to be looked at: does a kernel look at what a new setter sets?"""
    known = {s.setter for s in flags.TABLE} | {name for names in UNSEEN.values() for name in names.split()}
    found = {name for name in dir(torch._C) if name.lower().startswith(("_set", "set_"))}
    assert found - known == set()
    if torch_facts.release() == "2.13":  # others lack some
        assert {name for name in known - found if not name.startswith("_cuda_")} <= NOT_IN_2_13


def test_L7_torch_keeps_none_of_the_functions_elsewhere() -> None:
    originals = {id(f.__wrapped__): s.setter for s in flags.TABLE if (f := getattr(torch._C, s.setter, None))}
    assert len(originals) > 30
    kept = []
    for name, module in sys.modules.items():
        if name.partition(".")[0] == "torch":
            for owner in (module, type(module)):
                for key, value in vars(owner).items():
                    setter = value.__dict__.get("setter") if type(value).__name__ == "ContextProp" else None
                    if id(value) in originals or id(setter) in originals:
                        kept.append((name, key))
    assert kept == []


# ---- manners ---------------------------------------------------------------------------------------------------------
@contextmanager
def bad_index_inside(kept: list[Any]) -> Iterator[None]:
    with backends.mkldnn.flags(enabled=False, deterministic=True):
        x = torch.arange(4.0, device=LAZY)
        kept.append(x.take(torch.tensor([9]).to(LAZY)))
        yield


@pytest.mark.usefixtures("nothing_pending")
def test_L9_a_recorded_error_does_not_keep_settings_from_being_put_back() -> None:
    kept: list[Any] = []
    good = torch.ones(2, device=LAZY) + 1
    with bad_index_inside(kept):
        after = torch.ones(2, device=LAZY) + 2
    assert backends.mkldnn.enabled and not backends.mkldnn.deterministic
    assert good.cpu().tolist() == [2, 2] and after.cpu().tolist() == [3, 3]
    with pytest.raises(mindtorch.MaterializationError, match="take"):
        kept[0].cpu()


@pytest.mark.usefixtures("nothing_pending")
def test_L9_a_write_that_failed_before_a_change_is_told_at_the_next_read() -> None:
    x = torch.zeros(4, device=LAZY)
    y = torch.ones(4, device=LAZY)
    torch.ops.aten.index_put_(x, [torch.tensor([9]).to(LAZY)], torch.ones(1, device=LAZY))
    torch.set_default_dtype(torch.float64)
    with pytest.raises(mindtorch.MaterializationError, match="index_put_"):
        y.cpu()
    assert y.cpu().tolist() == [1.0] * 4
    torch.set_default_dtype(torch.float32)


def test_L7_predictions_of_one_setting_are_kept_while_another_holds() -> None:
    """A block with a setting in a loop costs no prediction after its first time."""
    x = torch.arange(5, device=LAZY)

    def both() -> None:
        torch.set_default_dtype(torch.float64)
        assert (x / 7).dtype == torch.float64
        torch.set_default_dtype(torch.float32)
        assert (x / 7).dtype == torch.float32

    both()
    metas, calls = values.tape.interner.counts()
    for _ in range(50):
        both()
    assert values.tape.interner.counts() == (metas, calls)


def test_L7_a_convolution_without_onednn_has_the_layout_of_eager(same_as_eager: Same) -> None:
    def program(d: str) -> object:
        x, w = torch.randn(2, 4, 9, 9).to(d), torch.randn(6, 4, 3, 3).to(memory_format=torch.channels_last).to(d)
        made = []
        for enabled in (True, False, True):
            backends.mkldnn.enabled = enabled
            made += [torch.conv2d(x, w), torch.conv_transpose2d(torch.conv2d(x, w), w)]
        return made

    same_as_eager(program)


def test_L7_workers_do_not_run_what_their_parent_left_pending(in_python: Callable[..., Any]) -> None:
    code = """
        import torch, mindtorch
        from torch.utils.data import DataLoader, Dataset
        torch.set_num_threads(2)
        x = torch.randn(1_000_000).to("remote_accelerator:0")
        total = x.sum()
        class Data(Dataset):
            def __len__(self): return 4
            def __getitem__(self, i):
                assert not total.materialized and torch.get_num_threads() == 1
                return i
        assert [b.tolist() for b in DataLoader(Data(), num_workers=2)] == [[0], [1], [2], [3]]
        assert not total.materialized
        print("ok")
    """
    assert in_python(code, OMP_NUM_THREADS="2").stdout == "ok\n"


def test_L1_disable_puts_the_setters_back(after_a_step: Callable[..., Any]) -> None:
    code = """
        import torch
        def all_of_them():
            found = [v for m in (torch._C, torch) for k, v in vars(m).items() if "set_" in k and "autocast" not in k]
            return found + [p.setter for p in vars(type(torch.backends.mkldnn)).values() if hasattr(p, "setter")]
        before = all_of_them()
        import mindtorch
        assert [a is b for a, b in zip(before, all_of_them())].count(False) > 30
        assert before == all_of_them() and hash(before[0]) == hash(all_of_them()[0])   # as functions of torch, equal
        mindtorch.disable()
        assert all(a is b for a, b in zip(before, all_of_them(), strict=True))
        print("ok")
    """
    assert after_a_step(code).stdout == "ok\n"


def test_L1_a_warning_names_the_line_that_it_would_name_without_us(after_a_step: Callable[..., Any]) -> None:
    code = """
        import torch, warnings
        if {with_us}: import mindtorch
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch._C._set_default_tensor_type(torch.DoubleTensor)
            torch.set_default_tensor_type(torch.FloatTensor)
        print([(w.filename, w.lineno) for w in seen])
    """
    assert after_a_step(code.format(with_us=True)).stdout == after_a_step(code.format(with_us=False)).stdout
