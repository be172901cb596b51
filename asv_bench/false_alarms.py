"""Run every sample of torch's operator database as a CUDA program of an estimate, and list what is refused.

    python asv_bench/false_alarms.py [part of an operator's name …]
    python asv_bench/false_alarms.py --dtypes [part of an operator's name …]

A GPU takes all of these (float32, forward and backward), so a refusal is a false alarm of ``genie check``, and the exit
code is 1. What an estimate says that it cannot tell is listed, too. Samples that the CPU refuses, and operators that
the database does not give float32 on CUDA, are left out. All of them take about three minutes of one core.

With ``--dtypes``, the first samples of each operator in every dtype, forward only: those of dtypes that the database
gives on CUDA must be taken; of the dtypes that it does not give, counted is how many are refused, and those of which
none is are listed. About ten minutes.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map_only

from mindtorch.base.errors import NoDataError, UnsupportedOperationError
from mindtorch.profile.estimate import known_values
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
            if sample.kwargs.get("driver") not in (None, "gels") and "lstsq" in op.name:
                continue  # the database makes these for CPUs alone
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
            told = isinstance(error, (NoDataError, UnsupportedOperationError)) or bool(known_values.assumed())
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


#: Those of which the database says for each operator whether CUDA takes them.
DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128,
)  # fmt: skip
#: What kernels are said to take where nobody has looked for a GPU: of half precision the database asks that first.
_ASKS_FOR_A_GPU = frozenset({torch.bfloat16})


def told_of_dtypes(op: Any, most: int = 3) -> Iterator[tuple[torch.dtype, bool, str | None]]:
    """(dtype, whether CUDA takes it, the refusal or None) of each of the first samples; those that are not made in the
    dtype by the database itself are made in float32 or int64, and converted."""
    taken = op.supported_dtypes("cuda")
    for dtype in DTYPES:
        if dtype in _ASKS_FOR_A_GPU and dtype not in taken:
            continue
        for sample in itertools.islice(_samples(op, dtype), most):
            if dtype in op.supported_dtypes("cpu") and not _on_the_cpu(op, sample, False):
                continue
            refused = _estimated(op, sample, False)
            if refused is None or refused[0]:
                yield dtype, dtype in taken, None if refused is None else refused[1]


def _samples(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    made = op.supported_dtypes("cpu") | op.supported_dtypes("cuda")
    source = dtype if dtype in made else next((d for d in (torch.float32, torch.int64) if d in made), None)
    if source is None:
        return

    def converted(t: torch.Tensor) -> torch.Tensor:
        return t.to(dtype) if t.dtype is source else t

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for sample in op.sample_inputs("cpu", source):
                parts = (sample.input, sample.args, dict(sample.kwargs))
                sample.input, sample.args, sample.kwargs = tree_map_only(torch.Tensor, converted, parts)
                yield sample
        except (RuntimeError, NotImplementedError, TypeError, ValueError):
            return  # the CPU cannot make them


def compare_dtypes(parts: Sequence[str]) -> int:
    """Print what is said of every dtype; the number of samples that CUDA takes and that are refused."""
    wrong = right = missed = 0
    for op in [op for op in op_db if op.full_name not in NOT_OF_GPUS]:
        if parts and not any(part in op.full_name for part in parts):
            continue
        unseen: dict[torch.dtype, bool] = {}
        for dtype, taken, refused in told_of_dtypes(op):
            if taken and refused is not None:
                wrong += 1
                print(f"{op.full_name} {dtype} is refused, though CUDA takes it: {refused[:200]}", flush=True)
            elif not taken:
                right, missed = right + (refused is not None), missed + (refused is None)
                unseen[dtype] = unseen.get(dtype, True) and refused is None
        if names := [str(dtype).removeprefix("torch.") for dtype, whole in unseen.items() if whole]:
            print(f"{op.full_name} is taken in {', '.join(names)}, though CUDA does not", flush=True)
    print(f"samples that CUDA takes: {wrong} refused; samples that CUDA refuses: {right} refused, {missed} taken")
    return wrong


def main(parts: Sequence[str]) -> int:
    if "--dtypes" in parts:
        return 1 if compare_dtypes([part for part in parts if part != "--dtypes"]) else 0
    chosen, refused, unknown = operators(parts), 0, 0
    for op in chosen:
        for wrong, words, error in alarms(op):
            refused, unknown = refused + wrong, unknown + (not wrong)
            print(f"{op.full_name} {'refused' if wrong else 'not known'}: {words}\n    {error[:300]}", flush=True)
    print(f"{len(chosen)} operators, samples refused: {refused}, samples of which an estimate cannot tell: {unknown}")
    return 1 if refused else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
