"""Random numbers: a generator per device, seeded by torch.manual_seed, drawn in program order (SPEC L7)."""

from __future__ import annotations

import contextlib
import copy
import pickle
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

import mindtorch
from mindtorch.engine.execute import values
from mindtorch.patch import default_device, generators

from .executors import is_held

DEVICES = ("remote_accelerator:0", "remote_accelerator:1", "remote_accelerator:7")


def draws(device: str) -> list[torch.Tensor]:
    """Draws of many kinds: creation, in place, through torch.nn, shuffles."""
    x = torch.rand(4, device=device)
    y = torch.nn.functional.dropout(torch.ones(8, device=device), 0.5)
    z = torch.zeros(3, device=device).normal_()
    return [x, y, z, torch.randperm(5, device=device), torch.bernoulli(x), torch.randn_like(z), torch.multinomial(x, 2)]


@pytest.mark.parametrize("device", DEVICES)
def test_L7_a_program_on_any_index_draws_eagers_numbers(device: str, same_bits: Callable[..., None]) -> None:
    torch.manual_seed(5)
    expected = draws("cpu")
    torch.manual_seed(5)
    got = draws(device)
    for g, e in zip(reversed(got), reversed(expected)):
        assert str(g.device) == device
        same_bits(g, e)


def test_L7_devices_and_the_cpu_do_not_disturb_each_other(same_bits: Callable[..., None]) -> None:
    torch.manual_seed(6)
    expected = [torch.rand(3) for _ in range(4)]
    torch.manual_seed(6)
    streams: dict[str, list[torch.Tensor]] = {d: [] for d in ("cpu", *DEVICES)}
    for k in range(4):
        for device, drawn in streams.items():
            drawn.append(torch.rand(3, device=device))
        if k == 1:
            streams[DEVICES[1]][-1].tolist()  # one device is read in between
    for drawn in streams.values():
        for g, e in zip(reversed(drawn), reversed(expected)):
            same_bits(g, e)


@pytest.mark.only_on("local", reason="elsewhere what can be seen runs after a read, too")
def test_L14_reading_a_draw_runs_the_draws_of_its_own_device_only() -> None:
    mindtorch.flush("test")
    a = [torch.rand(2, device=DEVICES[0]) for _ in range(3)]
    b = [torch.rand(2, device=DEVICES[1]) for _ in range(3)]
    b[1].tolist()
    assert [t.materialized for t in (*a, *b)] == [False] * 3 + [True, True, False]  # type: ignore[attr-defined]


def test_L7_a_segment_that_draws_on_several_devices(same_bits: Callable[..., None]) -> None:
    torch.manual_seed(7)
    expected = [torch.rand(2) for _ in range(3)]
    state = torch.get_rng_state()
    torch.manual_seed(7)
    mixed = []
    for k in range(6):
        mixed.append(torch.rand(2, device=DEVICES[k % 2]))
    mindtorch.flush("test")
    torch.manual_seed(7)
    for _ in range(3):
        torch.rand(2)
    assert torch.equal(torch.get_rng_state(), state), "the CPU's generator is as eager leaves it"
    for k, t in enumerate(mixed):
        same_bits(t, expected[k // 2])


def test_L7_manual_seed_reaches_every_device_in_program_order(same_bits: Callable[..., None]) -> None:
    torch.manual_seed(1)
    one = [torch.rand(2), torch.rand(2)]
    torch.manual_seed(2)
    two = [torch.rand(2), torch.rand(2)]
    new = "remote_accelerator:9", "remote_accelerator:11"
    for first, late in ((DEVICES[0], DEVICES[1]), (DEVICES[1], new[0]), (new[1], DEVICES[0])):
        torch.manual_seed(1)
        before = torch.rand(2, device=first)  # pending when the next seed comes
        torch.manual_seed(2)
        after, elsewhere = torch.rand(2, device=first), torch.rand(2, device=late)
        second = torch.rand(2, device=late)
        for got, expected in ((second, two[1]), (elsewhere, two[0]), (after, two[0]), (before, one[0])):
            same_bits(got, expected)


def test_L7_an_unread_draw_still_advances_its_generator(same_bits: Callable[..., None]) -> None:
    torch.manual_seed(3)
    _, expected = torch.rand(4), torch.rand(4)
    torch.manual_seed(3)
    torch.rand(4, device=DEVICES[1])
    same_bits(torch.rand(4, device=DEVICES[1]), expected)


def test_L7_the_state_of_each_generator_can_be_kept_and_put_back(same_bits: Callable[..., None]) -> None:
    module = torch.remote_accelerator  # type: ignore[attr-defined]
    torch.manual_seed(4)
    torch.rand(2, device=DEVICES[1])
    state = module.get_rng_state(DEVICES[1])
    first, other = torch.rand(2, device=DEVICES[1]), torch.rand(2, device=DEVICES[0])
    module.set_rng_state(state, DEVICES[1])
    same_bits(torch.rand(2, device=DEVICES[1]), first.cpu())
    with module.device(1):
        assert module.current_device() == 1 and not torch.equal(module.get_rng_state(), state)
        module.manual_seed(4)
    assert module.current_device() == 0
    same_bits(torch.rand(2, device=DEVICES[1]), other.cpu())
    assert not torch.equal(torch.rand(2, device=DEVICES[0]).cpu(), other.cpu()), "the other device was not seeded"


def test_L7_checkpointing_replays_the_draws_of_the_tensors_device(same_bits: Callable[..., None]) -> None:
    from torch.utils.checkpoint import checkpoint

    def program(device: str) -> torch.Tensor:
        torch.manual_seed(8)
        x = torch.ones(64, device=device).requires_grad_()
        torch.rand(3, device=device)
        y = checkpoint(lambda t: torch.nn.functional.dropout(t * 2, 0.5), x, use_reentrant=False)
        torch.rand(3, device=device)
        y.sum().backward()
        assert x.grad is not None
        return torch.cat([y.detach(), x.grad])

    expected = program("cpu")
    for device in DEVICES[:2]:
        same_bits(program(device), expected)


def test_L7_eager_fallbacks_draw_from_their_device(same_bits: Callable[..., None]) -> None:
    def program(device: str) -> torch.Tensor:
        torch.manual_seed(1)
        rnn = torch.nn.LSTM(3, 3, num_layers=2, dropout=0.5).to(device)
        x = torch.ones(2, 1, 3, device=device)
        torch.manual_seed(9)
        torch.rand(2, device=device)
        out = rnn(x)[0].detach().reshape(-1)
        return torch.cat([out, torch.rrelu(out, training=True), torch.rand(2, device=device)])

    expected = program("cpu")
    for device in DEVICES[:2]:
        same_bits(program(device), expected)


def test_L7_every_index_there_is_has_a_generator() -> None:
    kept = [torch.rand(1, device=f"remote_accelerator:{i}") for i in range(128)]
    assert len({t.item() for t in kept}) == 1
    again = [torch.rand(1, device=f"remote_accelerator:{i}") for i in (0, 127)]
    assert again[0].item() == again[1].item() != kept[0].item()


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("chosen", ["", "set_executor(mindtorch.engine.execute.LocalExecutor())", "set_executor(None)"])
def test_L7_a_device_that_nobody_seeded_begins_where_torchs_generator_did(
    after_a_step: Callable[..., Any], chosen: str, seeded: bool
) -> None:
    code = f"""
        import torch
        torch.default_generator.seed()  # as a process begins
        import mindtorch
        {seeded and "torch.default_generator.manual_seed(3)"}
        {chosen and "mindtorch." + chosen}
        drawn = torch.rand(3, device="remote_accelerator:0")
        print(torch.initial_seed(), drawn.tolist() == torch.rand(3).tolist())
    """
    first, second = (after_a_step(code).stdout.split() for _ in range(2))
    assert (first[0] == second[0] == "3") if seeded else first[0] != second[0]
    assert first[1] == second[1] == "True"


def test_L7_a_generator_of_the_programs_own_draws_the_cpus_numbers(same_as_eager: Callable[..., None]) -> None:
    def program(d: str) -> object:
        g = torch.Generator(device=d)
        assert g.manual_seed(11) is g and g.initial_seed() == 11 and str(g.device) == d
        x = torch.full((6,), 0.5, device=d)
        drawn = [
            torch.rand(3, generator=g, device=d),
            torch.randn(2, 2, generator=g, device=d),
            torch.rand(2, device=d),
            torch.randint(9, (4,), generator=g, device=d),
            torch.randperm(7, generator=g, device=d),
            torch.normal(0.0, 1.0, (3,), generator=g, device=d),
            torch.normal(x, 1.0, generator=g),
            torch.bernoulli(x, generator=g),
            torch.multinomial(x, 3, generator=g),
            torch.poisson(x, generator=g),
            torch.empty(4, device=d).normal_(generator=g),
            torch.empty(4, device=d).uniform_(1, 2, generator=g),
            torch.empty(4, device=d).random_(5, generator=g),
            torch.empty(4, device=d).exponential_(generator=g),
            torch.nn.init.kaiming_uniform_(torch.empty(3, 4, device=d), generator=g),
            torch.nn.init.trunc_normal_(torch.empty(5, device=d), generator=g),
        ]
        state = g.get_state()
        twins = [g.clone_state(), copy.deepcopy(g), torch.Generator(torch.device(d))]
        twins[2].set_state(state)
        assert {str(t.device) for t in twins} == {d} and pickle.loads(pickle.dumps(g)).get_state().equal(state)
        return drawn, [torch.rand(2, generator=t, device=d) for t in (*twins, g)], torch.rand(2, device=d)

    same_as_eager(program)


def test_L2_generators_know_their_device() -> None:
    for spec in ("remote_accelerator:1", mindtorch.device("remote_accelerator", 1)):
        g = torch.Generator(spec)  # type: ignore[arg-type]
        assert isinstance(g, torch.Generator) and g.device == mindtorch.device("remote_accelerator:1")
    assert str(torch.Generator("remote_accelerator").device) == "remote_accelerator:0"
    assert type(torch.Generator()) is torch.Generator and torch.Generator("cpu").device == torch.device("cpu")
    with pytest.raises(RuntimeError, match="foo"):
        torch.Generator("foo")
    with pytest.raises(TypeError, match="float"):
        torch.Generator(1.5)  # type: ignore[arg-type]


DRAWS: dict[str, Callable[[torch.Tensor, torch.Generator], object]] = {
    "rand": lambda x, g: torch.rand(2, generator=g),
    "randn there": lambda x, g: torch.randn(2, generator=g, device="cpu"),
    "randperm": lambda x, g: torch.randperm(3, generator=g),
    "normal": lambda x, g: torch.normal(0.0, 1.0, (2,), generator=g),
    "normal of means": lambda x, g: torch.normal(x, 1.0, generator=g),
    "rand_like": lambda x, g: torch.rand_like(x, generator=g),
    "bernoulli": lambda x, g: torch.bernoulli(x, generator=g),
    "multinomial": lambda x, g: torch.multinomial(input=x, num_samples=1, generator=g),
    "poisson": lambda x, g: x.poisson(generator=g) if hasattr(x, "poisson") else torch.poisson(x, generator=g),
    **{
        name: lambda x, g, name=name: getattr(x, name)(generator=g)
        for name in (  # type: ignore[misc]
            "normal_",
            "uniform_",
            "random_",
            "exponential_",
            "cauchy_",
            "log_normal_",
            "bernoulli_",
            "bernoulli",
        )
    },
    "geometric_": lambda x, g: x.geometric_(0.5, generator=g),
    "init": lambda x, g: torch.nn.init.normal_(x, generator=g),
    "sampler": lambda x, g: next(iter(torch.utils.data.RandomSampler([1, 2], generator=g))),
}


@pytest.mark.parametrize("name", DRAWS)
def test_L7_a_generator_of_the_device_does_not_draw_for_the_cpu(name: str) -> None:
    x, g = torch.full((4,), 0.5), torch.Generator(DEVICES[0])
    state = g.get_state()
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'remote_accelerator'"):
        DRAWS[name](x, g)
    assert torch.equal(g.get_state(), state) and x.tolist() == [0.5] * 4
    if name not in ("rand", "randn there", "randperm", "normal", "sampler"):  # which name no tensor
        DRAWS[name](x.to(DEVICES[0]), g)
        assert not torch.equal(g.get_state(), state)


CPU_DRAWS: dict[str, Callable[[torch.Tensor, torch.Generator], object]] = {
    **{
        name: draw
        for name, draw in DRAWS.items()
        if name not in ("rand", "randn there", "randperm", "normal", "sampler")
    },
    "rand": lambda x, g: torch.rand(2, generator=g, device=x.device),
    "randperm": lambda x, g: torch.randperm(3, generator=g, device=x.device),
    "normal": lambda x, g: torch.normal(0.0, 1.0, (2,), generator=g, device=x.device),
    "randint out": lambda x, g: torch.randint(3, (2, 2), generator=g, out=x),
    "under a default device": lambda x, g: _under(x.device, lambda: torch.rand(2, generator=g)),
    "of which gradients are wanted": lambda x, g: (x.clone().requires_grad_() * 1).normal_(generator=g),
    "default generator": lambda x, g: x.normal_(generator=torch.default_generator),
}


def _under(device: torch.device, call: Callable[[], object]) -> object:
    with device:
        return call()


@pytest.mark.parametrize("name", CPU_DRAWS)
def test_L7_a_generator_of_the_cpu_does_not_draw_for_the_device(name: str) -> None:
    """As torch has it for CUDA; nothing is written, no number drawn."""
    x, g = torch.full((2, 2), 0.5, device=DEVICES[0]), torch.Generator().manual_seed(3)
    state = g.get_state()
    with pytest.raises(RuntimeError, match="Expected a 'remote_accelerator' device type for generator but found 'cpu'"):
        CPU_DRAWS[name](x, g)
    assert torch.equal(g.get_state(), state) and x.tolist() == [[0.5, 0.5]] * 2


def test_L7_generators_follow_the_default_device() -> None:
    g = torch.Generator(DEVICES[0])
    with torch.device(DEVICES[0]):
        assert str(torch.rand(2, generator=g).device) == DEVICES[0]
    assert torch.rand(2, generator=torch.Generator()).device.type == "cpu"


@pytest.mark.only_on("local", reason="it strikes in the local executor's own code")
def test_L9_an_interrupt_while_seeding_leaves_what_was_drawn_before() -> None:
    """At every line of it: what was recorded before draws from the seed that held then."""

    class Struck(Exception):
        pass

    left = reached = 0

    def step(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal left, reached
        if event == "line":
            left, reached = left - 1, reached + 1
            if left < 0:
                raise Struck
        return step

    def enter(frame: FrameType, event: str, arg: object) -> Any:
        return step if frame.f_code in seeding else None

    states = type(mindtorch.get_executor()._states)  # type: ignore[attr-defined]
    seeding = (mindtorch.LocalExecutor.seed.__code__, states.keep.__code__)
    torch.manual_seed(7)
    expected = torch.rand(3).tolist()
    for nth in range(20):
        mindtorch.flush("test")  # no draw is pending: the seed is taken at once
        torch.manual_seed(7)
        x = torch.rand(3, device="remote_accelerator:0")
        left = nth
        sys.settrace(enter)
        try:
            torch.manual_seed(3)
        except Struck:
            pass
        finally:
            sys.settrace(None)
        assert x.tolist() == expected, nth
    assert reached > 20


def test_L9_a_handlers_error_that_is_kept_keeps_no_lock() -> None:
    """Raised at every step of a draw on the CPU: what was entered is left, though a traceback has its frames."""
    kept: list[Exception] = []
    steps = nth = 0

    class Struck(Exception):
        pass

    def step(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal steps
        if event in ("line", "return"):
            steps += 1
            if steps == nth:
                raise Struck
        return step

    def enter(frame: FrameType, event: str, arg: object) -> Any:
        return step if frame.f_code.co_filename in (contextlib.__file__, generators.__file__) else None

    with default_device.one_generator(0):
        torch.manual_seed(7)
        expected = torch.rand(3).tolist()
        while steps == nth:
            steps, nth = 0, nth + 1
            torch.manual_seed(7)
            sys.settrace(enter)
            try:
                torch.rand(3)
            except Struck as error:
                kept.append(error)
            finally:
                sys.settrace(None)
            assert not is_held(values.lock), kept[-1].__traceback__
        torch.manual_seed(7)
        assert torch.rand(3).tolist() == expected
    assert len(kept) == nth - 1 > 10


def test_L7_attention_without_dropout_draws_nothing() -> None:
    """Torch says of its CPU kernel that it draws, which refuses dropout."""
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    q = torch.arange(64.0).reshape(1, 2, 8, 4)
    state = torch.default_generator.get_state()
    with pytest.raises(RuntimeError, match="dropout"):
        attend(q, q, q, 0.5)
    attend(q, q, q)
    assert torch.equal(state, torch.default_generator.get_state())
    torch.rand(2, device="remote_accelerator:0").cpu()  # draws of before have run
    before = mindtorch.stats()["ops_recorded"]
    out = torch.nn.functional.scaled_dot_product_attention(*[q.to("remote_accelerator:0")] * 3)
    assert mindtorch.stats()["ops_recorded"] > before
    del out  # what nobody reads does not run, as a draw would
    executed = mindtorch.stats()["ops_executed"]
    torch.rand(2, device="remote_accelerator:0").cpu()
    assert mindtorch.stats()["ops_executed"] == executed + 1
