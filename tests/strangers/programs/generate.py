"""A decoder with a key-value cache writes tokens one by one, in inference mode."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x, cache):
        b, n, width = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if cache:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        cache[:] = [k, v]
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=n > 1).transpose(1, 2).reshape(b, n, width))


class Decoder(nn.Module):
    def __init__(self, vocabulary=60, width=32, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Attention(width, 4) for _ in range(layers))
        self.norm = nn.RMSNorm(width)

    def forward(self, tokens, caches):
        x = self.embed(tokens)
        for layer, cache in zip(self.layers, caches):
            x = x + layer(self.norm(x), cache)
        return F.linear(self.norm(x[:, -1]), self.embed.weight)

    @torch.inference_mode()
    def generate(self, tokens, count):
        caches = [[] for _ in self.layers]
        step = tokens
        for _ in range(count):
            logits = self(step, caches)
            top, indices = logits.topk(5)
            step = indices.gather(1, torch.multinomial(top.softmax(-1), 1))
            tokens = torch.cat([tokens, step], 1)
        return tokens


torch.manual_seed(0)
model = Decoder().eval()
with torch.inference_mode():
    tokens = model.generate(torch.randint(60, (2, 12)), 8).tolist()
print(tokens)
