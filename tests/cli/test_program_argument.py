"""SPEC C1: which words of the command line are genie's and which the script's."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from mindtorch.cli.program_command import ProgramCommand, program_arguments


@click.command(cls=ProgramCommand)
@click.option("--top", type=int)
@click.option("--flag", is_flag=True)
@program_arguments
def command(words, top, flag):
    click.echo(repr((words.argument, words.script_args, top, flag, words.inputs)))


@pytest.mark.parametrize(
    ("line", "result"),
    [("train.py", ("train.py", (), None, False, ())),
     ("train.py --lr 0.1 --help -x", ("train.py", ("--lr", "0.1", "--help", "-x"), None, False, ())),
     ("--top 3 train.py --top 4 --flag", ("train.py", ("--top", "4", "--flag"), 3, False, ())),
     ("--flag train.py -- --x", ("train.py", ("--", "--x"), None, True, ())),
     ("-- train.py --x", ("train.py", ("--x",), None, False, ())),
     ("train.py model.py:build --top 3", ("train.py", ("model.py:build", "--top", "3"), None, False, ())),
     ("m.py:build --input 1x3 --top 3", ("m.py:build", (), 3, False, ("1x3",))),
     ("--top=3 m.py:build --input=1 --flag --input x=2", ("m.py:build", (), 3, True, ("1", "x=2"))),
     ("config.json --top 5", ("config.json", (), 5, False, ())),
     ("m.py:build extra", ("m.py:build", ("extra",), None, False, ()))],
)  # fmt: skip
def test_C1_words_after_the_script_are_the_scripts(line, result):
    done = CliRunner().invoke(command, line.split())
    assert done.exit_code == 0, done.output
    assert done.output.strip() == repr(result)


@pytest.mark.parametrize("line", ["", "--top", "--nope train.py", "--top x train.py", "m.py:build --nope"])
def test_C1_mistakes_in_genies_own_options(line):
    assert CliRunner().invoke(command, line.split()).exit_code == 2
