"""A plain program that writes down what it can observe of torch, as JSON (SPEC L1). It knows nothing of mindtorch.

``python program.py FILE [what to run first]``. A fact is a name and a text; an exception is a fact, too. Order matters:
the facts that load or start parts of torch come last.
"""

# ruff: noqa: E402, F401
import sys

import torch

if len(sys.argv) > 2:
    exec(sys.argv[2])
LOADED = sorted(name for name in sys.modules if name.partition(".")[0] == "torch")

import atexit
import collections
import copy
import gc
import inspect
import io
import itertools
import json
import logging
import os
import pickle
import re
import signal
import tempfile
import threading
import types
import warnings

import torch.distributed as dist
import torch.nn.functional as F
import torch.utils._python_dispatch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

facts: dict[str, str] = {}
OURS = ("mindtorch", "npu", "remote_accelerator")


def without_addresses(said):
    return re.sub(r"0x[0-9a-f]+", "0x", said)


def text(value):
    """A value as text that does not depend on the process."""
    if isinstance(value, torch.Tensor):
        # grad_fn by name; values bit for bit
        extra = f"{type(value).__name__} {value.dtype} {tuple(value.shape)} {value.stride()} {value.device} "
        extra += f"{value.requires_grad} {type(value.grad_fn).__name__}"
        return extra if value.is_meta or value.layout is not torch.strided else f"{extra} {value.detach().tolist()}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(text, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__}({', '.join(sorted(map(text, value)))})"
    if isinstance(value, dict):
        return f"{type(value).__name__}({', '.join(f'{text(k)}: {text(v)}' for k, v in value.items())})"
    return without_addresses(repr(value))


def fact(name, function):
    assert name not in facts, name
    try:
        facts[name] = text(function())
    except Exception as error:  # what a call raises is a fact as well
        facts[name] = f"{type(error).__module__}.{type(error).__name__}: {text(str(error))}"


SECTIONS = {}
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "expressions.txt")) as lines:
    for line in filter(None, map(str.strip, lines)):
        if line.startswith("#"):
            section = SECTIONS[line[1:].strip()] = []
        else:
            section.append(line)


def each(section, **words):
    """One fact for every line of a section of the file."""
    for line in SECTIONS[section]:
        for word, said in words.items():
            line = line.replace(word, said)
        fact(line, lambda line=line: eval(line, globals()))


def kind(value):
    """What an attribute is: of which type, and what it says of itself."""
    parts = [type(value).__name__]
    for name in ("__module__", "__qualname__", "__text_signature__"):
        said = getattr(value, name, None)
        parts.append(said if isinstance(said, str) else "")
    if isinstance(value, (types.FunctionType, types.MethodType)):
        try:
            parts.append(str(inspect.signature(value)))
        except ValueError:  # it wraps a builtin
            parts.append(str(inspect.signature(value, follow_wrapped=False)))
    if isinstance(value, (types.BuiltinFunctionType, type(torch.Tensor.add), type(torch.Tensor.data))):
        parts.append(repr(value))
    if isinstance(value, (bool, int, str, float, torch.dtype, torch.device, torch.layout)):
        parts.append(repr(value))
    return without_addresses(" ".join(parts))


# ---- names -----------------------------------------------------------------------------------------------------------
OWNERS = {
    "torch": torch,
    "Tensor": torch.Tensor,
    "TensorBase": torch._C.TensorBase,
    "Module": nn.Module,
    "F": F,
    "nn": nn,
    "random": torch.random,
    "fft": torch.fft,
    "linalg": torch.linalg,
    "nested": torch.nested,
    "amp": torch.amp,
    "accelerator": torch.accelerator,
    "cuda": torch.cuda,
    "overrides": torch.overrides,
    "autograd": torch.autograd,
    "Function": torch.autograd.Function,
    "graph": torch.autograd.graph,
    "serialization": torch.serialization,
    "utils": torch.utils,
    "data": torch.utils.data,
    "DataLoader": torch.utils.data.DataLoader,
    "jit": torch.jit,
    "func": torch.func,
    "library": torch.library,
    "optim": torch.optim,
    "Optimizer": torch.optim.Optimizer,
    "SGD": torch.optim.SGD,
    "Adam": torch.optim.Adam,
    "storage": torch.storage,
    "Untyped": torch.UntypedStorage,
    "_utils": torch._utils,
    "_tensor": torch._tensor,
    "Parameter": nn.Parameter,
    "device": torch.device,
    "Generator": torch.Generator,
    "Stream": torch.Stream,
    "Event": torch.Event,
    "mp": torch.multiprocessing,
    "backends": torch.backends,
    "sparse": torch.sparse,
    "special": torch.special,
    "export": torch.export,
    "compiler": torch.compiler,
    "PackedSequence": nn.utils.rnn.PackedSequence,
    "init": nn.init,
    "hub": torch.hub,
    "autocast": torch.amp.autocast_mode.autocast,
    "checkpoint": torch.utils.checkpoint,
    "distributions": torch.distributions,
    "Lazy": nn.parameter.UninitializedTensorMixin,
    "_VF": type(torch._C._VariableFunctions),
    "acc": torch._C._acc,
    "DeviceType": torch._C._autograd.DeviceType,
    "Activity": torch.profiler.ProfilerActivity,
}
for label, owner in OWNERS.items():
    # What is loaded later (by other facts) would make the order matter: names as they are now.
    for name in sorted({*vars(owner), *(dir(owner) if isinstance(owner, type) else ())}):
        value = vars(owner).get(name, inspect.getattr_static(owner, name, None))
        facts[f"name {label}.{name}"] = kind(value)
        function = getattr(value, "__func__", value)
        if isinstance(function, types.FunctionType):
            path = function.__code__.co_filename
            facts[f"code {label}.{name}"] = "torch" if f"{os.sep}torch{os.sep}" in path else os.path.basename(path)
facts["loaded"] = text(LOADED)

# ---- the process -----------------------------------------------------------------------------------------------------
each("process")

# ---- torch's own state -----------------------------------------------------------------------------------------------
DEVICES = (
    "cpu",
    "cpu:0",
    "cuda",
    "cuda:0",
    "cuda:1",
    "meta",
    "meta:1",
    "mps",
    "xpu",
    "privateuseone",
    "privateuseone:0",
    "npu",
    "npu:0",
    "hpu",
    "xla",
    "remote",
    "foo",
    "",
    "cpu:",
    "cpu:-1",
    "cpu:01",
    "cuda:128",
)
for spec in DEVICES:
    each("devices", DEVICE=repr(spec))
for name in set(torch.accelerator.__all__) - {"set_stream", "device_index"}:
    arguments = (0,) if name.startswith("set_device") else ()
    fact(f"accelerator.{name}", lambda name=name, arguments=arguments: getattr(torch.accelerator, name)(*arguments))
each("state")

# ---- the dispatcher --------------------------------------------------------------------------------------------------
OPS = (
    "zeros",
    "empty.memory_format",
    "empty_strided",
    "randn",
    "add.Tensor",
    "mm",
    "_to_copy",
    "copy_",
    "to.dtype",
    "relu",
    "convolution",
    "native_layer_norm",
    "_local_scalar_dense",
    "sum",
    "view",
    "index.Tensor",
    "arange",
    "set_.source_Storage",
)
for name in OPS:
    fact(f"dump {name}", lambda name=name: re.sub(r"0x\w+", "0x", torch._C._dispatch_dump(f"aten::{name}")))
    fact(f"table {name}", lambda name=name: torch._C._dispatch_dump_table(f"aten::{name}"))
each("dispatcher")

# ---- functions: values, types and what modes see ---------------------------------------------------------------------
x = torch.tensor([0.25, 0.75])
CALLS = SECTIONS["calls"]


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class Dispatches(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def seen_by(mode, call):
    torch.manual_seed(7)
    mode.seen = []
    with mode:
        try:
            eval(call)
        except Exception as error:
            mode.seen.append(type(error).__name__)
    return mode.seen


def names(functions):
    """Each function, and whether it is what its name in torch says."""
    for func in functions:
        name = getattr(func, "__name__", str(func))
        homes = (torch, torch.Tensor, torch.fft, F, torch._C._nn, torch.nn.init, torch.special)
        yield name, any(vars(home).get(name, getattr(home, name, None)) is func for home in homes)


for call in CALLS:
    torch.manual_seed(7)
    fact(call, lambda call=call: eval(call))
    fact(f"functions {call}", lambda call=call: list(names(seen_by(Functions(), call))))
    fact(f"dispatches {call}", lambda call=call: seen_by(Dispatches(), call))


class Sub(torch.Tensor):
    calls = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append((func.__name__, types))
        return super().__torch_function__(func, types, args, kwargs or {})


sub = torch.ones(2).as_subclass(Sub)
for call in SECTIONS["subclass"]:
    Sub.calls.clear()
    fact(f"subclass {call}", lambda call=call: (type(eval(call)).__name__, list(Sub.calls)))


class Duck:
    """No tensor, and asked about every call that it is an argument of."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        name = torch.overrides.resolve_name(func) or getattr(func, "__qualname__", type(func).__name__)
        return name, types, [type(a).__name__ for a in args], sorted(kwargs or {})


def of_ducks(func, stand_in, first):
    """What ``func`` makes of ducks, as many as it wants, behind ``first``."""
    parameters = inspect.signature(stand_in).parameters.values()
    wanted = sum(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
    torch.manual_seed(7)
    return func(*first, *(Duck() for _ in range(max(wanted - len(first), 1))))


def known_by_name(func):
    return torch.overrides.resolve_name(func) or func.__qualname__


asked = collections.Counter()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for func, stand_in in torch.overrides.get_testing_overrides().items():
        name = f"{known_by_name(func)} {getattr(func, '__name__', '')}"
        if "_cdata" in name:
            continue  # an address
        asked[name] += 1  # the getters of some attributes have one name
        for what, first in (("alone", ()), ("behind a tensor", (x.clone(),)), ("behind a list", ([x.clone()],))):
            fact(
                f"ducks {what}: {name} {asked[name]}",
                lambda func=func, stand_in=stand_in, first=first: of_ducks(func, stand_in, first),
            )
    fact("torch._assert(Duck())", lambda: torch._assert(Duck(), "not so"))
    fact("symbolic trace of an assertion", lambda: torch.fx.symbolic_trace(lambda x: torch._assert(x, "m")).code)

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "behaviour.py")) as source:
    exec(compile(source.read(), source.name, "exec"))
with open(sys.argv[1], "w") as out:
    json.dump(facts, out, indent=0)
