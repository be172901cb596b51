"""C4: named targets, the user's own sheets, and the roofline."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mindtorch import UsageError
from mindtorch.profile.cost import roofline, targets
from mindtorch.profile.cost.work import Work
from mindtorch.profile.estimate.estimator import Estimator

OWN = """
[mine]
name = "My chip"
memory_bytes = 16e9
memory_bandwidth = 1e12
launch_s = 2e-6
matrix = { float32 = 10e12, float16 = 40e12 }
vector = { float32 = 5e12 }
"""


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "chip.toml"
    path.write_text(text)
    return str(path)


def test_C4_the_asked_for_targets_are_there_with_their_sources() -> None:
    assert {"h100", "h200", "b200", "a100", "l4", "rtx4090", "mi300x", "910b"} <= set(targets.shipped())
    for target in targets.shipped().values():
        assert len(target.source) > 20 and target.name
        # Narrower numbers are never slower, and matrix units never slower than the ordinary ones.
        assert target.rate("float32", True) <= target.rate("bfloat16", True) <= target.rate("int8", True)
        for dtype in ("float64", "float32", "bfloat16"):
            assert target.rate(dtype, False) <= target.rate(dtype, True)
        assert 0 < target.launch_s < 1e-4


@pytest.mark.parametrize(
    ("dtype", "matrix", "rate"),
    [
        ("float32", True, 10e12), ("float16", True, 40e12), ("bfloat16", True, 40e12), ("float64", True, 10e12),
        ("float8_e4m3fn", True, 40e12), ("int64", True, 10e12), ("bool", True, 40e12), ("complex64", True, 10e12),
        ("torch.float16", False, 5e12), ("qint8", False, 5e12), ("tf32", True, 10e12),
    ],
)  # fmt: skip
def test_C4_a_rate_that_a_sheet_omits_is_the_next_wider_ones(tmp_path, dtype, matrix, rate) -> None:
    assert targets.find(write(tmp_path, OWN)).rate(dtype, matrix) == rate


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("matrix = {", "matrics = {"), "unknown matrics"),
        (("memory_bytes = 16e9", ""), "expected a number for memory_bytes, got None"),
        (("memory_bandwidth = 1e12", "memory_bandwidth = -1"), "memory_bandwidth between"),
        (("memory_bandwidth = 1e12", "memory_bandwidth = 3.35"), "memory_bandwidth between"),
        (("launch_s = 2e-6", "launch_s = nan"), "number for launch_s, got nan"),
        (("launch_s = 2e-6", 'launch_s = "fast"'), "number for launch_s, got 'fast'"),
        (("float32 = 5e12", ""), "expected vector ="),
        (("float32 = 5e12", "float33 = 5e12"), "unknown float33"),
        (("launch_s = 2e-6", "capability = 9.0"), "expected capability = [<major>, <minor>], got 9.0"),
        (("launch_s = 2e-6", "processors = 0"), "processors between 1"),
        (("[mine]", "[mine"), "is not TOML"),
        (("[mine]", "[other]\n[mine]"), "other: expected"),
        (("[mine]", "mine = 3\n[x]"), "mine: expected a table"),
    ],
)
def test_C4_a_bad_sheet_is_refused_in_one_line(tmp_path, change, says) -> None:
    with pytest.raises(UsageError) as raised:
        targets.find(write(tmp_path, OWN.replace(*change)))
    assert says in str(raised.value) and "\n" not in str(raised.value).replace("(at", "")


def test_C4_a_sheet_says_what_cuda_programs_are_told(tmp_path) -> None:
    l4, mine = targets.find("l4"), targets.find(write(tmp_path, OWN))
    assert (l4.capability, l4.processors) == ((8, 9), 58)
    assert (mine.capability, mine.processors) == (targets.find("h100").capability, targets.find("h100").processors)
    told = targets.find(write(tmp_path, OWN.replace("launch_s = 2e-6", "capability = [7, 5]\nprocessors = 40")))
    with Estimator(target=told):
        assert torch.cuda.get_device_capability() == (7, 5)
        assert torch.cuda.get_device_properties(0).multi_processor_count == 40


def test_C4_an_unknown_target_lists_the_known(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"h100, h200, .*got 'h1000'"):
        targets.find("h1000")
    with pytest.raises(UsageError, match=r"cannot read .*: No such file"):
        targets.find(str(tmp_path / "none.toml"))
    with pytest.raises(UsageError, match="expected one table"):
        targets.find(write(tmp_path, OWN + OWN.replace("mine", "yours")))


def job(flops: int, nbytes: int, dtype: str = "float32", tag: str = "matmul") -> Work:
    return Work(flops, 0, nbytes, 0, dtype, tag)


def test_C4_the_bound_is_the_longer_of_computing_and_moving(tmp_path) -> None:
    chip = targets.find(write(tmp_path, OWN))
    # 1024^3 matmul: 2.147 GFLOP at 10 TFLOP/s; on ordinary units at 5.
    assert roofline.bound(chip, job(2 * 1024**3, 12 * 1024**2))[0] == 2 * 1024**3 / 10e12
    assert roofline.bound(chip, job(2 * 1024**3, 0, tag="elementwise"))[0] == 2 * 1024**3 / 5e12
    # What the cache may hold comes from there; the rest at 1 TB/s. A launch is no part of it.
    assert roofline.bound(chip, job(0, 10**9))[1] == (10**9 - chip.l2_bytes) / 1e12
    assert roofline.bound(chip, job(0, 800))[1] == 800 / (roofline.CACHE_RATE * chip.clock_hz * chip.processors)
    assert roofline.bound(chip, job(0, 0, tag="view")) == (0, 0)
    assert roofline.balance(chip, "float16") == 40
    h100 = targets.find("h100")
    narrow, wide = (roofline.bound(h100, job(10**15, 0), tf32)[0] for tf32 in (True, False))
    assert wide / narrow == pytest.approx(494.7 / 66.9)


def test_C4_memory_is_what_the_driver_reports() -> None:
    for name, gib in (("h100", 79.1), ("a100", 79.32), ("4090", 23.65), ("h200", 139.8), ("b200", 178.35),
                      ("a100-40gb", 39.39), ("l40s", 44.39), ("l4", 22.03)):  # fmt: skip
        assert targets.find(name).memory_bytes / 2**30 == pytest.approx(gib, abs=0.01)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("H100", "h100"), ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"), ("A100_80GB_PCIe", "a100-pcie"),
        ("Tesla T4", "t4"),
        ("RTX 4090", "rtx4090"), ("h100 nvl", "h100-nvl"), ("Tesla_V100-PCIE-32GB", "v100-pcie-32gb"), ("L40S", "l40s"),
        ("rtx3060", "rtx3060"), ("P100", "p100"), ("p4", "p4"), ("H100-PCIe", "h100-pcie"), ("A6000", "a6000"),
    ],
)  # fmt: skip
def test_C4_a_target_goes_by_any_spelling(name, key) -> None:
    assert targets.find(name).key == key


def test_C4_an_unknown_name_lists_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"nearest: .*rtx3090"):
        targets.find("rtx3080")


def test_C4_help_names_every_target():
    from click.testing import CliRunner

    from mindtorch.cli.main import cli

    said = " ".join(CliRunner().invoke(cli, ["profile", "--help"]).stdout.split())
    assert f"Estimate for {', '.join(targets.names())}, or" in said
