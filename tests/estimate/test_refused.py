"""C4: forty programs that a GPU refuses are refused in torch's words, sixty that it takes are taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mindtorch.base.torch_facts import release
from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.estimating import estimating


def run(program: str) -> None:
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "C": "cuda"}
    with estimating(Accelerator("Test GPU", 80 * 10**9)):
        exec(compile(program.strip(), "program.py", "exec"), names)


#: Of a kernel that is larger than its input: torch 2.12 describes it in other words than its devices.
_TOO_LARGE = (
    "Output size is too small" if release() == "2.12" else "Kernel size can't be greater than actual input size"
)
#: Words of torch's error: the program.
REFUSED = [
    ("at least two devices, cuda:0 and cpu", "nn.Linear(3,3).cuda()(torch.ones(2,3))"),
    ("at least two devices", "torch.ones(3).cuda() + torch.ones(3)"),
    ("invalid device ordinal", "torch.ones(3,device='cuda:0') + torch.ones(3,device='cuda:1')"),
    ("can't convert cuda:0 device type tensor to numpy", "torch.ones(3).cuda().numpy()"),
    ("can't convert cuda:0", "import numpy; numpy.asarray(torch.ones(3).cuda())"),
    ("invalid device ordinal", "torch.ones(3, device=f'cuda:{torch.cuda.device_count()}')"),
    ("invalid device ordinal", "torch.ones(3).to('cuda:9')"),
    ("invalid device ordinal", "nn.Linear(2,2).to('cuda:4')"),
    ("invalid device ordinal", "torch.cuda.set_device(3)"),
    ("Invalid device id", "torch.cuda.get_device_name(3)"),
    ("Invalid device id", "torch.cuda.get_device_properties(3)"),
    ("mat1 and mat2 must have the same dtype, but got Half and Float",
     "nn.Linear(3,3).cuda()(torch.ones(2,3).cuda().half())"),
    ("mat1 and mat2 must have the same dtype", "nn.Linear(3,4).cuda()(torch.ones(2,5,3,device=C).half())"),
    ("but got Long and Float", "nn.Linear(3,3).cuda()(torch.ones(2,3,device=C,dtype=torch.int64))"),
    ("but got Double and Float", "import numpy; nn.Linear(3,3).cuda()(torch.from_numpy(numpy.ones((2,3))).cuda())"),
    ("expected mat1 and mat2 to have the same dtype, but got: float != c10::Half",
     "torch.ones(3,3,device=C) @ torch.ones(3,3,device=C).half()"),
    ("c10::Half != float", "F.linear(torch.ones(2,3,device=C).half(), torch.ones(4,3,device=C))"),
    ("expected scalar type Float but found Half",
     "torch.bmm(torch.ones(2,2,2,device=C), torch.ones(2,2,2,device=C).half())"),
    ("must have the same dtype",
     "F.linear(torch.ones(2,3,device=C).half(), torch.ones(4,3,device=C).half(), torch.ones(4,device=C))"),
    ("not implemented for 'Half'", "torch.linalg.svd(torch.ones(3,3,device=C,dtype=torch.float16))"),
    ("not implemented for 'BFloat16'", "torch.svd(torch.ones(3,3,device=C,dtype=torch.bfloat16))"),
    ("'Half'", "torch.linalg.qr(torch.eye(3,device=C,dtype=torch.float16))"),
    ("'Half'", "torch.linalg.cholesky(torch.eye(3,device=C,dtype=torch.float16))"),
    ("'Half'", "torch.linalg.eigh(torch.eye(3,device=C,dtype=torch.float16))"),
    ("Low precision dtypes not supported", "torch.linalg.inv(torch.eye(3,device=C,dtype=torch.float16))"),
    ("'Half'", "torch.linalg.solve(torch.ones(3,3,device=C).half(), torch.ones(3,3,device=C).half())"),
    ("'Half'", "torch.linalg.eig(torch.ones(3,3,device=C).half())"),
    ("'Half'", "torch.linalg.lu(torch.ones(3,3,device=C).half())"),
    ("'Half'", "torch.linalg.svdvals(torch.ones(3,3,device=C).half())"),
    ("'Float8_e4m3fn'", "x=torch.ones(3,device=C).to(torch.float8_e4m3fn); x+x"),
    ('"addmm_cuda" not implemented for \'Long\'',
     "torch.ones(3,3,device=C,dtype=torch.int64) @ torch.ones(3,3,device=C,dtype=torch.int64)"),
    ("'Bool'", "torch.ones(3,3,device=C).bool() @ torch.ones(3,3,device=C).bool()"),
    ('"baddbmm_cuda" not implemented for \'Long\'',
     "torch.bmm(torch.ones(2,2,2,device=C).long(), torch.ones(2,2,2,device=C).long())"),
    ("'Long'", "torch.ones(3,3,device=C).long().softmax(-1)"),
    ("'Long'", "F.gelu(torch.ones(3,device=C).long())"),
    ("'Byte'", "F.interpolate(torch.ones(1,3,4,4,device=C).byte(), scale_factor=2, mode='bilinear')"),
    ("CUDA", "torch.histogram(torch.ones(3,device=C), 3)"),
    ("expected scalar type Half but found Float", "nn.LayerNorm(3).cuda()(torch.ones(1,3).cuda().half())"),
    ("not implemented for 'Int'", "F.cross_entropy(torch.randn(2,3,device=C), torch.tensor([0,1]).int().cuda())"),
    ("expected input and grid to have same dtype",
     "F.grid_sample(torch.rand(1,3,4,4,device=C), torch.rand(1,4,4,2,device=C).half())"),
    ("should be the same", "nn.Conv2d(3,4,3).cuda().half()(torch.ones(1,3,8,8,device=C))"),
    ("should be the same", "nn.Conv2d(3,3,1).cuda()(torch.ones(2,3,4,4,device=C,dtype=torch.float64))"),
    ("index 5 is out of bounds", "torch.ones(3,device=C)[5]"),
    ("index 5 is out of bounds for dimension 0 with size 3", "torch.ones(3,device=C)[torch.tensor([0,5],device=C)]"),
    ("index -5 is out of bounds", "torch.ones(3,device=C)[torch.tensor([0,-5],device=C)]"),
    ("index out of range in self", "nn.Embedding(5,3).cuda()(torch.tensor([0,5],device=C))"),
    ("index out of range in self", "nn.Embedding(512,3).cuda()(torch.arange(600,device=C))"),
    ("index 7 is out of bounds for dimension 1 with size 4",
     "torch.ones(3,4,device=C).gather(1, torch.tensor([[7]],device=C))"),
    ("index", "torch.ones(3,4,device=C).index_select(0, torch.tensor([7],device=C))"),
    ("index 7 is out of bounds", "torch.ones(3,4,device=C).scatter_(1, torch.tensor([[7]],device=C), 1.0)"),
    ("index 7 is out of bounds", "torch.ones(3,4,device=C)[torch.tensor([7],device=C)] = 0"),
    ("Target 3 is out of bounds", "F.cross_entropy(torch.randn(2,3,device=C), torch.tensor([0,3],device=C))"),
    ("Target -1 is out of bounds", "F.nll_loss(torch.randn(2,3,device=C), torch.tensor([0,-1],device=C))"),
    ("at least two devices",
     "F.scaled_dot_product_attention(torch.ones(1,2,4,8,device=C), torch.ones(1,2,4,8), torch.ones(1,2,4,8))"),
    ("at least two devices", """
q=torch.ones(1,2,4,8,device=C)
F.scaled_dot_product_attention(q,q,q,attn_mask=torch.ones(4,4).bool())
"""),
    ("invalid dtype for bias - should match query's dtype", """
q=torch.ones(1,2,4,8,device=C).half()
F.scaled_dot_product_attention(q,q,q,attn_mask=torch.ones(4,4,device=C).float())
"""),
    ("No available kernel. Aborting execution", """
from torch.nn.attention import sdpa_kernel, SDPBackend
q=torch.ones(1,2,8,64,device=C)
with sdpa_kernel(SDPBackend.FLASH_ATTENTION): F.scaled_dot_product_attention(q,q,q)
"""),
    ("No available kernel",
     """
from torch.nn.attention import sdpa_kernel, SDPBackend
q=torch.ones(1,2,8,64,device=C).half()
mask = torch.ones(8,8,device=C).bool()
with sdpa_kernel(SDPBackend.FLASH_ATTENTION): F.scaled_dot_product_attention(q,q,q,attn_mask=mask)
"""),
    ("same dtype", "q=torch.ones(1,2,8,64,device=C); F.scaled_dot_product_attention(q,q.half(),q)"),
    ("unsafe to autocast",
     "with torch.autocast('cuda'): F.binary_cross_entropy(torch.rand(3,device=C), torch.rand(3,device=C))"),
    ("Attempting to unscale FP16 gradients", """
m=nn.Linear(3,3).cuda().half()
o=torch.optim.SGD(m.parameters(),.1)
s=torch.amp.GradScaler('cuda')
s.scale(m(torch.ones(2,3,device=C).half()).sum()).backward()
s.step(o)
"""),
    ("Expected a 'cuda' device type for generator but found 'cpu'",
     "torch.randn(3, device=C, generator=torch.Generator())"),
    ("Expected a 'cpu' device type", "torch.randn(3, generator=torch.Generator('cuda'))"),
    ("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned", "torch.ones(3,device=C).pin_memory()"),
    ("unsupported ScalarType BFloat16", "torch.ones(3,device=C).bfloat16().cpu().numpy()"),
    ("at least two devices", """
class M(nn.Module):
    def __init__(s): super().__init__(); s.pe = torch.zeros(4)
    def forward(s, x): return x + s.pe
M().cuda()(torch.ones(2,4,device=C))
"""),
    ("at least two devices", """
class M(nn.Module):
    def __init__(s): super().__init__(); s.l = [nn.Linear(4,4)]
    def forward(s, x): return s.l[0](x)
M().cuda()(torch.ones(2,4,device=C))
"""),
    ("at least two devices", "nn.Embedding(5,3).cuda()(torch.arange(3))"),
    ("at least two devices",
     "nn.LSTM(3,4).cuda()(torch.ones(5,2,3,device=C), (torch.zeros(1,2,4), torch.zeros(1,2,4)))"),
    ("source and destination dtypes match",
     "x=torch.ones(3,device=C); x[torch.tensor([0,1],device=C)] = torch.ones(2,device=C).half()"),
    (_TOO_LARGE, "nn.Conv2d(3,4,7).cuda()(torch.ones(1,3,5,5,device=C))"),
    ("channel", "nn.Conv2d(3,4,3).cuda()(torch.ones(1,4,8,8,device=C))"),
    ("at least two devices", "F.cross_entropy(torch.randn(2,3,device=C), torch.tensor([0,1]))"),
]  # fmt: skip

ACCEPTED = [
    "nn.Linear(3, 4).cuda()(torch.ones(2, 3).cuda()).sum().backward()",
    "nn.Linear(3, 4, device=C)(torch.ones(2, 3, device='cuda:0'))",
    "nn.Linear(3, 4).to(0)(torch.ones(2, 3).to(0))",
    "nn.Linear(3, 4).to(torch.device('cuda', 0))(torch.ones(2, 3, device=0))",
    "torch.ones(3, device=torch.device(0)) + 1",
    "torch.ones(3).cuda(0, non_blocking=True) * torch.tensor(2.0)",
    "torch.ones(3, device=C)[torch.tensor([0, 1])]",
    "torch.ones(3, device=C).cpu().numpy()",
    "torch.ones(3, device=C, requires_grad=True).detach().cpu().numpy().mean()",
    "float(torch.randn(3, device=C).sum())",
    "torch.ones(3, device=C).tolist()",
    "torch.ones(3).copy_(torch.ones(3, device=C))",
    "torch.ones(3, 3, device=C).half() @ torch.ones(3, 3, device=C).half()",
    "torch.ones(3, device=C) + torch.ones(3, device=C).half()",
    "torch.ones(3, 3, device=C).float() @ torch.ones(3, 3, device=C).half().float()",
    "torch.linalg.svd(torch.randn(3, 3, device=C))",
    "torch.linalg.inv(torch.randn(3, 3, device=C, dtype=torch.float64))",
    "torch.linalg.qr(torch.randn(3, 3, device=C))",
    "torch.linalg.cholesky(torch.eye(3, device=C))",
    "torch.linalg.eigh(torch.eye(3, device=C))",
    "torch.linalg.solve(torch.eye(3, device=C), torch.ones(3, device=C))",
    "torch.fft.fft(torch.randn(16, device=C, dtype=torch.complex64))",
    "torch.fft.rfft(torch.randn(12, device=C))",
    "nn.Embedding(5, 3).cuda()(torch.tensor([0, 4]).cuda())",
    "nn.Embedding(5, 3, padding_idx=0).cuda()(torch.tensor([0, 4], dtype=torch.int32).cuda())",
    "F.cross_entropy(torch.randn(3, 4, device=C), torch.tensor([0, 3, -100]).cuda())",
    "F.cross_entropy(torch.randn(3, 4, device=C), torch.rand(3, 4, device=C))",
    "F.cross_entropy(torch.randn(2, 4, 5, device=C), torch.zeros(2, 5, dtype=torch.int64, device=C))",
    "F.binary_cross_entropy_with_logits(torch.randn(3, device=C), torch.rand(3, device=C))",
    "F.nll_loss(torch.randn(3, 4, device=C).log_softmax(-1), torch.tensor([0, 1, 2]).cuda())",
    "x = torch.zeros(3, 4, device=C); x[torch.tensor([0, -1]).cuda()] = 1.0",
    "torch.randn(3, 4, device=C).gather(1, torch.tensor([[3], [0], [1]]).cuda())",
    "torch.randn(3, 4, device=C).index_select(0, torch.tensor([2]).cuda())",
    "torch.zeros(3, 4, device=C).scatter_(1, torch.tensor([[3]]).cuda(), 1.0)",
    "torch.zeros(3, 4, device=C).index_add_(0, torch.tensor([2]).cuda(), torch.ones(1, 4, device=C))",
    "torch.ones(3, device=C).masked_fill(torch.tensor([True, False, True]).cuda(), 0)",
    "torch.where(torch.ones(3, device=C) > 0, 1.0, torch.zeros(3, device=C))",
    "torch.ones(3, device=C) == torch.tensor(1)",
    "torch.cat([torch.ones(2, device=C), torch.ones(2, device=C).half()])",
    "torch.einsum('bij,bjk->bik', torch.ones(2, 3, 4, device=C), torch.ones(2, 4, 5, device=C))",
    "nn.LSTM(3, 4, 2, dropout=0.1).cuda()(torch.randn(5, 2, 3, device=C))[0].sum().backward()",
    "nn.GRU(3, 4, bidirectional=True).cuda()(torch.randn(5, 2, 3, device=C), torch.zeros(2, 2, 4, device=C))",
    "nn.MultiheadAttention(8, 2, dropout=0.1).cuda()(*[torch.randn(2, 5, 8, device=C)] * 3)[0].sum().backward()",
    "nn.TransformerEncoderLayer(8, 2, 16).cuda().half()(torch.randn(5, 2, 8, device=C).half())",
    "nn.Conv2d(3, 4, 3).cuda().half()(torch.randn(1, 3, 8, 8, device=C).half()).sum().backward()",
    "nn.Conv2d(3, 4, 3).cuda().to(memory_format=torch.channels_last)(torch.randn(1, 3, 8, 8, device=C))",
    "nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).cuda()(torch.randn(2, 3, 8, 8, device=C))",
    "nn.LayerNorm(4).cuda().bfloat16()(torch.randn(2, 4, device=C).bfloat16())",
    "nn.GroupNorm(2, 4).cuda()(torch.randn(2, 4, 3, device=C))",
    "F.interpolate(torch.randn(1, 3, 4, 4, device=C), scale_factor=2, mode='bilinear')",
    "F.interpolate(torch.ones(1, 3, 4, 4, device=C).byte(), scale_factor=2, mode='nearest')",
    "F.grid_sample(torch.rand(1, 3, 4, 4, device=C), torch.rand(1, 4, 4, 2, device=C))",
    "F.gelu(torch.randn(3, device=C).bfloat16()).softmax(-1)",
    "torch.ones(3, device=C, dtype=torch.int64).sum() // 2",
    "torch.randn(4, device=C).to(torch.float8_e4m3fn).float()",
    "torch.randn(3, device=C, generator=torch.Generator('cuda').manual_seed(0))",
    "torch.randn(3, generator=torch.Generator().manual_seed(0)).cuda()",
    "torch.multinomial(torch.ones(2, 5, device=C), 3)",
    "torch.randn(9, device=C).topk(3)",
    "torch.ones(3).pin_memory().cuda(non_blocking=True)",
    "torch.cuda.get_device_name(0), torch.cuda.get_device_properties('cuda').total_memory, torch.cuda.mem_get_info()",
    """
torch.cuda.set_device(0)
torch.cuda.synchronize()
torch.cuda.empty_cache()
torch.cuda.memory_summary()
""",
    """
with torch.autocast('cuda', torch.bfloat16):
    h = nn.LayerNorm(4).cuda()(nn.Linear(4, 4).cuda()(torch.randn(2, 4, device=C)))
    F.cross_entropy(h, torch.tensor([0, 1]).cuda()).backward()
""",
    """
m, s = nn.Linear(4, 4).cuda(), torch.amp.GradScaler('cuda'); o = torch.optim.AdamW(m.parameters(), fused=True)
for _ in range(2):
    with torch.autocast('cuda'): loss = m(torch.randn(2, 4, device=C)).square().mean()
    s.scale(loss).backward()
    s.unscale_(o)
    nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    s.step(o)
    s.update()
    o.zero_grad()
""",
    """
q = torch.randn(1, 2, 8, 64, device=C).half()
F.scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(8, 8, device=C).tril().bool(), dropout_p=0.1)
""",
    """
from torch.nn.attention import SDPBackend, sdpa_kernel
q = torch.randn(1, 2, 8, 64, device=C).bfloat16().requires_grad_()
for b in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH):
    with sdpa_kernel(b): F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
""",
    """
q, k = torch.randn(1, 8, 4, 64, device=C).half(), torch.randn(1, 2, 4, 64, device=C).half()
F.scaled_dot_product_attention(q, k, k, enable_gqa=True)
""",
    """
m = torch.compile(nn.Linear(4, 4).cuda()); o = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)
m(torch.randn(2, 4, device=C)).sum().backward(); o.step()
""",
    """
from torch.utils.checkpoint import checkpoint
x = torch.randn(2, 4, device=C, requires_grad=True)
checkpoint(nn.Linear(4, 4).cuda(), x, use_reentrant=False).sum().backward()
""",
    """
data = torch.utils.data.TensorDataset(torch.randn(8, 3), torch.randint(2, (8,)))
m = nn.Linear(3, 2).cuda()
for x, y in torch.utils.data.DataLoader(data, 4, shuffle=True, num_workers=2, pin_memory=True):
    F.cross_entropy(m(x.cuda(non_blocking=True)), y.cuda(non_blocking=True)).backward()
""",
    """
device = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else 'cpu'
assert device == 'cuda'; nn.Linear(3, 3).to(device)(torch.ones(2, 3, device=device))
""",
    """
g, x = torch.cuda.CUDAGraph(), torch.ones(3, device=C)
with torch.cuda.graph(g): y = x * 2
g.replay(); y.sum().item()
""",
    "m = nn.DataParallel(nn.Linear(3, 3).cuda()); m(torch.ones(4, 3)).sum().backward()",
    """
s, e = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
s.record(); torch.ones(3, device=C) * 2; e.record(); torch.cuda.synchronize(); s.elapsed_time(e)
""",
    """
m = nn.Linear(3, 3).cuda(); o = torch.optim.Adam(m.parameters())
m(torch.ones(2, 3).cuda()).sum().backward(); o.step()
b = torch.optim.Adam(m.parameters()); b.load_state_dict(o.state_dict()); b.step()
""",
    """
m = nn.EmbeddingBag(9, 3, mode='sum', sparse=True).cuda()
m(torch.tensor([1, 2, 8]).cuda(), torch.tensor([0, 2]).cuda()).sum().backward()
""",
    "with torch.device('cuda'): nn.Linear(3, 3)(torch.randn(2, 3))",
    "torch.cuda.FloatTensor(3).fill_(1) + torch.cuda.FloatTensor([1, 2, 3])",
    "torch.bincount(torch.tensor([0, 1, 1]).cuda()), torch.unique(torch.tensor([0, 1, 1]).cuda())",
    "nn.utils.rnn.pack_padded_sequence(torch.randn(3, 2, 4, device=C), torch.tensor([3, 2]))",
    "torch.quantile(torch.randn(9, device=C), 0.5), torch.randn(9, device=C).median(), torch.randn(9, device=C).std()",
    "torch.randn(3, 3, device=C).triu().cumsum(0).flip(0).roll(1).sort()",
    "F.dropout(torch.randn(3, device=C, requires_grad=True), 0.5).sum().backward()",
    "torch.histc(torch.randn(9, device=C), 3)",
    "torch.bucketize(torch.randn(3, device=C), torch.tensor([0.0, 1.0]).cuda())",
]  # fmt: skip


@pytest.mark.parametrize(("words", "program"), REFUSED, ids=range(len(REFUSED)))
def test_C4_what_a_gpu_refuses_is_refused(words: str, program: str) -> None:
    with pytest.raises((RuntimeError, TypeError, IndexError, ValueError, AssertionError)) as error:
        run(program)
    assert words in str(error.value)
    assert "program.py" in {str(entry.path) for entry in error.traceback}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", ACCEPTED, ids=range(len(ACCEPTED)))
def test_C4_what_a_gpu_takes_is_taken(program: str) -> None:
    run(program)


def test_C4_there_are_enough_of_them() -> None:
    assert len(REFUSED) >= 40 and len(ACCEPTED) >= 60
