"""Models whose weights a ``quantization_config`` packs, as an estimate has them: their bytes, units and kernels.

What a linear layer or a mixture's experts store is what checkpoints of the method store, under the same names and in
the same dtypes. They compute by four operators that stand for the kernels which transformers or vLLM launch:

- ``genie::packed_linear``: a product that reads packed weights, in the dtype of its first operand (Marlin's kernels;
  products in eight bits);
- ``genie::quantize``: activations to eight bits, with a scale for each row;
- ``genie::unpack``: packed weights as a matrix (bitsandbytes does this for more than one row);
- ``genie::rescale``: what a product of integers gave, as floats.

They compute nothing: only estimates have such models.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any, NamedTuple

import torch

__all__ = ["quantize", "unpacked_sizes"]

#: By name of a stored tensor: its shape and dtype.
Stored = dict[str, tuple[tuple[int, ...], torch.dtype]]
_MARLIN_BITS = (4, 8)
_FP8 = torch.float8_e4m3fn


class Scheme(NamedTuple):
    """How a method stores and multiplies weights.

    stored: of a matrix of (rows, columns) in a model of that dtype; several of a mixture's experts put their number
    before each shape. activations: the dtype that they are quantized to; None: none are. unpacks: more than one row is
    multiplied by the unpacked matrix. integers: the product gives int32, which another kernel turns to floats.
    """

    stored: Callable[[int, int, torch.dtype], Stored]
    activations: torch.dtype | None = None
    unpacks: bool = False
    integers: bool = False


class PackedLinear(torch.nn.Module):
    """Stands for the layer that the method's package puts in the place of an ``nn.Linear``."""

    def __init__(self, linear: torch.nn.Linear, scheme: Scheme) -> None:
        super().__init__()
        self.in_features, self.out_features, self.scheme = linear.in_features, linear.out_features, scheme
        weight = linear.weight
        self.names = _store(self, scheme.stored(self.out_features, self.in_features, weight.dtype), weight.device)
        self.register_parameter("bias", linear.bias)
        self.unpacked_size = weight.numel()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = _multiply(self.scheme, x, [getattr(self, name) for name in self.names], self.out_features, 1)
        return found if self.bias is None else found + self.bias


def quantize(model: Any, given: Any, train: bool, refuse: Callable[[str], Exception]) -> str | None:
    """Pack the model's weights as ``given``, a ``quantization_config``, says; refuse: the error, of its words. The
    answer: why they stay as they are, where the target has no such units and transformers unpacks them; else None."""
    if not isinstance(given, dict) or given.get("quant_method") not in _METHODS:
        method = given.get("quant_method") if isinstance(given, dict) else given
        raise refuse(f"({method or 'no method'}) is not one that genie can size ({', '.join(_METHODS)})")
    method = given["quant_method"]
    if train:
        raise refuse(f"({method}) does not train: packed weights have no gradients")
    try:
        scheme, converted, experts = _METHODS[method](model, given)
    except _Unknown as unknown:
        raise refuse(f"({method}) {unknown}") from unknown
    if scheme.activations is _FP8 and torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9):
        return f"{method}: products in 8-bit floats need compute capability 8.9; the weights are unpacked"
    mixtures = [(name, m) for name, m in model.named_modules() if _is_mixture(m) and converted(name)]
    if mixtures and not experts and method != "bitsandbytes":  # which leaves them as they are
        raise refuse(f"({method}) of a mixture's experts is not supported")
    if method != "mxfp4":
        for name, module in list(model.named_modules()):
            if type(module) is torch.nn.Linear and converted(name):
                model.set_submodule(name, PackedLinear(module, scheme))
    if experts:
        for _, module in mixtures:
            _pack_experts(module, scheme)
    return None


def unpacked_sizes(model: Any) -> int:
    """How many more parameters the packed weights stand for than they are stored in."""
    found = 0
    for module in model.modules():
        if (size := module.__dict__.get("unpacked_size")) is not None:
            found += size - sum(getattr(module, name).numel() for name in module.names)
    return found


class _Unknown(Exception):
    """What the method does not say, or genie does not know of it."""


# -- which layers, by method ---------------------------------------------------------------------------------------
Choice = tuple[Scheme, Callable[[str], bool], bool]


def _skipped(names: Any) -> Callable[[str], bool]:
    """Whether a module is one of those named, or within one: names are of the last parts too, or regular."""
    wanted = [re.compile(rf"(?:^|\.)(?:{name.removeprefix('re:')})(?:\.|$)") for name in names or ()]
    return lambda name: any(pattern.search(name) for pattern in wanted)


def _output(model: Any) -> Callable[[str], bool]:
    """Whether a module is the layer that gives the scores of tokens, which methods leave alone by default."""
    last = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    names = {name for name, module in model.named_modules() if module is last}
    return lambda name: name in names or name.split(".")[-1] == "lm_head"


def _but(*skips: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda name: not any(skip(name) for skip in skips)


def _bits(given: dict[str, Any]) -> int:
    _group(given)  # raises what it has against it before a layer is made
    bits = given.get("bits")
    if bits not in _MARLIN_BITS:
        raise _Unknown(f"with bits = {bits!r} is not supported: 4 or 8")
    return int(bits)


def _group(given: dict[str, Any], columns: int = 0) -> int:
    """Columns that share a scale."""
    size = given.get("group_size", 128)
    if size is None or size == -1:
        return columns
    if not isinstance(size, int) or size <= 0:
        raise _Unknown(f"expected group_size to be -1 or a positive number, got {size!r}")
    return size


def _gptq(model: Any, given: dict[str, Any]) -> Choice:
    """In blocks of layers only: what is outside, as the embeddings and the last layer, stays."""
    if given.get("dynamic"):
        raise _Unknown("with rules for single layers (dynamic) is not supported")
    bits = _bits(given)

    def stored(rows: int, columns: int, dtype: torch.dtype) -> Stored:
        groups = -(-columns // _group(given, columns))
        return {
            "qweight": ((columns * bits // 32, rows), torch.int32),
            "qzeros": ((groups, rows * bits // 32), torch.int32),
            "scales": ((groups, rows), dtype),
            "g_idx": ((columns,), torch.int32),
        }

    outside = _but(lambda name: re.search(r"\.\d+\.", name) is not None)  # a block is one of a numbered list
    inside = given.get("modules_in_block_to_quantize")
    named = [name for part in inside or () for name in ([part] if isinstance(part, str) else part)]
    chosen = _skipped(named)
    return Scheme(stored), lambda name: not outside(name) and (not named or chosen(name)), False


def _awq(model: Any, given: dict[str, Any]) -> Choice:
    bits = _bits(given)
    if bits != 4:
        raise _Unknown("has four bits")

    def stored(rows: int, columns: int, dtype: torch.dtype) -> Stored:
        groups = -(-columns // _group(given, columns))
        zeros: Stored = {"qzeros": ((groups, rows // 8), torch.int32)} if given.get("zero_point", True) else {}
        return {"qweight": ((columns, rows // 8), torch.int32), **zeros, "scales": ((groups, rows), dtype)}

    return Scheme(stored), _but(_output(model), _skipped(given.get("modules_to_not_convert"))), False


def _fp8(model: Any, given: dict[str, Any]) -> Choice:
    block = given.get("weight_block_size")
    if block is not None and not (isinstance(block, list) and len(block) == 2 and all(block)):
        raise _Unknown(f"expected weight_block_size to be two numbers, got {block!r}")

    def stored(rows: int, columns: int, dtype: torch.dtype) -> Stored:
        scales = (1,) if block is None else (-(-rows // block[0]), -(-columns // block[1]))
        return {"weight": ((rows, columns), _FP8), "weight_scale_inv": (scales, torch.float32)}

    skipped = given.get("modules_to_not_convert")
    left = _output(model) if skipped is None else _skipped(skipped)
    return Scheme(stored, _FP8), _but(left), True


def _bitsandbytes(model: Any, given: dict[str, Any]) -> Choice:
    skipped = given.get("llm_int8_skip_modules")
    converted = _but(_output(model) if skipped is None else _skipped(skipped))
    if given.get("load_in_8bit"):

        def whole(rows: int, columns: int, dtype: torch.dtype) -> Stored:
            return {"weight": ((rows, columns), torch.int8), "SCB": ((rows,), torch.float32)}

        return Scheme(whole, torch.int8, integers=True), converted, False
    if not given.get("load_in_4bit"):
        raise _Unknown("needs load_in_4bit or load_in_8bit")

    def stored(rows: int, columns: int, dtype: torch.dtype) -> Stored:
        blocks = -(-rows * columns // 64)
        found: Stored = {"weight": ((-(-rows * columns // 2), 1), torch.uint8), "code": ((16,), torch.float32)}
        if not given.get("bnb_4bit_use_double_quant"):
            return {**found, "absmax": ((blocks,), torch.float32)}
        nested = {"nested_absmax": ((-(-blocks // 256),), torch.float32), "nested_code": ((256,), torch.float32)}
        return {**found, "absmax": ((blocks,), torch.uint8), **nested}

    return Scheme(stored, unpacks=True), converted, False


def _compressed_tensors(model: Any, given: dict[str, Any]) -> Choice:
    groups = given.get("config_groups")
    if not isinstance(groups, dict) or len(groups) != 1:
        raise _Unknown("with other than one of config_groups is not supported")
    if given.get("kv_cache_scheme"):
        raise _Unknown("with kv_cache_scheme is not supported: remove that")
    (group,) = groups.values()
    if group.get("targets") != ["Linear"]:
        raise _Unknown(f'with other targets than ["Linear"] is not supported, got {group.get("targets")!r}')
    weights, inputs = group.get("weights") or {}, group.get("input_activations")
    kind, bits = weights.get("type"), weights.get("num_bits")
    if (kind, bits) == ("float", 8) or (kind, bits, bool(inputs)) == ("int", 8, True):
        scheme = Scheme(
            _scaled(_FP8 if kind == "float" else torch.int8, weights), _FP8 if kind == "float" else torch.int8
        )
        if not inputs:
            scheme = scheme._replace(activations=None)
    elif kind == "int" and bits in _MARLIN_BITS and not inputs:
        scheme = Scheme(_packed_words(bits, weights))
    else:
        raise _Unknown(f"with weights of {bits} bits ({kind}) and such activations is not supported")
    return scheme, _but(_skipped(given.get("ignore"))), False


def _scaled(dtype: torch.dtype, weights: dict[str, Any]) -> Callable[[int, int, torch.dtype], Stored]:
    strategy = weights.get("strategy")
    if strategy not in ("tensor", "channel", "block"):
        raise _Unknown(f"with scales by {strategy!r} is not supported")
    block = weights.get("block_structure") or [128, 128]

    def stored(rows: int, columns: int, kept: torch.dtype) -> Stored:
        blocks = (-(-rows // block[0]), -(-columns // block[1]))
        scales = {"tensor": (1,), "channel": (rows, 1), "block": blocks}[strategy]
        return {"weight": ((rows, columns), dtype), "weight_scale": (scales, kept)}

    return stored


def _packed_words(bits: int, weights: dict[str, Any]) -> Callable[[int, int, torch.dtype], Stored]:
    _group(weights)

    def stored(rows: int, columns: int, dtype: torch.dtype) -> Stored:
        groups = -(-columns // _group(weights, columns))
        zeros = (
            {} if weights.get("symmetric", True) else {"weight_zero_point": ((rows * bits // 32, groups), torch.int32)}
        )
        words = (rows, -(-columns * bits // 32))
        return {"weight_packed": (words, torch.int32), "weight_scale": ((rows, groups), dtype), **zeros}

    return stored


def _mxfp4(model: Any, given: dict[str, Any]) -> Choice:
    """Of a mixture's experts only: two numbers a byte, and a byte of exponent for 32 of them."""

    def stored(rows: int, columns: int, dtype: torch.dtype) -> Stored:
        blocks = -(-columns // 32)
        return {"blocks": ((rows, blocks, 16), torch.uint8), "scales": ((rows, blocks), torch.uint8)}

    skipped = _skipped([name.replace(".*.", r"\.\d+\.") for name in given.get("modules_to_not_convert") or ()])
    return Scheme(stored), _but(skipped), True


_METHODS: dict[str, Callable[[Any, dict[str, Any]], Choice]] = {
    "fp8": _fp8, "compressed-tensors": _compressed_tensors, "gptq": _gptq, "awq": _awq, "bitsandbytes": _bitsandbytes,
    "mxfp4": _mxfp4,
}  # fmt: skip


# -- experts -------------------------------------------------------------------------------------------------------
def _is_mixture(module: Any) -> bool:
    """Whether it holds the weights of all experts in one tensor, as transformers' mixtures do."""
    return isinstance(getattr(module, "down_proj", None), torch.nn.Parameter) and module.down_proj.dim() == 3


def _pack_experts(module: Any, scheme: Scheme) -> None:
    """Store the weights of all experts packed; two products for the rows that each gets."""
    up = "gate_up_proj" if getattr(module, "has_gate", True) else "up_proj"
    module.names, module.unpacked_size, module.wide = [], 0, {}
    for name in (up, "down_proj"):
        weight = getattr(module, name)
        experts, rows, columns = weight.shape
        if getattr(module, "is_transposed", False):
            rows, columns = columns, rows
        one = scheme.stored(rows, columns, weight.dtype)
        several: Stored = {f"{name}_{part}": ((experts, *shape), dtype) for part, (shape, dtype) in one.items()}
        delattr(module, name)
        module.names += _store(module, several, weight.device)
        module.unpacked_size += weight.numel()
        module.wide[name] = (list(several), rows)

    def product(self: Any, name: str, x: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
        stored, rows = self.wide[name]
        found = _multiply(scheme, x, [getattr(self, part) for part in stored], rows, self.num_experts)
        bias = getattr(self, f"{name}_bias", None)
        return found if bias is None else found + bias[expert].to(found.dtype)

    def forward(self: Any, hidden_states: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        each = chosen.size(-1)
        expert, order = torch.sort(chosen.reshape(-1))  # rows of one expert lie together
        inner = product(self, up, hidden_states[order // each], expert)
        inner = self._apply_gate(inner) if up == "gate_up_proj" else self.act_fn(inner)
        found = product(self, "down_proj", inner, expert) * shares.reshape(-1)[order].unsqueeze(-1)
        back = found[torch.argsort(order)]
        return back.view(-1, each, back.size(-1)).sum(1).to(hidden_states.dtype)

    module.forward = MethodType(forward, module)


# -- tensors and operators -------------------------------------------------------------------------------------------
def _store(module: Any, stored: Stored, device: Any) -> list[str]:
    for name, (shape, dtype) in stored.items():
        data = torch.empty(shape, dtype=dtype, device=device)
        module.register_parameter(name, torch.nn.Parameter(data, requires_grad=False))
    return list(stored)


def _multiply(scheme: Scheme, x: Any, stored: list[Any], columns: int, groups: int) -> Any:
    ops, dtype, rows = _operators(), x.dtype, x.numel() // max(x.shape[-1], 1)
    if scheme.unpacks and rows > 1:
        return torch.nn.functional.linear(x, ops.unpack(stored, [columns, x.shape[-1]], dtype))
    if scheme.activations is None:
        return ops.packed_linear(x, stored, columns, groups, dtype)
    small, scales = ops.quantize(x, scheme.activations)
    if not scheme.integers:
        return ops.packed_linear(small, [*stored, scales], columns, groups, dtype)
    found = ops.packed_linear(small, stored[:1], columns, groups, torch.int32)
    return ops.rescale(found, [scales, *stored[1:]], dtype)


_SCHEMAS = (
    "packed_linear(Tensor x, Tensor[] stored, int columns, int groups, ScalarType dtype) -> Tensor",
    "quantize(Tensor x, ScalarType dtype) -> (Tensor, Tensor)",
    "unpack(Tensor[] stored, int[] shape, ScalarType dtype) -> Tensor",
    "rescale(Tensor x, Tensor[] scales, ScalarType dtype) -> Tensor",
)


@functools.cache
def _library() -> torch.library.Library:
    library = torch.library.Library("genie", "FRAGMENT")
    for schema, kernel in zip(_SCHEMAS, _kernels(), strict=True):
        library.define(schema)
        library.impl(schema.partition("(")[0], kernel, "CompositeExplicitAutograd")
    return library


def _operators() -> Any:
    _library()
    return torch.ops.genie


def _kernels() -> Iterator[Callable[..., Any]]:
    """Of the results, only sizes are known."""
    yield lambda x, stored, columns, groups, dtype: x.new_empty((*x.shape[:-1], columns), dtype=dtype)
    yield lambda x, dtype: (x.new_empty(x.shape, dtype=dtype), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32))
    yield lambda stored, shape, dtype: stored[0].new_empty(shape, dtype=dtype)
    yield lambda x, scales, dtype: x.new_empty(x.shape, dtype=dtype)
