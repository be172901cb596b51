"""When what is pending is begun at the end of a step (SPEC R1), and who hears of each op that runs (L14)."""

from __future__ import annotations

import pytest
import torch

import mindtorch
from mindtorch.base.errors import MaterializationError
from mindtorch.engine.execute import LocalExecutor, local, values
from mindtorch.engine.execute.pace import Pace

LAZY = "remote_accelerator:0"


def test_R1_a_program_that_never_reads_has_its_steps_begun() -> None:
    pace = Pace()
    assert [pace.step(recorded) for recorded in (100, 200, 300)] == [True, True, True]


@pytest.mark.parametrize("stepped", [0, 100])
@pytest.mark.parametrize(("since", "begins"), [(8, False), (9, True)])
def test_R1_reads_right_after_a_step_keep_the_next_one_from_beginning(stepped: int, since: int, begins: bool) -> None:
    """Up to eight ops after a step, or a program's first ones, are no forward pass: it looks at its loss at the end."""
    pace = Pace()
    if stepped:
        pace.step(stepped)
    pace.read(stepped + since, left=False)
    assert pace.step(200) is begins
    pace.step(300)
    pace.read(300, left=True)
    assert not pace.step(400), "what was left had to wait for the read"


def test_R1_the_first_read_of_a_step_counts() -> None:
    pace = Pace()
    pace.step(100)
    pace.read(150, left=False)
    pace.read(199, left=True)
    assert pace.step(200)
    assert pace.step(300), "nothing was read since"


@pytest.mark.parametrize(("since", "pending", "begins"), [(9, 31, False), (9, 32, True), (8, 32, False)])
def test_R1_after_a_look_at_the_loss_a_backward_pass_begins_as_it_ends(since: int, pending: int, begins: bool) -> None:
    """If it is worth a message of its own."""
    pace = Pace()
    assert not pace.passed(100), "nothing has been looked at"
    pace.step(100)
    pace.read(100 + since, left=False)
    assert pace.passed(pending) is begins
    pace.step(200)
    assert not pace.passed(100)


class Fails(LocalExecutor):
    """What began before turns out to have failed when something else begins."""

    def __init__(self, lost_write: bool) -> None:
        super().__init__()
        self.error: MaterializationError | None = MaterializationError("it had begun before")
        self.error.lost_write = lost_write

    def begin(self) -> None:
        if self.error is not None:
            error, self.error = self.error, None
            raise error


@pytest.mark.parametrize("lost_write", [False, True])
def test_L9_a_write_that_failed_elsewhere_is_told_at_the_next_read(lost_write: bool) -> None:
    """Once, of whatever value; a failed value is told of where it is read."""
    previous = mindtorch.set_executor(Fails(lost_write))
    try:
        x = torch.ones(2, device=LAZY) + 1
        assert values.go_on() and not values.go_on()
        if lost_write:
            with pytest.raises(MaterializationError, match="it had begun before"):
                x.tolist()
        assert x.tolist() == [2, 2]
    finally:
        mindtorch.set_executor(previous)


class Hears:
    """An observer; all of one name are equal."""

    def __init__(self, name: str, heard: list[str], mark: str = "") -> None:
        self.name, self.heard, self.mark = name, heard, mark

    def __call__(self, name: str, *_: int) -> None:
        if name == "aten::add":
            self.heard.append(self.name + self.mark)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hears) and other.name == self.name

    __hash__ = None  # type: ignore[assignment]


def test_L14_of_equal_observers_the_last_that_was_added_goes() -> None:
    heard: list[str] = []
    first, other, last = Hears("a", heard, "1"), Hears("b", heard), Hears("a", heard, "2")
    for observer in (first, other, last):
        local.add_op_observer(observer)
    try:
        (torch.ones(2, device=LAZY) + 1).tolist()
        assert heard == ["a1", "b", "a2"]
        local.remove_op_observer(first)
        heard.clear()
        (torch.ones(2, device=LAZY) + 1).tolist()
        assert heard == ["a1", "b"]
    finally:
        local.remove_op_observer(first)
        local.remove_op_observer(other)
    heard.clear()
    (torch.ones(2, device=LAZY) + 1).tolist()
    assert heard == [] and local._op_observer is None
    with pytest.raises(ValueError):
        local.remove_op_observer(first)
