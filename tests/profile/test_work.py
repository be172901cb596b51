"""C4: what a call moves, to the byte: inputs really read, outputs written; what a view moves is nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mindtorch.ops.call import distinct
from mindtorch.profile.cost.work import Work, work

aten = torch.ops.aten
F4, HALF, LONG, BOOL = torch.float32, torch.bfloat16, torch.int64, torch.bool


def meta(*shape: int, dtype: torch.dtype = F4) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def of(func: Any, *args: Any, **kwargs: Any) -> Work:
    return work(func, args, kwargs, func(*args, **kwargs))


X, ROW, COLUMN = meta(8, 16), meta(16), meta(8, 1)
IDS = meta(5, dtype=LONG)
TABLE = meta(100, 16)

CASES: list[tuple[str, Any, tuple[Any, ...], dict[str, Any], int, int]] = [
    # (what, op, args, kwargs, bytes read, bytes written)
    ("element-wise", aten.add.Tensor, (X, X), {}, 2 * 512, 512),
    ("with a number", aten.add.Scalar, (X, 1), {}, 512, 512),
    ("broadcast operand", aten.mul.Tensor, (X, ROW), {}, 512 + 64, 512),
    ("expanded operand", aten.mul.Tensor, (X, COLUMN.expand(8, 16)), {}, 512 + 32, 512),
    ("into a wider dtype", aten.add.Tensor, (X.to(HALF), X), {}, 256 + 512, 512),
    ("a comparison", aten.lt.Tensor, (X, X), {}, 1024, 128),
    ("in place", aten.add_.Tensor, (X, X), {}, 1024, 512),
    ("in place, activation", aten.relu_.default, (X,), {}, 512, 512),
    ("out=", aten.add.out, (X, X), {"out": meta(8, 16)}, 1024, 512),
    ("where", aten.where.self, (meta(8, 16, dtype=BOOL), X, X), {}, 128 + 1024, 512),
    ("fill of a mask", aten.masked_fill.Scalar, (X, meta(8, 16, dtype=BOOL), 0.0), {}, 512 + 128, 512),
    ("reduction", aten.sum.dim_IntList, (X, [1]), {}, 512, 32),
    ("maximum with index", aten.max.dim, (X, 1), {}, 512, 8 * 4 + 8 * 8),
    ("softmax", aten._softmax.default, (X, -1, False), {}, 512, 512),
    ("layer norm", aten.native_layer_norm.default, (X, [16], ROW, ROW, 1e-5), {}, 512 + 128, 512 + 64),
    ("dropout", aten.dropout.default, (X, 0.5, True), {}, 512, 512),
    ("dropout in evaluation", aten.dropout.default, (X, 0.5, False), {}, 0, 0),
    ("dropout of nothing", aten.dropout.default, (X, 0.0, True), {}, 0, 0),
    # products
    ("mm", aten.mm.default, (X, meta(16, 4)), {}, 512 + 256, 128),
    ("mm of a transposed", aten.mm.default, (X, meta(4, 16).t()), {}, 512 + 256, 128),
    ("addmm", aten.addmm.default, (meta(4), X, meta(16, 4)), {}, 16 + 512 + 256, 128),
    ("bmm of an expanded", aten.bmm.default, (meta(2, 8, 16), meta(1, 16, 4).expand(2, 16, 4)), {}, 1024 + 256, 256),
    # views, metadata, memory that is only reserved
    ("view", aten.view.default, (X, [128]), {}, 0, 0),
    ("transposition", aten.t.default, (X,), {}, 0, 0),
    ("expand", aten.expand.default, (COLUMN, [8, 16]), {}, 0, 0),
    ("slice", aten.slice.Tensor, (X, 0, 1, 3), {}, 0, 0),
    ("split", aten.split.Tensor, (X, 2), {}, 0, 0),
    ("detach", aten.detach.default, (X,), {}, 0, 0),
    ("unsafe view", aten._unsafe_view.default, (X, [128]), {}, 0, 0),
    ("empty", aten.empty.memory_format, ([8, 16],), {"device": "meta"}, 0, 0),
    ("empty_like", aten.empty_like.default, (X,), {}, 0, 0),
    # creation and random numbers: nothing is read
    ("zeros", aten.zeros.default, ([8, 16],), {"device": "meta"}, 0, 512),
    ("ones_like", aten.ones_like.default, (X,), {}, 0, 512),
    ("new_zeros", aten.new_zeros.default, (X, [4]), {}, 0, 16),
    ("arange", aten.arange.default, (10,), {"device": "meta"}, 0, 80),
    ("zero_", aten.zero_.default, (X,), {}, 0, 512),
    ("fill_", aten.fill_.Scalar, (X, 1.0), {}, 0, 512),
    ("fill_ with a tensor", aten.fill_.Tensor, (X, meta()), {}, 4, 512),
    ("uniform_", aten.uniform_.default, (X,), {}, 0, 512),
    ("bernoulli_", aten.bernoulli_.float, (X, 0.5), {}, 0, 512),
    ("rand_like", aten.rand_like.default, (X,), {}, 0, 512),
    ("bernoulli of probabilities", aten.bernoulli.default, (X,), {}, 512, 512),
    ("dropout and its mask", aten.native_dropout.default, (X, 0.5, True), {}, 512, 512 + 128),
    # copies
    ("clone", aten.clone.default, (X,), {}, 512, 512),
    ("clone of an expanded", aten.clone.default, (COLUMN.expand(8, 16),),
     {"memory_format": torch.contiguous_format}, 32, 512),
    ("copy_", aten.copy_.default, (X, ROW), {}, 64, 512),
    ("cast", aten._to_copy.default, (X,), {"dtype": HALF}, 512, 256),
    ("cat", aten.cat.default, ([X, X, meta(0)], 0), {}, 1024, 1024),
    ("stack", aten.stack.default, ([X, X],), {}, 1024, 1024),
    ("repeat", aten.repeat.default, (ROW, [8, 1]), {}, 64, 512),
    ("padding", aten.constant_pad_nd.default, (X, [1, 1]), {}, 512, 8 * 18 * 4),
    ("gradient of a slice", aten.slice_backward.default, (meta(2, 16), [8, 16], 0, 0, 2, 1), {}, 128, 512 + 128),
    # look-ups
    ("embedding", aten.embedding.default, (TABLE, IDS), {}, 5 * 64 + 40, 320),
    ("embedding, few rows", aten.embedding.default, (meta(2, 16), IDS), {}, 2 * 64 + 40, 320),
    ("embedding's gradient", aten.embedding_dense_backward.default, (meta(5, 16), IDS, 100, -1, False), {},
     320 + 40 + 320, 6400 + 320),
    ("index_select", aten.index_select.default, (TABLE, 0, IDS), {}, 320 + 40, 320),
    ("gather", aten.gather.default, (X, 1, meta(8, 1, dtype=LONG)), {}, 32 + 64, 32),
    ("index", aten.index.Tensor, (TABLE, [IDS]), {}, 320 + 40, 320),
    ("loss of a row each", aten.nll_loss_forward.default, (TABLE, meta(100, dtype=LONG), None, 1, -100), {},
     800 + 400, 4 + 4),
    ("its gradient", aten.nll_loss_backward.default,
     (meta(), TABLE, meta(100, dtype=LONG), None, 1, -100, meta()), {}, 4 + 800 + 4, 6400),
    # writes to a part
    ("index_put_", aten.index_put_.default, (TABLE, [IDS], meta(5, 16)), {}, 40 + 320, 320),
    ("index_put_ that adds", aten.index_put_.default, (TABLE, [IDS], meta(5, 16), True), {}, 40 + 320 + 320, 320),
    ("index_put", aten.index_put.default, (TABLE, [IDS], meta(5, 16)), {}, 40 + 320 + 6400, 320 + 6400),
    ("index_add_", aten.index_add_.default, (TABLE, 0, IDS, meta(5, 16)), {}, 40 + 320 + 320, 320),
    ("index_copy_", aten.index_copy_.default, (TABLE, 0, IDS, meta(5, 16)), {}, 40 + 320, 320),
    ("index_fill of a number", aten.index_fill.int_Scalar, (meta(), 0, IDS[:1], 0.0), {}, 8 + 4, 8),
    ("index_fill_", aten.index_fill_.int_Scalar, (TABLE, 0, IDS, 0.0), {}, 40, 320),
    ("scatter_", aten.scatter_.value, (X, 1, meta(8, 1, dtype=LONG), 1.0), {}, 64, 32),
    ("scatter_add", aten.scatter_add.default, (X, 1, meta(8, 2, dtype=LONG), X), {}, 128 + 512 + 64 + 512, 64 + 512),
    # lists
    ("foreach", aten._foreach_mul_.Scalar, ([X, ROW], 2.0), {}, 576, 576),
    ("foreach, new", aten._foreach_add.List, ([X, ROW], [X, ROW]), {}, 1152, 576),
    ("foreach copy", aten._foreach_copy_.default, ([X], [X]), {}, 512, 512),
]  # fmt: skip


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "read", "written"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_C4_bytes(func, args, kwargs, read, written):
    done = of(func, *args, **kwargs)
    assert (done.bytes_read, done.bytes_written) == (read, written)
    assert done.bytes_new in (0, sum(t.nbytes for t in _flat(func(*args, **kwargs))))


def _flat(out: Any) -> list[torch.Tensor]:
    return [out] if isinstance(out, torch.Tensor) else [t for t in out or () if isinstance(t, torch.Tensor)]


def test_C4_a_convolution_reads_for_a_gradient_what_it_needs():
    grad, x, w = meta(2, 4, 8, 8), meta(2, 3, 8, 8), meta(4, 3, 3, 3)
    rest = ([4], [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    for mask, read, written in (
        ((True, True, True), (grad, x, w), (x, w, meta(4))),
        ((True, False, False), (grad, w), (x,)),
        ((False, True, True), (grad, x), (w, meta(4))),
    ):
        args = (grad, x, w, *rest, list(mask))
        out = tuple(t if keep else None for t, keep in zip((x, w, meta(4)), mask))
        done = work(aten.convolution_backward.default, args, {}, out)
        assert (done.bytes_read, done.bytes_written) == (sum(t.nbytes for t in read), sum(t.nbytes for t in written))


def test_C4_a_fused_optimizer_writes_all_but_the_gradients():
    lists = [[X, ROW] for _ in range(4)]
    kwargs = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False}
    steps = [meta(), meta()]
    done = work(aten._fused_adamw_.default, (*lists, [], steps), {**kwargs, "maximize": False}, None)
    assert (done.bytes_read, done.bytes_written) == (4 * 576 + 8, 3 * 576 + 8)
    assert done.pieces == 2 and done.bytes_new == 0


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "dtype"),
    [
        (aten.mm.default, (meta(2, 2, dtype=HALF), meta(2, 2, dtype=HALF)), {}, "bfloat16"),
        (aten.add.Tensor, (meta(2, dtype=HALF), meta(2)), {}, "float32"),
        (aten.add.Tensor, (meta(2, dtype=HALF), meta()), {}, "bfloat16"),
        (aten.add.Tensor, (meta(2, dtype=LONG), 1), {}, "int64"),
        (aten.mul.Tensor, (meta(2, dtype=LONG), meta(2, dtype=HALF)), {}, "bfloat16"),
        (aten.div.Tensor, (meta(2, dtype=LONG), 2), {}, "float32"),
        (aten.lt.Tensor, (X, X), {}, "float32"),
        (aten.logical_not.default, (meta(2, dtype=BOOL),), {}, "bool"),
        (aten._to_copy.default, (X,), {"dtype": HALF}, "float32"),
        (aten.embedding.default, (TABLE, IDS), {}, "float32"),
        (aten.arange.default, (3,), {"device": "meta"}, "int64"),
    ],
)  # fmt: skip
def test_C4_dtype_of_the_arithmetic(func, args, kwargs, dtype):
    assert of(func, *args, **kwargs).dtype == dtype


def test_C4_distinct_elements():
    assert distinct(meta(4, 1).expand(4, 9)) == 4
    assert distinct(meta(4, 9).t()) == 36
    assert distinct(meta(10).unfold(0, 4, 1)) == 10  # seven overlapping windows
    assert distinct(meta(0, 3)) == 0
    assert distinct(meta()) == 1
    assert distinct(torch.eye(3).to_sparse()) == distinct(torch.eye(3).to_sparse_csr()) == 3


def test_C4_flops_and_shape_of_products():
    done = of(aten.addmm.default, meta(4), X, meta(16, 4))
    assert (done.flops, done.macs, done.tag, done.name) == (2 * 8 * 16 * 4, 8 * 16 * 4, "matmul", "aten::addmm")
    assert done.product == (1, 8, 4, 16)
    assert of(aten.bmm.default, meta(2, 3, 5), meta(2, 5, 7)).product == (2, 3, 7, 5)
    assert of(torch.nn.functional.linear, meta(2, 3, 16), meta(4, 16)).product == (1, 6, 4, 16)
    q, k = meta(2, 4, 5, 8), meta(2, 2, 7, 8)
    attend = aten._scaled_dot_product_flash_attention_for_cpu.default
    assert work(attend, (q, k, k), {}, (q, meta(2, 4, 5))).product == (8, 5, 7, 8)
    args = (meta(2, 6, 8, 8), meta(6, 1, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 6)
    assert of(aten.convolution.default, *args).product == (6, 128, 1, 9)
    assert of(aten.add.Tensor, X, X).product is None
    assert work(aten.linalg_svd.default, (X,), {}, ()).flops is None


def test_C4_strided_copies_are_told_from_plain_ones():
    turned = meta(16, 8).t()
    plain = {"memory_format": torch.contiguous_format}
    assert of(aten.clone.default, turned, **plain).strided
    assert not of(aten.clone.default, turned).strided  # keeps the strides
    assert not of(aten.clone.default, X, **plain).strided
    assert not of(aten.add.Tensor, X, ROW).strided
    assert of(aten.copy_.default, X, turned).strided
    assert not of(aten.t.default, X).strided


def test_C4_plain_functions_and_names_are_understood_too():
    assert of(torch.add, X, ROW).bytes == 512 + 64 + 512
    assert of(torch.Tensor.add_, meta(8, 16), X).bytes == 1536
    assert of(torch.Tensor.contiguous, X).bytes == 0
    assert of(torch.Tensor.contiguous, meta(16, 8).t()).bytes == 1024
    assert of(torch.nn.functional.embedding, torch.zeros(5, dtype=LONG), torch.zeros(100, 16)).bytes == 320 + 40 + 320

    class Shape:
        def __init__(self, *shape: int) -> None:
            self.shape, self.dtype = shape, F4

    assert work("aten::mm", (Shape(2, 3), Shape(3, 4)), None, Shape(2, 4)).bytes == 4 * (6 + 12 + 8)


def test_C4_every_op_of_a_training_step_has_its_work():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(36, 10), torch.nn.Dropout(), torch.nn.LayerNorm(10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    found: list[Work] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            found.append(work(func, args, kwargs, out))
            return out

    with Watch():
        loss = torch.nn.functional.cross_entropy(model(torch.randn(2, 3, 8, 8)), torch.tensor([1, 2]))
        loss.backward()
        optimizer.step()
    assert len(found) > 50
    for done in found:
        still = ("aten::empty", "aten::new_empty", "profiler::")
        moves = done.tag != "view" and not done.name.startswith(still)
        assert (done.bytes > 0) == moves, done
        assert done.bytes_new <= done.bytes_written
