"""C4, D4: a program that is estimated is told of the target what torch would tell it, and refused what it would."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mindtorch.base.errors import UnsupportedOperationError
from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.estimating import estimating

CUDA = "cuda"


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    with estimating(Accelerator("Test GPU", 10**9)):
        yield


def ones(*size: int, device: str = CUDA) -> torch.Tensor:
    return torch.ones(size, device=device)


@pytest.mark.parametrize("call", [
    lambda: nn.Linear(3, 3).cuda()(torch.ones(1, 3)), lambda: ones(3) + torch.ones(3), lambda: torch.ones(3) + ones(),
    lambda: torch.cat([torch.ones(3), ones(3)]), lambda: torch.ones(3).add_(ones(3)),
    lambda: torch.ones(()).add_(ones()),
    lambda: F.embedding(torch.ones(3, dtype=torch.int64), ones(5, 2)), lambda: ones(3).masked_select(torch.ones(3) > 0),
    lambda: F.cross_entropy(ones(2, 3), torch.zeros(2, dtype=torch.int64)),
])  # fmt: skip
def test_D4_operands_on_two_devices_are_refused_in_an_estimate(call: Callable[[], Any]) -> None:
    with pytest.raises(RuntimeError, match="same device") as error:
        call()
    assert "cpu" in str(error.value) and "cuda:0" in str(error.value)


def test_D4_an_index_on_another_device_is_refused_in_an_estimate() -> None:
    assert str(ones(3)[torch.tensor([0, 1])].device) == "cuda:0"
    with pytest.raises(RuntimeError, match="indices should be"):
        torch.ones(3)[torch.tensor([0, 1]).cuda()]


@pytest.mark.parametrize("call", [
    lambda: torch.tensor(2.0) * ones(3), lambda: ones(3) * torch.tensor(2.0), lambda: ones(3).add_(torch.tensor(1.0)),
    lambda: torch.where(ones(3) > 0, torch.tensor(1.0), ones(3)), lambda: ones(3).copy_(torch.ones(3)),
    lambda: torch.maximum(torch.tensor(1.0), ones(300, 300)), lambda: ones(3).type_as(ones(3).half()),
    lambda: ones(3).masked_fill_(ones(3) > 0, torch.tensor(1.0)),
])  # fmt: skip
def test_D4_what_joins_anything_joins_in_an_estimate(call: Callable[[], Any]) -> None:
    assert str(call().device) == "cuda:0"


def test_D4_copies_cross_devices_in_an_estimate() -> None:
    assert str(torch.ones(3).copy_(ones(3)).device) == str(torch.ones(3).fill_(ones()).device) == "cpu"
    assert (torch.ones(3, device="meta") + ones(3)).device.type == "meta"


def test_C4_cuda_tensors_do_not_become_arrays() -> None:
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        ones(3).numpy()
    assert ones(3).numpy(force=True).shape == ones(3).cpu().numpy().shape == (3,)


def test_C4_there_are_no_more_devices_than_the_program_is_told_of() -> None:
    for call in (lambda: torch.zeros(1, device="cuda:1"), lambda: torch.ones(1).to("cuda:1"),
                 lambda: torch.cuda.set_device(1)):  # fmt: skip
        with pytest.raises(torch.AcceleratorError, match="CUDA error: invalid device ordinal"):
            call()


def test_C4_types_by_name() -> None:
    assert ones(3).type() == "torch.cuda.FloatTensor" and torch.ones(3).type() == "torch.FloatTensor"
    moved = ones(3).type("torch.DoubleTensor")
    assert moved.device.type == "cpu" and moved.dtype is torch.float64 and ones(3).type(torch.half).is_cuda


def test_C4_torch_accelerator_is_the_target() -> None:
    accelerator = torch.accelerator
    assert accelerator.is_available() and accelerator.current_accelerator() == torch.device("cuda")
    assert accelerator.current_accelerator(check_available=True).type == "cuda"
    assert (accelerator.device_count(), accelerator.current_device_index()) == (1, 0)
    held = ones(3, device=accelerator.current_accelerator().type)
    assert accelerator.memory_allocated() == torch.cuda.memory_allocated() and held.is_cuda
    assert accelerator.get_memory_info()[1] == 10**9
    accelerator.synchronize()
    accelerator.empty_cache()
    with accelerator.device_index(0):
        accelerator.set_device_index(0)


def test_C4_the_chosen_device_is_the_one_that_cuda_means() -> None:
    assert torch.cuda.current_device() == 0
    with torch.cuda.device(0):
        assert str(torch.ones(1, device="cuda").device) == "cuda:0"


def test_C4_what_a_program_may_ask_of_cuda_is_answered_or_refused_clearly() -> None:
    torch.cuda.set_per_process_memory_fraction(0.5)
    assert not torch.cuda.can_device_access_peer(0, 0) and torch.cuda.memory_snapshot() == []
    with torch.cuda.nvtx.range("step"):
        torch.cuda.nvtx.range_push("inner")
        torch.cuda.nvtx.range_pop()
    for call in (torch.cuda.temperature, torch.cuda.MemPool):
        with pytest.raises(UnsupportedOperationError, match="an estimate has no CUDA device"):
            call()


def test_C4_one_device_in_data_parallel() -> None:
    model = nn.DataParallel(nn.Linear(3, 3).cuda())
    assert str(model(ones(2, 3)).device) == "cuda:0"


def test_C4_libraries_with_kernels_of_their_own_find_the_stream(session: None) -> None:
    """bitsandbytes asks for it by name when it is imported."""
    assert torch._C._cuda_getCurrentRawStream(0) == 0


#: Functions of torch's own that wrap others, before anything stands for them. Deprecated ones wrap themselves.
WRAPPING = [
    name
    for name, value in vars(torch.cuda).items()
    if inspect.isfunction(value) and hasattr(value, "__wrapped__") and not hasattr(value, "__deprecated__")
]


#: Classes of torch's own, but for what `typing` has.
CLASSES = [name for name, value in vars(torch.cuda).items() if inspect.isclass(value) and value.__module__ != "typing"]


@pytest.mark.parametrize("name", CLASSES)
def test_C4_what_stands_for_a_class_of_cuda_is_one(name: str) -> None:
    """torch.compile asks whether a value is a `torch.cuda.StreamContext`."""
    assert inspect.isclass(getattr(torch.cuda, name))


def test_C4_context_managers_of_cuda_do_what_torchs_do() -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream) as given:
        assert given is None and torch.cuda.current_stream() is stream
        with torch.cuda.stream(None):
            assert torch.cuda.current_stream() is stream
    assert torch.cuda.current_stream() is torch.cuda.default_stream()
    assert isinstance(torch.cuda.stream(stream), torch.cuda.StreamContext)
    assert torch.cuda.StreamContext(stream).stream is stream


@pytest.mark.parametrize("name", WRAPPING)
def test_C4_what_stands_for_a_function_of_cuda_says_what_that_one_wraps(name: str) -> None:
    """Dynamo asks torch's context managers for it as it is imported."""
    assert callable(getattr(torch.cuda, name).__wrapped__)


def test_C4_functions_of_cuda_wrap_others() -> None:
    assert "use_mem_pool" in WRAPPING
