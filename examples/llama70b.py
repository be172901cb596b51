"""A 70-billion-parameter Llama on eight cards: one training step with FSDP2 and activation checkpointing.

You do not need the cards to know whether it fits: an estimate runs the script on tensors without data.

    genie check --target 8xh100 examples/llama70b.py                    # exit code 0: it fits
    genie check --target 8xh100 examples/llama70b.py --dtype float32    # exit code 1, and the line that fails
    genie profile --target 8xh100 examples/llama70b.py                  # memory by kind, time, communication
    torchrun --nproc-per-node 8 examples/llama70b.py                 # on the cards themselves
    torchrun --nproc-per-node 2 examples/llama70b.py --layers 2 --width 128 --vocab 256 --seq 32   # to try it on CPUs
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    """Grouped-query attention with rotary position embeddings."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, groups * self.size, bias=False)
        self.v_proj = nn.Linear(width, groups * self.size, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def rotate(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[2], device=x.device)
        frequencies = 500000.0 ** (-torch.arange(0, self.size, 2, device=x.device) / self.size)
        angles = torch.outer(positions, frequencies).to(x.dtype)
        even, odd = x.chunk(2, dim=-1)
        return torch.cat((even * angles.cos() - odd * angles.sin(), odd * angles.cos() + even * angles.sin()), dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.size).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.groups, self.size).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.groups, self.size).transpose(1, 2)
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, width))


class MLP(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, hidden: int) -> None:
        super().__init__()
        self.input_norm, self.attn = nn.RMSNorm(width), Attention(width, heads, groups)
        self.post_norm, self.mlp = nn.RMSNorm(width), MLP(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.input_norm(x))
        return x + self.mlp(self.post_norm(x))


class Llama(nn.Module):
    def __init__(self, layers: int, width: int, vocab: int, hidden: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Layer(width, 64, 8, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.lm_head(self.norm(x))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a Llama of 70 billion parameters with FSDP2.")
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--vocab", type=int, default=128256)
    parser.add_argument("--batch", type=int, default=1, help="sequences on each card (default 1)")
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument(
        "--dtype", choices=["bfloat16", "float32"], default="bfloat16", help="of weights and AdamW's state"
    )
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")

    torch.set_default_dtype(getattr(torch, args.dtype))
    with torch.device("meta"):  # no card can hold all of it
        model = Llama(args.layers, args.width, args.vocab, hidden=args.width * 7 // 2)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device=device)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    if dist.get_rank() == 0:
        print(f"Llama: {parameters / 1e9:.1f} B parameters on {dist.get_world_size()} ranks")

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    tokens = torch.randint(args.vocab, (args.batch, args.seq + 1), device=device)
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0:
        print("trained one step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
