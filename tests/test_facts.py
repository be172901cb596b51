"""What a program can observe of torch is the same without us, with us, after disable(), and under genie profile (L1).

``facts/program.py`` observes; here is what may differ, each with its reason.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Forked = Callable[..., "subprocess.CompletedProcess[str]"]
PROGRAM = Path(__file__).parent / "facts" / "program.py"
GENIE = "import sys; sys.argv[0] = 'genie'; from mindtorch.cli.main import entry; entry()"
# Name of a fact, or the beginning of one before *.
LOADED = {
    "sorted(set(torch.jit._builtins*": "torch notes the names of operators that are looked up",
    "name utils._device": "the module of torch's default device, loaded to be hooked",
    "loaded": "the same",
    "name nested._internal": "a module of torch's that it does not load by itself since 2.14",
}
NAMES = {
    **LOADED,
    "code *": "functions that are replaced say where they are from; their names and signatures are torch's",
    "name torch.npu": "a device that mindtorch adds",
    "name torch.remote_accelerator": "another",
    "name Tensor.npu": "moves there",
    "name Parameter.npu": "the same",
    "name Tensor.is_npu": "whether it is there, as torch has is_cuda",
    "name Parameter.is_npu": "the same",
    "name Module.npu": "the same",
    "name Lazy.device": "where a parameter without a shape belongs",
    "name overrides.has_torch_function": "a function in place of a builtin",
    "name torch.to_dlpack": "the same",
    "name torch.set_flush_denormal": "what was recorded before runs before it: says of itself that it is torch's own",
    "name torch.set_num_threads": "the same",
    "name torch.get_device_module": "the same",
    "len(torch.overrides.get_overridable_functions()*": "Tensor.npu",
    "len(torch.overrides.get_testing_overrides())*": "has_torch_function under its other name",
    "torch.ones(2, device='npu*": "npu is a device: what is wrong with it is said in our words",
    "torch.ones(2).to('npu*": "the same",
    "nn.Linear(1, 1).to('npu*": "the same",
    "torch.get_device_module('npu*": "the same",
    "torch.autocast('npu*": "the same",
    "torch.Generator('npu*": "the same",
}
MEASURING = {
    **LOADED,
    "name autograd._engine_run_backward": "phases: where backward begins and ends",
    "name graph._engine_run_backward": "the same",
    "code Function.apply": "the same",
    "name Function.apply": "the same",
    "Double.apply.__qualname__": "the same",
    'torch.zeros(2, names=("a",))': "torch 2.12, the last with names, refuses them under any dispatch mode",
    'functions torch.zeros(2, names=("a",))': "the same",
    "nn.modules.module._global_module_registration_hooks*": "parameters of modules that are never called",
    "code Module.__call__": "module paths",
    "code Module.__init_subclass__": "module paths: classes that have a __call__ of their own",
    "name Module.__init_subclass__": "the same",
    "code Optimizer.__init_subclass__": "phases: optimizers around others, whose steps torch does not hook",
    "name Optimizer.__init_subclass__": "the same",
    "code Adam.__init_subclass__": "the same",
    "name Adam.__init_subclass__": "the same",
    "code SGD.__init_subclass__": "the same",
    "name SGD.__init_subclass__": "the same",
    "code Optimizer._patch_step_function": "phases: where a step that raises ends",
    "code Adam._patch_step_function": "the same",
    "code SGD._patch_step_function": "the same",
    "code autograd._engine_run_backward": "the same",
    "code graph._engine_run_backward": "the same",
}


def observed(forked_after_torch: Forked, path: Path, command: list[str]) -> dict[str, str]:
    """In a fork of a process that has imported torch, as the program does first."""
    done = forked_after_torch(*command, environment={**os.environ, "GENIE_ACL_LIBRARY": ""}, timeout=550)
    assert done.returncode == 0, done.stderr
    facts: dict[str, str] = json.loads(path.read_text())
    return facts


@pytest.fixture(scope="module")
def without(forked_after_torch: Forked, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    path = tmp_path_factory.mktemp("facts") / "without.json"
    return observed(forked_after_torch, path, [str(PROGRAM), str(path)])


WAYS = {
    "imported": (["{program}", "{out}", "import mindtorch"], NAMES),
    "disabled": (["{program}", "{out}", "import mindtorch; mindtorch.disable()"], LOADED),
    "imported but off": (
        ["{program}", "{out}", "import os; os.environ['GENIE_AUTO_ENABLE'] = '0'; import mindtorch"],
        LOADED,
    ),
    "profiled": (["-c", GENIE, "profile", "{program}", "{out}"], MEASURING),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("way", WAYS)
def test_L1_programs_observe_the_same_torch(
    way: str, without: dict[str, str], forked_after_torch: Forked, tmp_path: Path
) -> None:
    command, may_differ = WAYS[way]
    out = tmp_path / "facts.json"
    found = observed(forked_after_torch, out, [part.format(program=PROGRAM, out=out) for part in command])
    beginnings = tuple(name[:-1] for name in may_differ if name.endswith("*"))
    differ = [
        f"{name}\n    without: {without.get(name)}\n    {way}: {found.get(name)}"
        for name in sorted({*without, *found})
        if without.get(name) != found.get(name) and name not in may_differ and not name.startswith(beginnings)
    ]
    assert not differ, "\n".join(differ)
    assert sum(not name.startswith(("name ", "code ")) for name in found) > 4800  # and some 9,000 names
