"""C2: what a profile must not change, and not count, because it is watching."""

import functools
import threading
import warnings

import pytest
import torch
from torch.utils.data import DataLoader

from mindtorch.engine import semantics
from mindtorch.profile import Profiler


def op(report, name):
    return next(row for row in report["ops"] if row["name"] == name)


def test_C2_what_torch_notes_for_itself_is_no_op_of_a_thread(record):
    def program():
        net = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(net.parameters())
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()  # torch gives it a label

    report, profiler = record(program)
    ops = sum(row["ops"] for row in report["threads"])
    assert ops == report["totals"]["ops"]
    assert ops + report["startup"]["ops"] < profiler.collector.n_ops


def hooked():
    """Which warns at a line of the program's: no input needs a gradient."""
    net = torch.nn.Linear(2, 2)
    net.register_full_backward_hook(lambda *args: None)
    net(torch.ones(1, 2)).sum().backward()


def pinned(workers):
    """Which warns at a line of torch's: there is no accelerator."""
    list(DataLoader(torch.ones(2, 2), pin_memory=True, num_workers=workers))


@pytest.mark.parametrize(
    ("program", "file"),
    [(hooked, __file__), *((functools.partial(pinned, n), torch.utils.data.dataloader.__file__) for n in (0, 1))],
    ids=["hook", "loader", "loader with workers"],
)
def test_C2_warnings_name_the_lines_that_they_name_without_a_profile(program, file):
    """Torch finds them by counting the frames of functions in Python: no function of ours is among them."""

    def told():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            program()
        return [(str(each.message), each.filename, each.lineno) for each in caught]

    with Profiler():
        profiled = told()
    plain = told()
    assert profiled == plain
    # Python 3.12 and newer warn where the tests' process has threads that it forks from.
    assert [each[1] for each in profiled if "use of fork()" not in each[0]] == [file]


def test_C2_what_threads_did_is_that_of_the_reported_iterations():
    gate = threading.Barrier(2, timeout=60)

    def program():
        net, x = torch.nn.Linear(2, 2), torch.ones(1, 2)

        def work():
            torch.ones(1)
            gate.wait()
            gate.wait()
            torch.ones(1) + 1

        def loads():
            torch.ones(1).exp()

        threads = [threading.Thread(target=target, name=target.__name__) for target in (loads, work)]
        for thread in threads:
            thread.start()
        threads[0].join()
        gate.wait()
        torch.ones(5).sum()
        with torch.no_grad():
            for _ in range(3):
                net(x)
        gate.wait()
        threads[1].join()

    with Profiler() as seen:
        program()
    report = seen.report()
    threads = {row["name"]: (row["count"], row["ops"]) for row in report["threads"]}
    assert threads["work"] == (1, 2) and "loads" not in threads
    assert sum(ops for _, ops in threads.values()) == report["totals"]["ops"]


def test_C2_a_handle_that_autograd_copies_is_no_op(record):
    def program():
        x = torch.ones(3, requires_grad=True)
        x.sigmoid().exp().sum().backward()  # both results are saved
        x.data.add_(1)
        x.detach().mul_(2)

    report, _ = record(program)
    with torch.profiler.profile() as plain:
        program()
    expected = sum(row.count for row in plain.key_averages() if row.key == "aten::detach")
    assert op(report, "aten::detach")["calls"] == expected == 2  # the gradient's and the program's own


def test_S5_shapes_that_cost_the_same_take_no_memory_each(record):
    sizes = [(2**a, 2**b, 2 ** (12 - a - b)) for a in range(13) for b in range(13 - a)]

    def program():
        for size in sizes:
            torch.zeros(size).add_(1)

    report, profiler = record(program)
    assert op(report, "aten::add_")["calls"] == len(sizes) == 91
    assert op(report, "aten::add_")["flops"] == 91 * 2**12
    assert sum(entry is not None and entry.name == "aten::add_" for entry in profiler.collector.sig_ops) == 2


def test_C2_whether_a_program_went_backward_is_known() -> None:
    """What a forward pass made is a temporary where it did not, and then a stage is no backward pass."""
    model, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
    with Profiler() as seen:
        with semantics.stage("decode"):
            loss = model(x).sum()
        assert not seen.collector.backward
        loss.backward()
        assert seen.collector.backward


def test_C2_iterators_that_a_library_makes_from_torchs_are_counted():
    class Own(type(iter(DataLoader(torch.ones(2)))).__base__):
        def __init__(self, loader):
            super().__init__(loader)
            self._left = [torch.ones(1)]

        def _next_data(self):
            if not self._left:
                raise StopIteration
            return self._left.pop()

    with Profiler() as profiler:
        assert len(list(Own(DataLoader(torch.ones(2))))) == 1 and len(list(DataLoader(torch.ones(2)))) == 2
    loaded = profiler.recording().loaded
    assert (loaded.iterators, loaded.started) == (2, 0)
