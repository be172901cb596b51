"""C4: the ``cpu`` target: one measurement per process, and what its model makes of it. No clock is trusted here."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mindtorch.ops import ROWS
from mindtorch.profile.cost import cpu, cpu_measure, targets
from mindtorch.profile.cost.cpu_measure import FEW, FRESH_BYTES, SIDE, Measured, measure
from mindtorch.profile.cost.op_time import estimate
from mindtorch.profile.cost.work import Work, work

MB = 1 << 20
aten = torch.ops.aten


def figures(**more: Any) -> Measured:
    """A machine that can be reckoned with in one's head."""
    found = Measured(
        threads=1, launch_s=4e-6, dispatch_s=1e-6, first_s=1.1e-9, again_s=1e-10,
        few_s=1e-6 + 2 * FEW * SIDE**2 / 1e11 + 1e-11 * 4 * (FEW + SIDE) * SIDE,
        matrix={"float32": 1e11, "float64": 5e10, "bfloat16": 2e10, "float16": 2e10},
        bandwidth=[(MB, 64e9), (4 * MB, 64e9), (64 * MB, 16e9)],
    )  # fmt: skip
    found.vector = dict.fromkeys({*KINDS - MOVES, *EXTRA}, 1e9) | {"simple": 1e10, "tanh": 5e8}
    found.moves = dict.fromkeys({*MOVES, "copy", "strided"}, 2e9)
    for name, value in more.items():
        setattr(found, name, value)
    return found


KINDS = {row.cpu for row in ROWS} - {""}
MOVES = {"cast", "rows", "gather", "scatter", "scatter_add", "index_add", "uniform", "normal", "bernoulli", "fill"}
EXTRA = (
    "conv", "conv_backward", "depthwise", "attention", "attention_backward", "attention_short", "gelu_tanh",
    "gelu_backward_tanh", "simple_half", "sum_columns", "sum_rows",
)  # fmt: skip
MODEL = cpu.CpuModel(figures())


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def seconds(func: Any, *args: Any, footprint: int = 0, **kwargs: Any) -> float:
    return MODEL(work(func, args, kwargs, func(*args, **kwargs)), footprint)[0]


X = meta(1024, 1024)


def test_C4_a_measurement_gives_every_figure_the_model_asks_for(monkeypatch):
    monkeypatch.setattr(cpu_measure, "ROUNDS_S", 0.0)
    monkeypatch.setattr(cpu_measure, "PASSES", 1)
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    found = measure()
    assert found.threads == threads == torch.get_num_threads()
    assert torch.equal(state, torch.random.get_rng_state())
    assert (KINDS - MOVES) | set(EXTRA) <= set(found.vector)
    assert MOVES | {"strided"} <= set(found.moves)
    assert not set(found.vector) & set(found.moves) & KINDS
    for rates in (found.vector, found.moves, found.matrix, dict(found.bandwidth)):
        assert all(rate > 0 for rate in rates.values())
    assert found.launch_s > 0 and found.dispatch_s > 0 and found.fresh_s >= 0 and found.skinny_s >= 0


def test_C4_the_machine_is_measured_once_per_number_of_threads(monkeypatch):
    asked = []
    monkeypatch.setattr(cpu, "measure", lambda: asked.append(1) or figures())
    monkeypatch.setattr(cpu, "_found", {})
    first = targets.find("cpu")
    assert targets.find("cpu") is first and len(asked) == 1
    assert first.key == "cpu" and first.memory_bandwidth == 16e9 and first.memory_bytes > 1e6
    assert estimate(Work(0, 0, 0, 0, "float32", "view", "aten::view"), first).bound == "launch"
    with pytest.raises(Exception, match="910b, cpu, or a"):
        targets.find("gpu")


def test_C4_overhead_adds_up_on_a_cpu():
    assert seconds(aten.view.default, X, [-1]) == pytest.approx(2e-6)
    assert seconds(aten.add.Tensor, meta(2), meta(2)) == pytest.approx(4e-6, rel=1e-3)
    lists = [meta(2)] * 10
    assert seconds(aten._foreach_add.List, lists, lists) == pytest.approx(13e-6, rel=1e-3)
    assert MODEL(work(aten.add.Tensor, (meta(2), meta(2)), {}, meta(2)), 0)[1] == "launch"


def test_C4_functions_take_longer_than_their_bytes():
    launch = 4e-6
    assert seconds(aten.tanh.default, X) - launch == pytest.approx(MB / 5e8)
    assert seconds(aten.pow.Tensor_Scalar, X, 1.7) - launch == pytest.approx(MB / 1e9)
    assert seconds(aten.pow.Tensor_Scalar, X, 2) < seconds(aten.pow.Tensor_Scalar, X, 1.7) / 2
    assert seconds(aten.gelu.default, X) == pytest.approx(seconds(aten.gelu.default, X, approximate="tanh"))
    assert seconds(aten.bernoulli_.float, X, 0.5) - launch == pytest.approx(4 * MB / 2e9)


def test_C4_bandwidth_depends_on_what_fits_into_the_cache():
    assert MODEL.bandwidth(1000) == 64e9 == pytest.approx(MODEL.bandwidth(2 * MB))
    assert MODEL.bandwidth(16 * MB) == pytest.approx(32e9)
    assert MODEL.bandwidth(1 << 40) == 16e9
    near = seconds(aten.add.Tensor, X, X)
    far = seconds(aten.add.Tensor, X, X, footprint=1 << 30)  # the other operand has left the cache
    assert far - near == pytest.approx(4 * MB / 16e9 - 4 * MB / MODEL.bandwidth(12 * MB))
    assert seconds(aten.relu.default, X) == seconds(aten.relu.default, X, footprint=1 << 30)
    turned = X.t()
    assert seconds(aten.copy_.default, X, turned) > 4 * seconds(aten.copy_.default, X, X)


def test_C4_memory_that_is_new_is_mapped_first():
    large = meta(FRESH_BYTES // 4)
    in_place, fresh = seconds(aten.relu_.default, large), seconds(aten.relu.default, large)
    assert fresh - in_place == pytest.approx(FRESH_BYTES * 1e-9)
    assert seconds(aten.relu.default, X) == pytest.approx(seconds(aten.relu_.default, X))


def test_C4_small_products_pay_for_their_operands():
    wide = meta(1024, 1024)
    for rows in (8, 512):
        flops, nbytes = 2 * rows * 1024**2, 4 * (rows * 1024 + 1024**2)
        assert seconds(aten.mm.default, meta(rows, 1024), wide) == pytest.approx(4e-6 + flops / 1e11 + 1e-11 * nbytes)
    one = work(aten.mm.default, (meta(1, 1024), wide), {}, meta(1, 1024))
    assert MODEL(one, 0)[1] == "memory"  # a vector: as fast as the matrix is read
    half = meta(512, 512, dtype=torch.bfloat16)
    assert seconds(aten.mm.default, half, half) == pytest.approx(4e-6 + 2 * 512**3 / 2e10 + 1e-11 * 4 * 512**2)


def test_C4_convolutions_by_kind():
    def conv(groups: int) -> float:
        x, w = meta(8, 64, 32, 32), meta(64, 64 // groups, 3, 3)
        return seconds(aten.convolution.default, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups) - 4e-6

    model = figures()
    model.vector |= {"conv": 5e10, "depthwise": 5e9}
    flops = 2 * 8 * 32 * 32 * 64 * 64 * 9
    assert conv(1) == pytest.approx(flops / 1e9)
    done = work("aten::convolution", _conv_args(64), {}, meta(8, 64, 32, 32))
    assert cpu.CpuModel(model)(done, 0)[0] - 4e-6 == pytest.approx(flops / 64 / 5e9)


def _conv_args(groups: int) -> tuple[Any, ...]:
    return (
        meta(8, 64, 32, 32), meta(64, 64 // groups, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups,
    )  # fmt: skip
