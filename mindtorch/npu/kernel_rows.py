"""ATen operations that one operator of the NPU's computes: a row says which, and what it takes.

A row names the operator and its parameters in order, by the names that ATen's schema gives them: ``>0`` is the first
result, ``cube`` how its unit treats float32, ``-`` nothing. After a colon, which dtypes a tensor may have: one and the
same of float32, float16 and bfloat16 for all, unless said otherwise. Torch is asked once for each distinct call what
results look like.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from .._ext import aclnn
from ..engine.record.predict import quiet
from ..ops import schema
from . import cube
from .descriptions import (
    DTYPES,
    FLOATS,
    INDICES,
    MAX_RANK,
    TORCH,
    WHOLE,
    Calls,
    Description,
    fits,
    is_number,
    make,
    meta_results,
    overlap,
)
from .operators import OPERATORS

__all__ = ["ROWS", "KernelRow", "filled"]

# float (where nothing is said), any, whole (integers and truth values): the same dtype for all of these in a call.
# index, bool: of its own. param: the common one, or float32. scalar: any, and a number may be a CPU tensor.
# ones: param, and ones where there is none. Of a number, moved: it becomes of the common dtype; rounded: and may become
# infinite; bound: moved, and the least before the largest. long: an index of int64.
_COMMON = {
    "float": FLOATS, "param": FLOATS, "ones": FLOATS, "any": set(TORCH), "scalar": set(TORCH),
    "whole": {DTYPES[d] for d in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)},
}  # fmt: skip
_OWN = {"index": INDICES, "long": {DTYPES[torch.int64]}, "bool": {DTYPES[torch.bool]}}
_FLOAT32 = DTYPES[torch.float32]
_MOST_CALLS = 1000  # remembered by a row


class KernelRow:
    """The kernel of one overload."""

    def __init__(self, name: str, operator: str, words: str) -> None:
        self.name, self.operator = name, operator
        self._letters = OPERATORS[operator]
        parts = [word.partition(":") for word in words.split()]
        self._words = [(word, kind or "float") for word, _, kind in parts]
        self._classes = dict(self._words)
        self._in_place = name.partition(".")[0].endswith("_")
        self._seen: dict[Any, Any] = {}  # what distinct calls give

    @functools.cached_property
    def _func(self) -> Any:
        packet, _, overload = self.name.removeprefix("aten::").partition(".")
        return getattr(getattr(torch.ops.aten, packet), overload or "default")

    @functools.cached_property
    def _defaults(self) -> dict[str, Any]:
        return schema.defaults(self._func)

    def __call__(self, calls: Calls, args: tuple, kwargs: dict) -> Any:
        if not aclnn.available(self.operator):
            return NotImplemented
        named = {**self._defaults, **dict(zip(self._defaults, args)), **kwargs}
        held: list[Any] = []  # tensors made on the way: their memory is not to be given to others before the call
        found = self._describe(calls, named, held)
        if found is None:
            return NotImplemented
        for name, kind in self._words:
            if kind == "moved" and found[1] in WHOLE and isinstance(named[name], float) and named[name].is_integer():
                named[name] = int(named[name])
            if kind == "rounded" and found[1] in FLOATS and is_number(named[name]):
                named[name] = _rounded(float(named[name]), TORCH[found[1]])
        if not self._takes(named, found[1]):
            return NotImplemented
        tensors = found[0]
        results = self._results(named, tensors)
        if results is None:
            return NotImplemented
        if "cube" in self._classes:
            named["cube"] = cube.math_type(found[1])
            if named["cube"] is None:
                return NotImplemented
        if self._in_place:
            own = tensors["self"]
            if results[0][0] != own[1] or any(overlap(own, each) for each in tensors.values()):
                return NotImplemented
            if ">0" not in self._classes and any(each[0] == own[0] for name, each in tensors.items() if name != "self"):
                return NotImplemented  # an operator that only works in place: what it reads is not what it writes
            made: list[Any] = [(named["self"], own)]
        else:
            made = [(None, None) if one is None else make(calls, *one) for one in results]
        out = tuple(result for result, _ in made) if len(made) > 1 else made[0][0]
        if not any(one is not None and math.prod(one[0]) for one in results):
            return out
        if any(not math.prod(each[1]) for each in tensors.values()):
            return NotImplemented
        outs = [described for _, described in made]
        values = [
            self._value(word, letter, named, tensors, outs) for (word, _), letter in zip(self._words, self._letters)
        ]
        return out if aclnn.call(self.operator, calls.device, *values) else NotImplemented

    def _describe(
        self, calls: Calls, named: dict[str, Any], held: list[Any]
    ) -> tuple[dict[str, Description], int] | None:
        """The tensors among the arguments and their common dtype; None where one is elsewhere, or not taken."""
        tensors: dict[str, Description] = {}
        common, numbers, ones = -1, [], []
        for (name, kind), letter in zip(self._words, self._letters, strict=True):
            if letter not in "TtNn" or name[0] in ">-":
                continue
            value = named[name]
            if value is None and kind == "ones":
                ones.append(name)
            if value is None and (letter in "tn" or kind == "ones"):
                continue
            each = calls.describe(value)
            if each is None:
                if kind != "scalar" or not (isinstance(value, torch.Tensor) and value.is_cpu and not value.dim()):
                    return None
                numbers.append(name)
                continue
            if len(each[1]) > MAX_RANK or each[5] not in (_OWN.get(kind) or _COMMON[kind]):
                return None
            if kind in _COMMON and not (kind in ("param", "ones") and each[5] == _FLOAT32):
                if common not in (-1, each[5]):
                    return None
                common = each[5]
            tensors[name] = each
        if common < 0 and numbers:
            plain = functools.reduce(torch.promote_types, (named[name].dtype for name in numbers))
            common = DTYPES.get(plain, -1)
        # What has no dimensions counts for less beside what has some, and for as much beside what has none.
        rank = max((len(tensors[name][1]) for name in tensors if self._classes[name] in _COMMON), default=0)
        for name in numbers:
            if (
                common < 0
                or torch.result_type(torch.empty((1,) * rank, dtype=TORCH[common]), named[name]) != TORCH[common]
            ):
                return None
            if not fits(named[name].item(), TORCH[common]):
                return None
        for name in (*numbers, *ones):
            sizes = () if name in numbers else tuple(named.get("normalized_shape") or tensors["self"][1][-1:])
            made = filled(calls, sizes, common, named[name].item() if name in numbers else 1)
            if made is None:
                return None
            held.append(made[0])
            tensors[name] = made[1]
        return tensors, common

    def _takes(self, named: dict[str, Any], common: int) -> bool:
        """Whether the numbers fit, and what the operator has no parameter for is what it does anyway."""
        letters = dict(zip(self._classes, self._letters))
        bounds = [named[name] for name, kind in self._words if kind == "bound" and is_number(named[name])]
        if bounds and not bounds[0] <= bounds[-1]:
            return False  # NaN, or bounds that contradict each other: what the operator does is documented nowhere
        for name, value in named.items():
            letter = letters.get(name)
            if letter == "S" or (letter == "s" and value is not None):
                if not is_number(value):
                    return False
                moved = common not in FLOATS or self._classes[name] in ("moved", "bound")
                if not fits(value, TORCH[common] if moved else torch.float32):  # torch computes in float32 at least
                    return False
            elif letter is None and isinstance(value, torch.dtype):
                if value is not TORCH[common]:
                    return False
            elif letter is None and value and value != self._defaults[name]:
                return False
        return True

    def _results(self, named: dict[str, Any], tensors: dict[str, Description]) -> Any:
        """Sizes, dtype and strides of each result, as on the CPU; None where torch takes no such call."""
        key = tuple(
            tensors[name][1:3] + tensors[name][5:] if name in tensors else tuple(value) if isinstance(value, list)
            else (value, type(value)) for name, value in named.items()
        )  # fmt: skip
        found = self._seen.get(key, _MOST_CALLS)  # another thread may clear them meanwhile
        if found is _MOST_CALLS:
            if len(self._seen) > _MOST_CALLS:
                self._seen.clear()
            found = self._seen[key] = self._ask(named, tensors)
        return found

    def _ask(self, named: dict[str, Any], tensors: dict[str, Description]) -> Any:
        like = {name: torch.empty_strided(d[1], d[2], dtype=TORCH[d[5]], device="meta") for name, d in tensors.items()}
        args, kwargs = schema.in_order(self._func, {**named, **like})
        found = meta_results(self._func, args, kwargs)
        if found is None:
            return None
        wanted = named.get("output_mask")
        results: list[tuple | None] = []
        for i, one in enumerate(found if isinstance(found, (tuple, list)) else (found,)):
            if one is None or (wanted is not None and not wanted[i]):
                results.append(None)
            elif one.dtype not in DTYPES:
                return None
            else:
                results.append((tuple(one.shape), DTYPES[one.dtype], one.stride()))
        return results

    def _value(self, word: str, letter: str, named: dict[str, Any], tensors: dict[str, Description], outs: list) -> Any:
        """What a parameter of the operator is given."""
        if word == "-":
            return None
        if word[0] == ">":
            return outs[int(word[1:])]
        value = named[word]
        if letter in "TtNn":
            return tensors.get(word)
        if letter in "AaB":
            return None if value is None else tuple(value)
        return value.encode() if letter == "z" else value


@functools.lru_cache(_MOST_CALLS)
def _rounded(value: float, dtype: torch.dtype) -> float:
    with quiet():
        return torch.tensor(value, dtype=torch.float64).to(dtype).item()


def filled(calls: Calls, sizes: tuple[int, ...], code: int, value: float) -> tuple[Any, Description] | None:
    """A new tensor full of a number, and its description; None where the NPU cannot make it."""
    made = make(calls, sizes, code)
    done = aclnn.available("InplaceFillScalar") and aclnn.call("InplaceFillScalar", calls.device, made[1], value)
    return made if done else None


# ATen -> the operator and its parameters
_TABLE = {
    "abs": "Abs self >0",
    "clamp": "Clamp self min:bound max:bound >0",
    "clamp_": "Clamp self min:bound max:bound >0",
    "clamp_min": "Clamp self min:bound - >0",
    "clamp_max": "Clamp self - max:bound >0",
    "pow.Tensor_Scalar": "PowTensorScalar self exponent:moved >0",
    "pow_.Scalar": "PowTensorScalar self exponent:moved >0",
    "maximum": "Maximum self other >0",
    "minimum": "Minimum self other >0",
    "addcmul": "Addcmul self tensor1 tensor2 value >0",
    "addcmul_": "Addcmul self tensor1 tensor2 value >0",
    "addcdiv": "Addcdiv self tensor1 tensor2 value >0",
    "addcdiv_": "Addcdiv self tensor1 tensor2 value >0",
    "lerp.Scalar": "Lerps self end weight >0",
    "lerp_.Scalar": "Lerps self end weight >0",
    "sigmoid_backward": "SigmoidBackward grad_output output >0",
    "tanh_backward": "TanhBackward grad_output output >0",
    "silu_backward": "SiluBackward grad_output self >0",
    "gelu_backward": "GeluBackwardV2 grad_output self approximate >0",
    "threshold_backward": "ThresholdBackward grad_output self threshold >0",
    **{f"{name}.{kind}": f"{name.title()}{kind} self:any {other} >0" for name in ("eq", "ne", "lt", "le", "gt", "ge")
       for kind, other in (("Tensor", "other:any"), ("Scalar", "other:rounded"))},
    "bitwise_and.Tensor": "BitwiseAndTensor self:whole other:whole >0",
    "bitwise_and_.Tensor": "BitwiseAndTensor self:whole other:whole >0",
    "bitwise_or.Tensor": "BitwiseOrTensor self:whole other:whole >0",
    "bitwise_or_.Tensor": "BitwiseOrTensor self:whole other:whole >0",
    "bitwise_not": "BitwiseNot self:whole >0",
    "logical_and": "LogicalAnd self:bool other:bool >0",
    "logical_or": "LogicalOr self:bool other:bool >0",
    "logical_not": "LogicalNot self:bool >0",
    "where.self": "SWhere condition:bool self:scalar other:scalar >0",
    "masked_fill_.Scalar": "InplaceMaskedFillScalar self:any mask:bool value:moved",
    "constant_pad_nd": "ConstantPadNd self:any pad value:moved >0",
    "gather": "Gather self:any dim index:index >0",
    "_log_softmax": "LogSoftmax self dim >0",
    "_softmax_backward_data": "SoftmaxBackward grad_output output dim >0",
    "_log_softmax_backward_data": "LogSoftmaxBackward grad_output output dim >0",
    "nll_loss_forward": "NLLLoss self target:long weight:ones reduction ignore_index >0 >1",
    "nll_loss_backward":
        "NLLLossBackward grad_output self target:long weight:ones reduction ignore_index total_weight >0",
    "embedding_dense_backward":
        "EmbeddingDenseBackward grad_output indices:index num_weights padding_idx scale_grad_by_freq >0",
    "native_layer_norm_backward":
        "LayerNormBackward grad_out input normalized_shape mean:param rstd:param weight:ones bias:param output_mask "
        ">0 >1 >2",
    "native_batch_norm_backward":
        "BatchNormBackward grad_out input weight:param running_mean:param running_var:param save_mean:param "
        "save_invstd:param train eps output_mask "
        ">0 >1 >2",
    "convolution": "Convolution input weight bias stride padding dilation transposed output_padding groups >0 cube",
    "convolution_backward":
        "ConvolutionBackward grad_output input weight bias_sizes stride padding dilation transposed output_padding "
        "groups output_mask cube >0 >1 >2",
    "_adaptive_avg_pool2d": "AdaptiveAvgPool2d self output_size >0",
    "_adaptive_avg_pool2d_backward": "AdaptiveAvgPool2dBackward grad_output self >0",
}  # fmt: skip
ROWS = {f"aten::{name}": KernelRow(f"aten::{name}", *row.split(" ", 1)) for name, row in _TABLE.items()}
