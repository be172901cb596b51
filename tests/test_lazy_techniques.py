"""The same answer as eager, bit for bit (SPEC L7): what training loops do besides stepping an optimizer.

Twenty steps of each technique, on the CPU and on the lazy device; see ``same_as_eager`` in conftest.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import swa_utils
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import mindtorch

LAZY = "remote_accelerator:0"
STEPS = 20
Same = Callable[..., None]


def mlp(d: str) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 12), nn.LayerNorm(12), nn.GELU(), nn.Dropout(0.2), nn.Linear(12, 3)).to(d)


def batches(d: str, steps: int = STEPS) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    for _ in range(steps):
        yield torch.randn(6, 5, device=d), torch.randint(0, 3, (6,), device=d)


def end(model: nn.Module, optimizer: torch.optim.Optimizer, losses: list[torch.Tensor]) -> object:
    """Everything that training changed."""
    state = [{k: v for k, v in s.items() if k != "step"} for s in optimizer.state_dict()["state"].values()]
    return losses, dict(model.named_parameters()), dict(model.named_buffers()), state


def train(
    model: nn.Module,
    d: str,
    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    before_step: Callable[[], object] | None = None,
    after_step: Callable[[], object] | None = None,
    every: int = 1,
) -> object:
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=0.01)
    losses = []
    for i, (x, y) in enumerate(batches(d)):
        loss = loss_of(x, y) if loss_of else F.cross_entropy(model(x), y)
        (loss / every).backward()
        losses.append(loss.detach())
        if (i + 1) % every == 0:
            if before_step:
                before_step()
            optimizer.step()
            optimizer.zero_grad()
            if after_step:
                after_step()
    return end(model, optimizer, losses)


# ---- techniques ------------------------------------------------------------------------------------------------------
def accumulation(d: str) -> object:
    model = mlp(d)
    return train(model, d, every=4, before_step=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=True))


def clipping_by_hand(d: str) -> object:
    model = mlp(d)

    def clip() -> None:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        total = torch.linalg.vector_norm(torch.stack([g.norm() for g in grads]))
        if total > 0.3:  # reads the value
            torch._foreach_mul_(grads, 0.3 / (total + 1e-6))

    return train(model, d, before_step=clip)


def ema_weights(d: str) -> object:
    model = mlp(d)
    averaged = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True)
    return train(model, d, after_step=lambda: averaged.update_parameters(model)), averaged.state_dict()


def swa_weights(d: str) -> object:
    model = nn.Sequential(mlp(d), nn.BatchNorm1d(3).to(d))
    averaged = swa_utils.AveragedModel(model)
    trained = train(model, d, after_step=lambda: averaged.update_parameters(model))
    swa_utils.update_bn([x for x, _ in batches(d, 3)], averaged)
    return trained, averaged.state_dict()


def ema_by_hand(d: str) -> object:
    model, shadow = mlp(d), mlp(d).requires_grad_(False)

    @torch.no_grad()
    def update() -> None:
        for s, p in zip(shadow.parameters(), model.parameters()):
            s.mul_(0.9).add_(p, alpha=0.1)
            s.data.clamp_(-1, 1)

    return train(model, d, after_step=update), dict(shadow.named_parameters())


def schedulers(d: str) -> object:
    model = mlp(d)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
    plan = torch.optim.lr_scheduler.SequentialLR(
        optimizer, [warm, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)], [5]
    )
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    losses, rates = [], []
    for x, y in batches(d):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        plan.step()
        plateau.step(loss.detach())  # compares it with the best so far
        losses.append(loss.detach())
        rates.append(optimizer.param_groups[0]["lr"])
    return end(model, optimizer, losses), rates


def checkpointing(d: str, reentrant: bool) -> object:
    model = mlp(d)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        return F.cross_entropy(checkpoint(model, x, use_reentrant=reentrant), y)

    return train(model, d, loss)


def checkpointing_reentrant(d: str) -> object:
    return checkpointing(d, True)


def checkpointing_without_reentry(d: str) -> object:
    return checkpointing(d, False)


def checkpointing_in_segments(d: str) -> object:
    model = mlp(d)
    loss = lambda x, y: F.cross_entropy(checkpoint_sequential(model, 2, x, use_reentrant=False), y)  # noqa: E731
    return train(model, d, loss)


def tied_weights(d: str) -> object:
    torch.manual_seed(0)
    table = nn.Embedding(7, 4, padding_idx=0)
    head = nn.Linear(4, 7, bias=False)
    head.weight = table.weight
    model = nn.Sequential(table, nn.LayerNorm(4), head).to(d)
    tokens = torch.tensor([[1, 2, 3, 0], [4, 5, 6, 1]], device=d)
    loss = lambda x, y: F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())  # noqa: E731
    return train(model, d, loss), model[0].weight is model[2].weight


def frozen_layers(d: str) -> object:
    model = mlp(d)
    model[0].requires_grad_(False)
    model[1].eval()

    def thaw(calls: list[int] = []) -> None:  # noqa: B006 - counts
        calls.append(1)
        model[1].bias.requires_grad_(len(calls) % 2 == 0)

    return train(model, d, after_step=thaw), [p.grad is None for p in model.parameters()]


def hooks_on_gradients(d: str) -> object:
    model = mlp(d)
    seen: list[tuple[int, ...]] = []
    model[0].weight.register_hook(lambda g: g * 0.5)
    model[4].weight.register_post_accumulate_grad_hook(lambda p: nn.utils.clip_grad_value_(p, 0.01))
    model[2].register_full_backward_hook(lambda m, gin, gout: (gin[0] * 2,))
    model[1].register_full_backward_pre_hook(lambda m, gout: (gout[0] + 0.1,))
    model[4].register_forward_hook(lambda m, args, out: out + 0.5)
    model[4].register_forward_pre_hook(lambda m, args: seen.append(tuple(args[0].shape)))
    return train(model, d), seen


def optimizer_in_backward(d: str) -> object:
    model = mlp(d)
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(p: torch.Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    losses = []
    for x, y in batches(d):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        losses.append(loss.detach())
    return losses, dict(model.named_parameters())


def functional_call(d: str) -> object:
    model = mlp(d)
    weights = {k: p.detach().clone().requires_grad_() for k, p in model.named_parameters()}
    losses = []
    for x, y in batches(d):
        loss = F.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)
        grads = torch.autograd.grad(loss, list(weights.values()))
        weights = {k: (p - 0.1 * g).detach().requires_grad_() for (k, p), g in zip(weights.items(), grads)}
        losses.append(loss.detach())
    return losses, weights, dict(model.named_parameters())


def functional_gradients(d: str) -> object:
    model = mlp(d).eval()
    weights = {k: p.detach() for k, p in model.named_parameters()}

    def loss(weights: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.func.functional_call(model, weights, (x[None],)), y[None])

    for x, y in batches(d, 5):
        each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weights, x, y)
        weights = {k: w - 0.1 * each[k].mean(0) for k, w in weights.items()}
    return weights


class Straight(torch.autograd.Function):
    """Rounds forward, passes the gradient through: saves tensors, takes a number, marks one output as constant."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> Any:
        ctx.save_for_backward(x)
        ctx.scale = scale
        inside = x.abs() < 1
        ctx.mark_non_differentiable(inside)
        return (x * scale).round() / scale, inside

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _inside: torch.Tensor) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < 2), None


class Doubled(torch.autograd.Function):
    """Writes its input, and says so."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad * 2


def custom_functions(d: str) -> object:
    model = mlp(d)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rounded, inside = Straight.apply(model[:2](x), 8.0)
        return F.cross_entropy(model[2:](Doubled.apply(rounded * 1)), y) + inside.sum() * 0.0

    return train(model, d, loss)


def gradient_penalty(d: str) -> object:
    model = mlp(d)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return F.cross_entropy(out, y) + slope.square().sum()

    return train(model, d, loss)


def parametrized(d: str) -> object:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(5, 8)),
        nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)),
        nn.Linear(8, 3),
    ).to(d)
    return train(model, d)


def recurrent(d: str) -> object:
    torch.manual_seed(0)
    cell, head = nn.GRUCell(5, 6).to(d), nn.Linear(6, 3).to(d)
    model = nn.ModuleList([cell, head])

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(6, 6, device=d)
        outs = torch.empty(3, 6, 6, device=d)
        for t in range(3):  # each state is written into a slice
            h = cell(x + t, h)
            outs[t] = h
        return F.cross_entropy(head(outs.mean(0)), y)

    return train(model, d, loss)


TECHNIQUES = [
    accumulation,
    clipping_by_hand,
    ema_weights,
    swa_weights,
    ema_by_hand,
    schedulers,
    checkpointing_reentrant,
    checkpointing_without_reentry,
    checkpointing_in_segments,
    tied_weights,
    frozen_layers,
    hooks_on_gradients,
    optimizer_in_backward,
    functional_call,
    functional_gradients,
    custom_functions,
    gradient_penalty,
    parametrized,
    recurrent,
]


@pytest.mark.parametrize("program", TECHNIQUES, ids=lambda p: p.__name__)
def test_L7_techniques(program: Callable[[str], object], same_as_eager: Same) -> None:
    same_as_eager(program)


@pytest.mark.parametrize("device_type", ["cpu", "remote_accelerator"])
@pytest.mark.parametrize("with_checkpoint", [False, True], ids=["plain", "checkpointing"])
def test_L7_training_under_autocast(device_type: str, with_checkpoint: bool, same_as_eager: Same) -> None:
    """bfloat16 by torch.autocast, for the CPU or for the lazy device: eager has the CPU's either way."""

    def program(d: str) -> object:
        model = mlp(d)

        def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu" if d == "cpu" else device_type, dtype=torch.bfloat16):
                out = checkpoint(model, x, use_reentrant=False) if with_checkpoint else model(x)
                return F.cross_entropy(out, y)

        return train(model, d, loss)

    same_as_eager(program)


def test_L7_autocast_as_a_decorator_and_switched_off_inside(same_as_eager: Same) -> None:
    def program(d: str) -> object:
        kind = "cpu" if d == "cpu" else "remote_accelerator"
        w = torch.randn(4, 4, device=d, requires_grad=True)

        @torch.autocast(kind, dtype=torch.bfloat16)
        def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            a = x @ w
            with torch.autocast(kind, enabled=False):
                b = a.float() @ w
            return a, b, (a @ w), torch.is_autocast_enabled("cpu")

        x = torch.randn(2, 4, device=d)
        a, b, c, on = f(x)
        (a.float().sum() + b.sum() + c.float().sum()).backward()
        return a, b, c, on, w.grad

    same_as_eager(program)


slopes = torch.tensor([0.5, 0.25])


def test_L7_flex_attention_with_functions_that_refer_to_tensors(
    same_as_eager: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.nn.attention import flex_attention as flex

    def program(d: str) -> object:
        monkeypatch.setitem(globals(), "slopes", slopes.to(d))  # as a script has them
        q, k, v = (torch.randn(1, 2, 128, 16, device=d) for _ in range(3))
        documents = torch.arange(128, device=d) // 64
        mask = flex.create_block_mask(lambda b, h, i, j: (i >= j) & (documents[i] == documents[j]), 1, 1, 128, 128, d)
        assert mask.kv_num_blocks.device == q.device
        out, more = flex.flex_attention(
            q, k, v, lambda s, b, h, i, j: s + slopes[h] * (j - i), mask, return_aux=flex.AuxRequest(lse=True)
        )
        assert out.device == more.lse.device == q.device
        return out, more.lse, flex.flex_attention(q, k, v)

    same_as_eager(program, lazily=False)
    assert flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG is False
    with pytest.raises(ValueError, match="Found input tensors on meta device"):  # as of torch's own
        flex.flex_attention(*[mindtorch.zeros(1, 2, 128, 16, device="meta")] * 3)
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        flex.flex_attention(*[torch.zeros(1, 2, 128, 16, device="remote_accelerator", requires_grad=True)] * 3)


def test_L1_names_of_flex_attention_from_before_the_import(after_torch: Callable[..., Any]) -> None:
    code = """
        import torch, warnings
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        from torch.nn.attention import flex_attention as module
        import mindtorch

        warnings.simplefilter("ignore")
        assert module.flex_attention is flex_attention and not hasattr(flex_attention, "__wrapped__")
        found = []
        for d in ("cpu", "remote_accelerator:0"):
            x = torch.arange(4096.0).view(1, 2, 128, 16).sin().to(d)
            least = torch.tensor(7).to(d)
            mask = create_block_mask(lambda b, h, i, j: i >= j + least, 1, 1, 128, 128, d)
            found.append(flex_attention(x, x, x, lambda s, b, h, i, j: s * 2 + least, mask))
            assert found[-1].device == x.device == mask.kv_indices.device
        print(torch.equal(found[0], found[1].cpu()))
        mindtorch.disable()
        try:
            flex_attention(found[1], found[1], found[1])
        except ValueError as error:
            print("Found input tensors on" in str(error))
    """
    assert after_torch(code).stdout.split() == ["True", "True"]
