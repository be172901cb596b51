"""The programs of `published_memory.py`: each does what its source says was run; text, as they are run on their own.

Fields in braces are filled in there.
"""

# Qwen's own script: a prompt of {length} tokens, read in parts of {part}, then {further} more, one at a time. The
# caches that the steps between would make are made at once: the peak is that of the prompt or that of the last steps.
QWEN_GENERATES = """
import torch
from transformers import DynamicCache, Qwen{number}Config, Qwen{number}ForCausalLM

config = Qwen{number}Config(
    num_hidden_layers={layers}, hidden_size={hidden}, intermediate_size={inner}, num_attention_heads={heads},
    num_key_value_heads={shared}, vocab_size={words}, tie_word_embeddings={tied}, max_position_embeddings=65536,
    dtype="bfloat16",
)
torch.set_default_dtype(torch.bfloat16)
model = Qwen{number}ForCausalLM(config).eval().cuda()
tokens = torch.ones(1, {length}, dtype=torch.long, device="cuda")
with torch.no_grad():
    cache = DynamicCache(config=config)
    for part in tokens.split({part}, 1):
        model(part, past_key_values=cache, logits_to_keep=1)
    width = getattr(config, "head_dim", None) or {hidden} // {heads}
    for layer in range({layers}):
        more = torch.zeros(1, {shared}, {further} - 4, width, device="cuda")
        cache.update(more, more, layer)
    for _ in range(3):
        model(tokens[:, :1], past_key_values=cache, logits_to_keep=1)
"""
# xMem's loop for image models: four iterations, CIFAR-10 at 86 x 86.
IMAGES_TRAIN = """
import torch
from torchvision import models

model = {model}
model.to("cuda")
model.train()
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.001)
for _ in range(4):
    inputs, labels = torch.randn({batch}, 3, 86, 86), torch.zeros({batch}, dtype=torch.long)
    optimizer.zero_grad()
    inputs, labels = inputs.to("cuda"), labels.to("cuda")
    outputs = model(inputs)
    loss = torch.nn.functional.cross_entropy(outputs, labels)
    loss.backward()
    optimizer.step()
    _, found = torch.max(outputs, 1)
"""
# xMem's loop for language models: four iterations of texts of at most 128 tokens. {older}: folders that come first.
TEXTS_TRAIN = """
import sys
import torch
sys.path[:0] = {older}
from transformers import *

model = {model}
model.train()
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.001)
model.to("cuda")
for _ in range(4):
    batch = dict(
        input_ids=torch.ones({batch}, 128, dtype=torch.long),
        attention_mask=torch.ones({batch}, 128, dtype=torch.long),
        labels=torch.ones({batch}, 128, dtype=torch.long),
    )
    optimizer.zero_grad()
    batch = {{name: tensor.to("cuda") for name, tensor in batch.items()}}
    outputs = model(**batch)
    outputs.loss.backward()
    optimizer.step()
"""
# torchtitan's Llama 3.1 8B at the end of 2024: FSDP2, every second product and attention kept for backward, eager.
TITAN = """
import os
from collections import defaultdict
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

BATCH, LENGTH, WORDS, WIDTH, INNER, HEADS, SHARED = 2, 8192, 128256, 4096, 14336, 32, 8
KEPT = {
    torch.ops.aten.mm.default, torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}

def kept():
    products = defaultdict(int)
    def policy(context, function, *args, **kwargs):
        stage = "recompute" if context.is_recompute else "forward"
        if function == torch.ops.aten.mm.default:
            products[stage] += 1
        skipped = function == torch.ops.aten.mm.default and products[stage] % 2 == 0
        keep = function in KEPT and not skipped
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE
    return create_selective_checkpoint_contexts(policy)

class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt((y * y).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight

def turned(x, turns):
    y = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(y * turns.view(1, LENGTH, 1, -1)).flatten(3).type_as(x)

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wo = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.wk, self.wv = (nn.Linear(WIDTH, WIDTH // HEADS * SHARED, bias=False) for _ in range(2))

    def forward(self, x, turns):
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        q, k, v = (t.view(BATCH, LENGTH, -1, WIDTH // HEADS) for t in (q, k, v))
        q, k = turned(q, turns), turned(k, turns)
        each = HEADS // SHARED
        k, v = (t[:, :, :, None].expand(-1, -1, -1, each, -1).reshape(BATCH, LENGTH, HEADS, -1) for t in (k, v))
        y = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        return self.wo(y.transpose(1, 2).contiguous().view(BATCH, LENGTH, -1))

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.norm1, self.norm2 = Attention(), Norm(), Norm()
        self.w1, self.w3 = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.w2 = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x, turns):
        h = x + self.attention(self.norm1(x), turns)
        y = self.norm2(h)
        return h + self.w2(F.silu(self.w1(y)) * self.w3(y))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(32))
        self.norm, self.output = Norm(), nn.Linear(WIDTH, WORDS, bias=False)
        self.register_buffer("turns", torch.ones(LENGTH, WIDTH // HEADS // 2, dtype=torch.complex64))

    def forward(self, tokens):
        h = self.words(tokens)
        for layer in self.layers:
            h = layer(h, self.turns)
        return self.output(self.norm(h))

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
with torch.device("meta"):
    model = Model()
for number, layer in enumerate(model.layers):
    model.layers[number] = checkpoint_wrapper(layer, context_fn=kept, preserve_rng_state=False)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for number, layer in enumerate(model.layers):
    fully_shard(layer, mp_policy=policy, reshard_after_forward=number < len(model.layers) - 1)
fully_shard(model, mp_policy=policy)
model.to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for _ in range(3):
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.int64, device="cuda")
    optimizer.zero_grad()
    predicted = model(tokens)
    loss = F.cross_entropy(predicted.flatten(0, 1).float(), tokens.flatten(0, 1))
    del predicted
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""
