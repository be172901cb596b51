"""C4: joules beside time: what a board draws anyway, what operations and bytes add, and at most its power."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from mindtorch.cli.units import joules
from mindtorch.cli.units import seconds as shown_seconds
from mindtorch.profile.cost import targets
from mindtorch.profile.cost.energy import board
from mindtorch.profile.cost.work import Work
from mindtorch.profile.estimate.estimator import Estimator
from mindtorch.profile.report.forecast import Forecast
from mindtorch.profile.report.joules import Energy
from mindtorch.profile.report.rows import Row
from mindtorch.profiling import Report

H100 = targets.find("h100")
#: A board that no call brings to its limit.
FREE = dataclasses.replace(H100, power_w=1e6)


def job(flops: int, nbytes: int = 0, dtype: str = "bfloat16", tag: str = "matmul", **more: Any) -> Work:
    return Work(flops, 0, nbytes, 0, dtype, tag, **more)


def row(sig: int, seconds: float, calls: int = 1) -> Row:
    return Row(sig, 0, 0, 1, calls, round(seconds * 1e9), 0)


def energy(target: targets.Target, *works: Work | None, **options: Any) -> Energy:
    on = board(target)
    assert on is not None
    return Energy(Forecast(target, [None, *works], estimated=True, **options), on, {})


def test_C4_energy_of_what_waits_is_the_idle_power_times_its_time():
    assert energy(H100).of(row(0, 2.0)) == pytest.approx(2 * 120)
    assert energy(H100, job(0, tag="view")).of(row(1, 0.0)) == 0.0
    waiting = job(10**15, 10**12, seconds=0.5)  # for other ranks
    assert energy(H100, waiting).of(row(1, 0.5)) == pytest.approx(60)


def test_C4_energy_of_twice_the_operations_is_twice_as_much_beyond_the_idle_part():
    first, second = (energy(FREE, job(n * 10**12)).of(row(1, 1.0)) - 120 for n in (1, 2))
    assert second == pytest.approx(2 * first) and first == pytest.approx(0.92)
    first, second = (energy(FREE, job(0, n * 10**9)).of(row(1, 1.0)) - 120 for n in (1, 2))
    assert second == pytest.approx(2 * first) and first == pytest.approx(0.1)


def test_C4_energy_is_at_most_the_boards_power_times_the_time():
    for seconds in (1.0, 1e-3):
        assert energy(H100, job(10**18)).of(row(1, seconds)) == pytest.approx(700 * seconds)
    assert energy(H100, job(10**18)).of(row(1, 0.0)) == 0.0


def test_C4_energy_of_an_operation_follows_its_units_and_its_format():
    on = board(H100)
    assert on is not None
    half = on.operation_j("bfloat16", True)
    assert on.operation_j("float16", True) == half
    assert on.operation_j("float8_e4m3fn", True) == pytest.approx(half / 2, rel=0.01)
    assert on.operation_j("tf32", True) == pytest.approx(2 * half, rel=0.01)
    ordinary = on.operation_j("float32", True)  # not on matrix units
    assert ordinary == on.operation_j("float32", False) and 3 * half < ordinary < 10 * half
    assert on.operation_j("float64", False) == pytest.approx(2 * ordinary, rel=0.01)


def test_C4_every_figure_of_a_board_is_plausible():
    found = {key: board(target) for key, target in targets.shipped().items()}
    known = {key for key, on in found.items() if on}
    assert {"h100", "h200", "b200", "a100", "v100", "t4", "l4", "l40s", "p100"} <= known
    assert not known & {"mi300x", "910b", "rtx4090", "p4"}
    for key in known:
        on = found[key]
        assert on is not None and 0.1 * on.limit_w < on.idle_w < 0.5 * on.limit_w, key
        streaming = on.idle_w + on.byte_j * on.target.memory_bandwidth
        assert 0.6 * on.limit_w < streaming < 1.3 * on.limit_w, (key, streaming)
        assert 1e-13 < on.operation_j("bfloat16", True) < 3e-11, key
        assert on.low < 0 < on.high, key


@pytest.mark.parametrize("missing", [{"idle_w": 0.0}, {"power_w": 0.0}, {"device": "npu"}])
def test_C4_no_energy_where_a_figure_is_not_known(missing):
    assert board(dataclasses.replace(H100, **missing)) is None
    assert board(dataclasses.replace(H100, model=lambda work, held: (0.0, "memory"))) is None
    rows: dict[str, Any] = estimate(dataclasses.replace(H100, **missing))
    assert "energy" not in rows and "energy_j" not in rows["totals"] and "energy_j" not in rows["phases"][0]
    assert "energy  " not in Report(rows).show()
    assert Report(rows).energy_j is None and Report(rows).energy is None


def estimate(target: targets.Target, width: int = 1024) -> dict[str, Any]:
    with Estimator(target=target) as estimator:
        net = torch.nn.Linear(width, width, device="cuda", dtype=torch.bfloat16)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            net(torch.ones(4096, width, device="cuda", dtype=torch.bfloat16)).sum().backward()
            optimizer.step()
    report: dict[str, Any] = estimator.report()
    return report


def test_C4_the_report_has_joules_of_all_of_phases_and_of_a_step():
    found = estimate(H100, 8192)
    totals, about = found["totals"], found["energy"]
    assert totals["energy_low_j"] < totals["energy_j"] < totals["energy_high_j"]
    assert sum(phase["energy_j"] for phase in found["phases"]) == pytest.approx(totals["energy_j"])
    assert 120 * totals["about_s"] < totals["energy_j"] < 700 * totals["about_s"]
    assert totals["energy_high_j"] <= 700 * totals["about_high_s"] * 1.0001
    assert totals["energy_low_j"] >= 120 * totals["about_low_s"] * 0.9999
    assert about["step_j"] == pytest.approx(totals["energy_j"] / found["steps"]["count"], rel=0.02)  # weights beside
    assert about["power_w"] == pytest.approx(totals["energy_j"] / totals["about_s"])
    assert (about["accelerators"], about["all_j"]) == (1, totals["energy_j"])
    shown = Report(found)
    assert shown.energy_j == totals["energy_j"] and shown.energy == about
    words = " ".join(shown.show().replace("│", " ").split())
    assert f"energy about {joules(totals['energy_j'])} (" in words and "J a step" in words


def test_C4_the_energy_of_a_call_that_generates_is_not_told_as_a_steps():
    """Beside joules of a token, calls of an encoder, of a prefill and of a decoder had "280 mJ a step" each."""
    found = estimate(H100, 512)
    found["energy"]["token_j"], found["generation"] = {"decode": 0.2}, {"phases": []}
    words = " ".join(Report(found).show().replace("│", " ").split())
    assert "decode 200 mJ a token" in words and "J a step" not in words


def test_C4_several_accelerators_take_so_many_times_the_energy():
    from mindtorch.base.clusters import Cluster

    def one(cluster: Cluster | None) -> dict[str, Any]:
        with Estimator(target=H100, cluster=cluster) as estimator:
            net = torch.nn.Linear(512, 512, device="cuda")
            net(torch.ones(64, 512, device="cuda"))
        report: dict[str, Any] = estimator.report()
        return report

    alone, among = one(None), one(Cluster(8))
    assert among["totals"]["energy_j"] == pytest.approx(alone["totals"]["energy_j"])
    assert among["energy"]["all_j"] == pytest.approx(8 * alone["energy"]["all_j"])
    assert "all 8: " in Report(among).show()


def test_C4_what_is_fused_into_another_kernel_moves_no_bytes_of_its_own():
    work = job(0, 10**9, tag="elementwise")
    whole = energy(FREE, work).of(row(1, Forecast(FREE, [None, work]).cost(1).seconds))
    alone = Forecast(FREE, [None, work]).cost(1).seconds
    fused = energy(FREE, work, fused={1}).of(row(1, alone / 4))
    assert fused == pytest.approx(whole / 4, rel=1e-3)
    assert energy(FREE, work, on_host={1}).of(row(1, 0.0)) == 0.0


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 J"), (3.2e-8, "32.0 nJ"), (4.5e-5, "45.0 µJ"), (0.045, "45.0 mJ"), (0.9996, "1.00 J"), (312, "312 J"),
     (2310, "2.31 kJ"), (4.1e9, "4.10 GJ")],
)  # fmt: skip
def test_C8_joules_as_people_read_them(value, text):
    assert joules(value) == text


def test_C4_a_step_of_an_estimate_has_its_own_time_and_joules_alone():
    """Ten large products before two small steps were half of "J a step" each."""

    def sized(before: int, steps: int, width: int = 4096) -> dict[str, Any]:
        with Estimator(target=H100) as estimator:
            large, small = (torch.nn.Linear(n, n, device="cuda") for n in (8192, width))
            optimizer = torch.optim.SGD(small.parameters(), lr=0.1)
            with torch.no_grad():
                for _ in range(before):
                    large(torch.ones(8192, 8192, device="cuda"))
            for _ in range(steps):
                small(torch.ones(512, width, device="cuda")).sum().backward()
                optimizer.step()
        found: dict[str, Any] = estimator.report()
        return found

    alone, beside, one = sized(0, 8), sized(10, 3), sized(10, 1)
    each = alone["totals"]["about_s"] / 8, alone["energy"]["all_j"] / 8
    for found in (alone, beside):
        assert (found["steps"]["about_s"], found["energy"]["step_j"]) == pytest.approx(each, rel=0.03)
        assert found["steps"]["about_low_s"] < found["steps"]["about_s"] < found["steps"]["about_high_s"]
    words = " ".join(Report(beside).show().replace("│", " ").split())
    assert f"steps 3, about {shown_seconds(beside['steps']['about_s'])} each (" in words
    assert f"{joules(beside['energy']['step_j'])} a step" in words
    assert "about_s" not in one["steps"] and one["energy"]["step_j"] is None  # where it begins is not known
