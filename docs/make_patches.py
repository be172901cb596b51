"""Makes docs/PATCHES.md: what mindtorch replaces in torch, when and why, with the installed torch.

    python docs/make_patches.py

Nothing is written by hand but the reasons: every occasion below is entered, and every `mindtorch.base.patching.Patch`
that is put in place meanwhile is a row.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import ModuleType
from typing import Any

import safetensors  # noqa: F401
import torch
import torch._dynamo.convert_frame
import torch.distributed.fsdp
import torch.distributed.tensor
import torch.nn.attention.flex_attention
from torch.utils.data._utils import collate

import mindtorch
from mindtorch._ext.standin import StandIn
from mindtorch.base import patching

ROOT = Path(__file__).resolve().parent.parent
#: The package that is imported, which may be an installed one.
PACKAGE = Path(mindtorch.__file__).parent
PAGE = ROOT / "docs" / "PATCHES.md"
#: Of Python's own, for what a program does with files, threads and processes: no concern of this page.
FILES = "mindtorch/profile/estimate/redirected.py"


def enabled() -> None:
    """Torch's functions and classes must check for mindtorch's devices, and code that watches, traces or stores
    tensors must know mindtorch's. `mindtorch.disable()` undoes all of it."""
    mindtorch.disable()
    mindtorch.enable()


def first_use() -> None:
    """Torch's slot for a foreign device is claimed, permanently, because torch cannot release it. While mindtorch's
    tensors are in use, modules, backward passes and steps are followed; `.device` looks inside wrappers, and random
    draws look up their generator."""
    from mindtorch.patch import generators, wrappers

    wrappers.watch()
    generators.watch_all()
    torch.ones(2, device="remote_accelerator").sum()


def run() -> None:
    """The default device is mindtorch's, and its generator is torch's default one."""
    from mindtorch.patch.default_device import default_device

    with default_device(0):
        pass


def mapped() -> None:
    """`cuda` is another name for `remote_accelerator`."""
    from mindtorch.patch.cuda_names import cuda_is_ours

    with cuda_is_ours():
        pass


def estimated(**options: Any) -> None:
    """The program sees an accelerator that does not exist, nothing is written, and functions that torch computes in C++
    from values use sizes instead."""
    from mindtorch.profile.estimate.accelerator import Accelerator
    from mindtorch.profile.estimate.estimating import estimating

    with estimating(Accelerator("A", 1 << 36, kind=options.pop("kind", "cuda")), **options):
        pass


def of_npu() -> None:
    """`torch.npu` answers like `torch.cuda`."""
    estimated(kind="npu")


def ranked() -> None:
    """Process groups send nothing, and note what they would have done."""
    from mindtorch.base.clusters import Cluster

    estimated(cluster=Cluster(2))


def profiled() -> None:
    """Modules, backward passes and steps are followed, as while mindtorch's tensors are in use; the profile also notes
    whether the program starts torch's own profiler, and what DistributedDataParallel allocates."""
    from mindtorch._ext.balance import Balance
    from mindtorch.base.patching import Patches
    from mindtorch.profile.measure.watches import ProfilerWatch, of_reducers

    ProfilerWatch().stop()
    held = Patches()
    held.put(of_reducers(Balance(torch.Tensor)))
    held.undo()


def npu_compat() -> None:
    """Torch knows `npu` by name, and `torch_npu` can be imported. Permanent."""
    importlib.import_module("mindtorch.npu.compat")


def transferred() -> None:
    """The program's `cuda` is `npu`. Permanent."""
    importlib.import_module("mindtorch.npu.compat.transfer_to_npu")


#: By their titles; those of a table are entered in one process, and what one before them did is not shown again.
OCCASIONS: list[dict[str, Callable[[], None]]] = [
    {
        "From `import mindtorch` on": enabled,
        "From mindtorch's first tensor, generator or wrapper on": first_use,
        "Within a profile": profiled,
        "Within `genie run`": run,
        "Within `genie run --map cuda`": mapped,
        "Within an estimate": estimated,
        "Within an estimate of an NPU": of_npu,
        "Within an estimate of one rank of several": ranked,
    },
    {
        "From `import mindtorch.npu.compat` on": npu_compat,
        "From `torch_npu.contrib.transfer_to_npu` on": transferred,
    },
]
HEAD = """\
# What mindtorch replaces in torch, when and why

Made by `python docs/make_patches.py`, with torch {torch.__version__}: it lists every `Patch`
(`mindtorch/base/patching.py`); `tests/test_patches.py` compares. If a release of torch lacks a name, `existing` there
leaves it out, or `mindtorch/base/torch_names.py` has slower code for it.

Transformers and accelerate are patched permanently once they are loaded, within `genie run`
(`mindtorch/patch/pretrained.py`) and estimates (`mindtorch/profile/estimate/beams.py`), and Triton while the device is
enabled, in profiles and estimates (`mindtorch/patch/triton_kernels.py`). Operators get kernels through
`torch.library`, in `mindtorch/patch/dispatch_modes.py` and `mindtorch/profile/estimate/autocast.py`. Replacements that
profiles and estimates make in Python itself (threads, processes, files) are not listed. Not patches:
`mindtorch/base/torch_facts.py` permanently changes two of torch's functions, which are slow or refuse mindtorch's
methods; `mindtorch/engine/semantics/` wraps the steps of optimizer classes and the `__call__` of module classes that
have their own, and tells Dynamo which `Module.__call__` is torch's.
"""


def owner_name(owner: Any) -> str:
    if isinstance(owner, ModuleType):
        return owner.__name__
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}"
    named = {
        "torch._C._VariableFunctions": torch._C._VariableFunctions,
        "torch.serialization._package_registry": torch.serialization._package_registry,
        "torch.utils.data._utils.collate.default_collate_fn_map": collate.default_collate_fn_map,
        "multiprocessing.reduction.ForkingPickler._extra_reducers": ForkingPickler._extra_reducers,
    }
    kind = type(owner)
    return next((name for name, each in named.items() if each is owner), f"{kind.__module__}.{kind.__qualname__}")


def stand_in(value: Any) -> str:
    """Where what stands there is written."""
    if isinstance(value, patching.Hook):
        return f"_ext/hooks.pyx: {type(value).__name__}"
    if isinstance(value, StandIn):
        return "mindtorch/patch/flags.py"
    value = vars(value).get("__new__", value) if isinstance(value, type) else value  # a class that goes by torch's name
    for inner in ("func", "__func__", "fget"):
        value = getattr(value, inner, value)
    file = getattr(getattr(value, "__code__", None), "co_filename", "")
    if not file.startswith(str(PACKAGE)):
        module = str(getattr(value, "__module__", "") or getattr(type(value), "__module__", ""))
        module = module.replace(".", "/")
        return f"{module[10:]}.pyx" if "/_ext/" in module else f"{module}.py" if module.startswith("mindtorch/") else ""
    return str(Path(file).relative_to(PACKAGE.parent))


@contextlib.contextmanager
def watched() -> Iterator[dict[str, dict[str, str]]]:
    """Owner -> name -> where what stands there is written: of what is put in place within the block."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    exchange = patching._exchange

    def note(owner: Any, name: Any, value: Any) -> Any:
        shown = name if isinstance(name, str) else getattr(name, "__name__", "an entry")
        of, at = owner_name(owner), stand_in(value)
        if at != FILES and not of.startswith("mindtorch."):
            found[of][shown] = at
        return exchange(owner, name, value)

    patching._exchange = note
    try:
        yield found
    finally:
        patching._exchange = exchange


def enter(which: int) -> list[dict[str, dict[str, str]]]:
    """What each occasion of a line puts in place, but for what one before it did."""
    seen: set[tuple[str, str]] = set()
    tables = []
    for begin in OCCASIONS[which].values():
        with watched() as found:
            begin()
        new = {o: {n: at for n, at in names.items() if (o, n) not in seen} for o, names in found.items()}
        seen |= {(o, n) for o, names in new.items() for n in names}
        tables.append({owner: names for owner, names in new.items() if names})
    return tables


def page() -> str:
    lines = [HEAD.format(torch=torch)]
    for which, occasions in enumerate(OCCASIONS):
        done = subprocess.run([sys.executable, __file__, str(which)], capture_output=True, text=True, check=True)
        for (title, begin), found in zip(occasions.items(), json.loads(done.stdout.splitlines()[-1]), strict=True):
            why = " ".join((begin.__doc__ or "").split())
            lines.append(f"## {title}\n\n{why}\n\n| of | replaced | by |\n|---|---|---|")
            for owner in sorted(found):
                by = defaultdict(list)
                for name, at in found[owner].items():
                    by[at].append(name)
                lines += [f"| `{owner}` | {', '.join(f'`{n}`' for n in sorted(by[at]))} | {at} |" for at in sorted(by)]
            lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.stdout.write(json.dumps(enter(int(sys.argv[1]))))
    else:
        PAGE.write_text(page(), encoding="utf-8")
