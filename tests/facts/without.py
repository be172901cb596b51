"""Renames names inside torch, one per child process, and runs a recorded program and ``genie profile`` there.

``python without.py RESULTS NAME...``: writes JSON, name -> what was seen. ``-``: nothing is renamed.
"""

from __future__ import annotations

import functools
import gc
import importlib
import io
import json
import os
import sys
import tempfile
import traceback
import types
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import torch

torch.set_num_threads(1)  # what forks must not have threads of OpenMP's
SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    model(torch.ones(3, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def program(device: str) -> list[list[Any]]:
    """Values that a small program computes: training, views, random numbers, writes, printing."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    torch.manual_seed(4)  # the device has a generator of its own
    x = torch.linspace(-1, 1, 12).reshape(3, 4).to(device)
    losses = []
    for _ in range(2):
        loss = model(x).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    y = torch.zeros(4, 4, device=device)
    y[1:3].add_(torch.randn(2, 4, device=device))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        low = (y @ y).float()
    with torch.inference_mode():
        turned = torch.view_as_complex(y.reshape(4, 2, 2).clone()) * 2j
    image = torch.nn.functional.conv2d(torch.ones(1, 2, 5, 5, device=device), torch.ones(3, 2, 3, 3, device=device))
    found = [*(p.detach() for p in model.parameters()), y, low, torch.view_as_real(turned), image]
    assert "tensor(" in repr(y) or "Tensor" in repr(y)
    return [losses, *(t.cpu().reshape(-1).tolist() for t in found)]


def rename(dotted: str) -> None:
    """Give the name another one, everywhere in torch's own Python, too: as a release does."""
    path, _, name = dotted.rpartition(".")
    owner: Any = torch
    parts = path.split(".")
    for i, part in enumerate(parts[1:], 2):
        try:
            owner = importlib.import_module(".".join(parts[:i]))
        except ImportError:  # a class, or what C++ made
            owner = getattr(owner, part)
    new = f"{name}_renamed"
    setattr(owner, new, getattr(owner, name))
    delattr(owner, name)
    for module in [m for path, m in list(sys.modules.items()) if path.startswith("torch") and name in vars(m)]:
        if module is not owner:
            setattr(module, new, vars(module)[name])  # imported from there
    gc.unfreeze()  # a forked process may have frozen them: they would not be listed
    for found in gc.get_objects():
        if type(found) is types.FunctionType and str(found.__module__).startswith("torch"):
            found.__code__ = _renamed(found.__code__, name, new)


def _renamed(code: types.CodeType, name: str, new: str) -> types.CodeType:
    constants = tuple(_renamed(c, name, new) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    if name not in code.co_names and constants == code.co_consts:
        return code
    return code.replace(co_names=tuple(new if n == name else n for n in code.co_names), co_consts=constants)


def record() -> dict[str, Any]:
    import mindtorch

    same = program("remote_accelerator:0") == EAGER
    stats = mindtorch.stats()
    return {"same": same, "recorded": stats["ops_recorded"] > 20, "lost": stats["torch_lost"]}


def command(*arguments: str) -> str:
    sys.argv = ["genie", *arguments]
    from mindtorch.cli.main import entry

    out = io.StringIO()
    try:
        with redirect_stdout(out):
            entry()
    except SystemExit as ended:
        assert not ended.code, (ended.code, out.getvalue())
    return out.getvalue()


def profile() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        script, report = os.path.join(folder, "script.py"), os.path.join(folder, "report.json")
        with open(script, "w") as file:
            file.write(SCRIPT)
        command("profile", "--json", report, script)
        with open(report) as file:
            found = json.load(file)
    calls: dict[str, int] = {}
    for row in found["ops"]:
        calls[row["name"]] = calls.get(row["name"], 0) + row["calls"]
    return {"calls": calls, "flops": found["totals"]["flops"], "warnings": found["warnings"]}


def devices() -> dict[str, Any]:
    found = json.loads(command("devices", "cpu", "--json"))
    return {"lost": found["torch_lost"], "text": command("devices", "cpu")}


def in_child(function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What the function gives in a child process."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            found = function()
        except BaseException:
            found = {"failed": traceback.format_exc()[-3000:]}
        with os.fdopen(write, "w") as out:
            json.dump(found, out)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        text = said.read()
    os.waitpid(pid, 0)
    found: dict[str, Any] = json.loads(text) if text else {"failed": "the process ended"}
    return found


def without(name: str) -> dict[str, Any]:
    """What is seen where torch has the name no more."""
    if name != "-":
        rename(name)
        torch.__version__ = type(torch.__version__)("2.99.0")
    return {step.__name__: in_child(step) for step in (record, profile, devices)}


if __name__ == "__main__":
    EAGER = program("cpu")
    results = {name: in_child(functools.partial(without, name)) for name in sys.argv[2:]}
    with open(sys.argv[1], "w") as file:
        json.dump(results, file)
