"""Classes that a program gives its tensors live on the device, too (SPEC L3, L7)."""

from __future__ import annotations

import copy
import io
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.testing._internal.two_tensor import TwoTensor

import mindtorch

LAZY = "remote_accelerator:0"


class Sub(torch.Tensor):
    """Nothing of its own."""


class WithMeta(torch.Tensor):
    """In the manner of MONAI's MetaTensor: attributes that go along, by way of ``__dict__``."""

    def __new__(cls, x: Any, meta: Any = None) -> Any:
        return torch.as_tensor(x).as_subclass(cls)

    def __init__(self, x: Any, meta: Any = None) -> None:
        self.meta = {} if meta is None else meta

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(made, cls):
            for a in args:
                if isinstance(a, cls) and "meta" in a.__dict__:
                    made.__dict__ = dict(a.__dict__)
        return made


class Image(torch.Tensor):
    """In the manner of torchvision's tv_tensors: few calls keep the class."""

    KEEP = frozenset({torch.Tensor.clone, torch.Tensor.to, torch.Tensor.detach, torch.Tensor.requires_grad_})

    def __new__(cls, data: Any, device: Any = None) -> Any:
        return torch.as_tensor(data, device=device).as_subclass(cls)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(issubclass(cls, t) for t in types):
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*args, **(kwargs or {}))
            if func in cls.KEEP and isinstance(args[0], cls):
                return made.as_subclass(cls)
            return made.as_subclass(torch.Tensor) if isinstance(made, cls) else made


class Tagged(nn.Parameter):
    tag: Any

    def __new__(cls, data: Any = None, requires_grad: bool = True, tag: Any = None) -> Any:
        made: Any = super().__new__(cls, data, requires_grad)
        made.tag = tag
        return made

    def shout(self) -> str:
        return str(self.tag).upper()


class Quantized(nn.Parameter):
    """A parameter that answers a call itself."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            return args[0].sum() * 0 + 7
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def name(t: Any) -> str:
    """The class's name, as eager has it."""
    return type(t).__name__.removeprefix("Lazy")


def as_subclass(d: str) -> object:
    x = torch.arange(4.0, device=d)
    y = x.as_subclass(Sub)
    made = [
        y,
        y + 1,
        1 + y,
        x + y,
        torch.cat([x, y]),
        y.sum(),
        y.max(0).values,
        y[1:],
        -y,
        y == x,
        y.data,
        y.new_zeros(2),
        torch.zeros_like(y),
        y.to(torch.float64),
        y.contiguous(),
        (y * 1).cpu(),
        y.as_subclass(torch.Tensor),
    ]
    y += 1
    y[0] = 5
    return [(name(t), isinstance(t, Sub), t.tolist()) for t in made], x.tolist(), y[1].item(), [float(v) for v in y]


def as_subclass_in_a_graph(d: str) -> object:
    x = torch.arange(3.0, device=d, requires_grad=True)
    y = x.as_subclass(Sub)
    (y * y).sum().backward()
    torch.manual_seed(0)
    m = nn.Linear(3, 2).to(d)
    z = m(y)
    mine = torch.autograd.grad(z.sum(), y)[0]
    return name(x.grad), x.grad, name(z), z.tolist(), name(torch.mm(m.weight, y[:, None])), mine.tolist()


def as_subclass_by_its_name(d: str) -> object:
    """The method looked up on the class, as what wraps it calls it."""
    x = torch.arange(4.0, device=d)
    classes = (Sub, torch.nn.Buffer, nn.Parameter, torch.Tensor)
    made = [torch.Tensor.as_subclass(x * 2, cls) for cls in classes] + [torch.Tensor.as_subclass(x, cls=Sub)]
    with torch._C.DisableTorchFunctionSubclass():
        made.append(torch.Tensor.as_subclass(x, Sub))
    return [(name(t), t.tolist(), name(t + 1)) for t in made]


def make_subclass(d: str) -> object:
    x = torch.arange(4.0, device=d)
    y, z = torch.Tensor._make_subclass(Sub, x), torch.Tensor._make_subclass(Sub, x, True)  # type: ignore[attr-defined]
    y.add_(1)
    return name(y), y.tolist(), name(z), z.requires_grad, z.is_leaf, x.tolist()


def like_monai(d: str) -> object:
    x = WithMeta(torch.arange(4.0).view(2, 2), {"a": 1}).to(d)
    made = [x, x.sum(), x.t(), x @ x, x.flatten(), F.relu(x), x[0], x.double(), x.cpu(), copy.copy(x)]
    y = WithMeta(torch.zeros(2, device=d))
    y.__dict__ = x.__dict__.copy()  # must not take the value along
    return [(name(t), t.meta, t.tolist()) for t in made], y.tolist(), y.meta, sorted(x.__dict__)


def like_torchvision(d: str) -> object:
    x = Image(torch.arange(4.0)).to(d)
    made = [x, x * 2, x.clone(), x.detach(), x.to(torch.float64), Image([1.0, 2.0], device=d), x.cpu(), F.relu(x)]
    x.requires_grad_()
    (x * x).sum().backward()
    return [(name(t), t.tolist()) for t in made], x.grad, name(torch.stack([x, x]))


def attributes(d: str) -> object:
    found = []
    for t in (torch.ones(2, device=d), nn.Parameter(torch.ones(2, device=d)), torch.ones(2, device=d).as_subclass(Sub)):
        t.note = [1]  # type: ignore[attr-defined]
        for copied in (copy.copy(t), pickle.loads(pickle.dumps(t))):
            found.append((name(copied), copied.tolist(), copied.note, copied.note is t.note))  # type: ignore[attr-defined]
    t = torch.ones(2, device=d)
    t.note = [1]  # type: ignore[attr-defined]
    other = copy.deepcopy(t)
    p = nn.Parameter(torch.ones(2, device=d))
    p.note, p.grad = [1], torch.ones(2, device=d)  # type: ignore[attr-defined]
    q = copy.deepcopy(p)
    found += [other.note, other.note is t.note, hasattr(q, "note"), q.grad is None]  # type: ignore[attr-defined]
    file = io.BytesIO()
    torch.save(p, file)
    file.seek(0)
    q = torch.load(file, weights_only=False)
    return found, name(q), q.note  # type: ignore[attr-defined]


def parameter_subclass(d: str) -> object:
    m = nn.Linear(2, 2)
    w = m.weight = Tagged(torch.ones(2, 2), tag="t")  # type: ignore[assignment]
    w.extra = [1]  # type: ignore[attr-defined]
    optimizer = torch.optim.SGD(m.parameters(), 0.5)
    m.to(d)
    seen = [m.weight is w, isinstance(w, Tagged), w.tag, w.shout(), w.extra]  # type: ignore[attr-defined]
    (m.weight * m.weight).sum().backward()
    optimizer.step()
    there = m.weight.tolist()
    copied, same = copy.deepcopy(m).weight, copy.copy(w)
    seen += [isinstance(copied, Tagged), copied.tag, same.tag, pickle.loads(pickle.dumps(w)).tag]
    m.half()
    seen += [m.weight is w, isinstance(w, Tagged)]
    m.load_state_dict({"weight": torch.ones(2, 2), "bias": torch.ones(2)})
    m.cpu()
    return seen, there, m.weight is w, type(w) is Tagged, w.tag, w.dtype, w.tolist()


def parameter_subclass_made_there(d: str) -> object:
    p = Tagged(torch.ones(2, device=d), tag=4)
    optimizer = torch.optim.Adam([p], lr=0.1)
    (p * p).sum().backward()
    optimizer.step()
    return name(p), p.tag, p.requires_grad, p.detach(), isinstance(p, nn.Parameter)


def parameter_that_answers(d: str) -> object:
    m = nn.Linear(2, 2, bias=False)
    m.weight = Quantized(torch.ones(2, 2))
    m.to(d)
    assert hash(m.weight) == id(m.weight) and next(iter(m.parameters())) is m.weight
    return m(torch.ones(1, 2, device=d)), name(m.weight), name(m.weight * 2), m.weight * 2


def made_by_its_class(d: str) -> object:
    m = nn.Linear(3, 2).to(d)
    with torch.no_grad():
        m.weight.fill_(1.0)
    p = nn.Parameter(torch.ones(2, device=d))
    made: list[Any] = [
        type(p)(p.data * 2, requires_grad=False),
        type(m.weight)(m.weight.data),
        type(p.data)(p.data),
        nn.Parameter(p.data.cpu()),
    ]
    return [(name(t), t.requires_grad, isinstance(t, nn.Parameter), t.tolist()) for t in made]


def moved_by_its_class(d: str) -> object:
    """As accelerate's hooks do."""
    m = nn.Linear(2, 2)
    before = m.weight.tolist()
    for where in (d, "cpu", "meta", d):
        p = m.weight
        value = torch.ones(2, 2) if p.is_meta else p
        m._parameters["weight"] = type(p)(value.to(where), requires_grad=p.requires_grad, **p.__dict__)
    return m.weight.tolist(), before == m.weight.tolist(), m.weight * 2


def parameters_made_there_keep_identity(d: str) -> object:
    torch.manual_seed(0)
    m = nn.Linear(2, 2, device=d)
    w, optimizer = m.weight, torch.optim.SGD(m.parameters(), 0.5)
    m(torch.ones(1, 2, device=d)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    m.double()
    seen = [m.weight is w]
    m.cpu()
    m(torch.ones(1, 2).double()).sum().backward()
    optimizer.step()
    return seen, m.weight is w, type(w) is nn.Parameter, w.tolist()


def data_assigned(d: str) -> object:
    m = nn.Linear(2, 2, device=d)
    with torch.no_grad():
        m.weight.fill_(1.0)
    w, optimizer = m.weight, torch.optim.SGD(m.parameters(), 0.5)
    seen = []
    for where in ("cpu", d, "cpu"):
        for p in m.parameters():
            p.data = p.data.to(where)
        m(torch.ones(1, 2, device=where)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append((m.weight is w, w.device.type == torch.device(where).type, w.tolist()))
    t = torch.ones(2, device=d)
    t.note, held = 1, t  # type: ignore[attr-defined]
    t.data = torch.zeros(3)
    seen.append((str(held.device), held.tolist(), (held + 1).tolist(), held.note))  # type: ignore[attr-defined]
    t.data = torch.arange(3.0, device=d)
    return seen, held.tolist(), held * 2


def swapped(d: str) -> object:
    a, b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(3, device=d))
    a.note = 1  # type: ignore[attr-defined]
    torch.utils.swap_tensors(a, b)
    x, y = torch.ones(2, device=d), torch.zeros(3, device=d)
    torch.utils.swap_tensors(x, y)
    return a.tolist(), b.tolist(), hasattr(a, "note"), b.note, a * 2, x, y, str(b.device)  # type: ignore[attr-defined]


def mask_classes(d: str) -> object:
    """A class of torch's that takes attention's place, and is on no device."""
    q, k = torch.randn(1, 2, 3, 8).to(d), torch.randn(1, 2, 5, 8).to(d)
    return [
        F.scaled_dot_product_attention(q, k, k, attn_mask=mask)
        for mask in (causal_lower_right(3, 5), causal_upper_left(3, 5))
    ]


PROGRAMS = [
    as_subclass,
    as_subclass_in_a_graph,
    as_subclass_by_its_name,
    make_subclass,
    like_monai,
    like_torchvision,
    attributes,
    parameter_subclass,
    parameter_subclass_made_there,
    parameter_that_answers,
    made_by_its_class,
    moved_by_its_class,
    parameters_made_there_keep_identity,
    data_assigned,
    swapped,
    mask_classes,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_L7_classes_as_on_the_cpu(program: Callable[[str], Any], same_as_eager: Callable[..., None]) -> None:
    same_as_eager(program)


def test_L3_a_class_on_the_device_is_ours_and_the_programs() -> None:
    y = torch.arange(2.0).as_subclass(Sub).to(LAZY)
    assert isinstance(y, Sub) and isinstance(y, mindtorch.LazyTensor) and str(y.device) == LAZY
    ran = mindtorch.stats()["ops_executed"]
    z = torch.relu(y + 1)
    assert isinstance(z, Sub) and str(z.device) == LAZY and mindtorch.stats()["ops_executed"] == ran
    assert repr(z) == f"Sub([1., 2.], device='{LAZY}')"
    plain = torch.ones(2).as_subclass(type(y))  # what is not on the device is of the class alone
    assert type(plain) is Sub and type(plain + 1) is Sub


def test_D4_a_class_of_tensors_on_the_cpu_has_its_say_and_no_more() -> None:
    x = torch.ones(2, device=LAZY)
    with pytest.raises(RuntimeError, match="two devices"):
        x + torch.ones(2).as_subclass(Sub)
    y = x + torch.tensor(1.0).as_subclass(Sub)  # without dimensions it joins anything
    assert isinstance(y, Sub) and y.tolist() == [2.0, 2.0]


def test_L3_what_a_class_must_not_notice() -> None:
    told = []

    class Registry(torch.Tensor):
        def __init_subclass__(cls, **kwargs: Any) -> None:
            told.append(cls)

    class Kind(type(torch.Tensor)):  # type: ignore[misc]
        def hello(cls) -> str:
            return "hello"

    class WithMetaclass(torch.Tensor, metaclass=Kind):
        pass

    class WithSlots(torch.Tensor):
        __slots__ = ("mark",)

    x = torch.ones(2, device=LAZY)
    assert isinstance(x.as_subclass(Registry), Registry) and told == []
    assert type(x.as_subclass(WithMetaclass)).hello() == "hello"
    s = x.as_subclass(WithSlots)
    s.mark = 3
    assert s.mark == copy.copy(s).mark == 3 and isinstance(s + 1, WithSlots) and (s + 1).tolist() == [2.0, 2.0]


def test_L9_a_class_with_its_own_dispatch_is_refused() -> None:
    class Logging(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    with pytest.raises(mindtorch.LazyTensorError, match="__torch_dispatch__ of its own"):
        torch.ones(2, device=LAZY).as_subclass(Logging)


def test_L1_methods_are_torchs_own_in_tables_made_before_the_import() -> None:
    """A class that compares ``func`` with ``torch.Tensor.to`` as it was: also for plain tensors."""
    mindtorch.disable()
    try:
        before = {torch.Tensor.to, torch.Tensor.new_zeros}
    finally:
        mindtorch.enable()
    seen = []

    class Watching(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func in before)
            return super().__torch_function__(func, types, args, kwargs or {})

    for x in (torch.ones(2).as_subclass(Watching), torch.ones(2, device=LAZY).as_subclass(Watching)):
        seen.clear()
        assert isinstance(x.to(torch.float64), Watching) and isinstance(x.new_zeros(2), Watching)
        assert seen.count(True) >= 2


def test_M3_classes_of_tensors_without_data() -> None:
    x = mindtorch.ones(2, 3, device="meta").as_subclass(Sub)
    y = x @ x.t()
    assert isinstance(y, Sub) and isinstance(y, mindtorch.MetaTensor) and y.shape == (2, 2) and y.device.type == "meta"
    p = nn.Parameter(mindtorch.ones(2, device="meta"))
    q = type(p)(p.data, requires_grad=False)
    assert isinstance(q, nn.Parameter) and not q.requires_grad and isinstance(copy.deepcopy(p), nn.Parameter)


class Named(torch.Tensor):
    """In the manner of torch's notes on extending tensors: made by the constructor that it has from torch."""

    def __new__(cls, x: Any, title: str) -> Any:
        return super().__new__(cls, x)

    def __init__(self, x: Any, title: str) -> None:
        self.title = title


def test_L3_constructors_of_classes(same_as_eager: Callable[..., None]) -> None:
    """``S(x)`` is x under another name, in its graph, of class S; later classes have the constructor, too."""

    class Later(Sub):
        pass

    def program(d: str) -> object:
        x = torch.arange(3.0).to(d).requires_grad_()
        named = Named(x * 2, "a")
        made = Sub(x * 2), Later(x * 3), named + 1
        assert [type(t).__name__ for t in made] == ["Sub", "Later", "Named"] and isinstance(named, Named)
        assert named.title == "a" and isinstance(made[1], Sub) and made[0].device == torch.device(d)
        for t in made:
            t.sum().backward()
        shared = Sub(torch.zeros(2).to(d))
        base = torch.ones(2).to(d)
        Sub(base).add_(1)
        return [t.detach().as_subclass(torch.Tensor) for t in made], x.grad, shared.as_subclass(torch.Tensor), base

    same_as_eager(program)
    for wrong in ((torch.ones(2).to(LAZY), 3), ("text",)):
        with pytest.raises(TypeError):
            Sub(*wrong)


def test_L1_constructors_are_torchs_own_again_after_disable(after_a_step: Callable[..., Any]) -> None:
    program = """
        import torch

        class Before(torch.Tensor):
            pass

        import mindtorch

        x = torch.ones(2).to("remote_accelerator:0")
        assert isinstance(Before(x), Before)
        mindtorch.disable()
        assert type(Before(torch.ones(2))) is Before
        try:
            Before(x)
        except RuntimeError as error:
            print("already associated" in str(error))
        mindtorch.enable()
        print(isinstance(Before(x), Before))
    """
    assert after_a_step(program).stdout.split() == ["True", "True"]


def test_L7_wrappers_of_tensors_are_swapped(same_as_eager: Callable[..., None]) -> None:
    """As ``Module.to`` does with parameters whose class holds tensors."""

    def program(d: str) -> object:
        layer = nn.Linear(2, 2, bias=False, device=d)
        layer.weight = nn.Parameter(TwoTensor(torch.ones(2, 2).to(d), torch.zeros(2, 2).to(d)))
        kept = layer.weight
        layer.double()
        assert layer.weight is kept and kept.device == torch.device(d)
        a, b = (TwoTensor(torch.ones(n).to(d), torch.zeros(n).to(d)) for n in (2, 3))
        torch.utils.swap_tensors(a, b)
        assert a.device == b.device == torch.device(d)
        return kept.dtype, kept.a, kept.b, a.a, b.a

    same_as_eager(program)
    t = TwoTensor(*(torch.ones(2).to(LAZY) for _ in range(2)))
    referred = weakref.ref(t)
    with pytest.raises(RuntimeError, match="has weakref"):
        torch.utils.swap_tensors(t, TwoTensor(torch.ones(2), torch.ones(2)))
    assert referred() is t and t.device == torch.device(LAZY)
