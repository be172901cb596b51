"""R1, L13: when a call of a plan may take the memory of what it is given, what is made ready, and how results are
looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mindtorch.engine.remote import functions, plan_calls
from mindtorch.engine.remote.wire import HERE, Reference

CPU = torch.device("cpu")
FACT = (torch.float32, (2, 3), None, 0)


def call(first: int, inputs: tuple[int, ...], **other: Any) -> SimpleNamespace:
    """A call of a plan, whose first output is the value ``first``."""
    definition = {"writes": (), "single": True, "function": "fresh", **other.pop("definition", {})}
    made = {"aliases": False, "predicted": [FACT], "dying": (), **other}
    return SimpleNamespace(first=first, inputs=inputs, definition=SimpleNamespace(**definition), **made)


#: What differs from a plan whose last call may overwrite the value 2: of the call, of what made the value, of a call
#: besides, or the place of the value among the arguments.
OTHERWISE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "another place": {"place": 1},
    "what was there before": {"value": 1},
    "it writes": {"call": {"definition": {"writes": (0,)}}},
    "several results": {"call": {"definition": {"single": False}}},
    "views": {"call": {"aliases": True}},
    "the maker gives views": {"maker": {"aliases": True}},
    "the maker may give what others have": {"maker": {"definition": {"function": "kept"}}},
    "it is needed later": {"call": {"dying": (0, 1)}},
    "it is given twice": {"call": {"inputs": (2, 0, 2)}},
    "another layout": {"call": {"predicted": [(torch.float32, (2, 3), (1, 2), 0)]}},
    "of the second output": {"value": 3},
    "a view of it is there": {"besides": {"aliases": True, "inputs": (2,)}},
    "a view of another": {"besides": {"aliases": True, "inputs": (0, 3)}},
    "somebody reads it": {"besides": {"inputs": (2,)}},
}
MAY = ("nothing", "of the second output", "a view of another", "somebody reads it")


@pytest.mark.parametrize("how", OTHERWISE)
def test_L13_a_result_takes_the_memory_of_what_nobody_else_has(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "ways", lambda name: SimpleNamespace(fresh=name == "fresh"))
    other = OTHERWISE[how]
    value = other.get("value", 2)
    maker = call(2, (0,), **{"predicted": [FACT, FACT], **other.get("maker", {})})
    besides = call(4, **{"inputs": (0,), **other.get("besides", {})})
    last = call(5, **{"inputs": (value, 0), "dying": (value,), **other.get("call", {})})
    steps = [maker, besides, last]
    aliased = {value for step in steps if step.aliases for value in step.inputs}
    plan: Any = SimpleNamespace(steps=steps, aliased=aliased, maker=lambda n: None if n < 2 else maker)
    assert plan_calls._overwrites(plan, 2, ((other.get("place", 0), value), (1, 0))) is (how in MAY)
    assert not plan_calls._overwrites(plan, 2, ())


@pytest.mark.parametrize(("args", "kwargs", "given"), [
    ((Reference(1), 2), {"alpha": 0.5}, ((None, 2), {"alpha": 0.5}, ((0, 7),))),
    ((2, Reference(0)), {"other": Reference(1)}, ((2, None), {"other": None}, ((1, 5), (2, 7)))),
    ((HERE, [1, (2, 3)]), {}, ((CPU, [1, (2, 3)]), {}, ())),
    ((), {"dtype": torch.float64}, ((), {"dtype": torch.float64}, ())),
    ((Reference(0, tracked=True),), {}, None),
    (([Reference(0)],), {}, None),
    (([1, 2.0],), {}, None),
    (((1, (2, 3j)),), {}, None),
    (([HERE],), {}, None),
    ((slice(1, 2),), {}, None),
])  # fmt: skip
def test_L13_calls_are_made_ready_whose_tensors_and_floats_are_arguments(
    args: tuple, kwargs: dict[str, Any], given: tuple | None
) -> None:
    step: Any = SimpleNamespace(args=args, kwargs=kwargs, inputs=(5, 7))
    assert plan_calls._given(step, CPU) == given


@pytest.mark.parametrize(
    ("sizes", "dtype", "nbytes"), [((2, 3), torch.float64, 48), ((), torch.int8, 1), ((0, 9), torch.int64, 0)]
)
def test_L13_bytes_of_a_result(sizes: tuple[int, ...], dtype: torch.dtype, nbytes: int) -> None:
    assert plan_calls._nbytes((dtype, sizes, None, 0)) == nbytes


def test_R1_arguments_get_their_tensors_wherever_they_are() -> None:
    x, y = torch.ones(2), torch.zeros(3)
    filled = plan_calls.filled_in(
        [Reference(1), (HERE, 2, Reference(0)), slice(0, Reference(1), None), "a"], (x, y), CPU
    )
    assert filled[0] is y and filled[1] == (CPU, 2, x) and type(filled[1]) is tuple
    assert filled[2] == slice(0, y, None) and filled[3] == "a"
    tracked = plan_calls.filled_in(Reference(0, tracked=True), (x, y), CPU)
    assert tracked.requires_grad and tracked.is_leaf and not x.requires_grad and tracked.data_ptr() == x.data_ptr()


def checked(value: Any, predicted: tuple = FACT, view: bool = False) -> tuple[Any, list[tuple]]:
    step: Any = SimpleNamespace(predicted=[None, predicted], aliases=view, definition=SimpleNamespace(view=view))
    told: list[tuple] = []
    return plan_calls._checked(step, 4, 1, value, told, CPU), told


def test_R1_results_have_the_layout_that_the_program_was_told() -> None:
    x = torch.arange(6.0).view(2, 3)
    assert checked(x) == (x, [])
    laid, told = checked(torch.arange(6.0).view(3, 2).t(), (torch.float32, (2, 3), None, 0))
    assert laid.is_contiguous() and laid.tolist() == [[0, 2, 4], [1, 3, 5]] and told == [(4, 1, (1, 2), 0)]
    laid, told = checked(x, (torch.float32, (2, 3), (1, 2), 0))
    assert laid.stride() == (1, 2) and torch.equal(laid, x) and told == [(4, 1, (3, 1), 0)]
    view = torch.arange(8.0)[2:].view(2, 3)
    assert checked(view, (torch.float32, (2, 3), None, 2))[0] is view
    laid, told = checked(view)
    assert laid.storage_offset() == 0 and torch.equal(laid, view) and told == [(4, 1, (3, 1), 2)]
    empty, told = checked(None, (torch.int64, (2, 0), None, 0))
    assert (empty.shape, empty.dtype, told) == ((2, 0), torch.int64, [])


@pytest.mark.parametrize(("value", "why"), [
    (None, "predicted torch.float32 .2, 3., the kernel gave NoneType"),
    (torch.ones(2, 3, dtype=torch.float64), "predicted torch.float32 .2, 3., the kernel gave torch.float64 .2, 3."),
    (torch.ones(3, 2), "predicted torch.float32 .2, 3., the kernel gave torch.float32 .3, 2."),
    (torch.ones(2, 3, device="meta"), "expected a tensor on cpu, the kernel gave one on meta"),
])  # fmt: skip
def test_R1_results_that_were_predicted_otherwise_are_refused(value: Any, why: str) -> None:
    with pytest.raises(RuntimeError, match=why):
        checked(value)


def test_R1_views_are_where_they_were_predicted() -> None:
    with pytest.raises(RuntimeError, match=r"predicted a view with strides None, the kernel gave \(1, 2\)"):
        checked(torch.arange(6.0).view(3, 2).t(), view=True)
