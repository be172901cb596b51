"""C4: three times of an estimate (at least, about, an interval), and what decides them."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mindtorch.profile.cost import factors, implicit_gemm, op_time, roofline, targets, work
from mindtorch.profile.estimate.estimator import Estimator

A100 = targets.find("a100")
TIMES = ("bound_s", "about_s", "about_low_s", "about_high_s")


def estimate(run: Callable[[], Any], target: targets.Target = A100) -> dict[str, Any]:
    with Estimator(target=target) as estimator:
        run()
    return estimator.report()


@pytest.fixture
def precision(as_it_was: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # Torch's own test utilities, which other tests of this process import, freeze the flags.
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)


def layer() -> None:
    with torch.no_grad():
        nn.Linear(4096, 4096, bias=False, device="cuda")(torch.empty(8192, 4096, device="cuda"))


def test_C4_a_report_has_bound_about_and_interval_everywhere() -> None:
    def step() -> None:
        net = nn.Sequential(nn.Linear(2048, 2048), nn.GELU(), nn.LayerNorm(2048)).cuda()
        net(torch.randn(4096, 2048, device="cuda")).sum().backward()

    report = estimate(step)
    for row in (report["totals"], *report["phases"], *report["modules"], *report["ops"]):
        least, expected, low, high = (row[name] for name in TIMES)
        assert 0 <= least <= expected * (1 + 1e-9) and low <= expected <= high
    totals = report["totals"]
    assert totals["about_s"] == pytest.approx(totals["time_s"]) == pytest.approx(totals["predicted_s"])
    for table, name in (("phases", "about_s"), ("ops", "about_s")):
        assert sum(row[name] for row in report[table]) == pytest.approx(totals["about_s"])
    assert sum(row["bound_s"] for row in report["ops"]) == pytest.approx(totals["bound_s"])
    roof = report["roofline"]
    assert roof["factors"]["product"] and roof["doubt"][0]["name"] in ("aten::mm", "aten::addmm")


@pytest.mark.parametrize(
    "allow",
    [
        lambda: torch.set_float32_matmul_precision("high"),
        lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
        lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    ],
)
def test_C4_tf32_is_used_where_the_program_allows_it(precision, allow) -> None:
    plain = estimate(layer)["totals"]

    def allowed() -> None:
        allow()
        layer()

    found = estimate(allowed)
    assert found["totals"]["bound_s"] == pytest.approx(plain["bound_s"] * 19.5 / 156)
    assert found["totals"]["about_s"] < plain["about_s"] / 4 and found["roofline"]["tf32"]
    v100 = estimate(allowed, targets.find("v100"))["totals"]
    assert v100["bound_s"] == pytest.approx(2 * 8192 * 4096**2 / 15.7e12)  # has none


def test_C4_convolutions_use_tf32_unless_the_program_says_no(precision) -> None:
    def convolve() -> None:
        F.conv2d(torch.empty(64, 256, 56, 56, device="cuda"), torch.empty(256, 256, 3, 3, device="cuda"))

    def without() -> None:
        torch.backends.cudnn.allow_tf32 = False
        convolve()

    assert estimate(convolve)["totals"]["about_s"] < estimate(without)["totals"]["about_s"] / 2


def test_C4_device_and_host_run_side_by_side() -> None:
    def small() -> None:
        x = torch.ones(16, device="cuda")
        for _ in range(1000):
            x = x * 2

    def large() -> None:
        x = torch.ones(1 << 28, device="cuda")
        for _ in range(1000):
            x = x * 2

    host = 1001 * op_time.HOST_KERNEL * A100.launch_s
    found = estimate(small)
    assert found["totals"]["about_s"] == pytest.approx(host, rel=0.02)
    assert found["totals"]["bound_s"] < host / 100  # a CUDA graph launches at once
    assert any(row["name"] == "(launch)" and row["self_s"] > 0 for row in found["ops"])
    found = estimate(large)
    assert not any(row["name"] == "(launch)" for row in found["ops"])
    assert found["totals"]["about_s"] == pytest.approx(1000 * 2 * (4 << 28) / 2.039e12, rel=0.3)


def test_C4_a_compiled_program_is_estimated_as_fused() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = torch.sin(x) + 1
        return x

    x = (1 << 26,)
    plain = estimate(lambda: chain(torch.empty(x, device="cuda")))
    fused = estimate(lambda: torch.compile(chain)(torch.empty(x, device="cuda")))
    assert fused["totals"]["about_s"] < plain["totals"]["about_s"] / 8
    assert fused["totals"]["flops"] == plain["totals"]["flops"]
    assert fused["totals"]["bound_s"] <= fused["totals"]["about_s"]
    assert any("fused" in warning for warning in fused["warnings"])


def test_C4_a_grouped_product_reads_the_experts_that_have_tokens() -> None:
    x, weights = torch.empty(2, 64, device="meta"), torch.empty(8, 64, 32, device="meta")
    ends, out = torch.empty(8, dtype=torch.int32, device="meta"), torch.empty(2, 32, device="meta")
    few = work.work(torch.ops.aten._grouped_mm.default, (x, weights, ends), {}, out)
    assert few.bytes_read == x.nbytes + 2 * 64 * 32 * 4 + ends.nbytes
    assert few.product == (2, 1, 32, 64)
    many, wide = torch.empty(100, 64, device="meta"), torch.empty(100, 32, device="meta")
    every = work.work(torch.ops.aten._grouped_mm.default, (many, weights, ends), {}, wide)
    assert every.bytes_read == many.nbytes + weights.nbytes + ends.nbytes


@pytest.mark.parametrize("drop", [F.dropout, F.alpha_dropout, F.feature_alpha_dropout, F.dropout1d, F.dropout2d])
def test_C4_dropout_in_evaluation_costs_nothing(drop: Callable[..., torch.Tensor]) -> None:
    def run(training: bool, p: float = 0.5) -> dict[str, Any]:
        def program() -> None:
            with torch.inference_mode():
                x = torch.empty(16, 64, 256, 256, device="cuda")
                drop(x[0] if drop is F.dropout1d else x, p, training=training)

        return estimate(program)["totals"]

    for free in (run(False), run(True, 0.0)):
        assert (free["bound_s"], free["flops"]) == (0, 0)
        assert free["about_s"] <= 4 * A100.launch_s
    assert run(True)["bound_s"] > 0


def test_C4_small_streams_take_their_bytes_at_the_rate_of_large_ones() -> None:
    """Up to the size of the second-level cache they took what the measuring host did, by the cache of the target."""
    for chip in ("l4", "rtx4090", "a100", "h100", "b200", "v100"):
        target = targets.find(chip)
        small, large = (
            op_time.estimate(work.Work(0, 0, n // 2, n // 2, "float32", "elementwise", "aten::add"), target).seconds
            for n in (target.l2_bytes / 2, 2e10)
        )
        assert small - 2.1e-6 <= large * target.l2_bytes / 4e10 * 1.01


def test_C4_geforces_slower_matrix_units_are_fed_as_fast_and_come_nearer_to_their_peak() -> None:
    """A GeForce multiplies 512 FLOPs a clock and multiprocessor, the same silicon in an L40S twice as many."""
    for chip in ("rtx4090", "rtx3090", "rtx3060"):
        assert factors.matrix_flops(targets.find(chip)) == pytest.approx(512, rel=0.03)
    l40s, rtx4090 = targets.find("l40s"), targets.find("rtx4090")
    ours, theirs = (factors.of(chip, "product", "half").values for chip in (rtx4090, l40s))
    assert ours["edge"] == pytest.approx(theirs["edge"] / 2, rel=0.03) and theirs["efficiency"] < ours["efficiency"]
    large = product(8192, 8192, 8192)
    reached = [op_time.estimate(large, chip).least / op_time.estimate(large, chip).seconds for chip in (l40s, rtx4090)]
    assert reached[0] < reached[1] <= 1
    assert factors.of(targets.find("a6000"), "product", "half").values["efficiency"] < 1  # it has all of its units


def test_C4_boards_of_geforce_may_pass_their_data_sheets_clock() -> None:
    """Bounds allow for the highest clock; what is copied of a convolution in the default layout is its input alone."""
    chip, other = targets.find("rtx4090"), targets.find("l40s")
    product = work.Work(2 * 8192**3, 8192**3, 0, 0, "float16", "matmul", "aten::mm", product=(1, 8192, 8192, 8192))
    peak = product.flops / chip.rate("float16", True)
    assert roofline.bound(chip, product)[0] == pytest.approx(peak / factors.HIGHEST_CLOCK)
    assert roofline.bound(other, product)[0] == product.flops / other.rate("float16", True)
    assert roofline.bound(chip, product)[0] < op_time.estimate(product, chip).seconds < peak * 1.05
    newer = dataclasses.replace(chip, capability=(12, 0))
    assert not factors.stacked(newer) and factors.geforce(newer)


@pytest.mark.parametrize(("item", "wanted", "copied"), [(2.0, "forward", 1), (2.0, "input", 2), (4.0, "forward", 2)])
def test_C4_a_convolution_in_the_default_layout_copies(item: float, wanted: str, copied: int) -> None:
    chip = targets.find("rtx3090")
    known = factors.of(chip, "product", "half").values
    given = implicit_gemm.Convolution(1, 64, 64, 9, 10**6, 10**6, True, True, (wanted,))
    least, most = (
        implicit_gemm.seconds(known, known, chip, given._replace(last=last), item, 0.5, (71e12, 35e12))
        for last in (True, False)
    )
    assert least is not None and most is not None
    assert most - least == pytest.approx(copied * 2 * item * given.read / (chip.memory_bandwidth * 0.5))


def test_C4_the_gradient_of_a_depthwise_weight_reads_its_tensors_for_each_element_of_the_kernel() -> None:
    chip = targets.find("rtx3090")
    given = implicit_gemm.Convolution(64, 1, 1, 9, 10**6, 10**6, True, False, ("input", "weight"))
    known = factors.of(chip, "product", "half").values
    small, large = (
        implicit_gemm.seconds(known, known, chip, given._replace(taps=taps), 2.0, 0.9, (71e12, 35e12))
        for taps in (9, 49)
    )
    assert small is not None and large == pytest.approx(small * 49 / 9)
    forward = given._replace(wanted=("forward",))
    assert implicit_gemm.seconds(known, known, chip, forward, 2.0, 0.9, (71e12, 35e12)) is None


def test_C4_memory_without_error_correction_streams_at_the_share_of_stacked_memory() -> None:
    def share(chip: str) -> float:
        return factors.of(targets.find(chip), "stream", "single").values["elementwise"]

    assert share("l4") == share("a10") == share("t4") < 0.8
    assert share("rtx4090") == share("rtx3090") == share("a100-pcie-40gb")
    assert 0.85 < share("rtx4090") <= 0.92


def test_C4_intervals_of_chips_that_were_not_fitted_allow_for_another_source() -> None:
    for model, kind in (("product", "half"), ("attention", "half"), ("stream", "single")):
        low, high = (factors.fitted()["carried"][kind][model][end] for end in ("low", "high"))
        for chip in ("rtx4090", "l4", "mi300x"):
            known = factors.of(targets.find(chip), model, kind)
            assert not known.own
            assert known.low == pytest.approx(-math.hypot(low, 0.2)) and known.high == pytest.approx(
                math.hypot(high, 0.2)
            )


def test_C4_odd_rows_cost_slower_matrix_units_less() -> None:
    def factor(chip: str) -> float:
        even, odd = (product(4096, 4096, 4096, unaligned=odd) for odd in (False, True))
        return op_time.estimate(odd, targets.find(chip)).seconds / op_time.estimate(even, targets.find(chip)).seconds

    assert factor("a100") == factor("h100") == pytest.approx(op_time.UNALIGNED, rel=0.01)
    assert [factor("rtx4090"), factor("rtx3090")] == pytest.approx([1.5, 1.5], rel=0.02)


def test_C4_what_the_cache_holds_may_be_faster_than_memory() -> None:
    small = work.Work(0, 0, 2**20, 2**20, "float32", "elementwise")
    assert max(roofline.bound(A100, small)) < 2**21 / A100.memory_bandwidth


def test_C4_factors_are_the_chips_own_or_its_kins() -> None:
    own = factors.of(A100, "product", "half")
    assert own.own and own.low < 0 < own.high and "a100" in own.source
    kin = factors.of(targets.find("h200"), "product", "half")
    assert not kin.own and "h100" in kin.source
    h100 = factors.of(targets.find("h100"), "product", "half")
    assert kin.low < h100.low and kin.high > h100.high
    # A board of 72 W does not sustain its peak; one of 700 W does.
    l4, h100 = (factors.of(targets.find(name), "product", "single").values["tired"] for name in ("l4", "h100"))
    assert h100 < 1.5 < 2 < l4
    far = factors.of(targets.find("rtx3090"), "product", "single")
    assert all(name in far.source for name in ("a100", "v100", "t4")) and not far.sizes


def product(m: int, n: int, k: int, dtype: str = "bfloat16", count: int = 1, **more: Any) -> work.Work:
    item = 2 if dtype == "bfloat16" else 4
    flops, read, written = 2 * m * n * k, item * (m * k + n * k), item * m * n
    return work.Work(count * flops, 0, count * read, count * written, dtype, "matmul", product=(count, m, n, k), **more)


def test_C4_the_same_silicon_with_another_memory_computes_as_fast_and_streams_faster() -> None:
    h100, h200 = targets.find("h100"), targets.find("h200")
    large, few = product(8192, 8192, 8192), product(1, 16384, 16384)
    assert op_time.estimate(large, h200).seconds == pytest.approx(op_time.estimate(large, h100).seconds, rel=0.03)
    assert 1.25 < op_time.estimate(few, h100).seconds / op_time.estimate(few, h200).seconds < 4.8 / 3.35


@pytest.mark.parametrize("chip", ["a100", "h100", "l40s", "b200"])
def test_C4_a_linear_layer_takes_what_was_measured_of_linear_layers(chip) -> None:
    target = targets.find(chip)  # what was fitted are linear layers, whose weight lies turned
    for m, n, k in ((512, 4096, 4096), (8192, 8192, 8192), (3000, 12288, 2048)):
        plain, layer = (op_time.estimate(product(m, n, k, turned=turned), target).seconds for turned in (False, True))
        assert layer == pytest.approx(plain, rel=0.02)


def test_C4_few_columns_of_a_float32_batch_take_a_whole_tile() -> None:
    target = targets.find("a100-pcie-40gb")  # measured: 5.8 ms, of which the FLOPs alone would be 0.3 and the bytes 1.0
    found = op_time.estimate(product(485, 7, 916, "float32", 882), target)
    assert found.seconds == pytest.approx(5.77e-3, rel=0.15) and found.least < 1.2e-3


def test_C4_the_doubt_of_a_call_goes_by_its_size() -> None:
    known = factors.of(A100, "attention", "half")
    small, large = known.doubt(1e-6), known.doubt(1.0)
    assert large[1] < known.high < small[1]  # large ones are the same work again and again
    assert known.doubt(1.0) == known.sizes[-1][1:]
    cost = op_time.estimate(product(64, 64, 64), A100)
    assert (cost.low, cost.high) == factors.of(A100, "product", "half").doubt(cost.seconds)


def test_C4_the_interval_of_a_program_is_that_of_programs_in_its_numbers() -> None:
    def run(dtype: torch.dtype) -> dict[str, float]:
        def layers() -> None:
            with torch.no_grad():
                for n in range(8, 24):
                    nn.Linear(512 * n, 4096, bias=False, device="cuda", dtype=dtype)(
                        torch.empty(8192, 512 * n, device="cuda", dtype=dtype)
                    )

        return estimate(layers, targets.find("a100"))["totals"]

    def width(t: dict[str, float]) -> float:
        return math.log(t["about_high_s"] / t["about_s"])

    table = copy.deepcopy(dict(factors.fitted()))
    table["another source"]["half"]["program"]["high"] = 0.7
    table["another source"]["single"]["program"]["high"] = 0.3
    with factors.using(table):
        assert width(run(torch.bfloat16)) == pytest.approx(0.7, rel=0.01)
        assert width(run(torch.float32)) == pytest.approx(0.3, rel=0.01)


@pytest.mark.parametrize(
    ("chip", "m", "n", "k", "least", "most"),
    [("a100", 8192, 8192, 8192, 0.7, 1.0), ("h100", 8192, 8192, 8192, 0.6, 1.0), ("l40s", 8192, 8192, 8192, 0.5, 1.0)],
)
def test_C4_large_products_run_near_the_peak_and_few_rows_at_the_memorys_speed(chip, m, n, k, least, most) -> None:
    target = targets.find(chip)
    shape = work.Work(2 * m * n * k, 0, 2 * (m * k + n * k), 2 * m * n, "bfloat16", "matmul", product=(1, m, n, k))
    cost = op_time.estimate(shape, target)
    assert least < cost.least / cost.seconds <= most
    few = work.Work(2 * n * k, 0, 2 * (k + n * k), 2 * n, "bfloat16", "matmul", product=(1, 1, n, k))
    assert 0.5 < 2 * n * k / target.memory_bandwidth / op_time.estimate(few, target).seconds < 1


def test_C4_few_rows_in_float32_take_no_longer_than_as_many_products_of_one() -> None:
    target = targets.find("h100")
    one, four, many = (op_time.estimate(product(rows, 768, 2304, "float32"), target).seconds for rows in (1, 4, 64))
    streamed = 4 * 768 * 2304 / target.memory_bandwidth
    assert streamed < one < 12e-6 and one < four <= 4.1 * one and four <= many  # a tile of 768 alone takes 25 us


def test_C4_rows_that_begin_at_odd_addresses_are_slow_on_matrix_units() -> None:
    def seconds(words: int, dtype: torch.dtype = torch.bfloat16) -> float:
        a, b = (
            torch.empty(16384, words, dtype=dtype, device="meta"),
            torch.empty(words, 768, dtype=dtype, device="meta"),
        )
        done = work.work(torch.ops.aten.mm.default, (a, b), {}, torch.empty(16384, 768, dtype=dtype, device="meta"))
        return op_time.estimate(done, A100).seconds

    assert seconds(50257) > 2 * seconds(50304)
    assert seconds(50258) == pytest.approx(seconds(50304), rel=0.1)
    assert seconds(50257, torch.float32) == pytest.approx(seconds(50304, torch.float32), rel=0.1)
    logits = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((16384, 768), (768, 50257))]
    assert not work.work(torch.ops.aten.mm.default, (logits[0], logits[1].t().contiguous().t()), {}, None).unaligned


def test_C4_tf32_is_of_matrix_work_only(precision) -> None:
    def train() -> None:
        layers = [nn.Linear(1024, n, device="cuda") for n in (1024, 2048, 4096, 8192)]  # as many shapes as make a model
        x = torch.empty(4096, 1024, device="cuda")
        sum(layer(x).softmax(-1).sum() for layer in layers).backward()

    def allowed() -> None:
        torch.backends.cuda.matmul.allow_tf32 = True
        train()

    plain, faster = ({row["name"]: row["about_s"] for row in estimate(run)["ops"]} for run in (train, allowed))
    assert plain["aten::_softmax"] == faster["aten::_softmax"]
    assert plain["aten::mm"] > 2 * faster["aten::mm"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int8])
@pytest.mark.parametrize("shape,stride,odd", [
    ((4, 3), (3, 1), True), ((4, 4), (4, 1), False), ((1, 3), (3, 1), False), ((4, 1), (1, 1), False),
    ((4, 2), (1, 4), False), ((3, 3), (1, 3), True), ((2, 2), (2, 1), False), ((2, 4, 4), (17, 4, 1), True),
    ((2, 2), (3, 1), True), ((0, 3), (3, 1), False),
])  # fmt: skip
def test_C4_odd_rows_of_either_operand_count(dtype: torch.dtype, shape: tuple, stride: tuple, odd: bool) -> None:
    t = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    even = torch.empty(4, 4, dtype=dtype, device="meta")
    expected = odd and dtype.itemsize == 2
    assert work._unaligned((t, even)) == work._unaligned((even, t)) == expected
    assert work._unaligned((torch.empty(4, 3, dtype=dtype, device="meta"), even, t)) == expected, "the last two are"


def sustained(chip: targets.Target) -> float:
    """The share of the matrix units' peak that a program gets in large products of 16-bit numbers."""
    large = product(8192, 8192, 8192)
    return large.flops / op_time.estimate(large, chip, among="training").seconds / chip.rate("bfloat16", True)  # type: ignore[operator]


@pytest.mark.parametrize(("chip", "joules"), [("a100", 1.6e-12), ("h100", 1.6e-12 * 0.67), ("b200", 1.6e-12 * 0.55)])
def test_C4_products_of_a_program_in_16_bits_take_what_the_boards_power_gives(chip: str, joules: float) -> None:
    target = targets.find(chip)
    share = target.power_w / joules / target.rate("bfloat16", True)
    assert sustained(target) == pytest.approx(share) and share < 0.81
    half = dataclasses.replace(target, power_w=target.power_w / 2)
    assert sustained(half) == pytest.approx(share / 2)
    large = product(8192, 8192, 8192)
    assert op_time.estimate(large, target).seconds < op_time.estimate(large, target, among="inference").seconds
    tf32 = [
        op_time.estimate(product(8192, 8192, 8192, "float32"), target, 0, op_time.Precision(True), kind)
        for kind in ("", "training")
    ]
    assert tf32[1].seconds == pytest.approx(2 * 8192**3 / (target.rate("tf32", True) * share))
    assert tf32[1].seconds > tf32[0].seconds


@pytest.mark.parametrize("chip", ["a100", "h100", "b200", "v100"])
def test_C4_calls_of_a_program_in_16_bits_take_longer_than_alone(chip: str) -> None:
    """As fitted to programs on chips with stacked memory, compiled ones, too."""
    target, whole = targets.find(chip), factors.fitted()["a100"]["half"]["program"]["whole"]
    assert 1.05 < whole < 1.25
    moved = work.Work(0, 0, 2**30, 2**30, "bfloat16", "elementwise", "aten::add")
    few = product(1, 8192, 8192)
    for one in (product(8192, 512, 64), moved, attention("aten::_scaled_dot_product_flash_attention", 1024)):
        alone, *among = (op_time.estimate(one, target, among=kind).seconds for kind in ("", "inference", "training"))
        assert among == pytest.approx([whole * alone] * 2, rel=0.02)  # alone, V100's attention is at the bound
    for tuned in (False, True):
        alone, among_others = (op_time.compiled(few, target, None, kind, tuned) for kind in ("", "inference"))
        assert among_others == pytest.approx(whole * alone)
    single = moved._replace(dtype="float32")
    alone, among_others = (op_time.estimate(single, target, among=kind).seconds for kind in ("", "inference"))
    assert among_others == alone


@pytest.mark.parametrize("chip", ["l40s", "rtx4090", "a6000"])
def test_C4_a_board_that_sustains_its_products_computes_them_as_fast_in_a_program(chip: str) -> None:
    target, large = targets.find(chip), product(8192, 8192, 8192)
    assert op_time.estimate(large, target, among="training").seconds == op_time.estimate(large, target).seconds


def attention(name: str, length: int, size: int = 128) -> work.Work:
    """Causal, of 16k tokens and heads of 2,048 together."""
    heads = 16384 // length * 2048 // size
    flops, tensor = 4 * heads * length**2 * size, 2 * heads * length * size
    shape = (heads, length, length, size)
    return work.Work(flops, 0, 3 * tensor, tensor, "bfloat16", "attention", name, variant="causal", product=shape)


@pytest.mark.parametrize(("length", "published"), [(1024, 260), (4096, 319), (16384, 335)])
def test_C4_torchs_attention_on_hopper_is_flashattention_2(length: int, published: int) -> None:
    """As "FlashAttention-3" (2024) has it, figure 5, in TFLOP/s; cuDNN's is nearly twice as fast."""
    h100, a100 = targets.find("h100"), targets.find("a100")
    flash, cudnn = (attention(f"aten::_scaled_dot_product_{kind}_attention", length) for kind in ("flash", "cudnn"))
    times = [op_time.estimate(each, h100).seconds for each in (flash, cudnn)]
    assert flash.flops / 2 / times[0] / 1e12 == pytest.approx(published, rel=0.06)  # type: ignore[operator]
    assert length < 4096 or times[0] > 1.4 * times[1]
    assert op_time.estimate(flash, a100).seconds == op_time.estimate(cudnn, a100).seconds
    assert "h100" in op_time.source(flash, h100) and op_time.source(flash, h100) == op_time.source(cudnn, h100)
    backward = attention("aten::_scaled_dot_product_flash_attention_backward", length)
    assert op_time.estimate(backward, h100).seconds == pytest.approx(2.8 * times[0])


def test_C4_where_the_host_is_the_limit_its_launches_are_the_largest_doubt() -> None:
    def steps() -> None:
        x = torch.ones(8, 8, device="cuda")
        for _ in range(100):
            x = x @ x

    doubt = estimate(steps)["roofline"]["doubt"]
    assert [row["name"] for row in doubt[:2]] == ["(launch)", "aten::mm"]
    assert doubt[0]["seconds"] == pytest.approx(op_time.HOST_DOUBT * next(
        row["self_s"] for row in estimate(steps)["ops"] if row["name"] == "(launch)"), rel=0.01)  # fmt: skip
