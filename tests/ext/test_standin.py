"""C4, C8: functions that a profile or an estimate stands in for are found in every module, under any name."""

from __future__ import annotations

import os
import sys
import types

import pytest

from mindtorch._ext.standin import holders


class Hostile:
    """Raises as soon as anybody compares it, hashes it or asks for an attribute."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(f"asked for {name}")

    __eq__ = __hash__ = __bool__ = None  # type: ignore[assignment]


def test_C4_modules_that_hold_a_function_are_found_under_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def ours() -> None: ...

    def instead() -> None: ...

    module = types.ModuleType("holds")
    vars(module).update(rm=os.remove, ours=ours, again=ours, other=os.rmdir, hostile=Hostile(), unhashable=[ours])
    monkeypatch.setitem(sys.modules, "holds", module)
    monkeypatch.setitem(sys.modules, "no_module", Hostile())  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "nothing", None)  # type: ignore[arg-type]
    found = holders({os.remove: "removes", ours: instead}, ())
    assert [each for each in found if each[0] is module] == [
        (module, "rm", "removes"), (module, "ours", instead), (module, "again", instead),
    ]  # fmt: skip
    assert (os, "remove", "removes") in found
    assert not [each for each in holders({os.remove: "removes", ours: instead}, ("holds",)) if each[0] is module]
    assert module.rm is os.remove  # nothing is exchanged yet
