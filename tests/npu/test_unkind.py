"""What devices do that a kind library does not: each test turns it on in a process of its own (SPEC N7)."""

from __future__ import annotations


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
