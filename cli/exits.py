"""How a process that was started for one command ends."""

from __future__ import annotations

__all__ = ["BY_SIGINT", "ENDS_WITH_THE_COMMAND"]

#: What click's context holds where the process ends with the command.
ENDS_WITH_THE_COMMAND = "the process ends with the command"
#: What a command returns where it is to end as Python does after KeyboardInterrupt: no exit code that there can be.
BY_SIGINT = 130 | 1 << 8
