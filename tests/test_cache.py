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
from mindtorch.engine.execute import ambient
from mindtorch.engine.execute.local import add_op_observer, remove_op_observer

LAZY = "remote_accelerator:0"


@pytest.fixture(autouse=True)
def nothing_counted() -> None:
    mindtorch.flush("test")
    mindtorch.reset_stats()


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


def counts() -> tuple[int, int]:
    """Hits, misses."""
    found = mindtorch.stats()
    return found["cache_hits"], found["cache_misses"]


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
        with ran() as names:
            second = evaluate(model, LAZY)
        assert names == [] and counts() == (3, 3)
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


def test_L14_another_process_finds_what_is_in_the_folder(tmp_path: Path) -> None:
    program = (
        "import sys, torch, mindtorch\n"
        "x = torch.arange(6.0).to('remote_accelerator:0')\n"
        "with mindtorch.cache(sys.argv[1]):\n"
        "    print((x.reshape(2, 3).softmax(1) * 3).tolist(), mindtorch.stats()['cache_hits'])\n"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=120, check=True
        ).stdout.rpartition(" ")
        for _ in range(2)
    ]
    assert [each[2].strip() for each in said] == ["0", "1"] and said[0][0] == said[1][0]


# ---- each part of a name ---------------------------------------------------------------------------------------------
def again(first: Callable[[], torch.Tensor], second: Callable[[], torch.Tensor]) -> bool:
    """Are the values of `second` found, once `first` has run? Whatever is said, they are eager's."""
    with mindtorch.cache():
        first().cpu()
        before = counts()[0]
        second().cpu()
        return counts()[0] > before


def up(*numbers: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype).to(LAZY)


def test_L14_the_same_call_of_the_same_bits_is_found() -> None:
    assert again(lambda: up(1, 2, 3) * 2 + up(1, 1, 1), lambda: up(1, 2, 3) * 2 + up(1, 1, 1))
    assert again(lambda: up(1, 2), lambda: up(1, 2)) is False, "an upload is nothing to be run"


@pytest.mark.parametrize(
    "other",
    [
        lambda: up(1, 2, 4) * 2,  # inputs
        lambda: up(1, 2, 3) * 3,  # numbers
        lambda: up(1, 2, 3) * 2.0,
        lambda: up(1, 2, 3) + 2,  # the operation
        lambda: up(1, 2, 3).mul_(2),  # its overload
        lambda: torch.mul(up(1, 2, 3), up(2, 2, 2)),
        lambda: up(1, 2, 3, dtype=torch.float64) * 2,  # dtype
        lambda: up(1, 2, 3)[None] * 2,  # sizes
        lambda: torch.as_strided(up(1, 2, 3, 4, 5), (3,), (2,)) * 2,  # strides
        lambda: up(0, 1, 2, 3)[1:] * 2,  # offset
        lambda: up(1, -0.0, 3) * 2,  # bits, not values
    ],
)  # fmt: skip
def test_L14_what_differs_is_not_found(other: Callable[[], torch.Tensor]) -> None:
    assert not again(lambda: up(1, 2, 3) * 2, other)


def test_L14_zero_and_minus_zero_are_not_the_same_input() -> None:
    assert not again(lambda: 1 / up(0.0), lambda: 1 / up(-0.0))


def test_L14_what_reads_what_is_part_of_the_name() -> None:
    def first() -> torch.Tensor:
        a, b = up(1, 2), up(3, 4)
        return (a + b) * a

    def second() -> torch.Tensor:
        a, b = up(1, 2), up(3, 4)
        return (a + b) * b

    assert not again(first, second)


def test_L14_dtypes_of_inputs_are_part_of_the_name() -> None:
    number = torch.tensor([1], dtype=torch.int32)
    assert not again(lambda: number.to(LAZY).double(), lambda: number.view(torch.float32).to(LAZY).double())


def test_L14_which_results_are_kept_is_part_of_the_name() -> None:
    def program(keeps: int) -> list[list[float]]:
        x = up(1, 2)
        first = x * 2
        second = first + 1
        third = first * second
        kept = [(first, second)[keeps], third]
        del first, second
        return [t.tolist() for t in reversed(kept)]

    with mindtorch.cache():
        for keeps, expected in ((0, [2, 4]), (1, [3, 5])) * 2:
            assert program(keeps) == [[6, 20], expected]


def test_L14_the_grad_mode_is_part_of_the_name() -> None:
    x = up(1, 2)

    def without() -> torch.Tensor:
        with torch.no_grad():
            return x * 2

    assert again(without, without) and not again(without, lambda: x * 2)


def test_L14_which_inputs_share_memory_is_part_of_the_name() -> None:
    def two(shared: bool) -> list[float]:
        x = up(1, 2)
        a, b = x[:], (x if shared else up(1, 2))[:]
        assert a.tolist() == b.tolist() == [1, 2]  # they are inputs of what comes
        a.add_(b).mul_(b)
        return a.tolist()  # type: ignore[no-any-return]

    with mindtorch.cache():
        for shared, expected in ((False, [2, 8]), (True, [4, 16])) * 2:
            assert two(shared) == expected


def test_L14_which_inputs_are_one_is_part_of_the_name() -> None:
    def apart() -> torch.Tensor:
        a, b = up(1, 2), up(1, 2)
        a.add_(b).mul_(b)
        return a

    def together() -> torch.Tensor:
        a = up(1, 2)
        a.add_(a).mul_(a)
        return a

    def views() -> torch.Tensor:
        a = up(1, 2)
        b = a.view(2)
        a.add_(b).mul_(b)
        return a

    with mindtorch.cache():
        for f, expected in ((apart, [2.0, 8.0]), (together, [4.0, 16.0]), (views, [4.0, 16.0])) * 2:
            assert f().tolist() == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.set_num_threads(torch.get_num_threads() + 1),
        lambda: torch.set_flush_denormal(True),
        lambda: torch._C._set_mkldnn_enabled(False),
        lambda: torch.set_default_dtype(torch.float64),
    ],
)
def test_L14_settings_are_part_of_the_name(change: Callable[[], object]) -> None:
    table = ambient.mirrored(cuda=False)
    before = [(each.name, each.get()) for each in table]
    x = torch.randn(8, 8).to(LAZY)

    def product() -> torch.Tensor:
        return x @ x

    def changed() -> torch.Tensor:
        change()
        return x @ x

    try:
        assert again(product, product) and not again(product, changed)
    finally:
        ambient.take_over(table, before)


@pytest.mark.parametrize(
    "fact", ["VERSION", "torch.__version__", "torch.version.git_version", "hardware.cpu", "os.environ"]
)
def test_L14_the_build_and_the_processor_are_part_of_the_name(fact: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content_names.surroundings.cache_clear()
    before = content_names.surroundings()
    if fact == "hardware.cpu":
        cpu = {**content_names.hardware.cpu(), "instruction_sets": ["none"]}
        monkeypatch.setattr(content_names.hardware, "cpu", lambda: cpu)
    elif fact == "os.environ":
        monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    else:
        monkeypatch.setattr(f"{content_names.__name__}.{fact}", "another")
    content_names.surroundings.cache_clear()
    try:
        assert content_names.surroundings() != before
        after, x = content_names.surroundings(), up(1, 2)
        for now in (before, after):
            monkeypatch.setattr(content_names, "surroundings", lambda now=now: now)
            assert again(lambda: x + 1, lambda: x + 1)

        def elsewhere() -> torch.Tensor:
            monkeypatch.setattr(content_names, "surroundings", lambda: before)
            return x + 1

        assert not again(lambda: x + 1, elsewhere)
    finally:
        monkeypatch.undo()
        content_names.surroundings.cache_clear()


def test_L14_attention_that_drops_nothing_is_kept() -> None:
    q = torch.randn(1, 2, 4, 8).to(LAZY)

    def attention() -> torch.Tensor:
        with torch.no_grad():
            return F.scaled_dot_product_attention(q, q, q)

    assert again(attention, attention), "a draw of no numbers leaves the generator where it was"


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
    read = content_names._bytes_of
    monkeypatch.setattr(content_names, "_bytes_of", lambda storage: hashed.append(storage.nbytes()) or read(storage))
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
    read = content_names._bytes_of
    monkeypatch.setattr(content_names, "_bytes_of", lambda storage: hashed.append(storage.nbytes()) or read(storage))
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
    assert reasons.get("aten::empty gives uninitialized memory") == 5
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
    assert followed.call("aten::copy_", ("a", "a"), ()) == followed.among() == "aten::empty gives uninitialized memory"
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


def test_L14_elsewhere_nothing_is_kept_and_it_is_said() -> None:
    previous = mindtorch.set_executor(mindtorch.LoopbackExecutor())
    try:
        with mindtorch.cache():
            assert [(up(1, 2) * 2).tolist() for _ in range(2)] == [[2, 4]] * 2
    finally:
        mindtorch.set_executor(previous)
    assert mindtorch.stats()["not_cacheable"]["values are not on this process's CPU"] >= 2


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
    assert len(said) == 1 and "not as it was written" in str(said[0].message)
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
