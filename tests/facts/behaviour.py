"""The second part of ``program.py``: what whole programs do. Run in its namespace, since its facts may load much."""

# ruff: noqa: F821

# ---- autograd, modules, optimizers -----------------------------------------------------------------------------------
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 2))
for parameter in model.parameters():
    parameter.data.fill_(0.01)


def train(make=lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9)):
    torch.manual_seed(0)
    twin = copy.deepcopy(model)
    optimizer = make(twin.parameters())
    for _ in range(3):
        loss = F.cross_entropy(twin(torch.randn(8, 4)), torch.arange(8) % 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [loss.item(), *(p.grad.sum().item() for p in twin.parameters())]


for name in ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam", "Adadelta", "LBFGS"):
    fact(f"train with {name}", lambda name=name: train(lambda ps: getattr(torch.optim, name)(ps)))
for layer in SECTIONS["layers"]:
    torch.manual_seed(1)
    fact(
        f"layer {layer}",
        lambda layer=layer: [
            (k, type(p).__name__, p.device, p.dtype, None if p.is_meta else p.double().sum().item())
            for k, p in eval(layer).named_parameters()
        ],
    )


def infer(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def saved(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


def batches(**options):
    data = torch.utils.data.TensorDataset(torch.arange(6.0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = [b[0].tolist() for b in torch.utils.data.DataLoader(data, 3, **options)]
    return out, [str(w.message) for w in caught]


def backward():
    order = []
    a = torch.ones(2, requires_grad=True)
    a.register_hook(lambda g: order.append("hook"))
    b = (a * 2).clone()
    b.retain_grad()
    b.sum().backward()
    return order, a.grad, b.grad, b.grad_fn.name(), a.grad_fn, b.grad_fn.next_functions[0][0].name()


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        y = torch.zeros(2, 3) @ torch.randn(3, 4, device="cpu")
        return type(y).__name__, y.shape, y.device, y.to("meta").device, torch.tensor([1.0]).dtype


def fx():
    class Adds(nn.Module):
        def forward(self, x):
            return F.relu(x + torch.zeros(2)).to(torch.float64)

    traced = torch.fx.symbolic_trace(Adds())
    made = torch.fx.experimental.proxy_tensor.make_fx(lambda x: x.to(torch.float64) + torch.zeros(2))(torch.ones(2))
    return traced.code, made.code, str(traced.graph)


def scripted():
    def adds(x: torch.Tensor) -> torch.Tensor:
        return x + torch.zeros([2]) + torch.rand([2]) * 0

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(lambda x: x + torch.zeros(2), torch.ones(2)).code, torch.jit.script(adds)(torch.ones(2))


def compiled():
    def noisy(x):
        return x + torch.zeros(2, device=x.device) + torch.ones(2).to(x.dtype)

    return torch.compile(noisy, backend="eager", fullgraph=True)(torch.ones(2))


def in_one_graph(function):
    """How `torch.compile` ends where the graph may not: what stands in torch's place must be traced as torch's own."""
    torch._dynamo.reset()
    x = torch.arange(24.0).view(1, 3, 8)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.compile(function, backend="eager", fullgraph=True)(x)


def default_device(x):
    with torch.device("cpu"):
        return in_one_graph(lambda x: F.linear(x, x[0]) + torch.ones(3))


layers = [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), nn.MultiheadAttention(8, 2).eval()]
for layer in layers:
    for parameter in layer.parameters():
        parameter.data.fill_(0.01)
WHOLE = {
    "a layer of an encoder": lambda x: layers[0](x),
    "attention": lambda x: layers[1](x, x, x),
    "has_torch_function": lambda x: x + torch.overrides.has_torch_function((x,)),
    "clipping": lambda x: nn.utils.clip_grads_with_norm_(layers[1].parameters(), 1.0, x.sum()),
    "transforms": lambda x: (torch.func.vmap(torch.sin)(x), torch.func.grad(lambda t: t.sum())(x)),
    "jacobians": lambda x: (torch.func.jacrev(torch.sin)(x[0, 0]), torch.func.jvp(torch.sin, (x,), (x,))),
    "autocast": lambda x: autocast_product(x),
    "made": lambda x: (torch.zeros(2), torch.as_tensor([1.0]), x.new_ones(2), torch.empty_like(x).copy_(x)),
    "branches": lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
}


def autocast_product(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x.mT


fact("in one graph under a default device", lambda: default_device(None))
for name, function in WHOLE.items():
    fact(f"in one graph {name}", lambda function=function: in_one_graph(function))


def exported():
    class Adds(nn.Module):
        def forward(self, x):
            return x + torch.zeros(2)

    return torch.export.export(Adds(), (torch.ones(2),)).graph_module.code


def flexible():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.manual_seed(0)
    mask = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 128, 128, device="cpu")
    q = torch.randn(1, 1, 128, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return flex_attention(q, q, q, block_mask=mask).sum().item()


def distributed():
    dist.init_process_group(init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)
    t = torch.ones(2)
    dist.all_reduce(t)
    gathered = [None]
    dist.all_gather_object(gathered, {"a": 1})
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    return t, gathered, dist.get_backend(), dist.distributed_c10d._get_default_group().bound_device_id, mesh.device_type


def sharded():
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    module = fully_shard(nn.Linear(4, 4))
    module(torch.ones(1, 4)).sum().backward()
    return type(module).__name__, module.weight.placements, module.weight.device, module.weight.grad.full_tensor()


def data_parallel():
    module = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    module(torch.ones(1, 2)).sum().backward()
    return module.device_type, module.module.weight.grad


def profiled():
    with torch.profiler.profile() as profile:
        torch.ones(2) + 1
    return sorted({e.key for e in profile.key_averages() if e.key.startswith("aten")}), profile.profiler.use_device


def in_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append((torch.ones(2) + 1, torch.is_grad_enabled())))
    thread.start()
    thread.join()
    return found


def in_child():
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(write, text(torch.ones(2) + torch.zeros(2)).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return os.read(read, 1000).decode()


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def doubled():
    a = torch.ones(2, requires_grad=True)
    Double.apply(a).sum().backward()
    return a.grad, Double.apply(a).grad_fn.name()


def warned():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.ones(2).T, torch.ones(2).resize_(3)
        torch.range(0, 1)
    return [(w.category.__name__, os.path.basename(w.filename), w.lineno) for w in caught]


each("modules")
each("programs")
facts["loaded at the end"] = text(sorted(name for name in sys.modules if name.partition(".")[0] == "torch"))
