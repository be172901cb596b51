"""Linear algebra without a model: least squares, SVD, Cholesky and a few products, in double precision and bfloat16."""

import torch

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
a, truth = torch.randn(60, 8), torch.randn(8, 2)
b = a @ truth + 0.01 * torch.randn(60, 2)
solution = torch.linalg.lstsq(a, b).solution
print(f"{(solution - truth).abs().max().item() < 0.05}")
u, s, vh = torch.linalg.svd(a, full_matrices=False)
print(f"{(u * s @ vh - a).norm().item() < 1e-10} {s[0].item():.4f}")
gram = a.mT @ a + torch.eye(8)
factor = torch.linalg.cholesky(gram)
half_way = torch.linalg.solve_triangular(factor, a.mT @ b, upper=False)
print(f"{half_way.norm().item():.4f} {torch.logdet(gram).item():.4f}")
low = (a.bfloat16() @ a.bfloat16().mT).float()
print(f"{torch.linalg.matrix_norm(low).item():.1f} {torch.linalg.eigvalsh(gram)[-1].item():.4f}")
batched = torch.baddbmm(torch.zeros(3, 4, 4), torch.ones(3, 4, 5), torch.ones(3, 5, 4))
print(batched.sum().item(), torch.einsum("bij,bjk,k->bi", batched, batched, torch.ones(4)).sum().item())
