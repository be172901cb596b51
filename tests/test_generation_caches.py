"""Prefill and decode: what a cache is, in all its forms, and what is none."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mindtorch.engine.semantics import generation
from mindtorch.profile import Profiler
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator

from .generating import DEVICES, WIDTH, WORDS, Cache, Model, Takes, generate, phases, prompt, score


def test_C2_the_time_of_looking_at_calls_is_not_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the profile's own: in no phase, and in what is said to be subtracted."""

    def slowly(of: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*args: Any) -> Any:
            time.sleep(0.05)
            return of(*args)

        return slow

    with torch.no_grad(), Profiler(whole=True) as seen:
        generate(Model(), "cpu")  # what is done before the first call has begun is part of the start-up
        monkeypatch.setattr(generation, "_phase", slowly(generation._phase))  # what is done before it is timed
        monkeypatch.setattr(generation, "_wrote", slowly(generation._wrote))
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


def test_C2_what_is_returned_and_not_passed_on_is_no_cache() -> None:
    """A decoder with attention returns its weights, to draw them: "cache 236 B", 44 of which were those."""

    class Decoder(Model):
        def forward(self, ids: Tensor, past: Any = None, at: int = 0) -> Any:
            x = self.embed(ids[:, -1])
            hidden = x if past is None else (x + past).tanh()
            return self.head(hidden), hidden, torch.ones(2, 5).softmax(1)

    def program(told: list[Any]) -> None:
        generated, model = generation.Generated(), Decoder("none")
        logits, hidden, weights = model(prompt("cpu", 1))
        drawn = [weights]
        for _ in range(3):
            logits, hidden, weights = model(logits.argmax(-1, keepdim=True), hidden)
            drawn.append(weights)
        generated.ends("main")
        told.append(generated.facts("main"))

    told: list[Any] = []
    assert phases(lambda: program(told)) == "pddd"
    assert told[0]["kv_cache"]["bytes"] == 2 * WIDTH * 4


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


@pytest.mark.parametrize("estimated", [False, True])
@pytest.mark.parametrize("kind", ["none", "object"])
def test_C2_what_a_call_frees_is_temporary_in_a_program_that_trains_whatever_its_phase(
    kind: str, estimated: bool
) -> None:
    class Wide(Model):
        def forward(self, ids: Tensor, past: Any = None, at: int = 0) -> Any:
            wide = torch.ones(1 << 16) + 1
            return super().forward(ids, past, at)[0] + wide.sum(), past

    with Estimator(target=targets.find("h100")) if estimated else Profiler(whole=True) as seen:
        model = Wide(kind)
        nn.Linear(2, 2)(torch.ones(2, 2)).sum().backward()
        with torch.no_grad():
            (score if kind == "none" else generate)(model, "cpu")
    held = seen.report()["memory"]["categories"]
    assert held["temporaries"] >= 2 * 4 * (1 << 16) > held.get("activations", 0)


class Whole(Model):
    """Gets all ids so far, and takes those itself that its cache has not, as x-transformers and fairseq do."""

    def forward(self, ids: Tensor, past: Any = None, at: int = 0) -> Any:
        if self.kind == "filled":
            x = self.embed(ids[:, past["x"].shape[2] if past else 0 :])[:, None]
            past["x"] = torch.cat((past["x"], x), 2) if past else x
            return self.head(past["x"][:, 0, -1:]), past
        kept = past.layers if self.kind == "object" else past
        known = kept[0].shape[1] if kept else 0
        return super().forward(ids[:, known:], past, at)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["object", "returned", "filled"])
def test_L12_a_model_that_gets_all_tokens_so_far_decodes_where_its_cache_grows_by_one(kind: str, device: str) -> None:
    """x-transformers' decoding was told as prefill."""
    model = Whole(kind).to(device)
    told = []

    def program(new: int = 1) -> None:
        generated = generation.Generated()
        ids = prompt(device)
        past: Any = {"object": Cache(), "filled": {}}.get(kind)
        for _ in range(4):
            logits, past = model(ids, past)
            ids = torch.cat([ids, *[logits[:, -1:].argmax(-1)] * new], 1)
        generated.ends("main")
        told.append(generated.facts("main"))

    assert phases(program) == "pddd"
    assert phases(lambda: program(2)) == "pppp"  # as the turns of a chat
    assert [fact["phases"] for fact in told] == [
        [{"name": "prefill", "steps": 1, "tokens": 12}, {"name": "decode", "steps": 3, "tokens": 6}],
        [{"name": "prefill", "steps": 4, "tokens": 24}],
    ]
    assert told[0]["kv_cache"]["bytes"] == 2 * 9 * WIDTH * 4 + (4 if kind == "returned" else 0)


@pytest.mark.parametrize("device", DEVICES)
def test_L12_drafts_of_a_model_that_gets_all_tokens_are_decoded_whatever_is_pending(device: str) -> None:
    """Whether the other model's first call was a prefill is not known before its next: until then, the drafts of one
    that gets all tokens so far were prefills, of all of these (lucidrains' speculative decoding)."""
    model, draft = Whole("returned").to(device), Whole("returned").to(device)
    told = []

    def program() -> None:
        generated = generation.Generated()
        ids, past, drafted = prompt(device), None, None
        for _ in range(2):
            for _ in range(3):
                logits, drafted = draft(ids, drafted)
                ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
            _, past = model(ids, past)
            ids, past = ids[:, :-2], (past[0][:, : ids.shape[1] - 3], past[1])  # two are rejected
            drafted = (drafted[0][:, : ids.shape[1] - 1], drafted[1])
        generated.ends("main")
        told.append(generated.facts("main"))

    assert phases(program) == "pddpdddp"
    assert told[0]["phases"] == [
        {"name": "prefill", "steps": 3, "tokens": 2 * (6 + 9 + 4)}, {"name": "decode", "steps": 5, "tokens": 10},
    ]  # fmt: skip


def test_L12_a_cache_that_is_cut_to_a_window_grows_beside_what_stays_that_long() -> None:
    """x-transformers keeps what it computed of each call beside its cache: the first decoding step in a window that is
    full was a prefill."""
    width = 6

    class Window(Model):
        def forward(self, ids: Tensor, past: Any = None, at: int = 0) -> Any:
            x = self.embed(ids if past is None else ids[:, -1:])
            values = x.cumsum(1)
            kept = x if past is None else torch.cat((past[0][:, 1 - width :], x), 1)
            return self.head(kept[:, -1:]), (kept, values, values + 1)

    model = Window()

    def program() -> None:
        ids, past = prompt("cpu", width), None
        for _ in range(4):
            logits, past = model(ids[:, -width:], None if past is None else (past[0][:, 1 - width :], *past[1:]))
            ids = torch.cat([ids, logits.argmax(-1)], 1)

    assert phases(program) == "pddd"


@pytest.mark.parametrize("read", [4, 7, 12])
def test_L12_what_a_decoder_keeps_of_its_encoder_has_not_grown(read: int) -> None:
    """x-transformers' encoder-decoder: steps were prefills until there were as many tokens as the encoder had."""

    class Decoder(Model):
        def forward(self, ids: Tensor, past: Any = None) -> Any:
            x = self.embed(ids if past is None else ids[:, -1:])
            kept = x if past is None else torch.cat((past[0], x), 1)
            encoded = [torch.zeros(2, read, WIDTH)] * 3 if past is None else past[1:]
            return self.head(kept[:, -1:]), (kept, *(torch.cat((each, x[:, :0]), 1) for each in encoded))

    model = Decoder()
    told = []

    def program() -> None:
        generated = generation.Generated()
        ids, past = prompt("cpu"), None
        for _ in range(4):
            logits, past = model(ids, past)
            ids = torch.cat([ids, logits.argmax(-1)], 1)
        generated.ends("main")
        told.append(generated.facts("main"))

    assert phases(program) == "pddd"
    assert told[0]["phases"] == [
        {"name": "prefill", "steps": 1, "tokens": 12}, {"name": "decode", "steps": 3, "tokens": 6},
    ]  # fmt: skip


class Hooked(nn.Module):
    """Two layers whose keys hooks keep in a dict, as Whisper's do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.keys, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)
        self.keys.register_forward_hook(self._keep)
        self.kept: dict[nn.Module, Tensor] = {}

    def _keep(self, module: nn.Module, _: Any, out: Tensor) -> Tensor:
        self.kept[module] = torch.cat([self.kept[module], out], 1) if module in self.kept else out
        return self.kept[module]

    def forward(self, ids: Tensor, past: dict[nn.Module, Tensor], at: int = 0) -> Any:
        self.kept = past
        return self.head(self.keys(self.embed(ids))[:, -1:]), past


@pytest.mark.parametrize("kind", ["object", "returned", "hooks", "buffer"])
@pytest.mark.parametrize("run", [Profiler, Estimator])
def test_C2_a_cache_has_its_kind_at_the_peak(kind: str, run: type[Profiler | Estimator]) -> None:
    """It was "activations", in the table below a header that named its size."""
    with run() as seen, torch.no_grad():
        model = Hooked() if kind == "hooks" else Model(kind)
        ids, past = prompt("cpu", 24), Cache() if kind == "object" else {} if kind == "hooks" else None
        logits, past = model(ids, past)
        for at in range(24, 27):
            logits, past = model(logits[:, -1:].argmax(-1), past, at)
    report = seen.report()
    kinds, at_end = report["memory"]["categories"], report["generation"]["kv_cache"]["bytes"]
    of = {n: 2 * 4 * WIDTH * n + (4 if kind == "returned" else 0) for n in range(24, 28)}  # after so many tokens
    assert at_end == (of[27] if kind != "buffer" else model.kept.nbytes)
    if kind == "buffer":
        assert "key-value cache" not in kinds and kinds["buffers"] >= at_end
    else:  # at the peak there are that of the call before and that of this one, or one of them
        assert kinds["key-value cache"] in {*of.values(), of[24] + of[25], of[25] + of[26], of[26] + of[27]}
