"""C2: the sums of a profile's rows are exact, those that do not fit 64 bits as well."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mindtorch._ext import timeline
from mindtorch._ext.collect import now_ns
from mindtorch.profile import Profiler
from mindtorch.profile.report.rows import CALLS, NS, SIG, Row, as_table, exact, grouped, summed


@pytest.mark.parametrize("each", [7, 1 << 60, 1 << 61, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 80])
def test_C2_sums_are_exact_however_large(each: int) -> None:
    rows = [Row(sig, 0, 0, 0, calls=2, ns=each, nbytes=each + sig) for sig in (5, 3, 5, 5, 3, 5, 5, 5)]
    table = as_table(rows)
    assert grouped(table, SIG) == [
        (5, 0, 0, 0, 12, 6 * each, 6 * (each + 5)),
        (3, 0, 0, 0, 4, 2 * each, 2 * (each + 3)),
    ]
    assert summed(table[:, SIG], table[:, NS]) == {5: 6 * each, 3: 2 * each}


@pytest.mark.parametrize("flops", [3, 1 << 31, 1 << 40, 1 << 61, 1 << 70])
def test_C2_products_with_calls_are_exact_however_large(flops: int) -> None:
    table = as_table([Row(0, 0, 0, 0, calls=1 << 30, ns=1, nbytes=1) for _ in range(4)])
    costs = exact([flops, -flops], table[:, CALLS])
    sums = summed(np.array([1, 2, 1, 2]), table[:, CALLS] * costs[[0, 1, 0, 1]])
    assert sums == {1: (2 << 30) * flops, 2: -(2 << 30) * flops}


def test_C2_numbers_that_fit_stay_numbers_of_64_bits() -> None:
    table = as_table([Row(1, 2, 3, 4, 5, 6, 7)])
    assert table.dtype == exact([1 << 20], table[:, CALLS]).dtype == np.int64


def test_C2_a_table_grows_and_each_row_keeps_its_sums() -> None:
    model = torch.nn.Sequential(*(torch.nn.ReLU() for _ in range(1500)))
    with Profiler() as seen:
        for _ in range(3):
            model(torch.ones(2))
        names = {sig: op.name for sig, op in enumerate(seen.collector.sig_ops) if op is not None}
        rows = [row for row in seen.collector.take_rows() if names.get(row[0]) == "aten::relu"]
        assert seen.collector.take_rows() == []
    assert len({row[1] for row in rows}) == len(rows) == 1500, "one for each module"
    assert {(row[4], row[6]) for row in rows} == {(3, 3 * 8)}


def test_C2_stretches_are_what_the_rows_are_sums_of_up_to_the_moment_that_is_asked_for() -> None:
    x = torch.ones(2)
    with Profiler() as seen:
        collector = seen.collector
        x.relu()  # with the first op the start-up ends, which has rows of its own
        collector.up_to(now_ns())
        collector.take_rows()
        collector.spans.keep(1 << 16, None)
        for _ in range(3000):
            x.relu()
        collector.up_to(at := now_ns())
        rows, (found, dropped) = collector.take_rows(), collector.spans.take()
    spans = np.frombuffer(found, np.dtype(timeline.SPAN))
    assert len(spans) > 4096 and dropped == 0
    assert collector.spans.n == 0
    sums: dict[tuple[int, ...], int] = {}
    for span in spans:
        key = tuple(int(span[name]) for name in ("sig", "module", "location", "phase"))
        sums[key] = sums.get(key, 0) + int(span["ns"])
    for sig, module, location, phase, _calls, ns, _nbytes in rows:
        sums[sig, module, location, phase] -= ns
    assert sums and not any(sums.values())
    assert (spans["start"][1:] >= (spans["start"] + spans["ns"])[:-1]).all() and set(spans["thread"]) == {0}
    assert spans["start"][-1] + spans["ns"][-1] == at


def test_C2_of_stretches_so_many_are_kept_and_the_others_counted() -> None:
    x, full = torch.ones(2), []
    with Profiler() as seen:
        spans = seen.collector.spans
        spans.keep(100, lambda: full.append(spans.n))
        for _ in range(100):
            x.relu()
        found, dropped = spans.take()
        assert len(found) == 100 * np.dtype(timeline.SPAN).itemsize and dropped >= 100
        assert 75 < full[0] < 80, "more than three quarters"
        assert spans.take() == (b"", 0)
        spans.keep(0, None)
        x.relu()
        assert spans.take() == (b"", 0)


def test_C2_time_of_a_row_may_be_given_to_another() -> None:
    x = torch.ones(2)
    with Profiler() as seen:
        collector = seen.collector
        x.relu()
        collector.take_rows()
        collector.spans.keep(100, None)
        x.relu()
        spans = np.frombuffer(collector.spans.take()[0], np.dtype(timeline.SPAN))
        span = max(spans, key=lambda span: span["sig"])
        row = tuple(int(span[name]) for name in ("sig", "module", "location", "phase"))
        ns, other, third = int(span["ns"]), (0, 0, 0, 3), (0, 0, 0, 4)
        move = collector.table.move
        assert not move(row, other, ns + 1), "it has not so much"
        assert not move(third, other, 0) and not move(third, other, 1), "it is not there"
        assert move(row, other, ns - 1) and move(row, other, 1)
        rows = {row[:4]: row[4:] for row in collector.take_rows()}
    assert rows[row] == (1, 0, 8) and rows[other] == (1, ns, 0) and third not in rows
