"""L12: module path exact on every op, forward and backward, and torch restored afterwards."""

import gc
import threading
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mindtorch._ext import context
from mindtorch.engine.semantics import modules, owners


class Block(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.up = torch.nn.Linear(d, 2 * d)
        self.act = torch.nn.GELU()
        self.down = torch.nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


class Net(torch.nn.Module):
    def __init__(self, d=4, n=2):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(d) for _ in range(n))
        self.head = torch.nn.Linear(d, d, bias=False)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x) * 2


LINEAR = ["Net.blocks.0.up", "Net.blocks.0.down", "Net.blocks.1.up", "Net.blocks.1.down"]


def test_L12_forward_paths(tracked, Seen):
    with Seen() as seen, torch.no_grad():
        Net()(torch.ones(3, 4))
    assert seen.paths("addmm") == LINEAR
    assert seen.paths("gelu") == ["Net.blocks.0.act", "Net.blocks.1.act"]
    assert seen.paths("add") == ["Net.blocks.0", "Net.blocks.1"]
    assert seen.paths("mm") == ["Net.head"]
    assert seen.paths("mul") == ["Net"]
    assert context.get_module() == 0


def test_L12_backward_paths_are_those_of_the_forward_op(tracked, Seen):
    net = Net()
    loss = net(torch.ones(3, 4)).sum()
    with Seen() as seen:
        loss.backward()
    assert seen.paths("gelu_backward") == ["Net.blocks.1.act", "Net.blocks.0.act"]
    assert seen.paths("mul") == ["Net"]
    # Two products per linear layer (one for the first: its input needs no gradient).
    assert seen.paths("mm") == ["Net.head"] * 2 + [p for p in reversed(LINEAR) for _ in range(2)][:-1]
    # The gradient of the loss itself is made before the engine starts; summing was done outside the model.
    assert seen.ops[0] == ("ones_like", "", "forward")
    assert {ph for _, _, ph in seen.ops[1:]} == {"backward"}
    assert [op for op, path, _ in seen.ops if path == ""] == ["ones_like", "expand"]


def test_L12_gradient_accumulation_belongs_to_the_parameters_owner(tracked, Seen):
    net = Net()
    for _ in range(2):
        with Seen() as seen:
            net(torch.ones(3, 4)).sum().backward()
    added = seen.paths("add_", phase="backward")
    assert sorted(added) == sorted([p for p in LINEAR for _ in range(2)] + ["Net.head"])


def test_L12_parameters_of_a_new_model_are_known_after_many_leaves_without_owner(tracked, Seen):
    with Seen():
        for _ in range(5):
            torch.ones(3, requires_grad=True).sum().backward()
    net = Net()
    loss = net(torch.ones(3, 4)).sum()
    with Seen() as seen:
        loss.backward()
    assert sorted(seen.paths("detach")) == sorted([*LINEAR, *LINEAR, "Net.head"])  # weights and biases


def test_L12_checkpoint_recompute_keeps_path_and_is_backward(tracked, Seen):
    class Checkpointed(Net):
        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
            return self.head(x)

    for reentrant in (False, True):
        net = Checkpointed()
        net.reentrant = reentrant
        with Seen() as seen:
            net(torch.ones(3, 4, requires_grad=True)).sum().backward()
        expected = [p.replace("Net", "Checkpointed") for p in LINEAR]
        assert seen.paths("addmm", phase="forward") == expected
        # Without reentrancy the recomputation stops as soon as it has what backward needs: before "down".
        again = expected if reentrant else [p for p in expected if p.endswith("up")]
        assert sorted(seen.paths("addmm", phase="backward")) == sorted(again)
        assert seen.paths("gelu_backward") == ["Checkpointed.blocks.1.act", "Checkpointed.blocks.0.act"]


def test_L12_tied_module_is_named_by_its_caller(tracked, Seen):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False))
            self.b = torch.nn.Sequential(self.a[0])

        def forward(self, x):
            return self.b(self.a(x))

    with Seen() as seen, torch.no_grad():
        Tied()(torch.ones(1, 2))
    assert seen.paths("mm") == ["Tied.a.0", "Tied.b.0"]


def test_L12_module_held_further_out_and_module_held_by_nobody(tracked, Seen):
    class Inner(torch.nn.Module):
        def forward(self, x, head):
            return torch.nn.ReLU()(head(x))

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.deep = torch.nn.ModuleDict({"x": torch.nn.ModuleList([torch.nn.Linear(2, 2, bias=False)])})
            self.inner = Inner()

        def forward(self, x):
            return self.inner(x, self.deep["x"][0])

    with Seen() as seen, torch.no_grad():
        Outer()(torch.ones(1, 2))
    assert seen.paths("mm") == ["Outer.deep.x.0"]
    assert seen.paths("relu") == ["Outer.inner.(ReLU)"]


def test_L12_moved_modules_are_renamed(tracked, Seen):
    net = Net(n=3)
    x = torch.ones(3, 4)
    with torch.no_grad():
        net(x)
        keep = net.blocks[2]
        del net.blocks[1]
        with Seen() as seen:
            net(x)
        assert net.blocks[1] is keep
        assert seen.paths("gelu") == ["Net.blocks.0.act", "Net.blocks.1.act"]
        net.blocks[0], net.blocks[1] = net.blocks[1], net.blocks[0]
        with Seen() as seen:
            keep(x), net(x)
    assert seen.paths("gelu") == ["Net.blocks.0.act", "Net.blocks.0.act", "Net.blocks.1.act"]


def test_L12_a_model_may_call_something_else_named_modules(tracked, Seen):
    class Model(nn.Module):
        named_modules = None

        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleDict({"first": nn.ModuleList([nn.Linear(2, 2)])})

        def forward(self, x):
            return self.blocks["first"][0](x)

    with Seen() as seen:
        Model()(torch.ones(1, 2))
    assert seen.paths("addmm") == ["Model.blocks.first.0"]


def test_L12_recycled_ids_do_not_mislabel(tracked):
    """Modules die and others take their addresses: every path must be that of the module alive now."""
    x = torch.ones(1, 2)
    for i in range(300):
        layers = {f"n{(i * 7 + j) % 5}": torch.nn.Identity() for j in range(3)}
        holder = torch.nn.ModuleDict(layers)

        class Holder(torch.nn.Module):
            def __init__(self, d):
                super().__init__()
                self.d = d

            def forward(self, x):
                return [
                    context.get_module()
                    for child in self.d.values()
                    if child.register_forward_pre_hook(note) and child(x) is not None
                ]

        noted: list[str] = []

        def note(module, args, noted=noted):
            noted.append(context.module_path(context.get_module()))

        Holder(holder)(x)
        assert noted == [f"Holder.d.{name}" for name in layers]
        del holder, layers
        if i % 50 == 0:
            gc.collect()


def test_L12_exceptions_and_reentrancy_leave_the_stack_right(tracked):
    class Bad(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Net()

        def forward(self, x, depth):
            if depth == 0:
                self.inner(x.unsqueeze(0).unsqueeze(0)[..., :1])  # wrong width: raises three modules deep
            return self(x, depth - 1)

    bad = Bad()
    for _ in range(3):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            bad(torch.ones(3, 4), 40)
        assert (context.get_module(), context.get_phase()) == (0, 0)
    with pytest.raises(TypeError):
        torch.nn.Module.__call__()


def test_L12_generator_forward(tracked, Seen):
    class Gen(torch.nn.Module):
        def forward(self, x):
            yield x + 1
            yield x + 2

    class User(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gen = Gen()

        def forward(self, x):
            return sum(self.gen(x))

    with Seen() as seen, torch.no_grad():
        User()(torch.ones(1))
    assert set(seen.paths("add")) == {"User"}
    assert context.get_module() == 0


def test_L12_threads_have_their_own_path(tracked):
    barrier = threading.Barrier(4)
    seen: dict[int, set] = {}

    class Waits(torch.nn.Module):
        def forward(self, i):
            mine = set()
            for _ in range(200):
                barrier.wait()
                mine.add(context.module_path(context.get_module()))
            seen[i] = mine

    kinds = [type(f"Waits{i}", (Waits,), {})() for i in range(4)]
    threads = [threading.Thread(target=kinds[i], args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert seen == {i: {f"Waits{i}"} for i in range(4)}


def test_L12_forward_in_another_thread_backward_here(tracked, Seen):
    net, out = Net(), []
    thread = threading.Thread(target=lambda: out.append(net(torch.ones(3, 4)).sum()))
    thread.start()
    thread.join()
    with Seen() as seen:
        out[0].backward()
    assert {ph for _, _, ph in seen.ops[1:]} == {"backward"}


def test_L12_install_is_counted_and_restores_torch(after_torch):
    # In a process of its own: here an earlier test may have made a lazy tensor, which keeps the tracking installed.
    program = """
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks
from mindtorch.engine import semantics

def state():
    return (torch.nn.Module.__call__, torch.autograd._engine_run_backward,
            torch.autograd.graph._engine_run_backward, len(hooks))

before = state()
semantics.install()
semantics.install()
replacement = torch.nn.Module.__call__
assert replacement is not before[0]
semantics.uninstall()
assert semantics.is_installed() and torch.nn.Module.__call__ is replacement
semantics.uninstall()
semantics.uninstall()
assert state() == before and not semantics.is_installed()
"""
    after_torch(program)


def test_L12_log_is_bounded_without_gradients(tracked):
    net, x = Net(), torch.ones(3, 4)
    with torch.no_grad():
        net(x)
        before = context.log_entries()
        for _ in range(50):
            net(x)
    assert context.log_entries() <= before + 2


def test_L12_log_is_bounded_with_gradients(tracked):
    class Doubles(torch.nn.Module):
        def forward(self, x):
            return x * 2

    module, x = Doubles(), torch.ones(1, requires_grad=True)
    before = context.log_entries()
    for _ in range(1000):
        module(x)
    each = (context.log_entries() - before) // 1000
    for _ in range(2**18 // each):  # of which 2**18 are kept, and the older half is forgotten
        module(x)
    held, entries = context.table_bytes(), context.log_entries()
    assert 2**17 <= entries < 2**18
    for _ in range(20_000):
        module(x)
    assert context.log_entries() == entries + 20_000 * each
    assert context.table_bytes() == held


def test_C4_what_a_module_holds_in_torchs_order():
    inner = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    model = torch.nn.ModuleDict({"a": torch.nn.Sequential(inner, torch.nn.Linear(2, 2)), "b": inner})
    model["tied"] = torch.nn.Linear(2, 2)
    model["tied"].weight = inner[0].weight
    model.register_buffer("last", torch.ones(1))
    model.register_module("none", None)
    parameters, buffers = owners.held(model)
    assert list(map(id, parameters)) == list(map(id, model.parameters()))
    assert list(map(id, buffers)) == list(map(id, model.buffers()))
    assert list(owners.named_modules(model)) == list(model.named_modules())
    assert [(name, id(t)) for name, t in owners.named_tensors(model)] == [
        (name, id(t)) for name, t in (*model.named_parameters(), *model.named_buffers())
    ]
    assert owners.first_parameter(model) is next(model.parameters())
    assert owners.first_parameter(torch.nn.ReLU()) is None


def test_L12_a_module_that_is_called_again_is_found_near_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = nn.Linear(2, 2)
    middle = nn.Sequential(OrderedDict(b=inner))
    root = nn.Sequential(OrderedDict(a=middle, c=nn.Sequential(OrderedDict(b=inner, d=nn.ReLU())), b=nn.Tanh()))
    top, other = (context.intern_path(0, name, name) for name in ("Recomputed", "RecomputedToo"))
    at_a, at_c = (context.intern_path(top, name, "Sequential") for name in "ac")
    at_b, at_cb = (context.intern_path(parent, "b", "Linear") for parent in (at_a, at_c))
    gone = context.intern_path(context.intern_path(top, "gone", "Sequential"), "b", "Linear")
    monkeypatch.setattr(modules, "roots", lambda: [(nn.ReLU(), other), (root, top)])
    find = modules.recomputed_path
    assert [find(inner, near) for near in (at_b, at_cb, at_a, at_c, top, gone)] == [
        at_b, at_cb, at_b, at_cb, at_b, at_b,
    ]  # fmt: skip
    assert [find(middle, near) for near in (at_b, at_cb, at_a, top, gone)] == [at_a] * 5
    assert [find(root, near) for near in (at_b, at_cb, top)] == [top] * 3
    assert context.path_name(find(root.c.d, at_a)) == "d" and context.path_parent(find(root.c.d, at_a)) == at_c
    assert context.path_parent(find(root.b, gone)) == top  # not where another of its name was
    assert find(nn.Linear(2, 2), at_b) == 0 and find(inner, other) == 0
