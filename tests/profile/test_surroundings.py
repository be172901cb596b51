"""C2: `mindtorch.profile()` of a function, its files, pages and tables; in notebooks, in other libraries' loops."""

from __future__ import annotations

import functools
import gzip
import html
import json
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pandas
import pytest
import torch
from IPython.core import interactiveshell as shells
from torch import nn

import mindtorch
from mindtorch import profiling
from mindtorch.base.errors import UsageError
from mindtorch.profile import callbacks
from mindtorch.profiling import Profile


@pytest.fixture
def profiled() -> Profile:
    with torch.no_grad():
        return mindtorch.profile(nn.Linear(64, 8), torch.ones(32, 64))


# ---- of a function


def test_C2_profile_of_a_model_is_of_its_calls_after_the_warm_up() -> None:
    calls: list[bool] = []

    class Counted(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(torch.is_grad_enabled())
            return super().forward(x)

    model = Counted(64, 8)
    for options, ran in (({}, 2), ({"warmup": 0}, 1), ({"warmup": 2, "steps": 3}, 5)):
        calls.clear()
        found = mindtorch.profile(model, torch.ones(32, 64), **options)
        report, steps = found.report(), options.get("steps", 1)
        assert isinstance(found, Profile) and calls == [True] * ran and model.training
        assert found.macs == steps * 32 * 64 * 8 and found.flops == report["totals"]["flops"]
        assert (report["steps"]["count"], report["steps"]["warmup"]) == (ran, ran - steps)
        assert found.time_s == pytest.approx(report["totals"]["time_s"]) and found.peak_bytes > 0
        assert found.report()["modules"][0]["calls"] == steps
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        mindtorch.profile(model, torch.ones(32, 65))


@pytest.mark.parametrize(("args", "options", "words"), [
    ((3,), {}, "a model or a function first, got 3"), ((len, "a"), {"steps": 0}, "steps >= 1, got 1 and 0"),
    ((len, "a"), {"warmup": -1}, "warmup >= 0 and"), ((len, "a"), {"steps": "2"}, "whole numbers for warmup and steps"),
    ((len, "a"), {"target": 3}, "the name of a target, such as 'h100', got 3"),
    ((len, "a"), {"b": 2}, "got 'b'; to pass the model a keyword argument, profile a function"),
])  # fmt: skip
def test_C8_what_is_no_function_or_no_number_of_calls_is_refused(
    args: tuple[Any, ...], options: dict[str, Any], words: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        mindtorch.profile(*args, **options)


def test_C8_models_run_within_transforms_of_torch_func(caplog: pytest.LogCaptureFixture) -> None:
    """The first calls are looked at more closely: what vmap and grad hand a model has no storage."""

    def transformed() -> list[torch.Tensor]:
        torch.manual_seed(0)
        models = [nn.Linear(4, 2) for _ in range(3)]
        stacked, _ = torch.func.stack_module_state(models)  # type: ignore[arg-type]
        first, x = {name: value[0] for name, value in stacked.items()}, torch.ones(5, 4)

        def loss(parameters: Any, x: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(models[0], parameters, (x,)).square().sum()

        each = torch.vmap(torch.func.grad(loss), (None, 0))(first, x)
        hessian = torch.func.hessian(loss)(first, x[0])["bias"]["bias"]
        return [torch.vmap(loss, (0, None))(stacked, x), each["weight"], hessian]

    expected = transformed()
    for grad in (True, False):
        with torch.set_grad_enabled(grad), mindtorch.profile() as profiled:
            made = transformed()
        assert all(map(torch.equal, made, expected))
        assert any(row["path"] == "Linear" and row["calls"] == 3 for row in profiled.report()["modules"])
    assert not caplog.records


def test_C2_callbacks_are_part_of_the_package(after_torch: Callable[..., Any]) -> None:
    program = "import mindtorch; print(mindtorch.profile.callbacks.__name__)"
    assert after_torch(program).stdout == "mindtorch.profile.callbacks\n"


def test_C2_profile_of_a_function_has_its_findings() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(8)))
    found = mindtorch.profile(lambda x: model(x), torch.ones(4096, 256), warmup=0)
    assert [row["id"] for row in found.findings] == ["no-grad"] and "models ran with gradients" in str(found)


@pytest.mark.parametrize("options", [{}, {"warmup": 0}, {"warmup": 2, "steps": 3}, {"target": "h100"}], ids=str)
def test_C2_profile_of_a_function_has_the_peaks_of_its_phases_and_modules(options: dict[str, Any]) -> None:
    model, x = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8)), torch.ones(512, 64)
    report = mindtorch.profile(lambda: model(x).sum().backward(), **options).report()
    peaks = {row["name"]: row["peak_bytes"] for row in report["phases"]}
    assert max(peaks.values()) == report["totals"]["peak_bytes"] and peaks["forward"] > 512 * 256 * 4
    assert ("roofline" in report) is ("target" in options)
    (row,) = (row for row in report["modules"] if row["path"] == "Sequential.1")
    assert 512 * 256 * 4 < row["peak_bytes"] <= report["totals"]["peak_bytes"]


# ---- page, tables, files


def test_C2_html_is_the_page_and_a_notebook_shows_it_in_a_frame(profiled: Profile, tmp_path: Path) -> None:
    profiled.save(tmp_path / "p.html")
    page = profiled.html()
    assert page == (tmp_path / "p.html").read_text() and page.startswith("<!doctype html>")
    frame = profiled._repr_html_()
    assert frame is not None
    (within,) = re.findall(r'<iframe srcdoc="([^"]*)" style="[^"]*"></iframe>', frame)
    assert html.unescape(within) == page and "<" not in within
    with mindtorch.profile() as p:
        assert p._repr_html_() is None
        for early in (p.html, lambda: p.time_s, lambda: p.save(tmp_path / "e.json"), p.to_pandas):
            with pytest.raises(RuntimeError, match="a block that has ended"):
                early()


def test_C2_to_pandas_gives_the_tables(profiled: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    for table in ("op", "module", "line", "phase"):
        frame = profiled.to_pandas(table)
        assert isinstance(frame, pandas.DataFrame) and len(frame) == len(profiled.report()[f"{table}s"]) > 0
    assert profiled.to_pandas()["self_s"].sum() == pytest.approx(profiled.time_s)
    with pytest.raises(
        ValueError, match="one of the tables module, op, line, phase, part, finding, pattern, got 'ops'"
    ):
        profiled.to_pandas("ops")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"to_pandas\(\) needs pandas: pip install pandas"):
        profiled.to_pandas()


def test_C2_tables_without_rows_have_their_columns(profiled: Profile) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(8)), nn.LayerNorm(256))
    full = mindtorch.profile(model, torch.ones(4096, 256))
    for table in ("finding", "pattern"):
        empty = profiled.to_pandas(table)
        assert empty.empty and list(empty) == list(full.to_pandas(table)) and not full.to_pandas(table).empty


@pytest.mark.parametrize("name", ["p.json", "p.json.gz"])
def test_C2_a_report_that_was_written_is_read_again(profiled: Profile, tmp_path: Path, name: str) -> None:
    profiled.save(tmp_path / name)
    read = mindtorch.load_report(tmp_path / name)
    assert isinstance(read, mindtorch.Report) and isinstance(profiled, mindtorch.Report)
    for figure in ("time_s", "flops", "macs", "peak_bytes", "findings"):
        assert getattr(read, figure) == getattr(profiled, figure), figure
    assert str(read) == str(profiled) and read.show(by="line", top=3) == profiled.show(by="line", top=3)
    for table in ("op", "module", "line", "phase", "finding", "pattern"):
        pandas.testing.assert_frame_equal(read.to_pandas(table), profiled.to_pandas(table))
    assert read.report() == json.loads(json.dumps(profiled.report()))


def test_C2_a_report_of_an_estimate_is_read_again(tmp_path: Path, forked: Callable[..., Any]) -> None:
    line = ["-m", "mindtorch.cli.main", "profile", "--target", "h100", "--json", "p.json", "s.py"]
    (tmp_path / "s.py").write_text("import torch\ntorch.nn.Linear(4, 2).cuda()(torch.ones(3, 4).cuda()).sum().item()\n")
    printed = forked(*line, folder=tmp_path).stdout
    read = mindtorch.load_report(str(tmp_path / "p.json"))
    assert read.report()["mode"] == "estimate" and read.flops == read.report()["totals"]["flops"] > 0
    assert "NVIDIA H100" in str(read) and "NVIDIA H100" in printed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read .*p.json: No such file"),
        ("no JSON", "expected a file that genie profile --json made"),
        ("[1]", "expected a file that genie profile --json made"),
        ('{"totals": {}, "schema_version": 1}', "expected a report with schema_version 2, got 1"),
        ('{"totals": {}, "schema_version": 2, "ranks": [1, 2]}', "expected the report of one rank, got that of all 2"),
    ],
)
def test_C8_what_is_no_report_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "p.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        mindtorch.load_report(tmp_path / "p.json")


def test_C2_save_writes_what_the_command_writes(profiled: Profile, tmp_path: Path) -> None:
    for name in ("a.json", "a.csv", "a.trace.json", "a.trace.json.gz", "a.flame.json", "a.html"):
        profiled.save(tmp_path / name)
        profiled.save(tmp_path / name)  # ours: replaced
    report = json.loads((tmp_path / "a.json").read_text())
    assert report["schema_version"] and report["totals"] == profiled.report()["totals"]
    assert (tmp_path / "a.csv").read_text().startswith("table,name,")
    plain = json.loads((tmp_path / "a.trace.json").read_text())
    assert json.loads(gzip.decompress((tmp_path / "a.trace.json.gz").read_bytes())) == plain and plain["traceEvents"]
    assert "speedscope" in json.loads((tmp_path / "a.flame.json").read_text())["$schema"]
    profiled.save(tmp_path / "other.txt", format="json")
    assert json.loads((tmp_path / "other.txt").read_text()) == report
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["a.json", "a.csv", "a.trace.json", "a.trace.json.gz", "a.flame.json", "a.html", "other.txt"]
    )


def test_C8_save_replaces_nothing_of_somebody_elses(profiled: Profile, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("[1]")
    for name, options, words in (
        ("mine.json", {}, "genie did not write it"), ("no/p.json", {}, "there is no directory"),
        ("p.txt", {}, "a format of json, csv, trace, html, flame, got 'p.txt'"), ("p", {}, "got 'p'"),
        ("p.json", {"format": "memory-snapshot"}, "got 'p.json' as 'memory-snapshot'"),
        ("p.trace", {}, "got 'p.trace'"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=re.escape(words)):
            profiled.save(tmp_path / name, **options)
    assert (tmp_path / "mine.json").read_text() == "[1]" and len(list(tmp_path.iterdir())) == 1


# ---- notebooks


class Shell:
    """What is asked of IPython's."""

    def __init__(self) -> None:
        self.magics: dict[tuple[str, str], Any] = {}
        self.user_ns: dict[str, Any] = {"torch": torch}

    def register_magic_function(self, function: Any, magic_kind: str, magic_name: str) -> None:
        self.magics[magic_kind, magic_name] = function

    def run_cell(self, cell: str) -> Any:
        try:
            code = compile(cell, "<cell>", "exec")
        except SyntaxError as error:
            return types.SimpleNamespace(error_before_exec=error, error_in_exec=None)
        raised = None
        try:
            exec(code, self.user_ns)
        except Exception as error:
            raised = error
        return types.SimpleNamespace(error_before_exec=None, error_in_exec=raised)


CELL = "x = torch.ones(16, 16)\nfor _ in range(3):\n    x = x @ x\n"


def test_C2_a_cell_is_profiled_by_its_magic() -> None:
    shell = Shell()
    assert mindtorch.load_ipython_extension is profiling.load_ipython_extension
    mindtorch.load_ipython_extension(shell)
    genie = shell.magics["cell", "genie"]
    found = genie("-o p --shapes", CELL)
    assert found is shell.user_ns["p"] and found.macs == 3 * 16**3 and found.report()["shapes"]
    assert "x" in shell.user_ns and "<iframe" in found._repr_html_()
    with pytest.raises(SyntaxError):
        genie("", "x = = 1")
    with pytest.raises(ZeroDivisionError):
        genie("-o until", f"{CELL}\n1 / 0")
    assert shell.user_ns["until"].macs == 3 * 16**3  # what ran until then
    for line, words in (("--bogus", "option --bogus not recognized; expected --warmup N"), ("x", "unexpected 'x'"),
                        ("--steps two", "expected a number of iterations")):  # fmt: skip
        with pytest.raises(UsageError, match=re.escape(words)):
            genie(line, CELL)


def test_C2_a_cell_is_profiled_in_ipython(capsys: pytest.CaptureFixture[str]) -> None:
    shell = shells.InteractiveShell.instance()
    try:
        shell.run_line_magic("load_ext", "mindtorch")
        assert shell.run_cell(f"%%genie -o p\nimport torch\n{CELL}").success
        assert shell.user_ns["p"].macs == 3 * 16**3
        capsys.readouterr()
        assert type(shell.run_cell("%%genie\ndef f():\n    return 1 // 0\nf()").error_in_exec) is ZeroDivisionError
        out = capsys.readouterr().out
        assert out.count("ZeroDivisionError") == 2 and out.index("genie profile") < out.index("Traceback"), "once"
        assert "return 1 // 0" in re.sub(r"\x1b\[[\d;]*m", "", out) and "profiling.py" not in out
        shell.run_cell("%%genie\nx = =")
        assert capsys.readouterr().out.count("invalid syntax") == 1
        shell.run_cell("1 // 0")
        assert "ZeroDivisionError" in capsys.readouterr().out
        shell.run_line_magic("unload_ext", "mindtorch")
        assert "genie" not in shell.magics_manager.magics["cell"]
    finally:
        shells.InteractiveShell.clear_instance()


def test_C2_a_notebook_shows_the_page() -> None:
    cells = ["%load_ext mindtorch\nimport torch, mindtorch", f"%%genie -o p\n{CELL}", "p.macs",
             "mindtorch.profile(torch.nn.Linear(4, 2), torch.ones(3, 4))", 'print(p, p.show(by="op"))']  # fmt: skip
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(book, timeout=120, kernel_name="python3").execute()
    shown = [[each.get("data", {}) for each in cell["outputs"] if "data" in each] for cell in book["cells"]]
    assert shown[2][0]["text/plain"] == str(3 * 16**3)
    for data in (shown[1][0], shown[3][0]):
        assert data["text/html"].startswith("<iframe srcdoc=") and "genie profile" in data["text/html"]
    (printed,) = book["cells"][4]["outputs"]  # as text, in one piece
    assert printed["name"] == "stdout" and printed["text"].count("\nOps  by self time") == 2


# ---- other libraries' loops


def _loop(model: nn.Module, begins: Any, ends: Any, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        begins(step)
        model(torch.ones(32, 64)).sum().backward()
        optimizer.step()
        ends(step)


def test_C2_transformers_trainer_has_its_steps_profiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

    model = nn.Linear(64, 8)
    for first, steps, reported in ((True, 6, 2), (True, 2, 1), (False, 6, None)):
        callback = callbacks.TransformersCallback(steps=2, warmup=1, save=tmp_path / "t.json", show=first)
        assert isinstance(callback, transformers.TrainerCallback)
        handler = CallbackHandler([callback], model, None, None, None)
        state, control = TrainerState(is_world_process_zero=first), TrainerControl()
        told = {"args": None, "state": state, "control": control}
        _loop(model, lambda _, t=told, h=handler: h.on_step_begin(**t), lambda _, t=told, h=handler: h.on_step_end(**t),
              steps)  # fmt: skip
        handler.on_train_end(None, state, control)
        text = capsys.readouterr().out
        if reported is None:
            assert callback.profile is None and not text
            continue
        report = callback.profile.report()
        assert report["totals"]["macs"] == reported * 2 * 32 * 64 * 8 and report["steps"]["count"] == reported + 1
        assert json.loads((tmp_path / "t.json").read_text())["totals"] == report["totals"] and "Phases" in text


def test_C2_lightning_trainer_has_its_steps_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Trainer calls these; here, a stand-in does."""
    monkeypatch.delitem(vars(callbacks), "LightningCallback", raising=False)
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="this callback needs lightning: pip install lightning"):
        callbacks.LightningCallback
    stand_in: Any = types.ModuleType("pytorch_lightning")
    stand_in.Callback = type("Callback", (), {})
    monkeypatch.setitem(sys.modules, "pytorch_lightning", stand_in)
    model = nn.Linear(64, 8)
    for first in (True, False):
        callback = callbacks.LightningCallback(steps=3, warmup=2, show=False)
        assert isinstance(callback, stand_in.Callback)
        trainer = types.SimpleNamespace(is_global_zero=first)
        begins, ends = callback.on_train_batch_start, callback.on_train_batch_end
        _loop(
            model,
            functools.partial(begins, trainer, model, None),
            functools.partial(ends, trainer, model, None, None),
            8,
        )
        callback.on_train_end(trainer, model)
        made = callback.profile
        assert (made is None) == (not first) and (not first or made.macs == 3 * 2 * 32 * 64 * 8)
    callback = callbacks.LightningCallback(show=False)
    with pytest.raises(ZeroDivisionError):
        _loop(model, lambda step: callback.on_train_batch_start(types.SimpleNamespace(is_global_zero=True)),
              lambda step: 1 / 0, 1)  # fmt: skip
    callback.on_exception(trainer, model, None)
    assert callback.profile.report()["steps"]["count"] == 1
    with pytest.raises(AttributeError, match="has no attribute 'Bogus'"):
        callbacks.Bogus
    with pytest.raises(ValueError, match="steps >= 1 and warmup >= 0, got 0 and 1"):
        callbacks.LightningCallback(steps=0)
    del callbacks.LightningCallback  # of the stand-in
