"""A model with random weights from the ``config.json`` of a transformers model (SPEC C1)."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from ..base.hardware import available_memory

__all__ = ["model_from_config"]

MOST_LAYERS = 10_000  # building takes half a millisecond a layer; beyond this it is a typing mistake


def model_from_config(
    path: str,
    refuse: type[Exception],
    *,
    dtype: str | None = None,
    train: bool = False,
    data: bool = True,
) -> Any:
    """Build the model that the configuration at ``path`` describes: the class it names under ``architectures``, else
    the model that generates text where there is one for its ``model_type``, else transformers' plain one.

    ``dtype`` of the weights: the configuration's own, else float32. With ``train``, room for a training step is asked
    for. Without ``data`` (an estimate: tensors take no memory) neither room is asked for nor a value initialized.
    Raises ``refuse`` with one line when it cannot be done.
    """
    import torch

    content = _read(path, refuse, data)
    try:
        import transformers
    except ImportError as error:
        raise refuse(f"{path} needs transformers to become a model: pip install transformers ({error})") from error
    try:
        # Without code that the configuration may name: it is not asked for, and nothing is downloaded.
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise refuse(f"{path}: {_one_line(error)}") from error
    _check_layers(path, config, refuse)
    if hasattr(config, "return_dict"):
        config.return_dict = True  # outputs by name
    make = _maker(transformers, config, content.get("architectures"))
    options = {} if dtype is None else {"dtype": getattr(torch, dtype)}

    def build() -> Any:
        try:
            return make(copy.deepcopy(config), **options)
        except Exception as error:
            raise refuse(f"{path} cannot become a model: {_one_line(error)}") from error

    # Weights left as they are allocated: what initializes them is Python, and here nobody reads the result.
    from transformers.initialization import no_init_weights

    def build_empty() -> Any:
        with no_init_weights():
            model = build()
        model.tie_weights()  # part of what was left out
        return model

    if not data:
        model = build_empty()
        if content.get("quantization_config"):
            from .quantized import quantize

            model.genie_note = quantize(model, content["quantization_config"], train, _unpacked(path, refuse))
        return model
    # On torch's own meta device a model costs a fraction of a second, whatever its size.
    with torch.device("meta"):
        _check_size(path, build_empty(), train, refuse)
    return build()


def _unpacked(path: str, refuse: type[Exception]) -> Callable[[str], Exception]:
    """The error of a ``quantization_config`` of which the words say what is wrong."""
    return lambda words: refuse(
        f"{path}: quantization_config {words}. Remove it from the file to see the model with weights of its dtype"
    )


def _read(path: str, refuse: type[Exception], data: bool) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise refuse(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict) or "model_type" not in content:
        raise refuse(f"{path} is not a transformers configuration: it has no model_type")
    for part, given in _quantized(content):
        method = given.get("quant_method") if isinstance(given, dict) else given
        if data:
            raise _unpacked(path, refuse)(
                f"({method or 'no method'}) can be sized only, in an estimate (--target, --device meta)"
            )
        if part != "quantization_config":
            raise refuse(f"{path}: {part} ({method or 'no method'}) is not supported: write it at the file's top level")
    names = content.get("architectures")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise refuse(f"{path}: expected architectures to be a list of class names, got {names!r}")
    return content


def _quantized(content: dict[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """(where, what) of each ``quantization_config``, those of a part of the model too (``text_config``)."""
    for name, value in content.items():
        if name == "quantization_config" and value:
            yield f"{within}{name}", value
        elif name.endswith("_config") and isinstance(value, dict):
            yield from _quantized(value, f"{within}{name}.")


def _maker(transformers: Any, config: Any, architectures: list[str] | None) -> Callable[..., Any]:
    """What makes the model from its configuration."""
    for name in architectures or ():
        found = getattr(transformers, name, None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found._from_config  # type: ignore[no-any-return, attr-defined]
    auto = transformers.models.auto.modeling_auto
    kind = config.model_type
    chosen = transformers.AutoModel
    if getattr(config, "is_encoder_decoder", False):
        if kind in auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
            chosen = transformers.AutoModelForSeq2SeqLM
        elif kind in auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES:
            chosen = transformers.AutoModelForSpeechSeq2Seq
    elif kind in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        chosen = transformers.AutoModelForCausalLM
    elif kind in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        chosen = transformers.AutoModelForImageTextToText
    return chosen.from_config  # type: ignore[no-any-return]


def _check_layers(path: str, config: Any, refuse: type[Exception]) -> None:
    for part in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", ()))):
        layers = getattr(part, "num_hidden_layers", None)
        if isinstance(layers, int) and not 0 <= layers <= MOST_LAYERS:
            raise refuse(f"{path}: expected at most {MOST_LAYERS:,} layers, got {layers:,}")


def _check_size(path: str, model: Any, train: bool, refuse: type[Exception]) -> None:
    """Refuse what cannot fit before the machine starts swapping."""
    needed = sum(p.numel() * p.element_size() for p in model.parameters())
    if train:  # a gradient and two moments for each
        needed += 3 * sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    available = available_memory()
    if available is not None and needed > available:
        what = "weights, gradients and optimizer state" if train else "the weights alone"
        raise refuse(
            f"{path}: {what} take {needed / 2**30:.1f} GiB and {available / 2**30:.1f} GiB of memory is available"
        )


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
