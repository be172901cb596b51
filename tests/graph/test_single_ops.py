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


def test_C6_copies_of_parameters_are_one_line_whatever_their_sizes():
    """An average of a model's weights begins with a copy of each: hundreds of lines, and boxes side by side."""
    net = torch.nn.Sequential(*(torch.nn.Linear(n, n + 1) for n in range(3, 8)))

    def program():
        net(torch.ones(3))
        copies = [p.detach().clone() for p in net.parameters()]
        scaled = [p * 2 for p in net[:2].parameters()] + [p * 3 for p in net[2:].parameters()]
        return [(copy, each.sum().item()) for copy, each in zip(copies, scaled, strict=True)]

    found = lines(program)
    (line,) = [line for line in found if " clone(" in line]
    assert line.endswith("×10 sizes differ")
    assert [line.split("(")[1].split(")")[0].split(", ")[1] for line in found if " mul(" in line] == ["2", "3"]
    assert [line.rpartition(" ×")[2].split()[0] for line in found if " mul(" in line] == ["4", "6"]
