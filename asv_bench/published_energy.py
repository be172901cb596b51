"""Published energy of whole programs beside its estimate: ``python asv_bench/published_energy.py``.

None of these rows was looked at before the commit of the model (`mindtorch/profile/cost/energy.py`, "Estimates say the
energy of a step and of a token"). Sources, both read by NVML:

1. Zeus (ml-energy/zeus, Apache-2.0), `zeus_nsdi23/trace/summary_power_*.csv`: seconds and mean watts of an epoch, at
   the board's full power. ImageNet has 1,281,167 images, SQuAD 88,524 features of 384 tokens.
2. The ML.ENERGY leaderboard of 2024 (ml-energy/leaderboard, `data/diffusion/text-to-image/A100-SXM4-40GB`): seconds and
   joules of a batch of images, 50 steps in float16.
"""

from __future__ import annotations

import importlib.util
import statistics
from typing import NamedTuple

import published_programs as programs
from estimates import estimated

RESNET = programs.RESNET_TRAINING.replace(
    "SGD(model.parameters(), lr=0.1, momentum=0.875, weight_decay=3e-5)", "Adadelta(model.parameters())"
)
BERT = """
import torch
from transformers import BertConfig, BertForQuestionAnswering
model = BertForQuestionAnswering(BertConfig()).cuda()
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.zeros({batch}, 384, dtype=torch.long, device="cuda")
at = torch.zeros({batch}, dtype=torch.long, device="cuda")
for _ in range(3):
    optimizer.zero_grad()
    model(tokens, attention_mask=torch.ones_like(tokens), start_positions=at, end_positions=at).loss.backward()
    optimizer.step()
"""
_DIFFUSION = """
import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
down, up = ["CrossAttnDownBlock2D"], ["CrossAttnUpBlock2D"]
unet = UNet2DConditionModel(layers_per_block=2, use_linear_projection=True, {unet})
vae = AutoencoderKL(
    block_out_channels=(128, 256, 512, 512), layers_per_block=2,
    down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4,
)

class Image(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.unet, self.vae = unet.half(), vae.to({decoded})

    def forward(self, x, text, added):
        for _ in range(50):
            noise = self.unet(torch.cat([x, x]), 1, encoder_hidden_states=text, added_cond_kwargs=added).sample
            without, having = noise.chunk(2)
            x = x - 0.1 * (without + 5.0 * (having - without))
        return self.vae.decode(x.to({decoded}), return_dict=False)[0]

model, half = Image().eval().cuda(), dict(device="cuda", dtype=torch.float16)
x, text = torch.randn({batch}, 4, {size}, {size}, **half), torch.randn(2 * {batch}, 77, {wide}, **half)
added = dict(text_embeds=torch.randn(2 * {batch}, 1280, **half), time_ids=torch.ones(2 * {batch}, 6, device="cuda"))
with torch.no_grad():
    for _ in range(3):
        model(x, text, added)
"""
SDXL = (
    "block_out_channels=(320, 640, 1280), down_block_types=['DownBlock2D', *down * 2], "
    "up_block_types=[*up * 2, 'UpBlock2D'], transformer_layers_per_block=[1, 2, 10], attention_head_dim=[5, 10, 20], "
    "cross_attention_dim=2048, addition_embed_type='text_time', addition_time_embed_dim=256, "
    "projection_class_embeddings_input_dim=2816"
)
SD2 = (
    "block_out_channels=(320, 640, 1280, 1280), down_block_types=[*down * 3, 'DownBlock2D'], "
    "up_block_types=['UpBlock2D', *up * 3], attention_head_dim=[5, 10, 20, 20], cross_attention_dim=1024"
)


class Row(NamedTuple):
    """seconds and joules of a step, as published."""

    what: str
    chip: str
    batch: int
    seconds: float
    joules: float
    source: int
    program: str
    needs: str = ""


def _epoch(what: str, chip: str, batch: int, seconds: float, watts: float) -> Row:
    resnet = what.startswith("ResNet")
    step = seconds * batch / (1_281_167 if resnet else 88_524)
    program = RESNET.format(batch=batch, half=False) if resnet else BERT.format(batch=batch)
    return Row(what, chip, batch, step, step * watts, 1, program, "transformers")


def _images(what: str, batch: int, seconds: float, joules: float) -> Row:
    large = what == "SDXL"
    sizes = {"unet": SDXL if large else SD2, "decoded": "torch.float32" if large else "torch.float16"}
    program = _DIFFUSION.format(batch=batch, size=128 if large else 96, wide=2048 if large else 1024, **sizes)
    return Row(f"{what}, 50 steps, float16", "a100-40gb", batch, seconds, joules, 2, program, "diffusers")


_RESNET, _BERT = "ResNet-50 training, float32", "BERT base training, float32"
ROWS = (
    _epoch(_RESNET, "v100-pcie-32gb", 8, 5892.98, 220.67), _epoch(_RESNET, "v100-pcie-32gb", 16, 4610.75, 223.19),
    _epoch(_RESNET, "v100-pcie-32gb", 32, 4051.0, 227.36), _epoch(_RESNET, "v100-pcie-32gb", 64, 3754.32, 222.90),
    _epoch(_RESNET, "v100-pcie-32gb", 128, 3603.60, 222.44), _epoch(_RESNET, "v100-pcie-32gb", 192, 3529.61, 220.49),
    _epoch(_RESNET, "v100-pcie-32gb", 256, 3514.99, 220.25), _epoch(_RESNET, "v100-pcie-32gb", 360, 3519.50, 217.54),
    _epoch(_RESNET, "p100", 8, 10809.18, 151.78), _epoch(_RESNET, "p100", 16, 8083.5, 154.17),
    _epoch(_RESNET, "p100", 32, 6981.02, 159.06), _epoch(_RESNET, "p100", 64, 6482.97, 164.17),
    _epoch(_RESNET, "p100", 128, 6277.98, 165.47),
    _epoch(_BERT, "v100-pcie-32gb", 8, 1573.05, 224.78), _epoch(_BERT, "v100-pcie-32gb", 12, 1594.16, 225.92),
    _epoch(_BERT, "v100-pcie-32gb", 16, 1633.78, 228.35), _epoch(_BERT, "v100-pcie-32gb", 24, 1727.98, 227.86),
    _epoch(_BERT, "v100-pcie-32gb", 32, 1733.29, 228.22), _epoch(_BERT, "v100-pcie-32gb", 48, 1832.05, 226.33),
    _epoch(_BERT, "v100-pcie-32gb", 56, 1766.01, 226.75),
    _epoch(_BERT, "p100", 4, 2804.66, 166.38), _epoch(_BERT, "p100", 8, 2791.79, 176.51),
    _epoch(_BERT, "p100", 12, 2888.68, 172.83), _epoch(_BERT, "p100", 16, 2921.45, 174.33),
    _epoch(_BERT, "p100", 24, 2952.22, 178.65),
    _images("SDXL", 1, 5.5523, 2152.79), _images("SDXL", 2, 9.9782, 3879.02), _images("SDXL", 4, 20.2367, 7918.86),
    _images("SDXL", 8, 41.2214, 16008.87),
    _images("Stable Diffusion 2.1", 1, 2.2928, 871.09), _images("Stable Diffusion 2.1", 8, 14.3486, 5569.25),
)  # fmt: skip
HEAD = """## Energy

This table compares published joules of a step with the estimate of a program that does the same
(`asv_bench/published_energy.py` names the sources). The model was fitted to single products on an H200 and a B200, and
committed before anybody looked at these rows; none of these chips or programs was in the fit. Afterwards, only the
interval for chips that were not fitted was made wider: with the first interval, 61 % of the rows were inside. Power is
the average power of the estimate compared with the published one; its error is the error of the joules without the
error of the time.

| program | chip | batch | published | about | interval | error | power: published | about | error |
|---|---|---|---|---|---|---|---|---|---|
"""


def section() -> str:
    """The part of the page."""
    lines, found, missing = [], [], set()
    for row in ROWS:
        if row.needs and importlib.util.find_spec(row.needs) is None:
            missing.add(row.needs)
            continue
        t = estimated(row.chip, row.program)
        joules, watts = t["energy_j"], t["energy_j"] / t["about_s"]
        inside = t["energy_low_j"] <= row.joules <= t["energy_high_j"]
        errors = joules / row.joules - 1, watts / (row.joules / row.seconds) - 1
        found.append((row.chip, *errors, inside))
        lines.append(
            f"| {row.what} | {row.chip} | {row.batch} | {row.joules:.4g} J | {joules:.4g} J | {t['energy_low_j']:.4g}–"
            f"{t['energy_high_j']:.4g} J{'' if inside else ' (outside)'} | {errors[0]:+.1%} | "
            f"{row.joules / row.seconds:.0f} W | {watts:.0f} W | {errors[1]:+.1%} |"
        )
        print(lines[-1], flush=True)
    lines += ["", "| chip | rows | mean error | of the power alone | inside |", "|---|---|---|---|---|"]
    for chip in [*dict.fromkeys(one[0] for one in found), "all"]:
        mine = [one for one in found if chip in (one[0], "all")]
        joules, watts = (statistics.mean(abs(one[i]) for one in mine) for i in (1, 2))
        within = sum(one[3] for one in mine) / len(mine)
        lines.append(f"| {chip} | {len(mine)} | {joules:.1%} | {watts:.1%} | {within:.0%} |")
    if missing:
        lines += ["", f"Left out: {', '.join(sorted(missing))} is not installed."]
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(section())
