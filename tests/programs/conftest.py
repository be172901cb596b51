"""Random programs against eager (SPEC L7): what a program of steps.py left behind, compared bit for bit.

It runs on the CPU and on the lazy device. Compared is everything either of them can see: values, sizes, strides,
versions, gradients, aliasing, values read and errors raised.
"""

from __future__ import annotations

import importlib.util
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import mindtorch  # noqa: F401 - makes the device

LAZY = "remote_accelerator:0"
Step = tuple[str, int, int, int]


def _load(name: str) -> Any:
    # Test folders are not packages: a helper module is loaded by its path.
    spec = importlib.util.spec_from_file_location(f"programs_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


steps = _load("steps")
Large = _load("large").machine(steps)


def _plain(t: Tensor) -> Tensor:
    t = t.detach().cpu()
    return t.resolve_conj().resolve_neg().contiguous()


def _grad(t: Tensor) -> Tensor | None:
    return t.grad if t.is_leaf or t.retains_grad else None


FACTS: dict[str, Callable[[Tensor], object]] = {
    "dtype": lambda t: t.dtype,
    "shape": lambda t: tuple(t.shape),
    "stride": lambda t: t.stride(),
    "offset": lambda t: t.storage_offset(),
    "requires_grad": lambda t: t.requires_grad,
    "leaf": lambda t: t.is_leaf,  # torch may refuse: a view made without gradients was written with them
    "contiguous": lambda t: t.is_contiguous(),
    "conjugate": lambda t: (t.is_conj(), t.is_neg()),
    "gradient": lambda t: _grad(t) is not None,
}


def _facts(t: Tensor) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, fact in FACTS.items():
        try:
            found[name] = fact(t)
        except RuntimeError as error:
            found[name] = type(error)
    return found


def _storage(t: Tensor) -> int:
    return t.untyped_storage()._cdata


def _same(got: Tensor, expected: Tensor) -> bool:
    if got.is_complex():
        got, expected = torch.view_as_real(got), torch.view_as_real(expected)
    if not got.is_floating_point():
        return torch.equal(got, expected)
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    return bool(((got.view(bits) == expected.view(bits)) | (got.isnan() & expected.isnan())).all())


def _compare_tensors(got: Tensor, expected: Tensor, what: str) -> None:
    g, e = _facts(got), _facts(expected)
    assert g == e, f"{what}: { ({k: (g[k], e[k]) for k in e if g[k] != e[k]}) } (lazy, eager)"
    a, b = _plain(got), _plain(expected)
    assert a.dtype == b.dtype and a.shape == b.shape, f"{what}: reads as {a.dtype} {a.shape}, eager {b.dtype} {b.shape}"
    assert _same(a, b), f"{what}: {a.tolist()}, eager {b.tolist()}" if a.numel() < 100 else f"{what}: other values"
    if e["gradient"] is True:
        grads = _grad(got), _grad(expected)
        assert grads[0] is not None and grads[1] is not None
        _compare_tensors(grads[0], grads[1], f"gradient of {what}")


def _compare_logs(got: list[object], expected: list[object]) -> Iterator[str]:
    for g, e in zip(got, expected):
        if isinstance(g, tuple) or isinstance(e, tuple):
            (gs, gx), (es, ex) = [(x if isinstance(x, tuple) and len(x) == 2 else ("read", x)) for x in (g, e)]
            if gs != es or not isinstance(gx, type(ex)):
                yield f"{es}: {type(gx).__name__} {gx}, eager {type(ex).__name__} {ex}"
                return
        elif repr(g) != repr(e):
            yield f"read {g}, eager {e}"
            return
    if len(got) != len(expected):
        yield f"{len(got)} log entries, eager {len(expected)}"


def run_both(program: list[Step], machine: Any = steps.Machine, memory: bool = True) -> None:
    """Run a program lazily and eagerly; AssertionError says what differs. memory: compare which tensors share it, which
    cannot be seen of values elsewhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # resized out=, .grad of a non-leaf, complex to real: torch warns, both ways
        torch.manual_seed(0)
        eager = machine("cpu").run(program)
        torch.manual_seed(0)
        lazy = machine(LAZY).run(program)
        compare(lazy, eager, memory)


def compare(lazy: Any, eager: Any, memory: bool = True) -> None:
    """AssertionError says what differs in two machines that have run. memory: do addresses say what shares storage?"""
    for difference in _compare_logs(lazy.log, eager.log):
        raise AssertionError(difference)
    assert len(lazy.tensors) == len(eager.tensors)
    pairs = list(zip(lazy.tensors, eager.tensors))
    for k, (got, expected) in enumerate(pairs):
        _compare_tensors(got, expected, f"tensor {k}")
        writes = [t._version - m.versions[id(t)] for t, m in ((got, lazy), (expected, eager))]
        assert writes[0] == writes[1], f"tensor {k}: written {writes[0]} times, eager {writes[1]}"
    for k, (got, expected) in enumerate(pairs if memory else ()):
        for n, (got2, expected2) in enumerate(pairs[:k]):
            shared = _storage(got.detach()) == _storage(got2.detach())
            assert shared == (_storage(expected) == _storage(expected2)), f"tensors {n} and {k}: shared={shared}"


def never_succeed() -> list[str]:
    """Kinds of steps that raise whatever they are given, on either device."""
    start = [("leaf", 0, 0, 0), ("scaled", 2, 0, 0), ("full", 0, 7, 2), ("full", 6, 6, 2), ("full", 2, 6, 0)]
    start += [("arange", 4, 0, 0), ("full", 1, 6, 2)]
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in steps.STEPS:
            before = [] if kind != "view_dtype" else [("no_gradients", 0, 0, 0)]
            for device in ("cpu", LAZY):
                tries = ([*before, *start, (kind, a, b, c)] for a in range(9) for b in range(9) for c in (0, 1, 8))
                if not any(_clean(steps.Machine(device).run(program)) for program in tries):
                    found.append(f"{kind} on {device}")
    return found


def never_succeed_on_large_tensors() -> list[str]:
    """The same of the steps that only large tensors have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tries = [(a, b, c) for a in range(2) for b in range(2) for c in range(2)]
        return [
            f"{kind} on {device}"
            for kind in Large.steps.keys() - steps.STEPS.keys()
            for device in ("cpu", LAZY)
            if not any(_clean(Large(device).run([("relaid", 0, 1, 0), (kind, a, b, c)])) for a, b, c in tries)
        ]


def _clean(machine: Any) -> bool:
    return not any(isinstance(entry, tuple) for entry in machine.log)


@pytest.fixture(scope="session")
def programs() -> types.SimpleNamespace:
    """The language of random programs and its comparison with eager."""
    kinds = tuple(kind for kind in steps.STEPS if kind != "no_gradients")
    return types.SimpleNamespace(
        kinds=kinds,
        run_both=run_both,
        compare=compare,
        machine=steps.Machine,
        large=Large,
        never_succeed=never_succeed,
        never_succeed_on_large_tensors=never_succeed_on_large_tensors,
    )
