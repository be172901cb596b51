"""R1: torch's settings are the same where recordings run: what is not told, and what is refused.

That kernels elsewhere see them: tests/test_flags.py through the pipe (test_suite.py).
"""

from __future__ import annotations

import functools

import pytest
import torch

import mindtorch
from mindtorch.engine.execute import ambient
from mindtorch.engine.execute.ambient import TABLE, mirrored
from mindtorch.engine.remote.pipe import PipeExecutor
from mindtorch.engine.remote.wire import WireError, dumps

from ..executors import greeted

LAZY = "remote_accelerator:0"
#: Not by themselves, with the reason.
NOT_ASKED_FOR = {
    "_set_default_tensor_type": "its dtype is, its device is no kernel's business",
    "_set_fp32_precision_setter": "one for each backend and operation",
    "_set_onednn_allow_tf32": "the older name of a precision",
    "_set_cudnn_allow_tf32": "the older name of a precision",
    "_set_cublas_allow_tf32": "the older name of a precision",
    "_set_cublas_allow_fp16_reduced_precision_reduction": "two answers, one of which cannot be set",
    "_set_cublas_allow_bf16_reduced_precision_reduction": "two answers, one of which cannot be set",
    "_set_blas_preferred_backend": "which library of CUDA's is the other machine's",
    "_set_linalg_preferred_backend": "which library of CUDA's is the other machine's",
    "_set_rocm_fa_preferred_backend": "which library of ROCm's is the other machine's",
    "_set_sm_carveout_experimental": "of a stream of CUDA's",
    "_cuda_setCublasWorkspaceSize": "memory of the other machine",
    "_cuda_setCublasLtWorkspaceSize": "memory of the other machine",
    "_cuda_tunableop_enable": "files of the other machine",
    "_cuda_tunableop_tuning_enable": "files of the other machine",
    "_cuda_tunableop_read_file": "files of the other machine",
}


def test_R1_every_setting_of_torch_is_told_or_has_a_reason() -> None:
    told = {each.name for each in mirrored(cuda=True)}
    there = {s.setter for s in TABLE if hasattr(torch._C, s.setter)}  # some came with later releases
    assert there - told - set(NOT_ASKED_FOR) == set()
    assert set(NOT_ASKED_FOR) & told == set()


def test_R1_a_setter_is_not_taken_for_its_own_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds for CUDA have setters whose questions have names of another kind: they are not called without a value."""
    for name in ("_cuda_setCublasWorkspaceSize", "_cuda_setCublasLtWorkspaceSize", "_cuda_tunableop_enable"):
        monkeypatch.setattr(torch._C, name, lambda _value: None, raising=False)
    assert set(NOT_ASKED_FOR) & {each.name for each in mirrored(cuda=True)} == set()


@pytest.mark.usefixtures("as_it_was")
def test_R1_what_is_told_is_what_has_changed_and_can_be_set() -> None:
    table = mirrored(cuda=False)
    known: dict[str, object] = {}

    def changed() -> list[tuple[str, object]]:
        found = ambient.changed(table, known)
        known.update(found)
        return found

    assert [name for name, _value in changed()] == [each.name for each in table]
    assert changed() == []
    for change, told in (
        (lambda: torch.set_default_dtype(torch.float64), [("_set_default_dtype", torch.float64)]),
        (lambda: torch.set_num_threads(2), [("set_num_threads", 2)]),
        (lambda: torch.set_flush_denormal(True), [("set_flush_denormal", True)]),
        (
            lambda: torch.use_deterministic_algorithms(True, warn_only=True),
            [("_set_deterministic_algorithms", (True, True))],
        ),
        (lambda: torch.use_deterministic_algorithms(True), [("_set_deterministic_algorithms", (True, False))]),
        (lambda: torch.set_warn_always(True), [("_set_warnAlways", True)]),
    ):
        before = [(name, known[name]) for name, _value in told]
        change()
        assert changed() == told
        ambient.take_over(table, before)
        assert changed() == before
        ambient.take_over(table, told)
        assert changed() == told


@pytest.mark.usefixtures("as_it_was")
@pytest.mark.parametrize("value", ["tf32", "ieee", "none"])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("backends", "generic all"), ("backends.cuda.matmul", "cuda matmul"), ("backends.cudnn", "cuda all"),
        ("backends.cudnn.conv", "cuda conv"), ("backends.cudnn.rnn", "cuda rnn"),
        ("backends.mkldnn", "mkldnn all"), ("backends.mkldnn.matmul", "mkldnn matmul"),
    ],
)  # fmt: skip
def test_R1_the_newer_words_for_precision_are_told(
    owner: str, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Torch refuses to answer by an older word where a newer one was said: sessions did not begin after it.
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)
    before = {each.name: each.get() for each in mirrored(cuda=True)}
    torch.set_float32_matmul_precision("high")
    functools.reduce(getattr, owner.split("."), torch).fp32_precision = value  # type: ignore[attr-defined]
    table = mirrored(cuda=True)
    told = ambient.changed(table, before)
    ambient.take_over(table, before.items())  # the other side is as this one was
    ambient.take_over(table, told)
    assert ambient.changed(table, {**before, **dict(told)}) == []
    assert torch._C._get_fp32_precision_getter(*name.split()) == value


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([("_set_grad_enabled", True)], "expected the name of a setting, got '_set_grad_enabled'"),
        ([("set_num_threads", "2")], "expected a int, got '2'"),
        ([("set_num_threads", -1)], "positive"),
        ([3], "cannot unpack"),
    ],
)
def test_R3_a_worker_refuses_what_is_no_setting(given: object, why: str) -> None:
    with pytest.raises(WireError, match=why):
        greeted().handle(dumps([("settings", given)]))


@pytest.mark.usefixtures("as_it_was")
def test_R1_settings_go_along_in_the_message_of_the_calls_that_they_matter_to(shared_pipe: PipeExecutor) -> None:
    previous = mindtorch.set_executor(shared_pipe)
    try:
        x = torch.arange(100, device=LAZY)
        assert (x / 3).sum().item() == (torch.arange(100) / 3).sum().item()
        for dtype in (torch.float64, torch.bfloat16):
            before = shared_pipe.stats["waits"]
            torch.set_default_dtype(dtype)
            assert (x / 3).tolist() == (torch.arange(100) / 3).tolist()
            assert shared_pipe.stats["waits"] - before <= 2
            hot = torch.nn.functional.one_hot(x % 3)  # which runs now
            uniform = torch.empty(100, device=LAZY).dtype, hot.shape
            assert uniform == (dtype, (100, 3))
    finally:
        torch.set_default_dtype(torch.float32)
        mindtorch.set_executor(previous)


@pytest.mark.usefixtures("as_it_was")
def test_R1_each_setting_that_is_on_or_off_can_be_set_by_itself() -> None:
    table = mirrored(cuda=True)
    for name, get, change in table:
        if type(value := get()) is bool and name != "_set_cpu_allow_fp16_reduced_precision_reduction":  # some cannot
            others = [each for each in table if each.name not in (name, ambient._LEGACY) and "32" not in each.name]
            before = [each.get() for each in others]
            change(not value)
            assert get() is not value and [each.get() for each in others] == before, name
            change(value)


@pytest.mark.usefixtures("as_it_was")
@pytest.mark.parametrize(
    ("setter", "same", "other"),
    [
        ("_set_default_dtype", [(torch.float32,)], [(torch.float64,), ("float32",), ()]),
        ("_set_default_tensor_type", [(torch.FloatTensor,)], [(torch.DoubleTensor,), (3,)]),
        ("set_num_threads", [(1,)], [(2,), (), (1, 1)]),
        ("set_flush_denormal", [(False,)], [(True,), ()]),
        ("_set_deterministic_algorithms", [(False,), (False, False)], [(True,), (False, True), (True, False), ()]),
        ("_set_check_sparse_tensor_invariants", [(False,)], [(True,), ()]),
        ("_set_mkldnn_enabled", [(True,)], [(False,)]),
        ("_set_fp32_precision_setter", [("generic", "all", "none")], [("generic", "all", "ieee"), ("generic",)]),
        ("_set_float32_matmul_precision", [], [("highest",), ("high",)]),
    ],
)
def test_L7_setters_are_known_to_change_something(setter: str, same: list[tuple], other: list[tuple]) -> None:
    """What is pending runs before something changes, or may have, and not before that."""
    (setting,) = [each for each in TABLE if each.setter == setter]
    torch.set_num_threads(1)
    assert [setting.changes(args, {}) for args in same] == [False] * len(same)
    assert [setting.changes(args, {}) for args in other] == [True] * len(other)


def test_L7_setters_arguments_may_have_names() -> None:
    (setting,) = [each for each in TABLE if each.setter == "_set_deterministic_algorithms"]
    assert [setting.changes((False,), {"warn_only": on}) for on in (False, True)] == [False, True]
    assert setting.changes((), {"mode": False}) is False and setting.changes((), {"mode": True}) is True
    (threads,) = [each for each in TABLE if each.setter == "set_num_threads"]
    assert threads.changes((), {"nthreads": torch.get_num_threads()}) is True, "nobody looks at their names"


@pytest.mark.parametrize(("setter", "on", "off", "tells"), [
    ("_set_default_dtype", torch.float64, torch.float32, True),
    ("_set_deterministic_algorithms", True, False, True),
    ("_set_check_sparse_tensor_invariants", True, False, True),
    ("_set_mkldnn_enabled", False, True, True),
    ("_set_nnpack_enabled", False, True, True),
    ("_set_mkldnn_deterministic", True, False, False),
    ("_set_deterministic_fill_uninitialized_memory", False, True, False),
    ("set_num_threads", torch.get_num_threads() + 1, torch.get_num_threads(), False),
])  # fmt: skip
def test_L7_calls_are_predicted_anew_under_settings_that_tell_of_results(
    setter: str, on: object, off: object, tells: bool
) -> None:
    x = torch.ones(3, device="remote_accelerator:0")
    made = [(x * 2)._handle.sig]  # type: ignore[attr-defined]
    for value in (on, off):
        getattr(torch._C, setter)(value)
        made.append((x * 2)._handle.sig)  # type: ignore[attr-defined]
    assert made[2] == made[0] and (made[1] != made[0]) is tells
