"""C4: models whose configuration has a ``quantization_config``: bytes, units and kernels, against hand arithmetic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mindtorch.profile.cost import op_time, targets
from mindtorch.profile.cost.work import Work, work
from tests.cli.configured import profile_config

pytestmark = pytest.mark.usefixtures("here")

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1024,
    "tie_word_embeddings": False, "dtype": "bfloat16",
}  # fmt: skip
#: Elements of a layer's seven matrices: query and output 256 x 256, key and value 128 x 256, three of 512 x 256.
ELEMENTS = 2 * 256 * 256 + 2 * 128 * 256 + 3 * 512 * 256
#: What stays in 16 bits: two of 1024 x 256 for tokens, and norms.
REST = 2 * (2 * 1024 * 256 + 5 * 256)
#: Rows of the seven matrices, and columns.
ROWS, COLUMNS = 2 * 256 + 2 * 128 + 2 * 512 + 256, 6 * 256 + 512
FLOAT8, INT8 = ({"num_bits": 8, "type": kind, "strategy": "channel"} for kind in ("float", "int"))


def compressed(weights: dict[str, Any], inputs: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"], **more}


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "modules_to_not_convert": None}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
BYTES = {
    "gptq": (GPTQ, ELEMENTS // 2 + ELEMENTS // 128 * 2 + ELEMENTS // 128 // 2 + 4 * COLUMNS),
    "gptq of 8 bits by column": (GPTQ | {"bits": 8, "group_size": -1}, ELEMENTS + 3 * ROWS + 4 * COLUMNS),
    "awq": (AWQ, ELEMENTS // 2 + ELEMENTS // 128 * 2 + ELEMENTS // 128 // 2),
    "fp8": (FP8, ELEMENTS + ELEMENTS // 128**2 * 4),
    "float8": (compressed(FLOAT8, {"num_bits": 8, "type": "float"}), ELEMENTS + 2 * ROWS),
    "int8": (compressed(INT8, {"num_bits": 8, "type": "int"}), ELEMENTS + 2 * ROWS),
    "int4": (compressed(INT4, None), ELEMENTS // 2 + ELEMENTS // 128 * 2),
    "nf4": (NF4, ELEMENTS // 2 + ELEMENTS // 64 * 4 + 7 * 64),
    "nf4 twice": (
        NF4 | {"bnb_4bit_use_double_quant": True},
        ELEMENTS // 2 + ELEMENTS // 64 + ELEMENTS // 64 // 256 * 4 + 7 * (64 + 1024),
    ),
    "llm.int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, ELEMENTS + 4 * ROWS),
}


def run(config: dict[str, Any], quantized: Any, *options: str, target: str = "h100") -> Any:
    asked = ["--target", target] if target else []
    return profile_config(config | {"quantization_config": quantized}, *asked, *options)


def report(*args: Any, **kwargs: Any) -> Any:
    result = run(*args, **kwargs)
    assert result.exit_code == 0, result.output
    return json.loads(Path("out.json").read_text())


def ops(found: Any) -> dict[str, Any]:
    return {row["name"]: row for row in found["ops"]}


@pytest.mark.parametrize("method", BYTES)
def test_C4_packed_weights_take_what_their_checkpoint_stores(method: str) -> None:
    given, layer = BYTES[method]
    plain, packed = report(LLAMA, None, "--seq", "64"), report(LLAMA, given, "--seq", "64")
    assert plain["workload"]["parameter_bytes"] == 2 * 2 * ELEMENTS + REST
    assert packed["workload"]["parameter_bytes"] == 2 * layer + REST
    assert packed["workload"]["parameters"] == plain["workload"]["parameters"] == 2 * ELEMENTS + REST // 2
    macs = [found["totals"]["macs"] for found in (plain, packed)]
    assert macs[0] == macs[1]


@pytest.mark.parametrize(
    ("given", "rate"),
    [
        (FP8, 1978.9e12),
        (BYTES["float8"][0], 1978.9e12),
        (BYTES["int8"][0], 1978.9e12),
        (GPTQ, 989.4e12),
        (AWQ, 989.4e12),
    ],
)
def test_C4_packed_products_run_at_the_rate_of_their_activations(given: Any, rate: float) -> None:
    wide = LLAMA | {"hidden_size": 4096, "intermediate_size": 8192, "num_hidden_layers": 1, "num_attention_heads": 32}
    product = ops(report(wide | {"num_key_value_heads": 32}, given, "--seq", "8192"))["genie::packed_linear"]
    assert product["calls"] == 7 and product["flops"] == 2 * 8192 * 4096 * (4 * 4096 + 3 * 8192)
    assert product["bound_s"] == pytest.approx(product["flops"] / rate)
    assert product["bound_s"] < product["about_s"] < 2.5 * product["bound_s"]


def product(rows: int, share: float, dtype: str = "bfloat16") -> Work:
    """A layer of 28,672 x 8,192, its weights packed to a share of the bytes of its activations' dtype."""
    item = 1 if "8" in dtype else 2
    weights = int(8192 * 28672 * item * share)
    return Work(
        2 * rows * 8192 * 28672, rows * 8192 * 28672, rows * 8192 * item + weights, rows * 28672 * 2, dtype, "matmul",
        "genie::packed_linear", product=(1, rows, 28672, 8192),
    )  # fmt: skip


def test_C4_decoding_streams_packed_weights_and_prefill_multiplies_them() -> None:
    h100 = targets.find("h100")
    one, many = (
        {share: op_time.estimate(product(rows, share), h100).seconds for share in (0.26, 1.0)} for rows in (1, 4096)
    )
    moved = product(1, 0.26).bytes / h100.memory_bandwidth
    assert moved < one[0.26] < 1.7 * moved and one[0.26] < 0.45 * one[1.0]
    assert many[0.26] == pytest.approx(many[1.0], rel=0.1)
    assert op_time.estimate(product(4096, 1.0, "float8_e4m3fn"), h100).seconds < 0.7 * many[1.0]


def test_C4_bitsandbytes_unpacks_for_more_than_one_row() -> None:
    found = report(LLAMA, NF4, "--seq", "64", "--decode", "3")
    calls = {name: row["calls"] for name, row in ops(found).items()}
    assert calls["genie::unpack"] == 14 and calls["genie::packed_linear"] == 3 * 14


MIXTURE = {
    "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "hidden_size": 256, "intermediate_size": 128,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1024,
    "num_local_experts": 8, "num_experts_per_tok": 2, "dtype": "bfloat16", "layer_types": ["full_attention"],
}  # fmt: skip


def test_C4_experts_are_packed_and_only_the_chosen_are_read() -> None:
    given = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    plain, packed = (report(MIXTURE, q, "--seq", "64") for q in (None, given))
    elements = 8 * (256 * 256 + 256 * 128)  # gates and ups, downs
    saved = plain["workload"]["parameter_bytes"] - packed["workload"]["parameter_bytes"]
    assert saved == elements * 2 - elements // 2 - elements // 32
    product = ops(packed)["genie::packed_linear"]
    assert product["calls"] == 2 and product["flops"] == 2 * 64 * 2 * elements // 8


@pytest.mark.parametrize(("rows", "experts"), [(2, 2), (64, 8)])
def test_C4_of_experts_those_are_read_that_have_rows(rows: int, experts: int) -> None:
    x, found = (torch.empty(rows, n, dtype=torch.bfloat16, device="meta") for n in (128, 256))
    stored = [torch.empty(8, 256, 4, *rest, dtype=torch.uint8, device="meta") for rest in ((16,), ())]
    seen = work("genie::packed_linear", (x, stored, 256, 8, torch.bfloat16), {}, found)
    assert seen.bytes_read == rows * 128 * 2 + experts * 256 * (64 + 4) and seen.bytes_written == rows * 256 * 2
    assert seen.product == (experts, rows // experts, 256, 128) and seen.flops == 2 * rows * 256 * 128


def test_C4_experts_in_blocks_of_fp8() -> None:
    config = {
        "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 256, "vocab_size": 1024,
        "intermediate_size": 512, "moe_intermediate_size": 128, "num_hidden_layers": 2, "first_k_dense_replace": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "n_shared_experts": 1, "n_routed_experts": 8, "n_group": 2,
        "topk_group": 1, "num_experts_per_tok": 2, "kv_lora_rank": 64, "q_lora_rank": 64, "qk_rope_head_dim": 32,
        "qk_nope_head_dim": 32, "v_head_dim": 32, "dtype": "bfloat16",
    }  # fmt: skip
    plain, packed = (report(config, q, "--seq", "64") for q in (None, FP8))
    experts = 8 * 3 * 256 * 128
    linear = 2 * (64 * 256 + 128 * 64 + 96 * 256 + 128 * 64 + 256 * 64) + 3 * 512 * 256 + 3 * 128 * 256
    # Blocks of 128 x 128, the last ones not full: of attention 2, 1, 2, 1, 2; dense 8 each; shared 2 each; experts 48.
    scales = 4 * (2 * (2 + 1 + 2 + 1 + 2) + 3 * 8 + 3 * 2 + 8 * 6)
    saved = plain["workload"]["parameter_bytes"] - packed["workload"]["parameter_bytes"]
    assert saved == experts + linear - scales
    assert plain["workload"]["parameters"] == packed["workload"]["parameters"]


def test_C4_weights_are_unpacked_where_the_chip_has_no_such_units() -> None:
    found = report(LLAMA, FP8, "--seq", "64", target="a100")
    assert found["workload"]["parameter_bytes"] == 2 * 2 * ELEMENTS + REST
    assert any("compute capability 8.9" in note for note in found["warnings"])
    assert "genie::packed_linear" in ops(report(LLAMA, GPTQ, "--seq", "64", target="a100"))


@pytest.mark.parametrize(
    ("given", "words", "options"),
    [
        ({"quant_method": "aqlm"}, "(aqlm) is not one that genie can size", ()),
        ({"bits": 4}, "(no method)", ()),
        (GPTQ | {"bits": 3}, "bits = 3", ()),
        (GPTQ | {"group_size": 0}, "group_size", ()),
        (GPTQ | {"dynamic": {"-:.*": {}}}, "dynamic", ()),
        (FP8 | {"weight_block_size": 128}, "weight_block_size", ()),
        ({"quant_method": "bitsandbytes"}, "load_in_4bit", ()),
        (compressed(FLOAT8, None, kv_cache_scheme={"num_bits": 8}), "kv_cache_scheme", ()),
        (compressed(FLOAT8 | {"num_bits": 4}, None), "4 bits", ()),
        (compressed(FLOAT8 | {"strategy": "tensor_group"}, None), "tensor_group", ()),
        (GPTQ, "does not train", ("--train",)),
    ],
)
def test_C4_quantization_that_is_not_sized_is_refused(given: Any, words: str, options: tuple[str, ...]) -> None:
    result = run(LLAMA, given, "--seq", "64", *options)
    assert result.exit_code == 2 and words in result.output + result.stderr, result.output
    assert "Remove it from the file" in result.output + result.stderr


def test_C4_quantization_is_not_measured() -> None:
    result = run(LLAMA, GPTQ, target="")
    assert result.exit_code == 2 and "(gptq) can be sized only, in an estimate" in result.output + result.stderr
