"""C9: while a program is moved, plain tensors come to those on the device, and what is plain stays what it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mindtorch.devices import mode
from mindtorch.engine.record.plain_operands import bring_together

pytestmark = pytest.mark.usefixtures("nothing_pending")


@pytest.fixture(autouse=True)
def meeting() -> Iterator[None]:
    with mode.enter(meets=bring_together):
        yield


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


Program = Callable[[Tensor, Tensor], Any]
#: ``here`` is on the device, ``plain`` is not. What they give is on the device ("d"), or plain ("p").
CASES: dict[str, tuple[str, Program]] = {
    "sum": ("d", lambda here, plain: here + plain),
    "sum, the other way": ("d", lambda here, plain: plain + here),
    "by name": ("d", lambda here, plain: torch.add(input=plain, other=here)),
    "list": ("d", lambda here, plain: torch.cat([plain, here, plain])),
    "tuple": ("d", lambda here, plain: torch.stack((here, plain))),
    "one number": ("d", lambda here, plain: here * plain[0, 0]),
    "one number of ours": ("d", lambda here, plain: plain * here[0, 0]),
    "both numbers": ("d", lambda here, plain: here[0, 0] + plain[0, 0]),
    "into ours": ("d", lambda here, plain: here.add_(plain)),
    "into ours, by name": ("d", lambda here, plain: torch.add(plain, plain, out=here)),
    "into plain": ("p", lambda here, plain: plain.add_(here)),
    "into plain, by name": ("p", lambda here, plain: torch.add(here, here, out=plain)),
    **{
        f"into plain, __i{name}__": ("p", lambda here, plain, name=name: getattr(plain, f"__i{name}__")(here + 1))
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
    },
    **{
        f"into plain, whole numbers, __i{name}__": (
            "p",
            lambda here, plain, name=name: getattr(plain.long(), f"__i{name}__")(here.long()),
        )
        for name in ("and", "or", "xor", "lshift", "rshift")
    },
    "into plain, two of ours": ("p", lambda here, plain: plain.addcmul_(here, here)),
    "into a plain view": ("p", lambda here, plain: (plain[1].mul_(here[1]), plain)[1]),
    "put into plain": ("p", lambda here, plain: (plain.__setitem__(0, here[1]), plain)[1]),
    "put into plain, by ours": ("p", lambda here, plain: (plain.__setitem__(here > 1, 5.0), plain)[1]),
    "put into plain, by ours, ours": (
        "p",
        lambda here, plain: plain.index_put_((here[0].long().clamp(0, 1),), here[0]),
    ),
    "put into ours": ("d", lambda here, plain: (here.__setitem__(0, plain[1]), here)[1]),
    "put into ours, by plain": ("d", lambda here, plain: (here.__setitem__(plain > 1, 5.0), here)[1]),
    "out of plain": ("p", lambda here, plain: plain[here > 1]),
    "out of plain, by rows": ("p", lambda here, plain: torch.index_select(plain, 0, here[0].long().clamp(0, 2))),
    "out of plain, gathered": ("p", lambda here, plain: plain.gather(1, here.long().clamp(0, 2))),
    "out of plain, masked": ("p", lambda here, plain: plain.masked_select(here > 1)),
    "out of plain, taken": ("p", lambda here, plain: plain.take(here.long().clamp(0, 8))),
    "out of ours": ("d", lambda here, plain: here[plain > 1]),
    "out of ours, by rows": ("d", lambda here, plain: torch.index_select(here, 0, plain[0].long().clamp(0, 2))),
    "product": ("d", lambda here, plain: plain @ here),
    "layer": ("d", lambda here, plain: nn.functional.linear(here, nn.Parameter(plain), plain[0])),
    "embedding": ("d", lambda here, plain: nn.functional.embedding(here.long().clamp(0, 2), plain)),
    "choice": ("d", lambda here, plain: torch.where(plain > 1, here, plain)),
    "range": ("d", lambda here, plain: here.clamp(plain - 1, plain)),
    "comparison": ("d", lambda here, plain: here.equal(plain) or here.gt(plain)),
    "loss": ("d", lambda here, plain: nn.functional.mse_loss(plain, here)),
    "product of dimensions": ("d", lambda here, plain: torch.tensordot(plain, here, 1)),
    "product of blocks": ("d", lambda here, plain: torch.kron(plain, here)),
    "distances": ("d", lambda here, plain: torch.cdist(plain, here)),
    "sum of products": ("d", lambda here, plain: torch.einsum("ij,jk->ki", plain, here)),
    "only plain": ("p", lambda here, plain: plain + plain),
    "only ours": ("d", lambda here, plain: here + here),
    "array": ("d", lambda here, plain: here + torch.from_numpy(np.ones((3, 3), np.float32))),
    "one by one": ("d", lambda here, plain: torch._foreach_add([here, here], [plain, plain])[1]),
}


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_C9_plain_tensors_come_to_those_on_the_device(case: str, index: int) -> None:
    where, program = CASES[case]
    values = torch.arange(9.0).reshape(3, 3), torch.tensor([[0.5, 2, 1], [4, 0, 7], [1, 3, 3]])
    expected = program(values[0].clone(), values[1].clone())
    here, plain = values[0].to(f"remote_accelerator:{index}"), values[1].clone()
    got = program(here, plain)
    device = torch.device("cpu") if where == "p" else torch.device("remote_accelerator", index)
    assert got.device == device and torch.equal(got.cpu(), expected), case
    assert (got is plain or got is here) == (program(values[0], values[1]) is values[0 if where == "d" else 1])


def test_C9_gradients_come_back_to_what_is_plain() -> None:
    x = torch.tensor([1.0, 2, 3]).to("remote_accelerator:0")
    weight, scale = torch.ones(3, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    (x * weight * scale).sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [2, 4, 6] and weight.grad.device.type == "cpu"
    assert scale.grad is not None and scale.grad.tolist() == 6 and scale.grad.device.type == "cpu"


def test_C9_tuples_with_names_keep_them() -> None:
    class Adds(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, pair: Tensor, other: Tensor) -> Tensor:
            return pair + other

    here, plain = torch.ones(2).to("remote_accelerator:0"), torch.ones(2)
    pair = Pair(here, plain)
    assert torch.cat(pair).tolist() == [1, 1, 1, 1] and Adds.apply(*pair).tolist() == [2, 2]


def test_C9_batch_sizes_of_packed_sequences_stay_plain() -> None:
    torch.manual_seed(0)
    net = nn.LSTM(3, 2)
    data = [torch.randn(n, 3) for n in (4, 2, 1)]
    packed = nn.utils.rnn.pack_sequence(data)
    expected = net(packed)[0].data
    net.to("remote_accelerator:0")
    assert torch.equal(net(packed)[0].data.cpu(), expected)


def _normalized(x: Tensor, plain: nn.Module) -> list[Tensor]:
    return [plain(x), *plain.buffers()]


def _in_lists(x: Tensor) -> list[Tensor]:
    written = [x.clone(), torch.ones(3, 3), torch.zeros(3, 3)]
    torch._foreach_add_(written, 2.0)
    return written


#: Calls that write to a plain operand although neither their name nor ``out=`` tells.
WRITING: dict[str, Callable[[Tensor], list[Tensor]]] = {
    "batch norm": lambda x: _normalized(x, nn.BatchNorm1d(3)),
    "batch norm in evaluation": lambda x: _normalized(x, nn.BatchNorm1d(3).eval()),
    "batch norm, the statistics alone": lambda x: [
        F.batch_norm(x, mean := torch.zeros(3), var := torch.ones(3), training=True), mean, var
    ],
    "batch norm, by name": lambda x: [
        torch.batch_norm(
            input=x, weight=None, bias=None, running_mean=(mean := torch.zeros(3)), running_var=(var := torch.ones(3)),
            training=True, momentum=0.1, eps=1e-5, cudnn_enabled=False,
        ), mean, var
    ],
    "batch norm, one statistic on the device": lambda x: [
        F.batch_norm(x, mean := torch.zeros(3), var := torch.ones(3).to(x.device), training=True), mean, var
    ],
    "instance norm": lambda x: _normalized(x.expand(2, 3, 3), nn.InstanceNorm1d(3, track_running_stats=True)),
    "rows of an embedding": lambda x: [
        F.embedding(x.abs().long() % 3, weight := torch.arange(9.0).reshape(3, 3), max_norm=1.0), weight
    ],
    "rows of a bag": lambda x: [
        F.embedding_bag(x.abs().long() % 3, weight := torch.arange(9.0).reshape(3, 3), max_norm=1.0), weight
    ],
    "two plain, one on the device": lambda x: _in_lists(x),
}  # fmt: skip


@pytest.mark.parametrize("case", WRITING)
def test_C9_what_is_plain_sees_what_a_call_writes_to_it(case: str) -> None:
    """It was written to a copy on the device, and was lost: a model that torch.load made had no running statistics."""
    x = torch.tensor([[0.5, 2, 1], [4, 0, 7], [1, 3, 3]])
    expected = WRITING[case](x)
    got = WRITING[case](x.to("remote_accelerator:0"))
    for theirs, ours in zip(expected, got, strict=True):
        assert torch.equal(theirs, ours.cpu()), case
    assert got[1].device.type == "cpu"


@pytest.mark.parametrize("index", [0, 1])
def test_C9_plain_tensors_come_to_sparse_ones_on_the_device(index: int) -> None:
    sparse = torch.eye(2).to(f"remote_accelerator:{index}").to_sparse()
    got = torch.sparse.mm(sparse, torch.ones(2, 2))
    assert got.device == torch.device("remote_accelerator", index) and got.tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize("odd", ["sparse", "subclass", "meta"])
def test_C9_what_is_no_plain_tensor_stays_where_it_is(odd: str) -> None:
    class Mine(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return "mine", func.__name__

    here = torch.ones(2, 2).to("remote_accelerator:0")
    if odd == "subclass":
        assert here.add(torch.ones(2, 2).as_subclass(Mine)) == ("mine", "add")
    elif odd == "meta":
        assert here.add(torch.ones(2, 2, device="meta")).device.type == "meta"
    else:
        with pytest.raises(RuntimeError, match="at least two devices, cpu and remote_accelerator:0"):
            torch.mm(torch.eye(2).to_sparse(), here)
