"""Which rank of how many an estimated program is, and what torchrun would have told it (SPEC C4)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mindtorch.base.errors import UsageError
from mindtorch.base.ranks import Rank

__all__ = ["ALL_RANKS", "MOST_RANKS", "Cluster", "chosen", "parse_rank", "split_target", "started_by_torchrun"]

#: What torch's fake process groups and the report's table are good for.
MOST_RANKS = 1 << 16
#: Accelerators of one machine, in every machine that is sold with the larger ones.
PER_MACHINE = 8
ALL_RANKS = -1
_COUNTED = re.compile(r"(\d+)x(.*)", re.IGNORECASE)


@dataclass(frozen=True)
class Cluster:
    """``size`` ranks, each with one accelerator, ``per_machine`` of them in one machine; the program is ``rank``.

    interconnect: bytes per second of each accelerator to other machines; None: what `cost.collectives` says of the
    target.
    """

    size: int
    rank: int = 0
    per_machine: int = PER_MACHINE
    interconnect: float | None = None

    @property
    def local_rank(self) -> int:
        return self.rank % self.per_machine

    @property
    def machine(self) -> int:
        return self.rank // self.per_machine

    @property
    def local_size(self) -> int:
        """Ranks on this rank's machine: the last one may have fewer."""
        return min(self.per_machine, self.size - self.machine * self.per_machine)

    @property
    def machines(self) -> int:
        return -(-self.size // self.per_machine)

    def machines_of(self, ranks: Any) -> int:
        """On how many machines these ranks are."""
        return len({rank // self.per_machine for rank in ranks})

    def environment(self) -> dict[str, str]:
        """The variables that torchrun sets."""
        numbers = {
            "RANK": self.rank, "WORLD_SIZE": self.size, "LOCAL_RANK": self.local_rank,
            "LOCAL_WORLD_SIZE": self.local_size, "GROUP_RANK": self.machine, "GROUP_WORLD_SIZE": self.machines,
            "ROLE_RANK": self.rank, "ROLE_WORLD_SIZE": self.size, "MASTER_PORT": 29500,
            "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0,
        }  # fmt: skip
        words = {"MASTER_ADDR": "127.0.0.1", "ROLE_NAME": "default", "TORCHELASTIC_RUN_ID": "none"}
        return {name: str(value) for name, value in numbers.items()} | words


def split_target(name: str) -> tuple[int | None, str]:
    """``64xh100`` as (64, "h100"); (None, name) where no number is given. UsageError: not a number of accelerators."""
    found = _COUNTED.fullmatch(name)
    if found is None:
        return None, name
    count = int(found[1])
    if not found[2]:
        raise UsageError(f"[target] {name!r}: expected <number>x<accelerator>, as in 8xh100")
    if not 1 <= count <= MOST_RANKS:
        raise UsageError(f"[target] {name!r}: expected 1 to {MOST_RANKS} accelerators, got {count}")
    return count, found[2]


def chosen(
    target: str | None, rank: str | None, gigabits: float | None, script: str | None
) -> tuple[str | None, Cluster | None]:
    """(the accelerator's name, the cluster or None) of ``--target``, ``--rank`` and ``--interconnect``.

    script: what is run, None for a model or configuration, which starts no ranks. UsageError: what cannot be.
    """
    count, name = (None, None) if target is None else split_target(target)
    for option, value in (("--rank", rank), ("--interconnect", gigabits)):
        if count is None and value is not None:
            raise UsageError(f"[rank] {option} is for several accelerators: --target 8xh100")
    if count is None:
        return name, None
    if script is None:
        raise UsageError(
            f"[target] {target!r} is for scripts, which say what each rank does; a configuration or model runs on one: "
            f"--target {name} says how many would hold it; for their times, write a script that shards it (fully_shard)"
        )
    if name == "cpu":
        raise UsageError(f"[target] {target!r}: expected accelerators, as in 8xh100")
    if Rank.of_process() is not None:
        raise UsageError(
            f"[target] {target!r} already estimates every rank, so start it without torchrun: "
            f"genie profile --target {target} --rank N {script}"
        )
    speed = None if gigabits is None else gigabits * 1e9 / 8
    return name, Cluster(count, parse_rank(rank or "0", count), interconnect=speed)


def parse_rank(text: str, size: int) -> int:
    """The number of ``--rank``, or `ALL_RANKS`. UsageError where there is no such rank."""
    if text == "all":
        return ALL_RANKS
    if not text.isdecimal() or int(text) >= size:
        raise UsageError(f"[rank] expected 0 to {size - 1}, or all, got {text!r}: there are {size} ranks")
    return int(text)


@contextmanager
def started_by_torchrun(cluster: Cluster) -> Iterator[None]:
    """Within the block the environment is that of this rank's process."""
    variables = cluster.environment()
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
