"""A GPT-2-small-shaped language model in plain torch: prefill, decoding with a key-value cache, one training step.

The weights are random, so the tokens mean nothing; the shapes, the operations and the 124.4 M parameters are GPT-2's.

    python examples/gpt2.py                      # as it is
    genie profile examples/gpt2.py               # the same run, measured
    genie profile examples/gpt2.py --layers 2    # everything after the script is the script's
    genie profile --target h100 examples/gpt2.py # how long and how much memory it would take there
    genie run --executor pipe examples/gpt2.py   # the same tokens and losses, computed by another process

It runs on CUDA if available, and prints its times to standard error.
"""

from __future__ import annotations

import argparse
import math
import sys
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Cache = list[tuple[Tensor, Tensor]]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.c_attn(x).split(width, dim=2)
        )
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        # A single new token may look at everything before it, so only the prefill needs the mask.
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        return self.c_proj(y.transpose(1, 2).reshape(batch, length, width)), (k, v)


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = MLP(width)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        attended, present = self.attn(self.ln_1(x), past)
        x = x + attended
        return x + self.mlp(self.ln_2(x)), present


class GPT2(nn.Module):
    def __init__(
        self, layers: int = 12, heads: int = 12, width: int = 768, vocab: int = 50257, context: int = 1024
    ) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(context, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.lm_head.weight = self.wte.weight  # tied, as in GPT-2
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):  # residual paths: scaled down with depth, as in the paper
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers))
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        start = 0 if cache is None else cache[0][0].shape[2]
        positions = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        x = self.wte(tokens) + self.wpe(positions)
        presents: Cache = []
        for i, block in enumerate(self.h):
            x, present = block(x, None if cache is None else cache[i])
            presents.append(present)
        return self.lm_head(self.ln_f(x)), presents


def generate(model: GPT2, prompt: Tensor, steps: int) -> Tensor:
    """Greedy decoding: the prompt once, then one token at a time against the key-value cache."""
    model.eval()
    with torch.no_grad():
        logits, cache = model(prompt)
        tokens = [logits[:, -1:].argmax(-1)]
        for _ in range(steps):
            logits, cache = model(tokens[-1], cache)
            tokens.append(logits[:, -1:].argmax(-1))
    return torch.cat(tokens, dim=1)


def train_step(model: GPT2, optimizer: torch.optim.Optimizer, tokens: Tensor) -> Tensor:
    """Next-token cross-entropy, backward, one optimizer step; returns the loss."""
    model.train()
    logits, _ = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def took(what: str, began: float) -> None:
    print(f"{what} in {time.perf_counter() - began:.2f} s", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description="A GPT-2-small-shaped model: prefill, decode, one training step.")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocab", type=int, default=50257)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=64, help="prompt length in tokens (default 64)")
    parser.add_argument("--decode", type=int, default=4, help="tokens to generate after the prompt's own (default 4)")
    parser.add_argument("--steps", type=int, default=1, help="training steps (default 1)")
    parser.add_argument("--no-train", action="store_true", help="skip them")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    if torch.cuda.is_available():
        torch.set_default_device("cuda")
    torch.manual_seed(args.seed)
    model = GPT2(args.layers, args.heads, args.width, args.vocab)
    print(f"GPT2: {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, {args.layers} layers")

    prompt = torch.randint(args.vocab, (args.batch, args.seq))
    began = time.perf_counter()
    tokens = generate(model, prompt, args.decode)
    print(f"generated {tokens.tolist()}")
    took("generated", began)

    if not args.no_train:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        for step in range(args.steps):
            began = time.perf_counter()
            loss = train_step(model, optimizer, prompt)
            print(f"trained step {step + 1}, loss {loss.item():.6f}")
            took("trained one step", began)


if __name__ == "__main__":
    main()
