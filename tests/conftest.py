"""Set-up shared by every test: the installed package, one thread, fixed seeds."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

# One thread: bit-for-bit comparisons and timings must not depend on how torch splits work. Set before torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No test may wait for a hub that is not there.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
for _name in [name for name in os.environ if name.startswith("GENIE_") and name != "GENIE_BUILD"]:
    del os.environ[_name]  # a variable left over in the shell must not change what is tested

ROOT = Path(__file__).resolve().parent.parent
# ``python -m pytest`` puts the checkout first on the path, where ``mindtorch/`` has no compiled modules.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]

if importlib.util.find_spec("mindtorch") is None:
    raise RuntimeError("mindtorch is not installed here: pip install -c constraints.txt '.[test]'")

import hypothesis  # noqa: E402
import numpy  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

# Reproducible and without a stopwatch: the machines that run this vary twofold in speed.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis.settings.load_profile("ci")
torch.set_num_threads(1)
# What torch writes down of the stack with every seed, for the case that a device is used later and fails, takes longer
# than most tests: three times the source lines of all pytest's frames.
for _backend in (torch.cuda, torch.xpu, torch.mtia):
    _backend.traceback = SimpleNamespace(format_stack=list)  # type: ignore[attr-defined]

_CONFORMANCE_DTYPES = ("float32", "int64", "bool", "float64", "bfloat16", "complex64")


#: What ``--whole`` is for the suites whose sample has an option of its own.
_WHOLE = {
    **{"programs": 20_000, "messages": 100_000, "faults": 1000, "forms": 20, "lines": 1},
    "torch_facts": "full",
    "conformance": "full",
    "strangers": "full",
    "npu_load": "full",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="run every case, not a sample; takes hours for all tests")
    parser.addoption("--programs", type=int, default=None, help="random programs to compare with eager")
    parser.addoption(
        "--torch-facts", choices=("slice", "full"), default="slice", help="names to rename in torch (test_torch_facts)"
    )
    parser.addoption("--forms", type=int, default=2, help="programs for each form of a pattern (tests/patterns)")
    parser.addoption("--lines", type=int, default=19, help="interrupt at every n-th line (tests/remote)")
    parser.addoption("--first-fault", type=int, default=0, help="number of the first fault (tests/cluster)")
    parser.addoption("--faults", type=int, default=4, help="number of faults to make (tests/cluster)")
    parser.addoption("--connects", type=int, default=2, help="number of connections to a cluster (tests/cluster)")
    parser.addoption("--fault-kind", action="append", default=[], help="only such faults (tests/cluster)")
    parser.addoption("--messages", type=int, default=2000, help="mutated messages to an executor (tests/remote)")
    parser.addoption(
        "--conformance",
        choices=("slice", "full"),
        default="slice",
        help="how much of torch's operator database to compare with eager (tests/conformance)",
    )
    parser.addoption(
        "--strangers",
        choices=("slice", "full"),
        default="slice",
        help="how many programs to compare with torch's own figures (tests/strangers)",
    )
    parser.addoption("--npu-devices", type=int, default=4, help="how many NPUs the test library has (tests/npu)")
    parser.addoption(
        "--npu", choices=("kind", "unkind"), default="kind", help="how the NPU test library behaves (tests/npu)"
    )
    parser.addoption(
        "--npu-load",
        choices=("slice", "full"),
        default="slice",
        help="number of threads and operations that load the NPU test library (tests/npu/test_load.py)",
    )
    parser.addoption(
        "--dtype",
        action="append",
        default=[],
        choices=_CONFORMANCE_DTYPES,
        help="dtype to compare in, instead of the first one that an operator accepts; may be repeated",
    )
    parser.addoption(
        "--sanitize",
        default=None,
        metavar="'PYTEST ARGUMENTS'",
        help="tests to run under AddressSanitizer and UBSan (tests/test_memory_safety.py)",
    )
    parser.addoption(
        "--executor",
        choices=("local", "loopback", "pipe", "ray"),
        default="local",
        help="what runs recordings (GENIE_EXECUTOR)",
    )
    parser.addoption(
        "--shuffle", type=int, default=None, metavar="SEED", help="run the test files in a random order with this seed"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "only_on(*executors, reason): skipped with another --executor")
    config.addinivalue_line(
        "markers", "long: takes minutes, and so is begun first: the other process has work until it ends"
    )
    config.addinivalue_line("markers", "whole: a case that only --whole tries: its siblings prove most of it")
    config.addinivalue_line("markers", "sample(n): of a test's cases, --whole tries all, and else so many")
    if config.getoption("--whole"):
        for name, value in _WHOLE.items():
            setattr(config.option, name, value)
    if config.getoption("--executor") != "local":
        os.environ["GENIE_EXECUTOR"] = config.getoption("--executor")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that do not hold on every executor say why. With ``--shuffle``, no file may need what another has left
    behind.
    """
    if not config.getoption("--whole"):
        beyond = _beyond_a_sample(items)
        items[:] = [item for item in items if item not in beyond]
        config.hook.pytest_deselected(items=list(beyond))
    executor = config.getoption("--executor")
    for item in items:
        for mark in item.iter_markers("only_on"):
            if executor not in mark.args:
                item.add_marker(pytest.mark.skip(reason=f"with {executor}: {mark.kwargs['reason']}"))
    if (seed := config.getoption("--shuffle")) is not None:
        files = sorted({item.path for item in items})
        random.Random(seed).shuffle(files)
        items.sort(key=lambda item: files.index(item.path))
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def _beyond_a_sample(items: list[pytest.Item]) -> set[pytest.Item]:
    """What only ``--whole`` tries. Of a test with a sample, cases from all over the list are tried, the first among
    them: those beside each other differ least.
    """
    beyond = {item for item in items if item.get_closest_marker("whole")}
    cases: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample") and item not in beyond:
            cases.setdefault((item.path, item.originalname), []).append(item)  # type: ignore[attr-defined]
    for each in cases.values():
        (size,) = each[0].get_closest_marker("sample").args  # type: ignore[union-attr]
        kept = {number * len(each) // size for number in range(size)}
        beyond |= {item for number, item in enumerate(each) if number not in kept}
    return beyond


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """No file of tests may give torch's slot for a foreign device to NPUs when it is imported: hundreds of other tests
    would fail, far from the cause.
    """
    before = torch._C._get_privateuse1_backend_name()
    report = yield
    if before != "npu" == torch._C._get_privateuse1_backend_name():
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid}: expected that its import leaves torch's slot as {before!r}, got 'npu'"
    return report


@pytest.fixture(scope="session")
def translated() -> Callable[[Path], None]:
    """Gives a build's temporary folder the C that installing has left in the checkout, if it has: it is the same for
    every build, and Cython takes half a minute. What has changed since is translated anew.
    """

    def give(temporary: Path) -> None:
        left = sorted(ROOT.glob("build/temp*/cython"), key=lambda path: path.stat().st_mtime)
        if left:
            shutil.copytree(left[-1], temporary / "cython")

    return give


@pytest.fixture(autouse=True)
def fixed_seeds() -> Iterator[None]:
    """Every test starts from the same random state, whatever ran before it."""
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    yield


@pytest.fixture(autouse=True, scope="session")
def slot_is_the_devices() -> None:
    """Torch's slot for a foreign device goes to whoever asks first, for good: an estimate with NPUs would have it, if
    its tests came first, and what needs torch to know the device by name would fail afterwards."""
    import mindtorch.patch.slot

    mindtorch.patch.slot.claim()


@pytest.fixture(scope="session")
def settings_of_torch() -> Callable[[], dict[str, object]]:
    """Torch's settings that kernels look at, and what a thread is in."""
    from mindtorch.engine.execute import ambient

    mirrored = ambient.mirrored(cuda=True)

    def settings() -> dict[str, object]:
        return {
            "switch interval": sys.getswitchinterval(),
            "default device": torch.get_default_device(),
            "grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
            "autocast": torch._C._is_any_autocast_enabled(),
            "modes": (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
            "cuDNN's older word": cudnns(),
            **{name: get() for name, get, _set in mirrored},
        }

    def cudnns() -> object:
        try:
            return torch._C._get_cudnn_allow_tf32()
        except RuntimeError:
            return "refused: newer words say another thing"

    return settings


@pytest.fixture(autouse=True)
def nothing_stays_set(settings_of_torch: Callable[[], dict[str, object]]) -> Iterator[None]:
    """A test that leaves an executor, a pass, a setting … is the one that fails, not those that come after it."""
    from mindtorch.engine import passes
    from mindtorch.engine.execute import around_segments, local, values
    from mindtorch.graph import analysis

    from .executors import is_held

    def settings() -> dict[str, object]:
        return {
            "executor": values._executor and type(values._executor),
            "the engine's lock is held, numbers are": (is_held(values.lock), values.tape.interner.frozen),
            "passes": passes.optimizer._used(),
            "analyzer": None if analysis._analyzer is analysis._own else analysis._analyzer,
            "cache, segment hook": (around_segments.keeper, around_segments.listener),
            "observers of operations": tuple(local._observers),
            **settings_of_torch(),
        }

    before = settings()
    yield
    after = settings()
    if before["executor"] is None and os.environ.get("GENIE_EXECUTOR", "local") != "local":
        after["executor"] = None  # that one was made by the first test that uses it
    elif before["executor"] is None or after["executor"] is None:
        before["executor"], after["executor"] = (one["executor"] or local.LocalExecutor for one in (before, after))
    assert {name: now for name, now in after.items() if now != before[name]} == {}, "what the test has set stays set"


@pytest.fixture
def as_it_was() -> Iterator[None]:
    """Torch's settings are what they were, whatever the test does to them."""
    from mindtorch.engine.execute import ambient

    cudnns = torch._C._get_cudnn_allow_tf32()
    with ambient.put_back():
        yield
        torch._C._set_cudnn_allow_tf32(cudnns)  # the older word, which torch compares with the newer ones when asked


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models and optimizers that other tests left alive would count, as those do that a program made before."""
    from mindtorch.engine.semantics import modules, phases

    monkeypatch.setattr(modules, "_roots", [])
    monkeypatch.setattr(phases, "_optimizers", {})


@pytest.fixture(autouse=True, scope="module")
def forget_the_past() -> None:
    """The collector need not look again at what earlier files have imported and keep: a million objects in the end.

    Python would count them one by one in each estimate, which asks whether there are any.
    """
    gc.collect()
    gc.freeze()
    gc.get_freeze_count = lambda: 1


@pytest.fixture(scope="session")
def whole(pytestconfig: pytest.Config) -> bool:
    """Whether every case is tried, not a sample."""
    return bool(pytestconfig.getoption("--whole"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The source checkout."""
    return ROOT


@pytest.fixture(scope="session")
def in_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs ``python -c code`` in a fresh process with these environment variables, and asserts that it ends well.

    ``fails=True``: that it does not.
    """

    def run(code: str, *, fails: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", textwrap.dedent(code)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, env={**os.environ, **environment}, check=False
        )
        assert (done.returncode != 0) == fails, done.stderr
        return done

    return run


Forked = Callable[..., subprocess.CompletedProcess[str]]

#: What Triton (which torch's CUDA builds bring) says as a process ends: forks.py has frozen what it would have freed.
_OF_FREEZING = re.compile(r"nanobind: leaked .*?/refleaks\.html", re.DOTALL)


def _forks(folder: Path, *imported: str) -> Iterator[Forked]:
    """What runs python with such arguments, in a fork of a process that has imported these modules (forks.py)."""
    source = ROOT / "tests" / "forks.py"
    begin = f"exec(compile(open({str(source)!r}).read(), {str(source)!r}, 'exec'))"
    command = [sys.executable, "-c", begin, *imported]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin and server.stdout
    files = {name: folder / name for name in ("stdout", "stderr")}

    def run(
        *arguments: str,
        folder: Path | None = None,
        environment: Mapping[str, str] = os.environ,
        timeout: float = 300,
    ) -> subprocess.CompletedProcess[str]:
        for path in files.values():
            path.write_text("")
        request = {
            "arguments": arguments,
            "environment": dict(environment),
            "folder": str(folder or os.getcwd()),
            **{name: str(path) for name, path in files.items()},
        }
        print(json.dumps(request), file=server.stdin, flush=True)
        process = int(server.stdout.readline())
        killer = threading.Timer(timeout, os.kill, (process, signal.SIGKILL))
        killer.start()
        returned = int(server.stdout.readline())
        killer.cancel()
        written, said = (path.read_text() for path in files.values())
        return subprocess.CompletedProcess(arguments, returned, written, _OF_FREEZING.sub("", said))

    yield run
    server.stdin.close()
    server.wait(60)


@pytest.fixture(scope="session")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forked]:
    """Runs python with such arguments, where we are, in a fork of a process that has imported torch and what an
    optimizer's first step imports, which takes as long again.

    Not for what Python, torch or OpenMP reads from the environment as it starts, nor for what is printed of the stack.
    """
    yield from _forks(tmp_path_factory.mktemp("fork"), "torch", "torch._dynamo")


def _in_python(forked: Forked) -> Forked:
    """``in_python`` in such forks."""

    def run(code: str, *, fails: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
        read_later = all(name.startswith(("GENIE_", "ASCEND_")) for name in environment)
        assert read_later, "others are read before a fork's program begins"
        done = forked("-c", textwrap.dedent(code), environment={**os.environ, **environment})
        assert (done.returncode != 0) == fails, done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def forked_after_torch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forked]:
    """``forked`` for what is about names from before ``import mindtorch``, or about what is imported: only torch is."""
    yield from _forks(tmp_path_factory.mktemp("fork"), "torch")


@pytest.fixture(scope="session")
def after_torch(forked_after_torch: Forked) -> Forked:
    """``in_python`` for such code, which begins with importing torch."""
    return _in_python(forked_after_torch)


@pytest.fixture(scope="session")
def after_a_step(forked: Forked) -> Forked:
    """The same in a fork of a process that has also imported what an optimizer's first step imports, and much of which
    the first operation on a device does: for all other code.
    """
    return _in_python(forked)


@pytest.fixture
def no_call_remembered() -> Iterator[None]:
    """Every call goes torch's way, as if none had been made; those of this test are forgotten, too."""
    from mindtorch._ext import shortcuts

    shortcuts.forget()
    yield
    shortcuts.forget()


@pytest.fixture
def nothing_pending() -> Iterator[None]:
    """What one test left to fail must not fail in the next."""
    import mindtorch

    yield
    for _ in range(100):
        try:
            mindtorch.flush("test")
        except mindtorch.MaterializationError:
            gc.collect()  # only then: it takes longer than most tests
            continue
        return


@pytest.fixture(scope="session")
def same_bits() -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Asserts that two tensors agree bit for bit: dtype, shape and every byte (so -0.0 is not 0.0 and NaN is NaN)."""

    def check(got: torch.Tensor, expected: torch.Tensor, what: str = "result") -> None:
        got, expected = (t.detach().cpu().resolve_conj().resolve_neg().contiguous() for t in (got, expected))
        assert type(got) is torch.Tensor, f"{what}: .cpu() gave {type(got).__name__}"
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape), what
        differ = got.reshape(-1).view(torch.uint8) != expected.reshape(-1).view(torch.uint8)
        assert not differ.any(), f"{what}: {int(differ.sum())} of {differ.numel()} bytes differ"

    return check


@pytest.fixture(scope="session")
def same_as_eager(same_bits: Callable[..., None]) -> Callable[..., None]:
    """Asserts that ``program(device)`` gives on the lazy device what it gives on the CPU (SPEC L7).

    The program returns tensors, numbers, or nested tuples, lists and dicts of them. It runs twice from the same seed:
    with "cpu" and with "remote_accelerator:0". Values bit for bit, and strides, requires_grad, is_leaf and type too.
    """
    import mindtorch

    def compare(got: object, expected: object, what: str) -> None:
        if isinstance(expected, torch.Tensor):
            assert isinstance(got, torch.Tensor), what
            assert got.stride() == expected.stride(), f"{what}: strides {got.stride()}, eager {expected.stride()}"
            assert (got.requires_grad, got.is_leaf) == (expected.requires_grad, expected.is_leaf), what
            assert isinstance(got, torch.nn.Parameter) == isinstance(expected, torch.nn.Parameter), what
            same_bits(got, expected, what)
        elif isinstance(expected, (tuple, list)):
            assert type(got) is type(expected) and len(got) == len(expected), what  # type: ignore[arg-type]
            for i, (g, e) in enumerate(zip(got, expected)):  # type: ignore[call-overload]
                compare(g, e, f"{what}[{i}]")
        elif isinstance(expected, dict):
            assert isinstance(got, dict) and list(got) == list(expected), what
            for key in expected:
                compare(got[key], expected[key], f"{what}[{key!r}]")
        else:
            assert type(got) is type(expected) and (got == expected or (got != got and expected != expected)), what

    def check(program: Callable[[str], object], lazily: bool = True) -> None:
        torch.manual_seed(0)
        expected = program("cpu")
        torch.manual_seed(0)
        before = mindtorch.stats()
        got = program("remote_accelerator:0")
        after = mindtorch.stats()
        if lazily:
            assert after["ops_recorded"] > before["ops_recorded"], "nothing was recorded"
        compare(got, expected, getattr(program, "__name__", "result"))

    return check
