"""L12: classes of modules that have a `__call__` of their own, as gpytorch's: what it calls need not be torch's."""

import types

import pytest
import torch

from mindtorch._ext import context


class Direct(torch.nn.Module):
    """Never comes to torch's own."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def __call__(self, x):
        return self.forward(x)

    def forward(self, x):
        return self.inner(x) * 2


class Further(Direct):
    """Comes to the one that it derives from, twice."""

    def __call__(self, x):
        return super().__call__(x) + super().__call__(x)


class Through(torch.nn.Module):
    """Comes to torch's own after something."""

    def __init__(self):
        super().__init__()
        self.inner = Direct()

    def __call__(self, x, *, scale=1.0):
        return super().__call__(x.mul(scale))

    def forward(self, x):
        return self.inner(x).exp()


class Mixin:
    def __call__(self, x):
        return self.forward(x)


class Mixed(Mixin, torch.nn.Module):
    def forward(self, x):
        return x * 2


class Again(torch.nn.Module):
    """Calls itself."""

    def __call__(self, x, depth=1):
        return super().__call__(x, depth)

    def forward(self, x, depth):
        return self(x, depth - 1).exp() if depth else x * 2


@pytest.mark.parametrize(
    ("model", "name", "expected"),
    [
        (Direct, "mul", ["Direct"]),
        (Direct, "addmm", ["Direct.inner"]),
        (Further, "mul", ["Further"] * 2),
        (Further, "add", ["Further"]),
        (Through, "exp", ["Through"]),
        (Through, "mul", ["Through", "Through.inner"]),
        (Through, "addmm", ["Through.inner.inner"]),
        (Mixed, "mul", ["Mixed"]),
        (Again, "exp", ["Again"]),
        (Again, "mul", ["Again.(Again)"]),  # as of a module that has torch's
    ],
)
def test_L12_ops_belong_to_the_module_whose_own_call_ran_them(tracked, Seen, model, name, expected):
    """gpytorch: 95 % of the time was outside any module."""
    with Seen() as seen, torch.no_grad():
        model()(torch.ones(3, 4))
    assert seen.paths(name, phase="forward") == expected
    assert context.get_module() == 0


def test_L12_classes_made_later_and_their_backward_are_known_too(tracked, Seen):
    class Later(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Direct()

        def __call__(self, x):
            return self.part(x).exp()

    loss = Later()(torch.ones(3, 4, requires_grad=True)).sum()
    with Seen() as seen:
        loss.backward()
    assert seen.paths("mul", phase="backward") == ["Later", "Later.part"]


def test_L12_an_own_call_that_fails_leaves_the_path_as_it_was(tracked, Seen):
    class Fails(Through):
        def forward(self, x):
            raise KeyError("x")

    with pytest.raises(KeyError) as caught:
        Fails()(torch.ones(3, 4))
    names = [entry.name for entry in caught.traceback]
    assert "Fails" not in names and context.get_module() == 0
    with Seen() as seen:
        Direct()(torch.ones(3, 4))
    assert seen.paths("mul") == ["Direct"]


def test_L12_an_own_call_stays_what_it_is_to_who_looks(tracked):
    assert isinstance(Direct.__call__, types.FunctionType) and Direct.__call__.__wrapped__.__qualname__ == (
        "Direct.__call__"
    )
    with pytest.raises(TypeError, match=r"Direct.__call__\(\) missing 1 required positional argument: 'x'"):
        Direct()()
    with pytest.raises(TypeError, match="missing 2 required positional arguments: 'self' and 'x'"):
        Through.__call__()
    assert Mixin.__call__(types.SimpleNamespace(forward=lambda x: x + 1), 1) == 2  # no module
    with pytest.raises(TypeError, match="takes no keyword arguments"):
        type("Odd", (torch.nn.Module,), {}, option=1)


def test_L12_an_own_call_is_compiled_as_before(tracked):
    model, x = Through(), torch.ones(3, 4)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), model(x))


def test_L12_classes_have_their_own_calls_back_afterwards(after_torch):
    program = """
import torch
from mindtorch.engine import semantics

class Mixin:
    def __call__(self, x):
        return x

class A(torch.nn.Module):
    def __call__(self, x):
        return x

class B(Mixin, A):
    pass

class C(torch.nn.Module):
    __call__ = len

before = A.__call__, Mixin.__call__, C.__call__
semantics.install()
assert A.__call__ is not before[0] and Mixin.__call__ is not before[1] and C.__call__ is len

class D(A):
    def __call__(self, x):
        return x
    own = __call__

class E(A):
    def __call__(self, x):
        return x

E.__call__ = before[0]
assert D.__call__ is not D.own
semantics.uninstall()
assert (A.__call__, Mixin.__call__, C.__call__) == before and D.__call__ is D.own and E.__call__ is before[0]
assert "__init_subclass__" not in vars(torch.nn.Module)
"""
    after_torch(program)
