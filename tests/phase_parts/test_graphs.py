"""Parts of phases in graphs: towers, sampling, diffusion steps, and what only looks like them (SPEC L12)."""

import json
import random

import pytest
import torch
from loops import CHOOSING, DENOISING, NO_CHOOSING, NO_DENOISING
from torch import nn
from towers_by_hand import NONE, TOWERS, D, Layers, Patches, Two, WithPlaces, called, ids, image, words

import mindtorch
from mindtorch.graph import ComputationGraph
from mindtorch.graph.structure import SAMPLING, find_parts, parts_of


def captured(program):
    with mindtorch.capture() as graph:
        program()
    return graph


def parts(graph):
    found = find_parts([graph])
    ops = [graph.nodes[node].op.removeprefix("aten::") for node in found.nodes[0]]
    return {".".join(module): part for module, part in found.modules.items()}, ops, set(found.nodes[0].values())


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", TOWERS)
def test_L12_towers_are_told_from_what_they_read(name, trains):
    made, expected = TOWERS[name]
    model, inputs = made()
    assert parts(captured(lambda: called(model, *inputs, trains=trains))) == (expected, [], set())


@pytest.mark.parametrize("evaluates", [False, True])
def test_L12_torchs_own_layers_are_told_in_one_call_too(evaluates):
    """Without gradients, torch runs a whole layer of an encoder in one operation."""
    made, expected = TOWERS["of torch"]
    model, inputs = made()
    graph = captured(lambda: called(model.train(not evaluates), *inputs))
    whole = "aten::_transformer_encoder_layer_fwd" in {node.op for node in graph.nodes}
    assert (whole, parts(graph)[0]) == (evaluates, expected)


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", NONE)
def test_L12_what_only_looks_like_towers_has_none(name, trains):
    model, inputs = NONE[name]()
    assert parts(captured(lambda: called(model, *inputs, trains=trains))) == ({}, [], set())


@pytest.mark.parametrize("name", TOWERS)
def test_L12_towers_are_told_where_operations_are_recorded(name):
    made, expected = TOWERS[name]
    model, inputs = made()
    model = model.to("remote_accelerator:0")
    runs = []
    with torch.no_grad(), mindtorch.register_segment_hook(runs.append):
        model(*(x.to("remote_accelerator:0") for x in inputs)).sum().item()
    found = find_parts([run.graph for run in runs])
    assert {".".join(module): part for module, part in found.modules.items()} == expected


def test_L12_names_of_modules_and_classes_say_nothing():
    class VisionEncoder(Layers):
        pass

    class Diffusion(nn.Module):
        def __init__(self):
            super().__init__()
            self.vision_tower, self.decoder = VisionEncoder(words()), VisionEncoder(words(), 3)

        def forward(self, x, y):
            return self.vision_tower(x).mean() + self.decoder(y).mean()

    assert parts(captured(lambda: called(Diffusion(), ids(), ids()))) == ({}, [], set())


def test_L12_places_that_the_program_counts_are_no_words():
    _, expected = TOWERS["places in a table"]
    model = WithPlaces()
    assert parts(captured(lambda: model(image(), ids(), torch.arange(16)[None])))[0] == expected
    assert parts(captured(lambda: model(image(), ids(), torch.arange(32)[None, 3:19] - 3)))[0] == {}, "nobody knows"


def test_L12_parts_are_of_all_graphs_of_a_run():
    class Pictures(Layers):
        pass

    pictures, texts = Pictures(Patches()), Layers(words())
    graphs = [captured(lambda: called(pictures, image())), captured(lambda: called(texts, ids()))]
    assert find_parts(graphs[:1]).modules == find_parts(graphs[1:]).modules == {}
    assert find_parts(graphs).modules == {("Pictures",): "vision tower", ("Layers",): "text tower"}


def test_L12_two_models_of_one_name_that_differ_are_none():
    pictures, texts = Layers(Patches()), Layers(words())
    assert parts(captured(lambda: (called(pictures, image()), called(texts, ids()))))[0] == {}


def test_L12_a_tower_is_the_largest_module_that_holds_nothing_of_another():
    class Wrapped(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.after = inner, nn.Linear(D, D)

        def forward(self, x):
            return self.after(self.inner(x))

    model = Two(Wrapped(Wrapped(Layers(Patches()))), Layers(words()))
    expected = {"Two.left": "vision tower", "Two.right": "text tower"}
    assert parts(captured(lambda: called(model, image(), ids())))[0] == expected


@pytest.mark.parametrize("name", DENOISING)
def test_L12_diffusion_steps_are_told_from_what_comes_back(name):
    program, module, _ = DENOISING[name]
    modules, ops, named = parts(captured(program))
    assert modules == {module: "diffusion steps"}
    assert named == {"diffusion steps"} and "mul" in ops and "sub" in ops


@pytest.mark.parametrize("name", NO_DENOISING)
def test_L12_a_model_that_is_called_again_need_not_denoise(name):
    assert parts_of(captured(NO_DENOISING[name])) == []


@pytest.mark.parametrize("name", CHOOSING)
def test_L12_sampling_is_what_lies_between_logits_and_ids(name):
    program, expected = CHOOSING[name]
    modules, ops, named = parts(captured(program))
    assert modules == {} and named == {SAMPLING}
    for op, times in expected.items():
        assert ops.count(op) in (times - 1, times), "nobody sees what the last token is for"


@pytest.mark.parametrize("name", NO_CHOOSING)
def test_L12_integers_made_of_results_need_not_be_tokens(name):
    assert parts(captured(NO_CHOOSING[name])) == ({}, [], set())


def test_L12_a_graph_shows_its_parts_in_text_json_and_pictures():
    made, expected = TOWERS["vision and text"]
    model, inputs = made()
    graph = captured(lambda: called(model, *inputs))
    text = graph.to_text()
    assert "\nvision tower: Two.left\n" in text and "\ntext tower: Two.right\n" in text
    data = json.loads(graph.to_json())
    assert {module: part["name"] for part in data["parts"] for module in part["modules"]} == expected
    again = ComputationGraph.from_dict(data)
    assert json.loads(again.to_json())["parts"] == data["parts"]
    for part in (graph.reduced(depth=0), graph.reduced(["Two.left"])):
        assert "\nvision tower: Two.left\n" in part.to_text()
    assert "vision tower: Two.left" in graph.to_svg() and "vision tower: Two.left" in graph.to_html()


def test_L12_a_graph_counts_the_operations_outside_of_modules():
    graph = captured(CHOOSING["the likeliest"][0])
    (part,) = json.loads(graph.to_json())["parts"]
    assert (part["name"], part["modules"]) == (SAMPLING, [])
    assert f"\nsampling: {len(part['nodes'])} ops outside of modules\n" in graph.to_text()
    assert all(not graph.nodes[node].module for node in part["nodes"])


def test_L12_a_graph_without_parts_says_nothing_of_them():
    model, inputs = NONE["text alone"]()
    graph = captured(lambda: called(model, *inputs))
    assert "parts" not in graph.to_dict() and "tower" not in graph.to_text()


@pytest.mark.parametrize("seed", range(20))
def test_L12_no_module_is_in_two_parts(seed):
    """Of models put together at random: whatever is named, no named module lies in another, and names differ."""
    draw = random.Random(seed)
    made = [
        lambda: (Layers(Patches(), draw.randint(1, 3)), image()),
        lambda: (Layers(words(), draw.randint(1, 3)), ids()),
        lambda: (Layers(None, draw.randint(1, 3)), torch.randn(2, 4, D)),
    ]

    def branch(depth):
        if depth and draw.random() < 0.5:
            (left, x), (right, y) = branch(depth - 1), branch(depth - 1)
            return _Pair(left, right), [x, y]
        return draw.choice(made)()

    model, inputs = branch(3)
    if not isinstance(inputs, list):
        inputs = [inputs]
        model = nn.Sequential(model)
    with torch.no_grad():
        found = find_parts([captured(lambda: model(*inputs))]).modules
    assert len(set(found.values())) != 1
    for one in found:
        assert not any(one != other and other[: len(one)] == one for other in found)


class _Pair(nn.Module):
    def __init__(self, left, right):
        super().__init__()
        self.left, self.right = left, right

    def forward(self, x, y):
        return _call(self.left, x).mean(1, keepdim=True) + _call(self.right, y).mean(1, keepdim=True)


def _call(model, x):
    return model(*x) if isinstance(x, list) else model(x)
