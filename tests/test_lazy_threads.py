"""Threads that meet the device, or anything of it, for the first time at once (SPEC L7).

Python changes threads after any line of Python code here, so that whatever such code may come in between does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

AT_ONCE = """
import copy, sys, threading, torch, mindtorch

def at_once(work, threads=6):
    sys.setswitchinterval(1e-6)
    wrong, barrier = [], threading.Barrier(threads)
    def one(k):
        barrier.wait()
        try:
            work(k)
        except BaseException as error:
            wrong.append(repr(error))
    begun = [threading.Thread(target=one, args=(k,)) for k in range(threads)]
    for thread in begun:
        thread.start()
    for thread in begun:
        thread.join()
    print(wrong)
"""

#: What gives the same in any thread, and the value.
FIRST = {
    "str(torch.device('remote_accelerator:0'))": "'remote_accelerator:0'",
    "torch.device('remote_accelerator', 0).index": "0",
    "torch.ones(3, device='remote_accelerator:0').tolist()": "[1, 1, 1]",
    "torch.ones(3).to('remote_accelerator').add(1).tolist()": "[2, 2, 2]",
    "torch.remote_accelerator.current_device()": "0",
    "mindtorch.ones(3, device='remote_accelerator').tolist()": "[1, 1, 1]",
    "repr(torch.ones(1, device='remote_accelerator'))": "\"tensor([1.], device='remote_accelerator:0')\"",
    "torch.nn.Linear(2, 1, bias=False, device='remote_accelerator').weight.detach().fill_(3).tolist()": "[[3, 3]]",
    "copy.deepcopy(torch.nn.ReLU().to('remote_accelerator'))(torch.ones(2, device='remote_accelerator')).tolist()":
        "[1, 1]",
    "torch.func.vmap(lambda x: x * 2)(torch.ones(2, device='remote_accelerator')).tolist()": "[2, 2]",
    "torch.fft.fft(torch.ones(2, device='remote_accelerator')).abs().tolist()": "[2, 0]",
    "torch.linalg.inv(torch.eye(2, device='remote_accelerator')).tolist()": "[[1, 0], [0, 1]]",
    "torch.ones(3, device='remote_accelerator').numpy(force=True).tolist()": "[1, 1, 1]",
    "torch.quantize_per_tensor(torch.ones(1, device='remote_accelerator'), 1, 0, torch.quint8).dequantize().tolist()":
        "[1]",
    "mindtorch.profile(lambda: torch.ones(3) + 1) is not None": "True",
}  # fmt: skip


@pytest.mark.parametrize("code", FIRST)
def test_L7_threads_that_begin_at_once_find_what_they_ask_for(after_torch: Callable[..., Any], code: str) -> None:
    work = f"""
def work(k):
    for _ in range(4):
        assert (found := {code}) == {FIRST[code]}, found
at_once(work)
"""
    assert after_torch(AT_ONCE + work).stdout == "[]\n"


def test_L7_calls_that_are_new_in_several_threads_are_each_what_they_are(after_torch: Callable[..., Any]) -> None:
    # While a call was turned into a key, the question whether ``device=`` is ours ran Python code: another thread's
    # call was written into the same key, and both were taken for the other one from then on.
    work = """
def work(k):
    for n in range(1, 60):
        x = torch.full((2, 1000 * k + n), 1.0, device="remote_accelerator")
        total = ((x + x).relu() + n).sum()
        if n % 3 == 0:
            assert total.item() == 2 * (1000 * k + n) * (2 + n), (k, n)
at_once(work)
"""
    assert after_torch(AT_ONCE + work).stdout == "[]\n"


def test_L7_names_of_torch_are_read_while_another_thread_imports_into_it(after_torch: Callable[..., Any]) -> None:
    work = """
ends = False
def work(k):
    global ends
    while k and not ends:
        torch.something_new = 1
        del torch.something_new
    if k == 0:
        try:
            import mindtorch.engine.remote.wire
        finally:
            ends = True
at_once(work, 2)
"""
    assert after_torch(AT_ONCE + work).stdout == "[]\n"
