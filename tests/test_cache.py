"""What was computed before is not computed again, and has eager's bits (SPEC L14: the caching hook)."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import mindtorch
from mindtorch.engine.cache import content_names
from mindtorch.engine.execute.local import add_op_observer, remove_op_observer
from tests.caching import LAZY, counts, nothing_counted, up

pytestmark = pytest.mark.usefixtures(nothing_counted.__name__)


@contextmanager
def ran() -> Iterator[list[str]]:
    """Names of the operations that run in the block."""
    names: list[str] = []

    def note(name: str, *_: int) -> None:
        names.append(name.removeprefix("aten::"))

    add_op_observer(note)
    try:
        yield names
    finally:
        remove_op_observer(note)


def small_net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5)
    ).eval()


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    made = torch.Generator().manual_seed(1)
    return [(torch.randn(2, 3, 8, 8, generator=made), torch.randint(5, (2,), generator=made)) for _ in range(3)]


def evaluate(model: torch.nn.Module, device: str) -> list[float]:
    losses = []
    with torch.no_grad():
        for x, y in batches():
            x = x.to(device).sub_(0.5).div_(2.0)  # preprocessing that writes to what it was given
            losses.append(F.cross_entropy(model(x), y.to(device)).item())
    return losses


@pytest.mark.parametrize("on_disk", [False, True])
def test_L14_a_second_evaluation_is_not_computed(on_disk: bool, tmp_path: Path) -> None:
    expected = evaluate(small_net(), "cpu")
    model = small_net().to(LAZY)
    with mindtorch.cache(tmp_path if on_disk else None) as cache:
        first = evaluate(model, LAZY)
        assert counts() == (0, 3) and cache.nbytes == mindtorch.stats()["cache_bytes"] > 0
        executed = mindtorch.stats()["ops_executed"]
        with ran() as names:
            second = evaluate(model, LAZY)
        assert names == [] and counts() == (3, 3) and mindtorch.stats()["ops_executed"] == executed > 0
        with torch.no_grad():
            model[4].bias.add_(0.25)  # type: ignore[operator]
        changed = small_net()
        with torch.no_grad():
            changed[4].bias.add_(0.25)  # type: ignore[index, operator]
        assert evaluate(model, LAZY) == evaluate(changed, "cpu")
        assert mindtorch.stats()["cache_hits"] == 3
    assert first == second == expected
    with ran() as names:
        evaluate(model, LAZY)
    assert names, "outside the block nothing is looked up"


def test_L14_another_process_finds_what_is_in_the_folder(tmp_path: Path, forked: Callable[..., Any]) -> None:
    program = (
        "import sys, torch, mindtorch\n"
        "x = torch.arange(6.0).to('remote_accelerator:0')\n"
        "with mindtorch.cache(sys.argv[1]):\n"
        "    print((x.reshape(2, 3).softmax(1) * 3).tolist(), mindtorch.stats()['cache_hits'])\n"
    )
    # One of them a fork: what hash() gives differs between them, as between any two processes.
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = [forked(*command[1:]), subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)]
    said = [each.stdout.rpartition(" ") for each in done]
    assert [each[2].strip() for each in said] == ["0", "1"] and said[0][0] == said[1][0]


# ---- draws -----------------------------------------------------------------------------------------------------------
def test_L14_draws_are_those_of_the_generator_s_state() -> None:
    def draw(device: str) -> list[list[float]]:
        torch.manual_seed(5)
        first = torch.rand(3, device=device)
        return [first.tolist(), F.dropout(first, 0.5).tolist(), torch.randn(2, device=device).tolist()]

    expected = draw("cpu")
    with mindtorch.cache():
        assert draw(LAZY) == expected
        hits = counts()[0]
        assert draw(LAZY) == expected and counts()[0] == hits + 3
        torch.manual_seed(5)
        assert torch.rand(3, device=LAZY).tolist() == expected[0]
        torch.manual_seed(6)
        assert torch.rand(3, device=LAZY).tolist() != expected[0]


# ---- writes ----------------------------------------------------------------------------------------------------------
def test_L14_a_write_gives_a_new_name() -> None:
    x = torch.zeros(4).to(LAZY)
    view = x[1:]
    with mindtorch.cache():
        for n in range(1, 4):
            view.add_(1)
            assert x.tolist() == [0, n, n, n] and (x * 2).tolist() == [0, 2 * n, 2 * n, 2 * n]
        assert counts()[0] == 0
        for _ in range(2):
            x.zero_()
            assert x.tolist() == [0, 0, 0, 0]
            view.add_(1)
            assert x.tolist() == [0, 1, 1, 1] and view.tolist() == [1, 1, 1]
        assert counts()[0] > 0, "what is as it was before has the name that it had"


def test_L14_a_large_write_is_named_by_what_wrote_it(monkeypatch: pytest.MonkeyPatch) -> None:
    large = torch.arange(2.0**21)  # 8 MiB
    hashed: list[int] = []
    read = content_names.memory_of
    monkeypatch.setattr(content_names, "memory_of", lambda storage: hashed.append(storage.nbytes()) or read(storage))
    with mindtorch.cache():
        for _ in range(2):
            x = large.to(LAZY)
            for n in (1, 2):
                x.add_(1)
                assert x[:3].tolist() == [n, n + 1, n + 2]
        assert counts() == (2, 2) and hashed == [large.nbytes] * 2, "an upload is hashed, a result is not"


def test_L14_values_that_are_found_are_nobody_else_s() -> None:
    x = torch.ones(3).to(LAZY)
    with mindtorch.cache():
        for _ in range(3):
            y = x + 1
            assert y.tolist() == [2, 2, 2]
            y.mul_(5)
            assert y.tolist() == [10, 10, 10]


def test_L14_a_write_that_was_found_gives_a_new_name_too() -> None:
    with mindtorch.cache():
        for _ in range(2):
            x = up(1, 2)
            x.add_(1)
            assert x.tolist() == [2, 3] and (x * 2).tolist() == [4, 6]
        assert counts()[0] == 2
        assert (up(1, 2) * 2).tolist() == [2, 4]


def test_L14_results_have_names_of_their_own_and_are_not_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    read = content_names.memory_of
    monkeypatch.setattr(content_names, "memory_of", lambda storage: hashed.append(storage.nbytes()) or read(storage))
    with mindtorch.cache():
        for _ in range(2):
            x = up(1, 2, 3)
            a, b = x * 2, x * 3
            assert (a + b).sum().item() == 30
            assert (a - 1).tolist() == [1, 3, 5] and (b - 1).tolist() == [2, 5, 8]
    assert counts() == (3, 3) and hashed == [12, 12]
    assert mindtorch.stats()["ops_executed"] == 6, "what was found has not run"


def test_L14_views_of_what_is_found_share_its_memory() -> None:
    with mindtorch.cache():
        for _ in range(2):
            y = torch.arange(6.0).to(LAZY).reshape(2, 3) + 1
            row, turned = y[1], y.t()
            assert y.sum().item() == 21
            row.zero_()
            assert turned.tolist() == [[1, 0], [2, 0], [3, 0]]
            assert row.untyped_storage()._cdata == y.untyped_storage()._cdata
        assert counts()[0] > 0


def test_L14_memory_that_was_lent_is_looked_at_each_time() -> None:
    x = torch.zeros(3).to(LAZY)
    with mindtorch.cache():
        assert (x + 1).tolist() == [1, 1, 1]
        x.materialize().fill_(7)  # which nobody is told of
        assert (x + 1).tolist() == [8, 8, 8]
        x.concrete_value.fill_(8)
        assert (x + 1).tolist() == [9, 9, 9]
        storage = x.untyped_storage()
        assert (x + 1).tolist() == [9, 9, 9]
        storage.fill_(0)
        assert (x + 1).tolist() == [1, 1, 1]


def test_L14_calls_that_run_at_once_are_heard_of() -> None:
    x = torch.tensor([3.0, 1.0, 2.0]).to(LAZY)
    out = torch.zeros(3).to(LAZY)
    with mindtorch.cache():
        assert (out + 1).tolist() == [1, 1, 1]
        torch.nonzero(x > 1.5, out=torch.empty(0, dtype=torch.int64, device=LAZY))
        out.resize_(2)
        out.fill_(4)
        assert (out + 1).tolist() == [5, 5]
        x[x > 2.5] = 9  # a mask: sizes depend on values
        assert (x + 1).tolist() == [10, 2, 3]


def test_L14_what_was_written_outside_the_block_is_noticed() -> None:
    x, cache = torch.zeros(3).to(LAZY), mindtorch.cache()
    with cache:
        assert (x + 1).tolist() == [1, 1, 1]
    x.add_(1)
    assert x.tolist() == [1, 1, 1]
    with cache:
        assert (x + 1).tolist() == [2, 2, 2]


# ---- what is not kept ------------------------------------------------------------------------------------------------
def test_L14_reasons_are_told_where_nothing_is_kept() -> None:
    with torch.library._scoped_library("of_test_cache", "DEF") as library:
        library.define("shuffle(Tensor x) -> Tensor")
        library.impl("shuffle", lambda x: x * len(called), "CompositeExplicitAutograd")
        library.impl("shuffle", lambda x: torch.empty_like(x), "Meta")
        called: list[int] = []
        with mindtorch.cache() as cache:
            for _ in range(2):
                torch.empty(3, device=LAZY).cpu()
                called.append(1)
                x = torch.ops.of_test_cache.shuffle(up(1, 2))
                assert x.tolist() == [len(called), 2 * len(called)]
            assert cache.nbytes == 0
            torch.empty(3, device=LAZY).add_(1).cpu()
            (torch.empty(3, device=LAZY) + 1).cpu()
            torch.empty(3, device=LAZY)[1:].zero_().cpu()
            assert cache.nbytes == 0
    reasons = mindtorch.stats()["not_cacheable"]
    assert reasons.get("aten::empty returns uninitialized memory") == 5
    assert counts() == (0, 0)


def test_L14_uninitialized_memory_that_is_filled_at_once_is_none() -> None:
    with mindtorch.cache():
        for _ in range(2):
            made = torch.empty(2, 2, device=LAZY).fill_(3)
            assert (made + torch.empty_like(made).copy_(made)).tolist() == [[6, 6], [6, 6]]
    assert counts() == (1, 1)


def test_L14_memory_that_fills_itself_stays_undefined() -> None:
    followed = content_names.Undefined()
    assert followed.call("aten::empty", (), ("a",)) == "" != followed.among(("a",))
    left = "aten::empty returns uninitialized memory"
    assert followed.call("aten::copy_", ("a", "a"), ()) == followed.among() == left
    assert (
        followed.call("aten::copy_", ("a", "b"), ())
        == followed.among()
        == followed.call("aten::exp", ("a",), ("c",))
        == ""
    )


def test_L14_a_failure_is_not_kept() -> None:
    def fails() -> None:
        with pytest.raises(IndexError):
            F.embedding(torch.tensor([7]).to(LAZY), torch.ones(2, 2).to(LAZY)).cpu()

    with mindtorch.cache() as cache:
        fails()
        fails()
        assert cache.nbytes == 0 and counts() == (0, 0)
        assert (up(1) + 1).tolist() == [2]


# ---- bounds, files ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("on_disk", [False, True])
def test_L14_no_more_is_kept_than_was_allowed(on_disk: bool, tmp_path: Path) -> None:
    most = 10_000
    with mindtorch.cache(tmp_path if on_disk else None, max_bytes=most) as cache:
        for n in range(20):
            (torch.full((256,), float(n)).to(LAZY) * 2).cpu()  # 1,024 bytes each
            assert cache.nbytes <= most
        assert cache.nbytes > most / 2
        (torch.full((256,), 19.0).to(LAZY) * 2).cpu()
        assert counts()[0] == 1, "the newest are there"
        (torch.full((256,), 0.0).to(LAZY) * 2).cpu()
        assert counts()[0] == 1, "the oldest went"
        (torch.ones(4096).to(LAZY) * 2).cpu()
        assert mindtorch.stats()["not_cacheable"] == {"its values are larger than the cache": 1}
        cache.clear()
        assert cache.nbytes == 0
    if on_disk:
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["cut", "changed", "emptied", "another's"])
def test_L14_a_damaged_file_is_a_miss_and_told_once(what: str, tmp_path: Path) -> None:
    def values() -> list[list[float]]:
        return [(up(n, 2) * 2).tolist() for n in range(3)]

    with mindtorch.cache(tmp_path):
        expected = values()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    contents = [path.read_bytes() for path in files]
    for path, data, other in zip(files, contents, contents[1:] + contents[:1]):
        middle = len(data) // 2
        path.write_bytes(
            {
                "cut": data[:-1], "changed": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
                "emptied": b"", "another's": other,
            }[what]
        )  # fmt: skip
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with mindtorch.cache(tmp_path):
            assert values() == expected
    assert len(said) == 1 and "has changed since it was written" in str(said[0].message)
    assert counts() == (0, 6)
    with mindtorch.cache(tmp_path):
        assert values() == expected
    assert counts()[0] == 3


def test_L14_nobody_sees_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mindtorch.engine.cache import shelves

    def full(file: Any, *_: object) -> int:
        file.write(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(shelves, "_write", full)
    with mindtorch.cache(tmp_path), pytest.warns(UserWarning, match="cannot be written: no space left"):
        assert (up(1) + 1).tolist() == [2]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("most", [0, -1, 1.5, True, "1"])
def test_L14_a_bound_that_is_none_is_refused(most: Any) -> None:
    with pytest.raises(mindtorch.UsageError, match=r"\[cache\] expected a number of bytes above 0"):
        mindtorch.cache(max_bytes=most)


def test_L14_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(mindtorch.UsageError, match=r"\[cache\] expected a folder that can be written to"):
        mindtorch.cache(tmp_path / "file")


@pytest.mark.parametrize("folder", [3, "", True, b""])
def test_L14_what_is_no_path_of_a_folder_is_refused(folder: Any) -> None:
    with pytest.raises(mindtorch.UsageError, match=r"\[cache\] expected the path of a folder, or None, got "):
        mindtorch.cache(folder)


def test_L14_a_signal_between_segments_loses_nothing(tmp_path: Path) -> None:
    """An interrupt while a value is being looked for: it is there for who asks next, and nothing ran twice."""
    x = torch.zeros(2).to(LAZY)
    with mindtorch.cache() as cache:
        x.add_(1)
        assert x.tolist() == [1, 1]
        y = torch.zeros(2).to(LAZY)
        y.add_(1)
        get, cache._shelf.get = cache._shelf.get, interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            y.tolist()
        cache._shelf.get = get  # type: ignore[method-assign]
        assert y.tolist() == [1, 1] and counts()[0] == 1


def interrupted(_name: bytes) -> None:
    raise KeyboardInterrupt
