"""What surrounds a program (SPEC L7): files, copies, numpy, loaders, processes, threads, compilers, libraries."""

from __future__ import annotations

import concurrent.futures
import copy
import io
import multiprocessing
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import mindtorch

LAZY = "remote_accelerator:0"
Same = Callable[..., None]


def saved(value: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


# ---- files -----------------------------------------------------------------------------------------------------------
LOCATIONS: dict[str, Any] = {
    "string": "remote_accelerator:1",
    "device": torch.device("remote_accelerator:1"),
    "dict": {"cpu": "remote_accelerator:1"},
}


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("how", LOCATIONS)
def test_L7_load_onto_the_lazy_device(how: str, weights_only: bool, same_bits: Same) -> None:
    x = torch.randn(3, 4)
    state = {"x": x, "rows": x[1:], "t": x.t(), "p": nn.Parameter(x[0] * 2), "n": 3, "b": x.bfloat16(), "none": x[:0]}
    loaded = torch.load(saved(state), map_location=LOCATIONS[how], weights_only=weights_only)
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            assert isinstance(loaded[name], mindtorch.LazyTensor), name
            assert str(loaded[name].device) == "remote_accelerator:1" and loaded[name].stride() == value.stride()
            same_bits(loaded[name], value, name)
    assert isinstance(loaded["p"], nn.Parameter) and loaded["p"].requires_grad and loaded["n"] == 3
    loaded["x"].zero_()  # views of one storage are so after loading, too
    assert loaded["rows"].abs().sum().item() == 0 and loaded["t"].abs().sum().item() == 0
    assert loaded["p"].abs().sum().item() > 0


def test_L7_load_of_a_mapped_file_and_of_nothing_lazy(tmp_path: Any) -> None:
    path = tmp_path / "x.pt"
    torch.save(torch.arange(3.0), path)
    assert torch.load(path, map_location=LAZY, mmap=True).add(1).tolist() == [1.0, 2.0, 3.0]
    assert type(torch.load(path, mmap=True)) is torch.Tensor
    assert type(torch.load(path, map_location="meta")) is torch.Tensor
    with pytest.raises(RuntimeError):
        torch.load(path, map_location="remote_accelerator:x")


def test_L7_load_state_dict_strict_and_assign(same_bits: Same) -> None:
    lazy, plain = nn.Linear(2, 3).to(LAZY), nn.Linear(2, 3)
    expected = plain.weight.detach().clone()
    weight = lazy.weight
    lazy.load_state_dict(plain.state_dict())
    assert lazy.weight is weight and isinstance(weight, mindtorch.LazyTensor)
    same_bits(weight, expected)
    with pytest.raises(RuntimeError, match="Missing key"):
        lazy.load_state_dict({"weight": expected})
    missing = lazy.load_state_dict({"weight": expected.to(LAZY)}, strict=False)
    assert missing.missing_keys == ["bias"]
    with pytest.raises(RuntimeError, match="size mismatch"):
        lazy.load_state_dict({"weight": torch.ones(3, 3), "bias": torch.ones(3)})
    other = nn.Linear(2, 3)
    other.load_state_dict(lazy.state_dict(), assign=True)
    assert isinstance(other.weight, mindtorch.LazyTensor) and isinstance(other.weight, nn.Parameter)
    assert other.weight.requires_grad and str(other.weight.device) == LAZY
    same_bits(other.weight, expected)
    lazy.load_state_dict(plain.state_dict(), assign=True)
    assert type(lazy.weight) is nn.Parameter


# ---- copies, storages, numpy -----------------------------------------------------------------------------------------
def test_L7_copy_deepcopy_and_pickle(same_bits: Same) -> None:
    x = torch.randn(3, device=LAZY) * 2
    other = pickle.loads(pickle.dumps({"x": x, "again": x}))
    assert type(other["x"]) is torch.Tensor
    same_bits(x, other["x"])
    shallow, deep = copy.copy(x), copy.deepcopy([x, x])
    assert deep[0] is deep[1] and deep[0] is not x
    x.add_(1)
    same_bits(shallow, x.cpu(), "copy.copy shares")
    assert not torch.equal(deep[0].cpu(), x.cpu())
    leaf = torch.ones(2, device=LAZY, requires_grad=True)
    (leaf * 3).sum().backward()
    twin = copy.deepcopy(leaf)
    assert twin.grad.tolist() == [3.0, 3.0] and twin.is_leaf and twin.requires_grad


def test_L7_data_of_another_device() -> None:
    """``p.data = lazy`` moves a plain parameter, as ``p.data = p.data.cuda()`` does."""
    model = nn.Linear(2, 2)
    weight, optimizer = model.weight, torch.optim.SGD(model.parameters(), lr=1.0)
    weight.note = "kept"  # type: ignore[attr-defined]
    before = weight.detach().clone()
    for p in model.parameters():
        p.data = p.data.to(LAZY)
    assert model.weight is weight and isinstance(weight, mindtorch.LazyTensor) and isinstance(weight, nn.Parameter)
    assert weight.requires_grad and weight.is_leaf and weight.note == "kept"
    model(torch.ones(1, 2, device=LAZY)).sum().backward()
    optimizer.step()
    assert torch.equal(weight.detach().cpu(), before - 1)
    x = torch.ones(3)
    x.data = torch.arange(2.0, device=LAZY)
    assert isinstance(x, mindtorch.LazyTensor) and (x + 1).tolist() == [1.0, 2.0]
    held = torch.ones(2)
    view = held[0]
    with pytest.raises(mindtorch.LazyTensorError, match="cannot move this tensor"):
        held.data = x
    x.data = held
    assert type(x) is torch.Tensor and x.tolist() == [1.0, 1.0]
    held.data = torch.zeros(2)
    assert held.tolist() == [0.0, 0.0] and view.item() == 1.0 and type(held.data) is torch.Tensor


def test_L3_questions_about_metadata_run_nothing() -> None:
    x = torch.ones(3, 2, device=LAZY) * 2
    y = x[1:]
    ran = mindtorch.stats()["ops_executed"]
    assert x.is_same_size(x + 1) and not x.is_same_size(y)
    assert x.is_set_to(x) and x.is_set_to(x.view(3, 2)) and not x.is_set_to(y) and not x.is_set_to(x + 0)
    assert x.dense_dim() == 2 and not x.is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        x.pin_memory()
    assert mindtorch.stats()["ops_executed"] == ran


@pytest.mark.only_on("local", reason="values elsewhere cannot be in shared memory (tests/remote)")
def test_L7_shared_memory() -> None:
    x = torch.ones(3, device=LAZY) * 2
    assert x.share_memory_() is x and x.is_shared() and (x + 1).tolist() == [3.0] * 3
    model = nn.Linear(2, 2).to(LAZY)
    assert model.share_memory() is model and model(torch.ones(1, 2, device=LAZY)).cpu().shape == (1, 2)


def test_L7_numpy_and_dlpack() -> None:
    x = torch.arange(3.0, device=LAZY) + 1
    arrays = (x.numpy(), numpy.asarray(x), numpy.from_dlpack(x), numpy.array(x.view(1, 3))[0])
    assert all(a.tolist() == [1.0, 2.0, 3.0] for a in arrays)
    taken = torch.from_dlpack(x), torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))
    assert all(type(t) is torch.Tensor and t.tolist() == [1.0, 2.0, 3.0] for t in taken)
    x.add_(1)
    assert arrays[0].tolist() == [1.0, 2.0, 3.0] and taken[0].tolist() == [1.0, 2.0, 3.0], "a copy was handed over"
    assert numpy.add(x, 1).tolist() == [3.0, 4.0, 5.0]
    assert torch.from_numpy(arrays[0]).to(LAZY).tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(RuntimeError, match="requires grad"):
        x.requires_grad_().numpy()


# ---- loaders, processes, threads -------------------------------------------------------------------------------------
class Made(Dataset):
    """Makes its items on a device, also in a worker."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> Any:
        return {"x": torch.full((2,), float(i), device=self.device) * 2, "i": i}


def test_L7_loader_with_workers_and_pinned_batches(same_bits: Same) -> None:
    loader = DataLoader(Made("cpu"), 4, num_workers=2, pin_memory=True)
    batches = [batch["x"].to(LAZY, non_blocking=True) + batch["i"].to(LAZY)[:, None] for batch in loader]
    same_bits(torch.cat(batches), torch.arange(8.0)[:, None].expand(8, 2) * 3)


FORKED = pytest.mark.only_on("local", "loopback", reason="a process that was forked has no worker")


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=FORKED)])
def test_L7_loader_of_lazy_tensors(workers: int) -> None:
    batches = [batch["x"].sum().item() for batch in DataLoader(Made(LAZY), 4, num_workers=workers)]
    assert batches == [24.0, 88.0]
    held = TensorDataset(torch.arange(8.0, device=LAZY) + 1)
    assert [x.tolist() for (x,) in DataLoader(held, 4, num_workers=workers)] == [[1, 2, 3, 4], [5, 6, 7, 8]]


class Failing(Dataset):
    """Its items fail when they are computed: as a worker hands them over, which is no place where anybody looks."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.ones(3, device=LAZY).gather(0, torch.full((1,), 5 + i, device=LAZY))


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.usefixtures("nothing_pending")
def test_L9_items_of_a_loader_that_fail_are_told_of(workers: int) -> None:
    """With an executor in another process a forked worker fails for want of that."""
    with pytest.raises(mindtorch.MaterializationError, match=r"index [57] is out of bounds|lost: a forked process"):
        for batch in DataLoader(Failing(), 2, num_workers=workers):
            batch.tolist()


def test_L9_a_queue_raises_at_its_other_end_what_a_tensor_fails_with() -> None:
    queue = multiprocessing.get_context("fork").Queue()
    queue.put([1, Failing()[0]])
    queue.put(2)
    with pytest.raises(mindtorch.MaterializationError, match=r"could not pass on a tensor: \[aten::gather\] recorded"):
        queue.get(timeout=60)
    assert queue.get(timeout=60) == 2
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        with pytest.raises(mindtorch.MaterializationError, match=r"^\[aten::gather\] recorded in"):
            pool.submit(torch.neg, Failing()[0]).result(60)
        assert pool.submit(abs, -3).result(60) == 3


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_L7_processes(method: str, same_bits: Same) -> None:
    """What a process is given arrives as a plain tensor, as from a file."""
    x = (torch.arange(6.0, device=LAZY).reshape(2, 3).to(torch.bfloat16) + 1).t()
    parameter = nn.Parameter(x[0].float())
    with torch.multiprocessing.get_context(method).Pool(1) as pool:
        same_bits(pool.apply_async(torch.mul, (x, 2)).get(240), x * 2)
        assert pool.apply_async(torch.Tensor.stride, (x,)).get(240) == x.stride()
        kind = pool.apply_async(type, (parameter,)).get(240)
        assert kind is nn.Parameter


def test_L7_queues_between_processes() -> None:
    queue = multiprocessing.get_context("fork").Queue()
    frozen = nn.Parameter(torch.zeros(1, device=LAZY), False)
    queue.put([torch.ones(2, device=LAZY) * 3, frozen, torch.ones(0, device=LAZY)])
    first, second, third = queue.get(timeout=60)
    assert first.tolist() == [3.0, 3.0] and isinstance(second, nn.Parameter) and not second.requires_grad
    assert type(first) is torch.Tensor and third.shape == (0,)


@FORKED
def test_L7_a_forked_child_draws_what_the_parent_would() -> None:
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    torch.manual_seed(3)
    process = context.Process(target=lambda: queue.put(torch.randn(2, device=LAZY).tolist()))
    process.start()
    process.join(120)
    assert queue.get() == torch.randn(2, device=LAZY).tolist()


def test_L7_threads_train_at_once(same_bits: Same) -> None:
    def work(k: int, d: str) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(k)
        w = torch.randn(4, 4, generator=generator).to(d).requires_grad_()
        buffer = torch.zeros(8, 4, device=d)
        optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)
        for step in range(30):
            x = torch.randn(2, 4, generator=generator).to(d)
            loss = (x @ w).tanh().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            buffer[step % 8].copy_(w.detach().sum(0))
            if step % 7 == k:
                loss.item()
        return [w.detach(), buffer]

    expected = [work(k, "cpu") for k in range(4)]
    results: dict[int, Any] = {}

    def run(k: int) -> None:
        try:
            results[k] = work(k, LAZY)
        except BaseException as error:
            results[k] = error

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    for k in range(4):
        assert isinstance(results[k], list), results[k]
        for got, value in zip(results[k], expected[k]):
            same_bits(got, value, f"thread {k}")


# ---- compilers and transforms ----------------------------------------------------------------------------------------
def test_L7_scripted_and_traced_functions(same_as_eager: Same) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).relu().sum(0)

    def program(d: str) -> object:
        x = torch.arange(-6.0, 6.0, device=d).reshape(3, 4)
        return torch.jit.script(f)(x), torch.jit.trace(f, (torch.ones(3, 4),))(x), torch.fx.symbolic_trace(f)(x)

    same_as_eager(program)


def transforms(d: str) -> object:
    F = torch.func
    w, x = torch.randn(3, 4, device=d), torch.randn(5, 4, device=d)
    loss = lambda w, v: (w @ v).sin().sum()  # noqa: E731
    return (
        F.grad_and_value(loss, argnums=(0, 1))(w, x[0]),
        F.vmap(lambda v: torch.where(v > 0, v, w[0]).cumsum(0), out_dims=1)(x),
        F.vmap(F.vmap(lambda a, b: a * b, (None, 0)), (0, None))(w[0], x[0]),
        F.vmap(lambda v: v + torch.randn(4, device=d), randomness="different")(x).shape,
        F.jvp(lambda v: loss(w, v), (x[0],), (x[1],)),
        F.vjp(lambda v: w @ v, x[0])[1](torch.ones(3, device=d)),
        F.jacfwd(lambda v: (w @ v).tanh())(x[0]),
        F.jacrev(lambda v: (w @ v).tanh())(x[0]),
        F.hessian(lambda v: loss(w, v))(x[0]),
        F.functionalize(lambda v: v.clone().add_(1))(x),
        torch.autograd.functional.jacobian(lambda v: w @ v, x[0]),
        torch.vmap(lambda v: v.sort().values, in_dims=1)(x),
    )


def test_L7_a_graph_traced_from_a_lazy_input_is_not_a_constant(same_bits: Same) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.arange(-3.0, 3.0).reshape(2, 3)
    graph = make_fx(lambda a: (a @ a.T).relu() + 1)(x.to(LAZY))
    same_bits(graph(x.to(LAZY) * 2), ((x * 2) @ (x * 2).T).relu() + 1)


# ---- libraries of torch ----------------------------------------------------------------------------------------------
def distributions(d: str) -> object:
    D = torch.distributions
    one, two = torch.ones(3, device=d), torch.full((3,), 2.0, device=d)
    made: list[Any] = [
        D.Normal(one, two),
        D.Gamma(one, two),
        D.Beta(one, two),
        D.Dirichlet(two),
        D.Bernoulli(one / 4),
        D.Binomial(4, one / 4),
        D.Categorical(logits=two),
        D.Poisson(two),
        D.StudentT(two),
        D.Uniform(one, two),
        D.Laplace(one, two),
        D.MultivariateNormal(one, torch.eye(3, device=d) * 2),
        D.Independent(D.Normal(one, two), 1),
        D.TransformedDistribution(D.Normal(one, two), [D.transforms.TanhTransform()]),
        D.MixtureSameFamily(D.Categorical(probs=one / 3), D.Normal(one, two)),
        D.OneHotCategorical(probs=one / 3),
        D.Multinomial(5, probs=one / 3),
        D.VonMises(one, two),
    ]
    samples = [dist.sample((2,)) for dist in made]
    return (
        samples,
        [dist.log_prob(s) for dist, s in zip(made, samples) if not isinstance(dist, D.TransformedDistribution)],
        [dist.entropy() for dist in made[:7]],
        D.kl_divergence(made[0], D.Normal(two, one)),
        D.kl_divergence(made[1], D.Gamma(two, one)),
    )


def gradients_through_samples(d: str) -> object:
    loc = torch.zeros(3, device=d, requires_grad=True)
    scale = torch.ones(3, device=d, requires_grad=True)
    for dist in (torch.distributions.Normal(loc, scale), torch.distributions.Gamma(loc.exp(), scale)):
        dist.rsample((4,)).square().mean().backward()
    return loc.grad, scale.grad


def linear_algebra(d: str) -> object:
    L = torch.linalg
    torch.manual_seed(0)
    a = torch.randn(4, 4, device=d)
    s = a @ a.T + 4 * torch.eye(4, device=d)
    b = torch.randn(4, 2, device=d)
    # Not lstsq: eager's own last bits depend on where the operands lie.
    return (
        L.inv(a), L.det(a), L.slogdet(a), L.solve(a, b), L.cholesky(s), L.qr(a), L.eigh(s), L.svd(a),
        L.pinv(a), L.matrix_rank(a), L.norm(a), L.vector_norm(a, 3), L.matrix_power(a, 3),
        L.matrix_exp(a), L.lu(a), L.lu_factor(a), L.solve_triangular(s.triu(), b, upper=True), L.eigvals(a), L.eig(a),
        L.multi_dot([a, b, b.T]), L.cross(a[:, :3], b.repeat(1, 2)[:, :3]), L.householder_product(a, b[:, 0]),
        L.tensorinv(torch.eye(4, device=d).reshape(2, 2, 2, 2)), torch.cholesky_solve(b, L.cholesky(s)), L.vander(b[0]),
    )  # fmt: skip


def fourier(d: str) -> object:
    f = torch.fft
    x = torch.randn(4, 6, device=d)
    z = f.fft(x)
    return (
        z, f.ifft(z), f.rfft(x), f.irfft(f.rfft(x)), f.fft2(x), f.fftn(x), f.rfft2(x), f.hfft(z), f.ihfft(x),
        f.fftshift(z), f.ifftshift(z), f.fftfreq(5, device=d), f.rfftfreq(5, device=d), z.conj() * z,
        z.abs(), z.angle(), torch.view_as_real(z),
        torch.stft(x[0], 4, return_complex=True, window=torch.ones(4, device=d)),
        torch.istft(torch.stft(x, 4, return_complex=True, window=torch.ones(4, device=d)), 4,
                    window=torch.ones(4, device=d)),
    )  # fmt: skip


@pytest.mark.parametrize(
    "program", [transforms, distributions, gradients_through_samples, linear_algebra, fourier], ids=lambda p: p.__name__
)
def test_L7_libraries(program: Callable[[str], object], same_as_eager: Same) -> None:
    same_as_eager(program)


def test_L7_sparse_quantized_and_nested_inputs(same_as_eager: Same) -> None:
    def program(d: str) -> object:
        x = torch.eye(3, device=d) * 2
        y = torch.arange(6.0, device=d).reshape(3, 2)
        s, csr = x.to_sparse(), x.to_sparse_csr()
        q = torch.quantize_per_tensor(y, 0.1, 0, torch.qint8)
        table = nn.Embedding(4, 2, sparse=True).to(d)
        with torch.no_grad():
            table.weight.copy_(torch.arange(8.0).reshape(4, 2))
        table(torch.tensor([1, 1, 3], device=d)).sum().backward()
        torch.optim.SparseAdam(table.parameters()).step()
        nested = torch.nested.nested_tensor([y[0], y[:, 0]])
        return (
            s.to_dense(), torch.sparse.mm(s, y), s @ y, csr @ y, (s + s).to_dense(), s.coalesce().values(),
            q.dequantize(), q.int_repr(), q.q_scale(), q.is_quantized, s.is_sparse, table.weight,
            table.weight.grad.is_sparse,
            torch.fake_quantize_per_tensor_affine(y, 0.1, 0, 0, 255),
            [t + 1 for t in nested.unbind()], nested.to_padded_tensor(0.0),
        )  # fmt: skip

    def plain(value: object) -> object:
        # What eager runs gave may be torch's own tensors on either side: compare values.
        if isinstance(value, torch.Tensor):
            return value.detach().cpu()
        return [plain(v) for v in value] if isinstance(value, (tuple, list)) else value

    same_as_eager(lambda d: plain(program(d)))


@pytest.mark.parametrize("grad", [True, False], ids=["grad_mode", "no_grad"])
def test_L7_results_have_torchs_names(grad: bool) -> None:
    x, lazy = torch.randn(4, 4), torch.randn(4, 4, device=LAZY)
    calls: list[Callable[[torch.Tensor], Any]] = [
        lambda t: torch.max(t, 1), lambda t: t.min(0), lambda t: t.topk(2), lambda t: t.sort(), lambda t: t.kthvalue(2),
        lambda t: t.aminmax(), lambda t: t.cummax(0), lambda t: torch.mode(t), lambda t: t.median(1),
        lambda t: t.frexp(), lambda t: t.slogdet(), torch.linalg.qr, torch.linalg.svd, torch.linalg.inv_ex,
        lambda t: torch.linalg.eigh(t @ t.T),
        torch.var_mean, lambda t: t.split(2), lambda t: torch.unbind(t),
    ]  # fmt: skip
    with torch.set_grad_enabled(grad):
        for call in calls:
            assert type(call(lazy)) is type(call(x))
            assert type(call(lazy)) is type(call(x)), "the second time, too"
        assert torch.max(lazy, 1).values.shape == (4,)


def test_L2_the_old_constructor_stays_on_the_device() -> None:
    x = torch.ones(2, dtype=torch.float64, device=LAZY)
    made = [x.new(2, 3), x.new([1, 2]), x.new(), x.new(torch.Size([2])), x.new(x)]
    assert all(isinstance(t, mindtorch.LazyTensor) and t.dtype is torch.float64 for t in made)
    assert [tuple(t.shape) for t in made] == [(2, 3), (2,), (0,), (2,), (2,)] and made[1].tolist() == [1.0, 2.0]
