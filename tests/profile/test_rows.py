"""C2: the sums of a profile's rows are exact, those that do not fit 64 bits as well."""

from __future__ import annotations

import numpy as np
import pytest

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
