"""Lines with all that ran while they did, of the program's own files; libraries apart by package; scopes."""

import os
import sys
import sysconfig

import pytest
import torch
from torch import nn

import mindtorch
from mindtorch._ext import location
from mindtorch.engine.semantics import installed_folders
from mindtorch.profile import Profiler
from mindtorch.profile.estimate.estimator import Estimator
from mindtorch.profile.report.lines import package_of


def inner(x):
    return x @ x  # product


def middle(x):
    for _ in range(3):
        x = inner(x)  # calls it
    return x.tanh()  # after it


def recursive(x, n):
    return recursive(x + 1, n - 1) if n else x  # itself


def measured(program, **options):
    with Profiler(lines=True, whole=True, **options) as seen:
        program()  # all
    return seen.report()


def lines(report):
    return {row["source"].rpartition("# ")[2]: row for row in report["lines"] if "# " in row["source"]}


def test_C2_a_lines_total_is_that_of_all_that_ran_while_it_did():
    report = measured(lambda: middle(torch.ones(64, 64)))
    found = lines(report)
    assert found["product"]["calls"] == 3 and found["calls it"]["calls"] == 0
    assert found["product"]["total_s"] >= found["product"]["self_s"] > 0
    assert found["calls it"]["total_s"] == pytest.approx(found["product"]["total_s"] + found["calls it"]["self_s"])
    parts = found["calls it"]["total_s"] + found["after it"]["total_s"]
    assert found["all"]["total_s"] >= parts
    assert found["all"]["total_s"] <= report["totals"]["time_s"] + 1e-9
    assert sum(row["self_s"] for row in report["lines"]) == pytest.approx(report["totals"]["time_s"])


def test_C2_the_backward_pass_is_in_the_total_of_the_line_that_asks_for_it():
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))

    def program():
        loss = model(torch.ones(4, 32)).sum()  # forward
        loss.backward()  # backward

    report = measured(program)
    ran = {row["name"]: row["self_s"] for row in report["ops"]}
    found = lines(report)
    assert found["backward"]["total_s"] >= ran["aten::threshold_backward"] + ran["aten::mm"] > 0
    assert found["backward"]["calls"] > 5 and found["forward"]["total_s"] >= ran["aten::relu"] > 0


def test_C2_a_line_that_calls_itself_counts_once():
    report = measured(lambda: recursive(torch.ones(4), 20))
    found = lines(report)["itself"]
    assert found["calls"] == 20 and found["total_s"] <= report["totals"]["time_s"]


def test_C2_deep_recursion_is_no_error():
    limit = sys.getrecursionlimit()
    report = measured(lambda: recursive(torch.ones(4), limit // 2))
    assert lines(report)["itself"]["calls"] == limit // 2


def test_C2_without_being_asked_for_there_are_no_totals():
    with Profiler() as seen:
        middle(torch.ones(4, 4))
    assert {row["total_s"] for row in seen.report()["lines"]} == {None}


def test_C2_packages_of_files():
    folder = os.path.join("", "x", "lib", "site-packages", "")
    assert package_of(f"{folder}diffusers/models/vae.py") == "diffusers"
    assert package_of(f"{folder}six.py") == "six"
    assert package_of(f"/a/dist-packages/b{folder}peft/x.py") == "peft"
    assert package_of(os.__file__) == "standard library"
    assert package_of(__file__) == "" == package_of("site-packages.py")


def test_C2_what_pip_put_into_a_folder_of_its_own_is_a_package(tmp_path, monkeypatch):
    """Of ``pip install --target``, all lines of matplotlib were "the program's own"."""
    folder, beside = tmp_path / "vendored", tmp_path / "program"
    for each in (folder, beside, tmp_path / "src"):
        each.mkdir()
        monkeypatch.syspath_prepend(str(each))
    for each in (folder, beside):
        (each / "somelib-1.0.dist-info").mkdir()
    monkeypatch.chdir(beside)
    assert package_of(str(folder / "somelib" / "it.py")) == "somelib" and package_of(str(folder / "one.py")) == "one"
    assert package_of(str(beside / "train.py")) == "" == package_of(str(tmp_path / "src" / "train.py"))
    assert str(folder / "_")[:-1] in installed_folders() and str(beside / "_")[:-1] not in installed_folders()
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(folder / "train.py"), raising=False)
    assert package_of(str(folder / "train.py")) == ""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(beside / "train.py"), raising=False)
    monkeypatch.setattr(sys, "argv", [str(folder / "train.py")])
    assert package_of(str(folder / "train.py")) == ""


def test_C2_a_library_has_a_row_for_each_package(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    (folder / "somelib").mkdir(parents=True)
    (folder / "somelib" / "__init__.py").write_text("def f(x):\n    return x.exp()  # of the library\n")
    monkeypatch.syspath_prepend(str(folder))
    import somelib  # of the temporary folder

    with mindtorch.profile(lines=True) as p:
        somelib.f(torch.ones(3))  # own
    found = {row["source"].rpartition("# ")[2]: row for row in p.report()["lines"]}
    del sys.modules["somelib"]
    assert found["of the library"]["package"] == "somelib"
    assert found["own"]["total_s"] >= found["of the library"]["self_s"] > 0
    text = p.show(by="line")
    assert "somelib/__init__.py:2" in text and "Packages" in text and "(the program's own)" in text


def test_C2_scopes_have_totals_and_means():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with mindtorch.profile() as p:
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    text = p.show()
    line = next(line for line in text.splitlines() if line.startswith("Optimizer.step#SGD.step"))
    assert line.split()[1] == "3" and "Scopes" in text
    operations = {row["name"]: row for row in p.report()["ops"]}
    assert operations["aten::addmm"]["mean_s"] == pytest.approx(operations["aten::addmm"]["self_s"] / 3)
    assert operations["(python)"]["mean_s"] is None and "a call" in p.show(by="op")


def test_C2_chains_are_what_the_frames_say():
    def here():
        location.chains_wanted(1)
        chain = location.location_at(sys._getframe()), location.get_location()
        location.chains_wanted(-1)
        return *chain, location.location_at(sys._getframe())

    chain, again, place = here()
    assert location.chain(chain)[1:] == location.chain(again)[1:]  # two places in the innermost
    places = [location.location(at) for at in location.chain(chain)]
    assert places[0][2] == "here" and places[1][2] == "test_C2_chains_are_what_the_frames_say"
    assert location.location(chain) == places[0] and location.is_own(chain) and location.chain(place) == [place]
    assert location.chain(0) == [] and not location.is_own(0)
    with pytest.raises(IndexError, match="chain"):
        location.chain(0xFFFFFFFF)


@pytest.mark.parametrize("name", ["stdlib", "platstdlib", "purelib", "platlib", "scripts"])
def test_C2_the_folders_of_this_python_hold_no_files_of_the_programs(name):
    assert (sysconfig.get_path(name) + os.sep).startswith(installed_folders())


@pytest.mark.parametrize("kind", [Profiler, Estimator])
def test_C2_the_loops_first_batch_is_the_loops_with_chains_too(kind):
    """Another line asked for it: `--by line` left out 29 ops that the same report without it had."""

    def batch():
        return torch.randn(4, 8)

    def program():
        model = nn.Linear(8, 8)
        x = batch()
        for _ in range(3):
            model(x).sum().backward()
            x = batch()

    counts = []
    for lines in (False, True):
        with kind(lines=lines) as seen:
            program()
        counts.append({row["name"]: row["calls"] for row in seen.report()["ops"] if row["name"] == "aten::randn"})
    assert counts == [{"aten::randn": 4}] * 2
