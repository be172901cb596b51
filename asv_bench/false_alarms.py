"""Run every sample of torch's operator database as a CUDA program of an estimate, and list what is refused.

    python asv_bench/false_alarms.py [part of an operator's name …]

A GPU takes all of these (float32, forward and backward), so a refusal is a false alarm of ``genie check``. Samples that
the CPU refuses too, and operators that the database does not give float32 on CUDA, are left out.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map_only

from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.estimating import estimating

#: Operators that no GPU takes either, or that need what an estimate of NVIDIA's GPUs has none of, and why.
NOT_OF_GPUS: dict[str, str] = {}


def operators(parts: Sequence[str] = ()) -> list[Any]:
    """Those of the database that take float32 on CUDA and whose full name has one of these parts; all for none."""
    named = [op for op in op_db if torch.float32 in op.supported_dtypes("cuda") and op.full_name not in NOT_OF_GPUS]
    return [op for op in named if not parts or any(part in op.full_name for part in parts)]


def name_of(op: Any) -> str:
    """With its variant: ``norm.nuc``."""
    return str(op.full_name)


def alarms(op: Any) -> Iterator[tuple[str, str, str]]:
    """(operator, what was called with, error) of each sample that is refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backward = op.supports_autograd and torch.float32 in op.supported_backward_dtypes("cuda")
        for sample in op.sample_inputs("cpu", torch.float32, requires_grad=backward):
            if not _taken(lambda move, sample=sample: _call(op, sample, move, backward), None)[0]:
                continue
            taken, error = _taken(lambda move, sample=sample: _call(op, sample, move, backward), "cuda")
            if not taken:
                yield name_of(op), _words(sample), error


def _call(op: Any, sample: Any, move: Callable[[Any], Any], backward: bool) -> None:
    inputs, args, kwargs = tree_map_only(torch.Tensor, move, (sample.input, sample.args, dict(sample.kwargs)))
    if kwargs.get("device") in ("cpu", torch.device("cpu")):
        kwargs["device"] = "cuda"
    found = op.op(inputs, *args, **kwargs)
    made = [t for t in tree_leaves(found) if isinstance(t, torch.Tensor) and t.requires_grad]
    if backward and made and all(t.dtype.is_floating_point or t.dtype.is_complex for t in made):
        torch.autograd.backward(made, [torch.ones_like(t) for t in made])


def _taken(call: Callable[[Callable[[Any], Any]], None], device: str | None) -> tuple[bool, str]:
    def move(t: torch.Tensor) -> torch.Tensor:
        moved = t.detach().clone() if device is None else t.detach().to(device)
        return moved.requires_grad_(t.requires_grad)

    try:
        if device is None:
            call(move)
        else:
            with estimating(Accelerator("Test GPU", 80 * 10**9)):
                call(move)
    except Exception as error:
        return False, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return True, ""


def _words(sample: Any) -> str:
    def shown(t: torch.Tensor) -> str:
        return f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"

    return str(tree_map_only(torch.Tensor, shown, (sample.input, *sample.args, sample.kwargs)))[:200]


def main(parts: Sequence[str]) -> int:
    chosen, refused = operators(parts), 0
    for op in chosen:
        for name, words, error in alarms(op):
            refused += 1
            print(f"{name}  {words}\n    {error[:300]}", flush=True)
    print(f"{len(chosen)} operators, {refused} samples refused")
    return 1 if refused else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
