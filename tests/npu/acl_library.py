"""Builds the AscendCL test library and controls it.

The library (``acl/*.c``) has the C interface of the AscendCL runtime and of some aclnn operations over host memory:
streams are threads, device memory cannot be touched by the host, and every misuse is remembered as a violation.

Environment, read when it is loaded and at :meth:`Library.reset`: ``GENIE_TEST_NPU_DEVICES`` (2),
``GENIE_TEST_NPU_MEMORY`` (bytes of each device, 1 GiB), ``GENIE_TEST_NPU_PEER`` (0: no access between devices),
``GENIE_TEST_NPU_INIT`` (``once``: a second ``aclInit`` gives 100002), ``GENIE_TEST_NPU_ORDER`` (0: do not check that
uses of the same memory are ordered), ``GENIE_TEST_NPU_REPORT`` (a file for violations and leaks at process exit).

And how unkind it is, as devices are; ``GENIE_TEST_NPU_UNKIND=1`` is all of these that leave programs right:
``GENIE_TEST_NPU_SCRIBBLE`` (1: operators write to the padding behind their operands),
``GENIE_TEST_NPU_FOREIGN_WAITS`` (0: a stream that is to wait for another device's event does not),
``GENIE_TEST_NPU_KEEP_TEXT`` (1: the text of an error stays until it is asked for),
``GENIE_TEST_NPU_COUNT`` (1: devices can be counted before ``aclInit``), ``GENIE_TEST_NPU_EVENTS`` and
``GENIE_TEST_NPU_STREAMS`` (how many a device has, 1023 and 512; 0: any number). Not among them:
``GENIE_TEST_NPU_DECLINE`` (what every operator's first phase gives), ``GENIE_TEST_NPU_CHIP`` (Ascend910B1),
``GENIE_TEST_NPU_RUNTIME`` (its version as ``aclsysGetVersionNum`` counts, 90200000 for 9.2.0; 0: it does not know;
unset: 9.2.0, or 9.1.0 where streams do not wait for other devices' events), ``GENIE_TEST_NPU_STAYS_BROKEN``
(1: a device on which work failed runs nothing more).

Under a sanitizer::

    CC="cc -fsanitize=thread" LD_PRELOAD=$(cc -print-file-name=libtsan.so) python -m pytest tests/npu/test_aclnn.py
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from mindtorch.npu.operators import MATH, NN

SOURCES = Path(__file__).resolve().parent / "acl"
OPTIONS = "-std=c11 -O1 -g -fPIC -shared -pthread -fvisibility=hidden -ffp-contract=off -Wall -Wextra -Werror".split()


#: Compiled sources, by all that they are made of: most libraries that tests ask for differ in one or two of them.
_OBJECTS = tempfile.TemporaryDirectory(prefix="acl-objects-")


def _run(command: list[str]) -> None:
    # The compiler must not run under a sanitizer that is preloaded for the tests.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the AscendCL test library does not compile:\n{done.stderr}")


def _object(source: Path, compiler: list[str], options: tuple[str, ...]) -> Path:
    """A source compiled, without the options that rename what is not in it: what headers declare changes nothing."""
    text = source.read_text()
    said = [each for each in options if not each.startswith("-D") or each[2:].partition("=")[0] in text]
    command = [*compiler, *OPTIONS, *said, "-c", str(source)]
    headers = [path.read_bytes() for path in sorted(SOURCES.glob("*.h"))]
    content = b"\0".join([text.encode(), *headers, repr(command).encode()])
    made = Path(_OBJECTS.name, f"{hashlib.sha256(content).hexdigest()[:16]}.o")
    if not made.exists():
        _run([*command, "-o", str(made)])
    return made


def _compile(target: Path, sources: list[Path], *options: str) -> None:
    compiler = shlex.split(os.environ.get("CC", "cc"))
    compiling = tuple(each for each in options if not each.startswith("-Wl,"))
    made = [_object(each, compiler, compiling) if each.suffix == ".c" else each for each in sources]
    _run([*compiler, *OPTIONS, *options, *map(str, made), "-o", str(target), "-lm"])


def build(folder: Path, *options: str) -> Path:
    """Compile into ``folder``, unless the same sources were compiled there before; ``options`` as for the compiler."""
    sources = sorted(SOURCES.glob("*.c"))
    command = [*shlex.split(os.environ.get("CC", "cc")), *OPTIONS, *options, *map(str, sources)]
    content = b"\0".join([*(path.read_bytes() for path in sorted(SOURCES.iterdir())), repr(command).encode()])
    target = folder / f"libascendcl-test-{hashlib.sha256(content).hexdigest()[:16]}.so"
    if not target.exists():
        unfinished = target.with_suffix(f".{os.getpid()}")
        _compile(unfinished, sources, *options)
        unfinished.rename(target)
    return target


def build_split(folder: Path) -> Path:
    """As CANN comes since 8.5: the runtime, and beside it operators in libraries of two kinds. ``folder`` is theirs."""
    operators = [*sorted(SOURCES.glob("aclnn*.c")), *sorted(SOURCES.glob("operations*.c"))]
    runtime = [path for path in sorted(SOURCES.glob("*.c")) if path not in operators]
    library = folder / "libascendcl.so"
    _compile(library, runtime, "-fvisibility=default", "-Wl,-Bsymbolic,-soname,libascendcl.so")
    for kind, exported in (("math", MATH), ("nn", NN)):
        both = "".join(f"aclnn{name}; aclnn{name}GetWorkspaceSize; " for name in exported)
        (folder / f"{kind}.map").write_text(f"{{ global: {both}local: *; }};")
        _compile(
            folder / f"libopapi_{kind}.so",
            [*operators, library],
            f"-Wl,--version-script={folder / f'{kind}.map'}",
            "-Wl,-rpath,$ORIGIN",
        )
    return library


class Library:
    """A loaded test library: ``c`` for its functions through ctypes, and what tests control it with.

    A process has one state for each path; ``reset`` starts afresh, ``clear`` only forgets what was counted and armed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.c = ctypes.CDLL(str(path))
        self.c.genie_test_calls.restype = ctypes.c_long
        self.c.genie_test_calls.argtypes = [ctypes.c_char_p]
        self.c.genie_test_fail.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
        self.c.genie_test_fail.restype = None
        for function in (self.c.genie_test_delay_copies, self.c.genie_test_delay_memory, self.c.genie_test_reset):
            function.restype = None
        for function in (self.c.genie_test_stall, self.c.genie_test_hold, self.c.genie_test_release):
            function.argtypes = [ctypes.c_void_p]
        self.c.genie_test_stall.argtypes = [ctypes.c_void_p, ctypes.c_int]
        for function in (self.c.genie_test_violations, self.c.genie_test_leaks):
            function.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        for function in (self.c.genie_test_peek, self.c.genie_test_poke):
            function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        self.c.aclGetRecentErrMsg.restype = self.c.aclrtGetSocName.restype = ctypes.c_char_p

    def _lines(self, function: ctypes._CFuncPtr) -> list[str]:
        buffer = ctypes.create_string_buffer(1 << 20)
        count = function(buffer, len(buffer))
        lines = buffer.value.decode().splitlines()
        assert len(lines) == count or len(buffer.value) > len(buffer) - 1000
        return lines

    def violations(self) -> list[str]:
        """Every misuse since the last clear, ``function: what``; of ``aclFinalize``, what leaked."""
        return self._lines(self.c.genie_test_violations)

    def leaks(self) -> list[str]:
        """What is held now: blocks, streams, events, contexts made by the caller, descriptions of tensors."""
        return self._lines(self.c.genie_test_leaks)

    def calls(self, function: str = "*") -> int:
        """How often a function, or (``*``) any, was called since the last clear."""
        return self.c.genie_test_calls(function.encode())

    def fail(self, function: str = "*", nth: int = 1, code: int = 507899) -> None:
        """The nth next call (1: the very next) of ``function``, or (``*``) of any function, fails with ``code``.

        Functions that give something back (destroy, free, reset, a second phase) do so nevertheless.
        """
        self.c.genie_test_fail(function.encode(), nth, code)

    @property
    def waits_abroad(self) -> bool:
        """Whether streams wait for other devices' events. Else the thread does that asks for it: one that would
        release a stream must not."""
        version = ctypes.c_int32()
        self.c.aclsysGetVersionNum(b"runtime", ctypes.byref(version))
        return self.c.aclrtGetSocName().startswith(b"Ascend910B1") and version.value >= 90200000

    def stall(self, stream: int | None, milliseconds: int) -> int:
        """The stream (None: every one) sleeps before what is queued next. Returns how many streams do."""
        return self.c.genie_test_stall(stream, milliseconds)

    def hold(self, stream: int | None = None) -> int:
        """Nothing more starts on the stream (None: on any there is now) until :meth:`release`."""
        return self.c.genie_test_hold(stream)

    def release(self, stream: int | None = None) -> int:
        """Let held streams go on."""
        return self.c.genie_test_release(stream)

    def delay_copies(self, milliseconds: int) -> None:
        """Every copy called from now on takes this much longer."""
        self.c.genie_test_delay_copies(milliseconds)

    def delay_memory(self, milliseconds: int) -> None:
        """Every call that gets device memory or gives it back takes this much longer from now on."""
        self.c.genie_test_delay_memory(milliseconds)

    def peek(self, pointer: int, size: int) -> bytes:
        """What device memory holds at this moment."""
        buffer = ctypes.create_string_buffer(size)
        if self.c.genie_test_peek(pointer, buffer, size):
            raise ValueError(f"{size} bytes at {pointer:#x} are not inside a live device block")
        return buffer.raw

    def poke(self, pointer: int, data: bytes) -> None:
        """Write to device memory, whatever is queued."""
        if self.c.genie_test_poke(pointer, data, len(data)):
            raise ValueError(f"{len(data)} bytes at {pointer:#x} are not inside a live device block")

    def clear(self) -> int:
        """Forget violations, counts, armed faults and the delay. Returns how many faults had not fired."""
        return self.c.genie_test_clear()

    def reset(self) -> None:
        """As freshly loaded; the environment is read again. Nothing else may be using the library."""
        self.c.genie_test_reset()
