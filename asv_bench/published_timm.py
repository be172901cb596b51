"""timm's published speeds of image models beside their estimates: ``python asv_bench/published_timm.py``.

From huggingface/pytorch-image-models (Apache-2.0), `results/benchmark-*.csv`: mixed precision (float16), eager.
"""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

import numpy as np
import published_programs as programs
from estimates import estimated_each

#: pixels of a side, batch, images a second; of the columns of `TABLES`.
Speed = tuple[int, int, float]


class Table(NamedTuple):
    """One file. fused: whether that release of timm and torch computed attention fused."""

    file: str
    chip: str
    training: bool
    last: bool
    fused: bool


TABLES = (
    Table("infer-amp-nchw-pt240-cu124-rtx3090", "rtx3090", False, False, True),
    Table("train-amp-nchw-pt112-cu113-rtx3090", "rtx3090", True, False, False),
    Table("infer-amp-nchw-pt240-cu124-rtx4090", "rtx4090", False, False, True),
    Table("infer-amp-nhwc-pt240-cu124-rtx4090", "rtx4090", False, True, True),
    Table("infer-amp-nhwc-pt240-cu124-rtx3090", "rtx3090", False, True, True),
    Table("train-amp-nhwc-pt112-cu113-rtx3090", "rtx3090", True, True, False),
    Table("infer-amp-nchw-pt291-cu130-5090", "rtx5090", False, False, True),
)
#: Chosen for being of many kinds, before any of their estimates for these chips was looked at.
SPEEDS: dict[str, tuple[Speed, ...]] = {
    "resnet18": ((160, 1024, 17691), (224, 512, 2764.2), (160, 1024, 26266), (160, 512, 35956)),
    "resnet50": ((160, 1024, 6033.9), (224, 512, 826.06), (160, 1024, 8139.6), (160, 512, 10141)),
    "resnext50_32x4d": ((160, 1024, 4849.7), (224, 384, 663.39), (160, 1024, 6540.2), (160, 512, 8436.1)),
    "seresnet50": ((160, 1024, 5298.1), (224, 384, 714.65), (160, 1024, 6987), (160, 512, 8474.8)),
    "regnety_032": ((224, 1024, 2852.4), (224, 384, 696.58), (224, 1024, 4166.7), (224, 512, 3890.6)),
    "densenet121": ((224, 1024, 2764.4), (224, 256, 730.11), (224, 1024, 3615), (224, 512, 3896.1)),
    "vgg16": ((224, 1024, 1021.7), (224, 384, 465.36), (224, 1024, 2165.3), (224, 512, 2904.9)),
    "efficientnet_b0": ((224, 1024, 6924.9), (224, 384, 1459.1), (224, 1024, 8926.1), (224, 512, 9831.7)),
    "efficientnet_b3": ((288, 512, 2184.3), (288, 128, 456.81), (288, 512, 2792.8), (288, 512, 2886.1)),
    "mobilenetv2_100": ((224, 1024, 8629.7), (224, 512, 1832.1), (224, 1024, 10810), (224, 512, 11768)),
    "mobilenetv3_large_100": ((224, 1024, 11136), (224, 512, 2167.3), (224, 1024, 14191), (224, 512, 16892)),
    "convnext_tiny": ((224, 1024, 3090.4), (224, 256, 813.16), (224, 1024, 4797), (224, 512, 4844.5)),
    "vit_small_patch16_224": ((224, 1024, 4584.9), (224, 384, 1052.9), (224, 1024, 7693.4), (224, 512, 7695.7)),
    "vit_base_patch16_224": ((224, 1024, 1570.7), (224, 192, 390.86), (224, 1024, 2787.2), (224, 512, 2843)),
    "swin_tiny_patch4_window7_224": ((224, 1024, 1994.2), (224, 256, 646.76), (224, 1024, 2659.3), (224, 512, 2744.1)),
    "mixer_b16_224": ((224, 1024, 1632.4), (224, 256, 528.02), (224, 1024, 2607.5), (224, 512, 2837.3)),
    "resnetv2_50": ((224, 1024, 3355.8), (224, 512, 880.1), (224, 1024, 4451.4), (224, 512, 5404.9)),
    "pit_s_224": ((224, 1024, 4895.8), (224, 256, 942.8), (224, 1024, 8898.4), (224, 512, 9385.2)),
    "inception_v3": ((299, 1024, 2349.2), (299, 384, 602.27), (299, 1024, 3663.2), (299, 512, 4356.9)),
    "poolformer_s12": ((224, 1024, 4258.9), (224, 512, 1234.1), (224, 1024, 5647.4), (224, 512, 5207.2)),
}
#: Other models on the RTX 4090, named before their speeds were read, and read after the commit of the intervals.
FURTHER: dict[str, tuple[Speed, ...]] = {
    "resnet34": ((160, 1024, 16119.9), (160, 512, 22893.4)),
    "resnet101": ((160, 1024, 5347.38), (160, 512, 6654.99)),
    "wide_resnet50_2": ((176, 1024, 4418.37), (176, 512, 5230.3)),
    "regnetx_032": ((224, 1024, 4235.6), (224, 512, 4377.92)),
    "efficientnetv2_rw_s": ((288, 1024, 2485.89), (288, 512, 2865.52)),
    "convnext_small": ((224, 1024, 2968.52), (224, 512, 2979.27)),
    "vit_large_patch16_224": ((224, 1024, 912.7), (224, 512, 903.87)),
    "swin_small_patch4_window7_224": ((224, 1024, 1658.9), (224, 512, 1706.58)),
    "cspdarknet53": ((256, 1024, 2752.11), (256, 512, 2655.45)),
    "gernet_l": ((256, 1024, 5345.88), (256, 512, 7010.05)),
    "dla60": ((224, 1024, 4267), (224, 512, 5050.11)),
    "res2net50_26w_4s": ((224, 1024, 3401.73), (224, 512, 3870.41)),
}
#: The twenty models in channels last on the RTX 3090.
LAST: dict[str, tuple[Speed, ...]] = {
    "resnet18": ((160, 1024, 20850), (224, 512, 3481.78)),
    "resnet50": ((160, 1024, 7190.62), (224, 512, 1218.01)),
    "resnext50_32x4d": ((160, 1024, 6056.31), (224, 384, 1001.03)),
    "seresnet50": ((160, 1024, 6246.72), (224, 384, 971.79)),
    "regnety_032": ((224, 1024, 2640.33), (224, 384, 496.85)),
    "densenet121": ((224, 1024, 3031.71), (224, 256, 913.65)),
    "vgg16": ((224, 1024, 1729.39), (224, 384, 546.06)),
    "efficientnet_b0": ((224, 1024, 8241.4), (224, 512, 1751.72)),
    "efficientnet_b3": ((288, 1024, 2053.58), (288, 128, 572.18)),
    "mobilenetv2_100": ((224, 1024, 9887.57), (224, 512, 2313.1)),
    "mobilenetv3_large_100": ((224, 1024, 13556), (224, 512, 2732.43)),
    "convnext_tiny": ((224, 1024, 3120.16), (224, 256, 819.24)),
    "vit_small_patch16_224": ((224, 1024, 4616.6), (224, 384, 1057.92)),
    "vit_base_patch16_224": ((224, 1024, 1572.08), (224, 192, 392.99)),
    "swin_tiny_patch4_window7_224": ((224, 1024, 2008.94), (224, 256, 648.69)),
    "mixer_b16_224": ((224, 1024, 1768.46), (224, 256, 556.6)),
    "resnetv2_50": ((224, 1024, 3927.67), (224, 512, 1288.61)),
    "pit_s_224": ((224, 1024, 4950.08), (224, 384, 1010.83)),
    "inception_v3": ((299, 1024, 2561.31), (299, 384, 782.35)),
    "poolformer_s12": ((224, 1024, 4088.18), (224, 512, 1342.54)),
}
#: Models of five tables, named before their speeds there were read; read after the commit of every factor and interval.
LATER: dict[str, tuple[Speed, ...]] = {
    "resnet152": (
        (160, 1024, 3816.3),
        (160, 512, 4727.44),
        (160, 1024, 5145.53),
        (224, 192, 370.08),
        (224, 192, 501.44),
    ),
    "resnext101_32x8d": (
        (176, 1024, 2291.04),
        (176, 512, 2887.72),
        (176, 1024, 3021.21),
        (224, 128, 276.22),
        (224, 128, 312.8),
    ),
    "ecaresnet50d": (
        (224, 1024, 3553.36),
        (224, 512, 4020.32),
        (224, 1024, 5258.17),
        (224, 384, 643.9),
        (224, 384, 862.65),
    ),
    "regnety_016": (
        (224, 1024, 5939.38),
        (224, 512, 5793.48),
        (224, 1024, 8430.92),
        (224, 512, 954.26),
        (224, 512, 650.07),
    ),
    "regnetx_080": (
        (224, 1024, 2928.56),
        (224, 512, 3273.2),
        (224, 1024, 4435.32),
        (224, 384, 454.56),
        (224, 256, 181.41),
    ),
    "densenet201": (
        (224, 1024, 2317.12),
        (224, 512, 2499.62),
        (224, 1024, 3439.4),
        (224, 192, 447.44),
        (224, 192, 562.52),
    ),
    "vgg19_bn": (
        (224, 1024, 1663.12),
        (224, 512, 2133.62),
        (224, 1024, 2610.66),
        (224, 256, 330.96),
        (224, 256, 398.5),
    ),
    "efficientnet_b4": (
        (320, 512, 1740.06),
        (320, 512, 1763.52),
        (320, 1024, 2576.03),
        (320, 96, 293.1),
        (320, 96, 354.99),
    ),
    "efficientnetv2_s": (
        (288, 1024, 2604.83),
        (288, 512, 3014.62),
        (288, 1024, 3683.59),
        (288, 128, 433.27),
        (288, 128, 559.15),
    ),
    "mnasnet_100": (
        (224, 1024, 12674),
        (224, 512, 14430),
        (224, 1024, 18609),
        (224, 512, 2053.84),
        (224, 512, 2929.31),
    ),
    "fbnetc_100": ((224, 1024, 10321), (224, 512, 12028), (224, 1024, 15071), (224, 512, 1567.77), (224, 512, 2397.58)),
    "convnext_base": (
        (224, 1024, 2095.37),
        (224, 512, 2096.16),
        (224, 1024, 2617.98),
        (224, 128, 336.98),
        (224, 128, 338.68),
    ),
    "convnext_nano": (
        (224, 1024, 6249.99),
        (224, 512, 6328.61),
        (224, 1024, 8016.98),
        (224, 512, 1233.61),
        (224, 512, 1249.89),
    ),
    "deit3_small_patch16_224": (
        (224, 1024, 6812.85),
        (224, 512, 6842.04),
        (224, 1024, 9930.64),
        (224, 384, 977.26),
        (224, 384, 987.86),
    ),
    "deit_base_patch16_224": (
        (224, 1024, 2847.84),
        (224, 512, 2846.84),
        (224, 1024, 3924.33),
        (224, 192, 390.88),
        (224, 192, 390.04),
    ),
    "vit_base_patch32_224": (
        (224, 1024, 10112),
        (224, 512, 10426),
        (224, 1024, 13994),
        (224, 512, 1703.57),
        (224, 512, 1708.63),
    ),
    "swin_base_patch4_window7_224": (
        (224, 1024, 1207.02),
        (224, 512, 1237.04),
        (224, 1024, 1896.87),
        (224, 128, 279.66),
        (224, 128, 281.0),
    ),
    "twins_svt_small": (
        (224, 1024, 3875.45),
        (224, 512, 4054.15),
        (224, 1024, 4670.08),
        (224, 384, 851.73),
        (224, 384, 885.48),
    ),
    "mixer_s16_224": (
        (224, 1024, 6808.46),
        (224, 512, 7827.39),
        (224, 1024, 9657.24),
        (224, 512, 1543.23),
        (224, 512, 1660.76),
    ),
    "resmlp_24_224": (
        (224, 1024, 3399.81),
        (224, 512, 4020.57),
        (224, 1024, 5263.71),
        (224, 256, 609.69),
        (224, 256, 776.95),
    ),
    "darknet53": (
        (256, 1024, 2995.64),
        (256, 512, 3656.81),
        (256, 1024, 4378.64),
        (256, 256, 590.64),
        (256, 256, 753.16),
    ),
    "repvgg_b1g4": (
        (224, 1024, 3167.88),
        (224, 512, 3868.8),
        (224, 1024, 8136.69),
        (224, 512, 584.26),
        (224, 512, 167.59),
    ),
    "inception_v4": (
        (299, 1024, 1934.57),
        (299, 512, 2318.78),
        (299, 1024, 2679.37),
        (299, 192, 316.87),
        (299, 192, 405.43),
    ),
    "dpn92": ((224, 1024, 2027.88), (224, 512, 2023.11), (224, 1024, 2932.79), (224, 256, 353.0), (224, 256, 353.0)),
}


class Run(NamedTuple):
    """seconds: of a step, as published. group: "" for what intervals are made from, else the name of a check."""

    model: str
    table: Table
    size: int
    batch: int
    seconds: float
    group: str

    @property
    def program(self) -> str:
        text = programs.TIMM_TRAINING if self.table.training else programs.TIMM_INFERENCE
        last, fused = self.table.last, self.table.fused
        return text.format(model=self.model, size=self.size, batch=self.batch, last=last, fused=fused)


#: Chips whose rows are in no fit, and in no interval.
CHECKS = ("rtx4090", "rtx5090")
#: The columns of each group, by their places in `TABLES`.
GROUPS = (
    ("", (0, 1, 2, 3), SPEEDS), ("", (4, 5), LAST), ("further models", (2, 3), FURTHER),
    ("later models", (2, 3, 6, 1, 5), LATER),
)  # fmt: skip
RUNS = [
    Run(model, TABLES[at], size, batch, batch / rate, group)
    for group, columns, given in GROUPS
    for place, at in enumerate(columns)
    for model, speeds in given.items()
    for size, batch, rate in speeds[place : place + 1]
]
HEAD = """## Image models on GeForce

This table compares timm's published speeds of image models in mixed precision with the estimate of a program that does
the same (`asv_bench/published_timm.py`). *RTX 3090*, twenty models: seen. The clock of GeForce's boards, what
convolutions copy and what depthwise ones read again were fitted to these rows, and the intervals of GeForce are made
from their errors. *RTX 4090*, and its *further models*: in no fit and in no interval, but earlier estimates of them
were known. *Later models*: 24, named before anybody read their speeds, which were read and estimated after the commit
of every factor and interval. The RTX 5090 is a chip that the package does not know: it was given as a data sheet. The
source was seen on the RTX 3090 in each case.
"""
COLUMNS = (
    "| model | chip | step | layout | pixels | batch | published | at least | about | interval | error |",
    "|---|---|---|---|---|---|---|---|---|---|---|",
)
SUMMARY = (
    "| chip | step | layout | rows | mean error | inside | below the bound |",
    "|---|---|---|---|---|---|---|",
)


def installed() -> bool:
    """Whether timm is there, whose models the programs run."""
    return importlib.util.find_spec("timm") is not None


def section() -> str:
    """The part of the page."""
    if not installed():
        return HEAD + "\nLeft out: timm is not installed.\n"
    lines = [HEAD, *COLUMNS]
    found: dict[tuple[str, str, str], list[tuple[float, bool, bool]]] = {}
    for run, t in zip(RUNS, estimated_each((run.table.chip, run.program) for run in RUNS), strict=True):
        error, inside = t["about_s"] / run.seconds - 1, t["about_low_s"] <= run.seconds <= t["about_high_s"]
        kind = ("inference", "training")[run.table.training], ("NCHW", "NHWC")[run.table.last]
        chip = run.table.chip + (f", {run.group}" if run.group else "")
        found.setdefault((chip, *kind), []).append((error, inside, run.seconds < t["bound_s"]))
        low, high = t["about_low_s"] * 1e3, t["about_high_s"] * 1e3
        lines.append(
            f"| {run.model} | {run.table.chip} | {kind[0]} | {kind[1]} | {run.size} | {run.batch} "
            f"| {run.seconds * 1e3:.4g} ms | {t['bound_s'] * 1e3:.4g} ms | {t['about_s'] * 1e3:.4g} ms "
            f"| {low:.4g}–{high:.4g} ms{'' if inside else ' (outside)'} | {error:+.1%} |"
        )
    lines += ["", *SUMMARY]
    for (chip, step, layout), rows in found.items():
        errors, within, below = np.array(rows).T
        off, share = np.abs(errors).mean(), within.mean()
        lines.append(f"| {chip} | {step} | {layout} | {len(rows)} | {off:.1%} | {share:.0%} | {below.sum():.0f} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(section())
