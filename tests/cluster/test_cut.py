"""R4: a connection that is cut for a while, between two network namespaces of this machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .blows import ip, two_namespaces

pytest.importorskip("ray", reason="Ray is not installed: pip install 'mindtorch-genie[ray]'")
GENIE = [sys.executable, "-m", "mindtorch"]
_PROGRAM = """
import sys, torch, mindtorch
x = torch.zeros(2, device="remote_accelerator:0")
for i in range(1, 4):
    x = x + 1
    assert x.tolist() == [i, i]
    print(i, flush=True)
    sys.stdin.readline()
print(mindtorch.get_executor().stats["rebuilt"])
"""


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
    """Those of `two_namespaces`."""
    with contextlib.ExitStack() as stack:
        try:
            names = stack.enter_context(two_namespaces())
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield names


@pytest.mark.whole
def test_R4_a_program_goes_on_when_its_connection_is_back(namespaces: list[str], tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(_PROGRAM)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("GENIE_", "RAY_"))}
    begun: list[subprocess.Popen[str]] = []

    def genie(place: int, *args: str) -> subprocess.Popen[str]:
        made = subprocess.Popen(
            ["ip", "netns", "exec", namespaces[place], *GENIE, *args], env=variables | {"RAY_AUTH_TOKEN": "e" * 64},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        begun.insert(0, made)
        return made

    def line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline()

    def go_on(process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()

    try:
        assert "ready" in line(genie(0, "worker", "start", "--host", "10.77.8.1", "--cpus", "1"))
        joined = ["--host", "10.77.8.2", "--join", "10.77.8.1:6379", "--cpus", "0"]
        assert "ready" in line(genie(1, "worker", "start", *joined))
        program = genie(1, "run", "--executor", "ray", "--address", "10.77.8.1:6379", str(tmp_path / "p.py"))
        assert line(program) == "1\n"
        ip("-n", namespaces[1], "link", "set", f"{namespaces[1]}v", "down")
        go_on(program)
        time.sleep(4)
        assert program.poll() is None
        ip("-n", namespaces[1], "link", "set", f"{namespaces[1]}v", "up")
        assert line(program) == "2\n"
        go_on(program)
        assert line(program) == "3\n"
        told, error = program.communicate("\n", timeout=60)
        assert (told, error) == ("0\n", "")
    finally:
        for process in begun:
            process.terminate()
            process.communicate(timeout=40)
