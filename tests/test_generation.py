"""Prefill and decode in programs that do not announce them: by what is read and written, in every kind of run."""

from __future__ import annotations

import contextlib
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import mindtorch
from mindtorch._ext import context, module_state
from mindtorch.engine.semantics import generation, snapshots
from mindtorch.profile import Profiler
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator

from .generating import DEVICES, WIDTH, WORDS, Cache, Model, Takes, generate, phases, prompt, score


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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["object", "returned"])
def test_L12_text_that_is_scored_in_parts_is_forward(kind: str, device: str) -> None:
    """The evaluation of a recurrent model "generated" tokens: "prefill 256 tokens in 4 calls"."""
    model, told = Model(kind).to(device), []

    def program(steps: int) -> None:
        generated = generation.Generated()
        generate(model, device, steps, (4, 4, 4))
        generated.ends("main")
        told.append(generated)

    assert phases(lambda: program(0)) == "fff"
    assert told[0].facts("main") is None
    assert phases(lambda: program(1)) == "pppd"
    assert [row["name"] for row in told[1].facts("main")["phases"]] == ["prefill", "decode"]


@pytest.mark.parametrize("tool", ["profile", "estimate", "capture"])
def test_C2_text_that_is_scored_in_parts_is_forward_in_every_kind_of_run(tool: str) -> None:
    model = Model("returned")
    if tool == "capture":
        with mindtorch.graph.capture() as graph, torch.no_grad():
            generate(model, "cpu", 0, (4, 4, 4))
        assert {node.phase for node in graph.nodes if node.module} == {"forward"}
        return
    run = Estimator(target=targets.find("h100")) if tool == "estimate" else Profiler(whole=True)
    with run, torch.no_grad():
        generate(model, "cpu", 0, (4, 4, 4))
    report = run.report()
    rows = {row["name"]: row for row in report["phases"]}
    assert "generation" not in report and "prefill" not in rows
    assert rows["forward"]["flops"] > 0 and rows["forward"]["peak_bytes"] > 0


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


@pytest.mark.parametrize(
    "switch, expected",
    [
        (torch.no_grad(), "pddd"), (torch.no_grad, "pddd"), (torch.inference_mode(), "pddd"),
        (torch.inference_mode(False), "ffff"), (torch.enable_grad(), "ffff"), (None, "ffff"),
    ],
)  # fmt: skip
def test_L12_a_forward_that_switches_gradients_off_generates_wherever_it_is_called(switch: Any, expected: str) -> None:
    class Decorated(Model):
        forward = Model.forward if switch is None else switch(Model.forward)

    model = Decorated()

    def program() -> None:
        with torch.enable_grad():
            generate(model, "cpu")

    assert phases(program) == expected


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


def test_L12_what_is_given_is_looked_at_seven_deep() -> None:
    """Of the cache of an encoder and a decoder, that is as deep as tensors are."""
    deep: Any = torch.ones(1)
    for _ in range(7):
        deep = [deep]
    for value, count in ((deep, 1), ([deep], 0)):
        found: list[torch.Tensor] = []
        snapshots.find(value, found)
        assert len(found) == count


def test_L12_a_models_class_goes_with_the_program() -> None:
    """What a class was found to be kept it, its methods, and so the program's other objects."""
    model = type("Ends", (Model,), {})()
    kind = weakref.ref(type(model))
    generation.install()
    with torch.enable_grad():
        model(prompt("cpu", 3), Cache())
    del model
    gc.collect()
    assert kind() is None


def test_L12_what_a_module_holds_is_found_whatever_the_order_of_its_attributes() -> None:
    class Holder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(1))
            self.setting, self.name, self.keys = 2.0, "a", [torch.ones(2)]
            self.kv_cache, self.other = object(), object()

    model = Holder()
    model.below, model.again = torch.nn.Sequential(Holder(), torch.nn.Linear(2, 2), Holder()), torch.nn.ReLU()
    for turned in model.below[0], model.below[2]:
        own = dict(reversed(turned.__dict__.items()))
        turned.__dict__.clear()
        turned.__dict__.update(own)
    model.below[1]._non_persistent_buffers_set = [torch.ones(3)]  # what every module has holds no state
    del model.again.__dict__["_state_dict_hooks"]
    besides = frozenset(vars(torch.nn.Module()))
    found = module_state.values(model, besides, torch.Tensor)
    holders = model, model.below[0], model.below[2]
    expected = [value for each in holders for value in (each.scale, each.keys, each.kv_cache)]
    assert sorted(map(id, found)) == sorted(map(id, expected))
