"""C4: what compiled libraries write by themselves stays apart, too, where the kernel lends no overlays."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from mindtorch.profile.estimate import private_files
from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.estimating import estimating
from mindtorch.program.blame import is_programs

tokenizers = pytest.importorskip("tokenizers")
GPU = Accelerator("Test GPU", 10**9)


def made(**vocabulary: int) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0, **vocabulary}, unk_token="?"))


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_C4_a_tokenizer_that_the_program_saves_is_not_written(at: Path) -> None:
    """transformers' Trainer saves one beside its checkpoint: in a folder of the program's that failed ("the accelerator
    rejects this"), in one of the disk's it was written."""
    made(old=1).save("there.json")
    before = {path: path.read_bytes() for path in at.iterdir()}
    functions = tokenizers.Tokenizer.save, tokenizers.Tokenizer.from_file, tokenizers.models.Model.save
    with estimating(GPU):
        os.makedirs("out/checkpoint-1")
        tokenizer = made(new=1)
        tokenizer.save("out/checkpoint-1/tokenizer.json")
        tokenizer.save("there.json", pretty=False)
        tokenizer.save(path="beside.json")
        assert os.listdir("out/checkpoint-1") == ["tokenizer.json"]
        for name in ("out/checkpoint-1/tokenizer.json", "there.json", "beside.json"):
            assert tokenizers.Tokenizer.from_file(name).get_vocab() == {"?": 0, "new": 1}
        assert '"new"' in Path("there.json").read_text()
        with pytest.raises(FileNotFoundError):
            tokenizer.save("nowhere/tokenizer.json")
        names = [os.path.relpath(path) for path in private_files.left_alone()["not_written"]]
    assert names == ["beside.json", "out/checkpoint-1/tokenizer.json", "there.json"]
    assert {path: path.read_bytes() for path in at.iterdir()} == before
    assert functions == (tokenizers.Tokenizer.save, tokenizers.Tokenizer.from_file, tokenizers.models.Model.save)


def test_C4_a_vocabulary_that_the_program_saves_is_not_written(at: Path) -> None:
    """Of several files; one of them was removed before, and there is none of it on the disk afterwards."""
    (at / "there").mkdir()
    (at / "there" / "vocab.json").write_text("old")
    with estimating(GPU):
        os.remove("there/vocab.json")
        model = tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")])
        assert sorted(model.save("there")) == ["there/merges.txt", "there/vocab.json"]
        assert model.save("there", "mine") == ["there/mine-vocab.json", "there/mine-merges.txt"]
        read = tokenizers.models.BPE.from_file("there/mine-vocab.json", merges="there/mine-merges.txt")
        assert tokenizers.Tokenizer(read).get_vocab() == {"a": 0, "b": 1, "ab": 2}
        Path("words.txt").write_text("b b a")
        tokenizer = made()
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        tokenizer.train(["words.txt"], trainer=tokenizers.trainers.WordLevelTrainer(show_progress=False))
        assert set(tokenizer.get_vocab()) == {"a", "b"}
    assert [path.name for path in at.rglob("*")] == ["there", "vocab.json"]
    assert (at / "there" / "vocab.json").read_text() == "old"


def test_C4_a_command_that_the_machine_lacks_has_changed_nothing(at: Path) -> None:
    """accelerate asks nvidia-smi for what links there are: "what child processes write (nvidia-smi)"."""
    with estimating(GPU):
        for command, environment in ((["no-such-command", "-q"], None), (["true"], {"PATH": str(at)})):
            with pytest.raises(FileNotFoundError):
                subprocess.run(command, check=True, env=environment)
        assert private_files.left_alone()["not_held_back"] == []
        subprocess.run(["true"], check=True)
        assert private_files.left_alone()["not_held_back"] == ["files that child processes may have written (true)"]


def test_C4_what_the_standard_library_asks_other_programs_has_changed_nothing(at: Path) -> None:
    """pyarrow and others look for C libraries: "what child processes write (ldconfig)"."""
    with estimating(GPU):
        ctypes.util.find_library("c")
        ctypes.util.find_library("no_such_library")  # it asks the compiler, too
        assert private_files.left_alone()["not_held_back"] == []


def test_C10_an_error_without_a_class_of_its_own_is_no_accelerators(at: Path) -> None:
    """What bindings to Rust raise; torch raises none."""
    with pytest.raises(Exception, match="No such file") as raised:
        tokenizers.Tokenizer.from_file("nowhere.json")
    assert type(raised.value) is Exception and is_programs(raised.value)


def test_C4_a_library_that_could_write_unseen_is_not_said_to_have_written(
    at: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NeRF imports OpenCV to read pictures: "could not prevent changes to files written without Python (cv2)"."""
    monkeypatch.setitem(sys.modules, "cv2", types.ModuleType("cv2"))
    with estimating(GPU):
        assert private_files.left_alone()["not_held_back"] == ["files that C libraries may have written (cv2)"]
