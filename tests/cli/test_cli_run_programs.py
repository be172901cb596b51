"""SPEC C9: programs print under ``genie run`` what they print under python, bit for bit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Each program runs here or in another process, by turns; both with --whole.
ROOT = Path(__file__).resolve().parents[2]


def test_C9_what_names_no_device_is_made_there_in_every_thread(runs):
    name = runs.write("""
        import threading
        import numpy as np
        import torch
        from torch import nn

        def places():
            made = [torch.zeros(2), torch.randn(2), torch.tensor([1.0]), torch.arange(3), nn.Linear(2, 2).weight,
                    torch.normal(0.0, 1.0, (2,)), torch.as_tensor([1, 2]), torch.empty(2), torch.eye(2)]
            here = [torch.zeros(2, device="cpu"), torch.from_numpy(np.ones(2)), torch.as_tensor(np.ones(2)),
                    torch.ones(2, device=torch.device("cpu")), torch.ones(1).cpu()]
            with torch.device("cpu"):
                here.append(torch.ones(2))
            print({str(t.device) for t in made}, {str(t.device) for t in here}, torch.get_default_device())

        places()
        thread = threading.Thread(target=places)
        thread.start()
        thread.join()
        print(torch.device("cpu"), torch.ones(2), torch.ones(2, device="remote_accelerator:0"))
    """)
    ran = runs.run(*runs.GENIE, "--device", "remote_accelerator:1", name)
    line = "{'remote_accelerator:1'} {'cpu'} remote_accelerator:1\n"
    assert ran.out == line * 2 + "cpu tensor([1., 1.]) tensor([1., 1.], device='remote_accelerator:0')\n", ran.err


TRAINING = """
    import numpy as np
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler, random_split

    torch.manual_seed(0)

    class Numbers(Dataset):
        def __init__(self):
            self.x = np.random.RandomState(0).randn(48, 10).astype("float32")
        def __len__(self):
            return len(self.x)
        def __getitem__(self, i):
            return torch.from_numpy(self.x[i]) + 0.1 * torch.rand(10), int(self.x[i].sum() > 0)

    def train(loader, model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for epoch in range(2):
            model.train()
            for x, y in loader:
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                print(epoch, loss.item(), (model(x).argmax(1) == y).sum().item())
            schedule.step()
        print(loss, torch.rand(2, device="cpu"), torch.rand(2), next(model.parameters())[0, :3])

    def net():
        return nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))

    if __name__ == "__main__":
        train(DataLoader(Numbers(), batch_size=16, shuffle=True), net())
        made = TensorDataset(torch.randn(40, 10), torch.randint(0, 2, (40,)))
        first, second = random_split(made, [32, 8])
        print(list(second.indices), torch.randperm(5, generator=torch.Generator().manual_seed(3)))
        train(DataLoader(first, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(1)), net())
        train(DataLoader(made, batch_size=8, sampler=WeightedRandomSampler(torch.rand(40), 16)), net())
        train(DataLoader(Numbers(), batch_size=24, num_workers=2), net())
        train(DataLoader(made, batch_size=20, num_workers=1), net())
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("executor", ["local", "loopback", "pipe"])
def test_C9_training_with_loaders_and_dropout_has_pythons_bits(runs, executor):
    runs.same(TRAINING, options=("--executor", executor))


DEFAULT_GENERATOR = """
    import copy
    import pickle
    import torch

    g, h = torch.default_generator, torch.Generator().manual_seed(4)
    seeds = g.manual_seed

    def stands():
        return torch.get_rng_state().tolist() == g.get_state().tolist(), torch.initial_seed(), g.initial_seed()

    torch.manual_seed(0)
    print(torch.rand(2), stands())
    print(g.manual_seed(7) is g, torch.rand(2), stands())
    seeds(8)
    print(torch.randn(3), torch.randperm(5), stands())
    state = g.get_state()
    first = torch.rand(4)
    print(first, g.set_state(state) is g, torch.equal(torch.rand(4), first), stands())
    for other in (g.clone_state(), pickle.loads(pickle.dumps(g)), copy.deepcopy(g)):
        print(torch.rand(3, generator=other), torch.rand(3), type(other) is type(h))
    print(torch.seed() == torch.initial_seed() == g.initial_seed(), g.seed() == torch.initial_seed())
    torch.manual_seed(3)
    with torch.random.fork_rng():
        g.manual_seed(5)
        print(torch.rand(2))
    print(torch.rand(2), torch.nn.init.normal_(torch.empty(3), generator=g), stands())
    g.set_state(h.get_state())
    print(torch.rand(2), torch.rand(2, generator=h), h.initial_seed())
    for wrong in (lambda: g.set_state(torch.zeros(3)), lambda: g.manual_seed("x"), lambda: g.set_state(3)):
        try:
            wrong()
        except (TypeError, RuntimeError) as e:
            print(type(e).__name__, e)
    print(torch.rand(2), stands())
    for seed in (-1, -5, 2**40 + 5, 2**63, 2**64 - 3):
        torch.rand(2)
        g.manual_seed(seed)
        print(stands(), torch.rand(1))
    g.manual_seed(1)
    print([list(t.indices) for t in torch.utils.data.random_split(torch.arange(6), [3, 3])])
"""


@pytest.mark.sample(2)
@pytest.mark.parametrize("options", [(), ("--executor", "pipe"), ("--map", "cuda")], ids=["here", "pipe", "map"])
def test_C9_torchs_default_generator_is_the_devices_by_each_method(runs, options):
    """As data loaders of libraries have it: they draw a seed from it, and seed it as before."""
    runs.same(DEFAULT_GENERATOR, options=options)


@pytest.mark.whole
def test_C9_training_has_pythons_bits_on_a_cluster(runs):
    pytest.importorskip("ray")
    runs.same(TRAINING, options=("--executor", "ray", "--address", "local"))


MIXED = """
    import numpy as np
    import torch

    torch.manual_seed(0)
    X = np.random.RandomState(1).randn(20, 5).astype(np.float32)
    x, w = torch.from_numpy(X), torch.zeros(5, requires_grad=True)
    for _ in range(5):
        loss = ((x @ w - x.sum(1)) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
            w.grad = None
    print(w, loss, w.detach().numpy(), float(loss))
    leaf = torch.from_numpy(np.ones(5, dtype=np.float32)).requires_grad_()  # plain, with a gradient from the device
    optimizer = torch.optim.Adam([leaf, w], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        ((leaf * w).sum() ** 2 + torch.ones(5).dot(leaf)).backward()
        optimizer.step()
    print(leaf, leaf.grad, w, w.grad)
    memory = np.zeros(5, dtype=np.float32)
    shared = torch.from_numpy(memory)
    shared += torch.arange(5)
    shared[1:3] = torch.tensor([7.0, 8.0])
    torch.add(shared, torch.ones(5), out=shared)
    shared.mul_(torch.full((5,), 2.0))
    shared[torch.tensor([0])] = torch.tensor([-1.0])
    print(memory)
    rows = torch.randperm(20)[:4]
    print(x[rows].sum(), x.index_select(0, rows), torch.arange(20)[torch.from_numpy(X[:, 0] > 0)])
    print(torch.cat([torch.from_numpy(X[:2]), torch.ones(1, 5)]), torch.stack((x[0], torch.ones(5))).mean(0))
    print(torch.where(torch.from_numpy(X[:, 0] > 0), torch.ones(20), torch.zeros(20)).sum())
    print(torch.equal(x, torch.tensor(X)), torch.Tensor([1, 2]) * torch.ones(2), np.asarray(torch.ones(2)))
    grid = torch.zeros(3, 3)
    grid[0] = torch.from_numpy(X[0, :3])
    grid[torch.tensor([1, 2]), torch.tensor([0, 1])] = torch.from_numpy(X[1, :2])
    print(grid, torch.nn.functional.embedding(torch.from_numpy(np.array([0, 2])), grid))
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("executor", ["pipe", "local"])
def test_C9_plain_tensors_join_those_on_the_device(runs, executor):
    runs.same(MIXED, options=("--executor", executor))


DRAWS = """
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.manual_seed(3)
    here = torch.empty(3, device="cpu")
    print(torch.rand(2), torch.rand(2, device="cpu"), torch.randn(3), here.normal_(), torch.randint(9, (3,)))
    print(F.dropout(here, 0.5), torch.rand_like(here), F.dropout(torch.ones(4), 0.5), torch.bernoulli(here.sigmoid()))
    print(torch.normal(here, 1.0), torch.normal(torch.zeros(2), 1.0), torch.multinomial(here.abs(), 2))
    print(F.rrelu(-here.abs(), training=True), F.gumbel_softmax(here))
    print(torch.distributions.Gamma(here.exp(), 1.0).sample(), torch.distributions.Dirichlet(here.exp()).sample())
    lstm = nn.LSTM(2, 3, num_layers=2, dropout=0.5, device="cpu")
    print(lstm(torch.ones(2, 1, 2, device="cpu"))[0], torch.rand(1))
    q = torch.ones(1, 2, 4, 8, device="cpu")
    print(F.scaled_dot_product_attention(q, q, q, dropout_p=0.5).sum(), torch.rand(1))
    state = torch.get_rng_state()
    first = torch.rand(2), torch.rand(2, device="cpu")
    torch.set_rng_state(state)
    print(torch.equal(first[0], torch.rand(2)), torch.equal(first[1], torch.rand(2, device="cpu")))
    with torch.random.fork_rng():
        print(torch.rand(2))
    print(torch.rand(2), torch.initial_seed(), torch.rand(2, generator=torch.manual_seed(5)), torch.rand(1))
    own = torch.Generator().manual_seed(7)
    print(torch.randn(2, generator=own), torch.empty(2).uniform_(generator=own))
    print(torch.randn(2, device="cpu", generator=own))
    default = torch.Generator(device=torch.get_default_device()).manual_seed(9)  # as accelerate makes one
    data = torch.utils.data.TensorDataset(torch.arange(6))
    print([x.tolist() for (x,) in torch.utils.data.DataLoader(data, 2, shuffle=True, generator=default)])
    print(nn.init.orthogonal_(torch.empty(2, 2)), nn.init.trunc_normal_(torch.empty(2, device="cpu")), torch.rand(1))
    torch.seed()
    assert not torch.equal(torch.rand(2), torch.rand(2))
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("executor", ["local", "pipe"])
def test_C9_draws_here_and_there_are_one_sequence(runs, executor):
    runs.same(DRAWS, options=("--executor", executor))


@pytest.mark.sample(1)
@pytest.mark.parametrize("executor", ["pipe", "local"])
def test_C9_the_example_prints_the_same_text_and_losses(runs, executor):
    small = ["--layers", "2", "--width", "48", "--vocab", "101", "--seq", "8", "--decode", "3", "--steps", "3"]
    line = [str(ROOT / "examples" / "gpt2.py"), *small]
    options = ["--device", "remote_accelerator:0", "--executor", executor]
    plain, under = runs.each([sys.executable, *line], [*runs.GENIE, *options, *line])
    assert under.out == plain.out and plain.out.count("loss") == 3 and "generated [[" in plain.out, under.err


TRANSFORMERS = """
    import tempfile
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=99, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1)
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.randint(2, 99, (2, 12))
    for _ in range(3):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item())
    model.eval()
    print(model.generate(ids[:, :4], max_new_tokens=5, do_sample=True, top_k=20, pad_token_id=0).tolist())
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        again = GPT2LMHeadModel.from_pretrained(folder)
    print({p.device for p in again.parameters()} == {torch.ones(1).device}, again(ids).logits.sum().item())
    print(torch.rand(1))
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("executor", ["local", "pipe"])
def test_C9_a_model_of_transformers_trains_generates_and_is_loaded(runs, executor):
    pytest.importorskip("transformers")
    runs.same(TRANSFORMERS, options=("--executor", executor))


CHECKPOINTS = """
    import copy
    import os
    import torch
    from torch import nn
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(1)

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.out = nn.Embedding(20, 8, padding_idx=0), nn.Linear(24, 3)
            self.rnn = nn.LSTM(8, 12, num_layers=2, batch_first=True, bidirectional=True, dropout=0.2)
            self.mix = nn.Sequential(nn.Linear(24, 24), nn.Dropout(0.1))

        def forward(self, x, lengths):
            packed = pack_padded_sequence(self.embedding(x), lengths, batch_first=True, enforce_sorted=False)
            out, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
            return self.out(checkpoint(self.mix, out, use_reentrant=False).mean(1))

    rows = [torch.randint(1, 20, (n,)) for n in (3, 7, 5, 2)]
    x, lengths, y = pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows]), torch.arange(4) % 3
    model = Tagger()
    average = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)

    def step():
        optimizer.zero_grad()
        for part in (slice(0, 2), slice(2, 4)):  # accumulated
            loss = nn.functional.cross_entropy(model(x[part], lengths[part]), y[part], label_smoothing=0.1) / 2
            loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for p, q in zip(average.parameters(), model.parameters()):
                p.mul_(0.9).add_(q, alpha=0.1)
        return loss.item(), norm.item()

    print([step() for _ in range(3)])
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict(),
                "draws": torch.get_rng_state(), "average": average.state_dict()}, f"{os.getpid()}.pt")
    first = [step() for _ in range(2)]
    kept = torch.load(f"{os.getpid()}.pt")
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    schedule.load_state_dict(kept["schedule"])
    torch.set_rng_state(kept["draws"])
    print(first == [step() for _ in range(2)], first)
    average.load_state_dict(kept["average"])
    print(average.eval()(x, lengths), schedule.get_last_lr())
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("executor", ["pipe", "local"])
def test_C9_checkpoints_packed_sequences_and_averages_have_pythons_bits(runs, executor):
    runs.same(CHECKPOINTS, options=("--executor", executor))


def test_C9_sparse_tensors_and_the_old_constructors(runs):
    runs.same("""
        import numpy as np
        import torch
        import torch.nn.functional as F
        from torch import nn

        torch.manual_seed(1)

        class Layer(nn.Module):
            def __init__(self, i, o):
                super().__init__()
                self.weight, self.bias = nn.Parameter(torch.FloatTensor(i, o)), nn.Parameter(torch.Tensor(o))
                self.weight.data.uniform_(-0.5, 0.5)
                self.bias.data.zero_()

            def forward(self, x, adjacent):
                return torch.spmm(adjacent, torch.mm(x, self.weight)) + self.bias

        edges = (np.random.RandomState(0).rand(12, 12) > 0.6).astype(np.float32)
        index = torch.from_numpy(np.vstack(edges.nonzero()).astype(np.int64))
        adjacent = torch.sparse_coo_tensor(index, torch.from_numpy(edges[edges.nonzero()]), (12, 12))
        x = torch.from_numpy(np.random.RandomState(1).randn(12, 4).astype(np.float32))
        y = torch.LongTensor([0, 1, 2] * 4)
        first, second = Layer(4, 8), Layer(8, 3)
        optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.05, weight_decay=5e-4)
        for _ in range(3):
            optimizer.zero_grad()
            out = F.log_softmax(second(F.dropout(F.relu(first(x, adjacent)), 0.5), adjacent), dim=1)
            loss = F.nll_loss(out[:6], y[:6])
            loss.backward()
            optimizer.step()
            print(loss.data.item(), out.data.max(1)[1].eq(y).sum().item(), first.weight.grad.sum())
        print(torch.sparse.mm(torch.eye(12).to_sparse(), torch.ones(12, 2)).sum(), adjacent.to_dense().sum())
    """)


def test_C9_a_compiled_function_and_a_custom_one(runs):
    runs.same("""
        import torch

        torch.manual_seed(0)

        @torch.compile(backend="eager", fullgraph=True)
        def compiled(x, y):
            return torch.sin(x) + y.relu() + torch.ones(3)

        class Square(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x

            @staticmethod
            def backward(ctx, g):
                return 2 * ctx.saved_tensors[0] * g * torch.ones(3)

        x = torch.randn(3, requires_grad=True)
        out = Square.apply(compiled(x, torch.randn(3)))
        out.sum().backward()
        print(out, x.grad, torch.vmap(torch.sum)(torch.ones(2, 3)), torch.func.grad(lambda a: a @ a)(torch.ones(3)))
    """)


FOR_DEPLOYMENT = """
    import torch
    from torch import nn

    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3)
        def forward(self, x):
            return self.inner(x) + torch.ones(3)

    torch.manual_seed(0)
    model = Shifted()
    print(model(torch.rand(2, 3)))
    model.cpu()
    exported = torch.export.export(model, (torch.ones(2, 3),))
    print(len(exported.graph.nodes), exported.module()(torch.rand(2, 3)))
    traced = torch.jit.trace(model, torch.ones(2, 3))
    print(traced(torch.rand(2, 3)), torch.rand(2))
    traced.save("traced.pt")
    print(torch.jit.load("traced.pt")(torch.ones(2, 3)))
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("executor", ["local", "pipe"])
def test_C9_a_model_moved_to_the_cpu_is_exported_and_traced_there(runs, executor):
    runs.same(FOR_DEPLOYMENT, options=("--executor", executor))


def test_C9_the_programs_own_log_has_no_line_of_ours(runs):
    """A program that logs to the terminal, or to a file, by the root logger."""
    runs.same("""
        import logging, sys
        logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s %(levelname)s %(message)s")
        import torch
        logging.info("begins")
        x = torch.randperm(5)
        print(torch.ones(4).nonzero().shape, x.sort().values.tolist(), x[x > 3].tolist())
    """)


def test_M4_a_program_that_knows_nothing_of_mindtorch_reads_no_memory_for_values(runs):
    """Where torch says that there are none."""
    text = """
        import torch
        x = torch.ones(2)
        for make in (
            lambda: x.to("meta"), lambda: torch.empty_like(x, device="meta"), lambda: x.new_zeros(2, device="meta"),
            lambda: torch.nn.Linear(2, 2).to("meta").weight, lambda: x.to(device="meta", dtype=torch.half),
            lambda: torch.ones(2, device="meta"), lambda: torch.nn.Linear(2, 2, device="meta").weight,
        ):
            for read in (torch.Tensor.cpu, lambda t: t.to("cpu"), lambda t: t.to(x.device), torch.Tensor.tolist):
                try:
                    print(read(make()))
                except NotImplementedError as error:
                    print("refused")
    """
    name = runs.write(text)
    assert runs.run(*runs.GENIE, name).out == "refused\n" * 28
    knowing = runs.write(
        text.replace("import torch\n", "import mindtorch, torch\n        mindtorch.ones(1, device='meta')\n")
    )
    assert "tensor(" in runs.run(*runs.GENIE, knowing).out
