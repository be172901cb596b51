"""Commands that take a program: their options, each of which says where it applies and whether it is part of what ran;
which words are genie's, and what stdout is for while the user's program runs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from mindtorch.base.formats import Format
from mindtorch.program.program import Program, split_argument
from mindtorch.program.workload import DTYPES, Request

from .output import OutputFile

__all__ = [
    "Option", "ProgramCommand", "ProgramWords", "assumption_options", "check_needs", "claimed_stdout", "hint_torch_npu",
    "kept_words", "module_option", "option", "program_arguments", "request_options", "torch_npu_for",
]  # fmt: skip

#: What an option or an output file may need: the words for one that has it not.
_NEEDS = {
    "estimate": "is for an estimate: add --device meta or --target NAME",
    "accelerator": "is for an estimate of an accelerator: add --target NAME",
    "measured": "is for a measured run: leave out --device and --target",
    "times": "shows times: add --target NAME, or leave out --device",
    "card": "needs a GPU or NPU as target: add --target NAME",
}


class Option(click.Option):
    """needs: a key of `_NEEDS`. kept: the commands that genie suggests after a run have it, too."""

    def __init__(self, *args: Any, needs: str = "", kept: bool = False, **settings: Any) -> None:
        if needs in ("estimate", "accelerator"):
            settings["help"] = f"Estimate: {settings['help'][0].lower()}{settings['help'][1:]}"
        super().__init__(*args, **settings)
        self.needs, self.kept = needs, kept

    def words(self, value: Any) -> list[str]:
        """As typed; empty where it was not given."""
        if value is None or value is False:
            return []
        values = value if self.multiple else [value]
        texts = [f"{each:g}" if isinstance(each, float) else str(each) for each in values]
        return [word for text in texts for word in ([self.opts[0]] if self.is_flag else [self.opts[0], text])]


option = functools.partial(click.option, cls=Option)


def check_needs(context: click.Context, wanted: Sequence[tuple[Format, OutputFile]], target: str | None) -> None:
    """UsageError where an option, or an output file, was given without what it needs. target: of an estimate."""
    estimated = target is not None or context.params["device"] is not None
    has = {
        "": True,
        "estimate": estimated,
        "accelerator": target is not None,
        "measured": not estimated,
        "times": target is not None or not estimated,
        "card": target not in (None, "cpu"),
    }
    given = [each for each in context.command.params if isinstance(each, Option)]
    needed = [(each.name, each.needs) for each, _ in wanted]
    needed += [(each.opts[0][2:], each.needs) for each in given if each.words(context.params[each.name or ""])]
    for name, need in needed:
        if not has[need]:
            raise click.UsageError(f"--{name} {_NEEDS[need]}")
    for each, file in wanted:
        if each.binary and file.is_stdout:
            raise click.UsageError(f"--{each.name} writes binary data: give a file name, not -")


def kept_words(context: click.Context) -> list[str]:
    """What has to be given again for the same run: genie's own options, as typed."""
    given = [each for each in context.command.params if isinstance(each, Option) and each.kept]
    return [word for each in given for word in each.words(context.params[each.name or ""])]


@dataclasses.dataclass(frozen=True)
class ProgramWords:
    """PROGRAM on the command line, its arguments, ``-m`` and ``--input``."""

    argument: str
    script_args: tuple[str, ...]
    as_module: bool
    inputs: tuple[str, ...]

    def parse(self, *files: OutputFile | None, request: Request | None = None) -> Program:
        """The program, and the promise that every output file can be written and none replaces the program."""
        program = Program.parse(self.argument, self.script_args, self.inputs, request, self.as_module)
        program.reported = True
        given = [file for file in files if file is not None]
        for index, file in enumerate(given):
            file.check(program.path)
            if any(file.same_as(other) for other in given[:index]):
                raise click.UsageError(f"{file.name} is given for two outputs")
        return program


def _decorated(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """All of them, the first outermost, as help lists them."""
    return lambda function: functools.reduce(lambda made, decorate: decorate(made), reversed(decorators), function)


module_option = option("-m", "as_module", is_flag=True, help="PROGRAM is a module, as in python -m PROGRAM.")
_PROGRAM = _decorated(
    option(
        "--input",
        "inputs",
        multiple=True,
        kept=True,
        metavar="[NAME=]SHAPE[:DTYPE]",
        help="An input of a model, e.g. 1x3x224x224 or 'ids=1x128:int64<50257' (integers are 0 without a bound). "
        "Once per input, in order or by name; batch.ids=1x128:int64 is the entry ids of a dict named batch.",
    ),
    module_option,
    click.argument("argument", metavar="PROGRAM"),
    click.argument("script_args", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]..."),
)
_COUNT = click.IntRange(min=1)
_REQUEST = _decorated(
    option(
        "--seq",
        type=_COUNT,
        kept=True,
        metavar="N",
        help="For a config.json: tokens per sequence, without images (default: 128).",
    ),
    option("--batch", type=_COUNT, kept=True, metavar="N", help="For a config.json: sequences per batch (default: 1)."),
    option(
        "--decode",
        type=_COUNT,
        kept=True,
        metavar="N",
        help="For a config.json: fill the key-value cache with the sequence (phase prefill), then generate N tokens, "
        "one at a time (phase decode).",
    ),
    option(
        "--images",
        type=_COUNT,
        kept=True,
        metavar="N",
        help="For the config.json of a vision-language model: images in each sequence, in addition to --seq tokens of "
        "text (default: none).",
    ),
    option(
        "--image-size",
        kept=True,
        metavar="HEIGHTxWIDTH",
        help="Size of --images in pixels, for models that take any size (default: the file's, else 1024x1024).",
    ),
    option(
        "--train",
        is_flag=True,
        kept=True,
        help="For a config.json: a training step with AdamW. The first step, which allocates the optimizer's state, is "
        "not counted. With --decode, both run, one after the other.",
    ),
    option(
        "--dtype",
        type=click.Choice(DTYPES),
        kept=True,
        help="For a config.json: dtype of the weights (default: the file's, else float32).",
    ),
)


def program_arguments(function: Callable[..., Any]) -> Any:
    """PROGRAM, its arguments, ``-m`` and ``--input``: ``function`` gets them as `ProgramWords`."""

    @functools.wraps(function)
    def called(argument: str, script_args: Any, as_module: bool, inputs: Any, **given: Any) -> Any:
        return function(ProgramWords(argument, script_args, as_module, inputs), **given)

    return _PROGRAM(called)


def request_options(function: Callable[..., Any]) -> Any:
    """What a transformers model is given to do: ``function`` gets a `Request`."""

    @functools.wraps(function)
    def called(*args: Any, **given: Any) -> Any:
        request = Request(**{field.name: given.pop(field.name) for field in dataclasses.fields(Request)})
        return function(*args, request=request, **given)

    return _REQUEST(called)


def assumption_options(needs: str = "") -> Callable[[Any], Any]:
    """What an estimate takes unknown values for."""
    return _decorated(
        option(
            "--assume",
            type=float,
            needs=needs,
            kept=True,
            metavar="NUMBER",
            help="The value assumed for tensor elements that cannot be known (default 0, False; floats 1e-12).",
        ),
        option(
            "--routing",
            type=click.Choice(["balanced"]),
            needs=needs,
            kept=True,
            help="Choices among unknown scores (topk, argmax …) always pick all candidates in turn.",
        ),
    )


class ProgramCommand(click.Command):
    """Everything after a script is the script's (SPEC C1). A model (``model.py:name``, ``config.json``) takes no
    arguments of its own, so options after it are genie's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        values, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        argument, after = values.get("argument"), values.get("script_args")
        if isinstance(argument, str) and not values.get("as_module") and split_argument(argument)[0] != "script":
            ctx.allow_interspersed_args = True
            place = len(args) - len(after if isinstance(after, (list, tuple)) else ()) - 1
            if place and args[place - 1] == "--":
                args = [*args[: place - 1], *args[place:]]
        return super().parse_args(ctx, args)


@contextlib.contextmanager
def claimed_stdout(claim: bool) -> Iterator[None]:
    """With ``claim``, what the user's program prints goes to stderr meanwhile, its child processes' and C code's
    output included: stdout is then the JSON and nothing else."""
    if not claim:
        yield
        return
    sys.stdout.flush()
    try:
        number = sys.stdout.fileno()
    except (OSError, ValueError):  # a stand-in without a file descriptor (tests, notebooks)
        with contextlib.redirect_stdout(sys.stderr):
            yield
        return
    saved = os.dup(number)
    os.dup2(sys.stderr.fileno(), number)
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os.dup2(saved, number)
        os.close(saved)


@contextlib.contextmanager
def torch_npu_for(estimate: bool, kind: str | None = None) -> Iterator[None]:
    """A program that imports torch_npu finds ours, where the real one is not installed and it would be used: an NPU is
    there, or in an estimate.

    kind: what torch calls the accelerator that an estimate is of; None: it is of none.
    """
    from mindtorch import npu
    from mindtorch.npu import finder

    if estimate and kind not in (None, "npu"):
        yield  # a program that may do without it does so
        return
    # Libraries that look for it without being asked to are answered on the chip that was named, and nowhere else.
    finder.watch((lambda: True) if estimate else npu.is_available, probes=kind == "npu")
    try:
        yield
    finally:
        finder.unwatch()


def hint_torch_npu(error: BaseException | None) -> None:
    """What to do when the program ended for want of torch_npu."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch_npu":
        from mindtorch import npu

        why = npu.why_unavailable() or "an estimate of another accelerator does without it"
        click.echo(
            f"genie: torch_npu is not installed, and mindtorch's replacement was not used: {why}; genie profile "
            "--target 910b runs such a program anywhere, without data",
            err=True,
        )
