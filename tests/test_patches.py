"""What is exchanged in torch: one list, one way there and back, one page (docs/PATCHES.md)."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mindtorch._ext.hooks import NameHook
from mindtorch.base import patching
from mindtorch.base.patching import Patches, existing, replaced

ROOT = Path(__file__).resolve().parent.parent


class Owner:
    own = 1


class Derived(Owner):
    pass


def test_L1_what_was_exchanged_is_as_it_was_afterwards() -> None:
    table, several = {"a": 1}, ["last"]
    before = vars(Owner).copy(), vars(Derived).copy()
    with replaced([(Owner, "own", 2), (Owner, "own", 3), (Derived, "own", 4), (table, "a", 2), (table, "b", 3),
                   (several, 0, "first")]):  # fmt: skip
        assert (Owner.own, Derived.own, table, several) == (3, 4, {"a": 2, "b": 3}, ["first", "last"])
    assert (vars(Owner).copy(), vars(Derived).copy()) == before
    assert (table, several) == ({"a": 1}, ["last"])


def test_L1_what_cannot_be_exchanged_leaves_nothing_behind() -> None:
    with pytest.raises(TypeError), replaced([(Owner, "own", 2), (int, "bit_count", None)]):
        pass
    with (
        pytest.raises(TypeError, match="takes keywords"),
        replaced([(Owner, "own", 2), (Owner, "own", NameHook("cpu"))]),
    ):
        pass
    assert Owner.own == 1


def test_L12_what_somebody_else_has_replaced_stays_where_that_is_asked_for() -> None:
    for yields, after in ((True, "theirs"), (False, 1)):
        owner = types.SimpleNamespace(name=1)
        held = Patches(yields)
        held.put([(owner, "name", "ours")])
        owner.name = "theirs"
        held.undo()
        assert owner.name == after


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_L12_those_that_yield_are_taken_back_in_any_order(order: tuple[int, ...]) -> None:
    """As of profiles that begin within each other: at last, what was there before any of them is there."""
    owner = types.SimpleNamespace(name="before")
    held = [Patches(yields=True) for _ in range(3)]
    for i, patches in enumerate(held):
        patches.put([(owner, "name", f"patch {i}")])
    left = {0, 1, 2}
    for i in order:
        held[i].undo()
        left.discard(i)
        assert owner.name == (f"patch {max(left)}" if left and max(left) > i else owner.name)
    assert owner.name == "before" and (id(owner), "name") not in patching._covered


def test_L1_one_of_several_stays() -> None:
    owner, calls = types.SimpleNamespace(), []
    held = Patches()
    held.put([(owner, "a", 1), (owner, "b", 2)])
    held.after(calls.append, "undone")
    held.keep(owner, "a")
    held.keep(owner, "c")
    assert (owner, "b") in held and (owner, "c") not in held and (owner, "a") not in held
    held.undo()
    held.undo()
    assert vars(owner) == {"a": 1} and calls == ["undone"] and (owner, "b") not in held


def test_layout_names_that_torch_does_not_have_are_left_out() -> None:
    assert list(existing(Derived, {"own": 2, "gone": 3})) == [(Derived, "own", 2)]


# ---- the page --------------------------------------------------------------------------------------------------------
def make_patches() -> Any:
    spec = importlib.util.spec_from_file_location("make_patches", ROOT / "docs" / "make_patches.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page(forked: Callable[..., Any]) -> str:
    """docs/PATCHES.md, made anew with this torch."""
    made = make_patches()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(made.subprocess, "run", lambda command, **options: forked(*command[1:]))
        return str(made.page())


def test_layout_the_page_lists_what_is_exchanged(page: str) -> None:
    kept = make_patches().PAGE.read_text(encoding="utf-8")
    if f"with torch {torch.__version__}:" not in kept:
        pytest.skip(f"the page was made with another build of torch than {torch.__version__}")
    assert kept == page, "python docs/make_patches.py"


WATCHED = """
    import sys
    import torch, torch.fx, torch.export, torch.nested, torch.distributed, torch.distributed.fsdp, torch.func
    import torch.nn.attention.flex_attention, torch.fx.experimental.proxy_tensor, torch._dynamo

    def kept(value):
        return callable(value) or hasattr(type(value), "__get__")

    owners = {name: module for name, module in list(sys.modules.items()) if name.split(".")[0] == "torch"}
    for module in [*owners.values()]:
        for value in [*vars(module).values()]:
            if isinstance(value, type) and str(value.__module__).split(".")[0] == "torch":
                owners.setdefault(f"{value.__module__}.{value.__qualname__}", value)

    def names():
        return {(o, n): v for o, owner in owners.items() for n, v in [*vars(owner).items()] if kept(v)}

    before = names()
    import mindtorch
    mindtorch.enable()
    net = torch.nn.Linear(2, 2).to("remote_accelerator")
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    torch.func.vmap(net)(torch.ones(2, 2, device="remote_accelerator")).sum().backward()
    optimizer.step()
    for (owner, name), value in names().items():
        if (owner, name) in before and before[owner, name] is not value:
            print(owner, name)
"""


def test_L1_nothing_in_torch_is_exchanged_but_what_the_page_lists(after_torch: Callable[..., Any], page: str) -> None:
    """Functions, classes and descriptors of all torch's modules and classes, before the import and after a step."""
    listed = {
        (owner, name)
        for line in page.splitlines() if line.startswith("| `")
        for owner, names in [line.split(" | ")[:2]]
        for owner in [owner.strip("| `")] for name in names.replace("`", "").split(", ")
    }  # fmt: skip
    found = {tuple(line.split()) for line in after_torch(WATCHED).stdout.splitlines()}
    assert len(found) > 40
    elsewhere = {("torch._library.simple_registry", "find_torch_dispatch_rule")}
    elsewhere |= {pair for pair in found if pair[1] in ("step", "__call__", "unpatched_nn_module_call")}
    # Torch makes these enumerations' methods anew when it registers a device.
    elsewhere |= {pair for pair in found if pair[0].endswith(("._autograd.DeviceType", "._profiler.ProfilerActivity"))}
    assert found - listed - elsewhere == set()


def test_layout_torch_is_exchanged_by_patches_alone() -> None:
    """No assignment to an attribute of torch's, but where a name that a release lacks gets its slower way."""
    found = []
    for path in sorted((ROOT / "mindtorch").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            targets = node.targets if isinstance(node, ast.Assign) else []
            written = [ast.unparse(each) for each in targets if isinstance(each, ast.Attribute)]
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
                written = [ast.unparse(node.args[0])]
            found += [f"{path.relative_to(ROOT)}: {name}" for name in written if name.split(".")[0] == "torch"]
    assert found == ["mindtorch/devices/names.py: torch._GLOBAL_DEVICE_CONTEXT.device_context"]
