"""C4: what torch.save is given in an estimate is as it was then, refused as torch refuses it, and not kept alive."""

from __future__ import annotations

import argparse
import collections
import functools
import io
import multiprocessing
import pickle
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.estimating import estimating
from mindtorch.profile.estimate.estimator import Estimator

GPU = Accelerator("Test GPU", 10**9)


@pytest.fixture
def estimate() -> Iterator[None]:
    with estimating(GPU):
        yield


def saved(what: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(what, file)
    file.seek(0)
    return file


def loaded(file: io.BytesIO, **options: Any) -> Any:
    file.seek(0)
    return torch.load(file, weights_only=False, **options)


def test_C4_a_saved_model_is_not_kept_alive() -> None:
    with Estimator(target=targets.find("h100")):
        before = torch.cuda.memory_allocated()
        model = nn.Linear(100, 100).cuda()
        file = saved([model, {"of": model}])
        held = torch.cuda.memory_allocated()
        del model
        assert held > before == torch.cuda.memory_allocated()
        again, by_name = loaded(file)
        assert torch.cuda.memory_allocated() == held and by_name["of"] is again


def test_C4_a_saved_object_is_as_it_was_when_it_was_saved(estimate: None) -> None:
    model = nn.Linear(2, 2)
    model.epoch = [1]
    file = saved(model)
    model.epoch.append(2)
    model.weight = nn.Parameter(torch.ones(5, 5))
    again = loaded(file)
    assert again.epoch == [1] and again.weight.shape == (2, 2)
    assert loaded(file) is not again


def test_C4_a_model_and_its_optimizer_are_loaded_together(estimate: None) -> None:
    model = nn.Linear(2, 2).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2, device="cuda")).sum().backward()
    optimizer.step()
    other, its = loaded(saved([model, optimizer]))
    [group] = its.param_groups
    assert all(a is b for a, b in zip(group["params"], other.parameters(), strict=True))
    assert set(its.state) == set(other.parameters()) != set(model.parameters())
    moved, _ = loaded(saved((model, optimizer)), map_location="cpu")
    assert moved.weight.device.type == "cpu"


@pytest.mark.parametrize("there", ["cpu", "cuda"])
def test_C4_what_shares_memory_is_saved_and_loaded_once(there: str) -> None:
    """As torch does it; and of a part the whole storage is in the file."""

    def taken(made: Callable[[], Any]) -> tuple[int, int]:
        with Estimator(target=targets.find("h100")):
            state = made()
            before = torch.cuda.memory_allocated()
            found = loaded(saved(state), map_location="cuda")
            every = found.values() if isinstance(found, dict) else found if isinstance(found, list) else [found]
            return torch.cuda.memory_allocated() - before, len({t.data_ptr() for t in every})

    alone, _ = taken(lambda: torch.ones(1000, 100, device=there))

    def tied() -> dict[str, Any]:
        embedding, head = nn.Embedding(1000, 100, device=there), nn.Linear(100, 1000, bias=False, device=there)
        head.weight = embedding.weight
        return nn.ModuleList([embedding, head]).state_dict()

    assert alone == 400_384  # a multiple of 512
    assert taken(tied) == (alone, 1)
    assert taken(lambda: torch.ones(1000, 100, device=there)[:10]) == (alone, 1)
    assert taken(lambda: list(torch.ones(1000, 100, device=there).split(500))) == (alone, 2)
    assert taken(lambda: [torch.ones(1000, 100, device=there) for _ in range(2)]) == (2 * alone, 2)


class Holds(nn.Module):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


def _stepped() -> Any:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return [model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def _hooked() -> nn.Module:
    model = nn.Linear(2, 2)
    model.register_forward_hook(print)
    return model


THINGS: dict[str, Callable[[], Any]] = {
    "a function of torch": lambda: Holds(F.relu),
    "a builtin of torch": lambda: Holds(torch.sigmoid),
    "a method of torch": lambda: Holds(torch.Tensor.relu),
    "a partial function": lambda: Holds(functools.partial(F.gelu, approximate="tanh")),
    "a lambda": lambda: Holds(lambda x: x),
    "a dictionary that makes its values": lambda: collections.defaultdict(lambda: 0),
    "a module of Python": lambda: [io],
    "a parametrized module": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
    "a scheduler of a lambda": lambda: torch.optim.lr_scheduler.LambdaLR(_stepped()[1], lambda epoch: 1.0),
    "a trained model": _stepped,
    "a hook": _hooked,
    "a transformer": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 2),
    "a recurrent network": lambda: nn.LSTM(4, 4, 2),
    "a lazy module": lambda: nn.LazyLinear(3),
    "an averaged model": lambda: torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2)),
    "a distribution": lambda: torch.distributions.Normal(torch.zeros(2), torch.ones(2)),
    "a namespace": lambda: argparse.Namespace(rate=1, t=torch.ones(2)),
    "a generator": torch.Generator,
    "a sparse tensor": lambda: torch.eye(3).to_sparse(),
    "a class": lambda: Holds,
    "numbers": lambda: {"step": 1, "rates": (0.1, None), "name": "x"},
}


def _outcome(make: Callable[[], Any], weights_only: bool) -> tuple[str, str]:
    """How it ends: what comes back, or where it fails with what words."""
    where = "saved"
    try:
        file = saved(make())
        where = "loaded"
        found = torch.load(file, weights_only=weights_only)
    except Exception as error:
        return where, f"{type(error).__name__}: {str(error)[:100]}"
    return "back", str(found.layout) if isinstance(found, torch.Tensor) else type(found).__name__


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("what", THINGS)
def test_C4_whatever_is_saved_comes_back_or_fails_as_with_torch(what: str, weights_only: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = _outcome(THINGS[what], weights_only)
        with estimating(GPU):
            assert _outcome(THINGS[what], weights_only) == expected


def test_C4_data_parallel_without_devices_runs_as_with_torch() -> None:
    with estimating(None):
        model = nn.DataParallel(nn.Linear(2, 2))
        assert model.device_ids == [] and model(torch.ones(4, 2)).shape == (4, 2)


def _described(pickled: bytes) -> list[Any]:
    """In a process that the program started: of each tensor, whether it computes, and its kind."""
    return [(t.device.type, t.tolist(), type(t).__name__, t.requires_grad) for t in pickle.loads(pickled)]


def test_C4_a_process_that_the_program_spawned_gets_numbers() -> None:
    """It got meta tensors: it failed, and the program waited for it for good."""
    with estimating(GPU):
        net = nn.Linear(2, 1).cuda()
        unknown = torch.randn(2, device="cuda", requires_grad=True)
        pickled = bytes(ForkingPickler.dumps([net.weight, unknown, torch.tensor([3, 4]), torch.ones(2, 0)]))
    with multiprocessing.get_context("fork").Pool(1) as pool:  # it is no child of an estimate: that is over
        assert pool.apply(_described, (pickled,)) == [
            ("cpu", [[0.0, 0.0]], "Parameter", True),
            ("cpu", [0.0, 0.0], "Tensor", True),
            ("cpu", [3, 4], "Tensor", False),
            ("cpu", [[], []], "Tensor", False),
        ]
    assert pickle.loads(pickled)[1].is_meta  # in the estimate's own process, it is over
