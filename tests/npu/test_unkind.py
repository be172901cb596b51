"""What devices do that a kind library does not: each test turns it on in a process of its own (SPEC N7)."""

from __future__ import annotations

import re
from pathlib import Path

import acl_library

from mindtorch.npu import kernels, operators


def test_N2_what_operators_write_behind_their_operands_is_nobodys(in_npu_process):
    """A tensor's last bytes are followed by ALIGN_UP(size, 32) + 32 - size that operators may touch."""
    said = in_npu_process(
        """
        sys.argv = ["program"]
        import torch, mindtorch
        for size in (1, 120, 127, 128, 136, 1000, (1 << 18) - 8, 1 << 18, (2 << 20) // 4 * 5 - 8, (2 << 20) // 4 * 5):
            held = [torch.full((size,), float(i)).npu() for i in range(4)]
            total = held[1] + held[2]
            held[2].mul_(2)
            values = [sorted(set(each.cpu().tolist())) for each in [*held, total]]
            assert values == [[0], [1], [4], [3], [3]], (size, [each[:3] for each in values])
        print(mindtorch.stats()["npu_native"]["aten::add"])
        """,
        GENIE_TEST_NPU_SCRIBBLE="1",
    )
    assert said == "10\n"


def test_N5_operators_of_several_libraries_are_found(in_npu_process, tmp_path):
    library = acl_library.build_split(tmp_path)
    code = """
        sys.argv = ["program"]
        import torch, mindtorch
        x = torch.ones(2, 2).npu()
        assert torch.equal(((x + x) @ x).cpu(), torch.full((2, 2), 4.0))
        print(*(mindtorch.stats()["npu_native"].get(name) for name in ("aten::add", "aten::mm")))
    """
    assert in_npu_process(code, path=library) == "1 1\n"
    (tmp_path / "libopapi_math.so").rename(tmp_path / "libopapi.so")  # as it was called before
    assert in_npu_process(code, path=library) == "1 1\n"
    (tmp_path / "libopapi_nn.so").unlink()
    assert in_npu_process(code, path=library) == "1 None\n"


def test_N5_the_operators_that_are_told_of_are_those_that_kernels_call():
    called = set(re.findall(r'"([A-Z]\w+)"', Path(kernels.__file__).read_text())) - set(kernels.__all__)
    made = {name for kind in acl_library.KINDS.values() for name in kind}
    assert set(operators.OPERATORS) == made == {*called, *(f"{each}s" for each in ("Add", "Sub", "Mul", "Div"))}
