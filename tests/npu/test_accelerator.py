"""D5, N4: what programs leave open: a device by its number alone, pinned memory for no device in particular."""

from __future__ import annotations

import pytest
import torch

import mindtorch
from mindtorch.npu.tensor import NpuTensor

MAKE = {
    "zeros": lambda device: torch.zeros(2, device=device),
    "tensor": lambda device: torch.tensor([1.0, 2], device=device),
    "zeros_like": lambda device: torch.zeros_like(torch.ones(2), device=device),
    "new_zeros": lambda device: torch.ones(2).new_zeros(2, device=device),
    "to": lambda device: torch.ones(2).to(device),
    "to, by name": lambda device: torch.ones(2).to(device=device),
    "to, and dtype": lambda device: torch.ones(2).to(device, torch.float16),
    "Linear": lambda device: torch.nn.Linear(2, 2, device=device).weight,
    "Module.to": lambda device: torch.nn.Linear(2, 2).to(device).weight,
    "Module.to, by name": lambda device: torch.nn.Linear(2, 2).to(device=device).bias,
    "PackedSequence.to": lambda device: torch.nn.utils.rnn.pack_sequence([torch.ones(2)]).to(device).data,
}


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_D5_a_number_alone_is_an_npu_where_one_is_there(npu, devices, make):
    assert make(0).device == mindtorch.device("npu:0") and isinstance(make(0), NpuTensor)
    count = npu.device_count()
    with pytest.raises(RuntimeError, match=f"device index {count}: {count} NPU"):
        make(count)
    with pytest.raises(RuntimeError, match="Device index must not be negative"):
        make(-1)
    devices(2)
    assert make(1).device == mindtorch.device("npu:1")


def test_D5_a_number_alone_moves_between_npus(npu, devices):
    devices(2)
    model = torch.nn.Linear(2, 2).to(0)
    weight = model.weight
    assert model.to(1).weight is weight and weight.device == mindtorch.device("npu:1")
    assert weight.to(0).device == torch.zeros(2, device=weight.device).to(0).device == mindtorch.device("npu:0")
    assert mindtorch.device(1) == weight.device


def test_D5_a_number_alone_is_what_torch_makes_of_it_where_no_npu_is_there(after_torch):
    """Its own error, which a torch built with CUDA words otherwise, and the recording device once torch knows that as
    its accelerator."""
    code = """
        import torch
        def tell():
            for make in (lambda: torch.zeros(2, device=1), lambda: torch.ones(2).to(1),
                         lambda: torch.tensor(1, device=1), lambda: torch.ones(2).new_ones(2, device=1),
                         lambda: torch.nn.Linear(2, 2).to(1).weight):
                try:
                    print(make().device, end=" ")
                except RuntimeError as error:
                    print(error, end=" ")
            print()
        tell()
        import mindtorch
        tell()
        torch.zeros(2, device="remote_accelerator")
        tell()
    """
    torchs, before, after = after_torch(code, GENIE_ACL_LIBRARY="/nowhere").stdout.splitlines()
    no_device = "Found no NVIDIA driver" if torch.backends.cuda.is_built() else "Cannot access accelerator device"
    assert before == torchs and torchs.count(no_device) == 5
    assert after == "remote_accelerator:1 " * 5


def test_D5_a_number_alone_is_an_npu_where_torch_knows_it_by_name(in_npu_program):
    said = in_npu_program(
        """
        import torch, mindtorch.npu.compat
        made = [torch.zeros(2, device=1), torch.ones(2).to(1), torch.tensor(1, device=1)]
        made += [torch.ones(2).new_ones(2, device=1), *torch.nn.Linear(2, 2).to(1).parameters()]
        print({str(t.device) for t in made}, {t.is_npu for t in made}, torch.ones(2, pin_memory=True).is_pinned())
        """
    )
    assert said == "{'npu:1'} {True} True\n"


def test_D5_where_no_npu_is_there_it_is_not_looked_for_again(after_a_step):
    code = """
        import os, sys, torch, mindtorch
        from mindtorch.base import hardware
        looked, torchs = [], hardware.find_ascendcl
        hardware.find_ascendcl = lambda: looked.append(1) or torchs()
        for _ in range(3):
            print(torch.ones(2).is_pinned(), len(looked))
        os.environ["GENIE_ACL_LIBRARY"] = "/elsewhere"
        print(torch.ones(2).is_pinned(), len(looked))
    """
    assert after_a_step(code, GENIE_ACL_LIBRARY="/nowhere").stdout == "False 1\n" * 3 + "False 2\n"


PIN = {
    "pin_memory": lambda: torch.ones(3, 2).t().pin_memory(),
    "for npu": lambda: torch.ones(2, 3).pin_memory("npu"),
    "ones": lambda: torch.ones(2, 3, pin_memory=True),
    "tensor": lambda: torch.tensor([[1.0] * 3] * 2, pin_memory=True),
    "on the CPU": lambda: torch.ones(2, 3, pin_memory=True, device="cpu"),
    "ones_like": lambda: torch.ones_like(torch.zeros(2, 3), pin_memory=True),
    "new_ones": lambda: torch.zeros(1).new_ones(2, 3, pin_memory=True),
}


@pytest.mark.parametrize("make", PIN.values(), ids=PIN)
def test_N4_pinned_memory_is_the_npus_where_one_is_there(npu, make):
    made = make()
    assert type(made) is torch.Tensor and made.is_pinned() and npu.is_pinned(made) and made.is_pinned("npu")
    assert made.pin_memory() is made and torch.equal(made, torch.ones(2, 3))
    assert torch.equal(made.to("npu", non_blocking=True).cpu(), torch.ones(2, 3))
    assert not torch.ones(2).is_pinned() and not torch.ones(2, pin_memory=False).is_pinned()


def test_N4_what_is_pinned_has_its_gradient(npu):
    made = torch.ones(3, pin_memory=True, requires_grad=True)
    assert made.is_leaf and made.is_pinned()
    x = torch.ones(3, requires_grad=True)
    (x.pin_memory().npu() * 2).sum().backward()
    made.npu().sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0)) and torch.equal(made.grad, torch.ones(3))


def test_N4_only_memory_of_the_cpu_is_pinned(npu):
    for make in (lambda: torch.ones(2, device="npu").pin_memory(),
                 lambda: torch.ones(2, device="npu", pin_memory=True)):  # fmt: skip
        with pytest.raises(RuntimeError, match=r"can be pinned|cannot pin"):
            make()
    assert not torch.ones(2, device="npu").is_pinned()


def test_N3_tensors_say_whether_they_are_on_an_npu(npu):
    assert torch.ones(2, device="npu").is_npu and torch.nn.Linear(1, 1).npu().weight.is_npu
    assert not torch.ones(2).is_npu and not torch.ones(2, device="remote_accelerator").is_npu


PINNING = """
    import torch, mindtorch.npu.compat
    for make in (
        lambda: torch.ones(2).pin_memory(),
        lambda: torch.ones(2, pin_memory=True),
        lambda: torch.ones(2).untyped_storage().pin_memory(),
        lambda: next(iter(torch.utils.data.DataLoader(torch.ones(2), pin_memory=True))),
    ):
        try:
            print(make().is_pinned())
        except RuntimeError as error:
            print(type(error).__name__, str(error).partition(":")[0])
"""


def test_N3_what_programs_for_torch_npu_pin_is_the_npus(in_npu_program):
    assert in_npu_program(PINNING).split() == ["True"] * 4


def test_N3_pinning_without_an_npu_says_that_there_is_none(after_a_step):
    said = after_a_step(PINNING, GENIE_ACL_LIBRARY="/nowhere").stdout
    assert said == "RuntimeError npu is not available\n" * 3 + "False\n"  # the loader asks what is there


def test_L1_modes_see_that_memory_is_asked_about_as_without_an_npu(npu):
    class Seen(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    names: list[str] = []
    npu.init()
    with Seen():
        assert torch.ones(2).is_pinned() is False
    assert names == ["ones", "is_pinned"]
