"""N4: ``copy_`` between the host and an NPU in other dtypes and layouts: the CPU's values, and nobody waits in vain."""

from __future__ import annotations

import itertools
import threading
from types import ModuleType
from typing import Any

import pytest
import torch

DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int32, torch.int64, torch.uint8,
    torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip
SOURCES = {
    "alike": lambda t: t,
    "transposed": lambda t: t.t().contiguous().t(),
    "expanded": lambda t: t[:1].expand(3, 4),
    "strided": lambda t: torch.cat([t, t], 1)[:, ::2],
}
TARGETS = {
    "alike": lambda d, where: torch.zeros(3, 4, dtype=d).to(where),
    "transposed": lambda d, where: torch.zeros(4, 3, dtype=d).to(where).t(),
    "strided": lambda d, where: torch.zeros(3, 8, dtype=d).to(where)[:, 1::2],
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("non_blocking", [False, True])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.filterwarnings("ignore:Casting complex")
def test_N4_converting_copies_give_the_cpus_values(
    npu: ModuleType, library: Any, source: str, target: str, non_blocking: bool
) -> None:
    base = torch.tensor([[1.5, -2.25, 100.0, 0.0], [7.0, -128.0, 2.0, 90.0], [0.5, 3.0, -1.0, 65.0]])
    for one, other in itertools.product(DTYPES, DTYPES):
        given, expected = SOURCES[source](base.to(one)), TARGETS[target](other, "cpu")
        expected.copy_(given)
        there, back = TARGETS[target](other, "npu"), TARGETS[target](other, "cpu")
        there.copy_(given, non_blocking=non_blocking)
        assert torch.equal(there.cpu(), expected), (one, other)
        if target == "strided":
            assert not torch.any(there._base.cpu()[:, ::2]), "what lies between stays"
        back.copy_(SOURCES[source](base.to(one).to("npu")), non_blocking=non_blocking)
        npu.synchronize()
        assert torch.equal(back, expected), (one, other)


@pytest.mark.parametrize(
    "dtypes", [(torch.int32, torch.float32), (torch.float16, torch.float32), (torch.complex128, torch.complex64)]
)
@pytest.mark.parametrize("outwards", [False, True])
def test_N4_converting_copies_wait_for_no_stream(npu: ModuleType, library: Any, dtypes: Any, outwards: bool) -> None:
    """The stream is held all the while: a copy that waited for it would be let go by the timer, and be over."""
    one, other = (torch.arange(8).to(dtypes[0]), torch.zeros(8, dtype=dtypes[1]))
    source, target = (one.npu(), npu.pin_memory(other)) if outwards else (npu.pin_memory(one), other.npu())
    target.copy_(source)  # what is worked out once
    npu.synchronize()
    target.zero_()
    stream, before = npu.Stream(), torch.ones(2).npu()
    npu.synchronize()
    library.hold(stream.npu_stream)
    late = threading.Timer(60, library.release)
    late.start()
    with npu.stream(stream):
        before.add_(1)
        target.copy_(source, non_blocking=True)
        assert not stream.query()
    late.cancel()
    library.release()
    stream.synchronize()
    assert target.tolist() == list(range(8))
