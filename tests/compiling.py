"""Builds some of the extension modules: ``python compiling.py 'BUILD COMMAND' MODULE …`` beside a setup.py."""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Collection


def build(command: str, modules: Collection[str]) -> None:
    """Run that command of ./setup.py (``build_ext --inplace``) for these modules alone, by name: ``tape``."""
    import setuptools  # noqa: F401 - distutils comes with it

    run_setup = importlib.import_module("distutils.core").run_setup
    setup = run_setup("setup.py", ["-q", *shlex.split(command)], stop_after="commandline")
    setup.ext_modules = [each for each in setup.ext_modules or [] if each.name.rpartition(".")[2] in modules]
    setup.run_commands()


if __name__ == "__main__":
    build(sys.argv[1], sys.argv[2:])
