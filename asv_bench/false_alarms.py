"""Run every sample of torch's operator database as a CUDA program of an estimate, and list what is refused.

    python asv_bench/false_alarms.py [part of an operator's name …]

A GPU takes all of these (float32, forward and backward), so a refusal is a false alarm of ``genie check``, and the exit
code is 1. What an estimate says that it cannot tell is listed, too. Samples that the CPU refuses, and operators that
the database does not give float32 on CUDA, are left out. All of them take about three minutes of one core.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map_only

from mindtorch.base.errors import NoDataError, UnsupportedOperationError
from mindtorch.profile.estimate import known
from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.estimating import estimating

#: Operators that no GPU takes either, and why.
NOT_OF_GPUS = {
    "sparse.mm.reduce": "a kernel for CPUs only",
}


def operators(parts: Sequence[str] = ()) -> list[Any]:
    """Those of the database that take float32 on CUDA and whose full name has one of these parts; all for none."""
    named = [op for op in op_db if torch.float32 in op.supported_dtypes("cuda") and op.full_name not in NOT_OF_GPUS]
    return [op for op in named if not parts or any(part in op.full_name for part in parts)]


def alarms(op: Any) -> Iterator[tuple[bool, str, str]]:
    """(whether it is refused, or else an estimate cannot tell; what was called with; the error) of each such sample."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backward = op.supports_autograd and torch.float32 in op.supported_backward_dtypes("cuda")
        for sample in op.sample_inputs("cpu", torch.float32, requires_grad=backward):
            if _on_the_cpu(op, sample, backward) and (error := _estimated(op, sample, backward)) is not None:
                yield error[0], _words(sample), error[1]


def _on_the_cpu(op: Any, sample: Any, backward: bool) -> bool:
    try:
        _call(op, sample, lambda t: t.detach().clone().requires_grad_(t.requires_grad), backward)
    except Exception:  # noqa: BLE001 - whatever it raises, there is nothing to compare with
        return False
    return True


def _estimated(op: Any, sample: Any, backward: bool) -> tuple[bool, str] | None:
    with estimating(Accelerator("Test GPU", 80 * 10**9)):
        try:
            _call(op, sample, lambda t: t.detach().to("cuda").requires_grad_(t.requires_grad), backward)
        except Exception as error:  # noqa: BLE001 - whatever it raises is what is looked for
            told = isinstance(error, (NoDataError, UnsupportedOperationError)) or bool(known.assumed())
            return not told, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return None


def _call(op: Any, sample: Any, move: Callable[[Any], Any], backward: bool) -> None:
    inputs, args, kwargs = tree_map_only(torch.Tensor, move, (sample.input, sample.args, dict(sample.kwargs)))
    if kwargs.get("device") in ("cpu", torch.device("cpu")):
        kwargs["device"] = "cuda"
    found = op.op(inputs, *args, **kwargs)
    made = [t for t in tree_leaves(found) if isinstance(t, torch.Tensor) and t.requires_grad]
    if backward and made and all(t.dtype.is_floating_point or t.dtype.is_complex for t in made):
        torch.autograd.backward(made, [torch.ones_like(t) for t in made])


def _words(sample: Any) -> str:
    def shown(t: torch.Tensor) -> str:
        return f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"

    return str(tree_map_only(torch.Tensor, shown, (sample.input, *sample.args, sample.kwargs)))[:200]


def main(parts: Sequence[str]) -> int:
    chosen, refused, unknown = operators(parts), 0, 0
    for op in chosen:
        for wrong, words, error in alarms(op):
            refused, unknown = refused + wrong, unknown + (not wrong)
            print(f"{op.full_name} {'refused' if wrong else 'not known'}: {words}\n    {error[:300]}", flush=True)
    print(f"{len(chosen)} operators, samples refused: {refused}, samples of which an estimate cannot tell: {unknown}")
    return 1 if refused else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
