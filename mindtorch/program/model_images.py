"""Images in the prompts of a vision-language model: pixel values, and the tokens that stand for them in the text (C1).

How many tokens an image takes follows from the configuration, by the rule of each kind of model; the model's own
forward refuses another number. An image is what the vision tower gets: each tile of a tiled image counts as one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..base.errors import UsageError
from ..base.words import counted
from .input_option import InputSpec, parse_input

if TYPE_CHECKING:
    import torch

__all__ = ["ImagePlan", "plan_images", "prompt"]

ANY_SIZE = 1024  # pixels a side, where a model takes images of any size and its configuration names none
_GRIDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "glm4v", "glm4v_moe")


@dataclass
class ImagePlan:
    """The images of each prompt: how many, their size in pixels, the tokens that each takes, and the model's inputs
    for them."""

    count: int
    size: tuple[int, int]
    tokens: int
    inputs: list[InputSpec] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """For the report."""
        return {"per_prompt": self.count, "height": self.size[0], "width": self.size[1], "tokens": self.tokens}

    @property
    def words(self) -> str:
        pixels, tokens = " x ".join(map(str, self.size)), counted(self.tokens, "token")
        return f"{counted(self.count, 'image', str(self.count))} of {pixels} ({tokens}{' each' * (self.count > 1)})"


@dataclass(frozen=True)
class _Made(InputSpec):
    """An input whose values mean something to the model."""

    make: Callable[[torch.Generator | None], torch.Tensor]

    def build(self, generator: torch.Generator | None = None) -> torch.Tensor:
        return self.make(generator)


def _made(name: str, shape: tuple[int, ...], dtype: str, make: Callable[[Any], torch.Tensor]) -> _Made:
    return _Made(f"{name}={'x'.join(map(str, shape))}:{dtype}", name, shape, dtype, None, make)


def plan_images(model: Any, batch: int, count: int, size: tuple[int, int] | None, dtype: str) -> ImagePlan:
    """``count`` images for each of ``batch`` prompts; ``size`` (height, width) None for that of the configuration.
    ``UsageError`` where the model takes no images in its prompts, or not of this size."""
    name, config = type(model).__name__, model.config
    takes = inspect.signature(type(model).forward).parameters
    vision = getattr(config, "vision_config", None)
    if "pixel_values" not in takes or vision is None or _image_token(config) is None:
        raise UsageError(f"{name} takes no images in its text: leave out --images")
    kind = config.model_type
    if kind in _GRIDS:
        return _grid(batch, count, size or _square(vision, ANY_SIZE), vision, dtype)
    free = getattr(vision, "model_type", "") == "pixtral"
    own = _square(vision, None)
    if size is not None and size != own and not free:
        raise UsageError(f"{name} takes images of {own[0]} x {own[1]}: leave out --image-size")
    size = size or own
    height, width = (side // patch for side, patch in zip(size, _pair(vision.patch_size), strict=True))
    tokens = _tokens(kind, config, vision, height, width)
    if not tokens:
        raise UsageError(f"--images is not supported for {name} ({kind}): leave it out for the text alone")
    channels = getattr(vision, "num_channels", 3)
    plan = ImagePlan(count, size, tokens)
    pixels = [channels, *size]
    if kind == "mllama":
        plan.inputs = _tiles(batch, count, vision, [vision.max_num_tiles, *pixels], dtype)
    elif kind in ("idefics2", "idefics3"):
        plan.inputs = [_pixels([batch, count, *pixels], dtype)]
    else:
        plan.inputs = [_pixels([batch * count, *pixels], dtype)]
    if free:
        plan.inputs.append(_rows("image_sizes", batch * count, size))
    return plan


def _tokens(kind: str, config: Any, vision: Any, height: int, width: int) -> int:
    """The tokens of an image of ``height`` x ``width`` patches; 0 for a kind that is not known."""
    patches = height * width
    if kind in ("llava", "vipllava"):
        classes = 1 if getattr(vision, "model_type", "") == "clip_vision_model" else 0
        cut = kind == "vipllava" or (getattr(config, "vision_feature_select_strategy", "") == "default")
        return patches + classes - cut
    if kind == "paligemma":
        return patches
    if kind == "gemma3":
        return int(config.mm_tokens_per_image)
    if kind == "mistral3":
        return (height // config.spatial_merge_size) * (width // config.spatial_merge_size)
    if kind == "idefics3":
        return int(patches / config.scale_factor**2)
    if kind == "idefics2":
        return int(config.perceiver_config.resampler_n_latents)
    if kind == "internvl":
        return int(height * config.downsample_ratio) * int(width * config.downsample_ratio)
    if kind == "llama4":
        return int(patches * vision.pixel_shuffle_ratio**2)
    if kind == "aya_vision":
        return (height // config.downsample_factor) * (width // config.downsample_factor)
    if kind == "got_ocr2":
        return (height // 4) * (width // 4)
    return 1 if kind == "mllama" else 0  # mllama's text holds one token; cross-attention reads the patches


def _grid(batch: int, count: int, size: tuple[int, int], vision: Any, dtype: str) -> ImagePlan:
    """Images as rows of flattened patches, with the height and width of each in patches."""
    patch, merge = _pair(vision.patch_size)[0], int(vision.spatial_merge_size)
    frames = _pair(vision.temporal_patch_size)[0]
    unit = patch * merge
    height, width = (max(round(side / unit), 1) * merge for side in size)  # as the processor resizes
    values = int(getattr(vision, "in_channels", 3)) * frames * patch * patch
    plan = ImagePlan(count, (height * patch, width * patch), height * width // merge**2)
    plan.inputs = [
        _pixels([batch * count * height * width, values], dtype),
        _rows("image_grid_thw", batch * count, (1, height, width)),
    ]
    return plan


def _tiles(batch: int, count: int, vision: Any, pixels: list[int], dtype: str) -> list[InputSpec]:
    """Images that fill all tiles: the tower computes those that are padding, too."""
    import torch

    tiles, most = int(vision.max_num_tiles), _widest(vision.supported_aspect_ratios)
    return [
        _pixels([batch, count, *pixels], dtype),
        _made("aspect_ratio_ids", (batch, count), "int64", lambda _: torch.full((batch, count), most)),
        _made("aspect_ratio_mask", (batch, count, tiles), "int64", lambda _: torch.ones(batch, count, tiles).long()),
    ]


def _widest(ratios: Any) -> int:
    """The number, from 1, of the ratio with most tiles."""
    tiles = [rows * columns for rows, columns in ratios]
    return tiles.index(max(tiles)) + 1


def prompt(ids: InputSpec, plan: ImagePlan, model: Any) -> list[InputSpec]:
    """The tokens of the prompts, images among them, and what says which are images: a token of text precedes every
    image, and the rest of the text follows."""
    import torch

    config = model.config
    batch, length = ids.shape
    image, other = _image_token(config), _special_tokens(config)
    plain = next(number for number in range(len(other) + 1) if number not in other)
    places = [k * (plan.tokens + 1) + 1 + n for k in range(plan.count) for n in range(plan.tokens)]

    def tokens(generator: torch.Generator | None) -> torch.Tensor:
        found = ids.build(generator)
        # Drawn text must hold no image or video token.
        found = found.masked_fill(torch.isin(found, torch.tensor(other)), plain)
        found[:, places] = image
        return found

    def types(_: torch.Generator | None) -> torch.Tensor:
        found = torch.zeros(batch, length, dtype=torch.int64)
        if config.model_type != "paligemma":  # there, 0 is the prompt and 1 the answer
            found[:, places] = 1
        return found

    made: list[InputSpec] = [_made(str(ids.name), (batch, length), "int64", tokens)]
    takes = inspect.signature(type(model).forward).parameters
    for name in ("token_type_ids", "mm_token_type_ids"):
        if name in takes:
            made.append(_made(name, (batch, length), "int64", types))
    return made


def _image_token(config: Any) -> int | None:
    found = getattr(config, "image_token_id", None)
    return getattr(config, "image_token_index", None) if found is None else found


def _special_tokens(config: Any) -> list[int]:
    """Tokens that stand for images, videos or sound."""
    found = {value for name, value in vars(config).items() if name.endswith(("_token_id", "_token_index"))}
    return sorted(value for value in found | {_image_token(config)} if type(value) is int)


def _pair(value: Any) -> tuple[int, int]:
    height, width = value if isinstance(value, (list, tuple)) else (value, value)
    return int(height), int(width)


def _square(vision: Any, default: int | None) -> tuple[int, int]:
    """The size of images that the configuration names."""
    size = getattr(vision, "image_size", None) or default
    try:
        height, width = _pair(size)
    except (TypeError, ValueError):
        height = width = 0
    if height < 1 or width < 1:
        raise UsageError(f"vision_config's image_size is {size!r}, expected pixels: one number or two")
    return height, width


def _pixels(shape: list[int], dtype: str) -> InputSpec:
    return parse_input(f"pixel_values={'x'.join(map(str, shape))}:{dtype}")


def _rows(name: str, rows: int, row: tuple[int, ...]) -> InputSpec:
    """The same row of integers for each image."""
    import torch

    return _made(name, (rows, len(row)), "int64", lambda _: torch.tensor([row] * rows))
