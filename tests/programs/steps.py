"""Random programs: a small language of tensor steps, and its interpreter (SPEC L7).

A program is a list of steps ``(kind, a, b, c)``: the kind names a function in ``STEPS``, the numbers choose tensors and
arguments, modulo what there is. So every list of steps is a program, also one that a shrinker cut down, and a failing
one can be kept as data (test_found.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

KEPT = 9  # tensors a program holds at once; the oldest goes first
FLOATS = (torch.float32, torch.float64, torch.bfloat16)
DTYPES = (torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.bool, torch.int32, torch.complex64)
SHAPES: tuple[tuple[int, ...], ...] = ((3, 4), (4,), (2, 3), (4, 3), (2, 2, 3), (1, 4), (), (6,), (3, 1), (0, 3))
Step = tuple[str, int, int, int]
STEPS: dict[str, Callable[[Machine, int, int, int], object]] = {}


class Machine:
    """Runs a program on one device; ``log`` is what a reader of values and catcher of errors would have seen."""

    steps = STEPS
    shapes = SHAPES

    def __init__(self, device: str) -> None:
        self.device = device
        self.grad = True
        self.gradients = True  # until the step no_gradients
        self.tensors = self.start()
        self.versions = {id(t): 0 for t in self.tensors}  # when each was made: what a kernel writes inside is its own
        self.log: list[object] = []

    def start(self) -> list[Tensor]:
        device = self.device
        return [torch.arange(12.0, device=device).reshape(3, 4) / 4 - 1, torch.randn(4, 3, device=device)]

    def run(self, program: list[Step]) -> Machine:
        for step in program:
            kind, a, b, c = step
            try:
                with torch.set_grad_enabled(self.grad):
                    self.keep(self.steps[kind](self, a, b, c))
            except Exception as error:
                self.log.append((step, error))
        self.log.append(torch.rand(2, device=self.device).tolist())  # where the generator stands
        return self

    def keep(self, made: object) -> None:
        if isinstance(made, Tensor):
            if not any(made is t for t in self.tensors):
                self.versions[id(made)] = made._version
            self.tensors.append(made)
        elif isinstance(made, (tuple, list)):
            for item in made[:2]:
                self.keep(item)
        del self.tensors[:-KEPT]

    def pick(self, n: int) -> Tensor:
        return self.tensors[n % len(self.tensors)]

    def out(self, n: int) -> Tensor:
        """A tensor that may be resized, see of_no_view."""
        t = self.pick(n)
        return t.detach().clone() if self.gradients and self.has_views(t) else t

    def has_views(self, t: Tensor) -> bool:
        return t._is_view() or any(v._base is t for v in self.tensors)


def step(f: Callable[[Machine, int, int, int], object]) -> Callable[[Machine, int, int, int], object]:
    STEPS[f.__name__] = f
    return f


def of_one(**functions: Callable[[Tensor, int, int], object]) -> None:
    """Steps ``f(tensor, b, c)``."""
    for name, f in functions.items():
        STEPS[name] = lambda m, a, b, c, f=f: f(m.pick(a), b, c)  # type: ignore[misc]


def of_two(**functions: Callable[[Tensor, Tensor, int], object]) -> None:
    """Steps ``f(tensor, other tensor, c)``."""
    for name, f in functions.items():
        STEPS[name] = lambda m, a, b, c, f=f: f(m.pick(a), m.pick(b), c)  # type: ignore[misc]


def _dim(t: Tensor, n: int) -> int:
    return n % max(t.dim(), 1)


def _size(t: Tensor, d: int) -> int:
    return t.shape[d] if t.dim() else 1


def _indices(t: Tensor, d: int, places: list[int]) -> Tensor:
    # In range: an index that is not is found when the program runs, on a lazy device only when it reads.
    n = _size(t, _dim(t, d))
    if not n:
        raise IndexError("no place for an index")
    return torch.tensor([place % n for place in places], device=t.device)


def _slice(t: Tensor, b: int, c: int) -> Any:
    """One of the ways to index a tensor with constants."""
    n = _size(t, 0)
    return (
        b % max(n, 1),
        slice(b % 3, None, 1 + c % 2),
        slice(None, -1),
        (Ellipsis, b % max(_size(t, -1), 1)),
        (slice(None), slice(c % 2, None)),
        None,
        (None, slice(0, 2)),
    )[c % 7]


# ---- creation --------------------------------------------------------------------------------------------------------
@step
def randn(m: Machine, a: int, b: int, c: int) -> object:
    return torch.randn(m.shapes[a % len(m.shapes)], device=m.device, requires_grad=m.gradients and c % 3 == 0)


@step
def arange(m: Machine, a: int, b: int, c: int) -> object:
    return torch.arange(a % 7, device=m.device, dtype=DTYPES[c % 3])


@step
def full(m: Machine, a: int, b: int, c: int) -> object:
    return torch.full(m.shapes[a % len(m.shapes)], b - 5, device=m.device, dtype=DTYPES[c % len(DTYPES)])


@step
def randint(m: Machine, a: int, b: int, c: int) -> object:
    return torch.randint(0, 1 + b, m.shapes[a % len(m.shapes)], device=m.device)


@step
def from_data(m: Machine, a: int, b: int, c: int) -> object:
    return torch.tensor([[a, b], [c, 1.5]], device=m.device, requires_grad=m.gradients and c % 2 == 0)


@step
def manual_seed(m: Machine, a: int, b: int, c: int) -> object:
    torch.manual_seed(a)
    return None


of_one(
    rand_like=lambda t, b, c: torch.rand_like(t),
    zeros_like=lambda t, b, c: torch.zeros_like(t),
    new_ones=lambda t, b, c: t.new_ones(SHAPES[b % len(SHAPES)]),
    empty_filled=lambda t, b, c: torch.empty_like(t).fill_(b),
)

# ---- views -----------------------------------------------------------------------------------------------------------
of_one(
    index=lambda t, b, c: t[_slice(t, b, c)],
    index2=lambda t, b, c: t[_slice(t, b, c)][_slice(t, c, b)],
    transpose=lambda t, b, c: t.transpose(_dim(t, b), _dim(t, c)),
    t=lambda t, b, c: t.t(),
    flatten=lambda t, b, c: t.view(-1),
    reshape=lambda t, b, c: t.reshape((-1, 2) if b % 2 else (2, -1)),
    view_as_rows=lambda t, b, c: t.view(b % 4, -1),
    select=lambda t, b, c: t.select(_dim(t, b), c % max(_size(t, _dim(t, b)), 1)),
    narrow=lambda t, b, c: t.narrow(_dim(t, b), c % 2, 1 + c % 3),
    unsqueeze=lambda t, b, c: t.unsqueeze(b % (t.dim() + 1)),
    squeeze=lambda t, b, c: t.squeeze(),
    expand=lambda t, b, c: t.expand(2 + b % 2, *t.shape),
    expand_ones=lambda t, b, c: t.expand([3 if n == 1 else n for n in t.shape]),
    unfold=lambda t, b, c: t.unfold(_dim(t, b), 2, 1 + c % 2),
    diagonal=lambda t, b, c: t.diagonal(c % 3 - 1),
    split=lambda t, b, c: t.split(1 + b % 2, _dim(t, c)),
    chunk=lambda t, b, c: t.chunk(2, _dim(t, b)),
    unbind=lambda t, b, c: t.unbind(_dim(t, b)),
    as_strided=lambda t, b, c: t.as_strided((2, 2), (b % 4, 1 + c % 3), (b + c) % 4),
    as_strided_wide=lambda t, b, c: t.as_strided((b % 5,), (c % 4,)),
    as_real=lambda t, b, c: torch.view_as_real(t) if t.is_complex() else torch.view_as_complex(t.view(-1, 2)),
    imaginary=lambda t, b, c: t.imag if b % 2 else t.real,
    conj=lambda t, b, c: t.conj(),
    negative_view=lambda t, b, c: torch._neg_view(t) if t.dtype is not torch.bool else None,
    movedim=lambda t, b, c: t.movedim(0, -1),
    swap_all=lambda t, b, c: t.mT if t.dim() > 1 else t.view_as(t),
    detach=lambda t, b, c: t.detach(),
    data=lambda t, b, c: t.data,
    same_name=lambda t, b, c: t,
    ravel=lambda t, b, c: t.ravel(),
    contiguous=lambda t, b, c: t.contiguous(),
)


@step
def view_dtype(m: Machine, a: int, b: int, c: int) -> object:
    return None if m.gradients else m.pick(a).view(torch.int32 if b % 2 else torch.float32)  # see of_no_view


# ---- in place --------------------------------------------------------------------------------------------------------
of_one(
    add_number_=lambda t, b, c: t.add_(b - 3),
    mul_number_=lambda t, b, c: t.mul_(1.5 if b % 2 else 2),
    div_number_=lambda t, b, c: t.div_(b - 2),
    zero_=lambda t, b, c: t.zero_(),
    fill_=lambda t, b, c: t.fill_(b),
    clamp_=lambda t, b, c: t.clamp_(-2, b),
    neg_=lambda t, b, c: t.neg_(),
    tanh_=lambda t, b, c: t.tanh_(),
    relu_=lambda t, b, c: F.relu(t, inplace=True),
    pow_=lambda t, b, c: t.pow_(2),
    cumsum_=lambda t, b, c: t.cumsum_(_dim(t, b)),
    normal_=lambda t, b, c: t.normal_(),
    uniform_=lambda t, b, c: t.uniform_(-1, 1),
    random_=lambda t, b, c: t.random_(0, 2),
    bernoulli_=lambda t, b, c: t.bernoulli_(0.5),
    dropout_=lambda t, b, c: F.dropout(t, 0.4, inplace=True),
    index_fill_=lambda t, b, c: t.index_fill_(_dim(t, b), _indices(t, b, [0]), c),
    set_item=lambda t, b, c: t.__setitem__(_slice(t, b, c), b - 4),
    set_masked=lambda t, b, c: t.__setitem__(t > 0, c),
    mask_fill_=lambda t, b, c: t.masked_fill_(t < 1, c),
    diagonal_fill_=lambda t, b, c: t.fill_diagonal_(b),
    write_dead_view=lambda t, b, c: (t[0].add_(b), None)[1],
    triu_=lambda t, b, c: t.triu_(),
)
of_two(
    add_=lambda t, u, c: t.add_(u, alpha=1 + c % 2),
    sub_=lambda t, u, c: t.__isub__(u),
    mul_=lambda t, u, c: t.mul_(u),
    div_=lambda t, u, c: t.__itruediv__(u),
    copy_=lambda t, u, c: t.copy_(u),
    lerp_=lambda t, u, c: t.lerp_(u, 0.25),
    addcmul_=lambda t, u, c: t.addcmul_(u, u, value=0.5),
    addmm_=lambda t, u, c: t.addmm_(u @ u.T, u),
    xor_=lambda t, u, c: t.__ixor__(u),
    masked_scatter_=lambda t, u, c: t.masked_scatter_(t > 0, u) if u.numel() >= t.numel() else None,
    scatter_=lambda t, u, c: t.scatter_(0, _indices(t, 0, [0]), u[:1]) if t.dim() == 1 else None,
    index_add_=lambda t, u, c: t.index_add_(0, _indices(t, 0, [0, 0]), u[:2]),
    index_copy_=lambda t, u, c: t.index_copy_(0, _indices(t, 0, [-1]), u[:1]),
    set_item_tensor=lambda t, u, c: t.__setitem__(_slice(t, c, c // 2), u),
    set_item_part=lambda t, u, c: t.__setitem__(c % 3, u[0]),
    set_item_indices=lambda t, u, c: t.__setitem__(_indices(t, 0, [0, -1]), u[:2]),
    swap_rows=lambda t, u, c: t.__setitem__(0, t[-1].clone() + u[0]),
    shift_rows=lambda t, u, c: t[1:].copy_(t[:-1]),
    add_own_part_=lambda t, u, c: t[1:].add_(t[:-1]),
    data_add_=lambda t, u, c: t.data.add_(u.detach()),
    foreach_add_=lambda t, u, c: torch._foreach_add_([t, u.detach().float().clone()], 1.0),
    foreach_mul_=lambda t, u, c: torch._foreach_mul_([t], [u]),
)


# ---- in place on what a tensor is, not on its values -----------------------------------------------------------------
def of_no_view(**functions: Callable[[Tensor, Tensor, int], object]) -> None:
    """Steps ``f(tensor, other, c)`` on tensors without views, unless the program is one without gradients.

    Torch rebuilds the history of a view whose base changed: for its own CPU tensors with as_strided, for others by
    calling the view function again (variable.cpp), which asserts or fails when the base was cut off or reshaped.
    """
    for name, f in functions.items():

        def run(m: Machine, a: int, b: int, c: int, f: Any = f) -> object:
            t = m.pick(a)
            if m.gradients and m.has_views(t):
                return None
            return f(t, m.pick(b), c)

        STEPS[name] = run


of_no_view(
    t_=lambda t, u, c: t.t_(),
    transpose_=lambda t, u, c: t.transpose_(0, _dim(t, c)),
    unsqueeze_=lambda t, u, c: t.unsqueeze_(0) if t.dim() < 4 else None,
    squeeze_=lambda t, u, c: t.squeeze_(),
    resize_smaller_=lambda t, u, c: t.resize_(t.numel() // 2) if t.is_contiguous() else None,
    detach_=lambda t, u, c: t.detach_(),
    require_no_grad_=lambda t, u, c: t.requires_grad_(False),
    assign_data=lambda t, u, c: setattr(t, "data", u.detach()),
    set_=lambda t, u, c: t.set_(u.detach()),
)


@step
def requires_grad_(m: Machine, a: int, b: int, c: int) -> object:
    t = m.pick(a)
    return t.requires_grad_() if m.gradients and not t._is_view() else None


# ---- fresh results ---------------------------------------------------------------------------------------------------
of_one(
    clone=lambda t, b, c: t.clone(),
    neg=lambda t, b, c: -t,
    relu=lambda t, b, c: torch.relu(t),
    exp=lambda t, b, c: t.clamp(-3, 3).exp(),
    sin=lambda t, b, c: t.sin(),
    scaled=lambda t, b, c: t * 0.5 + b,
    reflected=lambda t, b, c: b - t,
    power=lambda t, b, c: t**2,
    total=lambda t, b, c: t.sum(),
    sum_dim=lambda t, b, c: t.sum(_dim(t, b), keepdim=c % 2 == 0),
    mean=lambda t, b, c: t.mean(_dim(t, b)),
    maximum_of=lambda t, b, c: t.max(_dim(t, b)),
    softmax=lambda t, b, c: t.softmax(_dim(t, b)),
    cumsum=lambda t, b, c: t.cumsum(_dim(t, b)),
    sort=lambda t, b, c: t.sort(dim=_dim(t, b), stable=True),
    flip=lambda t, b, c: t.flip(_dim(t, b)),
    roll=lambda t, b, c: t.roll(1 + b % 2, _dim(t, c)),
    repeat=lambda t, b, c: t.repeat(2, *([1] * t.dim())) if t.numel() < 100 else None,
    greater=lambda t, b, c: t > 0,
    to_dtype=lambda t, b, c: t.to(DTYPES[b % len(DTYPES)]),
    to_dtype_copy=lambda t, b, c: t.to(DTYPES[b % len(DTYPES)], copy=True),
    masked=lambda t, b, c: t[t > 0],
    nonzero=lambda t, b, c: t.nonzero(),
    pick_rows=lambda t, b, c: t.index_select(_dim(t, b), _indices(t, b, [0, 0])),
    pick_by_list=lambda t, b, c: t[[0, -1]],
    layer_norm=lambda t, b, c: F.layer_norm(t, t.shape[-1:]),
    dropout=lambda t, b, c: F.dropout(t, 0.3),
    pad=lambda t, b, c: F.pad(t, (1, b % 2)),
    normalize=lambda t, b, c: F.normalize(t, dim=0),
    gram=lambda t, b, c: t.T @ t,
    channels_last=lambda t, b, c: t[None, None].contiguous(memory_format=torch.channels_last),
    # What passes look for: copies that only this step reads, and constants.
    of_a_copy=lambda t, b, c: (t[_slice(t, b, c)] if c % 2 else t).clone() * (1 + b % 2),
    view_of_a_copy=lambda t, b, c: t.clone()[_slice(t, b, c)] * 2,
    copy_or_source_written=lambda t, b, c: (x := t.detach().clone(), (x, t.detach())[c % 2].add_(b), x * 2 + t)[2],
    cast_and_back=lambda t, b, c: (t * 2 if c % 2 else t).to(DTYPES[b % len(DTYPES)]).to(t.dtype) + c,
    cast_twice=lambda t, b, c: (wide := (t + b).to(torch.float64), wide.to(t.dtype) + wide.sum())[1],
    with_a_mask=lambda t, b, c: t + torch.full(t.shape[-2:], float(b), device=t.device).tril(c % 3 - 1),
    with_positions=lambda t, b, c: t + torch.arange(_size(t, -1), device=t.device) * (b - 3),
    written_constant=lambda t, b, c: t + torch.zeros(_size(t, -1), device=t.device).add_(b)[: _size(t, -1)],
)
of_two(
    add=lambda t, u, c: t + u,
    sub=lambda t, u, c: t - u,
    mul=lambda t, u, c: t * u,
    div=lambda t, u, c: t / u,
    matmul=lambda t, u, c: t @ u,
    linear=lambda t, u, c: F.linear(t, u),
    less=lambda t, u, c: t < u,
    where=lambda t, u, c: torch.where(t > 0, t, u),
    cat=lambda t, u, c: torch.cat([t, u], _dim(t, c)) if t.numel() + u.numel() < 200 else None,
    stack=lambda t, u, c: torch.stack([t, u]) if t.numel() < 100 else None,
    outer=lambda t, u, c: torch.outer(t.flatten()[:3], u.flatten()[:4]),
    take=lambda t, u, c: t.flatten()[u.flatten().long().remainder(max(t.numel(), 1))],
    type_as=lambda t, u, c: t.type_as(u),
    same=lambda t, u, c: t.expand_as(u).reshape(u.shape),
    lerp=lambda t, u, c: torch.lerp(t, u, 0.3),
    einsum=lambda t, u, c: torch.einsum("ij,kj->ik", t, u),
)


# ---- out= ------------------------------------------------------------------------------------------------------------
def into(out: Tensor, call: Callable[[Tensor], Any]) -> Any:
    """``call`` writes ``out``. A kernel may have made it larger before it refused: uninitialized, until filled."""
    try:
        return call(out)
    except Exception:
        out.detach().zero_()
        raise


@step
def add_out(m: Machine, a: int, b: int, c: int) -> object:
    return into(m.out(c), lambda out: torch.add(m.pick(a), m.pick(b), out=out))


@step
def mul_out(m: Machine, a: int, b: int, c: int) -> object:
    return into(m.out(c), lambda out: torch.mul(m.pick(a), b, out=out))


@step
def matmul_out(m: Machine, a: int, b: int, c: int) -> object:
    # Into one of its own: gemm does not look whether it overwrites what it reads.
    return into(m.pick(c).detach().clone(), lambda out: torch.mm(m.pick(a), m.pick(b), out=out))


@step
def sum_out(m: Machine, a: int, b: int, c: int) -> object:
    return into(m.out(c), lambda out: torch.sum(m.pick(a), 0, out=out))


@step
def cat_out(m: Machine, a: int, b: int, c: int) -> object:
    pair = [m.pick(a), m.pick(b)]
    return into(m.out(c), lambda out: torch.cat(pair, out=out)) if sum(t.numel() for t in pair) < 200 else None


@step
def max_out(m: Machine, a: int, b: int, c: int) -> object:
    return into(m.out(b), lambda v: into(m.out(c), lambda i: torch.max(m.pick(a), 0, out=(v, i))))


@step
def neg_out_of_nothing(m: Machine, a: int, b: int, c: int) -> object:
    return torch.neg(m.pick(a), out=torch.empty(0, device=m.device))


# ---- reads, moves, names ---------------------------------------------------------------------------------------------
@step
def item(m: Machine, a: int, b: int, c: int) -> object:
    m.log.append(m.pick(a).flatten()[0].item())
    return None


@step
def tolist(m: Machine, a: int, b: int, c: int) -> object:
    m.log.append(m.pick(a).tolist())
    return None


@step
def branch(m: Machine, a: int, b: int, c: int) -> object:
    return m.pick(b) + 1 if m.pick(a).sum() > 0 else m.pick(c) * 2


@step
def move_and_back(m: Machine, a: int, b: int, c: int) -> object:
    return m.pick(a).to("cpu", copy=True).to(m.device, copy=True)


@step
def copy_from_cpu(m: Machine, a: int, b: int, c: int) -> object:
    return m.pick(a).copy_(torch.arange(3.0)[b % 3])


@step
def copy_to_cpu(m: Machine, a: int, b: int, c: int) -> object:
    t = m.pick(a).detach()
    m.log.append(torch.zeros(t.shape).copy_(t).tolist())
    return None


@step
def cpu_scalar(m: Machine, a: int, b: int, c: int) -> object:
    return m.pick(a) * torch.tensor(float(b))


@step
def delete(m: Machine, a: int, b: int, c: int) -> object:
    if len(m.tensors) > 2:
        del m.tensors[a % len(m.tensors)]
    return None


@step
def delete_others(m: Machine, a: int, b: int, c: int) -> object:
    m.tensors = [m.pick(a), m.pick(b)]
    return None


# ---- gradients -------------------------------------------------------------------------------------------------------
@step
def no_gradients(m: Machine, a: int, b: int, c: int) -> object:
    """At the start of a program: nothing in it requires grad."""
    m.gradients = False
    return None


@step
def grad_mode(m: Machine, a: int, b: int, c: int) -> object:
    m.grad = a % 3 > 0
    return None


@step
def leaf(m: Machine, a: int, b: int, c: int) -> object:
    return m.pick(a).detach().clone().requires_grad_() if m.gradients else None


@step
def backward(m: Machine, a: int, b: int, c: int) -> object:
    t = m.pick(a)
    (t if t.dim() == 0 and b % 2 else t.sum()).backward(retain_graph=c % 3 > 0)
    return None


@step
def grad_of(m: Machine, a: int, b: int, c: int) -> object:
    y = m.pick(a)
    return torch.autograd.grad(y, m.pick(b), torch.ones_like(y), allow_unused=True, create_graph=c % 2 == 0)


of_one(
    read_grad=lambda t, b, c: t.grad,
    drop_grad=lambda t, b, c: setattr(t, "grad", None),
    zero_grad=lambda t, b, c: t.grad.zero_() if t.grad is not None else None,
    retain_grad=lambda t, b, c: t.retain_grad(),
)


@step
def hook(m: Machine, a: int, b: int, c: int) -> object:
    # On a tensor of its own: torch 2.13 crashes on some views that were written through their base.
    t = m.pick(a).detach().clone().requires_grad_(m.gradients) if c % 2 else m.pick(a) * 1
    t.register_hook(lambda g: g * 2 if b % 2 else m.log.append(g.shape))
    return t
