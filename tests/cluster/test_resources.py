"""R2, C9: what a program asks of a cluster, as it says it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import mindtorch
from mindtorch.base import config

Forked = Callable[..., object]


def test_R2_the_same_is_said_as_text_mapping_and_json(tmp_path: Path) -> None:
    expected = mindtorch.Resources(
        cpus=2, gpus=0.5, memory=4 << 30, custom={"tpu": 1}, placement="spread", labels={"zone": "in(a,b)"}, name="mine"
    )
    text = "cpus=2, gpus=0.5,memory=4GiB,custom.tpu=1,placement=spread,labels.zone=in(a,b),name=mine"
    assert mindtorch.Resources.of(text) == mindtorch.Resources.of(expected) == expected
    whole = {
        "cpus": 2, "gpus": 0.5, "memory": "4 GiB", "custom": {"tpu": 1}, "placement": "spread",
        "labels": {"zone": "in(a,b)"}, "name": "mine",
    }  # fmt: skip
    assert mindtorch.Resources.of(whole) == mindtorch.Resources.of(json.dumps(whole)) == expected
    (tmp_path / "asked.json").write_text(json.dumps(whole))
    assert mindtorch.Resources.of(str(tmp_path / "asked.json")) == expected
    assert mindtorch.Resources.of(None) == mindtorch.Resources()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("gpus=2", r"gpus: expected a number above 0, at most 1, got '2'"),
        ("cpus=0", r"cpus: expected a number above 0, got '0'"),
        ({"cpus": True}, r"cpus: expected a number above 0, got True"),
        ({"cpus": float("nan")}, r"cpus: expected a number above 0, got nan"),
        ("memory=much", r"memory: expected a number of bytes, such as 4GiB, got 'much'"),
        ("placement=near", r"placement: expected pack, spread, strict_pack, strict_spread, got 'near'"),
        ("custom.GPU=1", r"custom: expected names other than Ray's own: cpus, gpus and memory, got 'GPU'"),
        ("custom.tpu=none", r"custom.tpu: expected a number above 0, got 'none'"),
        ("gpu=1", r"expected names out of cpus, gpus, memory, .*, name, got 'gpu'"),
        ("custom=1", r"expected NAME=VALUE,… .* got 'custom=1'"),
        ("cpus", r"expected NAME=VALUE,… .* got 'cpus'"),
        ("cpus=1,cpus=2", r"expected cpus once, got it twice in 'cpus=1,cpus=2'"),
        ("none.json", r"expected JSON or a file with it, got 'none.json': No such file"),
        ("{cpus}", r"expected JSON, got '{cpus}'"),
        ({"labels": {"zone": 1}}, r"labels.zone: expected a text, got 1"),
        ({"node": ""}, r"node: expected a text, got ''"),
        ({"runtime_env": "none.json"}, r"runtime_env: expected JSON or a file with it, got 'none.json'"),
        ({"runtime_env": {"a": {1}}}, r"runtime_env: expected what can be written as JSON, got"),
        (3, r"expected a mapping or text .*, got 3"),
    ],
)
def test_R2_what_cannot_be_asked_for_is_one_sentence(given: object, told: str) -> None:
    with pytest.raises(mindtorch.UsageError, match=rf"^\[resources\] {told}"):
        mindtorch.Resources.of(given)


def test_R2_paths_of_a_runtime_env_begin_where_the_program_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("env.json").write_text('{"working_dir": "here", "py_modules": ["a", "s3://b/c.zip"]}')
    found = mindtorch.Resources.of("runtime_env=env.json").environment
    assert found == {"working_dir": f"{tmp_path}/here", "py_modules": [f"{tmp_path}/a", "s3://b/c.zip"]}


def test_R2_what_ray_reserves_for_a_worker() -> None:
    ask = mindtorch.Resources.of
    assert ask(None).bundle("cpu", own=True) is None  # there is nobody to share with
    assert ask(None).bundle("cpu", own=False) == {"CPU": 1}
    assert ask(None).bundle("cuda", own=False) == {"GPU": 1}
    assert ask("gpus=0.5,cpus=2").bundle("cuda", own=True) == {"GPU": 0.5, "CPU": 2}
    assert ask("cpus=2,memory=1kB,custom.tpu=1").bundle("cpu", own=True) == {"CPU": 2, "memory": 1000, "tpu": 1}
    assert [ask(text).threads for text in (None, "cpus=0.5", "cpus=3.5")] == [None, 1, 3]


def test_R2_variables_say_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.resources() == mindtorch.Resources() and config.wait() is None
    monkeypatch.setenv("GENIE_RESOURCES", "cpus=2")
    monkeypatch.setenv("GENIE_WAIT", "forever")
    config.check()
    assert config.resources().cpus == 2 and config.wait() == float("inf")
    monkeypatch.setenv("GENIE_WAIT", "1.5")
    assert config.wait() == 1.5
    for name, junk in (("GENIE_RESOURCES", "cpus=-1"), ("GENIE_WAIT", "long")):
        with monkeypatch.context() as here, pytest.raises(mindtorch.UsageError, match=name):
            here.setenv(name, junk)
            config.check()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--wait", "t.py", "--wait"], ("forever", "t.py", ("--wait",))),
        (["--executor", "ray", "--wait", "t.py", "--lr", "3"], ("forever", "t.py", ("--lr", "3"))),
        (["--wait", "5", "t.py", "7"], ("5", "t.py", ("7",))),
        (["--wait", "-m", "t"], ("forever", "t", ())),
        (["t.py", "--wait"], (None, "t.py", ("--wait",))),
    ],
)
def test_C9_wait_takes_a_number_if_one_follows(given: list[str], expected: tuple[object, ...]) -> None:
    from mindtorch.cli.run import command

    found = command.make_context("run", given).params
    assert (found["wait"], found["argument"], found["script_args"]) == expected


def test_C9_what_is_asked_for_without_a_cluster_is_refused(forked: Forked, tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("print('ran')")
    for option, value in (("--resources", "cpus=1"), ("--wait", "3")):
        done = forked("-m", "mindtorch", "run", option, value, str(tmp_path / "t.py"), environment=dict(os.environ))
        assert done.returncode == 2 and f"{option} is for --executor ray" in done.stderr  # type: ignore[attr-defined]
