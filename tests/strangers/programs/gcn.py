"""A graph convolution network with a sparse adjacency matrix."""

import torch
from torch import nn


class GraphConvolution(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_in, n_out))
        self.bias = nn.Parameter(torch.zeros(n_out))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x, adjacency):
        return torch.sparse.mm(adjacency, x @ self.weight) + self.bias


torch.manual_seed(0)
n = 40
edges = torch.randint(n, (2, 120))
edges = torch.cat([edges, edges.flip(0), torch.arange(n).repeat(2, 1)], 1)
adjacency = torch.sparse_coo_tensor(edges, torch.ones(edges.shape[1]), (n, n)).coalesce()
degree = torch.sparse.sum(adjacency, 1).to_dense()
values = adjacency.values() / (degree[adjacency.indices()[0]] * degree[adjacency.indices()[1]]).sqrt()
adjacency = torch.sparse_coo_tensor(adjacency.indices(), values, (n, n), is_coalesced=True)
features, labels = torch.randn(n, 10), torch.randint(3, (n,))
first, second = GraphConvolution(10, 16), GraphConvolution(16, 3)
optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01, weight_decay=5e-4)
for step in range(3):
    out = second(torch.relu(first(features, adjacency)), adjacency)
    loss = nn.functional.cross_entropy(out[:20], labels[:20])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.4f}")
