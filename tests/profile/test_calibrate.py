"""C4: `genie calibrate` measures a GPU, here with a clock that goes by the models themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mindtorch import UsageError
from mindtorch.profile.cost import calibrate_gpu, op_time, targets
from mindtorch.profile.cost.work import work


def test_C4_a_calibrated_sheet_is_a_target_whose_times_are_those_measured(tmp_path: Path, monkeypatch) -> None:
    known = targets.find("a100")
    monkeypatch.setattr(calibrate_gpu, "SIDES", (1024, 4096))
    shapes = iter([(m, n, k, kind) for _, kind, _ in calibrate_gpu.KINDS for m in calibrate_gpu.ROWS
                   for n in (1024, 4096) for k in (1024, 4096)])  # fmt: skip

    def clock(call) -> float:  # twice as slow as peak and bandwidth
        if (shape := next(shapes, None)) is None:
            return 5e-6 + 2 * 8 * next(sizes) / known.memory_bandwidth
        m, n, k, kind = shape
        peak, item = (312e12, 2) if kind == "half" else (19.5e12, 4)
        return 5e-6 + 2 * max(2 * m * n * k / peak, item * (m * k + n * k + m * n) / known.memory_bandwidth)

    sizes = iter(calibrate_gpu.STREAMS)
    path = tmp_path / "mine.toml"
    path.write_text(calibrate_gpu.measured(known, "My A100", "meta", clock))
    mine = targets.find(str(path))
    assert (mine.name, mine.capability, mine.processors) == ("My A100", (8, 0), 108)
    x, w = (torch.empty(*size, dtype=torch.bfloat16, device="meta") for size in ((4096, 4096), (4096, 4096)))
    cost = op_time.estimate(work(torch.ops.aten.mm.default, (x, w), {}, x), mine)
    assert cost.seconds == pytest.approx(2 * 2 * 4096**3 / 312e12, rel=0.25)
    assert op_time.source(work(torch.ops.aten.mm.default, (x, w), {}, x), mine) == "measured on the machine"


def test_C4_without_a_gpu_calibration_says_what_to_do() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(UsageError, match="target cpu"):
        calibrate_gpu.sheet()
