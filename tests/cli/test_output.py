"""SPEC C8 and "Bad input": outputs are refused before the run, and complete or absent after it."""

from __future__ import annotations

import os
import stat
import sys

import click
import pytest

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
    real.write_text("old")
    real.chmod(0o600)
    link = tmp_path / "link.json"
    link.symlink_to(real)
    file = OutputFile(str(link))
    file.check("script.py")
    assert real.read_text() == "old"
    file.write_text("new")
    assert link.is_symlink() and real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600


def test_C8_nothing_half_written(tmp_path):
    target = tmp_path / "out.json"
    target.write_text("before")

    def fails(path):
        with open(path, "w") as file:
            file.write("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(click.ClickException, match=r"out.json: No space left"):
        OutputFile(str(target)).write(fails)
    with pytest.raises(ZeroDivisionError):
        OutputFile(str(target)).write(lambda path: print(1 // 0))
    assert target.read_text() == "before"
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
