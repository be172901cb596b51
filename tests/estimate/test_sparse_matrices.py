"""C10: sparse matrices of what the host knows are there in an estimate, on their device, as dear as their numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from mindtorch.base.errors import UnsupportedOperationError
from mindtorch.cli.main import cli
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.estimating import estimating
from mindtorch.profile.estimate.estimator import Estimator

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning")]
LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc]
EDGES = numpy.array([[0, 0, 1, 2, 3, 3], [0, 2, 1, 3, 0, 3]])


@pytest.fixture
def session() -> Iterator[None]:
    with estimating(Accelerator("Test GPU", 80 * 10**9)):
        yield


def graph(device: str = "cuda", size: int = 4) -> Any:
    return torch.sparse_coo_tensor(torch.from_numpy(EDGES), torch.ones(6), (size, size)).to(device)


#: Each gives a sparse 4 x 4 matrix of six numbers on ``cuda``.
MADE = [
    lambda: graph(),
    lambda: graph("cpu").cuda(),
    lambda: torch.sparse_coo_tensor(EDGES, numpy.ones(6, "f4"), (4, 4), device="cuda"),
    lambda: torch.sparse_coo_tensor(EDGES.tolist(), [1.0] * 6, device="cuda"),
    lambda: torch.sparse_coo_tensor(torch.from_numpy(EDGES).cuda(), torch.ones(6).cuda(), torch.Size((4, 4))),
    lambda: torch.sparse_coo_tensor(torch.from_numpy(EDGES), torch.randn(6, device="cuda"), (4, 4), device="cuda"),
    lambda: torch.sparse_coo_tensor(indices=torch.from_numpy(EDGES), values=torch.randn(6), size=(4, 4)).to("cuda"),
    lambda: torch.sparse.FloatTensor(torch.from_numpy(EDGES), torch.randn(6), torch.Size((4, 4))).cuda(0),
    lambda: torch.sparse_csr_tensor([0, 2, 3, 4, 6], EDGES[1].tolist(), [1.0] * 6, (4, 4)).cuda(),
    lambda: torch.sparse_csr_tensor(torch.tensor([0, 2, 3, 4, 6]).cuda(), torch.from_numpy(EDGES[1]).cuda(),
                                    torch.randn(6, device="cuda"), (4, 4)),
    lambda: graph().coalesce(),
    lambda: graph().t().t(),
    lambda: graph() * 2,
    lambda: graph().to(torch.float64).float(),
    lambda: graph().to_sparse_csr(),
    lambda: graph().to_dense().to_sparse(),
    lambda: torch.sparse_coo_tensor(torch.randn(2, 6, device="cuda").long(), torch.ones(6, device="cuda"), (4, 4)),
]  # fmt: skip


@pytest.mark.parametrize("make", MADE)
def test_C10_what_is_made_of_known_indices_is_a_sparse_matrix(session: None, make: Any) -> None:
    a, x = make(), torch.randn(4, 3, device="cuda", requires_grad=True)
    assert a.layout in LAYOUTS and a.is_cuda and str(a.device) == "cuda:0" and a.shape == (4, 4) and a._nnz() == 6
    for out in (a @ x, torch.sparse.mm(a, x), torch.addmm(torch.zeros(4, 3, device="cuda"), a, x)):
        assert out.shape == (4, 3) and str(out.device) == "cuda:0" and out.requires_grad
    (a @ x).sum().backward()
    assert x.grad is not None and x.grad.shape == (4, 3) and x.grad.is_cuda
    dense = a.to_dense()
    assert dense.shape == (4, 4) and dense.is_cuda and (dense + x.detach()[:, :1]).is_cuda
    assert (a @ x[:, 0]).shape == (4,)


@torch.no_grad()
def test_C10_a_product_of_dense_matrices_where_a_sparse_one_has_numbers(session: None) -> None:
    a = graph().to_sparse_csr()
    x, y = torch.randn(4, 5, device="cuda"), torch.randn(5, 4, device="cuda")
    found = torch.sparse.sampled_addmm(a, x, y, beta=0.5)
    assert found.layout is torch.sparse_csr and str(found.device) == "cuda:0" and found.shape == (4, 4)
    assert found._nnz() == 6 and (found @ x).shape == (4, 5)
    with pytest.raises(RuntimeError, match="at least two devices"):
        torch.sparse.sampled_addmm(a, x, y.cpu())
    with torch.enable_grad(), pytest.raises(UnsupportedOperationError, match="does not compute gradients of sparse"):
        torch.sparse.sampled_addmm(a, x.requires_grad_(), y)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("like", [torch.zeros_like, torch.empty_like])
def test_C10_what_is_made_like_a_sparse_matrix(session: None, layout: torch.layout, like: Any) -> None:
    """ "Sparse CSR tensors do not have strides" was told as the accelerator's."""
    a = graph().to_sparse(layout=layout)
    found = like(a)
    assert found.layout is layout and str(found.device) == "cuda:0" and found.shape == (4, 4)


REFUSED = [
    (lambda a: a @ torch.randn(4, 3), "at least two devices, cuda:0 and cpu"),
    (lambda a: torch.sparse.mm(a, torch.randn(4, 3)), "at least two devices"),
    (lambda a: torch.mm(a.cpu(), torch.randn(4, 3, device="cuda")), "at least two devices, cpu and cuda:0"),
    (lambda a: torch.spmm(a.to_sparse_csr(), torch.randn(4, 3)), "at least two devices"),
    (lambda a: torch.addmm(torch.zeros(4, 3, device="cuda"), a, torch.randn(4, 3)), "at least two devices"),
    (lambda a: a + graph("cpu"), "at least two devices"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED)
def test_C10_a_sparse_matrix_and_another_device_are_refused(session: None, call: Any, words: str) -> None:
    with pytest.raises(RuntimeError, match=words):
        call(graph())


def test_C10_parts_are_known_and_are_where_the_matrix_is(session: None) -> None:
    a = graph().coalesce()
    assert a.indices().tolist() == EDGES.tolist() and str(a.indices().device) == "cuda:0"
    assert a.values().shape == (6,) and a.values().is_cuda and "MetaTensor" not in repr(a)
    assert torch.sparse.sum(a, 1).to_dense().shape == (4,)


def test_C10_what_would_need_values_is_said(session: None) -> None:
    with pytest.raises(UnsupportedOperationError, match="does not compute gradients of sparse tensors"):
        torch.sparse_coo_tensor(EDGES, torch.randn(6, requires_grad=True), (4, 4))
    with pytest.raises(UnsupportedOperationError, match="cannot know the tensor's size"):
        torch.sparse_coo_tensor(torch.randn(2, 6).long(), torch.ones(6))


def test_C10_a_graph_of_a_million_nodes_takes_what_its_edges_take() -> None:
    with Estimator(target=accelerator()) as estimator:
        edges = torch.randint(10**6, (2, 2**20), device="cuda")
        a = torch.sparse_coo_tensor(edges, torch.ones(2**20, device="cuda"), (10**6, 10**6))
        x = torch.randn(10**6, 16, device="cuda")
        assert (a @ x).shape == x.shape
    report = estimator.report(command="", exit_code=0, interrupted=False)
    [product] = [row for row in report["ops"] if row["name"] == "aten::mm"]
    assert product["flops"] == 2 * 2**20 * 16
    assert 0 < report["totals"]["peak_bytes"] < 2**30


def accelerator() -> Any:
    from mindtorch.profile.cost import targets

    return targets.find("h100")


GRAPH = """
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

V, D, device = 40, 12, {device!r}
rng = np.random.default_rng(0)
edges = np.unique(rng.integers(0, V, (160, 2)), axis=0).astype(np.int32)
features = rng.random((V, D)) * (rng.random((V, D)) < 0.2)
where = np.array(features.nonzero())
values = torch.tensor(features[features.nonzero()], dtype=torch.float32)
x = torch.sparse_coo_tensor(where, values, features.shape, dtype=torch.float32).to_dense().to(device)
adjacency = torch.sparse_coo_tensor(edges.T, torch.ones(len(edges)), (V, V), dtype=torch.int64)
dense = (torch.eye(V) + adjacency).to_dense().to(device)

weight = nn.Parameter(torch.randn(D, 8, device=device))
h = x @ weight
scores = F.leaky_relu(h.sum(1, keepdim=True) + h.sum(1))
(torch.where(dense > 0, scores, -9e16 * torch.ones_like(scores)).softmax(1) @ h).sum().backward()

class Special(torch.autograd.Function):
    @staticmethod
    def forward(ctx, indices, values, shape, b):
        a = torch.sparse_coo_tensor(indices, values, shape)
        ctx.save_for_backward(a, b)
        ctx.N = shape[0]
        return torch.matmul(a, b)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        flat = a._indices()[0, :] * ctx.N + a._indices()[1, :]
        return None, grad.matmul(b.t()).view(-1)[flat], None, a.t().matmul(grad)

attention = nn.Parameter(torch.randn(1, 16, device=device))
edge = torch.from_numpy(edges.T.astype(np.int64)).to(device)
h = torch.mm(x, weight)
pairs = torch.cat((h[edge[0, :], :], h[edge[1, :], :]), 1).t()
e = torch.exp(-F.leaky_relu(attention.mm(pairs).squeeze()))
rows = Special.apply(edge, e, torch.Size([V, V]), torch.ones(V, 1, device=device))
F.elu(Special.apply(edge, e, torch.Size([V, V]), h).div(rows + 1)).sum().backward()
print("done", attention.grad.shape)
"""


def test_C10_attention_over_a_graph_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in torch's example of graph attention, and with a product of sparse attention that has its own gradient."""
    monkeypatch.chdir(tmp_path)
    Path("gat.py").write_text(GRAPH.format(device="cuda"))
    Path("host.py").write_text(GRAPH.format(device="cpu"))
    result = CliRunner().invoke(cli, ["check", "--target", "h100", "gat.py"], prog_name="genie")
    assert result.exit_code == 0 and "done torch.Size([1, 16])" in result.output, result.output
    flops = []
    for options, program in ((["--target", "h100"], "gat.py"), ([], "host.py")):
        result = CliRunner().invoke(cli, ["profile", *options, "--json", "out.json", program], prog_name="genie")
        assert result.exit_code == 0, result.output
        report = json.loads(Path("out.json").read_text())
        flops.append({r["name"]: r["flops"] for r in report["ops"] if r["name"] in ("aten::mm", "aten::bmm")})
    assert flops[0] == flops[1] and flops[0]


def test_C10_a_convolution_over_a_graph_is_trained(session: None) -> None:
    adjacency, x = graph("cuda"), torch.randn(4, 5, device="cuda")
    layers = nn.ModuleList([nn.Linear(5, 8), nn.Linear(8, 3)]).cuda()
    optimizer = torch.optim.Adam(layers.parameters())
    for _ in range(2):
        h = torch.relu(torch.spmm(adjacency, layers[0](x)))
        loss = nn.functional.cross_entropy(torch.sparse.mm(adjacency, layers[1](h)), torch.arange(4).cuda() % 3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert layers[0].weight.grad is not None and layers[0].weight.grad.is_cuda


@pytest.mark.parametrize("to_sparse", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
def test_C4_what_is_made_sparse_of_unknown_numbers_is_taken_for_full_and_that_is_said(to_sparse: Any) -> None:
    with Estimator(target=targets.find("h100")) as seen:
        matrix = to_sparse(torch.randn(30, 20, device="cuda"))
        assert matrix._nnz() == 30 * 20
        nn.Identity()(torch.mm(matrix, torch.randn(20, 5, device="cuda")))
    report = seen.report()
    (row,) = report["assumed"]
    assert (row["op"].lstrip("_").partition("_csr")[0], row["value"], row["calls"]) == ("to_sparse", 1, 1)
    assert row["source"].startswith("matrix = to_sparse(")
    assert any("unknown elements made sparse are not 0" in line for line in report["warnings"])


@pytest.mark.parametrize("call", [
    torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr, torch.Tensor.to_sparse_csc,
    lambda a: torch.sparse.sampled_addmm(graph().to_sparse_csr(), a, a),
    lambda a: torch.sparse.mm(graph(), a),
])  # fmt: skip
def test_C4_sparse_matrices_that_are_gone_take_no_memory(call: Any) -> None:
    with Estimator(target=targets.find("h100")):
        a = torch.randn(4, 4, device="cuda")
        a @ a  # cuBLAS's workspace stays
        before = torch.cuda.memory_allocated()
        out = call(a)
        assert torch.cuda.memory_allocated() > before
        del out
        assert torch.cuda.memory_allocated() == before
