"""A model with random weights from the ``config.json`` of a transformers model (SPEC C1)."""

from __future__ import annotations

import json
from typing import Any

from .hardware import available_memory

__all__ = ["model_from_config"]


def model_from_config(path: str, refuse: type[Exception]) -> Any:
    """Build the model that the configuration at ``path`` describes: the class it names under ``architectures``,
    else transformers' plain model of its ``model_type``. Raises ``refuse`` with one line when that cannot be done."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise refuse(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict) or "model_type" not in content:
        raise refuse(f"{path} is not a transformers configuration: it has no model_type")
    try:
        import transformers
    except ImportError as error:
        raise refuse(f"{path} needs transformers to become a model: pip install transformers ({error})") from error
    try:
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise refuse(f"{path}: {_first_line(error)}") from error
    classes = [getattr(transformers, name, None) for name in content.get("architectures") or ()]
    chosen = next((cls for cls in classes if cls is not None), None)
    build = transformers.AutoModel.from_config if chosen is None else chosen._from_config
    _check_size(path, build, config, refuse)
    return build(config)


def _check_size(path: str, build: Any, config: Any, refuse: type[Exception]) -> None:
    """Refuse what cannot fit before the machine starts swapping: the same model on torch's meta device is free."""
    import copy

    import torch

    with torch.device("meta"):
        model = build(copy.deepcopy(config))
    needed = sum(p.numel() * p.element_size() for p in model.parameters())
    available = available_memory()
    if available is not None and needed > available:
        raise refuse(
            f"{path}: the weights alone take {needed / 2**30:.1f} GiB and {available / 2**30:.1f} GiB of memory "
            f"is available"
        )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
