"""R3: what kernels believe is looked at before; calls that torch's documentation allows give torch's own bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mindtorch.engine.remote import functions
from mindtorch.engine.remote.wire import Reference, dumps, loads
from mindtorch.ops.bounds import looking

from ..executors import greeted
from .good_calls import ADAM, CALLS, LSTM, OBSERVED, STATES, keywords, own, weights
from .hostile_calls import r

A: Any = torch.ops.aten
i = torch.tensor


def called(function: Callable[..., Any], name: str, args: tuple[Any, ...]) -> list[Any]:
    given = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    found = tree_leaves(function(*given, **keywords(name)))
    return found[:1] if name == "aten::_ctc_loss" else found  # of its second one not all is written


@pytest.mark.parametrize("call", range(len(CALLS)), ids=[f"{k}-{c[0].__name__}" for k, c in enumerate(CALLS)])
def test_R3_kernels_that_believe_are_called_with_what_fits_alone(call: int) -> None:
    overload, good, place, wrong, words = CALLS[call]
    name = overload._schema.name
    for found, expected in zip(called(looking(overload), name, good), called(overload, name, good), strict=True):
        assert torch.equal(found, expected), name
    with pytest.raises((RuntimeError, IndexError), match=words):
        called(looking(overload), name, (*good[:place], wrong, *good[place + 1 :]))


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd", "adagrad"])
def test_R3_fused_optimizers_that_give_new_tensors_look_as_well(kind: str) -> None:
    looks = looking(getattr(A, f"_fused_{kind}").default)
    states = [[own(3)], [own(3)], [], [own()]] if kind.startswith("adam") else [[own(3)]]
    states += [[own()]] if kind == "adagrad" else []
    with pytest.raises(RuntimeError, match=r"expected a tensor of \(4,\), got one of \(3,\)"):
        looks([own(4)], [own(3)], *states, **ADAM)


WRONG: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "torch._pad_packed_sequence": ((own(5, 4), i([3, -9]), False, 0.0, 2), {}),
    "torch.lstm": ((own(5, 3, 8), STATES, weights(28, 4, 7), *LSTM), {}),
    "functional.scaled_dot_product_attention": ((own(2, 6, 4, 8), *[own(2, 0, 6, 8)] * 2), {"enable_gqa": True}),
    "linalg.linalg_eigvals": ((), {"input": torch.full((2, 2), float("inf"))}),
    "torch.fused_moving_avg_obs_fake_quant": ((own(4, 3, 4), *OBSERVED), {}),
}


@pytest.mark.parametrize("name", WRONG)
def test_R3_functions_that_are_no_operators_of_their_own_look_as_well(name: str) -> None:
    args, kwargs = WRONG[name]
    with pytest.raises((RuntimeError, IndexError), match="expected"):
        functions.called(name)(*args, **kwargs)


class Looking(TorchDispatchMode):
    """Calls each operator as a message does."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        return looking(func)(*args, **(kwargs or {}))


def legal() -> Iterator[Callable[[], torch.Tensor]]:
    """Calls that a look must let through, of kinds that one did not, or might not."""
    for filled in (-1, -100, 99):  # behind a target's own length
        targets, lengths = i([[1, filled], [3, 1]]), i([1, 2])
        yield lambda t=targets, n=lengths: F.ctc_loss(r(6, 2, 4).log_softmax(-1), t, i([6, 5]), n)  # type: ignore[misc]
    yield lambda: F.ctc_loss(r(6, 4).log_softmax(-1), i([1, 2, 3]), i(6), i(3))
    for scale in (1.7, 3.0, 100.0):
        yield lambda s=scale: A._upsample_bilinear2d_aa(r(1, 3, 9, 11), [3, 3], False, s, s)  # type: ignore[misc]
    yield lambda: F.scaled_dot_product_attention(r(2, 6, 4, 8), r(2, 3, 6, 8), r(2, 3, 6, 8), enable_gqa=True)
    yield lambda: F.scaled_dot_product_attention(r(2, 3, 4, 8), r(2, 3, 6, 8), r(2, 3, 6, 8), torch.ones(1, 1, 1, 6))
    yield lambda: F.embedding_bag(i([0, 2, 1, 3]), r(4, 5), i([0, 2, 4]), mode="mean", include_last_offset=True)
    yield lambda: F.embedding_bag(i([], dtype=torch.int64), r(4, 5), i([0, 0]), mode="max")
    yield lambda: torch.cdist(r(1, 3, 4), r(2, 5, 4), p=1.5)
    yield lambda: F.batch_norm(r(3, 4, 5)[:0], torch.ones(4), torch.ones(4), training=True)
    yield lambda: F.instance_norm(r(3, 4, 5))
    yield lambda: torch.nn.LSTM(5, 7, 2, bidirectional=True, batch_first=True)(r(3, 2, 5))[0]
    yield lambda: torch.nn.LSTM(5, 7, proj_size=3, bias=False)(r(3, 5))[0]
    for sizes in (((2, 4, 6, 7), (4, 2, 3, 3)), ((0, 4, 6, 7), (4, 2, 3, 3))):  # of groups; of an empty batch
        yield lambda s=sizes: F.conv2d(r(*s[0]), r(*s[1]), None, 2, 1, 1, 2)  # type: ignore[misc]
    yield lambda: F.conv_transpose2d(r(2, 4, 6, 7).contiguous(memory_format=torch.channels_last), r(4, 2, 3, 3))


@pytest.mark.parametrize("number", range(len(list(legal()))))
def test_R3_legal_calls_and_their_gradients_are_let_through(number: int) -> None:
    program = list(legal())[number]
    torch.manual_seed(number)
    expected = program()
    torch.manual_seed(number)
    with Looking():
        found = program()
        if found.requires_grad:
            found.sum().backward()
    assert torch.equal(found, expected)


def test_R3_memory_that_there_is_not_is_an_error_that_is_answered() -> None:
    worker = greeted()
    worker.handle(dumps([("upload", 1, bytes(16))]))
    given = [(1, torch.float32, (1, 1, 2, 2), (4, 4, 2, 1), 0, 0)]
    for name, args in (
        ("op aten::upsample_nearest2d.default", (Reference(0), [1 << 30, 1 << 20])),
        ("op aten::expand_copy.default", (Reference(0), [1 << 40, 1, 2, 2])),
        ("op aten::select_backward.default", (Reference(0), [1 << 40, 1, 1, 2, 2], 0, 1)),
    ):
        (answer,) = loads(worker.handle(dumps([("call", 50, given, name, args, {}, False, -1)])))
        kind, results, changed, raised = answer
        assert (kind, results, changed, raised[:2]) == ("gave", None, [], ("raised", "OutOfMemoryError")), answer
        assert "allocate" in raised[2], answer
