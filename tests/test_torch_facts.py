"""What mindtorch relies on inside torch stands in one table, and a release that renames it is a slower one (L1).

``facts/without.py`` renames; continuous integration takes every eighteenth name (``--torch-facts full``: each).
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mindtorch
from mindtorch.base import slower_ways, torch_facts
from mindtorch.base.torch_names import FACTS, RELEASES
from mindtorch.base.words import counted

ROOT = Path(__file__).resolve().parent.parent
WITHOUT = Path(__file__).parent / "facts" / "without.py"
NAMES = [fact.name for fact in FACTS]
#: What nothing else in torch can do: the program is told so in one sentence.
REFUSED = {
    "torch._C._swap_tensor_impl": "moving parameters to another device: expected a torch release that mindtorch knows"
}

#: What else is lost with a name, once tensors are recorded.
ALSO = {"torch._C._set_neg": ["the layout of tensors"]}


def test_L1_the_installed_torch_lacks_nothing() -> None:
    assert torch_facts.is_tested(), f"not one of {RELEASES}: run the whole suite, then add it"
    assert torch_facts.lost == {} == mindtorch.stats()["torch_lost"]


@pytest.mark.parametrize("fact", FACTS, ids=NAMES)
def test_L1_what_is_proved_of_a_name_holds(fact: Any) -> None:
    owner, name = torch_facts._owner(fact.name)
    assert fact.proves(getattr(owner, name))
    assert slower_ways.way(fact.way) is not None
    assert NAMES.count(fact.name) == 1


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "sweep" in metafunc.fixturenames:
        full = metafunc.config.getoption("--torch-facts") == "full"
        metafunc.parametrize("sweep", [tuple(NAMES) if full else tuple(NAMES[::18])], ids=["names"], scope="module")


@pytest.fixture(scope="module")
def seen(
    sweep: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory, forked_after_torch: Callable[..., Any]
) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("facts") / "seen.json"
    command = [str(WITHOUT), str(path), "-", *sweep]
    done = forked_after_torch(*command, environment={**os.environ, "GENIE_ACL_LIBRARY": ""}, timeout=1500)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def ops(profile: dict[str, Any]) -> dict[str, int]:
    return {name: calls for name, calls in profile["calls"].items() if name != "(python)"}


def test_L1_a_torch_that_renamed_a_name_is_slower_and_right(seen: dict[str, Any], sweep: tuple[str, ...]) -> None:
    wrong = {}
    for name in sweep:
        record, profile, devices = (seen[name][step] for step in ("record", "profile", "devices"))
        if name in REFUSED:
            right = REFUSED[name] in record.get("failed", "")
        else:
            right = bool(record.get("same") and record["recorded"] and name in record["lost"])
        right = right and "failed" not in profile and ops(profile) == ops(seen["-"]["profile"])
        right = right and profile["flops"] == seen["-"]["profile"]["flops"]
        lost = [name, *ALSO.get(name, ())]
        right = right and any(f"torch 2.99.0 lacks {counted(len(lost), 'name')}" in s for s in profile["warnings"])
        right = right and "failed" not in devices and list(devices["lost"]) == [name] and "slower:" in devices["text"]
        if not right:
            wrong[name] = seen[name]
    assert not wrong
    assert seen["-"]["record"]["same"] and not seen["-"]["record"]["lost"] and not seen["-"]["devices"]["lost"]


def test_L1_without_lazy_negation_tensors_are_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import failed: the proof of how tensors are laid out called what refuses in that name's place."""
    monkeypatch.setattr(torch_facts, "lost", {"torch._C._set_neg": "no lazy negation of recorded tensors"})
    monkeypatch.setattr(torch._C, "_set_neg", slower_ways.way("refuse lazy negation"))
    assert not torch_facts.tensors_laid_out()


def test_L1_a_name_that_is_something_else_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)("2.99.0"))
    monkeypatch.setattr(torch._C, "_len_torch_function_stack", lambda: None)
    monkeypatch.setattr(torch_facts, "_checked", False)
    monkeypatch.setattr(torch_facts, "lost", {})
    torch_facts.check()
    assert list(torch_facts.lost) == ["torch._C._len_torch_function_stack"]
    assert "torch 2.99.0 lacks 1 name" in torch_facts.summary()


@pytest.mark.parametrize(
    "version, release", [("2.13.0+cpu", "2.13"), ("2.15.1", "2.15"), ("2.16.0a0+git1", "2.16.0a0")]
)
def test_L1_a_release_is_known_by_its_version(version: str, release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert torch_facts.release() == release
    assert torch_facts.is_tested() == (release in RELEASES)


KEYS = {
    "_dispatch_has_kernel": (),
    "has_kernel_for": ("CPU", "CUDA", "CompositeImplicitAutograd"),
    "has_computed_kernel_for": ("CPU", "CUDA"),
}


@pytest.mark.parametrize("name", KEYS)
def test_L1_the_slower_way_finds_the_same_kernels(name: str) -> None:
    names = [s.name + ("." + s.overload_name if s.overload_name else "") for s in torch._C._jit_get_all_schemas()]
    wrong = []
    for op in [n for n in names if n.startswith("aten::")][::17]:
        if name == "_dispatch_has_kernel":
            pairs = [(slower_ways.has_kernel(op), torch._C._dispatch_has_kernel(op))]
        else:
            theirs = getattr(torch._C, f"_dispatch_{name}_dispatch_key")
            ours = getattr(slower_ways, name)
            known = torch._C._dispatch_has_kernel(op)
            pairs = [(ours(op, k), theirs(op, k)) for k in KEYS[name] if known]
        wrong += [op for ours, theirs in pairs if ours != theirs]
    assert not wrong


# ---- nothing else asks which release it is ---------------------------------------------------------------------------
#: Where a version is shown, or sent to a peer, rather than asked.
SHOWN = {
    "mindtorch/profile/report/build.py", "mindtorch/engine/remote/hello.py", "mindtorch/npu/compat/top.py",
    "mindtorch/engine/cache/content_names.py",
}  # fmt: skip


def test_L1_only_the_facts_ask_which_release_it_is() -> None:
    found = []
    for path in [*(ROOT / "mindtorch").rglob("*.py"), *(ROOT / "cli").glob("*.py")]:
        place = str(path.relative_to(ROOT))
        if place in SHOWN or place.startswith("mindtorch/base/"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.__version__", "torch.version"):
                found.append(f"{place}:{node.lineno}")
    assert found == []
