"""Changes one token of the engine at a time, and lists the changes that the closest tests do not notice.

``python -m tests.mutants --sample 300 --jobs 2`` at the root of a checkout in which mindtorch is installed for
development. Each mutant is one token: ``<`` for ``<=``, ``and`` for ``or``, a number one greater … in a copy of the
tree. A mutant that fails to compile is replaced by another one. Prints each survivor and a table. Exit code 1 if less
than ``--least`` per cent were noticed.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import fnmatch
import io
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, which every test would do again
import Cython.Build  # noqa: F401
import hypothesis  # noqa: F401
import setuptools.command.build_ext  # noqa: F401
import torch  # noqa: F401

from .compiling import build
from .reached import RUNNING, Case, Reached, fails

ROOT = Path(__file__).resolve().parent.parent
#: What is changed, and the tests that are near it, quick ones first: the first that fits counts.
NEAREST = {
    "_ext/acl*.pyx": "npu/test_binding.py npu/test_aclnn.py npu/test_aclnn_calls.py npu/test_deterministic.py"
    " npu/test_unkind.py",
    "_ext/allocator.pyx": "npu/test_allocator.py npu/test_memory.py npu/test_copies.py npu/test_faults.py"
    " npu/test_load.py",
    "_ext/attributes.pyx": "test_lazy_tensor.py test_lazy_plain_programs.py estimate/test_accelerator.py",
    "_ext/balance.pyx": "profile/test_balance.py profile/test_memory.py profile/test_cuda.py profile/test_peak.py"
    " profile/test_made_of.py npu/test_profile.py",
    "_ext/blocks.pyx": "npu/test_memory.py npu/test_copies.py npu/test_faults.py",
    "_ext/collect.pyx": "profile/test_failing_ops.py profile/test_times_apart.py profile/test_nested.py"
    " profile/test_lazy.py profile/test_as_plain.py profile/test_memory.py profile/test_inclusive.py"
    " profile/test_report.py profile/test_lines.py profile/test_peak.py profile/test_compiling.py"
    " profile/test_surroundings.py profile/test_waiting.py profile/test_finding_inputs.py"
    " profile/test_waiting_shared.py profile/test_api.py npu/test_profile.py",
    "_ext/context.pyx": "ext/test_context_model.py ext/test_context.py semantics profile/test_nested.py",
    "_ext/dispatch.pyx": "ext/test_dispatch.py test_lazy_tensor.py",
    "_ext/divided.pyx": "remote/test_divided.py remote/test_placing.py",
    "_ext/encoder.pyx": "remote/test_wire.py remote/test_messages.py remote/test_loopback.py remote/test_operators.py",
    "_ext/forms.pyx": "test_passes.py test_segment_hooks.py test_cache.py programs/test_passes.py",
    "_ext/frames.pyx": "remote/test_pipe.py remote/test_slow_network.py",
    "_ext/function_entries.pyx": "test_lazy_function_entries.py test_lazy_methods.py",
    "_ext/guards.pyx": "ext/test_guards.py test_lazy_modes.py test_lazy_transforms.py",
    "_ext/hits.pyx": "profile/test_hits.py",
    "_ext/hooks.pyx": "test_lazy_surroundings.py test_lazy_creation.py test_lazy_wrappers.py"
    " estimate/test_estimating.py",
    "_ext/intercept.pyx": "test_lazy_tensor.py test_lazy_function_entries.py test_lazy_modes.py"
    " test_lazy_autograd_writes.py test_lazy_mistakes.py test_lazy_eager.py test_lazy_products.py"
    " test_lazy_view_chains.py test_lazy_shortcuts.py test_limits.py programs/test_programs.py"
    " estimate/test_as_written.py estimate/test_known.py",
    "_ext/in_flight.pyx": "npu/test_failing_calls.py npu/test_profile.py",
    "_ext/intern.pyx": "ext/test_tape.py ext/test_tables.py test_execute.py test_lazy_tensor.py"
    " programs/test_programs.py",
    "_ext/interpreter.pyx": "ext/test_interpreter.py ext/test_context.py",
    "_ext/shortcuts.pyx": "test_lazy_shortcuts.py test_lazy_shortcuts_around.py test_lazy_view_chains.py",
    "_ext/catching.pyx": "test_native_calls.py",
    "_ext/module_state.pyx": "test_generation.py test_generation_caches.py",
    "_ext/native_calls.pyx": "test_native_calls.py",
    "_ext/native_views.pyx": "test_lazy_shortcuts_around.py test_lazy_shortcuts.py test_native_calls.py",
    "_ext/local_state.pyx": "test_lazy_shortcuts_around.py test_lazy_modes.py",
    "_ext/kept_wrappers.pyx": "test_lazy_kept_wrappers.py",
    "_ext/keys.pyx": "test_lazy_function_entries.py test_lazy_products.py test_lazy_floats.py test_lazy_mistakes.py"
    " ext/test_tables.py programs/test_programs.py test_meta.py test_lazy_transforms.py test_lazy_protocol.py",
    "_ext/labels.pyx": "profile/test_inclusive.py profile/test_times_apart.py profile/test_estimate.py",
    "_ext/layout.pyx": "ext/test_shapes_of_each.py ext/test_shapes_nearby.py ext/test_shapes.py test_lazy_layouts.py"
    " test_meta.py programs/test_programs.py",
    "_ext/lazy.pyx": "ext/test_tape.py test_lazy_tensor.py test_limits.py test_incremental.py test_failures.py"
    " estimate/test_known.py remote/test_loopback.py programs/test_programs.py",
    "_ext/ledger.pyx": "ext/test_ledger.py profile/test_memory_estimate.py estimate/test_estimating.py"
    " conformance/test_estimate.py profile/test_estimate.py",
    "_ext/location.pyx": "ext/test_location.py ext/test_context.py profile/test_lines.py",
    "_ext/looking.pyx": "profile/test_waiting.py profile/test_lines.py profile/test_data_loading.py"
    " profile/test_iterations.py estimate/test_host_time.py",
    "_ext/op*.pyx": "profile/test_report.py",
    "_ext/overlap.pyx": "test_lazy_overlap.py",
    "_ext/named_forwards.pyx": "semantics/test_named_forwards.py",
    "_ext/node_log.pyx": "semantics/test_modules.py semantics/test_named_forwards.py ext/test_context.py",
    "_ext/paths.pyx": "ext/test_context.py ext/test_context_model.py semantics profile/test_owners.py",
    "_ext/pool.pyx": "npu/test_binding.py npu/test_streams.py npu/test_events.py npu/test_memory.py"
    " npu/test_failing_calls.py npu/test_cann_releases.py npu/test_unkind.py npu/test_load.py",
    "_ext/registry.pyx": "test_lazy_operators.py test_lazy_surroundings.py",
    "_ext/replay.pyx": "test_execute.py test_lazy_autograd_writes.py test_failures.py test_cache.py test_passes.py"
    " remote/test_spread.py remote/test_placing.py programs/test_programs.py",
    "_ext/rowtable.pyx": "profile/test_rows.py profile/test_times_apart.py profile/test_report.py",
    "_ext/sampler.pyx": "profile/test_waiting.py profile/test_lines.py",
    "_ext/signals.pyx": "test_signals.py",
    "_ext/standin.pyx": "ext/test_standin.py test_lazy_surroundings.py",
    "_ext/streams.pyx": "npu/test_streams.py npu/test_events.py npu/test_compat.py npu/test_binding.py",
    "_ext/tape.pyx": "ext/test_tape.py test_execute.py test_incremental.py test_failures.py ext/test_tables.py"
    " programs/test_programs.py",
    "_ext/template.pyx": "ext/test_tables.py test_lazy_products.py test_lazy_tensor.py remote/test_loopback.py"
    " programs/test_programs.py",
    "_ext/timeline.pyx": "profile/test_rows.py profile/test_times_apart.py profile/test_lazy.py profile/test_report.py",
    "_ext/view_chains.pyx": "test_lazy_view_chains.py",
    "_ext/*.pyx": "ext/test_shapes_numbers.py ext/test_shapes_of_each.py ext/test_shapes_nearby.py ext/test_shapes.py"
    " test_meta.py",
    "engine/cache/*": "test_cache_shelves.py test_cache_names.py test_cache.py",
    "engine/execute/device_copies.py engine/execute/cuda.py": "test_execute_cuda.py test_lazy_transforms.py"
    " remote/test_spread.py",
    "engine/execute/ambient.py": "remote/test_settings.py test_cache_names.py test_lazy_modes.py",
    "engine/execute/pace.py": "test_pace.py",
    "engine/execute/around_segments.py engine/execute/wrapping.py": "test_segment_hooks.py remote/test_changing.py",
    "engine/execute/tensors.py": "test_lazy_tensor.py test_lazy_methods.py test_lazy_modules.py test_lazy_storage.py"
    " test_lazy_transforms.py test_lazy_sparse.py remote/test_loopback.py estimate/test_loading.py",
    "engine/execute/mapped_files.py": "remote/test_files.py test_lazy_safetensors.py",
    "engine/execute/local.py": "test_pace.py test_execute.py test_incremental.py test_failures.py test_limits.py"
    " programs/test_programs.py",
    "engine/execute/machine.py": "test_lazy_devices.py test_limits.py test_device_module.py",
    "engine/execute/*": "test_execute.py test_incremental.py test_failures.py test_limits.py"
    " remote/test_lost_writes.py programs/test_programs.py",
    "engine/passes/calling.py": "test_native_layouts.py test_native_calls.py",
    "engine/passes/native.py": "test_native_layouts.py test_native_calls.py",
    "engine/passes/*": "test_passes.py test_passes_functions.py programs/test_passes.py",
    "engine/record/arguments.py engine/record/eager.py": "test_lazy_operators.py test_lazy_eager.py"
    " test_lazy_autograd_writes.py test_lazy_sparse.py test_lazy_errors.py test_meta.py remote/test_loopback.py"
    " estimate/test_accelerator.py programs/test_programs.py",
    "engine/record/gradients.py engine/record/unwrapping.py": "test_lazy_autograd.py test_lazy_transforms.py"
    " semantics/test_phases.py",
    "engine/record/handlers.py": "test_lazy_handlers.py test_lazy_tensor.py test_lazy_creation.py test_lazy_methods.py"
    " test_lazy_storage.py test_lazy_late_errors.py test_lazy_operators.py test_lazy_autograd.py estimate/test_known.py"
    " test_lazy_sparse.py programs/test_programs.py",
    "engine/record/plain_operands.py": "test_lazy_meeting.py cli/test_cli_run_devices.py",
    "engine/record/intercept.py": "test_lazy_function_entries.py test_lazy_meeting.py test_lazy_tensor.py"
    " test_lazy_transforms.py test_lazy_operators.py test_lazy_modes.py test_lazy_modules.py",
    "engine/record/meta.py": "test_meta.py estimate/test_type_as.py estimate/test_old_constructors.py"
    " estimate/test_accelerator.py",
    "engine/record/mixing.py engine/record/placed.py": "test_lazy_joined.py test_lazy_sparse.py"
    " conformance/test_mixing.py test_lazy_mistakes.py test_lazy_transforms.py test_lazy_devices.py",
    "engine/record/lists.py": "remote/test_placing.py remote/test_spread.py",
    "engine/record/sequences.py engine/record/kernel_sizes.py": "test_lazy_sequences.py test_lazy_devices.py",
    "engine/record/predict.py": "test_lazy_predict.py test_lazy_modules.py test_lazy_products.py"
    " test_lazy_layouts.py test_lazy_mistakes.py test_lazy_late_errors.py test_lazy_operators.py test_meta.py"
    " programs/test_programs.py",
    "engine/record/shrink.py engine/record/trial.py": "test_lazy_small_copies.py test_lazy_layouts.py"
    " test_lazy_late_errors.py",
    "engine/record/*": "test_lazy_layouts.py test_lazy_mistakes.py test_lazy_late_errors.py test_lazy_operators.py",
    "engine/remote/cuts.py": "remote/test_cut_numbers.py remote/test_cuts.py remote/test_placing.py",
    "engine/remote/homes.py": "remote/test_homes.py remote/test_division.py remote/test_placing.py",
    "engine/remote/pricing.py": "remote/test_cut_numbers.py remote/test_cuts.py remote/test_same_plans.py",
    "engine/remote/division.py": "remote/test_division.py remote/test_placing.py",
    "engine/remote/placing.py engine/remote/pending_uploads.py": "remote/test_placing.py",
    "engine/remote/spread.py engine/remote/postponed_moves.py engine/remote/moved_values.py": "remote/test_spread.py"
    " remote/test_placing.py remote/test_what_moves.py",
    "engine/execute/lent_storages.py": "remote/test_lent_storages.py",
    "engine/remote/functions.py": "remote/test_functions.py remote/test_wire.py remote/test_loopback.py"
    " remote/test_checks.py",
    "engine/remote/checks.py engine/remote/wire.py": "remote/test_wire.py remote/test_loopback.py"
    " remote/test_checks.py",
    "engine/remote/child.py engine/remote/pipe.py engine/remote/hello.py": "remote/test_pipe.py",
    "engine/remote/failures.py engine/remote/exchange.py": "remote/test_session.py remote/test_lost_writes.py"
    " remote/test_pipe.py remote/test_loopback.py remote/test_messages.py remote/test_overlap.py"
    " remote/test_settings.py",
    "engine/remote/worker.py engine/remote/shared_storages.py engine/remote/host_fallback.py"
    " engine/remote/client.py": "remote/test_worker.py remote/test_loopback.py remote/test_messages.py"
    " remote/test_overlap.py remote/test_settings.py remote/test_changing.py remote/test_files.py"
    " remote/test_operators.py remote/test_spread.py remote/test_placing.py",
    "engine/remote/mirrors.py": "remote/test_mirrors.py remote/test_loopback.py remote/test_messages.py",
    "engine/remote/plans.py engine/remote/definitions.py": "remote/test_plans.py remote/test_loopback.py"
    " remote/test_messages.py",
    "engine/remote/reads.py engine/remote/small_values.py": "remote/test_reads.py remote/test_loopback.py"
    " remote/test_messages.py",
    "engine/remote/uploads.py engine/remote/sent_contents.py engine/remote/progress.py": "remote/test_uploads.py"
    " remote/test_files.py remote/test_loopback.py",
    "engine/remote/replies.py": "remote/test_answers.py remote/test_replies.py remote/test_loopback.py",
    "engine/remote/lineage.py": "remote/test_session.py cluster/test_lineage.py",
    "engine/remote/*": "remote/test_loopback.py remote/test_messages.py remote/test_overlap.py remote/test_settings.py"
    " remote/test_changing.py",
    "engine/semantics/generation.py engine/semantics/cache_growth.py": "semantics/test_cache_growth.py"
    " test_generation.py test_generation_caches.py",
    "engine/semantics/*": "semantics profile/test_owners.py profile/test_iterations.py",
    "engine/tensor/*": "test_lazy_classes.py test_lazy_tensor.py test_lazy_protocol.py",
}
#: Seconds until a process must have ended that has not said until when its test must.
PATIENCE = 300
#: A token, and what stands in its place.
OTHERS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "//": "*", "&": "|",
    "|": "&", "<<": ">>", ">>": "<<", "+=": "-=", "-=": "+=", "and": "or", "or": "and", "True": "False",
    "False": "True", "not": "", "break": "continue", "continue": "break",
}  # fmt: skip


CAST = re.compile(r"<\s*[A-Za-z_][\w. ]*[* ]*\??>")
#: Where one more is more memory than is needed, and nothing else: `calloc(n, 1)`, `2 * sizeof(int)`, what functions of
#: ours make room for, the length of an array that is declared, and the length that memory is about to grow to.
ROOMY = re.compile(
    r"\b(malloc|calloc|realloc|_?room|reserve)\(([^()/-]|\(([^()/-]|\([^()/-]*\))*\))*(\)|$)"
    r"|^\s*cdef \w+ \*?\w+\[[\w +*]+\]|^\s*(cdef (size_t|uint32_t) )?cap = [^/]+$|^\s*wanted = max\([^/]+$"
)
#: What a function in C gives where it raises.
RAISES = re.compile(r"\bexcept\s?\??\s?-?\s?\d+( nogil)?:$")
#: A function in C that gives a number only since it may raise.
MAY_RAISE = re.compile(
    r"^( *)cdef (inline )?int [^\n]*(?:\n[^\n]*[^:\n])*?\) except -1( nogil)?:\n((?:\1 .*\n|\n)*)", re.M
)
#: `a - b if a > b else 0`, `a if a < b else b`: the same where both are equal, whatever is asked.
EITHER = re.compile(
    r"([\w.]+) - ([\w.]+) if (\1 >=? \2|\2 <=? \1) else 0\b|([\w.]+) if \4 [<>]=? ([\w.]+) else \5(?![\w.(\[])"
    r"|([\w.]+) if ([\w.]+) [<>]=? \6 else \7(?![\w.(\[])"
)
#: `a == ONE or a == OTHER` of a number in C: a switch, which Cython makes of `a == ONE and a == OTHER`, too.
SWITCHES = re.compile(r"\b(\w+) == ([A-Z]+_[A-Z]+|\d+)( or \1 == ([A-Z]+_[A-Z]+|\d+))+")
#: What a function in C hashes: of equal keys it must be equal, and whatever else it is, the tables find them.
MIXES = re.compile(r"\*=? *(<\w+> ?)?0x[0-9A-F]{16}")
HASHES = re.compile(r"^( *)cdef (?:inline )?uint\d+_t \w*hash\w*\([^\n]*:\n((?:\1 .*\n|\n)*)", re.M)


class Mutant(NamedTuple):
    """A token of a file, and what it becomes."""

    path: str
    line: int
    column: int
    old: str
    new: str

    def apply(self, tree: Path) -> None:
        """Write the changed file."""
        file = tree / self.path
        lines = file.read_text().splitlines(keepends=True)
        text = lines[self.line - 1]
        assert text[self.column :].startswith(self.old)
        lines[self.line - 1] = text[: self.column] + self.new + text[self.column + len(self.old) :]
        file.write_text("".join(lines))


def all_is_well(text: str) -> set[int]:
    """Lines that give 0 where a function may raise and gives nothing else: nobody looks at what it gives."""
    found: set[int] = set()
    for function in MAY_RAISE.finditer(text):
        first = text.count("\n", 0, function.start(4)) + 1
        given = {
            first + k: line.split("#")[0].strip()
            for k, line in enumerate(function[4].splitlines()) if line.lstrip().startswith("return")
        }  # fmt: skip
        if set(given.values()) <= {"return 0"}:
            found.update(given)
    return found


def hashed(text: str) -> set[int]:
    """Lines of functions that hash."""
    found: set[int] = set()
    for function in HASHES.finditer(text):
        first = text.count("\n", 0, function.start(2)) + 1
        found.update(range(first, first + function[2].count("\n")))
    return found


def mutants(path: str) -> Iterator[Mutant]:
    """All of a file, in Python or Cython: what tokens may become. Declarations have none worth a try, and nothing
    depends on whether `zip` looks at what is as long as it must be."""
    text = (ROOT / path).read_text()
    lines = text.splitlines()
    before = two_before = ""
    unread, hashes = all_is_well(text), hashed(text)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        whole = lines[min(token.start[0], len(lines)) - 1]
        line = whole.strip()
        declares = line.startswith(("cdef extern", "ctypedef", "from ", "import ", "@", "cimport", "__all__"))
        declares |= token.string == "|" and re.search(r"\| None\b|^(async )?def |->", line) is not None
        declares |= (two_before, before) == ("strict", "=")
        known = (CAST, RAISES, EITHER) if token.string[:1] in ("<", ">") else (CAST, RAISES)
        declares |= any(at.start() <= token.start[1] < at.end() for p in known for at in p.finditer(whole))
        declares |= (
            token.string == "or"
            and path.endswith(".pyx")
            and any(at.start() < token.start[1] < at.end() for at in SWITCHES.finditer(whole))
        )
        declares |= token.start[0] in hashes or (MIXES.search(whole) is not None and token.string != "&")
        new = None
        if token.type == tokenize.NUMBER and token.string.isdigit():
            declares |= token.start[0] in unread
            declares |= any(call.start() < token.start[1] < call.end() for call in ROOMY.finditer(whole))
            new = str(int(token.string) + 1)
        elif token.type in (tokenize.OP, tokenize.NAME):
            new = OTHERS.get(token.string)
        # A cast or a pointer is none of the operators; `is not` and `not in` are told as one by others.
        binary = before.isidentifier() or before[-1:] in ")]}\"'" or before.isdigit()
        binary &= before not in ("noexcept", "nogil")
        declares |= before == "is" or (token.string == "not" and whole[token.end[1] :].lstrip().startswith("in "))
        if new is not None and not declares and (token.type != tokenize.OP or binary):
            yield Mutant(path, token.start[0], token.start[1], token.string, new)
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            before, two_before = token.string, before


def nearest(path: str) -> list[str]:
    """The tests near a file."""
    for patterns, tests in NEAREST.items():
        if any(fnmatch.fnmatch(path.removeprefix("mindtorch/"), pattern) for pattern in patterns.split()):
            found = [ROOT / "tests" / name for name in tests.split()]
            files = [file for at in found for file in (sorted(at.glob("test_*.py")) if at.is_dir() else [at])]
            return [str(file.relative_to(ROOT)) for file in files]
    raise SystemExit(f"{path}: no tests are said to be near it")


def copied(to: Path) -> Path:
    """A copy of the tree, and of what was compiled in it, that is imported from there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    modules = [str(path.relative_to(ROOT)) for path in (ROOT / "_ext").glob("*.so")]
    for name in [*filter(None, listed.split("\0")), *modules]:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to / name)
    for source in (to / "_ext").glob("*.pyx"):
        if not any(to.glob(f"_ext/{source.stem}.*.so")):
            raise SystemExit(f"{source.name} is not compiled here: pip install -c constraints.txt -e '.[dev]'")
    compileall.compile_dir(to / "mindtorch", quiet=2)
    (to / "site").mkdir()
    (to / "site" / "mindtorch").symlink_to("../mindtorch")
    for name in ("_ext", "cli"):
        (to / "mindtorch" / name).symlink_to(f"../{name}")
    return to


def compiles(paths: list[str]) -> int:
    """In the tree: compile these modules alone. 0 where that works."""
    os.environ["GENIE_BUILD"] = "quick"
    build("build_ext --inplace", [Path(path).stem for path in paths])
    return 0


class Tree:
    """A copy of the tree, in which work is done in forks of a process that has imported torch already."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = copied(Path(self.folder.name))

    def ends_well(self, work: Callable[[Any], int], given: object) -> bool:
        """Whether this gives 0 in the tree, in a process of its own, in the time that it, or its tests, are given."""
        running = self.path / RUNNING
        running.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            code = 1
            with contextlib.suppress(BaseException):  # how it ended is all that is asked
                os.setsid()
                os.chdir(self.path)
                for stream in range(3):
                    os.dup2(os.open(os.devnull, os.O_RDWR), stream)
                code = work(given)
            os._exit(code)
        until = time.monotonic() + PATIENCE
        ended, status = os.waitpid(child, os.WNOHANG)
        while not ended and time.monotonic() < until:
            time.sleep(0.02)
            ended, status = os.waitpid(child, os.WNOHANG)
            if running.exists() and (told := running.read_text()):
                until = float(told.split()[0])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # and what it has begun
        if not ended:
            os.waitpid(child, 0)
        return bool(ended) and status == 0

    def compiles(self, paths: list[str]) -> bool:
        """Whether these modules compile."""
        return self.ends_well(compiles, paths)


class Trial(Tree):
    """A tree in which mutants are tried, one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.passed: set[str] = set()  # behind others that came to the line, in the tree as it is

    def end_of(self, mutant: Mutant, cases: list[Case]) -> str:
        """What becomes of it where it meets these cases: "killed", "survived", "unseen" (there are none), "invalid",
        or "untold" where tests fail without it, too."""
        modules = {path: path.read_bytes() for path in self.path.glob(f"_ext/{Path(mutant.path).stem}.*.so")}
        mutant.apply(self.path)
        try:
            if mutant.path.endswith(".pyx") and not self.compiles([mutant.path]):
                return "invalid"
            if not cases:
                return "unseen"
            if self.ends_well(fails, cases):
                return "survived"
        finally:
            shutil.copy2(ROOT / mutant.path, self.path / mutant.path)  # as old as it was, for what Python has compiled
            if mutant.path.endswith(".pyx"):
                for path, held in modules.items():
                    path.unlink(missing_ok=True)  # a process may still have it mapped
                    path.write_bytes(held)
        running = self.path / RUNNING
        if not running.exists():
            return "killed"  # what the cases import fails, which did not when they were looked at
        last = [case.name for case in cases].index(running.read_text().split(" ", 1)[1])
        if cases[last].name not in self.passed:
            if not any(self.ends_well(fails, cases[: last + 1]) for _ in range(2)):
                return "untold"
            self.passed.add(cases[last].name)
        return "killed"


_trial: Trial
_reached = Reached(ROOT)


def begin() -> None:
    """In each process that tries mutants."""
    global _trial
    _trial = Trial()


def end_of(mutant: Mutant) -> tuple[str, float]:
    """What becomes of it, and in how many seconds."""
    begun = time.monotonic()
    cases = _reached.cases(mutant.path, mutant.line, nearest(mutant.path))
    return _trial.end_of(mutant, cases), time.monotonic() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, default=300, help="number of valid mutants")
    parser.add_argument("--seed", type=int, default=0, help="seed that selects the mutants")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of mutants to run at a time")
    parser.add_argument("--only", default="*", help="pattern of files to change, such as '_ext/keys.pyx'")
    parser.add_argument("--least", type=float, default=90.0, help="least per cent of mutants that tests must notice")
    asked = parser.parse_args()
    paths = [*(ROOT / "_ext").glob("*.pyx"), *(ROOT / "mindtorch" / "engine").rglob("*.py")]
    names = sorted(str(path.relative_to(ROOT)) for path in paths)
    drawn = [each for name in names if fnmatch.fnmatch(name, asked.only) for each in mutants(name)]
    lines: dict[str, set[int]] = {}
    for mutant in drawn:
        lines.setdefault(mutant.path, set()).add(mutant.line)
    random.Random(asked.seed).shuffle(drawn)
    _reached.look({path: (rows, nearest(path)) for path, rows in lines.items()}, Tree)
    ends: Counter[str] = Counter()
    with ProcessPoolExecutor(asked.jobs, get_context("fork"), begin) as processes:
        rest = iter(drawn)
        while asked.sample > (done := ends["killed"] + ends["survived"] + ends["unseen"]):
            batch = [mutant for mutant, _ in zip(rest, range(min(asked.sample - done, 4 * asked.jobs)))]
            if not batch:
                break
            for mutant, (end, took) in zip(batch, processes.map(end_of, batch)):
                ends[end] += 1
                line = (ROOT / mutant.path).read_text().splitlines()[mutant.line - 1].strip()
                at = f"{mutant.path}:{mutant.line}:{mutant.column + 1}"
                print(f"{end:8} {took:4.0f} s {at}: {mutant.old!r} -> {mutant.new!r}: {line}", flush=True)
    tried = ends["killed"] + ends["survived"] + ends["unseen"]
    share = 100 * ends["killed"] / max(tried, 1)
    print(f"{ends['killed']} of {tried} mutants were noticed, {share:.1f} %; {ends['invalid']} did not compile")
    print(f"{ends['untold']} were killed by tests that failed without them, too, and count for nothing")
    return int(share < asked.least)


if __name__ == "__main__":
    sys.exit(main())
