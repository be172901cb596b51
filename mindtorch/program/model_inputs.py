"""What to call a transformers model with: token ids, images or sound of the shapes that its configuration implies."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..base.errors import UsageError
from .input_option import InputSpec, parse_input
from .model_images import ImagePlan, plan_images, prompt

__all__ = ["Plan", "add_images", "plan_inputs"]

DEFAULT_LENGTH = 128
MOST_TOKENS = 1 << 20  # of a larger tensor of integers, an estimate keeps no values
# Labels by what the class is named for; of the others, the sum of the first output stands in for the loss.
_TOKEN_LABELS = re.compile(r"(ForCausalLM|LMHeadModel|ForConditionalGeneration|MTModel|ForMaskedLM)$")
_CLASS_LABELS = re.compile(r"For(Sequence|Image|Audio)Classification")
_POSITIONS = re.compile(r"(?:^|\.)(wpe|embed_positions|position_embeddings?)$")
_NOT_OF_TEXT = re.compile(r"vision|visual|image|patch")
_WITHOUT_IMAGES = ", without images: --images N puts N into each prompt"


@dataclass
class Plan:
    """The inputs of one call, and what they are made of.

    kind: ``decoder``, ``encoder``, ``encoder-decoder``, ``vision``, ``text and image``, ``image to text``, ``audio``,
    ``speech to text``.
    seq: tokens (or samples) of one sequence, those of its images included; None where there are none.
    ids: the name of the tokens that grow when text is generated.
    notes: what the user should know about the choice.
    """

    kind: str
    batch: int
    seq: int | None
    inputs: list[InputSpec] = field(default_factory=list)
    labels: list[InputSpec] = field(default_factory=list)
    ids: str = "input_ids"
    notes: list[str] = field(default_factory=list)
    images: ImagePlan | None = None

    @property
    def unit(self) -> str:
        """What ``batch`` × ``seq`` counts."""
        return "images" if self.seq is None else "samples" if self.kind == "audio" else "tokens"

    @property
    def units(self) -> int:
        return self.batch * (1 if self.seq is None else self.seq)


def plan_inputs(model: Any, batch: int, seq: int | None, decode: int | None, dtype: str) -> Plan:
    """The inputs of ``model``: ``seq`` None for its usual length. ``UsageError`` for what it cannot be called with."""
    config = model.config
    takes = inspect.signature(type(model).forward).parameters
    name, main = type(model).__name__, model.main_input_name
    chat = hasattr(config, "image_token_id") or hasattr(config, "image_token_index")  # its text says where images are
    both = "pixel_values" in takes and "input_ids" in takes and not model.can_generate() and not chat
    text = main == "input_ids" or both
    image = main == "pixel_values" or both
    two = bool(getattr(config, "is_encoder_decoder", False))
    if main not in ("input_ids", "pixel_values", "input_values", "input_features"):
        raise UsageError(f"{name} takes {main}, which has no default: give it as --input {main}=SHAPE[:DTYPE]")
    if seq is not None and not text and main == "pixel_values":
        raise UsageError(f"{name} takes images, which have no --seq: give --batch only")
    if decode is not None and not (model.can_generate() and {"past_key_values", "cache_params"} & set(takes)):
        raise UsageError(f"{name} does not generate text, so there is nothing to --decode{_hint(model)}")
    if decode is not None and not text and not two:
        raise UsageError(f"{name} takes {main} and has no text to continue: nothing to --decode")

    plan = Plan(_kind(model, text, image, two), batch, seq)
    named = getattr(config, "architectures", None) or [name]
    if name not in named:
        plan.notes.append(
            f"architectures: transformers has no {', '.join(named)} for this configuration and makes a {name}"
        )
    if chat and text:
        plan.notes.append(f"{name} gets text alone{_WITHOUT_IMAGES}")
    if text or main == "input_features":
        plan.seq = _length(model, plan.kind, seq, decode)
    if text:
        plan.inputs.append(_ids("input_ids", batch, plan.seq, config))
    if image:
        plan.inputs.append(_image(config, batch, dtype))
    if main == "input_values":
        plan.inputs.append(_waves(plan, config, dtype))
    if main == "input_features":
        plan.inputs.append(_spectrum(name, config, batch, dtype))
    if two and "decoder_input_ids" in takes:
        plan.ids = "decoder_input_ids"
        plan.inputs.append(_ids("decoder_input_ids", batch, plan.seq, config))
    if "labels" in takes:
        plan.labels = _labels(name, plan, config)
    return plan


def add_images(plan: Plan, model: Any, count: int, size: tuple[int, int] | None, dtype: str) -> None:
    """Put ``count`` images into each prompt of ``plan``, in addition to its text."""
    images = plan_images(model, plan.batch, count, size, dtype)
    name, text = type(model).__name__, plan.seq
    ids = next((spec for spec in plan.inputs if spec.name == "input_ids"), None)
    if ids is None or text is None or plan.kind != "decoder":
        raise UsageError(f"{name} does not continue text with images in it: leave out --images")
    if text < count:
        raise UsageError(f"--seq {text} is too little text for {count} images: a token of text precedes each")
    plan.images, plan.seq = images, text + count * images.tokens
    if plan.units > MOST_TOKENS:
        raise UsageError(
            f"{plan.batch} x {plan.seq:,} tokens are too many with --images: an estimate knows where images are "
            f"in at most {MOST_TOKENS:,}"
        )
    plan.inputs = [*prompt(_ids("input_ids", plan.batch, plan.seq, model.config), images, model), *images.inputs]
    if plan.labels:
        plan.labels = [_ids("labels", plan.batch, plan.seq, model.config)]
    plan.notes = [note for note in plan.notes if not note.endswith(_WITHOUT_IMAGES)]
    plan.notes.append(f"each prompt has {text:,} tokens of text and {images.words}; each tile of a tiled image counts")


def _kind(model: Any, text: bool, image: bool, two: bool) -> str:
    if text and image:
        return "text and image"
    if two and not image:
        return "encoder-decoder" if text else "speech to text"
    if two and model.can_generate():
        return "image to text"
    if not text:
        return "vision" if image else "audio"
    return "decoder" if model.can_generate() else "encoder"


def _hint(model: Any) -> str:
    other = type(model).__name__.removesuffix("Model") + "ForCausalLM"
    if not hasattr(sys.modules[type(model).__module__], other):
        return ""
    return f'; with "architectures": ["{other}"] the configuration would'


def _length(model: Any, kind: str, seq: int | None, decode: int | None) -> int:
    """``seq``, or the usual length as far as the model reaches. Positions that are learned are a limit."""
    found = seq or DEFAULT_LENGTH
    for part, limit in _learned_positions(model):
        grows = 0 if decode is None or ("encoder" in part and "decoder" not in part) else decode
        if kind == "encoder-decoder" and grows:  # the decoder begins with a single token
            if grows + 1 > limit:
                raise UsageError(f"{type(model).__name__} has {limit:,} positions to decode to; got --decode {decode}")
        elif found + grows > limit and (seq is not None or grows >= limit):
            asked = " ".join([f"--seq {seq}"] * (seq is not None) + [f"--decode {decode}"] * bool(grows))
            raise UsageError(f"{type(model).__name__} has {limit:,} positions; {asked} needs {found + grows:,}")
        else:
            found = min(found, limit - grows)
    return found


def _learned_positions(model: Any) -> Iterator[tuple[str, int]]:
    """(name, positions) of each table of positions of text; rotary and relative ones have no end."""
    import torch

    sound = model.main_input_name == "input_features"
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Embedding) or not _POSITIONS.search(name) or _NOT_OF_TEXT.search(name):
            continue
        if sound and "decoder" not in name:
            continue
        offset = getattr(module, "offset", 0)  # of BART and OPT
        if type(module) is torch.nn.Embedding and module.padding_idx is not None:
            offset = module.padding_idx + 1  # of RoBERTa
        yield name, module.num_embeddings - offset


def _text_config(config: Any) -> Any:
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _ids(name: str, batch: int, length: int | None, config: Any) -> InputSpec:
    vocabulary = getattr(_text_config(config), "vocab_size", None)
    if not isinstance(vocabulary, int) or vocabulary < 1:
        raise UsageError(f"the configuration's vocab_size is {vocabulary!r}, expected a positive integer")
    return parse_input(f"{name}={batch}x{length}:int64<{vocabulary}")


def _image(config: Any, batch: int, dtype: str) -> InputSpec:
    config = getattr(config, "vision_config", None) or config
    size = getattr(config, "image_size", None) or 224
    if isinstance(size, dict):
        size = [size.get("height"), size.get("width")]
    height, width = size if isinstance(size, (list, tuple)) and len(size) == 2 else (size, size)
    channels, frames = getattr(config, "num_channels", None) or 3, getattr(config, "num_frames", None)
    shape = [batch, *([frames] if frames else []), channels, height, width]
    if not all(isinstance(n, int) and n > 0 for n in shape):
        raise UsageError(f"the configuration's images are {channels} x {height!r} x {width!r}, expected sizes")
    return parse_input(f"pixel_values={'x'.join(map(str, shape))}:{dtype}")


def _waves(plan: Plan, config: Any, dtype: str) -> InputSpec:
    """Samples of sound, a second of it by default; or the spectrogram of a model that cuts it into patches."""
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):
        plan.seq = plan.seq or config.max_length
        return parse_input(f"input_values={plan.batch}x{plan.seq}x{config.num_mel_bins}:{dtype}")
    plan.seq = plan.seq or 16_000
    return parse_input(f"input_values={plan.batch}x{plan.seq}:{dtype}")


def _spectrum(name: str, config: Any, batch: int, dtype: str) -> InputSpec:
    bins, positions = getattr(config, "num_mel_bins", None), getattr(config, "max_source_positions", None)
    if not isinstance(bins, int) or not isinstance(positions, int):
        raise UsageError(f"{name} takes input_features, which have no default: give --input input_features=SHAPE")
    return parse_input(f"input_features={batch}x{bins}x{2 * positions}:{dtype}")


def _labels(name: str, plan: Plan, config: Any) -> list[InputSpec]:
    if plan.seq is not None and _TOKEN_LABELS.search(name):
        return [_ids("labels", plan.batch, plan.seq, config)]
    classes = getattr(config, "num_labels", 0)
    if _CLASS_LABELS.search(name) and classes > 1:
        return [parse_input(f"labels={plan.batch}:int64<{classes}")]
    if name.endswith("ForTokenClassification") and classes > 1:
        return [parse_input(f"labels={plan.batch}x{plan.seq}:int64<{classes}")]
    return []
