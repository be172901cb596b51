"""C1, C4: ``--images N`` puts images into the prompts of a vision-language configuration: tower, projector, tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from tests.cli.configured import profile_config

pytestmark = pytest.mark.usefixtures("here")

TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "head_dim": 8,
        "num_key_value_heads": 2, "vocab_size": 90, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2}  # fmt: skip
LLAMA = {"model_type": "llama", **TEXT}
TOWER = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "patch_size": 4, "image_size": 16, "projection_dim": 24}  # fmt: skip
CLIP, SIGLIP = {"model_type": "clip_vision_model", **TOWER}, {"model_type": "siglip_vision_model", **TOWER}
PIXTRAL = {"model_type": "pixtral", **TOWER, "hidden_size": 32}
LLAVA = {"model_type": "llava", "text_config": LLAMA, "vision_config": CLIP, "image_token_index": 80}
ROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
GRID_TEXT = {**TEXT, "rope_scaling": ROPE, "rope_parameters": ROPE}
GRID = {"image_token_id": 80, "video_token_id": 81, "vision_start_token_id": 82, "vision_end_token_id": 83}
GRID_TOWER = {"depth": 2, "hidden_size": 32, "num_heads": 4, "patch_size": 4, "intermediate_size": 48}
GEMMA = {"layer_types": ["full_attention"], "sliding_window": 8, "query_pre_attn_scalar": 8}

#: name: (configuration, tokens that each image takes, the tower's module)
MODELS: dict[str, tuple[dict[str, Any], int, str]] = {
    "llava": (LLAVA, 16, "model.vision_tower"),
    "llava, all features": ({**LLAVA, "vision_feature_select_strategy": "full"}, 17, "model.vision_tower"),
    "llava, siglip": ({**LLAVA, "vision_config": SIGLIP, "vision_feature_select_strategy": "full"}, 16,
                      "model.vision_tower"),
    "llava, pixtral": ({**LLAVA, "vision_config": PIXTRAL, "vision_feature_select_strategy": "full"}, 16,
                       "model.vision_tower"),
    "vipllava": ({**LLAVA, "model_type": "vipllava", "vision_feature_layers": [-2, -1]}, 16, "model.vision_tower"),
    "mistral3": ({"model_type": "mistral3", "text_config": {"model_type": "mistral", **TEXT}, "vision_config": PIXTRAL,
                  "image_token_index": 80, "spatial_merge_size": 2}, 4, "model.vision_tower"),
    "paligemma": ({"model_type": "paligemma", "text_config": {"model_type": "gemma", **TEXT}, "vision_config": SIGLIP,
                   "image_token_index": 80, "projection_dim": 32}, 16, "model.vision_tower"),
    "gemma3": ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", **TEXT, **GEMMA},
                "vision_config": SIGLIP, "image_token_index": 80, "mm_tokens_per_image": 4}, 4, "model.vision_tower"),
    "idefics2": ({"model_type": "idefics2", "text_config": {"model_type": "mistral", **TEXT}, "image_token_id": 80,
                  "vision_config": {**TOWER, "model_type": "idefics2_vision"},
                  "perceiver_config": {"model_type": "idefics2_perceiver", "resampler_n_latents": 3, "hidden_size": 32,
                                       "resampler_depth": 1, "resampler_n_heads": 2, "resampler_head_dim": 8,
                                       "num_key_value_heads": 2}}, 3, "model.vision_model"),
    "idefics3": ({"model_type": "idefics3", "text_config": LLAMA, "image_token_id": 80, "scale_factor": 2,
                  "vision_config": {**TOWER, "model_type": "idefics3_vision"}}, 4, "model.vision_model"),
    "internvl": ({"model_type": "internvl", "text_config": {"model_type": "qwen2", **TEXT}, "image_token_id": 80,
                  "vision_config": {**TOWER, "model_type": "internvl_vision", "image_size": [16, 16],
                                    "patch_size": [4, 4]}}, 4, "model.vision_tower"),
    "aya_vision": ({"model_type": "aya_vision", "text_config": {"model_type": "cohere2", **TEXT},
                    "image_token_index": 80, "vision_config": SIGLIP}, 4, "model.vision_tower"),
    "got_ocr2": ({"model_type": "got_ocr2", "text_config": {"model_type": "qwen2", **TEXT}, "image_token_id": 80,
                  "vision_config": {"hidden_size": 24, "output_channels": 16, "num_hidden_layers": 2, "patch_size": 4,
                                    "num_attention_heads": 4, "image_size": 64, "mlp_dim": 48, "window_size": 2,
                                    "global_attn_indexes": [1]}}, 16, "model.vision_tower"),
    "llama4": ({"model_type": "llama4", "architectures": ["Llama4ForConditionalGeneration"], "image_token_index": 80,
                "text_config": {"model_type": "llama4_text", **TEXT, "intermediate_size_mlp": 64,
                                "num_local_experts": 2, "num_experts_per_tok": 1},
                "vision_config": {**TOWER, "model_type": "llama4_vision_model", "hidden_size": 32,
                                  "vision_output_dim": 24,
                                  "intermediate_size": 128, "projector_input_dim": 24, "projector_output_dim": 24}}, 4,
               "vision_model"),
    "mllama": ({"model_type": "mllama", "architectures": ["MllamaForConditionalGeneration"], "image_token_index": 90,
                "text_config": {"model_type": "mllama_text_model", **TEXT, "num_hidden_layers": 2,
                                "cross_attention_layers": [1]},
                "vision_config": {"model_type": "mllama_vision_model", "hidden_size": 24, "intermediate_size": 48,
                                  "num_hidden_layers": 2, "num_global_layers": 1, "attention_heads": 4, "patch_size": 4,
                                  "image_size": 16, "max_num_tiles": 4, "vision_output_dim": 48,
                                  "intermediate_layers_indices": [0],
                                  "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1], [2, 2]]}}, 1,
               "model.vision_model"),
    "qwen2_vl": ({"model_type": "qwen2_vl", **GRID, "text_config": GRID_TEXT,
                  "vision_config": {**GRID_TOWER, "embed_dim": 32}}, 6, "model.visual"),
    "qwen2_5_vl": ({"model_type": "qwen2_5_vl", **GRID, "text_config": GRID_TEXT,
                    "vision_config": {**GRID_TOWER, "out_hidden_size": 32, "window_size": 16,
                                      "fullatt_block_indexes": [1]}}, 6, "model.visual"),
    "qwen3_vl": ({"model_type": "qwen3_vl", **GRID, "text_config": GRID_TEXT,
                  "vision_config": {**GRID_TOWER, "out_hidden_size": 32, "num_position_embeddings": 16,
                                    "deepstack_visual_indexes": [0]}}, 6, "model.visual"),
    "qwen3_vl_moe": ({"model_type": "qwen3_vl_moe", **GRID,
                      "text_config": {**GRID_TEXT, "num_experts": 4, "num_experts_per_tok": 2,
                                      "moe_intermediate_size": 16},
                      "vision_config": {**GRID_TOWER, "out_hidden_size": 32, "num_position_embeddings": 16,
                                        "deepstack_visual_indexes": [0]}}, 6, "model.visual"),
    "glm4v_moe": ({"model_type": "glm4v_moe", **GRID,
                   "text_config": {**TEXT, "rope_parameters": {**ROPE, "partial_rotary_factor": 1.0},
                                   "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
                                   "moe_intermediate_size": 16, "first_k_dense_replace": 0, "n_group": 1,
                                   "topk_group": 1},
                   "vision_config": {**GRID_TOWER, "out_hidden_size": 32, "image_size": 16}}, 6, "model.visual"),
    "glm4v": ({"model_type": "glm4v", **GRID, "text_config": GRID_TEXT,
               "vision_config": {**GRID_TOWER, "out_hidden_size": 32, "image_size": 16}}, 6, "model.visual"),
}  # fmt: skip


ASKED = ["--seq", "8", "--batch", "2", "--decode", "2"]


def report(config: dict[str, Any], *options: str) -> Any:
    result = profile_config(config, *options)
    assert result.exit_code == 0, result.output + result.stderr
    return json.loads(Path("out.json").read_text())


def module(found: Any, path: str) -> Any:
    return next(row for row in found["modules"] if row["path"].endswith(f".{path}"))


@pytest.mark.parametrize("name", MODELS)
def test_C4_images_are_tokens_of_the_prompt_and_calls_of_the_tower(name: str) -> None:
    config, tokens, tower = MODELS[name]
    size = ["--image-size", "16x24"] if tower == "model.visual" else []
    found = report(config, "--target", "h100", *ASKED, "--images", "3", *size)
    work = found["workload"]
    assert work["seq"] == 8 + 3 * tokens and work["images"]["per_prompt"] == 3
    assert {row["name"]: row["tokens"] for row in work["phases"]} == {"prefill": 2 * work["seq"], "decode": 4}
    assert module(found, tower)["calls"] >= 1 and module(found, tower)["flops"] > 0
    assert not [note for note in found["warnings"] if "assum" in note], found["warnings"]


@pytest.mark.parametrize("name", ["llava", "mistral3", "mllama", "qwen2_5_vl", "idefics3"])
def test_C4_an_estimate_with_images_counts_what_a_run_counts(name: str) -> None:
    config, _, tower = MODELS[name]
    size = ["--image-size", "16x24"] if tower == "model.visual" else []
    run, estimate = (report(config, *way, *ASKED, "--images", "2", *size) for way in ([], ["--device", "meta"]))
    assert estimate["totals"]["flops"] == run["totals"]["flops"] > 0
    assert module(estimate, tower)["flops"] == module(run, tower)["flops"] > 0
    assert estimate["workload"] == run["workload"]


def test_C4_the_towers_flops_are_those_of_its_patches() -> None:
    """Two products of each weight with each patch, and two of the attention's scores and values."""
    images, width, inner, layers, places = 6, 24, 48, 2, 17
    found = report(LLAVA, "--target", "h100", *ASKED, "--images", "3")
    patches = 2 * images * 16 * (3 * 4 * 4) * width
    products = 2 * images * places * layers * (4 * width * width + 2 * width * inner)
    attention = 4 * images * places * places * width * layers
    counted = module(found, "model.vision_tower")
    assert counted["macs"] == (patches + products + attention) // 2
    projector = 2 * images * 16 * (width * 32 + 32 * 32)
    assert module(found, "model.multi_modal_projector")["macs"] == projector // 2


def test_C4_training_has_gradients_of_the_tower() -> None:
    found = report(LLAVA, "--target", "h100", "--seq", "8", "--images", "1", "--train")
    work = found["workload"]
    # LLaVA takes the features of the last layer but one: the last one and the norm behind it have no gradients.
    last = 4 * (24 * 24 + 24) + (24 * 48 + 48) + (48 * 24 + 24) + 3 * 2 * 24
    assert work["seq"] == 24 and work["optimizer"]["gradient_bytes"] == work["parameter_bytes"] - 4 * last


def test_C4_without_images_the_report_says_how_to_add_them() -> None:
    found = report(LLAVA, "--target", "h100")
    assert any("without images: --images N" in note for note in found["warnings"]) and not found["workload"]["images"]
    assert found["workload"]["seq"] == 128
    result = profile_config(LLAVA, "--target", "h100", "--images", "2", "--batch", "4")
    assert "4 × 160 tokens with 2 images of 16 x 16 each" in " ".join(result.stdout.replace("│", " ").split())
    notes = json.loads(Path("out.json").read_text())["warnings"]
    assert any("128 tokens of text and 2 images of 16 x 16 (16 tokens each)" in note for note in notes)
    assert not any("without images" in note for note in notes)


def test_C4_images_of_any_size_are_rounded_as_the_processor_rounds() -> None:
    config = MODELS["qwen2_5_vl"][0]
    for size, pixels, tokens in ((None, [1024, 1024], 128 * 128), ("13x50", [16, 48], 2 * 6)):
        given = [] if size is None else ["--image-size", size]
        images = report(config, "--device", "meta", "--images", "1", *given)["workload"]["images"]
        assert [images["height"], images["width"]] == pixels and images["tokens"] == tokens


@pytest.mark.parametrize(
    ("config", "options", "says"),
    [
        (LLAMA, ["--images", "1"], "LlamaForCausalLM takes no images in its text: leave out --images"),
        (LLAVA, ["--images", "0"], "--images"),
        (LLAVA, ["--images", "9", "--seq", "8"], "--seq 8 is too little text for 9 images"),
        (LLAVA, ["--image-size", "16x16"], "--image-size is for prompts with images: add --images N"),
        (LLAVA, ["--images", "1", "--image-size", "16"], "expected HEIGHTxWIDTH in pixels (448x672), got '16'"),
        (LLAVA, ["--images", "1", "--image-size", "16x32"], "takes images of 16 x 16: leave out --image-size"),
        (LLAVA, ["--images", "1", "--batch", "99999"], "99999 x 144 tokens are too many with --images"),
        ({**LLAVA, "model_type": "llava_next"}, ["--images", "1"], "not supported for LlavaNextFor"),
        ({**LLAVA, "vision_config": {**CLIP, "image_size": "big"}}, ["--images", "1"], "image_size"),
    ],
)  # fmt: skip
def test_C8_images_that_cannot_be_are_refused_in_one_line(config: Any, options: list[str], says: str) -> None:
    result = profile_config(config, "--target", "h100", *options)
    assert result.exit_code == 2 and says in result.stderr, result.stderr
    assert result.stderr.count("\n") == 1 and not Path("out.json").exists()
