"""SPEC L6: limits on pending operations and on the bytes that they keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def test_L6_a_limit_on_pending_ops_runs_them(after_a_step: Callable[..., Any]) -> None:
    code = """
        import torch, mindtorch
        x = torch.zeros((), device="remote_accelerator:0")
        tape = mindtorch.engine.execute.values.tape
        kept = []
        most = 0
        for i in range(60000):
            x = x + 1
            if i % 100 == 0:
                kept.append(x)
            most = max(most, tape.n_pending)
        assert mindtorch.stats()["triggers"]["limit"] == 3
        assert most == 19_999, most
        assert x.item() == 60000.0 and [t.item() for t in kept[:3]] == [1.0, 101.0, 201.0]
        assert mindtorch.stats()["ops_executed"] == 60001
        print("ok")
    """
    assert after_a_step(code, GENIE_MAX_PENDING_OPS="20000").stdout == "ok\n"


def test_L6_the_limit_on_bytes_runs_what_keeps_them(after_a_step: Callable[..., Any]) -> None:
    code = """
        import torch, mindtorch
        L = "remote_accelerator:0"
        plan = mindtorch.engine.execute.values.tape
        correct, most = torch.zeros((), device=L, dtype=torch.long), 0
        for i in range(100):
            batch = torch.full((1000,), float(i % 2)).to(L)   # 4,000 bytes, which the program lets go of
            correct += (batch > 0).sum()
            most = max(most, plan.waiting)
        limits = mindtorch.stats()["triggers"]["limit"]
        assert 6 <= limits <= 9, limits                # about 396,000 bytes were kept waiting, 50,000 are allowed
        assert most <= 50_000 + 4_000, most
        assert correct.item() == 50_000
        print("ok")
    """
    assert after_a_step(code, GENIE_MAX_PENDING_BYTES="50000").stdout == "ok\n"


@pytest.mark.parametrize("value", ["0", "-1", "many", ""])
@pytest.mark.parametrize("name", ["GENIE_MAX_PENDING_OPS", "GENIE_MAX_PENDING_BYTES"])
def test_L6_a_bad_limit_is_refused_by_name(after_a_step: Callable[..., Any], name: str, value: str) -> None:
    done = after_a_step("import mindtorch", fails=True, **{name: value})
    assert f"{name}: expected a positive number" in done.stderr
