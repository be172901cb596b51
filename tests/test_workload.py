"""SPEC C1: the model of a ``config.json`` at work: forward, prefill and decoding, a training step, without a script."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from mindtorch.base.errors import UsageError
from mindtorch.profile import Profiler
from mindtorch.profile.estimate.estimator import Estimator
from mindtorch.program.model_config import model_from_config
from mindtorch.program.outcome import Outcome
from mindtorch.program.program import Program
from mindtorch.program.workload import Request, Workload

Make = Callable[..., str]

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 90}
TEXT = {**SIZES, "max_position_embeddings": 64}
IMAGE = {**{k: v for k, v in SIZES.items() if k != "vocab_size"}, "image_size": 32, "patch_size": 8}
TWO = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "vocab_size": 90,
       "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "pad_token_id": 0,
       "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3, "max_position_embeddings": 64}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**SIZES, "num_key_value_heads": 2},
    "mistral": {**SIZES, "num_key_value_heads": 2, "sliding_window": 8},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 90, "n_positions": 64, "bos_token_id": 1,
             "eos_token_id": 2},
    "mixtral": {**SIZES, "num_key_value_heads": 2, "num_local_experts": 4},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 90, "state_size": 4},
    "bert": TEXT,
    "roberta": {**TEXT, "max_position_embeddings": 66},
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 90},
    "bart": TWO,
    "whisper": {**TWO, "max_source_positions": 50, "max_target_positions": 64, "num_mel_bins": 16},
    "vit": {**IMAGE, "architectures": ["ViTForImageClassification"]},
    "convnext": {"hidden_sizes": [8, 16, 32, 32], "depths": [1, 1, 1, 1], "image_size": 32},
    "clip": {"text_config": {**SIZES, "max_position_embeddings": 24}, "vision_config": IMAGE, "projection_dim": 16},
    "wav2vec2": {**SIZES, "conv_dim": [16], "conv_kernel": [20], "conv_stride": [20], "num_feat_extract_layers": 1,
                 "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2},
    "llava": {"text_config": {**SIZES, "model_type": "llama"},
              "vision_config": {**IMAGE, "model_type": "clip_vision_model"}},
}  # fmt: skip
GENERATE = ("llama", "mistral", "gpt2", "mixtral", "mamba", "t5", "bart", "whisper", "llava")
PLAIN_405B = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16384, "vocab_size": 128256,
              "intermediate_size": 53248, "num_hidden_layers": 126, "num_attention_heads": 128,
              "num_key_value_heads": 8, "max_position_embeddings": 131072}  # fmt: skip


@pytest.fixture(autouse=True)
def leave_no_model_behind() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture
def make(tmp_path: Any) -> Make:
    """The path of a ``config.json`` of that model type, with changes."""

    def make(kind: str, **changes: Any) -> str:
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"model_type": kind, **CONFIGS.get(kind, {}), **changes}))
        return str(path)

    return make


def run(path: str, repeat: int = 1, **asked: Any) -> tuple[Program, Outcome]:
    program = Program.parse(path, request=Request(**asked))
    outcome = program.run(repeat)
    outcome.show()
    assert outcome.error is None
    return program, outcome


def profile(path: str, calls: int = 1, warmup: int = 1, **asked: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """(phases of the report by name, the workload's own facts)."""
    program = Program.parse(path, request=Request(**asked))
    with Profiler() as profiler:
        outcome = program.run(calls, warmup, profiler.stage)
    outcome.show()
    assert outcome.error is None and program.workload is not None
    report = profiler.report()
    startup, totals = report["startup"], report["totals"]
    accounted = sum((startup["import_s"], startup["init_s"], report["steps"]["warmup_s"], totals["overhead_s"]))
    assert accounted + totals["time_s"] == pytest.approx(totals["wall_s"], rel=1e-9)
    assert sum(row["time_s"] for row in report["phases"]) == pytest.approx(totals["time_s"], rel=1e-9)
    assert totals["peak_bytes"] == max(row["peak_bytes"] for row in report["phases"])
    return {row["name"]: row for row in report["phases"]}, program.workload.facts()


# -- what is built and called ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "model", "inputs"),
    [("llama", "LlamaForCausalLM", ["input_ids=2x128 (int64)"]),
     ("gpt2", "GPT2LMHeadModel", ["input_ids=2x64 (int64)"]),
     ("bert", "BertModel", ["input_ids=2x64 (int64)"]), ("roberta", "RobertaModel", ["input_ids=2x64 (int64)"]),
     ("t5", "T5ForConditionalGeneration", ["input_ids=2x128 (int64)", "decoder_input_ids=2x128 (int64)"]),
     ("whisper", "WhisperForConditionalGeneration",
      ["input_features=2x16x100 (float32)", "decoder_input_ids=2x64 (int64)"]),
     ("vit", "ViTForImageClassification", ["pixel_values=2x3x32x32 (float32)"]),
     ("convnext", "ConvNextModel", ["pixel_values=2x3x32x32 (float32)"]),
     ("clip", "CLIPModel", ["input_ids=2x24 (int64)", "pixel_values=2x3x32x32 (float32)"]),
     ("wav2vec2", "Wav2Vec2Model", ["input_values=2x16000 (float32)"]),
     ("llava", "LlavaForConditionalGeneration", ["input_ids=2x128 (int64)"])],
)  # fmt: skip
def test_C1_model_and_inputs_follow_from_the_configuration(make, kind, model, inputs):
    program, outcome = run(make(kind), batch=2)
    facts = program.workload.facts()
    assert (facts["model"], facts["inputs"], facts["batch"]) == (model, inputs, 2)
    assert next(iter(outcome.result.values())).shape[0] == 2
    assert facts["parameters"] == sum(p.numel() for p in program.model.parameters())
    assert bool(facts["notes"]) == (kind == "llava")


def test_C1_seq_and_batch(make):
    program, outcome = run(make("llama"), batch=3, seq=20)
    assert outcome.result.logits.shape == (3, 20, 90)
    assert outcome.result.past_key_values is None
    assert program.workload.facts()["phases"] == [{"name": "forward", "steps": 1, "tokens": 60}]


@pytest.mark.parametrize("kind", CONFIGS)
def test_C1_training_step_of_every_kind(make, kind):
    program, outcome = run(make(kind), batch=2, train=True)
    assert math.isfinite(outcome.result)
    assert not program.model.training and all(p.grad is None for p in program.model.parameters())
    optimizer = program.workload.facts()["optimizer"]
    assert 0 < 2 * optimizer["gradient_bytes"] < optimizer["state_bytes"]


@pytest.mark.parametrize("kind", ["llama", "bert", "t5", "vit", "clip"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_C1_dtype(make, kind, dtype):
    program, outcome = run(make(kind), dtype=dtype)
    assert {p.dtype for p in program.model.parameters()} == {getattr(torch, dtype)}
    assert program.workload.facts()["dtype"] == dtype
    assert next(iter(outcome.result.values())).dtype is getattr(torch, dtype)


def test_C1_dtype_of_the_configuration_unless_asked(make):
    path = make("llama", dtype="bfloat16")
    assert run(path)[0].workload.facts()["dtype"] == "bfloat16"
    assert run(path, dtype="float32")[0].workload.facts()["dtype"] == "float32"


# -- generating ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", GENERATE)
def test_C4_decoding_ends_with_the_token_that_generate_gives(make, kind):
    program, outcome = run(make(kind), batch=2, seq=12, decode=5)
    model, inputs = program.model, dict(program.workload.inputs)
    assert outcome.result.shape == (2, 1)
    if kind in ("t5", "bart", "whisper"):  # generate() begins with tokens of its own: a pass over all for each instead
        if kind != "whisper":
            inputs["decoder_input_ids"] = inputs["decoder_input_ids"][:, :1]
        for _ in range(6):
            with torch.no_grad():
                token = model(**inputs, use_cache=False).logits[:, -1:].argmax(-1)
            inputs["decoder_input_ids"] = torch.cat([inputs["decoder_input_ids"], token], 1)
        assert outcome.result.tolist() == inputs["decoder_input_ids"][:, -1:].tolist()
        return
    model.generation_config.eos_token_id = None
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    expected = model.generate(**inputs, max_new_tokens=6, do_sample=False)
    assert outcome.result.tolist() == expected[:, -1:].tolist()


@pytest.mark.parametrize(("kind", "layers"), [("llama", 2), ("gpt2", 2), ("t5", 4), ("bart", 4)])
def test_C4_key_value_cache_bytes(make, kind, layers):
    program, _ = run(make(kind), batch=2, seq=10, decode=4)
    cache = program.workload.facts()["kv_cache"]
    heads = 2 if kind == "llama" else 4
    of_a_token = 2 * 2 * 2 * heads * 8 * 4  # layers, keys and values, sequences, heads, width, float32
    if layers == 2:
        assert cache["prefill_bytes"] == 10 * of_a_token and cache["bytes"] == 14 * of_a_token
    else:  # the decoder's own begins with one token; what it attends to in the encoder stays as long as that
        assert cache["prefill_bytes"] == (1 + 10) * of_a_token and cache["bytes"] == (5 + 10) * of_a_token
    assert cache["bytes_per_step"] == of_a_token
    assert sum(4 * t["count"] * math.prod(t["shape"]) for t in cache["tensors"]) == cache["bytes"]


def test_C4_sliding_window_bounds_the_cache(make):
    program, _ = run(make("mistral"), seq=20, decode=4)
    cache = program.workload.facts()["kv_cache"]
    assert cache["bytes_per_step"] == 0 and cache["bytes"] < 2 * 2 * 2 * 8 * 8 * 4 + 64


def test_C4_prefill_and_decode_are_phases_of_their_own(make):
    batch, seq, steps = 2, 10, 3
    phases, facts = profile(make("gpt2"), batch=batch, seq=seq, decode=steps)
    assert set(phases) <= {"prefill", "decode", "other"}
    linear, head = 2 * 12 * 32 * 32, 32 * 90  # of two layers, of the logits
    attention = 2 * 2 * 32 * batch  # two products in two layers, by pairs of positions
    assert phases["prefill"]["macs"] == batch * (seq * linear + head) + attention * seq * seq
    pairs = sum(seq + step for step in range(1, steps + 1))
    assert phases["decode"]["macs"] == steps * batch * (linear + head) + attention * pairs
    assert facts["phases"] == [
        {"name": "prefill", "steps": 1, "tokens": batch * seq},
        {"name": "decode", "steps": steps, "tokens": batch * steps},
    ]


# -- training --------------------------------------------------------------------------------------------------------


def test_C4_training_and_decoding_are_run_apart(make):
    batch, seq = 2, 10
    alone, _ = profile(make("gpt2", attn_pdrop=0.0), batch=batch, seq=seq, train=True)
    phases, facts = profile(make("gpt2", attn_pdrop=0.0), calls=2, batch=batch, seq=seq, decode=2, train=True)
    assert {"prefill", "decode", "forward", "backward", "optimizer"} <= set(phases)
    for name in ("forward", "backward", "optimizer"):
        assert (phases[name]["macs"], phases[name]["flops"]) == (2 * alone[name]["macs"], 2 * alone[name]["flops"])
        assert phases[name]["peak_bytes"] == alone[name]["peak_bytes"]
    every = batch * seq * (2 * 12 * 32 * 32 + 32 * 90) + 2 * 2 * 32 * batch * seq * seq
    assert alone["forward"]["macs"] == every
    steps = {row["name"]: row["steps"] for row in facts["phases"]}
    assert steps == {"prefill": 2, "decode": 4, "forward": 2, "backward": 2, "optimizer": 2}


def test_C4_training_is_measured_with_the_optimizer_state_in_place(make):
    phases, facts = profile(make("llama"), warmup=0, seq=10, train=True)
    weights, tensors = facts["parameter_bytes"], 2 * 9 + 3
    assert facts["optimizer"] == {
        "name": "AdamW (fused)", "gradient_bytes": weights, "state_bytes": 2 * weights + 4 * tensors,
    }  # fmt: skip
    # The state is there before the step begins, and the step that is reported allocates nothing.
    assert phases["forward"]["peak_bytes"] > 3 * weights
    assert phases["optimizer"]["peak_bytes"] > 4 * weights
    assert phases["optimizer"]["flops"] > 0 and phases["optimizer"]["ops"] <= 2


def test_C4_peak_of_decoding_knows_nothing_of_training(make):
    both, facts = profile(make("llama"), seq=10, decode=2, train=True)
    alone, _ = profile(make("llama"), seq=10, decode=2)
    assert both["decode"]["peak_bytes"] == alone["decode"]["peak_bytes"] < 3 * facts["parameter_bytes"]


# -- without data ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "decode"), [("t5", 2), ("llama", 2), ("gpt2", 2), ("bert", None), ("vit", None)])
def test_C4_driver_reads_no_value(make, kind, decode):
    with torch.device("meta"):  # where reading raises
        model = model_from_config(make(kind), UsageError, data=False)
        result = Workload(model, Request(batch=2, seq=None, decode=decode)).run()
    found = result if decode else next(iter(result.values()))
    assert found.is_meta and found.shape[0] == 2


def test_C4_model_of_405_billion_parameters_is_built_without_data(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PLAIN_405B))
    with pytest.raises(UsageError, match="GiB"):  # measured, it needs room
        Program.parse(str(path), request=Request(seq=8)).load()

    def initialized(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a weight was initialized")

    import transformers

    monkeypatch.setattr(transformers.PreTrainedModel, "_init_weights", initialized)
    for name in ("normal_", "uniform_", "kaiming_uniform_", "zeros_", "ones_"):
        monkeypatch.setattr(torch.nn.init, name, initialized)
    with torch.device("meta"):
        program = Program.parse(str(path), request=Request(seq=8, dtype="bfloat16"))
        program.estimate = True
        assert program.load().error is None
    assert program.workload is not None
    facts = program.workload.facts()
    assert (facts["parameters"], facts["parameter_bytes"]) == (405_853_388_800, 811_706_777_600)


@pytest.mark.parametrize("kind", ["gpt2", "t5", "bart", "llama"])
def test_C4_model_without_data_has_the_same_parameters(make, kind):
    path = make(kind, tie_word_embeddings=True)
    with torch.device("meta"):
        empty = model_from_config(path, UsageError, data=False)
    full = model_from_config(path, UsageError)
    shapes = [{name: p.shape for name, p in model.named_parameters()} for model in (empty, full)]
    assert shapes[0] == shapes[1]
    assert not full.get_output_embeddings().weight.is_meta
    assert empty.get_output_embeddings().weight is empty.get_input_embeddings().weight


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("kind", "asked"),
    [("llama", {"decode": 3}), ("gpt2", {"decode": 3}), ("t5", {"decode": 3}),
     ("bert", {"train": True}), ("vit", {"train": True}), ("clip", {"train": True}), ("bert", {})],
)  # fmt: skip
def test_C4_estimate_counts_what_is_measured(make, kind, asked):
    path = make(kind)
    measured, facts = profile(path, batch=2, **asked)
    program = Program.parse(path, request=Request(batch=2, **asked))
    program.estimate = True
    with Estimator() as estimator:
        outcome = program.run(1, 0, estimator.stage)
    outcome.show()
    assert outcome.error is None and program.workload is not None
    report = estimator.report()
    assert program.workload.facts() == facts
    counted = ("ops", "flops", "macs", "peak_bytes")
    found = {row["name"]: [row[key] for key in counted] for row in report["phases"] if row["ops"]}
    expected = {name: [row[key] for key in counted] for name, row in measured.items() if row["ops"]}
    assert found.pop("other", [])[:3] == expected.pop("other", [])[:3]
    # A module that another test has left alive is part of what a measured profile holds, in every phase.
    assert len({expected[name].pop() - found[name].pop() for name in expected}) == 1
    assert found == expected
    if "decode" in asked and kind != "t5":  # whose peak is in its encoder
        assert report["memory"]["categories"]["key-value cache"] > 0
    if "train" in asked:
        held = report["memory"]["categories"]
        assert held["optimizer state"] == facts["optimizer"]["state_bytes"]


# -- bad input -------------------------------------------------------------------------------------------------------


def refused(path: str, **asked: Any) -> str:
    with pytest.raises(UsageError) as caught:
        Program.parse(path, request=Request(**asked)).run()
    text = str(caught.value)
    assert "\n" not in text and len(text) < 500
    return text


@pytest.mark.parametrize(
    ("kind", "asked", "says"),
    [("gpt2", {"seq": 65}, "GPT2LMHeadModel has 64 positions; --seq 65 needs 65"),
     ("gpt2", {"seq": 60, "decode": 5}, "64 positions; --seq 60 --decode 5 needs 65"),
     ("gpt2", {"decode": 64}, "64 positions; --decode 64 needs"), ("bert", {"seq": 65}, "has 64 positions"),
     ("roberta", {"seq": 65}, "has 64 positions"), ("bart", {"seq": 65}, "has 64 positions"),
     ("bart", {"decode": 64}, "64 positions to decode to"), ("clip", {"seq": 25}, "has 24 positions"),
     ("whisper", {"seq": 65}, "has 64 positions"), ("vit", {"seq": 8}, "takes images, which have no --seq"),
     ("vit", {"decode": 2}, "does not generate text"), ("bert", {"decode": 2}, "does not generate text"),
     ("roberta", {"decode": 2}, '"architectures": ["RobertaForCausalLM"]')],
)  # fmt: skip
def test_C1_what_the_model_cannot_do_is_refused(make, kind, asked, says):
    assert says in refused(make(kind), **asked)


@pytest.mark.parametrize(("kind", "asked"), [("gpt2", {"seq": 64}), ("gpt2", {"seq": 59, "decode": 5}),
                                             ("roberta", {"seq": 64}), ("bart", {"seq": 64, "decode": 63}),
                                             ("clip", {"seq": 24}), ("gpt2", {"decode": 60})])  # fmt: skip
def test_C1_as_many_positions_as_there_are(make, kind, asked):
    run(make(kind), **asked)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [("llama", {"hidden_size": -32}), ("llama", {"hidden_size": "wide"}), ("llama", {"num_attention_heads": 0}),
     ("llama", {"num_hidden_layers": 10**9}), ("llama", {"num_hidden_layers": -1}), ("llama", {"vocab_size": 0}),
     ("gpt2", {"n_embd": 33}), ("gpt2", {"n_embd": 2**40}), ("gpt2", {"vocab_size": None}),
     ("vit", {"image_size": -1}), ("vit", {"image_size": "large"}), ("vit", {"num_channels": 10**30}),
     ("llama", {"architectures": "LlamaForCausalLM"}), ("llama", {"architectures": [3]}),
     ("llama", {"dtype": "float3"}), ("llama", {"hidden_act": "nonesuch"}), ("nonesuch", {})],
)  # fmt: skip
def test_C1_absurd_configurations_are_refused(make, kind, changes):
    assert "config.json" in refused(make(kind, **changes))


@pytest.mark.parametrize("asked", [{"seq": 0}, {"batch": -1}, {"decode": 0}, {"seq": 1.5}, {"batch": True},
                                   {"decode": "3"}, {"dtype": "float64"}])  # fmt: skip
def test_C1_sizes_must_be_positive(asked):
    with pytest.raises(UsageError, match=f"^--{next(iter(asked))}: "):
        Request(**asked)


@pytest.mark.parametrize("asked", [{"seq": 8}, {"train": True}, {"dtype": "float16"}, {"decode": 2, "batch": 2}])
def test_C1_scripts_and_models_in_a_file_take_none_of_this(tmp_path, asked):
    (tmp_path / "net.py").write_text("")
    words = " ".join(Request(**asked).words())
    with pytest.raises(UsageError, match=f"{words} is for the config.json .* go after it: .*net.py {words}"):
        Program.parse(str(tmp_path / "net.py"), request=Request(**asked))
    with pytest.raises(UsageError, match=f"{words} is for the config.json .* --input"):
        Program.parse(f"{tmp_path}/net.py:build", request=Request(**asked))


def test_C1_inputs_of_ones_own_or_a_workload(make):
    with pytest.raises(UsageError, match="--seq 8 and --input"):
        Program.parse(make("bert"), inputs=["input_ids=1x8:int64"], request=Request(seq=8))
    program = Program.parse(make("bert"), inputs=["input_ids=1x8:int64"], request=Request(dtype="bfloat16"))
    outcome = program.run()
    assert outcome.error is None and outcome.result.last_hidden_state.shape == (1, 8, 32)
    assert outcome.result.last_hidden_state.dtype is torch.bfloat16 and program.workload is None
