"""safetensors files loaded onto the device (SPEC L2)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mindtorch

LAZY = "remote_accelerator:0"


def test_L2_safetensors_are_loaded_onto_the_device(tmp_path: Path, same_bits: Callable[..., None]) -> None:
    """In a process that loads safetensors after mindtorch, or before: the class is asked in both."""
    files = pytest.importorskip("safetensors.torch")
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(2, dtype=torch.int8)}
    path = str(tmp_path / "tensors.safetensors")
    files.save_file(tensors, path)
    for device in (LAZY, mindtorch.device(LAZY)):
        loaded = files.load_file(path, device=device)
        with files.safe_open(path, framework="pt", device=device) as opened:
            assert sorted(opened.keys()) == ["a", "b"] and opened.get_slice("a").get_shape() == [2, 3]
            loaded["part"] = opened.get_slice("a")[:, 1:]
        for name, expected in {**tensors, "part": tensors["a"][:, 1:]}.items():
            assert str(loaded[name].device) == LAZY
            same_bits(loaded[name], expected)
    with pytest.raises(Exception, match="device foo:0 is invalid"):
        files.load_file(path, device="foo:0")


@pytest.mark.parametrize("first", ["mindtorch", "safetensors.torch"])
def test_L2_safetensors_are_loaded_whoever_is_imported_first(
    first: str, tmp_path: Path, after_torch: Callable[..., Any]
) -> None:
    files = pytest.importorskip("safetensors.torch")
    path = str(tmp_path / "tensors.safetensors")
    files.save_file({"a": torch.arange(3.0)}, path)
    after_torch(f"""
        import torch, sys
        import {first}
        assert ("safetensors" in sys.modules) == ({first!r} != "mindtorch")
        import mindtorch
        from safetensors.torch import load_file
        assert load_file({path!r}, device={LAZY!r})["a"].tolist() == [0.0, 1.0, 2.0]
        assert str(load_file({path!r}, device={LAZY!r})["a"].device) == {LAZY!r}
    """)
