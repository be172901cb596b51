"""SPEC C1, C2: ``genie profile config.json`` with ``--seq``, ``--batch``, ``--decode``, ``--train``, ``--dtype``."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("transformers")

from mindtorch.cli.main import cli
from mindtorch.cli.report_workload import workload_facts

LLAMA = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 90,
         "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 4, "vocab_size": 90, "n_positions": 16}


@pytest.fixture
def here(tmp_path: Any, monkeypatch: Any) -> Any:
    gc.collect()  # models of one test must not be found alive by the next one's profile
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "gpt2.json").write_text(json.dumps(GPT2))
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    return tmp_path


def genie(*args: str) -> Any:
    return CliRunner().invoke(cli, ["profile", *args], prog_name="genie")


def test_C1_prefill_decode_and_training_of_a_configuration(here):
    options = ["--seq", "12", "--batch", "2", "--decode", "3", "--dtype", "bfloat16", "--train"]
    result = genie("config.json", *options, "--json", "out.json", "--csv", "out.csv", "--trace", "out.trace")
    assert result.exit_code == 0, result.output
    report = json.loads((here / "out.json").read_text())
    names = ["prefill", "decode", "forward", "backward", "optimizer"]
    assert [row["name"] for row in report["phases"]] == [*names, "other"]
    workload = report["workload"]
    asked = {"batch": 2, "seq": 12, "decode": 3, "train": True, "dtype": "bfloat16", "unit": "tokens"}
    assert {key: workload[key] for key in asked} == asked and workload["kind"] == "decoder"
    assert workload["parameters"] == report["totals"]["params"]
    assert workload["parameter_bytes"] == report["model"]["param_bytes"] == 2 * workload["parameters"]
    assert workload["kv_cache"]["bytes"] == 15 * 2 * (2 * 2 * 2 * 8) * 2
    assert workload["optimizer"]["state_bytes"] == 4 * workload["parameters"] + 4 * (2 * 9 + 3)
    covered = {row["name"]: (row["steps"], row["tokens"]) for row in workload["phases"]}
    assert covered == {name: (3, 6) if name == "decode" else (1, 24) for name in names}
    assert (report["steps"]["count"], report["steps"]["warmup"]) == (4, 2)
    total = report["totals"]["time_s"]
    assert sum(row["time_s"] for row in report["phases"]) == pytest.approx(total, rel=1e-6)
    text = " ".join(result.stdout.replace("│", " ").replace("\\\n", " ").split())
    for words in ("2 × 12 tokens, then 3 decoded; a training step, bfloat16", "tokens/s, ", "cache 3.75 KiB at the end",
                  "256 B more a step", "optimizer AdamW (fused), gradients 47.6 KiB, state 95.2 KiB",
                  "--seq 12 --batch 2 --decode 3 --train --dtype bfloat16"):  # fmt: skip
        assert words in text, words
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "phase,prefill" in (here / "out.csv").read_text() and '"name":"decode"' in (here / "out.trace").read_text()


def test_C1_every_part_is_repeated(here):
    result = genie("--decode", "2", "--steps", "3", "--warmup", "0", "--json", "out.json", "gpt2.json")
    assert result.exit_code == 0, result.output
    report = json.loads((here / "out.json").read_text())
    assert [(row["name"], row["steps"]) for row in report["workload"]["phases"]] == [("prefill", 3), ("decode", 6)]
    assert next(row["calls"] for row in report["modules"] if row["path"] == "GPT2LMHeadModel") == 9
    assert (report["steps"]["count"], report["steps"]["warmup"]) == (3, 0)
    assert report["workload"]["seq"] == 14  # two of its sixteen positions are for what is decoded


def test_C1_plain_configuration_is_a_forward_pass(here):
    result = genie("--json", "out.json", "gpt2.json")
    report = json.loads((here / "out.json").read_text())
    assert [row["name"] for row in report["phases"] if row["ops"]] == ["forward"]
    assert "1 × 16 tokens, float32" in result.stdout and "cache " not in result.stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [(["--seq", "0", "config.json"], "--seq"), (["--batch", "-2", "config.json"], "--batch"),
     (["--decode", "1.5", "config.json"], "--decode"), (["--dtype", "int8", "config.json"], "bfloat16"),
     (["--seq", "17", "gpt2.json"], "gpt2.json: GPT2LMHeadModel has 16 positions; --seq 17 needs 17"),
     (["--seq", "8", "train.py"], "--seq 8 is for the config.json of a transformers model, not for a script"),
     (["--train", "train.py:build"], "--input"), (["--train", "config.json", "--input", "1x8:int64"], "--input"),
     (["--decode", "2", "bert.json"], "does not generate text"), (["--train", "nowhere.json"], "does not exist"),
     (["--train", "list.json"], "not a transformers configuration"), (["--seq", "9", "text.json"], "is not JSON"),
     (["--train", "wide.json"], "weights, gradients and optimizer state take")],
)  # fmt: skip
def test_C8_bad_requests_are_one_line_and_exit_code_2(here, args, says):
    bert = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    for name, content in (("bert.json", bert), ("list.json", []), ("wide.json", {**LLAMA, "hidden_size": 2**18})):
        (here / name).write_text(json.dumps(content))
    (here / "text.json").write_text("model_type: llama")
    result = genie("--json", "out.json", *args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1 and says in result.stderr
    assert not (here / "out.json").exists() and not (here / "ran").exists()


def test_C1_options_behind_a_script_are_its_own(here):
    (here / "train.py").write_text("import sys, torch\ntorch.ones(2) + 1\nprint(sys.argv[1:])")
    result = genie("train.py", "--seq", "8", "--train")
    assert result.exit_code == 0 and "['--seq', '8', '--train']" in result.stdout


def test_C8_model_that_fails_says_what_it_was_called_with(here, monkeypatch):
    import transformers

    def sick(self, *args, input_ids=None, **kwargs):
        raise KeyError("sick")

    monkeypatch.setattr(transformers.GPT2LMHeadModel, "forward", sick)
    result = genie("gpt2.json", "--batch", "3")
    assert result.exit_code == 2 and "KeyError: 'sick'" in result.stderr
    assert result.stderr.splitlines()[-1] == "genie: gpt2.json failed when called with input_ids=3x16 (int64)"


def test_C8_help_has_examples_of_it():
    text = " ".join(genie("--help").stdout.split())
    for words in ("genie profile config.json --batch 8 --seq 1024 --dtype bfloat16", "config.json --decode 32",
                  "config.json --train", "--seq N", "[bfloat16|float16|float32]"):  # fmt: skip
        assert words in text


def test_C2_lines_about_the_workload():
    assert workload_facts({}) == workload_facts({"workload": None}) == []
    images = {
        "batch": 1,
        "seq": None,
        "unit": "images",
        "dtype": "float32",
        "train": True,
        "decode": None,
        "phases": [{"name": name, "steps": 2, "images": 2} for name in ("forward", "backward", "optimizer")],
    }
    phases = [{"name": "forward", "time_s": 0.25}, {"name": "backward", "time_s": 0.5},
              {"name": "optimizer", "time_s": 0.25}]  # fmt: skip
    facts = workload_facts({"workload": images, "phases": phases})
    assert facts == [("workload", "1 image, a training step, float32"), ("speed", "training 2 images/s")]
    decoding = {"batch": 4, "seq": 8, "unit": "tokens", "dtype": "float16", "decode": 5, "train": False,
                "phases": [{"name": "prefill", "steps": 1, "tokens": 32}, {"name": "decode", "steps": 5, "tokens": 20}],
                "kv_cache": {"bytes": 4096, "bytes_per_step": 0}}  # fmt: skip
    phases = [{"name": "prefill", "time_s": 0.5}, {"name": "decode", "time_s": 0.5}]
    assert workload_facts({"workload": decoding, "phases": phases}) == [
        ("workload", "4 × 8 tokens, then 5 decoded, float16"),
        ("speed", "prefill 64 tokens/s · decode 40 tokens/s, 100 ms a call"), ("cache", "4.00 KiB at the end"),
    ]  # fmt: skip
