"""A transformers model at work without a script: a forward pass, or prefill and decoding; a training step (SPEC C1).

Each part is a program as one would write it, of ordinary calls, and reads no value of a tensor: so it runs without
data too. Prefill and decode are phases of their own; a training step has forward, backward and optimizer.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..base.errors import UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["DTYPES", "Request", "Workload"]

DTYPES = ("bfloat16", "float16", "float32")
_FUSED = ("cpu", "cuda", "xpu", "mps")  # devices that torch has fused optimizers for
_CACHES = ("past_key_values", "cache_params")


@dataclass(frozen=True)
class Request:
    """What the user asked for of a model's configuration; None where nothing was said."""

    seq: int | None = None
    batch: int | None = None
    decode: int | None = None
    train: bool = False
    dtype: str | None = None
    images: int | None = None
    image_size: str | None = None

    def __post_init__(self) -> None:
        for name in ("seq", "batch", "decode", "images"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise UsageError(f"--{name}: expected a positive integer, got {value!r}")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise UsageError(f"--dtype: unknown dtype {self.dtype!r}, one of {', '.join(DTYPES)}")
        if self.image_size is not None:
            if not re.fullmatch(r"0*[1-9]\d{0,5}x0*[1-9]\d{0,5}", self.image_size, re.ASCII):
                raise UsageError(f"--image-size: expected HEIGHTxWIDTH in pixels (448x672), got {self.image_size!r}")
            if self.images is None:
                raise UsageError("--image-size is for prompts with images: add --images N")

    @property
    def pixels(self) -> tuple[int, int] | None:
        """Height and width of an image; None where nothing was said."""
        if self.image_size is None:
            return None
        height, width = map(int, self.image_size.split("x"))
        return height, width

    def words(self) -> list[str]:
        """The options as typed; empty when nothing was asked for."""
        found = []
        for name in ("seq", "batch", "decode", "dtype", "images", "image_size"):
            value = getattr(self, name)
            if value is not None:
                found += [f"--{name.replace('_', '-')}", str(value)]
        return [*found, "--train"] if self.train else found


def _unwatched(stage: str) -> None:
    """Nobody wants to know which iterations count."""


class Workload:
    """A model and the inputs it works on. ``UsageError`` when the model cannot do what is asked for."""

    def __init__(self, model: Any, request: Request, refuse: type[Exception] = UsageError) -> None:
        import torch

        from .model_inputs import add_images, plan_inputs

        self.model, self.request, self._refuse = model, request, refuse
        parameter = next((p for p in model.parameters() if p.is_floating_point() and p.itemsize > 1), None)
        self.dtype = torch.float32 if parameter is None else parameter.dtype
        dtype = str(self.dtype).removeprefix("torch.")
        self.plan = plan_inputs(model, request.batch or 1, request.seq, request.decode, dtype)
        if request.images is not None:
            add_images(self.plan, model, request.images, request.pixels, dtype)
        if note := getattr(model, "genie_note", None):
            self.plan.notes.append(note)
        self._device = None if parameter is None else parameter.device
        generator = torch.Generator().manual_seed(0)
        self.inputs = {str(spec.name): spec.build(generator).to(self._device) for spec in self.plan.inputs}
        self._takes = inspect.signature(type(model).forward).parameters
        self._repeat = 0
        self._facts: dict[str, Any] = {}

    # -- running -----------------------------------------------------------------------------------------------------

    def run(self, repeat: int = 1, warmup: int = 0, stage: Callable[[str], None] = _unwatched) -> Any:
        """Run every part ``warmup`` and then ``repeat`` times; what the last part returned (a loss after training).

        ``stage`` is told when an iteration begins, "warmup" or "main", and when one part ends, "init". A first training
        step is always a warm-up: it allocates the optimizer's state, and those that follow find it there.
        """
        import torch

        self._repeat = repeat
        result = None
        if self.request.decode is not None or not self.request.train:
            self.model.eval()
            with torch.no_grad():
                for name in (*["warmup"] * warmup, *["main"] * repeat):
                    result = None  # before the next one allocates its own
                    stage(name)
                    result = self._forward() if self.request.decode is None else self._generate(self.request.decode)
            stage("init")
        if self.request.train:
            self.model.train()
            generator = torch.Generator().manual_seed(1)
            labels = {str(spec.name): spec.build(generator).to(self._device) for spec in self.plan.labels}
            optimizer = self._optimizer()
            for name in (*["warmup"] * max(warmup, 1), *["main"] * repeat):
                stage(name)
                result = self._step(optimizer, labels)
            self._note_training(optimizer)
            stage("init")
            optimizer.zero_grad()
            self.model.eval()
        return result

    def _forward(self) -> Any:
        return self.model(**self.inputs, **self._options(use_cache=False))

    def _generate(self, steps: int) -> Any:
        """Greedy decoding, as ``generate`` does it: prefill with the logits of the last token only, then one by one."""
        from ..engine import semantics
        from ..profile.measure.peak import KV_CACHE, say

        ids = self.plan.ids
        given = dict(self.inputs)
        if self.plan.kind == "encoder-decoder":  # the decoder begins with a single token
            given[ids] = given[ids][:, :1]
        options = self._options(use_cache=True, logits_to_keep=1)
        with semantics.stage("prefill"):
            out = self.model(**given, **options)
            token = out.logits[:, -1:].argmax(-1)
        name = next((name for name in _CACHES if getattr(out, name, None) is not None), None)
        if name is None:
            raise self._refuse(f"{type(self.model).__name__} returns no cache to decode with")
        cache = getattr(out, name)
        filled = _nbytes(_tensors(cache))
        say(_tensors(cache), KV_CACHE)
        source = {}
        if self.plan.ids == "decoder_input_ids":
            source["encoder_outputs"] = (out.encoder_last_hidden_state,)
        del out, given
        for _ in range(steps):
            with semantics.stage("decode"):
                out = self.model(**{ids: token}, **source, **{name: cache}, **options)
                token = out.logits[:, -1:].argmax(-1)
                cache = getattr(out, name)
                say(_tensors(cache), KV_CACHE)
                del out
        self._note_cache(cache, filled, steps)
        return token

    def _optimizer(self) -> torch.optim.Optimizer:
        import torch

        parameters = [p for p in self.model.parameters() if p.requires_grad]
        if not parameters:
            raise self._refuse(f"{type(self.model).__name__} has no parameter to --train")
        # One kernel for all parameters, which reads nothing back to Python.
        fused = all(p.is_floating_point() and p.device.type in _FUSED for p in parameters)
        return torch.optim.AdamW(parameters, lr=1e-5, fused=fused)

    def _step(self, optimizer: torch.optim.Optimizer, labels: dict[str, Any]) -> Any:
        optimizer.zero_grad()
        extra = {"return_loss": True} if "return_loss" in self._takes else {}
        out = self.model(**self.inputs, **labels, **extra, **self._options(use_cache=False))
        loss = getattr(out, "loss", None)
        if loss is None:
            loss = next(t for t in _tensors(out) if t.requires_grad).float().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def _options(self, **wanted: Any) -> dict[str, Any]:
        """Those of the options that the model knows."""
        return {name: value for name, value in wanted.items() if name in self._takes}

    # -- what was run ------------------------------------------------------------------------------------------------

    def _note_cache(self, cache: Any, filled: int, steps: int) -> None:
        tensors = list(_tensors(cache))
        nbytes = _nbytes(tensors)
        self._facts["kv_cache"] = {
            "bytes": nbytes,
            "prefill_bytes": filled,
            "bytes_per_step": (nbytes - filled) / steps,
            "tensors": [{"shape": list(shape), "dtype": str(dtype).removeprefix("torch."), "count": count}
                        for (shape, dtype), count in _tally((tuple(t.shape), t.dtype) for t in tensors).items()],
        }  # fmt: skip

    def _note_training(self, optimizer: torch.optim.Optimizer) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        fused = optimizer.param_groups[0].get("fused")
        self._facts["optimizer"] = {
            "name": type(optimizer).__name__ + (" (fused)" if fused else ""),
            "gradient_bytes": _nbytes(p.grad for p in parameters if p.grad is not None),
            "state_bytes": _nbytes(_tensors(list(optimizer.state.values()))),
        }

    def facts(self) -> dict[str, Any]:
        """What was run, for the report: sizes in bytes; ``phases`` say how much work each phase of it covers."""
        request, plan = self.request, self.plan
        from .quantized import unpacked_sizes

        distinct = list({id(p): p for p in self.model.parameters()}.values())
        return {
            "kind": plan.kind,
            "model": type(self.model).__name__,
            "batch": plan.batch,
            "seq": plan.seq,
            "images": None if plan.images is None else plan.images.facts(),
            "decode": request.decode,
            "train": request.train,
            "dtype": str(self.dtype).removeprefix("torch."),
            "unit": plan.unit,
            "notes": plan.notes,
            "inputs": [str(spec) for spec in plan.inputs],
            "parameters": sum(p.numel() for p in distinct) + unpacked_sizes(self.model),
            "parameter_bytes": _nbytes(distinct),
            "kv_cache": self._facts.get("kv_cache"),
            "optimizer": self._facts.get("optimizer"),
            "phases": list(self._phases()),
        }

    def _phases(self) -> Iterator[dict[str, Any]]:
        request, units, times = self.request, self.plan.units, self._repeat
        names = []
        if request.decode is not None:
            names.append(("prefill", times, units * times))
            names.append(("decode", times * request.decode, times * request.decode * self.plan.batch))
        if request.train:
            names += [(name, times, units * times) for name in ("forward", "backward", "optimizer")]
        elif request.decode is None:
            names.append(("forward", times, units * times))
        for name, steps, covered in names:
            yield {"name": name, "steps": steps, self.plan.unit: covered}


def _tensors(found: Any) -> Iterator[Any]:
    """Every tensor that an output, a cache or a state holds, each once."""
    import torch

    seen: set[int] = set()
    pending = [found]
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, dict):
            pending.extend(reversed(list(value.values())))
        elif isinstance(value, (list, tuple)):
            pending.extend(reversed(value))
        elif type(value).__module__.startswith("transformers.") and hasattr(value, "__dict__"):
            pending.extend(reversed(list(vars(value).values())))


def _nbytes(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _tally(items: Any) -> dict[Any, int]:
    found: dict[Any, int] = {}
    for item in items:
        found[item] = found.get(item, 0) + 1
    return found
