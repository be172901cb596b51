"""SPEC C8 and "Bad input": outputs are refused before the run, and complete or absent after it."""

from __future__ import annotations

import json
import os
import stat
import sys

import click
import pytest
from click.testing import CliRunner

from mindtorch.cli import output
from mindtorch.cli.main import cli
from mindtorch.cli.output import OutputFile


def test_C8_new_file_and_its_mode(tmp_path):
    file = OutputFile(str(tmp_path / "out.json"))
    file.check("script.py")
    assert os.listdir(tmp_path) == []  # the check leaves nothing behind
    old = os.umask(0o027)
    try:
        file.write_text("hello é\n")
    finally:
        os.umask(old)
    assert (tmp_path / "out.json").read_text(encoding="utf-8") == "hello é\n"
    assert stat.S_IMODE(os.stat(file.path).st_mode) == 0o640
    assert os.listdir(tmp_path) == ["out.json"]


def test_C8_existing_file_keeps_mode_and_link(tmp_path):
    real = tmp_path / "real.json"
    real.write_text("")
    real.chmod(0o600)
    link = tmp_path / "link.json"
    link.symlink_to(real)
    file = OutputFile(str(link))
    file.check("script.py")
    assert real.read_text() == ""
    file.write_text("new")
    assert link.is_symlink() and real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600


def test_C8_the_columns_of_a_csv_file_may_change():
    from mindtorch.profile.report.export import CSV_COLUMNS

    earlier = "table,name,class,depth,calls,self_s,total_s,self_flops"
    for header in (earlier, ",".join(CSV_COLUMNS)):
        assert output._ours().match(header.encode())
    assert not output._ours().match(b"table,name,price\nof mine,1,2\n")


def test_C8_nothing_half_written(tmp_path):
    target = tmp_path / "out.json"
    target.write_text(before := "table,name,class,depth,calls,self_s,total_s,of an earlier run")

    def fails(path):
        with open(path, "w") as file:
            file.write("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(click.ClickException, match=r"out.json: No space left"):
        OutputFile(str(target)).write(fails)
    with pytest.raises(ZeroDivisionError):
        OutputFile(str(target)).write(lambda path: print(1 // 0))
    assert target.read_text() == before
    assert os.listdir(tmp_path) == ["out.json"]


def test_C8_refused_before_the_run(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    for name, word in ((str(tmp_path), "directory"), (str(tmp_path / "no" / "x.json"), "no directory"),
                       (str(script), "program to run"), (str(script / "x"), "no directory")):  # fmt: skip
        with pytest.raises(click.UsageError) as caught:
            OutputFile(name).check(str(script))
        assert word in str(caught.value) and name in str(caught.value)


def test_C8_unwritable_folder(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refuse)  # root may write everywhere
    with pytest.raises(click.UsageError, match="Permission denied"):
        OutputFile(str(tmp_path / "x.json")).check("script.py")


def test_C8_path_survives_a_change_of_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = OutputFile("out.json")
    monkeypatch.chdir("/")
    file.write_text("here")
    assert (tmp_path / "out.json").read_text() == "here"


def test_C8_devices_and_pipes_are_written_to_not_replaced(tmp_path):
    null = OutputFile("/dev/null")
    null.check("script.py")
    null.write_text("x")
    assert not stat.S_ISREG(os.stat("/dev/null").st_mode)
    assert not null.same_as(OutputFile("/dev/null"))
    if sys.platform == "linux":
        full = OutputFile("/dev/full")
        full.check("script.py")
        with pytest.raises(click.ClickException, match="No space left"):
            full.write_text("x")


def test_C8_stdout(capsys):
    file = OutputFile("-")
    file.check("script.py")
    file.write_text("text")
    assert capsys.readouterr().out == "text\n"


def test_C8_same_file_under_two_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert OutputFile("a.json").same_as(OutputFile(str(tmp_path / "x" / ".." / "a.json")))
    assert OutputFile("-").same_as(OutputFile("-"))


@pytest.mark.parametrize("content", [
    "print(1)\n", '{"schema_version": 1, "mine": 2}', "a,b\n1,2\n", "\x1f\x8bnot gzip", "digraph mine {}",
    "digraph computation {\n  a -> b\n}", "table,name,class,weight\n1,2,3,4\n",
    '{"displayTimeUnit":"ms","traceEvents":[]}', " ", "<!doctype html>\n<html>mine",
    '{"$schema":"https://www.speedscope.app/file-format-schema.json"}',
])  # fmt: skip
def test_C8_a_file_that_genie_did_not_write_is_never_replaced(tmp_path, content):
    (tmp_path / "train.py").write_text(content)
    with pytest.raises(click.UsageError, match=r"will not replace .*train.py: .* --json takes the name of a new file"):
        OutputFile(str(tmp_path / "train.py"), "--json").check("data.yaml")
    assert (tmp_path / "train.py").read_text() == content and os.listdir(tmp_path) == ["train.py"]


@pytest.mark.parametrize("words", [["--json"], ["--trace"], ["--csv"], ["--flame"], ["--html"]])
def test_C8_a_forgotten_file_name_does_not_cost_the_program(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('trained')\n")
    (tmp_path / "config.yaml").write_text("lr: 0.1\n")
    done = CliRunner().invoke(cli, ["profile", *words, "train.py", "config.yaml"])
    assert done.exit_code == 2 and "train.py" in done.stderr and words[0] in done.stderr
    assert (tmp_path / "train.py").read_text() == "print('trained')\n"


def test_C8_every_output_of_genies_own_is_replaced_by_the_next(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("import torch\nprint(torch.nn.Linear(2, 2)(torch.ones(1, 2)).shape)\n")
    files = {"--json": "p.json", "--csv": "p.csv", "--trace": "p.trace", "--flame": "p.flame", "--html": "p.html"}
    profile = ["profile", *(word for option in files.items() for word in option)]
    for command in (profile, ["profile", "--trace", "p.json.gz"], ["graph", "--json", "g.json", "--dot", "g.dot"],
                    ["profile", "--device", "meta", "--json", "e.json", "--csv", "e.csv"]):  # fmt: skip
        for _ in range(2):
            done = CliRunner().invoke(cli, [*command, "net.py"])
            assert done.exit_code == 0, done.stderr
    written = {*files.values(), "p.json.gz", "g.json", "g.dot", "e.json", "e.csv"}
    assert set(os.listdir(tmp_path)) == {"net.py", *written}


def test_C8_what_the_program_writes_under_the_same_name_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("import torch\ntorch.ones(2)\nopen('out.json', 'w').write('mine')\n")
    done = CliRunner().invoke(cli, ["profile", "--json", "out.json", "net.py"])
    assert done.exit_code == 0 and "writes to out.1.json" in done.stderr and "wrote out.1.json" in done.stderr
    assert (tmp_path / "out.json").read_text() == "mine"
    assert json.loads((tmp_path / "out.1.json").read_text())["totals"]["ops"]


def test_C8_an_empty_module_and_a_damaged_archive_are_not_ours(tmp_path):
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "bad.gz").write_bytes(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03" + b"\xff" * 40)
    for name in ("__init__.py", "bad.gz"):
        with pytest.raises(click.UsageError, match="will not replace"):
            OutputFile(str(tmp_path / name), "--json").check("train.py")
