"""C4: operators of a program's own, whatever they are called, and costs that a rule does not know."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mindtorch import ops
from mindtorch.profile.cost.work import work
from mindtorch.profile.estimate.estimator import Estimator

NAMES = ("embedding", "linear", "mm", "convolution", "index_put", "scaled_dot_product_attention", "embedding_bag")


@pytest.fixture(scope="module")
def library() -> object:
    made = torch.library.Library("genietest", "DEF")
    for name in NAMES:
        made.define(f"{name}(Tensor x, Tensor y) -> Tensor")
        for key in ("CPU", "Meta"):
            made.impl(name, lambda x, y: torch.empty_like(x), key)
    return made


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_C4_custom_operators_may_be_called_like_torchs(library: object, name: str, dtype: torch.dtype) -> None:
    with Estimator() as estimator:
        x = torch.ones(4, 4, dtype=dtype)
        getattr(torch.ops.genietest, name)(x, x)
    [row] = [row for row in estimator.report()["ops"] if row["name"].startswith("genietest")]
    assert row["name"] == f"genietest::{name}" and row["calls"] == 1


@pytest.mark.parametrize("call", [lambda i, t: F.embedding(i, t), lambda i, t: torch.ops.aten.embedding(t, i)])
def test_C4_tables_of_integers_can_be_looked_up(call: object) -> None:
    with Estimator() as estimator:
        call(torch.zeros(3, dtype=torch.int64), torch.ones(5, 2, dtype=torch.int64))  # type: ignore[operator]
    assert {"aten::embedding"} <= {row["name"] for row in estimator.report()["ops"]}


def test_C4_no_rule_of_cost_can_lose_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def stumbles(*args: object) -> int:
        raise StopIteration

    row = ops.row("aten::mm")
    assert row is not None
    broken = row._replace(flops=stumbles, bytes=stumbles, product=stumbles)
    monkeypatch.setitem(ops.table._BY_NAME, "aten::mm", broken)
    x = torch.ones(4, 4)
    done = work(torch.ops.aten.mm.default, (x, x), {}, x)
    assert done.flops is None and done.product is None and done.bytes_read == 2 * x.nbytes
