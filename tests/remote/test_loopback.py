"""R1: values that are not tensors of this process: programs give on them what eager gives, in few messages."""

from __future__ import annotations

import copy
import gc
import io
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mindtorch
from mindtorch.engine.remote.client import RemoteExecutor
from mindtorch.engine.remote.loopback import LoopbackExecutor

from ..executors import using

LAZY = "remote_accelerator:0"
Same = Callable[..., None]


def test_R1_a_deep_copy_shares_what_the_original_shares(elsewhere: RemoteExecutor, same_as_eager: Same) -> None:
    def program(device: str) -> object:
        a = torch.arange(4.0, device=device)
        b = copy.deepcopy([a, a[1:3]])
        b[1].fill_(9)
        return a, b

    same_as_eager(program)


def test_R1_an_optimizer_that_cannot_be_recorded_writes_the_values(
    elsewhere: RemoteExecutor, same_as_eager: Same
) -> None:
    def program(device: str) -> object:
        p = torch.zeros(3).to(device).requires_grad_()
        optimizer = torch.optim.SGD([p], lr=0.5, momentum=0.9, fused=True)
        for step in range(3):
            p.grad = torch.full((3,), 1.0 + step).to(device)
            optimizer.step()
        return p, optimizer.state[p]["momentum_buffer"]

    same_as_eager(program)


def test_R1_a_python_function_over_the_elements_writes_the_values(
    elsewhere: RemoteExecutor, same_as_eager: Same
) -> None:
    def program(device: str) -> object:
        a = torch.arange(4.0, device=device)
        view = a.view(2, 2)
        a.apply_(lambda x: x + 1)
        return a, view.sum()

    same_as_eager(program)


def test_R1_tensors_loaded_onto_the_device_share_as_they_did(elsewhere: RemoteExecutor, same_as_eager: Same) -> None:
    def program(device: str) -> object:
        a = torch.arange(3.0)
        file = io.BytesIO()
        torch.save([a, a[1:]], file)
        file.seek(0)
        whole, part = torch.load(file, map_location=device)
        part.fill_(5)
        return whole, part

    same_as_eager(program)


def test_R1_what_is_saved_shares_as_the_values_do(elsewhere: RemoteExecutor, same_as_eager: Same) -> None:
    def program(device: str) -> object:
        a = torch.arange(6.0).to(device)
        file = io.BytesIO()
        torch.save([a, a[2:4], a.view(2, 3).t()], file)
        a.zero_()
        file.seek(0)
        first, view, turned = torch.load(file)
        first[3] = 9
        return first, view, turned, view.untyped_storage().nbytes()

    same_as_eager(program)


def test_R1_storages_tell_whether_they_are_one(elsewhere: RemoteExecutor, same_as_eager: Same) -> None:
    def program(device: str) -> object:
        a = torch.arange(6.0, device=device)
        b = a + 1
        told = [a.untyped_storage().data_ptr() for _ in range(3)]  # each a copy that is gone by the next
        others = [t.untyped_storage().data_ptr() for t in (b, b[2:], torch.empty(0, device=device))]
        same = [told[0] == told[1] == told[2] == a.data_ptr(), a[2:].untyped_storage().data_ptr() == told[0]]
        return torch.tensor([*same, others[0] in told, others[0] == others[1], others[2] == 0])

    same_as_eager(program)


def test_R1_training_equals_eager(elsewhere: RemoteExecutor, same_as_eager: Same) -> None:
    def program(device: str) -> object:
        net = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.ReLU(), torch.nn.Linear(16, 2)
        )
        net.to(device)
        torch.manual_seed(3)  # on the device, only dropout draws from here on
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            x, y = torch.linspace(-1, 1, 32).view(4, 8).to(device), torch.tensor([0, 1, 1, 0]).to(device)
            loss = torch.nn.functional.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        return losses, list(net.parameters())

    same_as_eager(program)


def test_R1_calls_that_depend_on_values_run_where_those_are(elsewhere: RemoteExecutor, same_as_eager: Same) -> None:
    def program(device: str) -> object:
        x = torch.tensor([3.0, 1.0, 3.0, 2.0]).to(device)
        return x.unique(return_counts=True), x.nonzero(), x[x > 1], torch.ones(2, device=device).resize_(3).shape

    before = elsewhere.stats["bytes_down"]
    same_as_eager(program)
    assert elsewhere.stats["bytes_down"] - before < 4000


def test_R1_storages_that_nothing_names_are_freed(loopback: LoopbackExecutor) -> None:
    worker = loopback._send.__self__  # type: ignore[attr-defined]
    loopback.sync()
    before = len(worker._storages)  # what tests before this one still have
    kept = torch.ones(4, device=LAZY) * 2
    for _ in range(10):
        assert (kept + 1).sum().item() == 12.0
    gc.collect()
    loopback.sync()
    assert len(worker._storages) <= before + 1
    assert kept.tolist() == [2.0] * 4


def test_R1_values_go_with_the_tensors_when_the_executor_changes() -> None:
    before = torch.arange(4.0, device=LAZY) + 1
    view = before[1:3]
    assert view.tolist() == [2.0, 3.0]
    with using(LoopbackExecutor()):
        view.mul_(10)
        assert before.tolist() == [1.0, 20.0, 30.0, 4.0]
        there = before * 2
        assert there[0].item() == 2.0
    view.zero_()
    assert before.tolist() == [1.0, 0.0, 0.0, 4.0] and there.tolist() == [2.0, 40.0, 60.0, 8.0]


def test_R1_values_that_die_while_the_executor_changes_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    dying = [torch.ones(2, device=LAZY) * i for i in range(50)]
    staying = torch.ones(3, device=LAZY) * 7
    for t in (*dying, staying):
        t.tolist()
    executor = LoopbackExecutor()
    adopt = executor.adopt

    def adopting(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        made = adopt(tensors)
        dying.clear()
        for _ in range(20):
            torch.ones(1, device=LAZY)  # which take the slots that have become free
        return made

    monkeypatch.setattr(executor, "adopt", adopting)
    with using(executor):
        assert staying.tolist() == [7.0] * 3
    assert (staying + 1).tolist() == [8.0] * 3


def test_R1_a_failure_is_told_with_op_and_line_and_takes_what_depends_on_it(elsewhere: RemoteExecutor) -> None:
    mindtorch.reset_stats()
    x = torch.ones(3, device=LAZY)
    index = torch.tensor([7]).to(LAZY)
    bad = x[index]
    after = bad + 1
    good = x + 1
    for _ in range(2):
        with pytest.raises(mindtorch.MaterializationError, match=r"aten::index.*test_loopback\.py:\d+") as failure:
            after.tolist()
        assert isinstance(failure.value.__cause__, IndexError)
    assert good.tolist() == [2.0, 2.0, 2.0]
    assert mindtorch.stats()["ops_executed"] == 2, "what failed, and what depends on it, has not run"


def test_R1_draws_are_the_devices_and_its_state_can_be_read(elsewhere: RemoteExecutor, same_as_eager: Same) -> None:
    def program(device: str) -> object:
        torch.manual_seed(5)
        first = torch.randn(3, device=device)
        picked = torch.randperm(5, device=device)
        return first, picked, torch.multinomial(torch.ones(4).to(device), 2), torch.rand(2, device=device)

    same_as_eager(program)
    torch.manual_seed(5)
    state = torch.remote_accelerator.get_rng_state()  # type: ignore[attr-defined]
    first = torch.rand(2, device=LAZY).tolist()
    torch.remote_accelerator.set_rng_state(state)  # type: ignore[attr-defined]
    assert torch.rand(2, device=LAZY).tolist() == first


def test_R1_one_message_for_a_step_that_reads_its_loss(elsewhere: RemoteExecutor) -> None:
    net = torch.nn.Linear(4, 2).to(LAZY)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(4):
        before = elsewhere.stats["waits"]
        loss = net(torch.ones(3, 4).to(LAZY)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        assert elsewhere.stats["waits"] - before == 1, step


def test_R1_the_variable_chooses(after_a_step: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    code = """
        import torch, mindtorch
        from mindtorch.engine.execute import values
        print((torch.ones(2, device="remote_accelerator:0") * 3).tolist(), type(values.executor()).__name__)
    """
    for value, name in (("loopback", "LoopbackExecutor"), ("pipe", "PipeExecutor")):
        assert after_a_step(code, GENIE_EXECUTOR=value).stdout.split("]")[1].split() == [name]


def test_R1_values_elsewhere_are_not_said_to_be_in_shared_memory(elsewhere: RemoteExecutor) -> None:
    x = torch.ones(3, device=LAZY) * 2
    assert not x.is_shared()
    for call in (x.share_memory_, torch.nn.Linear(2, 2).to(LAZY).share_memory):
        with pytest.raises(mindtorch.LazyTensorError, match=r"\[share_memory_\] expected values in this process"):
            call()
    assert x.tolist() == [2.0] * 3


def test_R1_a_fork_waits_for_what_another_thread_asks(
    after_a_step: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    code = """
        import os, signal, threading, time, torch, mindtorch
        from mindtorch.engine.execute import values
        x = torch.ones(3, device="remote_accelerator:0") * 2
        executor, asking = values.executor(), threading.Event()
        def ask():
            with executor._lock:
                asking.set()
                time.sleep(0.5)
        thread = threading.Thread(target=ask)
        thread.start()
        asking.wait()
        child = os.fork()
        if not child:
            signal.alarm(20)
            os._exit(0 if x.tolist() == [2.0] * 3 else 1)
        thread.join()
        print(os.waitpid(child, 0)[1])
    """
    assert after_a_step(code, GENIE_EXECUTOR="loopback").stdout == "0\n"


@pytest.mark.parametrize("kind", ["loopback", "pipe"])
def test_L7_threads_that_begin_at_once_upload_and_read(after_a_step: Callable[..., Any], kind: str) -> None:
    code = f"""
        import os, sys, threading, torch
        os.environ["GENIE_EXECUTOR"] = "{kind}"
        import mindtorch
        sys.setswitchinterval(1e-6)
        wrong = []
        def work(k):
            try:
                for n in range(60):
                    x = torch.full((3,), float(k)).to("remote_accelerator:0")
                    y = torch.full((3,), float(n)).to("remote_accelerator:0") + x
                    if n % 3 == k % 3:
                        assert y.tolist() == [n + k] * 3
            except BaseException as error:
                wrong.append(repr(error))
        threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(wrong)
    """
    assert after_a_step(code).stdout == "[]\n"


def test_R1_sparse_results_come_in_parts_that_share_what_they_shared(
    elsewhere: RemoteExecutor, same_as_eager: Callable[..., None]
) -> None:
    def program(device: str) -> object:
        x = torch.tensor([[0.0, 2, 0, 0], [3, 0, 0, 1], [0, 0, 0, 0], [4, 0, 5, 0]]).to(device)
        made = [x.to_sparse(), x.to_sparse_csr(), x.to_sparse_csc(), x.to_sparse_bsr(2), x.to_sparse_bsc(2)]
        indices, values = torch.tensor([[0, 2], [1, 0]]).to(device), torch.ones(2).to(device)
        shares = torch.sparse_coo_tensor(indices, values, (3, 3))
        values.mul_(7)
        return [t.to_dense() for t in (*made, shares)], [t.values() for t in made[1:]], made[0].coalesce().indices()

    same_as_eager(program)


def test_R1_arguments_of_every_kind_arrive(elsewhere: RemoteExecutor, same_as_eager: Same) -> None:
    def program(device: str) -> object:
        x, order = torch.tensor([3.0, 1.0, 2.0], device=device), torch.tensor([1, 2, 0], device=device)
        edges, found = torch.tensor([0.5, 2.0], device=device), []
        for turn in range(3):  # the second time only the numbers go there
            factor = complex(1, 2 + turn)
            found += [x * factor + turn, torch.pow(factor, x), torch.where(x > turn, factor, x)]
            found += [torch.searchsorted(x, edges + turn, side="right", sorter=order), x.div(2, rounding_mode="floor")]
        return found

    same_as_eager(program)


def test_R1_a_segment_of_a_known_form_is_no_new_plan() -> None:
    with using(LoopbackExecutor()) as executor:
        for k, plans in ((2, 1), (3, 1), (2, 1)):
            assert (torch.ones(k, device=LAZY) + 1).sum().item() == 2 * k
            assert executor.stats["plans"] == plans
        assert (torch.ones(2, device=LAZY) - 1).mean().item() == 0 and executor.stats["plans"] == 2


def test_R1_a_call_that_runs_here_holds_no_tensor_when_it_is_over() -> None:
    """It held copies of what it was given until garbage was collected."""

    def step() -> float:
        indices = torch.arange(1, 38)[None].to(LAZY)
        return torch.sparse_coo_tensor(indices, x, (40,)).to_dense().sum().item()

    def held() -> int:
        return sum(isinstance(each, torch.Tensor) and each.shape[-1:] == (37,) for each in gc.get_objects())

    with using(LoopbackExecutor()):
        x = torch.rand(37).to(LAZY)
        step()
        gc.collect()
        gc.disable()
        try:
            before = held()
            for _ in range(5):
                step()
            assert held() == before
        finally:
            gc.enable()
