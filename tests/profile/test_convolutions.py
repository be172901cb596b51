"""C4: how long convolutions take: as products of their sizes, by layout, direction and numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mindtorch.profile.cost import op_time, targets, work

A100, V100 = targets.find("a100"), targets.find("v100")
EXACT, TF32 = op_time.Precision(tf32_conv=False), op_time.Precision()


def convolution(
    shape: tuple[int, ...] = (256, 64, 56, 56), features: int = 64, kernel: int = 3, stride: int = 1, groups: int = 1,
    dtype: torch.dtype = torch.float16, last: bool = True, transposed: bool = False, dilation: int = 1,
) -> tuple[Any, ...]:  # fmt: skip
    """(input, weight, result, the rest of the arguments)"""
    layout = torch.channels_last if last else torch.contiguous_format
    sizes = (shape[1], features // groups) if transposed else (features, shape[1] // groups)
    x = torch.empty(shape, dtype=dtype, device="meta").to(memory_format=layout)
    w = torch.empty(*sizes, kernel, kernel, dtype=dtype, device="meta").to(memory_format=layout)
    rest = ([stride] * 2, [dilation * (kernel // 2)] * 2, [dilation] * 2, transposed, [0, 0], groups)
    return x, w, torch.ops.aten.convolution(x, w, None, *rest), rest


def forward(*args: Any, target: targets.Target = A100, allowed: op_time.Precision = TF32, **given: Any) -> float:
    x, w, out, rest = convolution(*args, **given)
    done = work.work(torch.ops.aten.convolution.default, (x, w, None, *rest), {}, out)
    return op_time.estimate(done, target, allowed=allowed).seconds


def backward(wanted: tuple[bool, bool], target: targets.Target = A100, **given: Any) -> float:
    x, w, out, rest = convolution(**given)
    args = (out, x, w, None, *rest, [*wanted, False])
    done = work.work(torch.ops.aten.convolution_backward.default, args, {}, [x, w])
    return op_time.estimate(done, target).seconds


def test_C4_a_convolution_moves_its_tensors_once_and_not_its_patches() -> None:
    moved = 2 * 2 * 256 * 64 * 56 * 56 / A100.memory_bandwidth
    computed = 2 * 256 * 56 * 56 * 64 * 64 * 9 / A100.rate("float16", True)
    assert max(moved, computed) < forward() < 1.6 * (moved + computed)
    assert moved < forward(kernel=1) < 2 * moved


@pytest.mark.parametrize(("dtype", "tensors"), [(torch.float16, 1), (torch.float32, 2)], ids=["half", "TF32"])
def test_C4_matrix_units_want_channels_last(dtype: torch.dtype, tensors: int) -> None:
    """Kernels for two-byte numbers write the other layout themselves."""
    copies = tensors * 2 * dtype.itemsize * 256 * 64 * 56 * 56 / A100.memory_bandwidth
    found = forward(dtype=dtype, last=False) - forward(dtype=dtype, last=True)
    assert copies < found < 1.5 * copies


def test_C4_ordinary_units_take_any_layout() -> None:
    given = {"dtype": torch.float32, "allowed": EXACT}
    assert forward(last=False, **given) == pytest.approx(forward(last=True, **given))
    assert forward(last=True, **given) > 2 * forward(last=True, dtype=torch.float32)


def test_C4_ordinary_units_multiply_less_in_kernels_of_three_by_three() -> None:
    sizes = {"shape": (64, 256, 28, 28), "features": 256, "dtype": torch.float32, "target": V100}
    direct = forward(**sizes, dilation=2)
    assert direct == pytest.approx(2.25 * forward(**sizes), rel=0.1)
    assert forward(**sizes, kernel=5) == pytest.approx(25 / 9 * direct, rel=0.1)


def test_C4_backward_is_a_kernel_for_each_gradient_that_is_wanted() -> None:
    x, w, both = backward((True, False)), backward((False, True)), backward((True, True))
    assert both == pytest.approx(x + w, rel=0.05)
    assert x == pytest.approx(forward(), rel=0.2) and 0.7 < w / x < 2.5


def test_C4_a_transposed_convolution_is_another_ones_gradient() -> None:
    there = {"shape": (64, 128, 32, 32), "features": 256, "kernel": 4, "stride": 2}
    x, w, out, rest = convolution(**there, transposed=True)
    done = work.work(torch.ops.aten.convolution.default, (x, w, None, *rest), {}, out)
    assert done.convolution is not None and done.convolution.wanted == ("input",)
    assert (done.convolution.channels, done.convolution.features) == (256, 128)
    one = done.convolution
    assert 2 * one.places * one.channels * one.features * one.taps == done.flops


def test_C4_few_channels_are_computed_as_a_piece_of_sixteen_bytes() -> None:
    sizes = {"features": 64, "kernel": 7, "stride": 2}
    assert forward((256, 3, 224, 224), **sizes) == pytest.approx(forward((256, 8, 224, 224), **sizes), rel=0.2)


def test_C4_a_depthwise_convolution_streams_memory() -> None:
    moved = 2 * 2 * 256 * 64 * 56 * 56 / A100.memory_bandwidth
    assert moved < forward(groups=64) < 1.5 * moved


def test_C4_a_batch_norm_in_evaluation_only_scales() -> None:
    def norm(training: bool) -> float:
        x, each = torch.empty(256, 64, 56, 56, device="meta"), [torch.empty(64, device="meta")] * 4
        args = (x, *each, training, 0.1, 1e-5)
        done = work.work(torch.ops.aten.native_batch_norm.default, args, {}, [x, each[0], each[0]])
        return op_time.estimate(done, A100).seconds

    x = torch.empty(256, 64, 56, 56, device="meta")
    copied = op_time.estimate(work.work(torch.ops.aten.neg.default, (x,), {}, x), A100).seconds
    assert norm(False) == pytest.approx(copied, rel=0.05)
    assert norm(True) > 1.5 * norm(False)


def test_C4_a_batch_of_no_images_has_a_time() -> None:
    """It was no number, and no report was written."""
    assert 0 <= forward((0, 3, 16, 16)) < forward((64, 3, 16, 16))
    assert 0 <= backward((True, True), shape=(0, 3, 16, 16)) < backward((True, True), shape=(64, 3, 16, 16))
