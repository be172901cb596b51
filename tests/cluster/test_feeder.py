"""R2: data that is loaded on a worker's machine, and goes straight to it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import torch

import mindtorch
from mindtorch.cluster.actor import look_in
from mindtorch.cluster.broker_client import Link
from mindtorch.cluster.ray_executor import RayExecutor

from ..executors import using

pytest.importorskip("ray", reason="Ray is not installed: pip install 'mindtorch-genie[ray]'")
_SOURCE = """
import torch
def loader(n, size):
    data = torch.utils.data.TensorDataset(torch.randn(n, 500), torch.arange(n))
    return torch.utils.data.DataLoader(data, batch_size=size, shuffle=True, num_workers=1)
def mixed():
    base = torch.arange(6.0)
    yield {"x": base[2:], "t": (base.view(2, 3).t(), "text", 3), "none": None, "empty": base[:0]}
    raise KeyError("no more")
"""


def test_R2_workers_and_loaders_find_what_a_runtime_env_gives_before_the_programs_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = "/tmp/ray/session/runtime_resources/py_modules_files/one"
    monkeypatch.setattr(sys, "path", ["/usr/lib/python3", given])
    look_in(["/program", "/usr/lib/python3"])
    assert sys.path == [given, "/program", "/usr/lib/python3"]


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fed")
    (folder / "fed_by.py").write_text(_SOURCE)
    return folder


@pytest.fixture(scope="module")
def fed(module: Path, link: Link) -> RayExecutor:
    """Its own cluster's workers would have the program's path; this one's path is told to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(module))
        own = Link(None, cpus=2, gpus=0)
    executor = RayExecutor(own)
    yield executor
    executor.close()
    own.close()


def test_R2_batches_are_those_of_a_loader_here_and_do_not_pass_through(fed: RayExecutor, module: Path) -> None:
    scope: dict[str, object] = {}
    exec(_SOURCE, scope)
    torch.manual_seed(5)
    expected = list(scope["loader"](20, 8))  # type: ignore[operator]
    with using(fed):
        torch.manual_seed(5)
        up, down = fed.stats["bytes_up"], fed.stats["bytes_down"]
        found = list(fed.batches("fed_by:loader", 20, 8))
        totals = [(x.sum().item(), y.sum().item()) for x, y in found]
        assert fed.stats["bytes_up"] - up < 10_000 and fed.stats["bytes_down"] - down < 10_000
        assert totals == [(x.sum().item(), y.sum().item()) for x, y in expected]
        for (x, y), (plain_x, plain_y) in zip(found, expected, strict=True):
            assert x.device.type == "remote_accelerator"
            assert torch.equal(x.cpu(), plain_x) and torch.equal(y.cpu(), plain_y)


def test_R2_what_a_batch_is_and_what_fails_there_come_back(fed: RayExecutor) -> None:
    with using(fed):
        batches = fed.batches("fed_by:mixed")
        batch = next(batches)
        assert batch["x"].tolist() == [2, 3, 4, 5] and batch["t"][0].tolist() == [[0, 3], [1, 4], [2, 5]]
        assert (batch["t"][1:], batch["none"], batch["empty"].shape) == (("text", 3), None, (0,))
        with pytest.raises(mindtorch.UsageError, match=r"^\[batches\] KeyError: 'no more'"):
            next(batches)
        for source, told in (
            ("fed_by:nothing", "AttributeError: .*nothing"), ("no_such:f", "ModuleNotFoundError: .*no_such"),
            ("fed_by", "expected MODULE:FUNCTION, got 'fed_by'"), ("fed_by:loader", "TypeError: loader"),
        ):  # fmt: skip
            with pytest.raises(mindtorch.UsageError, match=rf"^\[batches\] {told}"):
                fed.batches(source)
        with pytest.raises(mindtorch.UsageError, match=r"^\[batches\] expected numbers, strings, .*, got builtin"):
            fed.batches("fed_by:loader", os.kill)


def test_R4_a_worker_that_ends_while_it_is_fed_is_told(fed: RayExecutor) -> None:
    with using(fed):
        batches = fed.batches("fed_by:loader", 100, 1)
        x, _y = next(batches)
        assert x.shape == (1, 500)
        os.kill(fed.stats["process"], signal.SIGKILL)
        with pytest.raises((mindtorch.MaterializationError, mindtorch.UsageError), match=r"ended|died"):
            for x, _y in batches:
                x.sum().item()
