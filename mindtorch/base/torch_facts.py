"""What mindtorch relies on in torch beyond its documented interface, and what differs between its releases.

`torch_names.FACTS` lists names inside torch, what is done where a release has one no more, and what that costs. `check`
runs when mindtorch is imported, before anything else of it looks at torch: a name that is missing gets the slower way
in its place (`slower_ways.py`), in torch itself, where nothing of torch's asks for it any more. So there is one build,
and no other file asks which release it is. What was lost is in ``lost``, which ``genie devices`` and
``mindtorch.stats()["torch_lost"]`` show.

`tests/test_torch_facts.py` takes away each of them in turn.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.machinery
import inspect
import os
import struct
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from . import NAME
from .torch_names import FACTS, RELEASES
from .words import counted

#: By these, what is made within a dispatch is known to be a view. Together, or not at all.
VIEW_KEYS = frozenset(
    f"torch._C.{name}"
    for name in ("_ForceDispatchKeyGuard", "_dispatch_tls_local_exclude_set", "_dispatch_tls_local_include_set")
)
_checked = False
lost: dict[str, str] = {}  # what the installed torch does not have -> what that costs


def release() -> str:
    """Of the installed torch: ``2.13``; of one that is not released yet the whole version."""
    version = str(torch.__version__)
    number = version.partition("+")[0]
    return number.rpartition(".")[0] if number.replace(".", "").isdigit() else number


def is_tested() -> bool:
    """Is it one whose names `tests/test_torch_facts.py` was run with?"""
    return release() in RELEASES


def check() -> None:
    """Put a slower way in the place of what the installed torch does not have. Once, before the rest is imported."""
    global _checked
    if _checked:
        return
    _checked = True
    proving = not is_tested()
    for fact in FACTS:
        owner, name = _owner(fact.name)
        found = getattr(owner, name, _MISSING)
        if found is _MISSING:
            from .slower_ways import way  # which the releases that are known need nothing of

            setattr(owner, name, way(fact.way))
            lost[fact.name] = fact.lost
        elif proving and not fact.proves(found):
            lost[fact.name] = f"it has changed; {fact.lost}"


def summary() -> str:
    """One sentence about what was lost; empty where nothing was."""
    if not lost:
        return ""
    names = f"{counted(len(lost), 'name')} that mindtorch relies on"
    return f"torch {torch.__version__} lacks {names}; mindtorch uses slower code instead, which genie devices lists"


_MISSING = object()


def _owner(dotted: str) -> tuple[Any, str]:
    """What holds a name, and the name; modules that torch does not have are made, empty."""
    path, _, name = dotted.rpartition(".")
    found: Any = torch
    parts = path.split(".")
    for i, part in enumerate(parts[1:], 2):
        below = getattr(found, part, _MISSING)
        if below is _MISSING or (isinstance(found, types.ModuleType) and f"{found.__name__}.{part}" in sys.modules):
            below = _module(".".join(parts[:i]), found, part)
        found = below
    return found, name


def _module(dotted: str, parent: Any, part: str) -> Any:
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError:
        made = types.ModuleType(dotted, "mindtorch's replacement for a module that this torch does not have.")
        sys.modules[dotted] = made
        setattr(parent, part, made)
        lost[dotted] = "the module is gone; its names are listed separately"
        return made


@functools.cache
def leave_ours_alone(trace_rules: Any) -> None:
    """Dynamo does not compile our own Python code, which runs inside the program's calls. It has no way back.

    trace_rules: ``torch._dynamo.trace_rules``.
    """
    import pkgutil

    own = sys.modules[NAME]
    spec = own.__spec__
    assert spec is not None
    # `add` asks for the package as an import does, which would tell `mindtorch` that the program imports it.
    own.__spec__ = importlib.machinery.ModuleSpec(NAME, spec.loader, origin=spec.origin, is_package=True)
    try:
        for each in pkgutil.iter_modules(own.__path__):  # in a checkout, they are not where the package itself is
            if each.ispkg:
                trace_rules.add(f"{NAME}.{each.name}")
    finally:
        own.__spec__ = spec


def let_dynamo_know(stand_ins: Mapping[Any, Any]) -> None:
    """Let Dynamo trace these functions as those of torch's, compiled ones, in whose place they are.

    Of a torch that keeps its rules elsewhere, a graph ends at them.
    """
    from torch._dynamo import trace_rules
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable as traced

    rules: dict[Any, Any] = getattr(trace_rules, "get_torch_obj_rule_map", dict)()
    handlers: dict[Any, Any] = getattr(traced, "_get_handlers", dict)()
    for stand_in, original in stand_ins.items():
        if original in rules:
            rules[stand_in] = rules[original]
            if original in handlers:
                handlers.setdefault(stand_in, handlers[original])


def uncompiled() -> Any:
    """What tells Dynamo to run a frame as it is, with all that it calls, and to look at the next call of it again."""
    from torch._dynamo.types import ConvertFrameReturn, FrameAction, FrameExecStrategy

    counted = getattr(torch._C._dynamo.eval_frame, "set_fullgraph_compiled_frame_count", None)
    if counted is not None and (count := counted(-1)) >= 0:
        counted(count + 1)  # else ``fullgraph=True`` raises, as nothing was compiled
    as_it_is = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)
    return ConvertFrameReturn(frame_exec_strategy=as_it_is, apply_to_code=False)


def met_by_dynamo(tell: Callable[[Iterable[Any]], None]) -> Iterator[tuple[Any, str, Any]]:
    """Patches that tell of what a frame reads which Dynamo traces, what its calls are given (devices, for example), and
    what its graph makes: torch's stand-ins for tensors, with their devices.
    """
    from torch._dynamo import output_graph
    from torch._dynamo.variables import builder

    def telling(owner: Any, name: str, values: Callable[..., Iterable[Any]]) -> Iterator[tuple[Any, str, Any]]:
        does = getattr(owner, name, None)
        if does is None:
            return

        @functools.wraps(does)
        def told(self: Any, *args: Any, **kwargs: Any) -> Any:
            tell(values(*args, **kwargs))
            return does(self, *args, **kwargs)

        yield owner, name, told

    def made(gm: Any, *_args: Any, **_named: Any) -> Iterator[Any]:
        return (node.meta.get("example_value") for node in gm.graph.nodes)

    def given(*args: Any, **kwargs: Any) -> list[Any]:
        return tree_leaves((args, kwargs))

    yield from telling(getattr(builder, "VariableBuilder", None), "__call__", given)
    yield from telling(getattr(output_graph, "SubgraphTracer", None), "create_proxy", given)
    yield from telling(getattr(output_graph, "OutputGraph", None), "call_user_compiler", made)


def shorten_rules() -> None:
    """Let torch look up what `torch.library.register_torch_dispatch` was told, before each dispatch to a class, without
    Python for operators of which it was told nothing. A torch that keeps that elsewhere goes on as it is.
    """
    registry = sys.modules.get("torch._library.simple_registry")
    found = getattr(registry, "find_torch_dispatch_rule", None)
    entries = getattr(getattr(registry, "singleton", None), "_data", None)
    if found is None or type(entries) is not dict:
        return
    from .._ext.function_entries import rule_finder

    entries.pop(probe := "mindtorch::probe", None)
    if found(types.SimpleNamespace(__qualname__=probe), torch.Tensor) is not None or entries.pop(probe, None) is None:
        return  # it does not go by that name there
    setattr(registry, "find_torch_dispatch_rule", rule_finder(entries, found))  # noqa: B010


@functools.cache
def _libraries() -> list[Any]:
    """Those of torch's own code that are loaded: its core, its operators, its Python part."""
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    paths = [os.path.join(folder, f"lib{part}.{end}") for part in _PARTS for end in ("so", "dylib")]
    return [ctypes.CDLL(path, os.RTLD_LAZY | os.RTLD_NOLOAD) for path in paths if os.path.exists(path)]


_PARTS = ("c10", "torch_cpu", "torch_python")


def exported(name: str) -> int:
    """The address of a C++ function of torch's; 0 where no library exports it."""
    for library in _libraries():
        if hasattr(library, name):
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    return 0


def read_state() -> None:
    """Let `_ext/local_state.pyx` read how calls are dispatched, where torch exports it and it is what torch says."""
    from .._ext import local_state

    class AnyFunctions(torch.overrides.TorchFunctionMode):
        pass

    class AnyOps(torch.utils._python_dispatch.TorchDispatchMode):
        pass

    local_state.ask(torch)
    keyed = [AnyOps(), torch.inference_mode(), torch.autocast("cpu")]
    no_classes = torch._C.DisableTorchFunctionSubclass()
    core = next((library._name for library in _libraries()), "")
    reads = local_state.start(core, exported, keyed, torch.no_grad(), AnyFunctions(), no_classes)
    kept = "dispatch keys", "grad mode", "function modes", "note of who is asked about functions"
    for what, read in zip(kept, reads, strict=True):
        if not read:
            lost[f"where torch keeps its {what}"] = "each recorded call asks for them in Python, which takes longer"


def views_made(wrapper: Any) -> bool:
    """Does torch export the operators by which `_ext/native_views.pyx` makes views, of tensors like this one?"""
    from .._ext import native_views

    below = getattr(torch._C, "_AutoDispatchBelowAutograd", contextlib.nullcontext)
    catching = _catching()
    catch = 0 if catching is None else catching.viewer()
    made = native_views.start(exported, torch.zeros(2, 3, device="cpu"), wrapper, below(), catch)
    if not made:
        lost["operators of torch's libraries"] = (
            "views and writes are recorded as torch decomposes them, which is slower"
        )
    return made


def _catching() -> Any:
    """What calls C++ and catches its exceptions; None where no C++ compiler has built it."""
    try:
        from .._ext import catching
    except ImportError:
        return None
    return catching


def native_calls_made() -> bool:
    """Can recorded calls be made without Python? Where torch exports what that takes, and a C++ compiler was there.

    On a release that nobody has tried they are not: how torch lays out what it is given by address cannot be asked.
    """
    from .._ext import native_calls, native_views

    catching = _catching()
    if catching is None or not is_tested():
        return False
    found = native_views.facts(torch.zeros(2, 3, device="cpu"))
    functions = catching.start(exported("aoti_torch_delete_tensor_object"))
    if found is None or functions is None:
        return False
    call, give_up = functions
    native_calls.start(call, give_up, *found, torch.Tensor)
    return True


def wrappers_tried() -> bool:
    """Is this a CPython that `_ext/kept_wrappers.pyx` was tried on? It takes part in how that frees objects."""
    return sys.version_info[:2] == (3, 11)


def tensors_laid_out() -> bool:
    """Are torch's tensors the structs that `_ext/kept_wrappers.pyx` reads, and does it see each change of one?"""
    from .._ext.kept_wrappers import is_laid_out

    if "torch._C._set_neg" in lost or not hasattr(torch._C, "_WeakTensorRef"):
        return False

    def versioned(t: Any) -> Any:
        other = t.detach()
        other.data = torch.empty(2, 3, device="cpu")  # what they share now is the version alone
        return other

    def hooked(t: Any) -> None:
        t._backward_hooks = {}

    def marked(t: Any) -> None:
        t.mark = 1

    def refilled(t: Any) -> None:
        t.data = torch.empty(2, 3, device="cpu")

    changes: list[Any] = [
        lambda t: t.requires_grad_(), lambda t: t.t_(), lambda t: t.resize_(1, 1), lambda t: t.detach(),
        lambda t: t.as_strided_((1, 3), (3, 1), 3), lambda t: t.data, lambda t: t.untyped_storage(),
        lambda t: torch._C._set_neg(t, True), lambda t: torch.autograd.graph.increment_version(t),
        lambda t: torch._C._WeakTensorRef(t), weakref.ref, versioned, hooked, marked, refilled,
    ]  # fmt: skip
    with torch.inference_mode(False), torch.enable_grad():
        return is_laid_out(
            lambda: torch.zeros(2, 3, device="cpu"), changes, lambda t: t._cdata, lambda t: t.untyped_storage()._cdata
        )


def data_pointers() -> list[Any]:
    """The methods that give a tensor's address. ``const_data_ptr`` came with torch 2.13."""
    base: Any = torch._C.TensorBase
    return [getattr(base, name) for name in ("data_ptr", "const_data_ptr") if hasattr(base, name)]


def assumes_cuda() -> bool:
    """Do storages pin memory for CUDA where no device is named, and `torch.random.fork_rng` fork CUDA's generators?

    Torch 2.12's do; later ones ask which accelerator there is.
    """
    return inspect.signature(torch.random.fork_rng).parameters["device_type"].default == "cuda"


def one_hot_asks_once() -> bool:
    """Does ``one_hot`` find the least and the greatest class by one op, as since torch 2.13?"""
    return release() != RELEASES[0]


def products_say_which() -> bool:
    """Does what ``mm`` and ``addmm`` say of shapes that do not fit start with the operator, as since torch 2.15?"""
    return release() not in RELEASES[:3]


def cross_entropy_options() -> Any:
    """The class by which ``F.linear_cross_entropy`` looks up its precision; None before torch 2.13, which has none."""
    try:
        from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions
    except ImportError:
        return None
    return LinearCrossEntropyOptions


def is_state(data: bytes) -> bool:
    """Is it a state of a generator that torch may draw from? Torch takes one that lets it read beyond its numbers.

    A CPU generator's: seed (8 bytes), numbers that are left before the next 624 are made (4), was it seeded (4), place
    of the next one (8), then the numbers. A CUDA generator's: seed and offset.
    """
    whole = len(torch.Generator().get_state())
    if len(data) == 16:
        return True
    if len(data) != whole:
        return False
    fresh = torch.Generator()
    fresh.manual_seed(7)
    if _STATE.unpack_from(fresh.get_state().numpy().tobytes()) != (7, 1, 1, 0):
        return True  # another layout: torch's own look has to do
    _seed, left, seeded, place = _STATE.unpack_from(data)
    return seeded == 1 and (left, place) in ((1, 0), (625 - place, place)) and 0 <= place <= 624


_STATE = struct.Struct("<QiiQ")
