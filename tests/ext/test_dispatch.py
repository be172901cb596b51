"""SPEC D4: kernels are registered for a device type and found by device, string or torch.device."""

from __future__ import annotations

import pytest
import torch

import mindtorch
from mindtorch._ext import dispatch


def test_D4_a_kernel_serves_every_index_of_its_type() -> None:
    dispatch.register("test::op", "npu", len)
    try:
        for device in ("npu", "npu:0", "npu:7", mindtorch.device("npu"), mindtorch.device("npu", 3)):
            assert dispatch.lookup("test::op", device) is len
        for device in ("cpu", "meta:1", torch.device("cpu"), mindtorch.device("remote_accelerator:0")):
            assert dispatch.lookup("test::op", device) is None
        assert dispatch.lookup("test::other", "npu:0") is None
        assert "test::op" in dispatch.registered("npu")
    finally:
        dispatch.unregister("test::op", "npu")
    assert dispatch.lookup("test::op", "npu:0") is None


def test_D4_a_type_that_gets_its_first_kernel_later_is_found() -> None:
    assert dispatch.lookup("test::op", "invented:1") is None
    dispatch.register("test::op", "invented", max)
    assert dispatch.lookup("test::op", "invented:1") is max
    dispatch.unregister("test::op", "invented")


def test_D4_registration_refuses_an_index() -> None:
    with pytest.raises(ValueError, match="npu:1"):
        dispatch.register("test::op", "npu:1", len)
    with pytest.raises(KeyError):
        dispatch.unregister("test::never", "npu")


def test_D4_many_spellings_do_not_pile_up() -> None:
    for index in range(10_000):
        assert dispatch.lookup("test::op", f"npu:{index}") is None
