"""``mindtorch.profile()``: what ``genie profile`` shows, of a block of a program or of a function."""

from __future__ import annotations

import functools
import getopt
import html
import inspect
import os
import shlex
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mindtorch.base.errors import UsageError
from mindtorch.base.formats import Format
from mindtorch.cli.output import write_anew
from mindtorch.cli.render import Canvas, terminal_width
from mindtorch.cli.report import SORT_KEYS, TABLES, View, render_report
from mindtorch.engine.execute import values
from mindtorch.profile import Profiler
from mindtorch.profile.measure.observed_run import check_iterations
from mindtorch.profile.report import from_file
from mindtorch.profile.report.export import FORMATS

if TYPE_CHECKING:
    import pandas

__all__ = ["Profile", "Report", "load_ipython_extension", "load_report", "profiled", "unload_ipython_extension"]

_FORMATS = {each.name: each for each in FORMATS if each.needs != "card"}  # those of estimates
_FRAMES = {name: f"{name}s" for name in (*TABLES, "part", "finding", "pattern")}

_OPTIONS = [name for name in inspect.signature(Profiler).parameters if name not in ("whole", "begun_ns")]
#: Columns of tables that may have no row.
_COLUMNS = {
    "finding": ("id", "text", "share", "of", "seconds", "place", "try"),
    "pattern": ("name", "instances", "calls", "time_s", "flops", "bound_by_s", "verified", "modules", "attributes"),
}
#: Of the magic.
_COUNTS, _FLAGS = ("warmup", "steps"), ("lines", "hits", "shapes")


class Report:
    """What ``genie profile`` found: ``print(r)``, its figures, its tables. ``r.report()`` is all of it, as a dict."""

    def __init__(self, made: dict[str, Any]) -> None:
        self._made = made

    def report(self) -> dict[str, Any]:
        """As ``genie profile --json`` writes it; docs/PROFILE.md explains its keys."""
        return self._made

    def __str__(self) -> str:
        return self.show()

    # ---- figures

    @property
    def time_s(self) -> float:
        """Seconds that the report covers."""
        return float(self._made["totals"]["time_s"])

    @property
    def flops(self) -> int:
        return int(self._made["totals"]["flops"])

    @property
    def macs(self) -> int:
        """Multiply-adds of products (matrix products, convolutions, attention) alone."""
        return int(self._made["totals"]["macs"])

    @property
    def peak_bytes(self) -> int:
        return int(self._made["totals"]["peak_bytes"])

    @property
    def energy_j(self) -> float | None:
        """Joules, estimated, that the target's board takes for what the report covers; None without a target whose
        figures are known.
        """
        found = self._made["totals"].get("energy_j")
        return None if found is None else float(found)

    @property
    def energy(self) -> dict[str, Any] | None:
        """Details of the energy: ``step_j``, ``token_j`` by part, mean ``power_w``, ``all_j`` of all
        ``accelerators``.
        """
        found: dict[str, Any] | None = self._made.get("energy")
        return found

    @property
    def findings(self) -> list[dict[str, Any]]:
        """What stands out: ``id``, ``text``, ``share``, ``of``, ``seconds``, ``place``, ``try`` of each."""
        found: list[dict[str, Any]] = self._made["findings"]
        return found

    # ---- tables

    def show(self, by: str | None = None, top: int | None = None, depth: int | None = None,
             sort: str | None = None) -> str:  # fmt: skip
        """The report as text. Raises RuntimeError before the end of the block."""
        for name, asked, choices in (("by", by, TABLES), ("sort", sort, SORT_KEYS)):
            if asked is not None and asked not in choices:
                raise ValueError(f"[profile] expected {name}= to be one of {', '.join(choices)}, got {asked!r}")
        return render_report(self._made, Canvas(terminal_width(), color=False), View(by, top, depth, sort), "", [])

    def to_pandas(self, table: str = "op") -> pandas.DataFrame:
        """A table of the report as a DataFrame: "op", "module", "line", "phase", "part", "finding" or "pattern".

        Raises ImportError without pandas.
        """
        if table not in _FRAMES:
            raise ValueError(f"[profile] expected one of the tables {', '.join(_FRAMES)}, got {table!r}")
        rows = self._made.get(_FRAMES[table], [])
        try:
            import pandas
        except ImportError as error:
            raise ImportError("[profile] to_pandas() needs pandas: pip install pandas") from error
        return pandas.DataFrame(rows, columns=None if rows else _COLUMNS.get(table))


class Profile(Report, Profiler):
    """A profile of one block: ``print(p)`` after the block shows the report; a notebook shows it as a page.

    ``p.report()`` is the same as a dict, as ``genie profile --json`` writes it; ``p.show(by="line")`` is one table in
    full: "module", "op", "line" or "phase". The report covers everything that runs in the block.
    """

    _ended = False

    def __init__(self, *, whole: bool = True, **options: Any) -> None:
        for name in options:
            if name not in _OPTIONS:
                raise TypeError(
                    f"[profile] expected options of {', '.join(_OPTIONS)}, got {name!r}; to pass the model a "
                    f"keyword argument, profile a function: mindtorch.profile(lambda: model(x, {name}=...))"
                )
        if (target := options.get("target")) is not None:
            from mindtorch.profile.cost import targets

            if isinstance(target, str):
                options["target"] = targets.find(target)
            elif not isinstance(target, targets.Target):
                raise TypeError(f"[profile] expected the name of a target, such as 'h100', got {target!r}")
        Profiler.__init__(self, whole=whole, **options)

    report = Profiler.report  # type: ignore[assignment]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._ended = True

    @functools.cached_property
    def _made(self) -> dict[str, Any]:  # type: ignore[override]
        """The report; it does not change any more. Raises RuntimeError before the end of the block."""
        if not self._ended:
            raise RuntimeError("[profile] expected a block that has ended, got a profile whose block is still running")
        return self.report()

    # ---- as a whole

    def __str__(self) -> str:
        return self.show() if self._ended else repr(self)

    def html(self) -> str:
        """The page that ``genie profile --html`` writes: a whole document."""
        from mindtorch.profile.report.page import page

        return page(self._made, self.recording())

    def _repr_html_(self) -> str | None:
        """For notebooks: the same page, in a frame, as its style and its scripts are for a document of their own."""
        if not self._ended:
            return None
        return f'<iframe srcdoc="{html.escape(self.html())}" style="width:100%;height:44rem;border:0"></iframe>'

    def save(self, path: str | os.PathLike[str], format: str | None = None) -> None:
        """Write a file, as the options of ``genie profile`` do: x.json, x.csv, x.html, x.trace.json, x.flame.json, or
        what `format` says ("json", "csv", "html", "trace", "flame"). A name that ends in .gz is compressed, except for
        a page. Raises UsageError if the name implies no format, or if genie did not write the existing file.
        """
        made = self._made
        each = _format(os.fspath(path), format)
        said: list[str | None] = []
        write_anew(os.fspath(path), lambda name: said.append(each.write(made, self.recording, name)))
        for words in filter(None, said):
            warnings.warn(f"[profile] {os.fspath(path)} {words}", stacklevel=2)


def load_report(path: str | os.PathLike[str]) -> Report:
    """The report in a file that ``genie profile --json`` or `Profile.save` wrote, packed (.gz) or not.

    Raises UsageError if the file is not a report, or has another ``schema_version``.
    """
    made = from_file.read(path)
    from_file.check(made, os.fspath(path))
    return Report(made)


def _format(path: str, asked: str | None) -> Format:
    """Of a file's name, where none is asked for: its ending, or of .json what is before that."""
    name, named = asked, path.lower()
    if name is None:
        stem, ending = os.path.splitext(named.removesuffix(".gz"))
        before = os.path.splitext(stem)[1][1:]
        name = before if ending == ".json" and before in ("trace", "flame") else ending[1:]
    if name not in _FORMATS or (asked is None and name in ("trace", "flame") and not named.endswith((".json", ".gz"))):
        raise UsageError(f"[profile] expected a format of {', '.join(_FORMATS)}, got {os.path.basename(path)!r}"
                         + (f" as {asked!r}" if asked else ""))  # fmt: skip
    return _FORMATS[name]


def profiled(of: Callable[..., object], *inputs: Any, warmup: int = 1, steps: int = 1, **options: Any) -> Profile:
    """The profile of ``of(*inputs)``: see `mindtorch.profile`."""
    if not callable(of):
        raise TypeError(f"[profile] expected a model or a function first, got {of!r}")
    if inspect.isgeneratorfunction(of) or inspect.iscoroutinefunction(of) or inspect.isasyncgenfunction(of):
        raise TypeError(f"[profile] expected a function that runs when it is called, got {of!r}, which runs only later")
    check_iterations("profile", warmup, steps)
    profile = Profile(whole=False, **options)
    with profile:
        for i in range(warmup + steps):
            profile.stage("warmup" if i < warmup else "main")
            of(*inputs)
            values.flush("end of the call")  # nothing here reads what a recorded one gives
        profile.stage("init")
    return profile


# ---- notebooks


def load_ipython_extension(shell: Any) -> None:
    """IPython calls it for ``%load_ext mindtorch``: then there is the cell magic ``%%genie``, which profiles a cell.

    --warmup N, --steps N, --lines, --hits, --shapes are options of `mindtorch.profile`; -o NAME keeps the profile.
    """

    def genie(line: str, cell: str) -> Profile | None:
        """Profile the cell, and show the report.

        %%genie [--warmup N] [--steps N] [--lines] [--hits] [--shapes] [-o NAME]
        """
        options, name = _options(line)
        found = Profile(**options)
        with _kept_back(shell) as shown, found:
            ran = shell.run_cell(cell)
        if ran.error_before_exec is not None:
            raise ran.error_before_exec
        if name:
            shell.user_ns[name] = found
        if ran.error_in_exec is not None:  # as without the magic, the cell fails, and those after it do not run
            print(found)  # noqa: T201 - what ran until then
            if shown:
                ran.error_in_exec._render_traceback_ = lambda: shown[-1]  # without the lines of the magic
            raise ran.error_in_exec
        return found

    shell.register_magic_function(genie, "cell", "genie")


@contextmanager
def _kept_back(shell: Any) -> Iterator[list[list[str]]]:
    """What the shell would show of errors within the block: who raises them again has them shown, once."""
    shown: list[list[str]] = []
    shell._showtraceback = lambda kind, error, lines: shown.append(lines)  # of IPython's and of Jupyter's
    try:
        yield shown
    finally:
        del shell._showtraceback


def unload_ipython_extension(shell: Any) -> None:
    """IPython calls it for ``%unload_ext mindtorch``."""
    shell.magics_manager.magics["cell"].pop("genie", None)


def _options(line: str) -> tuple[dict[str, Any], str]:
    """(options of `mindtorch.profile`, a name to keep the profile under)."""
    try:
        given, rest = getopt.getopt(shlex.split(line), "o:", [*(f"{name}=" for name in _COUNTS), *_FLAGS])
        if rest:
            raise getopt.GetoptError(f"unexpected {rest[0]!r}")
        found: dict[str, Any] = {}
        for option, value in given:
            if option != "-o":
                found[option[2:]] = int(value) if option[2:] in _COUNTS else True
    except ValueError as error:
        raise UsageError(f"[%%genie] expected a number of iterations: {error}") from None
    except getopt.GetoptError as error:
        raise UsageError(f"[%%genie] {error.msg}; expected --warmup N, --steps N, --lines, --hits, --shapes, -o NAME"
                         ) from None  # fmt: skip
    return found, dict(given).get("-o", "")
