"""C2: what storages hold: each once, from its birth to its death, and what the most was made of."""

from __future__ import annotations

import pytest
import torch

from mindtorch._ext.balance import Balance
from mindtorch.profile import Profiler


def held(balance: Balance) -> list[int]:
    found, _ = balance.at_peak()
    return sorted(block.nbytes for block in found)


@pytest.fixture
def balance() -> Balance:
    return Balance(torch.Tensor)


def test_C2_a_storage_is_counted_once_and_while_it_lives(balance: Balance) -> None:
    a = torch.zeros(100)
    for t in (a, a[10:], a.view(10, 10), a.detach()):
        balance.hold_tensor(t)
    assert (balance.live_bytes, balance.peak, balance.births) == (400, 400, 1)
    view = a[5:]
    del a, t
    assert balance.live_bytes == 400, "a view has it still"
    del view
    assert (balance.live_bytes, balance.peak, balance.births) == (0, 400, 1)


def test_C2_the_peak_is_what_lived_then_dead_since_or_not(balance: Balance) -> None:
    a, b, c = torch.zeros(10), torch.zeros(20), torch.zeros(30)
    for t in (a, b, c):
        balance.hold_tensor(t)
    assert (balance.peak, balance.born_by_peak, held(balance)) == (240, 3, [40, 80, 120])
    del t, c
    assert balance.live_bytes == 120 and held(balance) == [40, 80, 120]
    d = torch.zeros(30)  # as much as there was: no new peak
    balance.hold_tensor(d)
    assert (balance.peak, balance.born_by_peak, balance.births, held(balance)) == (240, 3, 4, [40, 80, 120])
    e = torch.zeros(1, dtype=torch.int8)
    balance.hold_tensor(e)
    assert (balance.peak, balance.born_by_peak, held(balance)) == (241, 5, [1, 40, 80, 120])
    del a, b, d, e
    assert balance.live_bytes == 0 and balance.peak == 241 and held(balance) == [1, 40, 80, 120]


def test_C2_marks_and_what_backward_finds(balance: Balance) -> None:
    a, b = torch.zeros(10), torch.zeros(20)
    balance.hold_tensor(a)
    balance.hold_tensor(b)
    c = torch.zeros(5)
    balance.mark(b[1:], 7)
    balance.mark(c, 3)  # which is none of those
    del a
    late = torch.zeros(3)
    balance.hold_tensor(late)
    balance.backward_begins()
    found, made_by = balance.at_peak()
    assert sorted((block.nbytes, block.mark, block.found) for block in found) == [(40, 0, False), (80, 7, True)]
    assert made_by == (0, 0, 0, 0) and {block.outlived for block in found} == {1}
    assert c.nbytes == 20


def test_C2_sparse_tensors_are_the_dense_ones_that_they_are_made_of(balance: Balance) -> None:
    t = torch.sparse_coo_tensor([[0, 1, 2]], [1.0, 2.0, 3.0], (10,), check_invariants=True)
    balance.hold_tensor(t)
    assert balance.live_bytes == 0, "it is not said what they are"
    balance.parts_of = lambda t: (t._indices(), t._values())
    balance.hold_tensor(t)
    assert balance.live_bytes == 3 * 8 + 3 * 4 and balance.births == 2
    balance.mark(t, 4)
    assert [block.mark for block in balance.at_peak()[0]] == [4, 4]
    del t
    assert balance.live_bytes == 0


def test_C2_memory_of_tensors_without_data_is_none(balance: Balance) -> None:
    balance.hold_tensor(torch.zeros(10, device="meta"))
    balance.hold_tensor(torch.zeros(10, device="remote_accelerator:0"))  # it is not computed yet
    assert (balance.live_bytes, balance.births) == (0, 0)


class OnCard:
    """What is asked of a tensor on a GPU."""

    is_meta, is_cuda = False, True

    def __init__(self, nbytes: int) -> None:
        self.storage = torch.zeros(nbytes, dtype=torch.int8).untyped_storage()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.storage


def test_C2_from_the_first_tensor_on_a_card_its_memory_is_counted_alone_in_steps_of_512(balance: Balance) -> None:
    host = torch.zeros(1000)
    balance.hold_tensor(host)
    assert (balance.device, balance.peak) == ("cpu", 4000)
    cards = [OnCard(nbytes) for nbytes in (512, 0, 513, 1)]
    balance.hold_tensor(cards[0])
    assert (balance.device, balance.live_bytes, balance.peak) == ("cuda", 512, 512), "what the host holds is no part"
    del host
    assert balance.live_bytes == 512
    for card in cards[1:]:
        balance.hold_tensor(card)
    beside = torch.zeros(1000)
    balance.hold_tensor(beside)
    assert (balance.live_bytes, balance.peak, held(balance)) == (2048, 2048, [0, 512, 512, 1024])
    del beside, card, cards[2]
    assert balance.live_bytes == 1024 and held(balance) == [0, 512, 512, 1024]


def test_C2_the_bytes_of_an_op_are_those_of_all_its_results() -> None:
    x = torch.ones(10)
    with Profiler(whole=True) as seen:
        parts = torch.split_copy(x, 4), torch.var_mean(x)
        names = {sig: op.name for sig, op in enumerate(seen.collector.sig_ops) if op is not None}
        made = {names[row[0]]: row[6] for row in seen.collector.take_rows() if row[0]}
    assert made == {"aten::split_copy": 40, "aten::var_mean": 8} and len(parts[0]) == 3


def test_C2_the_peaks_are_those_from_the_first_tensor_on_a_card_on() -> None:
    card = OnCard(100)
    with Profiler() as seen:
        made = torch.ones(1000)
        balance = seen.collector.balance
        assert max(balance.module_peaks().values()) == balance.phase_peak(0) == 4000
        balance.hold_tensor(card)
        assert balance.module_peaks() == {} and balance.phase_peak(0) == 0
    assert made.nbytes == 4000
