"""How a process that was started for one command ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mindtorch.program.outcome import Outcome

__all__ = ["BY_SIGINT", "BY_SIGTERM", "ENDS_WITH_THE_COMMAND", "exit_code", "interruption"]

#: What click's context holds where the process ends with the command.
ENDS_WITH_THE_COMMAND = "the process ends with the command"
#: What a command returns where it is to end as Python does after KeyboardInterrupt: no exit code that there can be.
BY_SIGINT = 130 | 1 << 8
#: Where it is to end by SIGTERM, as the program would have.
BY_SIGTERM = 143 | 1 << 8


def interruption(outcome: Outcome) -> str:
    """What ended a program that was interrupted."""
    return "ended by SIGTERM" if outcome.terminated else "interrupted"


def exit_code(outcome: Outcome) -> int:
    """What a command returns that ends as its program did: by SIGTERM, too, where the process ends with it."""
    ends = click.get_current_context().find_root().obj == ENDS_WITH_THE_COMMAND
    return BY_SIGTERM if outcome.terminated and ends else outcome.exit_code
