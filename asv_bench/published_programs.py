"""The programs of `published.py`: each does what its source says was run; text, as they are run on their own.

Fields in braces are filled in by `published.py`.
"""

RESNET = """
import torch
from transformers import ResNetConfig, ResNetForImageClassification
model = ResNetForImageClassification(ResNetConfig(num_labels=1000)).cuda()
x = torch.randn({batch}, 3, 224, 224, device="cuda")
if {half}:
    model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
"""
RESNET_TRAINING = (
    RESNET
    + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.875, weight_decay=3e-5)
y = torch.randint(1000, ({batch},), device="cuda")
for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.float16, enabled={half}):
        loss = torch.nn.functional.cross_entropy(model(x).logits, y)
    loss.backward()
    optimizer.step()
"""
)
RESNET_INFERENCE = (
    RESNET
    + """
model.eval()
with torch.no_grad(), torch.autocast("cuda", torch.float16, enabled={half}):
    for _ in range(3):
        model(x)
"""
)
# MPT as LLM-Foundry trained it: FSDP, mixed precision, norms in bfloat16; a step of {parts} batches.
MPT = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, LENGTH, WORDS = {width}, {heads}, {length}, 50432

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=2))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

class Norm(nn.LayerNorm):
    def forward(self, x):
        with torch.autocast("cuda", enabled=False):
            return F.layer_norm(x.bfloat16(), (WIDTH,), self.weight.bfloat16(), self.bias.bfloat16(), self.eps)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2 = Norm(WIDTH), Attention(), Norm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range({layers})), Norm(WIDTH)

    def forward(self, ids):
        x = self.words(ids) + self.positions(torch.arange(LENGTH, device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if {again} else block(x)
        return F.linear(self.norm(x), self.words.weight)

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
with torch.device("meta"):
    model = Model()
policy = MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16 if {pure} else torch.float32)
for module in (*model.blocks, model):
    fully_shard(module, mp_policy=policy)
model.to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for _ in range(2):
    for _ in range({parts}):
        ids = torch.zeros({batch}, LENGTH, dtype=torch.int64, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(ids).view(-1, WORDS), ids.view(-1)) / {parts}
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
    optimizer.step()
    optimizer.zero_grad()
"""
# Scores in memory and a buffer as mask unless {flash}; tied embeddings; no dropout; AdamW as torch makes it.
GPT2 = """
import math
import torch
from torch import nn
from torch.nn import functional as F

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(768, 2304), nn.Linear(768, 768)
        self.register_buffer("past", torch.tril(torch.ones(1024, 1024)).view(1, 1, 1024, 1024))

    def forward(self, x):
        q, k, v = (t.view(*x.shape[:2], 12, 64).transpose(1, 2) for t in self.qkv(x).split(768, dim=2))
        if {flash}:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) * (1 / math.sqrt(64))
            y = scores.masked_fill(self.past == 0, -math.inf).softmax(-1) @ v
        return self.out(y.transpose(1, 2).contiguous().view(x.shape))

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(768), Attention(), nn.LayerNorm(768)
        self.mlp = nn.Sequential(nn.Linear(768, 3072), nn.GELU(approximate="tanh"), nn.Linear(3072, 768))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))

class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding({words}, 768), nn.Embedding(1024, 768)
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(12))), nn.LayerNorm(768)
        self.head = nn.Linear(768, {words}, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, labels):
        x = self.tokens(ids) + self.positions(torch.arange(1024, device=ids.device))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.view(-1, {words}), labels.view(-1))

torch.set_float32_matmul_precision("high" if {tf32} else "highest")
model = GPT().cuda()
run = torch.compile(model) if {compiled} else model
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
ids = torch.randint(50257, (16, 1024), device="cuda")
for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.bfloat16, enabled={half}):
        loss = run(ids, ids)
    loss.backward()
    optimizer.step()
"""
# One token at a time into a static cache; the whole step is one CUDA graph. {ranks} share heads and inner layers.
DECODING = """
import torch
import torch._inductor.config
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

torch._inductor.config.coordinate_descent_tuning = True
ranks, layers, dim, heads, shared, inner, words, length = {ranks}, 32, 4096, 32, {shared}, {inner}, {words}, 208
experts, chosen = {experts}, 2
heads, shared, inner, size = heads // ranks, shared // ranks, inner // ranks, 128

def reduced(x):
    if ranks > 1:
        dist.all_reduce(x)
    return x

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(dim, (heads + 2 * shared) * size, bias=False)
        self.out = nn.Linear(heads * size, dim, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, shared, length, size))

    def forward(self, x, place, mask, turn):
        q, k, v = self.qkv(x).split([heads * size, shared * size, shared * size], dim=-1)
        q, k, v = (t.view(1, 1, -1, size).transpose(1, 2) for t in (q, k, v))
        q, k = (torch.cat([t[..., :64] * turn - t[..., 64:], t[..., 64:] * turn + t[..., :64]], -1) for t in (q, k))
        self.keys[:, :, place], self.values[:, :, place] = k, v
        found = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask, enable_gqa=heads != shared)
        return reduced(self.out(found.transpose(1, 2).reshape(1, 1, heads * size)))

class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(dim, inner, bias=False), nn.Linear(dim, inner, bias=False)
        self.down = nn.Linear(inner, dim, bias=False)

    def forward(self, x):
        return reduced(self.down(F.silu(self.gate(x)) * self.up(x)))

class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(dim, experts, bias=False)
        self.gate, self.up = (nn.Parameter(torch.empty(experts, dim, inner)) for _ in range(2))
        self.down = nn.Parameter(torch.empty(experts, inner, dim))

    def forward(self, x):
        weights, which = self.router(x).view(1, experts).softmax(-1).topk(chosen)
        ends = torch.arange(experts, device=x.device, dtype=torch.int32).clamp(max=chosen)
        rows = x.view(1, dim).repeat(chosen, 1)  # one for each expert that is chosen: no other is read
        grouped = lambda a, b: torch._grouped_mm(a, b, offs=ends)
        found = grouped(F.silu(grouped(rows, self.gate)) * grouped(rows, self.up), self.down)
        return reduced((weights.view(chosen, 1) * found).sum(0).view(1, 1, dim))

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.RMSNorm(dim), Attention(), nn.RMSNorm(dim)
        self.mlp = Experts() if experts else Dense()

    def forward(self, x, *where):
        x = x + self.attention(self.norm1(x), *where)
        return x + self.mlp(self.norm2(x))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.layers = nn.Embedding(words, dim), nn.ModuleList(Layer() for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(dim), nn.Linear(dim, words, bias=False)
        self.register_buffer("turns", torch.empty(length, 64))
        self.register_buffer("masks", torch.ones(length, length, dtype=torch.bool).tril())

    def forward(self, token, place):
        x, mask, turn = self.tokens(token), self.masks[place].view(1, 1, 1, length), self.turns[place]
        for layer in self.layers:
            x = layer(x, place, mask, turn)
        best, _ = torch.topk(self.head(self.norm(x))[0, -1] / 0.8, 200)
        chances = torch.softmax(best, -1)
        return torch.argmax(chances / torch.empty_like(chances).exponential_(1), -1, keepdim=True).view(1, 1)

if ranks > 1:
    dist.init_process_group("nccl")
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = Model().eval()
    token, place = torch.zeros(1, 1, dtype=torch.int64), torch.tensor([100])
run = torch.compile(model, mode="reduce-overhead", fullgraph=True)
with torch.no_grad():
    for _ in range(4):
        token = run(token, place)
"""
# 30 steps with guidance (a batch of two), then the image; without the text encoders.
SDXL = """
import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor

torch.set_float32_matmul_precision("high")
cross, plain = "CrossAttn{{}}Block2D", "{{}}Block2D"
blocks = [plain.format("Down"), cross.format("Down"), cross.format("Down")]
unet = UNet2DConditionModel(
    sample_size=128, block_out_channels=(320, 640, 1280), down_block_types=blocks,
    up_block_types=[cross.format("Up"), cross.format("Up"), plain.format("Up")], layers_per_block=2,
    transformer_layers_per_block=[1, 2, 10], attention_head_dim=[5, 10, 20], cross_attention_dim=2048,
    use_linear_projection=True, addition_embed_type="text_time", addition_time_embed_dim=256,
    projection_class_embeddings_input_dim=2816,
)
vae = AutoencoderKL(
    block_out_channels=(128, 256, 512, 512), layers_per_block=2, sample_size=1024,
    down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4,
)
dtype = torch.bfloat16 if {half} else torch.float32
if not {fused}:
    unet.set_attn_processor(AttnProcessor())
    vae.set_attn_processor(AttnProcessor())

class Image(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.unet, self.vae = unet, vae
        self.denoise, self.decode = unet, vae.decode
        if {compiled}:
            self.to(memory_format=torch.channels_last)
            self.denoise = torch.compile(unet, mode="max-autotune", fullgraph=True)
            self.decode = torch.compile(vae.decode, mode="max-autotune", fullgraph=True)

    def forward(self, x, text, added):
        for _ in range(30):
            noise = self.denoise(torch.cat([x, x]), 1, encoder_hidden_states=text, added_cond_kwargs=added).sample
            without, having = noise.chunk(2)
            x = x - 0.1 * (without + 5.0 * (having - without))
        return self.decode(x, return_dict=False)[0]

model = Image().eval().to("cuda", dtype)
x, text = (torch.randn(*shape, device="cuda", dtype=dtype) for shape in ((1, 4, 128, 128), (2, 77, 2048)))
added = dict(text_embeds=torch.randn(2, 1280, device="cuda", dtype=dtype), time_ids=torch.ones(2, 6, device="cuda"))
with torch.no_grad():
    for _ in range(3):
        model(x, text, added)
"""

#: One token at a time, by transformers' own loop.
QWEN = """
import torch
from transformers import Qwen{number}Config, Qwen{number}ForCausalLM

config = Qwen{number}Config(
    num_hidden_layers={layers}, hidden_size={hidden}, intermediate_size={inner}, num_attention_heads={heads},
    num_key_value_heads={shared}, vocab_size={words}, tie_word_embeddings={tied},
)
model = Qwen{number}ForCausalLM(config).to("cuda", torch.bfloat16).eval()
model.generate(torch.ones(1, 1, dtype=torch.long, device="cuda"), max_new_tokens=4, do_sample=False)
"""
# As timm's own script (benchmark.py) runs its models, in mixed precision.
TIMM = """
import torch
import timm
timm.layers.set_fused_attn({fused})
torch.backends.cuda.matmul.allow_tf32 = True
model = timm.create_model("{model}").cuda()
x = torch.randn({batch}, 3, {size}, {size}, device="cuda")
if {last}:
    model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
"""
TIMM_INFERENCE = (
    TIMM
    + """
model.eval()
with torch.no_grad():
    for _ in range(3):
        with torch.autocast("cuda", torch.float16):
            model(x)
"""
)
TIMM_TRAINING = (
    TIMM
    + """
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, nesterov=True)
for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.float16):
        output = model(x)
        loss = torch.nn.functional.cross_entropy(output, torch.randint(1000, ({batch},), device="cuda"))
    loss.backward()
    optimizer.step()
"""
)
