"""What torch warns of is said once, at the program's call, in torch's words (SPEC L9)."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mindtorch.base.torch_warnings import Caught, listen

LAZY = "remote_accelerator:0"
Said = list[tuple[str, str, int]]


@pytest.fixture(autouse=True)
def _always() -> Iterator[None]:
    """What torch's C++ says once in a process it says each time here."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


def warnings_of(program: Callable[[], object], filters: str = "always") -> Said:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(filters)  # type: ignore[arg-type]
        program()
    return [(str(w.message), w.filename, w.lineno) for w in caught]


WARNING: dict[str, Callable[[str], torch.Tensor]] = {
    "size": lambda d: F.mse_loss(torch.ones(2, 1, device=d), torch.ones(2, device=d)),
    "module": lambda d: nn.MSELoss()(torch.ones(2, 1, device=d), torch.ones(2, device=d)),
    "large": lambda d: F.mse_loss(torch.ones(300, 1, device=d), torch.ones(300, device=d)),
    "python": lambda d: F.softmax(torch.ones(2, device=d)),
    "mean": lambda d: F.kl_div(torch.ones(2, device=d), torch.ones(2, device=d)),
    "kernel": lambda d: torch.ones(1, device=d).std(),
    "creation": lambda d: torch.range(1, 4, device=d),
    "view": lambda d: torch.ones(2, 2, 2, device=d).T,
    "old": lambda d: torch.triangular_solve(torch.eye(3, device=d), torch.eye(3, device=d)).solution,
    "condition": lambda d: torch.where(torch.ones(2, dtype=torch.uint8, device=d), torch.ones(2, device=d), 0.0),
    "inside_torch": lambda d: torch.stft(torch.ones(100, device=d), 16, return_complex=True).real,
    "gaps": lambda d: torch.searchsorted(torch.ones(4, 4, device=d).t(), torch.ones(4, 2, device=d)),
    "with_gradients": lambda d: F.mse_loss(torch.ones(2, 1, device=d, requires_grad=True), torch.ones(2, device=d)),
    "copy": lambda d: torch.tensor(torch.ones(2, device=d), device=d),
    "copy_of_the_cpus": lambda d: torch.tensor(torch.ones(2), device=d),
    "copy_to_the_cpu": lambda d: torch.tensor(torch.ones(2, device=d), device="cpu"),
    "new": lambda d: torch.ones(2, device=d).new_tensor(torch.ones(2, device=d), dtype=torch.int64),
    "new_of_the_cpus": lambda d: torch.ones(2, device=d).new_tensor(data=torch.ones(2)),
    "new_from_the_cpus": lambda d: torch.ones(2).new_tensor(torch.ones(2, device=d), device=d),
    "gradient": lambda d: (x := torch.ones(2, device=d, requires_grad=True) * 2).grad or x,
}


@pytest.mark.parametrize("name", WARNING)
def test_L9_a_warning_comes_once_from_the_programs_line(name: str) -> None:
    def said(device: str) -> list[Said]:
        return [warnings_of(lambda: WARNING[name](device).cpu()) for _ in range(3)]

    assert said(LAZY) == said("cpu")
    assert len(said("cpu")[0]) == 1


def test_L9_what_filters_show_once_is_shown_once() -> None:
    def program(size: int) -> None:
        x, y = torch.ones(size, 1, device=LAZY), torch.ones(size, device=LAZY)
        for _ in range(4):
            F.mse_loss(x, y).item()

    for size, filters in enumerate(("default", "once", "module", "ignore"), 5):  # calls that are new to the engine
        assert len(warnings_of(lambda size=size: program(size), filters)) == (filters != "ignore"), filters
    with pytest.raises(UserWarning, match="Using a target size"):
        warnings_of(lambda: program(9), "error")


ON_TWO_LINES = {
    "creation": "torch.range(0, 3, device=d)",
    "kernel": "torch.ones(1, device=d).std().cpu()",
    "copy": "torch.tensor(torch.ones(2, device=d), device=d)",
    "new": "torch.ones(2, device=d).new_tensor(torch.ones(2, device=d))",
}


@pytest.mark.parametrize("name", ON_TWO_LINES)
def test_L9_what_filters_show_once_for_a_line_is_shown_for_each_line(name: str) -> None:
    def said(device: str) -> Said:
        text = f"for _ in range(3):\n    {ON_TWO_LINES[name]}\n    {ON_TWO_LINES[name]}\n"
        program = compile(text, "two lines", "exec")
        return warnings_of(lambda: exec(program, {"torch": torch, "d": device}), "default")

    assert said(LAZY) == said("cpu")
    assert [line for _text, _file, line in said(LAZY)] == [2, 3]


def test_L9_warnings_come_again_wherever_a_handler_raises() -> None:
    """Handlers run where Python functions begin, too: none begins when catching ends."""

    def handler(frame: object, event: str, argument: object) -> None:
        raise KeyboardInterrupt

    before = sys.gettrace()
    try:
        with Caught():
            sys.settrace(handler)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    assert len(warnings_of(lambda: warnings.warn("still told", stacklevel=1))) == 1


def test_L9_another_threads_warnings_are_its_own() -> None:
    listen()

    def other() -> None:
        warnings.warn("from a thread", stacklevel=1)

    def program() -> None:
        with Caught() as caught:
            warnings.warn("caught", stacklevel=1)
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        assert [str(w.message) for w in caught.messages] == ["caught"]

    assert [text for text, *_ in warnings_of(program)] == ["from a thread"]


RESIZED: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "add": lambda x, out: torch.add(x, x, out=out),
    "mm": lambda x, out: torch.mm(x, x, out=out),
    "cat": lambda x, out: torch.cat([x, x], out=out),
    "sum": lambda x, out: torch.sum(x, 0, out=out),
    "inv": lambda x, out: torch.linalg.inv(x, out=out),
    "sort": lambda x, out: torch.sort(x, out=(out, torch.ones(2, dtype=torch.int64, device=x.device))),
    "arange": lambda x, out: torch.arange(5, out=out),
}


@pytest.mark.parametrize("name", RESIZED)
def test_L9_an_output_that_is_resized_warns_once_in_torchs_words(name: str) -> None:
    def said(device: str) -> Said:
        x = torch.eye(3, device=device)
        found = []
        for out in (torch.ones(2, device=device), torch.ones(2, device=device), torch.empty(0, device=device)):
            found += warnings_of(lambda out=out: (RESIZED[name](x, out), out.cpu()))
        return found

    assert said(LAZY) == said("cpu") != []
