"""The user's program: an unmodified script or module, a model in a file, or a transformers configuration.

A script runs as ``python script.py`` would run it, a module as ``python -m module``. What it does wrong is its own: its
exceptions and exit codes are captured and handed back with the tool's frames taken out of the traceback. What the user
asked wrongly of the tool (no such file, no such name, inputs that do not fit) raises ``UsageError``.

One file: a program is found, loaded, called and put back by one class, whatever kind it is of.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib.machinery
import importlib.util
import inspect
import io
import itertools
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..base.errors import UsageError
from .input_option import InputSpec, check_names, nested, parse_input
from .os_exit import leaving_with_a_report
from .outcome import Outcome, captured, leave_forked_child, wait_for_threads
from .termination import ending_with_a_report
from .workload import Request, Workload

__all__ = ["Outcome", "Program", "split_argument"]


@dataclass
class Program:
    """What to run. Made by :meth:`parse`.

    ``kind`` is ``script`` (or a folder with a ``__main__.py``), ``module``, ``model`` (``file.py:name``) or ``config``.
    """

    argument: str
    kind: str
    path: str
    name: str = ""
    script_args: list[str] = field(default_factory=list)
    inputs: list[InputSpec] = field(default_factory=list)
    request: Request = field(default_factory=Request)
    reported: bool = False  # what ran is told, whatever ends it
    estimate: bool = False  # a configuration becomes a model for which no room is asked and no value is made
    device: str | None = None  # where that model is built; None: torch's default
    model: Any = None
    workload: Workload | None = None  # of a configuration that no --input was given for
    namespace: dict[str, Any] = field(default_factory=dict, repr=False)
    _call: tuple[tuple[Any, ...], dict[str, Any]] | None = field(default=None, repr=False)
    _modules: list[types.ModuleType] = field(default_factory=list, repr=False)

    @classmethod
    def parse(
        cls,
        argument: str,
        script_args: Sequence[str] = (),
        inputs: Sequence[str] = (),
        request: Request | None = None,
        as_module: bool = False,
    ) -> Program:
        """Understand ``argument`` without running anything. ``UsageError`` when it cannot be run.

        as_module: it is the dotted name of a module, as after ``python -m``.
        """
        request = request or Request()
        if as_module:
            if not all(part.isidentifier() for part in argument.split(".")):
                raise UsageError(f"-m {argument}: expected the dotted name of a module, as pkg.train")
            if inputs:
                raise UsageError(f"--input is for a model (file.py:name), not for a module: -m {argument}")
            _check_request("module", f"-m {argument}", request, False)
            return cls(argument, "module", os.path.join(os.getcwd(), "-m"), argument, list(script_args), [], request)
        kind, path, name = split_argument(argument)
        if os.path.isdir(path):
            path = os.path.join(path, "__main__.py")
            if not os.path.exists(path):
                raise UsageError(
                    f"{argument} is a directory without a __main__.py; expected a script (train.py), a model in a file "
                    f"(model.py:name), or a module (-m pkg.train)"
                )
            kind, name = "script", ""
        if not os.path.exists(path):
            raise UsageError(f"{path} does not exist")
        if not os.access(path, os.R_OK):
            raise UsageError(f"{path} cannot be read (permission denied)")
        if kind == "model" and not name:
            raise UsageError(f"{path}: expected the name of a model after the colon, got none{_candidates_text(path)}")
        if kind == "script" and inputs:
            raise UsageError(f"--input is for a model ({path}:name), not for a script{_candidates_text(path)}")
        if kind != "script" and script_args:
            raise UsageError(f"{argument} is a model and takes no arguments, got {' '.join(script_args)!r}")
        _check_request(kind, argument, request, bool(inputs))
        specs = [parse_input(text) for text in inputs]
        check_names(spec.name for spec in specs if spec.name)
        return cls(argument, kind, path, name, list(script_args), specs, request)

    @property
    def command(self) -> list[str]:
        """The program and its arguments, as typed."""
        return [*(["-m"] if self.kind == "module" else []), self.argument, *self.script_args]

    @property
    def is_model(self) -> bool:
        """Whether it is a model that genie calls, and not a program that runs by itself."""
        return self.kind in ("model", "config")

    def run(self, repeat: int = 1, warmup: int = 0, stage: Callable[[str], None] | None = None) -> Outcome:
        """Run it and say how it ended. A model is built first unless :meth:`load` did; then called ``warmup`` and then
        ``repeat`` times; ``stage`` as in :meth:`Workload.run`.

        Only ``UsageError`` about the request itself is raised. Not to be called from several threads.
        """
        if not self.is_model:
            return self._guarded(self._run_script if self.kind == "script" else self._run_module)
        if stage is not None and (self.kind == "model" or self.inputs):
            stage("init")  # what the file does at its top level is no call of the model
        outcome = self.load()
        if outcome.error is not None:
            return outcome
        return self._guarded(lambda: self._run_model(repeat, warmup, stage))

    def load(self) -> Outcome:
        """Build the model and its inputs; nothing for a script. Idempotent."""
        if not self.is_model or self._call is not None:
            return Outcome()
        return self._guarded(self._build)

    def candidates(self) -> list[str]:
        """Names defined at the top level of the file that could be models, read without running it."""
        return _candidates(self.path)

    # -- running -----------------------------------------------------------------------------------------------------

    def _guarded(self, work: Callable[[], Any]) -> Outcome:
        """Run the user's code as the interpreter would, and put the process back afterwards."""
        pid = os.getpid()
        before = set(threading.enumerate())
        with _interpreter_state([self.path if self.is_model else self.argument, *self.script_args], self.path):
            outcome = captured(self._reported(work) if self.reported else work)
            if not self.is_model and not outcome.terminated and not outcome.left:
                if outcome.error is not None and any(not thread.daemon for thread in {*threading.enumerate()} - before):
                    outcome.show()  # as Python does, which then waits: a thread that never ends must not hide it
                outcome = wait_for_threads(before, outcome)
            if os.getpid() != pid:
                leave_forked_child(outcome)
        if isinstance(outcome.error, _Refused):
            raise UsageError(*outcome.error.args) from outcome.error.__cause__
        return outcome

    def _reported(self, work: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            with ending_with_a_report(), leaving_with_a_report():
                return work()

        return run

    def _run_script(self) -> None:
        code = _compiled(self.path)
        module = _new_main(self.path)
        if os.path.isdir(self.argument):
            module.__package__ = ""  # as Python has it for the __main__.py of a folder
            module.__spec__ = importlib.util.spec_from_file_location("__main__", os.path.abspath(self.path))
        self._run_main(module, code)

    def _run_module(self) -> None:
        spec, code = _find_module(self.name)
        self.path = sys.argv[0] = str(spec.origin)
        module = _new_main(self.path)
        module.__spec__, module.__loader__, module.__package__ = spec, spec.loader, spec.parent
        module.__dict__["__cached__"] = spec.cached
        self._run_main(module, code)

    def _run_main(self, module: types.ModuleType, code: types.CodeType) -> None:
        self._modules.append(module)  # threads and exit handlers of the script outlive the run: keep its globals
        self.namespace = module.__dict__
        sys.modules["__main__"] = module
        exec(code, module.__dict__)

    def _build(self) -> None:
        import torch

        if self.kind == "config":
            from .model_config import model_from_config

            asked = self.request
            self.model = model_from_config(
                self.path, _Refused, dtype=asked.dtype, train=asked.train, data=not self.estimate
            )
            if self.device:  # built where memory is not looked at: what is tied afterwards is never there twice
                self.model.to(self.device)
        else:
            self.model = self._from_file(torch)
        self.model.eval()
        if self.kind == "config" and not self.inputs:
            try:
                self.workload = Workload(self.model, self.request, _Refused)
            except UsageError as error:
                raise _Refused(f"{self.path}: {error}") from error
            self.inputs = self.workload.plan.inputs
            self._call = ((), self.workload.inputs)
            return
        generator = torch.Generator().manual_seed(0)
        specs = self.inputs or _default_inputs(self.model)
        parameter = next(itertools.chain(self.model.parameters(), self.model.buffers()), None)
        device = None if parameter is None else parameter.device
        try:
            args = tuple(spec.build(generator).to(device) for spec in specs if spec.name is None)
            kwargs = nested((spec.name, spec.build(generator).to(device)) for spec in specs if spec.name is not None)
        except UsageError as error:
            raise _Refused(str(error)) from error
        _check_signature(self, args, kwargs)
        self.inputs = specs
        self._call = (args, kwargs)

    def _from_file(self, torch: Any) -> Any:
        """The module that ``file.py:name`` names: an instance, or what calling it without arguments returns."""
        with _staying(f"{self.path}, when it was imported,"):
            module = _import_file(self.path)
        self._modules.append(module)
        self.namespace = module.__dict__
        found: Any = module
        for part in self.name.split("."):
            found = getattr(found, part, _MISSING)
            if found is _MISSING:
                raise _Refused(f"{self.path} defines no {self.name!r}{_list(_models_in(module, torch))}")
        if isinstance(found, torch.nn.Module):
            return found
        if not callable(found):
            raise _Refused(
                f"{self.argument} is {_article(found)}; expected a torch.nn.Module, a class of one, or a function that "
                f"returns one{_list(_models_in(module, torch))}"
            )
        if needed := _required_parameters(found):
            raise _Refused(
                f"{self.argument} cannot be built without arguments, it needs {', '.join(needed)}; "
                f"write a function without parameters that returns the model and name that"
            )
        with _staying(f"{self.argument}()"):
            model = found()
        if not isinstance(model, torch.nn.Module):
            raise _Refused(f"{self.argument}() returned {_article(model)}; expected a torch.nn.Module")
        return model

    def _run_model(self, repeat: int, warmup: int, stage: Callable[[str], None] | None) -> Any:
        import torch

        assert self._call is not None
        if self.workload is not None:
            return self.workload.run(repeat, warmup, *([stage] if stage else []))
        args, kwargs = self._call
        result = None
        with torch.no_grad():
            for i in range(warmup + repeat):
                if stage is not None:
                    stage("warmup" if i < warmup else "main")
                result = self.model(*args, **kwargs)
                if (values := sys.modules.get("mindtorch.engine.execute.values")) is not None:
                    values.flush("end of the call")  # nothing here reads what a recorded one gives
        if stage is not None:
            stage("init")
        return result

    def describe_inputs(self) -> str:
        """The inputs a model is called with, for messages: ``1x3x8x8 (float32), mask=1x8 (bool)``."""
        return ", ".join(map(str, self.inputs)) or "no input"


_MISSING = object()


class _Refused(Exception):
    """A ``UsageError`` in the making: told apart from one that the user's own code raises."""


@contextlib.contextmanager
def _staying(what: str) -> Iterator[None]:
    """Code that is to give a model, and may end the process instead, as a script does at its end."""
    try:
        yield
    except SystemExit as error:
        raise _Refused(f"{what} called sys.exit({error.code!r}); expected a model") from error


def split_argument(argument: str) -> tuple[str, str, str]:
    """(kind, path, name) of ``train.py``, ``model.py:name`` or ``config.json``; decided by the text and the file."""
    head, colon, name = argument.rpartition(":")
    named = colon and head and os.sep not in name and not os.path.exists(argument)
    if named and (head.endswith(".py") or os.path.exists(head)):
        return "model", head, name
    return ("config" if argument.endswith(".json") else "script"), argument, ""


@contextlib.contextmanager
def _interpreter_state(argv: list[str], path: str) -> Iterator[None]:
    """``sys.argv``, ``sys.path[0]`` and ``__main__`` as plain Python sets them, and back afterwards."""
    kept_argv, kept_path, kept_main = sys.argv, list(sys.path), sys.modules.get("__main__")
    path_list, stdout, stderr = sys.path, sys.stdout, sys.stderr
    sys.argv = argv
    # Like Python: the folder of the file itself, a symbolic link followed, in place of the folder of genie itself.
    if sys.path and sys.path[0] in ("", os.path.dirname(os.path.abspath(kept_argv[0]))):
        del sys.path[0]
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        sys.argv, sys.stdout, sys.stderr = kept_argv, _open(stdout, 1), _open(stderr, 2)
        path_list[:] = kept_path
        sys.path = path_list
        if kept_main is not None:
            sys.modules["__main__"] = kept_main


def _open(stream: Any, descriptor: int) -> Any:
    """The stream; where the program has closed it, another one on its descriptor, which Python leaves open."""
    if getattr(stream, "closed", False):
        with contextlib.suppress(OSError):
            return open(descriptor, "w", encoding=stream.encoding, errors=stream.errors, closefd=False)
    return stream


def _compiled(path: str) -> types.CodeType:
    absolute = os.path.abspath(path)  # what Python shows in a traceback, and what survives a change of directory
    with io.open_code(absolute) as file:
        source = file.read()
    return compile(source, absolute, "exec", dont_inherit=True)


def _find_module(name: str) -> tuple[importlib.machinery.ModuleSpec, types.CodeType]:
    """What ``python -m name`` runs: the module, or the ``__main__`` of a package. Packages around it are imported."""
    looked_for = name
    while True:
        try:
            spec = importlib.util.find_spec(looked_for)
        except ModuleNotFoundError as error:
            if error.name is None or not (looked_for == error.name or looked_for.startswith(error.name + ".")):
                raise  # of a package's own making
            spec = None
        except ValueError:  # already imported by hand, without a spec
            spec = None
        if spec is None:
            what = f"-m {name}: no module named {looked_for}"
            raise _Refused(what if looked_for == name else f"-m {name}: a package without a __main__ module")
        if spec.submodule_search_locations is None:
            break
        looked_for += ".__main__"
    code = getattr(spec.loader, "get_code", lambda name: None)(looked_for)
    if code is None or spec.origin is None:
        raise _Refused(f"-m {name}: there is no Python code in {spec.origin or looked_for}")
    return spec, code


def _new_main(path: str) -> types.ModuleType:
    module = types.ModuleType("__main__")
    absolute = os.path.abspath(path)
    # __spec__ None and __file__ set is how multiprocessing knows a script, so spawned children find it again.
    module.__dict__.update(
        __file__=absolute,
        __cached__=None,
        __builtins__=builtins,
        __loader__=importlib.machinery.SourceFileLoader("__main__", absolute),
        __spec__=None,
        __package__=None,
        __annotations__={},
    )
    return module


def _import_file(path: str) -> types.ModuleType:
    """Import the file under its own name, so that pickles and spawned workers find its classes."""
    name = os.path.splitext(os.path.basename(path))[0]
    if name in sys.modules or name in sys.stdlib_module_names or not name.isidentifier():
        name = f"_genie_model_{abs(hash(os.path.abspath(path)))}"
    loader = importlib.machinery.SourceFileLoader(name, os.path.abspath(path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        exec(_compiled(path), module.__dict__)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _check_request(kind: str, argument: str, request: Request, inputs: bool) -> None:
    """``--seq`` and its like are for configurations: of a script they are its own business, a model has ``--input``."""
    words = request.words()
    if not words:
        return
    said = " ".join(words)
    if kind in ("script", "module"):
        raise UsageError(
            f"{said} is for the config.json of a transformers model, not for a {kind}; the script's own options go "
            f"after it: {argument} {said}"
        )
    if kind == "model":
        raise UsageError(
            f"{said} is for the config.json of a transformers model; give the inputs of {argument} as "
            f"--input [NAME=]SHAPE[:DTYPE]"
        )
    if inputs and request != Request(dtype=request.dtype):
        raise UsageError(f"{said} and --input both say what to run: give one or the other")


# -- what a file offers ----------------------------------------------------------------------------------------------


def _candidates(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    found = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            if any("Module" in ast.dump(base) for base in node.bases):
                found.append(node.name)
        elif isinstance(node, ast.FunctionDef):
            spec = node.args
            needed = len(spec.posonlyargs) + len(spec.args) - len(spec.defaults)
            if needed == 0 and all(spec.kw_defaults) and not node.name.startswith("_") and node.name != "main":
                found.append(node.name)
    return found


def _models_in(module: types.ModuleType, torch: Any) -> list[str]:
    """Names in an imported file that are models, classes of models or functions, defined there."""
    found = []
    for name, value in vars(module).items():
        here = getattr(value, "__module__", None) == module.__name__
        if name.startswith("_"):
            continue
        is_class = here and isinstance(value, type) and issubclass(value, torch.nn.Module)
        if isinstance(value, torch.nn.Module) or is_class or (here and inspect.isfunction(value)):
            found.append(name)
    return found


def _list(names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return f"; it has {', '.join(names[:12])}{more}"


def _candidates_text(path: str) -> str:
    return _list(_candidates(path))


def _article(value: Any) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _required_parameters(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature: let the call itself say
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]


def _default_inputs(model: Any) -> list[InputSpec]:
    """Without ``--input``: token ids for a transformers language model, else nothing."""
    config = getattr(model, "config", None)
    vocabulary = getattr(config, "vocab_size", None)
    if getattr(model, "main_input_name", None) == "input_ids" and isinstance(vocabulary, int):
        return [parse_input(f"input_ids=1x128:int64<{vocabulary}")]
    return []


def _check_signature(program: Program, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    forward = type(program.model).forward
    try:
        signature = inspect.signature(forward)
        signature.bind(program.model, *args, **kwargs)
    except ValueError:  # no signature to check against
        return
    except TypeError as error:
        parameters = [str(p).split(":")[0] for p in list(signature.parameters.values())[1:]]
        given = program.describe_inputs() if program.inputs else "no --input"
        raise _Refused(
            f"{program.argument}: forward({', '.join(parameters)}) cannot be called with {given}: {error}; "
            f"give each one as --input [NAME=]SHAPE[:DTYPE], an entry of a dict as --input NAME.KEY=SHAPE[:DTYPE]"
        ) from error
