"""R4: whatever ends, stops or is missing, there are the right numbers or one error, and nothing is left behind.

``pytest tests/cluster/test_faults.py --faults 1000`` is the whole; a fault takes some four seconds.
"""

from __future__ import annotations

import collections
import contextlib
import subprocess

import pytest

from mindtorch.cluster.broker_client import Link

from .faults import Faults

#: How often there is one of a kind among twenty, in this order.
SHARES = {"worker": 8, "memory": 3, "delay": 3, "broker": 1, "raylet": 1, "driver": 2, "disk": 1, "loss": 1}


def kinds() -> list[str]:
    """One of each, then the others."""
    more = [kind for kind, share in SHARES.items() for _ in range(share - 1)]
    return [*SHARES, *more]


def test_R4_faults_at_any_time_give_the_right_numbers_or_one_error(
    link: Link, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    order = kinds()
    only = pytestconfig.getoption("--fault-kind")
    first, many = pytestconfig.getoption("--first-fault"), pytestconfig.getoption("--faults")
    ends: collections.Counter[str] = collections.Counter()
    with contextlib.ExitStack() as stack:
        faults = Faults(link, stack)
        for seed in range(first, first + many):
            kind = order[seed % len(order)] if not only else only[seed % len(only)]
            try:
                ended = faults.fault(kind, seed)
            except (OSError, subprocess.CalledProcessError) as error:
                if kind not in ("disk", "loss"):
                    raise
                ended = f"cannot be made here: {error}"
            except BaseException as error:
                error.add_note(f"fault {seed}: {kind}") if hasattr(error, "add_note") else print(seed, kind)
                raise
            ends[f"{kind}: {ended}"] += 1
            if many > 50:
                with capsys.disabled():
                    print(seed, kind, ended, flush=True)
    print(dict(sorted(ends.items())), {kind: round(seconds, 1) for kind, seconds in faults.longest.items()})
