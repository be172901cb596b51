"""C6: ops in a row are one line only where they do the same."""

from __future__ import annotations

import torch

from mindtorch import graph
from mindtorch.graph.text import to_text


def lines(program) -> list[str]:
    with graph.capture() as captured:
        program()
    return [" ".join(line.split()) for line in to_text(captured).splitlines() if line.startswith("%")]


def test_C6_ops_of_other_operands_or_constants_stand_apart():
    def program():
        a, b = torch.ones(3), torch.arange(3.0)
        return (b * (a * 2) * 5).sum().item()

    found = lines(program)
    assert [line for line in found if "mul" in line] == ["%2 mul(%0, 2) 3 f32", "%3 mul(%1, %2) 3 f32",
                                                         "%4 mul(%3, 5) 3 f32"]  # fmt: skip


def test_C6_the_same_again_and_chains_are_one_line():
    def program():
        x = torch.ones(3)
        for _ in range(5):
            x = x * 2
        for _ in range(4):
            x.exp()
        rows = torch.ones(6, 2)
        for i in range(6):
            rows[i]

    found = lines(program)
    for op, times in (("mul", 5), ("exp", 4), ("select", 6)):
        (line,) = [line for line in found if f" {op}(" in line]
        assert f"×{times}" in line
