"""SPEC C2: the report on a terminal, from a hand-made report dict."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
from rich.cells import cell_len

from mindtorch.cli import units
from mindtorch.cli.next_commands import suggest
from mindtorch.cli.render import Canvas, canvas, terminal_width
from mindtorch.cli.report import View, render_report
from mindtorch.profile.report import folding
from mindtorch.profile.report.columns import MODULES

LONG = "aten::_scaled_dot_product_flash_attention_for_cpu"


def module(path, cls, depth, self_s=0.001, total_s=None, flops=0, params=0, calls=1, peak=0):
    total_s = self_s if total_s is None else total_s
    return {"path": path, "class": cls, "depth": depth, "calls": calls, "self_s": self_s, "total_s": total_s,
            "self_flops": flops, "flops": flops, "macs": flops // 2, "self_params": params, "params": params,
            "peak_bytes": peak, "ops": calls}  # fmt: skip


def make_report(layers: int = 4, slow: int | None = None) -> dict:
    modules = [module("Net", "Net", 0, 0.01, 1.0, flops=10**12, params=10**8, peak=2**30)]
    for i in range(layers):
        spent = 0.6 if i == slow else 0.05
        modules.append(module(f"Net.h.{i}", "Block", 1, 0.01, spent, flops=10**10, params=10**6))
        modules.append(module(f"Net.h.{i}.attn", "Attention", 2, 0.02, 0.02, flops=10**9, params=1000))
        modules.append(module(f"Net.h.{i}.mlp", "MLP", 2, 0.02, 0.02, flops=10**9, params=2000))
    modules.append(module("Net.head", "Linear", 1, 0.1, flops=10**11))
    modules.append(module("", "", 0, 0.2))
    ops = [{"name": name, "calls": 5, "self_s": t, "total_s": t, "flops": 10**9, "macs": 5 * 10**8, "bytes": 10**6,
            "category": ""} for name, t in (("aten::mm", 0.5), (LONG, 0.3), ("(python)", 0.1))]  # fmt: skip
    ops += [dict(ops[0], name=f"aten::op_{i}", self_s=0.001) for i in range(20)]
    return {
        "schema_version": 1,
        "tool": {"mindtorch": "0.1", "torch": "2.13.0", "python": "3.11"},
        "mode": "measured",
        "device": "cpu",
        "command": ["train.py", "--lr", "0.1"],
        "model": {"name": "Net", "params": 10**8, "param_bytes": 4 * 10**8},
        "startup": {"import_s": 1.5, "init_s": 0.25, "ops": 10},
        "totals": {"ops": 12345, "flops": 10**12, "macs": 5 * 10**11, "params": 10**8, "peak_bytes": 2**30,
                   "time_s": 1.2, "overhead_s": 0.012, "wall_s": 3.0, "counted_ops": 90, "coverage": 0.987},
        "phases": [{"name": "forward", "ops": 10, "time_s": 0.8, "flops": 10**12, "macs": 0, "peak_bytes": 2**20},
                   {"name": "backward", "ops": 10, "time_s": 0.4, "flops": 0, "macs": 0, "peak_bytes": 0}],
        "modules": modules,
        "ops": ops,
        "lines": [{"file": "/x/train.py", "line": 7, "function": "f", "source": "y = " + "x + " * 40 + "x", "calls": 3,
                   "self_s": 0.4, "flops": 10}],
        "uncounted": [{"name": "mylib::odd", "calls": 3, "self_s": 0.1}],
        "assumed": [],
        "warnings": ["a warning " * 20],
        "interrupted": False,
        "exit_code": 0,
    }  # fmt: skip


def predicted(report: dict) -> dict:
    """The same with what a target would take."""
    for table, key in (("modules", "total_s"), ("ops", "self_s"), ("phases", "time_s")):
        for row in report[table]:
            row["predicted_s"] = row[key] / 100
    report["totals"]["predicted_s"] = 0.012
    report["roofline"] = {"compute_s": 0.006, "memory_s": 0.003, "launch_s": 0.003, "intensity": 12.5, "target": "h100"}
    return report


def render(report, view=None, width=80, color=False, plain=False, target="train.py --lr 0.1"):
    following = suggest(report["command"], [], report)
    return render_report(report, Canvas(width, color, plain), view or View(), target, following)


@pytest.mark.parametrize("by", [None, "op", "module", "line", "phase"])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_C2_no_line_is_wider_than_the_terminal(by, width):
    text = render(make_report(), View(by=by), width)
    commands = [line for line in text.splitlines() if not line.startswith("  genie ")]  # to be copied: never broken
    assert max(map(cell_len, commands)) <= width


@pytest.mark.parametrize("width", [*range(60, 75), 120])
def test_C2_line_numbers_are_in_one_piece(width):
    row = make_report()["lines"][0]
    paths = [f"/data/{'experiments/' * n}a-folder-of-some-length/{name}" for n in range(5)
             for name in ("train_the_model.py", "m.py", "x" * 90 + ".py")]  # fmt: skip
    report = dict(make_report(), lines=[dict(row, file=path, line=12345, function="") for path in paths])
    lines = render(report, View(by="line", top=99), width).splitlines()
    assert sum(re.search(r"\w\.py:12345\b", line) is not None for line in lines) == len(paths)
    assert all(f"{path}:12345" in "".join(line.rstrip() for line in lines) for path in paths)


@pytest.mark.parametrize("width", [60, 80])
def test_C2_next_commands_can_be_copied(width):
    words = ["a folder/with spaces/train.py", "--lr", "0.1", "--note", "it's $A", f"/data/{'folder/' * 12}x.txt", "*"]
    report = dict(make_report(), command=words)
    text = render(report, View(), width)
    blocks = re.findall(r"^(  genie .*(?:\n.*(?<=\\))*(?:\n .*)?)", text.partition("\nNext")[2], re.MULTILINE)
    parts = [block.split("\n") for block in blocks]
    commands = [[line for i, line in enumerate(lines) if not i or lines[i - 1].endswith("\\")] for lines in parts]
    assert len(commands) == 3
    for lines, (expected, what) in zip(commands, suggest(words, [], report), strict=True):
        assert all(line.endswith(" \\") for line in lines[:-1]) and len(lines) > 2
        assert all(cell_len(line) <= width or len(line.split()) <= 3 for line in lines), "only what is one word"
        shell = 'genie() { printf "%s\\0" "$@"; }\n' + "\n".join(lines)
        said = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True).stdout.split("\0")[:-1]
        assert said == shlex.split(expected)[1:] and said[-len(words) :] == words
        assert " ".join(what.split()) in " ".join(text.split())


def test_C2_columns_is_the_width_when_piped(monkeypatch):
    for columns, width in (("72", 72), ("150", 150), ("", 80), ("20", 60)):  # tables need 60
        monkeypatch.setenv("COLUMNS", columns)
        assert terminal_width() == canvas().width == width


def test_C2_order_of_the_report():
    text = render(make_report())
    places = [text.index(word) for word in ("genie profile", "Phases", "Modules", "Ops", "Warnings", "Next")]
    assert places == sorted(places)
    for word in ("Net, 100 M parameters", "measured", "cpu", "12.0 ms", "subtracted", "1.50 s imports", "98.7 %",
                 "1.00 TFLOP", "500 GMAC", "peak 1.00 GiB"):  # fmt: skip
        assert word in " ".join(re.sub("[│\n]", " ", text).split()), word


def test_C2_no_name_is_cut():
    text = render(make_report(), View(by="op", top=100))
    assert LONG.removeprefix("aten::") in text
    deep = [module(".".join(["Model"] + ["a_rather_long_name"] * d), "C" * 30, d) for d in range(12)]
    report = dict(make_report(), modules=deep)
    text = render(report, View(by="module", depth=20))
    assert text.count("a_rather_long_name") == 11


def test_C2_names_in_one_piece_or_wrapped_whole():
    name = "mylib::" + "x" * 150
    report = dict(make_report(), ops=[dict(make_report()["ops"][0], name=name)])
    text = render(report, View(by="op"))
    assert "x" * 150 in text.replace("\n", "")


def test_C2_repeated_layers_are_folded_with_their_sums():
    text = render(make_report(layers=12), View(by="module"))
    assert "h.0-11 ×12 Block" in text
    line = next(line for line in text.splitlines() if "h.0-11" in line)
    assert "600 ms" in line and "12.0 M" in line  # 12 × 50 ms, 12 × 1 M parameters
    assert text.count("attn") == 1


def test_C2_a_layer_that_stands_out_keeps_its_line():
    text = render(make_report(layers=12, slow=5), View(by="module"))
    assert "h.0-4 ×5" in text and "h.5 Block" in text and "h.6-11 ×6" in text


@pytest.mark.parametrize("change", [{"flops": 7}, {"class": "Other"}, {"params": 5}, {"calls": 9}])
def test_C2_different_layers_are_not_folded(change):
    report = make_report(layers=4)
    next(row for row in report["modules"] if row["path"] == "Net.h.1.attn").update(change)
    text = render(report, View(by="module"))
    assert "h.0 Block" in text and "h.1 Block" in text and "×2" not in text


def test_C2_fold_keeps_every_sum():
    rows = make_report(layers=9, slow=3)["modules"]
    folded = folding.fold(folding.build(rows), 1.2)
    everything = [node for _, node, _ in folding.rows(folded, 99)]
    for key in ("self_s", "self_params", "calls"):
        assert sum(n.values[key] for n in everything) == pytest.approx(sum(r[key] for r in rows))


def test_C2_a_folded_line_has_the_sum_of_every_column():
    """Every number but the depth, the peak, of which it is the largest, and the time of a call, which is in the middle
    of them."""
    columns = {column.key for column in MODULES} - {"path", "class", "depth", "call_s"}
    rows = [dict(module(f"h.{i}", "Block", 0), **dict.fromkeys(columns, 1000 * (i + 1))) for i in range(3)]
    for row, median in zip(rows, (0.3, 0.1, 0.2)):
        row.update(dict.fromkeys(("calls", "flops", "params", "self_params"), 7), call_s={"median": median})
    (folded,) = folding.fold(folding.build(rows), 1e9)
    expected = {name: sum(row[name] for row in rows) for name in columns} | {"peak_bytes": 3000}
    assert folded.repeated == 3 and {name: folded.values[name] for name in columns} == expected
    assert folded.values["call_s"] == {"median": 0.2}


def test_C2_a_list_of_layers_shares_the_line_of_its_layers():
    rows = [module("Net", "Net", 0), module("Net.h", "ModuleList", 1, self_s=0.0, total_s=0.15, calls=0)]
    rows += [module(f"Net.h.{i}", "Block", 2, 0.05) for i in range(3)]
    text = render(dict(make_report(), modules=rows), View(by="module"))
    assert "└─ h.0-2 ×3 Block" in text and "ModuleList" not in text
    rows[1]["self_s"] = 0.01  # it did something: then it keeps its line
    assert "ModuleList" in render(dict(make_report(), modules=rows), View(by="module"))


def test_C2_depth_counts_what_it_hides():
    report = make_report(layers=12)
    text = render(report, View(by="module", depth=1))
    assert "attn" not in text and "▸2" in text and "--depth 2" in text
    text = render(report, View(by="module", depth=0))
    assert "h.0" not in text


def test_C2_top_and_the_rest():
    text = render(make_report(), View(by="op", top=2))
    assert "21 more" in text and "op_3" not in text


def test_C2_sort():
    def first(key):
        lines = render(make_report(), View(by="op", sort=key)).splitlines()
        return lines[lines.index(next(line for line in lines if line.startswith("op (aten)"))) + 1]

    assert first("self").startswith("mm")
    assert first("name").startswith("(Python")


def test_C2_warnings_name_what_was_not_counted():
    text = render(make_report())
    assert "no FLOP formula for 3 calls" in text and "mylib::odd ×3" in text
    clean = dict(make_report(), uncounted=[], warnings=[])
    assert "Warnings: none" in render(clean)


def test_C2_empty_report():
    report = {"totals": {"time_s": 0.0, "ops": 0}, "modules": [], "ops": [], "phases": [], "command": ["x.py"]}
    assert "genie profile" in render(report)


def test_C2_interrupted_is_said():
    assert "interrupted" in render(dict(make_report(), interrupted=True))
    assert "exit code 3" in render(dict(make_report(), exit_code=3))


def test_C8_colours_only_when_asked():
    assert "\x1b" not in render(make_report())
    assert "\x1b[" in render(make_report(), color=True)


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        ({"NO_COLOR": "", "FORCE_COLOR": "1"}, True),
    ],
)
def test_C8_no_color_wins_over_force_color(monkeypatch, variables, coloured):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    drawn = render_report(make_report(), canvas(), View(), "model.py", [])
    assert ("\x1b[" in drawn) is coloured


def test_C8_names_cannot_smuggle_escape_sequences():
    report = make_report()
    report["ops"][0]["name"] = "evil\x1b[31m\x07::op"
    report["modules"][1]["path"] = "Net.h\x1b]0;x\x07"
    text = render(report, target="a\x1b[2Jb.py")
    assert "\x1b" not in text and "\x07" not in text


def test_C8_a_terminal_without_box_characters():
    text = render(make_report(layers=12), plain=True)
    text.encode("ascii")
    assert "`- head" in text


def test_C2_wide_characters_keep_the_columns():
    report = dict(make_report(), modules=[module("模型", "网络", 0), module("模型.层", "层", 1)])
    assert max(map(cell_len, render(report, View(by="module")).splitlines())) <= 80


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 s"), (1e-9, "1 ns"), (9.996e-6, "10.0 µs"), (0.0123, "12.3 ms"), (0.9994, "999 ms"), (0.9996, "1.00 s"),
     (59.96, "60.0 s"), (1000, "16m 40s"), (7325, "2h 02m"), (-0.002, "-2.00 ms"), (None, "")],
)  # fmt: skip
def test_C2_seconds(value, text):
    assert units.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, ""), (7, "7"), (999, "999"), (1000, "1.00 k"), (999_499, "999 k"), (999_600, "1.00 M"), (124_439_808, "124 M"),
     (1e12, "1.00 T"), (5e20, "500 E")],
)  # fmt: skip
def test_C2_amounts(value, text):
    assert units.amount(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, ""), (1, "1 B"), (1023, "1.00 KiB"), (1024, "1.00 KiB"), (2**30, "1.00 GiB"), (497_759_232, "475 MiB")],
)
def test_C2_bytes(value, text):
    assert units.bytes_text(value) == text


def test_C2_numbers_fit_their_columns():
    for power in range(-12, 6):
        for digit in (1, 9.94, 9.95, 9.996, 99.96):
            assert len(units.seconds(digit * 10.0**power)) <= 8
    for power in range(20):
        for digit in (1, 9.994, 9.996):
            assert len(units.amount(digit * 10.0**power)) <= 7
            assert len(units.bytes_text(int(digit * 10.0**power))) <= 8


@pytest.mark.parametrize(("part", "text"), [(0, ""), (0.0001, "<0.1"), (0.421, "42.1"), (1, "100"), (None, "")])
def test_C2_percent(part, text):
    assert units.percent(part, 1) == text


def test_C2_deep_trees_need_no_recursion_limit():
    rows = [module(".".join(["m"] * (d + 1)), "C", d) for d in range(200)]
    render(dict(make_report(), modules=rows), View(by="module", depth=300))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_C4_predicted_times_stand_beside_the_measured(width):
    text = render(predicted(make_report()), width=width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    flat = re.sub(r"[\s│]+", " ", text)
    assert "predicted 12.0 ms on h100, bound by: 50 % compute, 25 % memory, 25 % launch · 12.5 FLOP/byte" in flat
    assert text.count(" h100\n") == 3  # a column of each table
    assert "h100" not in render(make_report(), width=width)
    folded = text.partition("×4")[2].split()
    assert folded[folded.index("ms", folded.index("ms") + 1) - 1] == "2.00"  # four layers of 0.5 ms


def test_C2_next_commands_answer_the_report():
    def following(**parts):
        report = {"mode": "measured", "totals": {"time_s": 1.0, "coverage": 1.0}, "ops": [], **parts}
        return suggest(["train.py", "a b"], ["--input", "1x2"], report)

    python = [{"name": "(python)", "self_s": 0.7}, {"name": "aten::mm", "self_s": 0.3}]
    command, what = following(ops=python)[0]
    assert command == "genie profile --by line --input 1x2 train.py 'a b'" and what.startswith("70 % of the time is Py")
    for told in ("data-wait", "python-line"):  # which say where
        assert not any("Python" in what for _, what in following(ops=python, findings=[{"id": told}]))
    assert "is mm: see which lines" in following(ops=[{"name": "aten::mm", "self_s": 0.9}])[0][1]
    slow = [{"id": "first-iteration"}]
    assert [line.split()[2] for line, _ in following(findings=slow)] == ["--warmup", "--by", "--trace"]
    assert [line.split()[2] for line, _ in following()] == ["--by", "--trace", "--json"]
    estimate = {"mode": "estimate", "memory": {"fits": False}}
    assert [line.split()[2] for line, _ in following(**estimate)][:2] == ["--advise", "--by"]
    assert not any("--trace" in line for line, _ in following(**estimate))


@pytest.mark.parametrize("by", [None, "op"])
@pytest.mark.parametrize("width", [60, 120])
def test_C2_finding_is_shown_after_the_tables_and_said_once(by, width):
    place = {"file": "/x/train.py", "line": 41, "function": "f", "source": "for x in data:", "module": ""}
    row = {"id": "data-wait", "text": "31 % of the time the model waits for data (train.py:41)", "share": 0.31,
           "of": "time", "seconds": 0.4, "place": place, "try": "num_workers"}  # fmt: skip
    report = dict(make_report(), findings=[row], waits={"data_s": 0.4, "network_s": 0.4, "workers_s": 0.4})
    text = render(report, View(by=by), width)
    assert max(map(cell_len, (line for line in text.splitlines() if not line.startswith("  genie ")))) <= width
    before, _, after = text.partition("\nFindings\n")
    flat = " ".join(after.partition("\nWarnings\n")[0].split())
    assert flat == "· 31 % of the time the model waits for data (train.py:41) try num_workers"
    assert "Ops" in before and "DataLoader" not in text and "waiting for the network" in " ".join(text.split())
    assert "loading data" in render(dict(report, findings=[]), View(by=by), width).replace("\n", " ")
    assert "Findings" not in render(make_report())


def test_C2_imports_of_one_package_within_another_and_what_is_trained_of_several_models_can_be_added_up():
    report = make_report()
    rows = [("transformers", 9.0, "", 0.0), ("torch", 8.0, "transformers", 5.0), ("sympy", 2.0, "torch", 2.0)]
    imports = [dict(zip(("name", "total_s", "within", "within_s"), row, strict=True)) for row in rows]
    report["startup"] = {"import_s": 12.0, "init_s": 0.25, "ops": 10, "imports": imports}
    report["models"] = [{"name": name, "params": 100, "param_bytes": 400} for name in ("Net", "Copy")]
    report["totals"] |= {"params": 200, "trainable_params": 100}
    text = " ".join(re.sub("[│\n]", " ", render(report)).split())
    assert "(transformers 9.00 s; torch 8.00 s, 5.00 s of it in transformers; sympy 2.00 s, in torch)" in text
    assert "Copy, 100 parameters (400 B); trainable of all: 100" in text


def test_C2_few_parameters_that_are_not_trained_are_told_by_their_number():
    """A masked autoencoder with fixed positions had "112 M parameters, trainable: 112 M"."""
    report = make_report()
    report["models"] = [{"name": "Net", "params": 111_907_840, "param_bytes": 447_631_360}]
    report["totals"] |= {"params": 111_907_840, "trainable_params": 111_655_680}
    assert "Net, 112 M parameters (427 MiB), not trainable: 252 k" in render(report)


def test_C2_what_was_assumed_in_turn_is_told_apart():
    """The gradient of a product along two dimensions assumed "0 … 64 in turn … 0 … 32 in turn"."""
    report = make_report()
    report["assumed"] = [{"op": "max", "value": "0 … 64 in turn", "last": "0 … 32 in turn", "calls": 8}]
    assert "max = 0 … 64 in turn, 0 … 32 in turn ×8" in render(report)


def test_C2_models_of_one_class_and_size_are_told_once():
    """A model of which there are eight copies filled the header, and most of them were "5 more models"."""
    report = make_report()
    names = ["Net", *(f"Net #{n}" for n in range(2, 10)), "Head"]
    report["models"] = [{"name": name, "params": 100, "param_bytes": 400} for name in names]
    text = " ".join(re.sub("[│\n]", " ", render(report)).split())
    assert "models Net ×9, 100 parameters (400 B) each; Head, 100 parameters (400 B)" in text
