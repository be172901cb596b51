"""Whose error it is that ended a program: ours, or the program's and the accelerator's (SPEC C4, C10).

What stands in torch's place may fail where torch would not. Such an error says nothing of the accelerator. Those that
we raise in torch's words are statements of our own (``raise``); those of torch's kernels come from C++, or from frames
of torch's. All else that ends in one of our frames is a defect of ours.
"""

from __future__ import annotations

import dis
import os
import re
import traceback
import types
from collections.abc import Iterator, Sequence
from typing import Any

from ..base import NAME, PACKAGE
from ..base.errors import LazyTensorError, NoDataError, UnsupportedOperationError, UsageError

__all__ = [
    "REPORT",
    "TOOLS",
    "assumption_behind",
    "is_of_this_machine",
    "is_ours",
    "is_programs",
    "is_tool_file",
    "says_so",
]

#: What is said of an error that we did not mean.
REPORT = "this is a bug in genie, not a limit of the accelerator: please report it to genie's maintainers"

#: What is said where this machine's compilers or libraries are not what a program's kernels need.
TOOLS = (
    "this machine's compilers or libraries could not build or load a kernel; that says nothing about the accelerator"
)

#: Errors of Python's own: no kernel raises them.
_PYTHONS = (AttributeError, KeyError, NameError, AssertionError, ArithmeticError, ImportError, BufferError, SystemError)
#: Errors that both raise; patterns are compiled when a program fails. Python's words for lists, tuples and numbers:
_PYTHONS_WORDS = (
    r"(list|tuple|string|range object|list assignment|bytearray|pop) (index|from)|(many|enough) values to unpack"
    r"|zip\(\) argument|is not in (list|tuple)|invalid literal for|could not convert string|arg(ument)? is (an )?empty"
    r"|^pop from|is not in deque"
)
#: A TypeError of torch's parser of arguments, which names the function, and what it takes.
_PARSERS_WORDS = (
    r"^\w+\(\)?: (argument|received)|\(\) received an invalid combination of arguments|\(\) missing \d+ required"
    r"|\(\) takes (from )?\d+|\(\) got (an unexpected|multiple|some)|unsupported operand type"
    r"|argument '?\w+'?.*must be .*, not"
)
#: What no accelerator says: that a tensor has no data, is of a class of ours, that torch contradicts itself, or what
#: torch's C++ says of half precision to a CPU alone (`torch.fft`).
_NEVER_AN_ACCELERATORS = (
    r"with Meta tensors|'Meta' backend|(on|of) meta tensors?|[Mm]eta tensors? has no data|INTERNAL ASSERT FAILED"
    r"|data is not allocated yet|[Cc]annot access data pointer|access the data pointer on an invalid"
    r"|Internal error: |Please file an issue|no NVIDIA driver|No CUDA GPUs are available|active drivers"
    r"|not compiled with CUDA|Triton Error|CUDA (driver )?error|CUDA_ERROR|Unsupported dtype (Complex)?Half"
    rf"|_?(Fast)?Meta(Tensor|Parameter|Storage)\b|\b{NAME}\.|remote_accelerator"
)


def is_tool_file(file: str) -> bool:
    """Is it a file of this package, Python's or Cython's?"""
    return file.startswith(PACKAGE + os.sep) or _is_compiled(file)


def is_ours(error: BaseException) -> bool:
    """Whether the error, or the one it was raised from, is of this package's making: torch would not have raised it.

    To be asked while the traceback has its frames of ours.
    """
    return any(map(_is_ours, _chain(error)))


def is_programs(error: BaseException) -> bool:
    """Whether the program itself failed: an error of Python's own, or one that its code raised and torch did not cause.

    Where torch's code or ours raises such an error it is none: those are its words for what a device lacks. To be asked
    while the traceback has its frames of ours.
    """
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None and before not in chain:
        chain.append(before)
    return all(map(_is_programs, chain))


def is_of_this_machine(error: BaseException) -> bool:
    """Whether it, or one behind it, is of what kernels for an accelerator are built or loaded with here: the compilers
    that `torch.utils.cpp_extension` runs, or the accelerator's own libraries."""
    return any(map(_lacks, _chain(error)))


def _lacks(error: BaseException) -> bool:
    if isinstance(error, (ImportError, OSError)) and re.search(_LIBRARIES, str(error)):
        return True
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_filename.endswith(_BUILDING) for frame, _line in frames)


_BUILDING = os.path.join("torch", "utils", "cpp_extension.py")
_LIBRARIES = (
    r"\blib(cuda|cudart|cublas\w*|cudnn\w*|cufft|curand|cusolver|cusparse\w*|nccl|nvrtc\w*|nvToolsExt|nvidia-ml|ascendcl"
    r"|hccl|torch_cuda|c10_cuda|torch_npu)\b.*: cannot open shared object file"
)


def _is_programs(error: BaseException) -> bool:
    if isinstance(error, (OSError, SyntaxError)):
        return True  # where the program's files are opened and compiled for it, too
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    file = "" if last is None else last.tb_frame.f_code.co_filename
    if last is None or is_tool_file(file) or f"{os.sep}torch{os.sep}" in file:
        return False
    of_a_library = type(error).__module__.partition(".")[0] not in ("builtins", "torch")
    of_a_library |= type(error) is Exception  # of bindings to Rust: torch's C++ has classes for its own
    return of_a_library or isinstance(error, (*_PYTHONS, StopIteration)) or _is_raised(last)


def says_so(error: BaseException) -> bool:
    """Does the error, or the one it was raised from, say itself what cannot be done without data?"""
    return any(isinstance(each, (NoDataError, UnsupportedOperationError)) for each in _chain(error))


def assumption_behind(error: BaseException | None, assumed: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of rows of what was assumed, that which an error is likeliest of: of the innermost line that it came through.

    Where none was on its way, the last one before such a line in its file; the first of all where there is none.
    """
    frames = [] if error is None else traceback.extract_tb(error.__traceback__)
    way = {(frame.filename, frame.lineno): depth for depth, frame in enumerate(frames, 1)}

    def near(row: dict[str, Any]) -> tuple[int, int, int]:
        above = [at for at, f in enumerate(frames, 1) if f.filename == row["file"] and row["line"] < (f.lineno or 0)]
        return way.get((row["file"], row["line"]), 0), max(above, default=0), row["line"] if above else 0

    return max(assumed, key=near)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those that it was raised from, as programs and libraries put one into words of their own."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


def _is_ours(error: BaseException) -> bool:
    import torch

    if isinstance(error, (SystemExit, KeyboardInterrupt, GeneratorExit, torch.OutOfMemoryError)):
        return False
    if isinstance(error, (LazyTensorError, NoDataError, UsageError)):
        return True
    if isinstance(error, AttributeError) and isinstance(error.obj, torch.Tensor):
        return hasattr(torch.Tensor, error.name or "")
    if isinstance(error, AttributeError) and _is_of_ours(error.obj):
        return True  # where what it stands for may well have such an attribute
    if isinstance(error, OSError):
        return False  # of a file, a socket or a process: whoever asks the system gets that answer
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    file = "" if last is None else last.tb_frame.f_code.co_filename
    words = str(error)
    if last is not None and is_tool_file(file) and _is_raised(last):
        return False
    if isinstance(error, TypeError) and last is not None and (_is_compiled(file) or not is_tool_file(file)):
        if _calls_ours(last, words):
            return True
        if re.search(_PARSERS_WORDS, words):
            return False
    if re.search(_NEVER_AN_ACCELERATORS, words):
        return True
    if not is_tool_file(file):
        return False
    return isinstance(error, (TypeError, *_PYTHONS)) or bool(re.search(_PYTHONS_WORDS, words))


def _is_compiled(file: str) -> bool:
    return file.endswith(".pyx") and f"_ext{os.sep}" in file


def _is_raised(last: types.TracebackType) -> bool:
    """Does the frame raise the error itself? Then it was meant: torch's error, or the accelerator's."""
    code = last.tb_frame.f_code.co_code  # a compiled module's frame runs none, and is at -1
    return 0 <= last.tb_lasti < len(code) and dis.opname[code[last.tb_lasti]] == "RAISE_VARARGS"


def _is_of_ours(owner: object) -> bool:
    kind = owner if isinstance(owner, (type, types.FunctionType)) else type(owner)
    name = owner.__name__ if isinstance(owner, types.ModuleType) else str(getattr(kind, "__module__", ""))
    return name.partition(".")[0] == NAME


def _calls_ours(last: types.TracebackType, words: str) -> bool:
    """Could a function of ours, in torch's place, not be called as the frame calls it?"""
    called = re.match(r"([\w.<>]+)\(\) ", words)
    if called is None:
        return False
    name = called[1].rpartition(".")[2]
    if re.match(r"_[a-z]", name) and name not in last.tb_frame.f_code.co_names:
        return True  # a function that the frame knows nothing of: one that stands for what it called
    return any(f.__qualname__ == called[1] or f.__name__ == name for f in _functions_named_in(last.tb_frame))


def _functions_named_in(frame: types.FrameType) -> Iterator[types.FunctionType]:
    """The functions of ours that the frame's code may call: by its names, and those of the modules it names."""
    known = {**frame.f_builtins, **frame.f_globals, **frame.f_locals}
    names = frame.f_code.co_names
    found = [known[name] for name in (*names, *frame.f_code.co_varnames) if name in known]
    for _depth in range(3):  # torch.cuda.synchronize
        for value in list(found):
            held = vars(value) if isinstance(value, (type, types.ModuleType)) else {}
            found += [held[name] for name in names if name in held]
    for value in found:
        made = getattr(value, "__init__", None) if isinstance(value, type) else value
        if isinstance(made, types.FunctionType) and str(made.__module__).partition(".")[0] == NAME:
            yield made
