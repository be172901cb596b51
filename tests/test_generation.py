"""Prefill and decode in programs that do not announce them: by what is read and written, in every kind of run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mindtorch
from mindtorch._ext import context
from mindtorch.engine import semantics
from mindtorch.engine.semantics import generation
from mindtorch.profile import Profiler
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator

WIDTH, WORDS = 8, 20
Cached = tuple[Tensor, Tensor]


class Cache:
    """As transformers has it: filled by the model."""

    def __init__(self) -> None:
        self.layers: list[Any] = []

    def update(self, x: Tensor) -> Tensor:
        self.layers = [x if not self.layers else torch.cat((self.layers[0], x), 1)]
        return self.layers[0]


class Model(nn.Module):
    """Reads ids, and all that it was given before; `kind`: where that is kept."""

    def __init__(self, kind: str = "object") -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.kind = kind
        if kind == "buffer":
            self.register_buffer("kept", torch.zeros(2, 32, WIDTH))

    def forward(self, ids: Tensor, past: Any = None, at: int = 0) -> Any:
        x = self.embed(ids)
        if self.kind == "buffer":
            self.kept[:, at : at + x.shape[1]] = x
            x = self.kept[:, : at + x.shape[1]].cumsum(1)[:, at:]
        elif self.kind == "object":
            x = past.update(x)[:, -ids.shape[1] :]
        elif self.kind == "returned":
            past = (x if past is None else torch.cat((past[0], x), 1), x.mean())
            x = past[0][:, -ids.shape[1] :]
        return self.head(x), past


def prompt(device: str, length: int = 6) -> Tensor:
    return torch.arange(2 * length).reshape(2, length).remainder(WORDS).to(device)


def generate(model: Model, device: str, steps: int = 3, chunks: tuple[int, ...] = (6,)) -> None:
    ids = prompt(device, sum(chunks))
    past, at = (Cache() if model.kind == "object" else None), 0
    for length in chunks:
        logits, past = model(ids[:, at : at + length], past, at)
        at += length
    for _ in range(steps):
        logits, past = model(logits[:, -1:].argmax(-1), past, at)
        at += 1


def score(model: Model, device: str, length: int = 6) -> None:
    for _ in range(3):
        model(prompt(device, length), Cache() if model.kind == "object" else None)


class Seen:
    """The phases that calls were in, as a run sees them."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    @contextlib.contextmanager
    def listening(self) -> Any:
        def settled(phase: int) -> None:
            self.calls = [phase if call == context.CANDIDATE else call for call in self.calls]

        def hook(module: nn.Module, args: Any) -> None:
            if isinstance(module, Model):
                self.calls.append(context.get_phase())

        generation.listeners.append(settled)
        handle = nn.modules.module.register_module_forward_pre_hook(hook)
        semantics.install()
        try:
            with torch.no_grad():
                yield self
        finally:
            generation.over()
            semantics.uninstall()
            handle.remove()
            generation.listeners.remove(settled)

    @property
    def names(self) -> str:
        """A letter for each call."""
        return "".join(context.phase_name(call)[0] for call in self.calls)


DEVICES = ["cpu", "meta", "remote_accelerator"]


def phases(program: Callable[[], object]) -> str:
    with Seen().listening() as seen:
        program()
    return seen.names


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["object", "returned", "buffer"])
def test_L12_a_generation_is_one_prefill_and_then_decode(kind: str, device: str) -> None:
    model = Model(kind).to(device)
    assert phases(lambda: generate(model, device)) == "pddd"
    assert phases(lambda: generate(model, device, steps=0)) == "f"  # nothing came of it
    assert phases(lambda: (generate(model, device), generate(model, device, 1))) == "pdddpd"  # type: ignore[func-returns-value]


@pytest.mark.parametrize("kind", ["object", "returned"])
def test_L12_parts_of_a_prompt_are_prefill_the_last_of_one_token_too(kind: str) -> None:
    model = Model(kind)
    for chunks in ((3, 3), (3, 2, 1), (1, 1, 1)):
        assert phases(lambda chunks=chunks: generate(model, "cpu", 2, chunks)) == "p" * len(chunks) + "dd"  # type: ignore[misc]


@pytest.mark.parametrize("kind", ["object", "returned", "buffer", "none"])
@pytest.mark.parametrize("length", [1, 6])
def test_L12_scoring_is_forward(kind: str, length: int) -> None:
    model = Model(kind)
    if (kind, length) == ("buffer", 1):
        return  # one token after the other into buffers: generation, as far as that can be seen
    assert phases(lambda: score(model, "cpu", length)) == "fff"


def test_L12_scoring_around_a_generation_stays_forward() -> None:
    model = Model()

    def program() -> None:
        score(model, "cpu")
        generate(model, "cpu")
        score(model, "cpu")

    assert phases(program) == "fff" + "pddd" + "fff"


def test_L12_another_models_calls_in_between_change_nothing() -> None:
    model, other = Model(), nn.Linear(WIDTH, WIDTH)
    cache = Cache()

    def program() -> None:
        logits, _ = model(prompt("cpu"), cache)
        for _ in range(2):
            other(torch.ones(1, WIDTH))
            logits, _ = model(logits[:, -1:].argmax(-1), cache)

    assert phases(program) == "pdd"


def test_L12_ids_that_went_through_python_are_new() -> None:
    model, cache = Model(), Cache()

    def program() -> None:
        ids = prompt("cpu")[:1]
        for _ in range(3):
            logits, _ = model(ids, cache)
            ids = torch.tensor([[int(logits[0, -1].argmax())]])

    assert phases(program) == "pdd"


def test_L12_a_buffer_of_tokens_that_is_written_gives_new_ones() -> None:
    model, cache = Model(), Cache()

    def program() -> None:
        tokens = torch.zeros(2, 12, dtype=torch.long)
        tokens[:, :6] = prompt("cpu")
        before = 0
        for at in range(6, 9):
            logits, _ = model(tokens[:, before:at], cache)
            tokens[:, at] = logits[:, -1].argmax(-1)
            before = at

    assert phases(program) == "pdd"


def test_L12_several_new_tokens_at_a_time_are_a_prefill() -> None:
    """Another turn of a chat."""
    model, cache = Model(), Cache()

    def program() -> None:
        for _ in range(2):
            logits, _ = model(prompt("cpu").clone(), cache)
            for _ in range(2):
                logits, _ = model(logits[:, -1:].argmax(-1), cache)

    assert phases(program) == "pddpdd"


def test_L12_with_gradients_and_without_integers_it_is_forward() -> None:
    model, cache = Model(), Cache()

    def training() -> None:
        with torch.enable_grad():
            generate(model, "cpu")

    def floats() -> None:
        rnn = nn.GRU(4, 4)
        state = None
        for _ in range(3):
            _, state = rnn(torch.ones(2, 4), state)

    assert phases(training) == "ffff" and cache.layers == []
    generated = generation.Generated()
    phases(floats)
    generated.ends("main")
    assert generated.facts("main") is None


def test_L12_a_call_that_fails_is_no_prefill() -> None:
    model = Model()

    def program() -> None:
        with contextlib.suppress(IndexError):
            model(torch.full((1, 2), WORDS), Cache())
        generate(model, "cpu", 1)

    assert phases(program) == "f" + "pd"


def test_L12_nothing_is_asked_of_what_is_given_to_a_model(caplog: pytest.LogCaptureFixture) -> None:
    """It might answer anything, or do something."""
    asked: list[str] = []

    class Odd:
        @property
        def __dict__(self) -> Any:  # type: ignore[misc, override]
            asked.append("dict")
            raise RuntimeError("not for you")

        @property  # type: ignore[misc]
        def __class__(self) -> Any:  # type: ignore[override]
            asked.append("class")
            raise RuntimeError("not for you")

    class Listens:
        def __getattribute__(self, name: str) -> Any:
            asked.append(name)
            return super().__getattribute__(name)

    class List(list):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            asked.append("iter")
            return super().__iter__()

    class Dict(dict):  # type: ignore[type-arg]
        def values(self) -> Any:
            asked.append("values")
            return super().values()

    model, odd = Takes("none"), [Odd(), Listens(), List([1]), Dict(a=1), Dict]
    assert phases(lambda: [model(prompt("cpu"), each) for each in odd]) == "fffff"
    assert asked == [] and caplog.text == ""


def test_L12_sequences_of_several_lengths_in_one_tensor_are_forward(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Embedding(WORDS, WIDTH)
    ids = torch.nested.nested_tensor([torch.arange(3), torch.arange(2)], layout=torch.jagged)
    generated = generation.Generated()
    phases(lambda: [model(ids) for _ in range(2)])
    generated.ends("main")
    assert caplog.text == "" and generated.facts("main") is None


@pytest.mark.parametrize("kind", ["object", "returned"])
def test_L12_nothing_that_a_call_frees_is_held(kind: str) -> None:
    """Its peak is that of the program."""

    def peak(tracked: bool) -> int:
        model, seen = Model(kind), Profiler(whole=True)
        with torch.no_grad(), seen:
            if not tracked:
                context.follow_generation(None, None)
            generate(model, "cpu", 6)
            generation.install()
        return seen.report()["totals"]["peak_bytes"]

    assert peak(True) == peak(False)


@pytest.mark.parametrize("tool", ["profile", "recorded", "estimate", "capture"])
def test_L12_phases_are_the_same_in_every_kind_of_run(tool: str) -> None:
    device = "remote_accelerator" if tool == "recorded" else "cpu"

    def program() -> None:
        model = Model().to(device)
        with torch.no_grad():
            score(model, device)
            generate(model, device)

    if tool == "capture":
        with mindtorch.graph.capture() as graph:
            program()
        found = {node.phase for node in graph.nodes if node.op == "aten::embedding"}
        count = {name: sum(n.phase == name for n in graph.nodes if n.op == "aten::embedding") for name in found}
    else:
        run = Estimator(target=targets.find("h100")) if tool == "estimate" else Profiler(whole=True)
        with run:
            program()
        report = run.report()
        rows = {row["name"]: row for row in report["phases"]}
        # Scoring runs embedding, cat-free cache, linear; a decode step one cat more.
        assert rows["forward"]["ops"] == 3 * rows["prefill"]["ops"] and rows["decode"]["flops"] > 0
        assert rows["forward"]["flops"] == 3 * rows["prefill"]["flops"]
        assert all(rows[name]["peak_bytes"] > 0 for name in ("forward", "prefill", "decode"))
        made = report["generation"]
        assert made["phases"] == [
            {"name": "prefill", "steps": 1, "tokens": 12}, {"name": "decode", "steps": 3, "tokens": 6},
        ]  # fmt: skip
        assert made["kv_cache"]["bytes"] == 2 * 9 * WIDTH * 4
        return
    assert count == {"forward": 3, "prefill": 1, "decode": 3}


def test_L12_a_recorded_tensor_knows_it_too() -> None:
    model, device = Model("returned").to("remote_accelerator"), "remote_accelerator"
    with torch.no_grad():
        first, past = model(prompt(device))
        assert first.metadata.execution_phase == "forward"  # nobody knows yet
        second, _ = model(first[:, -1:].argmax(-1), past)
    assert second.metadata.execution_phase == "decode"


def test_C2_a_stage_that_ends_before_a_prefill_is_known_counts_it_as_forward() -> None:
    model, cache = Model(), Cache()
    with torch.no_grad():
        with Profiler(whole=True) as seen:
            logits, _ = model(prompt("cpu"), cache)
        assert {row["name"] for row in seen.report()["phases"]} >= {"forward"}
        assert "generation" not in seen.report()
        with Profiler(whole=True) as seen:
            model(logits[:, -1:].argmax(-1), cache)
        assert "prefill" not in {row["name"] for row in seen.report()["phases"]}


def test_C2_the_header_says_what_was_generated() -> None:
    with torch.no_grad(), mindtorch.profile() as p:
        generate(Model(), "cpu")
    text = " ".join(str(p).split())
    assert "generates prefill 12 tokens in 1 call; decode 6 tokens in 3 calls" in text.replace("│ │", "").replace(
        "│", ""
    )
    assert "tokens/s" in text and "576 B at the end" in text


def test_C2_the_time_of_looking_at_calls_is_not_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the profile's own: in no phase, and in what is said to be subtracted."""

    def slowly(of: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*args: Any) -> Any:
            time.sleep(0.05)
            return of(*args)

        return slow

    monkeypatch.setattr(generation, "_phase", slowly(generation._phase))
    monkeypatch.setattr(generation, "_wrote", slowly(generation._wrote))
    with torch.no_grad(), Profiler(whole=True) as seen:
        generate(Model(), "cpu")
    assert seen.report()["totals"]["overhead_s"] >= 4 * 2 * 0.05


def test_L12_tokens_that_are_gone_are_forgotten() -> None:
    """However many calls there are, each is compared with what is still there."""
    model, cache = Model(), Cache()

    def program() -> None:
        logits, _ = model(prompt("cpu"), cache)
        for _ in range(20):
            logits, _ = model(logits[:, -1:].argmax(-1), cache)
        _, state = generation._states[id(model)]
        assert len(state.tokens) <= 2

    assert phases(program) == "p" + "d" * 20


class Takes(Model):
    """Reads nothing but ids."""

    def forward(self, ids: Tensor, past: Any = None, at: int = 0) -> Any:
        return self.head(self.embed(ids))


def test_L12_what_is_given_to_a_model_may_lead_in_circles_and_be_large() -> None:
    """Looking at it ends."""

    class Node:
        def __init__(self) -> None:
            self.near: list[Any] = []

    nodes = [Node() for _ in range(300)]
    for node in nodes:
        node.near = nodes
    lists: list[Any] = []
    lists.extend([lists] * 300)
    model = Takes("none")
    for given in (nodes[0], nodes, lists, list(range(100_000)), dict.fromkeys(range(100_000))):
        assert phases(lambda given=given: model(prompt("cpu"), given)) == "f"  # type: ignore[misc]


@pytest.mark.parametrize("weak", [False, True])
def test_L12_a_cache_with_slots_of_any_name_is_one(weak: bool) -> None:
    class Slots:
        __slots__ = ("layers", "unset", *["__weakref__"][:weak])
        update = Cache.update

        def __init__(self) -> None:
            self.layers: list[Any] = []

    def program() -> None:
        model, cache = Model(), Slots()
        logits, _ = model(prompt("cpu"), cache)
        for _ in range(2):
            logits, _ = model(logits[:, -1:].argmax(-1), cache)

    assert phases(program) == "pdd"


def test_L12_buffers_are_looked_at_beside_objects_that_hold_tensors() -> None:
    """A mask that is no tensor, as FlexAttention's."""

    class Mask:
        def __init__(self) -> None:
            self.blocks = torch.ones(2, 2)

    class Masked(Model):
        def forward(self, mask: Mask, ids: Tensor, at: int) -> Any:  # type: ignore[override]
            return super().forward(ids, None, at)

    def program() -> None:
        model, mask = Masked("buffer"), Mask()
        logits, _ = model(mask, prompt("cpu"), 0)
        for at in (6, 7):
            logits, _ = model(mask, logits[:, -1:].argmax(-1), at)

    assert phases(program) == "pdd"


def test_L12_a_result_that_is_refined_is_no_generation() -> None:
    """Diffusion, whose integers are times, and message passing, whose integers are edges."""

    class Refines(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(WORDS, WIDTH)

        def forward(self, x: Tensor, integers: Tensor) -> Tensor:
            return x + self.embed(integers).mean()

    def program(shape: tuple[int, ...]) -> dict[str, Any] | None:
        generated, model, x = generation.Generated(), Refines(), torch.ones(2, WIDTH)
        for at in range(3):
            x = model(x, torch.full(shape, at))
        generated.ends("main")
        return generated.facts("main")

    for shape in ((2,), (2, 5)):
        found: list[Any] = []
        phases(lambda shape=shape, found=found: found.append(program(shape)))  # type: ignore[misc]
        assert found == [None]


def test_L12_statistics_that_a_model_keeps_are_no_cache() -> None:
    class Normed(Model):
        def __init__(self) -> None:
            super().__init__("none")
            self.norm = nn.BatchNorm1d(WIDTH)
            self.losses: list[Tensor] = []

        def forward(self, ids: Tensor, past: Any = None, at: int = 0) -> Tensor:
            x = self.head(self.norm(self.embed(ids)))
            self.losses.append(x.mean())
            return x

    model = Normed()
    assert phases(lambda: [model(torch.arange(8)) for _ in range(4)]) == "ffff"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["dict", "list", "tensor"])
def test_L12_a_call_that_fills_what_it_gets_writes_it(kind: str, device: str) -> None:
    """A dict or a list that the program made (whisper's), tensors that it made for all that is to come."""

    class Fills(Model):
        def forward(self, ids: Tensor, past: Any = None, at: int = 0) -> Tensor:
            x = self.embed(ids)
            if kind == "dict":
                x = past["x"] = torch.cat((past["x"], x), 1) if past else x
            elif kind == "list":
                past.append(x)
                x = torch.cat(past, 1)
            else:
                past[0][:, at : at + ids.shape[1]] = x
                x = past[0][:, : at + ids.shape[1]].cumsum(1)
            return self.head(x[:, -ids.shape[1] :])

    def program() -> None:
        model = Fills("none").to(device)
        past: Any = {"dict": {}, "list": [], "tensor": [torch.zeros(2, 12, WIDTH, device=device)]}[kind]
        logits = model(prompt(device), past)
        for at in (6, 7, 8):
            logits = model(logits[:, -1:].argmax(-1), past, at)

    assert phases(program) == "pddd"


def test_L12_another_models_steps_do_not_say_that_a_prefill_was_none() -> None:
    """A draft model, that goes on between the prefill of the one that verifies and its next call."""
    model, draft = Model(), Takes("none")
    draft.forward = Model("object").forward  # type: ignore[method-assign]
    cache, drafts = Cache(), Cache()

    def program() -> None:
        logits, _ = draft(prompt("cpu"), drafts)
        logits, _ = draft(logits[:, -1:].argmax(-1), drafts)
        logits, _ = model(prompt("cpu"), cache)
        token = logits[:, -1:].argmax(-1)
        draft(token, drafts)
        model(token, cache)

    assert phases(program) == "pdpdd"


@pytest.mark.parametrize("kind", ["object", "returned"])
def test_L12_generations_of_one_model_may_take_turns(kind: str) -> None:
    """As where one is guided away from another. The last prefill is known as one."""
    model = Model(kind)

    def program() -> None:
        pasts: list[Any] = [Cache() if kind == "object" else None for _ in range(2)]
        ids = [prompt("cpu"), prompt("cpu") + 1]
        for _ in range(3):
            for i in range(2):
                logits, pasts[i] = model(ids[i], pasts[i])
                ids[i] = logits[:, -1:].argmax(-1)

    assert phases(program) == "fp" + "dddd"


def test_L12_the_same_token_again_is_decoded_again() -> None:
    """A benchmark's one token; that of two generations where one is guided away from the other."""
    model, caches = Model(), (Cache(), Cache())

    def program() -> None:
        token = prompt("cpu")[:, -1:].clone()
        for cache in caches:
            model(prompt("cpu"), cache)
        for _ in range(2):
            for cache in caches:
                model(token, cache)

    assert phases(program) == "fp" + "dddd"


def test_L12_embedded_tokens_count_as_ids_do_and_masks_do_not() -> None:
    class Embedded(Model):
        def forward(self, inputs_embeds: Tensor, attention_mask: Tensor, past: Cache) -> Tensor:  # type: ignore[override]
            return past.update(inputs_embeds)[:, -1:]

    def program() -> None:
        generated, model, past = generation.Generated(), Embedded(), Cache()
        x = torch.ones(2, 6, WIDTH)
        for length in (6, 7, 8):
            x = model(inputs_embeds=x, attention_mask=torch.ones(2, length, dtype=torch.long), past=past)
        generated.ends("main")
        assert generated.facts("main")["phases"] == [  # type: ignore[index]
            {"name": "prefill", "steps": 1, "tokens": 12}, {"name": "decode", "steps": 2, "tokens": 4},
        ]  # fmt: skip

    assert phases(program) == "pdd"


@pytest.mark.parametrize("kind", ["object", "returned", "buffer", "attribute", "filled"])
def test_C2_the_cache_is_what_is_kept_of_a_generation(kind: str) -> None:
    """Wherever that is; not what a call returns beside it, nor of a call that comes later."""

    class Kept(Model):
        def __init__(self) -> None:
            super().__init__(kind)
            self.own: Tensor | None = None

        def forward(self, ids: Tensor, past: Any = None, at: int = 0) -> Any:
            if kind == "attribute":
                x = self.embed(ids)
                self.own = x if self.own is None else torch.cat((self.own, x), 1)
                return self.head(self.own[:, -ids.shape[1] :]), past
            if kind == "filled":
                past["x"] = torch.cat((past["x"], self.embed(ids)), 1) if past else self.embed(ids)
                return self.head(past["x"][:, -ids.shape[1] :]), past
            logits, past = super().forward(ids, past, at)
            return (logits, past) if kind == "returned" else (logits, past, torch.ones(1000))

    def program() -> None:
        generated, model = generation.Generated(), Kept()
        past: Any = {"object": Cache(), "filled": {}}.get(kind)
        logits, past = model(prompt("cpu"), past)[:2]
        for at in (6, 7):
            logits, past = model(logits[:, -1:].argmax(-1), past, at)[:2]
        Takes("none")(prompt("cpu"))
        generated.ends("main")
        width = 2 * WIDTH * 4
        made = generated.facts("main")
        assert made is not None
        assert made["kv_cache"]["bytes"] == {"buffer": 32 * width, "returned": 8 * width + 4}.get(kind, 8 * width)

    assert phases(program) == "pdd" + "f"


def test_C2_a_call_that_fails_leaves_the_cache() -> None:
    def program() -> None:
        generated, model, past = generation.Generated(), Model(), Cache()
        logits, _ = model(prompt("cpu"), past)
        model(logits[:, -1:].argmax(-1), past)
        with contextlib.suppress(IndexError):
            model(torch.full((2, 1), WORDS), past)
        generated.ends("main")
        assert generated.facts("main")["kv_cache"]["bytes"] == 2 * 7 * WIDTH * 4  # type: ignore[index]

    assert phases(program) == "pdd"


def test_C2_calls_count_in_the_stage_that_they_run_in() -> None:
    with torch.no_grad(), Profiler(whole=True, steps=2) as seen:
        generate(Model(), "cpu", 3)
    report = seen.report()
    assert report["generation"]["phases"] == [
        {"name": "prefill", "steps": 1, "tokens": 12}, {"name": "decode", "steps": 1, "tokens": 2},
    ]  # fmt: skip
    assert {row["name"] for row in report["phases"]} >= {"prefill", "decode"}
