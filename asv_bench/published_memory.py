# ruff: noqa: E501
"""Estimated beside published peaks of memory: ``python asv_bench/published_memory.py [part of a program's name …]``.

Each row is a program of our own that does what the source says was run; no figure of an estimate was fitted to these.
The language models of source 4 ran another release of transformers than today's. Its folder is `OLDER_TRANSFORMERS`, of
``pip install --no-deps --target FOLDER transformers==4.49.0 tokenizers==0.21.0 huggingface-hub==0.29.3``.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
from collections.abc import Sequence
from typing import NamedTuple

import published_peaks as programs
from estimates import memory

QWEN25, QWEN3, IMAGES, TEXTS, TITAN = 1, 2, 3, 4, 5
SOURCES = """
1. Qwen's documentation, "Speed Benchmark" of Qwen2.5 (transformers 4.46, torch 2.3.1): batch 1, an input of so many tokens,
   2,048 generated; the script reads `torch.cuda.max_memory_allocated()`. These rows were first estimated after the commit of
   everything that they are estimated with; source and models were not seen.
2. The same of Qwen3 (transformers 4.51, torch 2.6), on an H20, which the package does not know; nothing of it was seen. The
   published peaks are the weights, the whole cache and cuBLAS's workspace, to 0.2 %: a prompt that is read at once takes
   more (540 MiB in the smallest model at 30,720 tokens). First estimated so, these rows were up to 20 % too high. Here the
   prompts are read in parts of 1,024 tokens, an assumption. With an input of one token, the peak of the 1.7B model is below
   its weights and cache: it ended early.
3. xMem (Shi, Pezaros and Elkhatib, Middleware 2025; the data of its repository): torch 2.6, CUDA 12.4, CIFAR-10 at 86 × 86,
   four iterations. The figure is the most that NVML said was used, less what was used when its meter began: by then the
   context was there and, as ConvNeXt's rows show, the model: with it they are 84 to 114 MiB too high (Tiny, which has
   110 MiB of weights) and 314 (Base, 338). So the model is taken off here. Seen before, in no fit.
4. The same, of language models with texts of 128 tokens; first estimated after the commit, up to 10 % too low: today's
   transformers copies the first keys and values into its cache, so that products of attention need no copies of theirs.
   The source does not name its release: with 4.49, of the month after torch 2.6, eight of twelve rows are exact to 2 MiB.
5. torchtitan's report of December 2024: Llama 3.1 8B, 8,192 tokens, batch 2, FSDP2, eager, every second product kept for
   backward. First estimated 7.5 and 3.1 % too low: the estimate had one pool of free blocks where torch has one for each
   stream. Repaired from that cause; no number was fitted.

Three of the 65 rows are more than 5 % too low. The two of MnasNet show cuDNN: it took a workspace of about 2 MiB for each
image, which the program does not need: the same source ran the first of them with 14 % of the card, 1,685 MiB. It is of no
depthwise convolution: in float32 and torch's own layout, torch has kernels of its own for these (`use_cudnn_depthwise` in
aten/src/ATen/native/Convolution.cpp). With 500 and 700 images there is none. Which algorithm cuDNN chooses, and so its
workspace, is not known outside of it, and torch sets no limit but the free memory: no bound can be told. GPT-Neo with Adam
reserved one block of the logits' size (614 MiB) more than the estimate; other addresses of segments do not explain it.
"""
HEAD = """## Peaks of memory

This table compares published peaks of memory, in MiB, with the estimate of a program that does the same
(`asv_bench/published_memory.py`). *Allocated* and *reserved* are torch's figures. No number in an estimate of memory was
fitted to these rows. The check asks for a median error of 3 %, and for none that is more than 5 % too low.

| program | chip | figure | published | estimated | off | source |
|---|---|---|---|---|---|---|
"""
_MIB = 1 << 20


class Row(NamedTuple):
    """nbytes: published. kind: of torch's figures, which one is published: "allocated" or "reserved"."""

    what: str
    chip: str
    kind: str
    nbytes: float
    source: int
    program: str
    needs: str = "transformers"


class Model(NamedTuple):
    """Of Qwen2.5 and Qwen3. peaks: published, by `LENGTHS`."""

    name: str
    layers: int
    hidden: int
    inner: int
    heads: int
    shared: int
    peaks: tuple[float, ...]


#: Tokens of the input; 2,048 more were generated.
LENGTHS, GENERATED = (1, 6144, 14336, 30720), 2048
#: Tokens that Qwen3's runs are taken to have read at a time.
PART = 1024
QWEN25_GIB = (
    Model("Qwen2.5-0.5B", 24, 896, 4864, 14, 2, (0.97, 1.23, 1.60, 2.34)),
    Model("Qwen2.5-1.5B", 28, 1536, 8960, 12, 2, (2.95, 3.43, 4.16, 5.62)),
    Model("Qwen2.5-3B", 36, 2048, 11008, 16, 2, (5.95, 6.59, 7.47, 9.30)),
    Model("Qwen2.5-7B", 28, 3584, 18944, 28, 4, (14.38, 15.38, 16.91, 19.97)),
    Model("Qwen2.5-14B", 48, 5120, 13824, 40, 8, (28.08, 29.50, 31.95, 36.85)),
    Model("Qwen2.5-32B", 64, 5120, 27648, 40, 8, (61.58, 63.72, 67.31, 74.47)),
)
QWEN3_MIB = (
    Model("Qwen3-0.6B", 28, 1024, 3072, 16, 8, (1394, 2066, 2963, 4755)),
    Model("Qwen3-1.7B", 28, 2048, 6144, 16, 8, (3412, 4213, 5109, 6902)),
    Model("Qwen3-4B", 36, 2560, 9728, 32, 8, (7973, 8860, 10012, 12317)),
    Model("Qwen3-8B", 36, 4096, 12288, 32, 8, (15947, 16811, 17963, 20267)),
)


def _generation(source: int) -> list[Row]:
    found = []
    third = source == QWEN3
    for model in QWEN3_MIB if third else QWEN25_GIB:
        large = model.hidden > (2560 if third else 2048)
        for length, peak in zip(LENGTHS, model.peaks, strict=True):
            text = programs.QWEN_GENERATES.format(
                number=3 if third else 2, layers=model.layers, hidden=model.hidden, inner=model.inner,
                heads=model.heads, shared=model.shared, tied=not large,
                words=152064 if large and not third else 151936, length=length, further=GENERATED,
                part=PART if third else length,
            )  # fmt: skip
            nbytes = peak * (_MIB if third else 1 << 30)
            what = f"{model.name}, {length:,} tokens and {GENERATED:,} more"
            found.append(Row(what, "h20" if third else "a100", "allocated", nbytes, source, text))
    return found


IMAGE_MODELS = {
    "ConvNeXt Tiny": "models.convnext_tiny()",
    "ConvNeXt Base": "models.convnext_base()",
    "MnasNet": "models.MNASNet(alpha=1.0, num_classes=10)",
    "MobileNet V3 Large": "models.MobileNetV3(models.mobilenetv3._mobilenet_v3_conf('mobilenet_v3_large')[0], "
    "last_channel=1280, num_classes=10)",
}
#: Model, optimizer, batch, bytes.
IMAGE_PEAKS = (
    ("ConvNeXt Tiny", "SGD", 200, 3319791616), ("ConvNeXt Tiny", "SGD", 300, 4833935360),
    ("ConvNeXt Tiny", "AdamW", 500, 8004829184), ("ConvNeXt Tiny", "SGD", 700, 11031019520),
    ("ConvNeXt Base", "Adam", 300, 10521411584), ("MnasNet", "AdamW", 200, 2246049792),
    ("MnasNet", "SGD", 300, 3238002688), ("MnasNet", "SGD", 500, 4263510016), ("MnasNet", "Adam", 700, 5955911680),
    ("MobileNet V3 Large", "Adagrad", 200, 1786773504), ("MobileNet V3 Large", "AdamW", 600, 5484052480),
)  # fmt: skip
TEXT_MODELS = {
    "GPT-Neo 125M": "GPTNeoForCausalLM(GPTNeoConfig(hidden_size=768, num_layers=12, num_heads=12, "
    "attention_types=[[['global', 'local'], 6]]))",
    "T5 small": "T5ForConditionalGeneration(T5Config(d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8, "
    "decoder_start_token_id=0, attn_implementation='eager'))",
    "Cerebras-GPT 111M": "GPT2LMHeadModel(GPT2Config(n_positions=2048, n_layer=10, n_inner=3072, "
    "activation_function='gelu', attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0))",
    "DistilGPT-2": "GPT2LMHeadModel(GPT2Config(n_layer=6))",
}
TEXT_PEAKS = (
    ("GPT-Neo 125M", "AdamW", 20, 7547650048), ("GPT-Neo 125M", "Adam", 25, 9047113728),
    ("GPT-Neo 125M", "SGD", 20, 6515851264), ("T5 small", "AdamW", 20, 4622123008), ("T5 small", "Adam", 25, 5836374016),
    ("T5 small", "SGD", 25, 5196742656), ("Cerebras-GPT 111M", "AdamW", 20, 5909774336),
    ("Cerebras-GPT 111M", "Adam", 20, 5909774336), ("Cerebras-GPT 111M", "SGD", 25, 5746196480),
    ("DistilGPT-2", "AdamW", 30, 7377780736), ("DistilGPT-2", "Adam", 20, 5108662272),
    ("DistilGPT-2", "AdamW", 10, 3160408064),
)  # fmt: skip


#: The folder of a release of transformers, put before others; "": today's.
OLDER = os.environ.get("OLDER_TRANSFORMERS", "")


def _trainings() -> list[Row]:
    found = []
    older = [OLDER] if OLDER else []
    for name, optimizer, batch, nbytes in IMAGE_PEAKS:
        text = programs.IMAGES_TRAIN.format(model=IMAGE_MODELS[name], optimizer=optimizer, batch=batch)
        found.append(
            Row(f"{name}, {optimizer}, {batch} images", "rtx3060", "reserved", nbytes, IMAGES, text, "torchvision")
        )
    for name, optimizer, batch, nbytes in TEXT_PEAKS:
        text = programs.TEXTS_TRAIN.format(model=TEXT_MODELS[name], optimizer=optimizer, batch=batch, older=older)
        found.append(Row(f"{name}, {optimizer}, {batch} texts", "rtx3060", "reserved", nbytes, TEXTS, text))
    return found


ROWS = (
    *_generation(QWEN25), *_generation(QWEN3), *_trainings(),
    *(
        Row(f"Llama 3.1 8B, FSDP, {cards} cards", f"{cards}xh100-96gb", "reserved", gib * (1 << 30), TITAN, programs.TITAN, "")
        for cards, gib in ((8, 82.4), (128, 67.0))
    ),
)  # fmt: skip


def found(row: Row) -> float:
    """Bytes, as estimated."""
    nbytes = float(memory(row.chip, row.program)[f"peak_{row.kind}_bytes"])
    if row.source == IMAGES:  # less the model, which was there when the meter began
        nbytes -= memory(row.chip, row.program.partition("model.train()")[0])[f"peak_{row.kind}_bytes"]
    return nbytes


def section() -> str:
    """The part of the page."""
    lines, off, missing = [], [], set()
    for row in ROWS:
        if row.needs and importlib.util.find_spec(row.needs) is None:
            missing.add(row.needs)
            continue
        nbytes = found(row)
        off.append((row.source, nbytes / row.nbytes - 1))
        lines.append(
            f"| {row.what} | {row.chip} | {row.kind} | {row.nbytes / _MIB:,.0f} | {nbytes / _MIB:,.0f} | "
            f"{off[-1][1]:+.1%} | {row.source} |"
        )
        print(lines[-1], flush=True)
    lines += ["", "| source | rows | median error | lowest | more than 5 % low |", "|---|---|---|---|---|"]
    for source in [*dict.fromkeys(one[0] for one in off), 0]:
        mine = [error for which, error in off if source in (which, 0)]
        lines.append(
            f"| {source or 'all'} | {len(mine)} | {statistics.median(map(abs, mine)):.1%} | {min(mine):+.1%} "
            f"| {sum(error < -0.05 for error in mine)} |"
        )
    if not OLDER:
        lines += ["", "The rows of source 4 are of today's transformers: `OLDER_TRANSFORMERS` was not set."]
    if missing:
        lines += ["", f"Left out: {', '.join(sorted(missing))} is not installed."]
    return HEAD + "\n".join([*lines, SOURCES])


def main(parts: Sequence[str]) -> None:
    if not parts:
        print(section())
        return
    for row in ROWS:
        if any(part in f"{row.what} {row.chip}" for part in parts):
            nbytes = found(row)
            print(
                f"{row.what:50} {row.nbytes / _MIB:9,.0f} {nbytes / _MIB:9,.0f} {nbytes / row.nbytes - 1:+7.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
