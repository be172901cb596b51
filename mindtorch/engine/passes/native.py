"""Recorded calls made without Python: which operator a call comes to, and its arguments as C++ functions take them.

Torch's libraries export each operator as `at::_ops::NAME_OVERLOAD::call`, under a name that spells out the types of its
arguments. What a recorded call gives for them is laid out once (`calling.py`). A layout is used when it has given the
bits, sizes and strides that Python's call gives for the same tensors.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ..._ext import lazy as _core
from ..._ext.native_calls import LIST, MOST_RESULTS, MOST_TENSORS, NOTHING, TENSOR, TUPLE, NativeCall
from ..._ext.signals import by_signal_handler
from ...base import torch_facts
from .calling import Layout, Unsuited, symbol
from .optimizer_pass import Pass
from .segment_graph import Input, Number

__all__ = ["ELEMENT_WISE", "MEMORY", "NATIVE", "NativeCalls", "OneCall", "native_call", "proven_call"]


def _names(*written: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in " ".join(written).split())


ELEMENT_WISE = _names(
    "abs add addcdiv addcmul atan atan2 bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clamp_max "
    "clamp_min clone cos div elu eq erf exp exp2 expm1 fill floor ge gelu gelu_backward gt hardsigmoid hardswish "
    "hardtanh isfinite isinf isnan le leaky_relu lerp log log10 log1p log2 logical_and logical_not logical_or "
    "logical_xor lt masked_fill maximum minimum mish mul ne neg pow reciprocal relu round rsqrt rsub sigmoid "
    "sigmoid_backward sign silu silu_backward sin softplus sqrt square sub tan tanh tanh_backward "
    "threshold_backward tril triu trunc where "
    "abs_ add_ addcdiv_ addcmul_ clamp_ clamp_max_ clamp_min_ copy_ div_ exp_ fill_ lerp_ masked_fill_ mul_ neg_ "
    "relu_ rsqrt_ sigmoid_ sqrt_ sub_ tanh_ zero_"
)
MEMORY = _names(
    "_to_copy _unsafe_view alias as_strided cat contiguous detach diagonal expand flatten narrow permute repeat "
    "reshape select slice split split_with_sizes squeeze stack t transpose unbind unflatten unfold unsqueeze view"
)
#: Operators that depend on nothing but their arguments, warn of nothing, and write, if they do, all or nothing.
NATIVE = (
    ELEMENT_WISE
    | MEMORY
    # products, sums, choices
    | _names(
        "addbmm addmm addmv all amax amin any argmax argmin baddbmm bmm cumsum dot isin linear logsumexp matmul max "
        "mean min mm mv prod sum topk"
    )
    # layers
    | _names(
        "_log_softmax _log_softmax_backward_data _safe_softmax _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_flash_attention_for_cpu_backward _softmax _softmax_backward_data embedding "
        "embedding_dense_backward gather index_select layer_norm log_softmax native_layer_norm "
        "native_layer_norm_backward nll_loss_backward nll_loss_forward rms_norm "
        "scaled_dot_product_attention softmax"
    )
)
#: Python's calls come to other overloads, which take a number as it is; these round it to the tensors' type at first.
_ROUNDING = frozenset(f"aten::{name}.Scalar" for name in "add add_ div div_ mul mul_ sub sub_".split())
_WIDE = frozenset({torch.float32, torch.float64})  # types that are rounded to in the kernel, in any case
_ANOTHER = 1 - 1 / 71  # times a float that is short in binary, one that is not
MOST_BYTES = 1 << 22  # of all tensors: what is larger takes its time in the kernel
BRIEF_BYTES = 1 << 14  # up to which a call keeps other threads waiting: some microseconds


class NativeCalls(Pass):
    """Calls that come often are made without Python, and their results are no Python objects until one is asked for."""

    name = "native calls"

    @functools.cached_property
    def on(self) -> bool:  # type: ignore[override]
        return torch_facts.native_calls_made()


# ---- calls -----------------------------------------------------------------------------------------------------------
@functools.cache
def _arguments(overload: Any) -> tuple[tuple[str, str, Any], ...]:
    """(name, type as the schema writes it, default or `...`) of each."""
    text = str(overload._schema)
    inside = text[text.index("(") + 1 : text.rindex(") ->")]
    # Commas and blanks within brackets are a default's, or an alias set's.
    written = [each for each in re.findall(r"(?:\[[^]]*\]|\([^)]*\)|\"[^\"]*\"|[^,])+", inside) if each.strip() != "*"]
    out = []
    for each, argument in zip(written, overload._schema.arguments, strict=True):
        default = argument.default_value if argument.has_default_value() else ...
        out.append((argument.name, each.strip().rsplit(f" {argument.name}", 1)[0], default))
    return tuple(out)


def _overloads(info: Any) -> Iterator[Any]:
    """Those that a call of the function may come to."""
    if isinstance(info.func, torch._ops.OpOverload):
        yield info.func  # but a number for a tensor, which Python takes: that is another one's
    packet = getattr(torch.ops.aten, info.name.removeprefix("aten::"), None)
    for name in packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else ():
        overload = getattr(packet, name)
        if overload is not info.func and not any(each.is_out for each in overload._schema.arguments):
            yield overload


def _laid_out(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any], list_refs: bool = True
              ) -> tuple[str, Layout, int]:  # fmt: skip
    """(name of its C++ function, arguments, what it returns)"""
    known = _arguments(overload)
    if len(args) > len(known):
        raise Unsuited("too many arguments")
    returned = [(str(each.type), each.alias_info is not None and each.alias_info.is_write)
                for each in overload._schema.returns]  # fmt: skip
    if len(returned) == 1:
        ((of, written),) = returned
        returns = NOTHING if written else {"Tensor": TENSOR, "List[Tensor]": LIST}.get(of, -1)
    else:  # several that it writes to are returned as references
        returns = TUPLE if returned and all(each == ("Tensor", False) for each in returned) else -1
    if returns < 0:
        raise Unsuited("what it returns")
    layout = Layout(returns != NOTHING, list_refs)
    left = dict(kwargs)
    for k, (name, of, default) in enumerate(known):
        value = args[k] if k < len(args) else left.pop(name, default)
        if value is ...:
            raise Unsuited(f"{name} is missing")
        layout.add(of, value)
    if left:
        raise Unsuited(f"{', '.join(left)} is not among its arguments")
    base, _, name = overload.name().removeprefix("aten::").partition(".")
    return symbol(f"{base}_{name}" if name else base, layout.types), layout, returns


def _made(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: int, floats: int, results: int,
          brief: bool, in_place: NativeCall | None = None) -> NativeCall:  # fmt: skip
    name, layout, returns = _laid_out(overload, args, kwargs)
    address = torch_facts.exported(name)
    if not address:
        name, layout, returns = _laid_out(overload, args, kwargs, False)
        address = torch_facts.exported(name)
    fixed = {TENSOR: 1, TUPLE: len(overload._schema.returns)}  # of results
    if not address or fixed.get(returns, results) != results:
        raise Unsuited(name)
    return NativeCall(
        address, returns, 0 if returns == NOTHING else results, tensors, floats, layout.words, layout.doubles,
        bytes(layout.bytes), layout.patches, brief, in_place,
    )  # fmt: skip


class OneCall(NamedTuple):
    """What calls have in common that differ in tensors, and in the floats that may change.

    filled_in(tensors, floats): its arguments with these; written: the tensors that it writes to.
    """

    info: Any
    filled_in: Callable[[tuple, tuple], tuple[tuple[Any, ...], dict[str, Any]]]
    written: Sequence[int]


def native_call(sig: int, tensors: list[torch.Tensor], floats: tuple[float, ...]) -> NativeCall | None:
    """What makes the interned call without Python: see `proven_call`."""

    def filled_in(tensors: tuple, floats: tuple) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return _core.call_template(sig, tensors, torch.device("cpu"), floats)

    return proven_call(OneCall(_core.sig_info(sig), filled_in, _core.sig_written(sig)), tensors, floats)


def proven_call(one: OneCall, tensors: list[torch.Tensor], floats: tuple[float, ...]) -> NativeCall | None:
    """What makes the call without Python, proven on these tensors and floats; None: it cannot, or need not."""
    info = one.info
    if info.name not in NATIVE or len(tensors) > MOST_TENSORS or len(floats) > MOST_TENSORS or info.random:
        return None
    nbytes = sum(each.nbytes for each in tensors)
    if nbytes > MOST_BYTES:
        return None
    try:
        return _proven(one, tensors, floats, nbytes)
    except Unsuited:
        return None
    except Exception as error:  # the call's own, which it raises once more where it was made
        if by_signal_handler(error):
            raise
        return None


def _proven(one: OneCall, tensors: list[torch.Tensor], floats: tuple[float, ...], nbytes: int) -> NativeCall | None:
    info, filled_in, written = one
    inputs = tuple(tensors)
    changed, expected = _by_python(one, inputs, floats)
    nbytes += sum(each.nbytes for each in expected)
    if nbytes > MOST_BYTES or len(expected) > MOST_RESULTS:
        return None
    holes, numbers = tuple(map(Input, range(len(inputs)))), tuple(map(Number, range(len(floats))))
    args, kwargs = filled_in(holes, numbers)
    if written and kwargs.get("rounding_mode"):
        return None  # it may divide by zero half way
    sizes = len(inputs), len(floats), len(expected), nbytes <= BRIEF_BYTES
    for overload in _overloads(info):
        if overload.name() in _ROUNDING and any(each.dtype not in _WIDE for each in inputs if each.is_floating_point()):
            continue
        twin = None
        if info.in_place is not None and not written:
            twin = _in_place(overload, args, kwargs, sizes, inputs, floats, expected[0])
        try:
            call = _made(overload, args, kwargs, *sizes, twin)
        except Unsuited:
            continue
        if _gives(call, one, inputs, floats, changed, expected):
            # A 0.5 is the same however it is rounded: once more with floats that are not.
            others = tuple(each * _ANOTHER for each in floats)
            right = not floats or _gives(call, one, inputs, others, *_by_python(one, inputs, others))
            return call if right else None
    return None


def _by_python(one: OneCall, inputs: tuple[torch.Tensor, ...], floats: tuple[float, ...]
               ) -> tuple[tuple[torch.Tensor, ...], list[torch.Tensor]]:  # fmt: skip
    """(the inputs when Python's call has run on copies of those that it writes, its results)"""
    changed = _copied(inputs, one.written)
    args, kwargs = one.filled_in(changed, floats)
    return changed, _results(one.info.call(*args, **kwargs))


def _gives(call: NativeCall, one: OneCall, inputs: tuple[torch.Tensor, ...], floats: tuple[float, ...],
           changed: tuple[torch.Tensor, ...], expected: list[torch.Tensor]) -> bool:  # fmt: skip
    """Does it give, and write, what Python's call does?"""
    other = _copied(inputs, one.written)
    results = call(other, floats)
    return results is not None and all(
        map(_same, (*results, *other), (*(expected if not one.written else ()), *changed))
    )


def _in_place(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any], sizes: tuple[int, int, int, bool],
              inputs: tuple[torch.Tensor, ...], floats: tuple[float, ...], expected: torch.Tensor
              ) -> NativeCall | None:  # fmt: skip
    """The call that writes the same result over its first argument, if its operator has one."""
    base, _, name = overload.name().removeprefix("aten::").partition(".")
    other = getattr(getattr(torch.ops.aten, f"{base}_", None), name or "default", None)
    if other is None or not isinstance(args[0], Input):
        return None
    try:
        call = _made(other, args, kwargs, *sizes)
    except Unsuited:
        return None
    changed = _copied(inputs, (int(args[0]),))
    done = call(changed, floats) is not None
    return call if done and _same(changed[int(args[0])], expected) else None


def _copied(tensors: tuple[torch.Tensor, ...], which: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Copies of those that a call writes, each tensor once."""
    copies: dict[int, torch.Tensor] = {}
    for k in which:
        each = tensors[k]
        if id(each) not in copies:
            fresh = torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device=each.device)
            copies[id(each)] = fresh.copy_(each)
    return tuple(copies.get(id(each), each) for each in tensors)


def _results(given: Any) -> list[torch.Tensor]:
    results = [given] if isinstance(given, torch.Tensor) else list(given)
    if not all(isinstance(each, torch.Tensor) for each in results):
        raise Unsuited("results that are not tensors")
    return results


def _same(a: torch.Tensor | None, b: torch.Tensor) -> bool:
    """The same bits in the same layout?"""
    return a is b or (
        a is not None
        and (a.dtype, a.shape, a.stride(), a.storage_offset()) == (b.dtype, b.shape, b.stride(), b.storage_offset())
        and (a.is_conj(), a.is_neg(), a.requires_grad) == (b.is_conj(), b.is_neg(), b.requires_grad)
        and bool(torch.equal(_bits(a), _bits(b)))
    )


def _bits(t: torch.Tensor) -> torch.Tensor:
    plain = t.resolve_conj().resolve_neg().reshape(-1)
    return plain.clone(memory_format=torch.contiguous_format).view(torch.uint8)
