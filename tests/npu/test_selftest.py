"""N7, C7: ``genie devices npu --test``: what is tried on a device, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mindtorch.cli.main import cli
from mindtorch.npu import selftest


@pytest.mark.parametrize("name", [name for name in selftest.CHECKS if name != "deterministic algorithms"])
def test_N7_each_check_passes_on_a_device_that_works(npu: Any, name: str) -> None:
    try:
        seen = selftest.CHECKS[name](0)
    except selftest.Skipped as reason:
        assert npu.device_count() == 1 and "one device" in str(reason)
    else:
        assert seen
        if name in ("perceptron", "convolutions", "encoder", "decoder"):
            assert "float32" in seen and "staged: nothing" in seen


def test_N7_checks_that_change_settings_pass_alone(in_npu_program: Any) -> None:
    said = in_npu_program("from mindtorch.npu import selftest\nselftest.check('deterministic algorithms', 1)")
    assert json.loads(said) == {"result": "passed", "seen": "three runs of a step have the same bits"}


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("breaks", "check", "words"),
    [
        ("NpuTensor.cpu = lambda *args: torch.zeros(3)", "random numbers", "expected tensor"),
        ("library.fail('aclrtMemcpyAsync', 3, 507899)", "copies", "507899"),
        ("library.fail('aclrtStreamWaitEvent', 1, 107000)", "streams and events", "107000"),
        ("npu.device_count = lambda: 1", "events across devices", "there is one device"),
        ("torch.Tensor.backward = lambda self: self.sum()", "perceptron", ""),
        (
            "npu.mem_get_info = lambda index: (1, 100)",
            "memory",
            "an allocation of twice the device's 100 bytes succeeded",
        ),
        ("npu.memory_allocated = lambda index: 0", "memory", "allocating 4 MiB raised memory_allocated by 0 bytes"),
        (
            "step, at = selftest._step, iter(range(9)); selftest._step = lambda *args: (next(at) + step(*args)[0], [])",
            "deterministic algorithms",
            "the same step again",
        ),
    ],
)
def test_N7_a_check_of_what_does_not_work_fails_with_the_reason(
    in_npu_program: Any, breaks: str, check: str, words: str
) -> None:
    code = f"""
        import os, torch
        import mindtorch.npu as npu
        from acl_library import Library
        from mindtorch.npu import selftest
        from mindtorch.npu.tensor import NpuTensor
        library = Library(os.environ["GENIE_ACL_LIBRARY"])
        torch.ones(2).npu().cpu()
        {breaks}
        selftest.check({check!r}, 0)
        """
    row = json.loads(in_npu_program(code))
    assert row["result"] == ("skipped" if "one device" in words else "failed")
    assert words in row.get("error", row.get("seen"))


def test_N7_a_runtime_that_says_it_waits_for_other_devices_and_does_not_is_found(in_npu_program: Any) -> None:
    said = in_npu_program(
        """
        import os
        from acl_library import Library
        from mindtorch.npu import selftest
        Library(os.environ["GENIE_ACL_LIBRARY"]).delay_copies(20)
        selftest.check("events across devices", 0)
        """,
        GENIE_TEST_NPU_RUNTIME="90200000", GENIE_TEST_NPU_FOREIGN_WAITS="0", GENIE_TEST_NPU_ORDER="0",
    )  # fmt: skip
    row = json.loads(said)
    assert row["result"] == "failed" and "npu:0 to npu:1: expected tensor" in row["error"]


def genie(*args: str) -> Any:
    return CliRunner().invoke(cli, ["devices", *args], prog_name="genie")


@pytest.fixture
def here(library: Any, acl_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GENIE_ACL_LIBRARY", str(acl_path))
    monkeypatch.setattr(selftest, "CHECKS", {name: selftest.CHECKS[name] for name in ("copies", "memory")})
    return tmp_path


def test_C7_an_npu_is_tried_and_a_report_written(here: Path) -> None:
    result = genie("npu", "--test")
    assert result.exit_code == 0, result.output
    assert "passed   copies: 46 copies\npassed   memory: " in result.stdout
    assert "say nothing about hardware" in result.stderr and "none of 2 failed" in result.stderr
    report = json.loads((here / "npu-test.json").read_text())
    assert [row["check"] for row in report["checks"]] == ["copies", "memory"]
    assert report["devices"][0]["type"] == "npu" and report["versions"]["torch"]


@pytest.mark.parametrize(
    ("start", "patience", "words"),
    [
        ("import os; os.abort()", 60, "the process ended with exit code -6"),
        ("import time; time.sleep(60)", 0.25, "it did not end in 0.25 s"),
        ("raise OSError('no such chip')", 60, "OSError: no such chip"),
    ],
)
def test_C7_a_check_that_ends_its_process_or_never_ends_is_that_checks_alone(
    here: Path, monkeypatch: pytest.MonkeyPatch, start: str, patience: float, words: str
) -> None:
    monkeypatch.setattr(selftest, "_PATIENCE", patience)
    monkeypatch.setattr(selftest, "_START", start)
    result = genie("npu:0", "--test", "--json", "--report", "other.json")
    assert result.exit_code == 1 and "2 of 2 failed (copies, memory)" in result.stderr
    report = json.loads((here / "other.json").read_text())
    assert json.loads(result.stdout) == report
    assert all(words in row["error"] and row["result"] == "failed" for row in report["checks"])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--test"], "--test and --report are for an NPU"),
        (["cpu", "--test"], "--test and --report are for an NPU"),
        (["npu", "--report", "x.json"], "--report needs --test"),
    ],
)
def test_C7_what_cannot_be_tested_is_refused(args: list[str], words: str) -> None:
    result = genie(*args)
    assert result.exit_code == 2 and words in result.stderr
