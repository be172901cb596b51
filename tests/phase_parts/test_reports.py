"""Parts of phases in reports, measured and estimated: what is in them, and that they add up (SPEC L12, C2)."""

import csv
import json
from collections import defaultdict

import pytest
import torch
from loops import CHOOSING, DENOISING, NO_CHOOSING, NO_DENOISING, STEPS, Net, at, ddim, noise
from towers_by_hand import NONE, TOWERS, Layers, OneAfterTheOther, Patches, Two, called, ids, image, words

from mindtorch.cli.render import Canvas
from mindtorch.cli.report import View, render_report
from mindtorch.profile import Profiler
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator
from mindtorch.profile.report import columns, phase_parts
from mindtorch.profile.report.columns import REST
from mindtorch.profile.report.export import write_csv
from mindtorch.profile.report.page import page, page_data

HOW = {"measured": lambda: Profiler(whole=True), "estimated": lambda: Estimator(target=targets.find("h100"))}


def report(how, program):
    with HOW[how]() as seen:
        program()
    found = seen.report()
    adds_up(found)
    return found, seen


def trains(made):
    """An estimate does not see what was made before it."""
    model, inputs = made()
    called(model, *inputs, trains=True)


def adds_up(found):
    """Parts and the rest of a phase are the phase: each op, FLOP, nanosecond once."""
    for phase in found["phases"]:
        rows = [row for row in found["parts"] if row["phase"] == phase["name"]]
        if not rows:
            continue
        assert {row["name"] for row in rows} != {REST}
        assert len({row["name"] for row in rows}) == len(rows)
        for key in ("ops", "flops", "macs", "host_flops"):
            assert sum(row[key] for row in rows) == phase[key], key
        assert sum(round(row["time_s"] * 1e9) for row in rows) == round(phase["time_s"] * 1e9)
        if "predicted_s" in phase:
            assert sum(row["predicted_s"] for row in rows) == pytest.approx(phase["predicted_s"])


def by_phase(found):
    """{phase: {part: its modules}}, the rest left out."""
    parts = defaultdict(dict)
    for row in found["parts"]:
        if row["name"] != REST:
            parts[row["phase"]][row["name"]] = row["modules"]
    return dict(parts)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", TOWERS)
def test_L12_a_report_has_the_towers_of_each_phase(name, how):
    made, towers = TOWERS[name]
    found, _ = report(how, lambda: trains(made))
    expected = defaultdict(list)
    for module, part in towers.items():
        expected[part].append(module)
    said = by_phase(found)
    assert {part: sorted(modules) for part, modules in said.pop("forward").items()} == expected
    assert said.pop("backward").keys() == expected.keys()
    assert not said


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", NONE)
def test_L12_a_report_without_towers_has_no_parts(name, how):
    found, _ = report(how, lambda: trains(NONE[name]))
    assert found["parts"] == []
    assert "the rest" not in shown(found)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("count", [3, 9])
def test_L12_many_equal_blocks_are_one_tower(how, count):
    """Of six or more, a search looks at four."""

    def program():
        two = Two(Layers(Patches(), count), Layers(words(), count + 1))
        both = OneAfterTheOther(Layers(words(), count), Layers(words(), count + 1, source=True))
        called(two, image(), ids(), trains=True)
        called(both, ids(), ids(), trains=True)

    found, _ = report(how, program)
    parts = {"vision tower": ["Two.left"], "text tower": ["Two.right"], "encoder": ["OneAfterTheOther.left"],
             "decoder": ["OneAfterTheOther.right"]}  # fmt: skip
    said = by_phase(found)
    assert said["forward"] == parts and said["backward"].keys() == parts.keys()


@pytest.mark.parametrize("how", HOW)
def test_L12_a_tower_has_the_rows_of_its_modules(how):
    made, _ = TOWERS["vision and text"]
    found, _ = report(how, lambda: trains(made))
    modules = {row["path"]: row for row in found["modules"]}
    for part, path in (("vision tower", "Two.left"), ("text tower", "Two.right")):
        rows = [row for row in found["parts"] if row["name"] == part]
        assert sum(row["flops"] for row in rows) == modules[path]["flops"]
        assert sum(row["ops"] for row in rows) == modules[path]["ops"]
        assert sum(row["time_s"] for row in rows) == pytest.approx(modules[path]["total_s"])
        assert [row["calls"] for row in rows if row["phase"] == "forward"] == [2]
        assert [row["calls"] for row in rows if row["phase"] == "backward"] == [None]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", DENOISING)
def test_L12_a_report_has_diffusion_steps_and_how_many(name, how):
    program, module, calls = DENOISING[name]
    found, _ = report(how, program)
    (inside,) = (row for row in found["parts"] if row["phase"] == "forward")
    assert (inside["name"], inside["modules"], inside["calls"]) == ("diffusion steps", [module], calls)
    outside = next(row for row in found["parts"] if row["phase"] == "other")
    assert (outside["name"], outside["modules"], outside["calls"]) == ("diffusion steps", [], None)
    assert outside["ops"] >= 2 * STEPS
    assert f"diffusion steps: {module}, {calls} × " in shown(found)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", sorted({*NO_DENOISING, *NO_CHOOSING} - {"training, then denoising"}))
def test_L12_a_report_of_a_program_that_only_looks_like_a_loop_has_no_parts(name, how):
    found, _ = report(how, (NO_DENOISING | NO_CHOOSING)[name])
    assert found["parts"] == []


@pytest.mark.parametrize("how", HOW)
def test_L12_calls_with_gradients_are_no_diffusion_steps(how):
    trained, _ = report(how, NO_DENOISING["training"])
    drawn, _ = report(how, DENOISING["DDIM"][0])
    both, _ = report(how, NO_DENOISING["training, then denoising"])
    expected = {row["phase"]: row for row in drawn["parts"] if row["name"] != REST}
    for row in both["parts"]:
        if row["name"] == "diffusion steps":
            assert [row[key] for key in ("ops", "flops")] == [expected[row["phase"]][key] for key in ("ops", "flops")]
    assert by_phase(both) == {"forward": {"diffusion steps": ["Net"]}, "other": {"diffusion steps": []}}
    calls = {(row["phase"], row["name"]): row["calls"] for row in both["parts"] if row["calls"] is not None}
    assert calls == {("forward", "diffusion steps"): STEPS}, "of those of Net, the ones without gradients"
    (rest,) = (row for row in both["parts"] if (row["phase"], row["name"]) == ("forward", REST))
    (forward,) = (row for row in trained["phases"] if row["name"] == "forward")
    assert [rest[key] for key in ("ops", "flops")] == [forward[key] for key in ("ops", "flops")]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_L12_what_a_trained_model_computes_without_gradients_is_inference(how, off):
    def program():
        model, other = Layers(words()), torch.nn.Linear(4, 8)
        called(model, ids(), trains=True)
        with off():
            called(model, ids(), trains=False)
            called(other, torch.randn(2, 4), trains=False)  # which the run does not train

    found, _ = report(how, program)
    (inside, rest) = (row for row in found["parts"] if row["phase"] == "forward")
    assert (inside["name"], inside["modules"], inside["calls"], rest["name"]) == ("inference", ["Layers"], 2, REST)
    assert {row["phase"] for row in found["parts"]} == {"forward"}
    trained, _ = report(how, lambda: called(Layers(words()), ids(), trains=True))
    evaluated, _ = report(how, lambda: off()(called)(Layers(words()), ids(), trains=False))
    assert trained["parts"] == evaluated["parts"] == []
    of_training, of_evaluation = (row["flops"] for seen in (trained, evaluated) for row in seen["phases"][:1])
    assert rest["flops"] == of_training + 2 * (2 * 2 * 4 * 8) and inside["flops"] == of_evaluation


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("first", [False, True])
def test_L12_a_model_of_a_trained_one_s_class_is_told_from_it(how, first):
    """Its inference is none where the run does not train it, as if its class had another name."""

    def program():
        trained, other = (Layers(words()) for _ in range(2))
        order = [lambda: called(trained, ids(), trains=True), lambda: called(other, ids(), trains=False)]
        for each in reversed(order) if first else order:
            each()

    found, _ = report(how, program)
    assert found["parts"] == []


@pytest.mark.parametrize("how", HOW)
def test_L12_inference_and_diffusion_steps_name_the_model_that_does_them(how):
    def program():
        for net in (Net(), Net()):
            called(net, noise(), at(0), trains=True)
        ddim(net)
        with torch.no_grad():
            net(noise(), at(0))
            Net()(noise(), at(0))

    found, _ = report(how, program)
    (drawn,) = (row for row in found["parts"] if (row["phase"], row["name"]) == ("forward", "diffusion steps"))
    assert (drawn["modules"], drawn["calls"]) == (["Net #2"], STEPS + 1)
    assert "inference" not in by_phase(found)["forward"], "of a model that is not trained"


@pytest.mark.parametrize("how", HOW)
def test_L12_a_frozen_part_of_a_trained_model_is_no_inference(how):
    def program():
        two = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
        for _ in range(2):
            with torch.no_grad():
                x = two[0](torch.randn(4, 8))
            two[1](x).square().mean().backward()

    found, _ = report(how, program)
    assert found["parts"] == []


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", CHOOSING)
def test_L12_a_report_has_what_chooses_tokens(name, how):
    program, expected = CHOOSING[name]
    found, _ = report(how, program)
    assert by_phase(found) == {"other": {"sampling": []}}
    sampling = found["parts"][0]
    assert sampling["calls"] is None
    assert sampling["ops"] >= sum(expected.values()), "the last token's, too, though nobody reads it"


def small(kind, **config):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return getattr(transformers, f"{kind[1]}")(getattr(transformers, f"{kind[0]}")(**config)).eval()


LAYERS = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
BOTH = {f"{side}_{key}": 2 for side in ("encoder", "decoder") for key in ("layers", "attention_heads")} | {
    f"{side}_ffn_dim": 32 for side in ("encoder", "decoder")
}
TEXT = LAYERS | {"vocab_size": 50, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2}
IMAGES = LAYERS | {"image_size": 16, "patch_size": 8}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def tokens():
    return torch.randint(3, 49, (2, 6))


#: A model of transformers, what it is called with -> its parts by module.
MODELS = {
    "CLIP": (
        lambda: (small(("CLIPConfig", "CLIPModel"), text_config=TEXT, vision_config=IMAGES, projection_dim=8),
                 {"input_ids": tokens(), "pixel_values": torch.randn(2, 3, 16, 16)}),
        {"vision tower": ["CLIPModel.vision_model"], "text tower": ["CLIPModel.text_model"]},
    ),
    "SigLIP": (
        lambda: (small(("SiglipConfig", "SiglipModel"), text_config=TEXT, vision_config=IMAGES),
                 {"input_ids": tokens(), "pixel_values": torch.randn(2, 3, 16, 16)}),
        {"vision tower": ["SiglipModel.vision_model"], "text tower": ["SiglipModel.text_model"]},
    ),
    "ViLT": (
        lambda: (small(("ViltConfig", "ViltModel"), **TEXT, image_size=16, patch_size=8),
                 {"input_ids": tokens(), "pixel_values": torch.randn(2, 3, 16, 16)}),
        {},
    ),
    "T5": (
        lambda: (small(("T5Config", "T5ForConditionalGeneration"), vocab_size=50, d_model=16, d_kv=8, d_ff=32,
                       num_layers=2, num_heads=2, decoder_start_token_id=0),
                 {"input_ids": tokens(), "labels": tokens()}),
        {"encoder": ["T5ForConditionalGeneration.encoder"], "decoder": ["T5ForConditionalGeneration.decoder"]},
    ),
    "BART": (
        lambda: (small(("BartConfig", "BartForConditionalGeneration"), vocab_size=50, d_model=16, **BOTH, **TOKENS,
                       max_position_embeddings=16),
                 {"input_ids": tokens(), "labels": tokens()}),
        {"encoder": ["BartForConditionalGeneration.model.encoder"],
         "decoder": ["BartForConditionalGeneration.model.decoder"]},
    ),
    "Whisper": (
        lambda: (small(("WhisperConfig", "WhisperForConditionalGeneration"), vocab_size=50, d_model=16, **BOTH,
                       **TOKENS, decoder_start_token_id=1, num_mel_bins=8, max_source_positions=10,
                       max_target_positions=16),
                 {"input_features": torch.randn(2, 8, 20), "labels": tokens()}),
        {"encoder": ["WhisperForConditionalGeneration.model.encoder"],
         "decoder": ["WhisperForConditionalGeneration.model.decoder"]},
    ),
    "wav2vec2": (
        lambda: (small(("Wav2Vec2Config", "Wav2Vec2Model"), **LAYERS, vocab_size=32, conv_dim=(8, 8),
                       conv_stride=(5, 2), conv_kernel=(10, 3), num_conv_pos_embeddings=4,
                       num_conv_pos_embedding_groups=2),
                 {"input_values": torch.randn(2, 400)}),
        {},
    ),
    "ViT": (
        lambda: (small(("ViTConfig", "ViTForImageClassification"), **IMAGES),
                 {"pixel_values": torch.randn(2, 3, 16, 16)}),
        {},
    ),
    "GPT-2": (
        lambda: (small(("GPT2Config", "GPT2LMHeadModel"), vocab_size=50, n_embd=16, n_layer=2, n_head=2,
                       n_positions=32, bos_token_id=1, eos_token_id=2),
                 {"input_ids": tokens()}),
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", MODELS)
def test_L12_parts_of_models_of_transformers(name, how):
    made, expected = MODELS[name]

    @torch.no_grad()
    def program():
        model, inputs = made()
        for _ in range(2):
            model(**inputs)

    found, _ = report(how, program)
    assert by_phase(found).get("forward", {}) == expected


@pytest.mark.parametrize("how", HOW)
def test_L12_generation_has_an_encoder_a_decoder_and_sampling(how):
    """generate() calls the encoder by itself, before the first call of the whole model."""

    def program():
        model, inputs = MODELS["T5"][0]()
        model.generate(inputs["input_ids"], max_new_tokens=5, eos_token_id=None)

    found, _ = report(how, program)
    encoder, decoder = (MODELS["T5"][1][side] for side in ("encoder", "decoder"))
    assert by_phase(found) == {
        "forward": {"encoder": encoder}, "prefill": {"decoder": decoder}, "decode": {"decoder": decoder},
        "other": {"sampling": []},
    }  # fmt: skip
    rows = {(row["phase"], row["name"]): row for row in found["parts"]}
    assert rows["forward", "encoder"]["calls"] == 1
    assert rows["decode", "decoder"]["calls"] is None, "its calls are those of prefill, too"
    assert rows["other", "sampling"]["ops"] >= 5


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("options", [{}, {"do_sample": True, "top_k": 5, "temperature": 0.7}, {"num_beams": 2}])
def test_L12_a_decoder_alone_has_sampling_and_no_other_part(options, how):

    def program():
        model, inputs = MODELS["GPT-2"][0]()
        model.generate(inputs["input_ids"], max_new_tokens=5, eos_token_id=None, pad_token_id=0, **options)

    found, _ = report(how, program)
    assert by_phase(found) == {"other": {"sampling": []}}


@pytest.mark.parametrize("how", HOW)
def test_L12_tokens_may_go_through_python_where_a_step_of_decode_follows(how):
    @torch.no_grad()
    def program():
        model, inputs = MODELS["GPT-2"][0]()
        ids, cache = inputs["input_ids"][:1], None
        for _ in range(5):
            out = model(ids, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            ids = torch.tensor([[int(out.logits[0, -1].argmax(-1))]])

    found, _ = report(how, program)
    assert by_phase(found) == {"other": {"sampling": []}}


def shown(found, by=None):
    return render_report(found, Canvas(100, color=False), View(by), "", [])


def test_C2_parts_are_in_the_text_the_json_the_csv_and_the_page(tmp_path):
    made, _ = TOWERS["encoder and decoder"]
    found, seen = report("measured", lambda: trains(made))
    names = [(row["phase"], row["name"]) for row in found["parts"]]
    assert {name for phase, name in names if phase == "forward"} == {"encoder", "decoder", REST}

    lines = [line for line in shown(found, "phase").splitlines() if line.startswith(("  ", "forward", "backward"))]
    heads = [line.split("  ")[0] or line.split("  ")[1] for line in lines]
    places = [heads.index(name) for name in ("forward", "backward")]
    assert heads[places[0] + 1 : places[0] + 4] == [name for phase, name in names if phase == "forward"]
    assert heads[places[1] + 1 : places[1] + 4] == [name for phase, name in names if phase == "backward"]
    assert "  encoder: OneAfterTheOther.left, 2 × " in shown(found, "phase")

    assert json.loads(json.dumps(found))["parts"] == found["parts"]
    phase_keys = {column.key for column in columns.PHASES if column.value is not None and column.when == ""}
    assert all(phase_keys | {"phase", "name", "modules", "calls"} <= row.keys() for row in found["parts"])

    write_csv(found, tmp_path / "p.csv")
    with open(tmp_path / "p.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["table"] == "part"]
    assert [row["name"] for row in rows] == [f"{phase}: {name}" for phase, name in names]
    assert [float(row["self_s"]) for row in rows] == [row["time_s"] for row in found["parts"]]

    assert page_data(found, seen.recording())["report"]["parts"] == json.loads(json.dumps(found["parts"]))
    assert "partsTable()" in page(found, seen.recording())


def test_C2_the_longest_part_is_the_first_and_the_rest_the_last():
    made, _ = TOWERS["vision and text"]
    found, _ = report("measured", lambda: trains(made))
    for phase in ("forward", "backward"):
        rows = [row for row in found["parts"] if row["phase"] == phase]
        assert rows[-1]["name"] == REST
        assert [row["time_s"] for row in rows[:-1]] == sorted((row["time_s"] for row in rows[:-1]), reverse=True)


def test_C2_a_report_is_complete_though_the_search_for_parts_fails(monkeypatch):
    def fails(graphs, flows):
        raise IndexError("no such node")

    monkeypatch.setattr(phase_parts, "find_parts", fails)
    found, _ = report("measured", lambda: trains(TOWERS["vision and text"][0]))
    assert found["parts"] == []
    assert found["warnings"].count("the search for parts of phases failed: IndexError: no such node") == 1
