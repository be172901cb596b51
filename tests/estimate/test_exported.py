"""C4: programs that call ``torch.export`` are estimated; what is exported runs as the module does."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export, passes

from mindtorch._ext import ledger
from mindtorch.base.errors import UnsupportedOperationError
from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.estimating import estimating

GPU = Accelerator("Test GPU", 10**9)


@pytest.fixture
def estimate() -> Iterator[None]:
    with estimating(GPU):
        yield


class Model(nn.Module):
    """Tied weights, a buffer, a tensor that is neither, and two that the forward pass makes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = self.first
        self.register_buffer("scale", torch.ones(8))
        self.shift = torch.ones(8)

    def forward(self, x: torch.Tensor, *, factor: float = 2.0) -> dict[str, Any]:
        y = self.second(self.first(x)) * self.scale + self.shift.to(x.device)
        return {"y": y + torch.arange(8, device=x.device) + torch.zeros(8).to(x.device) * factor, "n": x.shape[0]}


def model(device: str) -> tuple[Model, torch.Tensor]:
    made = Model().to(device)
    made.shift = made.shift.to(device)
    return made, torch.randn(4, 8, device=device)


def cuda(form: Callable[[Any, torch.Tensor], Any]) -> Any:
    made, x = model("cuda")
    return form(torch.export.export(made, (x,), {"factor": 3.0}), x)(x, factor=3.0)


def saved_in(file: Any) -> Callable[[Any, Any], Any]:
    def form(program: Any, x: Any) -> Any:
        torch.export.save(program, file)
        if hasattr(file, "seek"):
            file.seek(0)
        return torch.export.load(file).module()

    return form


FORMS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "module": lambda program, x: program.module(),
    "copy": lambda program, x: copy.deepcopy(program).module(),
    "decomposed": lambda program, x: program.run_decompositions().module(),
    "unflattened": lambda program, x: torch.export.unflatten(program),
    "saved": lambda program, x: saved_in(io.BytesIO())(program, x),
    "saved in a file": lambda program, x: saved_in("program.pt2")(program, x),
}


@pytest.mark.parametrize("form", FORMS)
def test_C4_what_is_exported_runs_where_its_module_is(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with estimating(GPU):
        made = cuda(FORMS[form])
    assert made["y"].device == torch.device("cuda:0") and made["y"].shape == (4, 8) and made["n"] == 4
    assert not list(tmp_path.iterdir())  # an estimate writes nothing


def test_C4_an_export_counts_for_nothing_and_its_module_as_the_modules_own(estimate: None) -> None:
    made, x = model("cuda")

    def counted(run: Callable[[], object]) -> int:
        before = ledger.position()
        run()
        return ledger.position() - before

    assert counted(lambda: torch.export.export(made, (x,))) == 0
    run = torch.export.export(made, (x,)).module()
    own = counted(lambda: made(x))
    assert own <= counted(lambda: run(x)) <= own + 2


def test_C4_an_exported_program_has_the_modules_tensors(estimate: None) -> None:
    made, x = model("cuda")
    before = dict(made.state_dict(keep_vars=True))
    program = torch.export.export(made, (x,))
    assert all(made.state_dict(keep_vars=True)[name] is value for name, value in before.items())
    assert program.state_dict["first.weight"] is made.first.weight and program.example_inputs[0][0] is x
    run = program.module()
    assert run.first.weight is run.second.weight is made.first.weight
    run(x)["y"].sum().backward()
    assert made.first.weight.grad.device == torch.device("cuda:0")


def test_C4_exported_sizes_may_differ_where_the_program_says_so(estimate: None) -> None:
    made, x = model("cuda")
    sizes = {"x": {0: Dim.DYNAMIC}, "factor": None}
    run = torch.export.export(made, (x,), {"factor": 1.0}, dynamic_shapes=sizes).module()
    assert run(torch.randn(9, 8, device="cuda"), factor=1.0)["y"].shape == (9, 8)
    with pytest.raises(AssertionError, match=r"size\(\)\[1\] == 8"):
        run(torch.randn(9, 7, device="cuda"), factor=1.0)


@pytest.mark.skipif(not hasattr(torch.export, "export_for_training"), reason="this torch has no such form")
def test_C4_export_for_training(estimate: None) -> None:
    made, x = model("cuda")
    assert torch.export.export_for_training(made, (x,)).module()(x)["y"].device == torch.device("cuda:0")


def test_C4_a_draft_needs_data(estimate: None) -> None:
    made, x = model("cuda")
    with pytest.raises(
        UnsupportedOperationError, match=r"expected torch\.export\.export: drafts are made by computing"
    ):
        torch.export.draft_export(made, (x,))


def test_C4_strict_export(estimate: None) -> None:
    made, x = model("cuda")
    assert torch.export.export(made, (x,), strict=True).module()(x)["y"].device == torch.device("cuda:0")


def test_C4_a_program_exported_on_the_cpu_is_moved(estimate: None) -> None:
    made, x = model("cpu")
    program = torch.export.export(made, (x,))
    assert program.module()(x)["y"].device == torch.device("cpu")
    moved = passes.move_to_device_pass(program, "cuda").module()
    assert moved(x.cuda())["y"].device == torch.device("cuda:0")


def test_C4_a_file_from_before_the_estimate_has_its_sizes(tmp_path: Path) -> None:
    made = nn.Linear(3, 5)
    torch.export.save(export(made, (torch.randn(2, 3),)), tmp_path / "real.pt2")
    with estimating(GPU):
        program = torch.export.load(tmp_path / "real.pt2")
        run = program.module().cuda()
        assert run(torch.randn(2, 3, device="cuda")).device == torch.device("cuda:0")
        assert [(type(p).__name__, p.requires_grad) for p in program.parameters()] == [("MetaParameter", True)] * 2
        assert torch.load(io.BytesIO(_bytes({"a": torch.ones(2)})))["a"].device == torch.device("cpu")


def _bytes(what: Any) -> bytes:
    file = io.BytesIO()
    torch.save(what, file)
    return file.getvalue()


def test_C4_export_refuses_what_is_on_two_devices_and_what_torch_refuses(estimate: None) -> None:
    made, x = model("cpu")
    with pytest.raises(UnsupportedOperationError, match="one device in an estimate, got cpu and cuda:0"):
        torch.export.export(made, (x.cuda(),))
    with pytest.raises(ValueError, match="instance of `torch"):
        torch.export.export(lambda x: x, (x,))
    assert made(x)["y"].device == torch.device("cpu")  # the module is as it was
