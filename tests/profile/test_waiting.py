"""What a program waits for has rows of its own: child processes, threads; imports are named, wherever they happen."""

import dataclasses
import importlib
import io
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from mindtorch.base import import_hooks
from mindtorch.profile import Profiler
from mindtorch.profile.measure import waiting
from mindtorch.profile.measure.imports import ImportWatch
from mindtorch.profile.report import warn
from mindtorch.profile.report.build import build_report

SLEEP = [sys.executable, "-c", "import time; time.sleep(0.3)"]
WAITS = 0.1  # of 0.3 s: what is seen begins with the second look


def own(report, what):
    return next((row["self_s"] for row in report["ops"] if row["name"] == f"(waiting for {what})"), 0.0)


class Slow:
    """Takes as long to load as what is on a full disk, or on one across a network."""

    def __reduce__(self):
        return time.sleep, (0.3,)


def test_C2_saving_and_loading_are_no_python_at_a_line():
    """Half of a training's time was "Python at one line", which the program was told to do on whole tensors."""
    with Profiler(whole=True) as seen:
        nn.Linear(2, 2)(torch.ones(1, 2))
        file = io.BytesIO()
        torch.save({"slow": Slow()}, file)
        file.seek(0)
        torch.load(file, weights_only=False)
    report = seen.report()
    assert report["waits"]["files_s"] == own(report, "files") >= WAITS
    assert not any("Python at one line" in row["text"] for row in report["findings"])
    assert {(torch.save.__code__.co_filename, name) for name in ("save", "load")} <= waiting.functions().keys()


def from_a_thread():
    def rest():
        subprocess.run(SLEEP, check=True)

    thread = threading.Thread(target=rest)
    thread.start()
    thread.join()


@pytest.mark.parametrize("wait", [
    lambda: subprocess.run(SLEEP, check=True),
    lambda: subprocess.Popen(SLEEP, stdout=subprocess.PIPE).communicate(),
    lambda: __import__("os").system(" ".join([SLEEP[0], "-c", "'import time; time.sleep(0.3)'"])),
    from_a_thread,
])  # fmt: skip
def test_C2_waiting_for_a_child_process_is_a_row_of_its_own(wait):
    with Profiler() as seen:
        torch.ones(1)
        subprocess.run(SLEEP, check=True)  # at a line of its own: what the loop does again would be its first batch
        model = nn.Linear(2, 2)
        model(torch.ones(1, 2))
        wait()
    report = seen.report()
    assert report["waits"]["children_s"] == own(report, "child processes") >= WAITS
    early = {row["for"]: row["self_s"] for row in report["startup"]["waits"]}
    assert report["startup"]["init_s"] >= early["child processes"] >= WAITS
    assert sum(row["self_s"] for row in report["ops"]) == pytest.approx(report["totals"]["time_s"])
    assert sum(row["self_s"] for row in report["lines"]) == pytest.approx(report["totals"]["time_s"])


def test_C2_waiting_for_a_thread_that_nobody_sees_at_work():
    gate = threading.Event()
    with Profiler() as seen:
        nn.Linear(2, 2)(torch.ones(1, 2))
        gate.wait(0.3)
    report = seen.report()
    assert report["waits"]["threads_s"] == own(report, "threads") >= WAITS
    assert not report["waits"]["children_s"] and not report["waits"]["network_s"]


def test_C2_the_functions_that_wait_are_there():
    """A name that the standard library no longer has would be a wait that nobody sees."""
    for file, name in (each for each in waiting.functions() if isinstance(each, tuple)):
        assert f"def {name}(" in Path(file).read_text() or name in GONE, (file, name)


#: In some releases only.
GONE = {"_wait_for_tstate_lock"}


def test_C2_imports_name_no_package_of_ours():
    with Profiler() as seen:
        nn.Linear(2, 2)(torch.ones(1, 2))
    held = dataclasses.replace(seen.recording(), imports={"mindtorch": 5 * 10**9, "numpy": 10**9})
    assert [row["name"] for row in build_report(held)["startup"]["imports"]] == ["numpy"]


def test_C2_imports_are_named_wherever_they_happen(tmp_path, monkeypatch):
    (tmp_path / "outer_pkg").mkdir()
    (tmp_path / "outer_pkg" / "__init__.py").write_text("import inner_pkg.part\nimport outer_pkg.own\n")
    (tmp_path / "outer_pkg" / "own.py").write_text("")
    (tmp_path / "inner_pkg").mkdir()
    (tmp_path / "inner_pkg" / "__init__.py").write_text("")
    (tmp_path / "inner_pkg" / "part.py").write_text("import time\ntime.sleep(0.05)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with Profiler() as seen:
        nn.Linear(2, 2)(torch.ones(1, 2))
        import outer_pkg  # noqa: F401  # of the temporary folder
    for name in [name for name in sys.modules if name.startswith(("outer_pkg", "inner_pkg"))]:
        del sys.modules[name]
    report = seen.report()
    found = {row["name"]: row["total_s"] for row in report["startup"]["imports"]}
    assert (
        report["startup"]["import_s"] >= found["outer_pkg"] * 0.99 and found["outer_pkg"] > found["inner_pkg"] >= 0.05
    )
    assert [row["total_s"] for row in report["startup"]["imports"]] == sorted(found.values(), reverse=True)


def test_C2_a_lazy_import_is_timed_when_it_happens(tmp_path, monkeypatch):
    import importlib.util

    (tmp_path / "late_pkg.py").write_text("import time\ntime.sleep(0.02)\nvalue = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    calls = []
    with ImportWatch(lambda *said: calls.append("begin"), lambda *said: calls.append("end")) as watch:
        spec = importlib.util.find_spec("late_pkg")
        spec.loader = importlib.util.LazyLoader(spec.loader)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert calls == []
        assert module.value == 3
    assert calls == ["begin", "end"] and watch.found["late_pkg"] >= 0.02e9


def test_C8_an_import_that_fails_leaves_nothing_open(tmp_path, monkeypatch):
    (tmp_path / "bad_pkg.py").write_text("import also_bad_pkg\n")
    (tmp_path / "also_bad_pkg.py").write_text("raise OSError('sick')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    calls = []
    with ImportWatch(lambda *said: calls.append("begin"), lambda *said: calls.append("end")) as watch:
        for _ in range(2):
            with pytest.raises(OSError, match="sick"):
                import bad_pkg  # noqa: F401
    assert calls == ["begin", "end"] * 2 and not watch._loading


def test_C2_time_before_the_first_op_is_no_import():
    with Profiler() as seen:
        time.sleep(0.1)
        nn.Linear(2, 2)(torch.ones(1, 2))
    startup = seen.report()["startup"]
    assert startup["init_s"] >= 0.1 > startup["import_s"]


def test_L1_finders_that_ask_all_others_do_not_ask_each_other_for_ever(tmp_path, monkeypatch) -> None:
    """Both that follow a module's loading are there at once: in a profile of a program whose library we wait for."""
    (tmp_path / "waited_for.py").write_text("there = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[object] = []
    import_hooks.when_loaded("waited_for", seen.append)
    with ImportWatch(lambda *said: None, lambda *said: None) as watch:
        import waited_for
    assert seen == [waited_for] and list(watch.found) == ["waited_for"]
    assert not import_hooks._asking.now
    with pytest.raises(ModuleNotFoundError), ImportWatch(lambda *said: None, lambda *said: None):
        import_hooks.when_loaded("never_there", seen.append)
        importlib.import_module("never_there")
    assert not import_hooks._asking.now


LIBRARY = """
import time
time.sleep(0.2)
import torch
table = torch.ones(2) + 1                  # as torchvision and timm do
time.sleep(0.2)
"""


@pytest.mark.parametrize("within", ["", "own_pkg"])
def test_C2_a_library_that_runs_an_op_while_it_is_loaded_is_loaded_all_the_same(tmp_path, monkeypatch, within):
    """What it took until that op was "construction": 12.5 s of a run that did nothing then but import."""
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "computing_pkg.py").write_text(LIBRARY)
    (tmp_path / "own_pkg.py").write_text("import time\ntime.sleep(0.1)\nimport computing_pkg\ntime.sleep(0.1)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(installed))
    with Profiler() as seen:
        importlib.import_module(within or "computing_pkg")
        time.sleep(0.05)
        nn.Linear(2, 2)(torch.ones(1, 2))
    for name in ("own_pkg", "computing_pkg"):
        sys.modules.pop(name, None)
    startup = seen.report()["startup"]
    assert startup["import_s"] >= (0.6 if within else 0.4) and startup["init_s"] < startup["import_s"] / 2
    rows = {row["name"]: row for row in startup["imports"]}
    inner = rows["computing_pkg"]
    assert (inner["within"], inner["within_s"]) == (within, inner["total_s"] if within else 0.0)


def test_C2_what_a_program_does_while_its_own_module_is_loaded_is_its_own(tmp_path, monkeypatch):
    (tmp_path / "training_pkg.py").write_text("import time\nimport torch\nx = torch.ones(1)\ntime.sleep(0.2)\nx + 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with Profiler() as seen:
        import training_pkg  # noqa: F401  # of the temporary folder
    del sys.modules["training_pkg"]
    report = seen.report()
    assert report["totals"]["time_s"] >= 0.2 > report["startup"]["import_s"]


@pytest.mark.parametrize(
    ("processes", "loader", "command"),
    [
        ({"DataLoader worker": 4}, True, False),
        ({"multiprocessing: work": 1, "fork": 1}, False, False),
        ({"python train.py": 1}, False, True),
        ({"torchrun train.py": 1, "DataLoader worker": 2}, True, True),
    ],
)
def test_C3_what_is_advised_about_child_processes_can_be_done_with_them(processes, loader, command):
    """Workers of a DataLoader were to be run under genie."""
    text = warn._not_counted(processes)
    assert all(f"{name} ×{n}" in text for name, n in processes.items())
    assert ("num_workers=0" in text, "genie profile instead of python" in text) == (loader, command)


def test_C3_a_warning_names_the_workers_of_a_data_loader():
    with Profiler() as seen:
        model = torch.nn.Linear(2, 2)
        for batch in torch.utils.data.DataLoader([torch.ones(2)] * 4, batch_size=2, num_workers=1):
            model(batch)
    report = seen.report()
    assert report["unseen"] == [{"what": "child process", "count": 1}]
    (said,) = (text for text in report["warnings"] if text.startswith("NOT COUNTED"))
    assert "(DataLoader worker ×1); with num_workers=0" in said and "torchrun" not in said
