"""Programs that call a model again with what it gave: those that choose tokens or denoise, and such as only look it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from towers_by_hand import TOKENS, WORDS, D, Layers, Patches, ids, words

STEPS = 4


class Time(nn.Module):
    """`how` it makes a vector of the time: by sines, from a table, or from the number itself."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.line = how, nn.Linear(1 if how == "number" else D, D)
        self.table = nn.Embedding(100, D) if how == "table" else None

    def forward(self, t: Tensor) -> Tensor:
        if self.table is not None:
            return self.line(self.table(t))
        if self.how == "number":
            return self.line(t[:, None].float())
        waves = t[:, None].float() * torch.exp(-torch.arange(D // 2) / D)
        return self.line(torch.cat([waves.sin(), waves.cos()], -1))


class Net(nn.Module):
    """A small U-Net."""

    def __init__(self, how: str = "sines", channels: int = 3) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(channels, D, 3, padding=1), nn.Conv2d(D, D, 3, 2, 1)
        self.up, self.last = nn.ConvTranspose2d(D, D, 2, 2), nn.Conv2d(2 * D, channels, 3, padding=1)
        self.when = Time(how) if how else None

    def forward(self, x: Tensor, t: Tensor | None = None) -> Tensor:
        high = self.one(x).relu()
        low = self.two(high)
        if self.when is not None and t is not None:
            low = low + self.when(t)[:, :, None, None]
        return self.last(torch.cat([self.up(low.relu()), high], 1))


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.when = nn.Linear(D, D), nn.Linear(D, D), Time("sines")

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return (self.one(x) + self.two(x.relu()) + self.when(t)).tanh()


class Residual(Cell):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return x + super().forward(x, t)


class Field(nn.Module):
    """Gets places, of which it makes waves, and no time."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        return self.one(x) + places.sin()


class OfImagesAndWords(nn.Module):
    """Denoises images by what words say; both have a stack."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.image = Layers(words()), Layers(Patches())
        self.when, self.last = Time("sines"), nn.Linear(D, 3 * 16)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        z = self.image(x) + self.text(y).mean(1, keepdim=True) + self.when(t)[:, None]
        z = self.last(z).view(len(x), 2, 2, 3, 4, 4)
        return z.permute(0, 3, 1, 4, 2, 5).reshape(x.shape)


class Whole(nn.Module):
    """A model with its sampler, which is a method."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return (self.net(x, t) - x).square().mean()

    @torch.no_grad()
    def sample(self) -> Tensor:
        return ddim(self.net)


class Rounds(nn.Module):
    """Applies one block again and again, each time with the number of the round."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = Cell()

    def forward(self, x: Tensor) -> Tensor:
        for n in range(STEPS):
            x = x + self.cell(x, torch.full((len(x),), n))
        return x


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Layers(words()), nn.Linear(D, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def noise() -> Tensor:
    return torch.randn(2, 3, 8, 8)


def at(step: int, rows: int = 2) -> Tensor:
    return torch.full((rows,), step)


@torch.no_grad()
def ddim(net: nn.Module) -> Tensor:
    kept = torch.linspace(0.99, 0.05, STEPS)
    x = noise()
    for n in reversed(range(STEPS)):
        made = net(x, at(n))
        clean = (x - (1 - kept[n]).sqrt() * made) / kept[n].sqrt()
        before = kept[n - 1] if n else torch.ones(())
        x = before.sqrt() * clean + (1 - before).sqrt() * made
    return x


@torch.no_grad()
def ddpm(net: nn.Module) -> Tensor:
    x = noise()
    for t in torch.arange(STEPS - 1, -1, -1):
        x = (x - 0.1 * net(x, t.expand(2))) / 0.9 + 0.05 * torch.randn_like(x)
    return x


@torch.no_grad()
def guided(net: nn.Module) -> Tensor:
    """One call for both halves of a batch: with what guides it, and without."""
    x = noise()
    for n in range(STEPS):
        one, two = net(torch.cat([x, x]), at(n, 4)).chunk(2)
        x = x - 0.1 * (two + 3 * (one - two))
    return x


@torch.no_grad()
def guided_in_two(net: nn.Module) -> Tensor:
    x = noise()
    for n in range(STEPS):
        one, two = net(x, at(n)), net(x + 0.0, at(n))
        x = x - 0.1 * (two + 3 * (one - two))
    return x


def one_model(made: Callable[[], nn.Module], program: Callable[[nn.Module], object]) -> Callable[[], object]:
    return lambda: program(made())


@torch.no_grad()
def by_words() -> Tensor:
    net, x, y = OfImagesAndWords(), noise(), ids()
    for n in range(STEPS):
        x = x - 0.1 * net(x, at(n), y)
    return x


#: A program that denoises -> the module that it calls, and how often.
DENOISING: dict[str, tuple[Callable[[], object], str, int | None]] = {
    "DDIM": (one_model(Net, ddim), "Net", STEPS),
    "DDPM": (one_model(Net, ddpm), "Net", STEPS),
    "times in a table": (one_model(lambda: Net("table"), ddim), "Net", STEPS),
    "guided": (one_model(Net, guided), "Net", STEPS),
    "guided in two calls": (one_model(Net, guided_in_two), "Net", 2 * STEPS),
    "by words": (by_words, "OfImagesAndWords", STEPS),
    "a method": (lambda: Whole().sample(), "Whole.net", STEPS),
}


@torch.no_grad()
def integrates(net: nn.Module, *further: Tensor) -> Tensor:
    x = noise()
    for _ in range(STEPS):
        x = x + 0.25 * net(x, *further)
    return x


@torch.no_grad()
def integrates_over(net: nn.Module, further: Callable[[], Tensor]) -> Tensor:
    """Something else in each step."""
    x = noise()
    for _ in range(STEPS):
        x = x + 0.25 * net(x, further())
    return x


@torch.no_grad()
def adds_noise() -> Tensor:
    """The state is of the state before, and of no result."""
    net, x, total = Net(), noise(), torch.zeros(())
    for n in range(STEPS):
        x = 0.9 * x + 0.1 * torch.randn_like(x)
        total = total + net(x, at(n)).square().mean()
    return total


@torch.no_grad()
def noise_again() -> Tensor:
    """The state is of the result and of noise, by numbers from one table, and of no earlier state."""
    net, x, kept = Net(), noise(), torch.linspace(0.1, 0.9, STEPS)
    for n in range(STEPS):
        x = kept[n] * net(x, at(n)) + (1 - kept[n]) * torch.randn_like(x)
    return x


@torch.no_grad()
def mean_of_results() -> Tensor:
    net, x, before = Net(), noise(), noise()
    for n in range(STEPS):
        made = net(x, at(n))
        x, before = 0.5 * (made + before), made
    return x


@torch.no_grad()
def result_is_state(cell: nn.Module) -> Tensor:
    x = torch.randn(2, D)
    for n in range(STEPS):
        x = cell(x, at(n))
    return x


def trains(net: nn.Module | None = None) -> None:
    net = net or Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for n in range(STEPS):
        F.mse_loss(net(noise(), at(n)), noise()).backward()
        optimizer.step()
        optimizer.zero_grad()


def trains_and_samples() -> None:
    net = Net()
    trains(net)
    ddim(net)


@torch.no_grad()
def evaluates() -> Tensor:
    net, total = Net(), torch.zeros(())
    for n in range(STEPS):
        x = noise()
        total = total + (net(x, at(n)) - x).square().mean()
    return total


@torch.no_grad()
def rounds_within() -> Tensor:
    model, x = Rounds(), torch.randn(2, D)
    for _ in range(2):
        model(torch.randn(2, D))
    return model(x)


#: Programs that call a model again, and do not denoise.
NO_DENOISING: dict[str, Callable[[], object]] = {
    "an equation without a time": lambda: integrates(Net("")),
    "an equation whose time is a number": one_model(lambda: Net("number"), ddim),
    "one label in all steps": lambda: integrates(Net("table"), torch.tensor([1, 2])),
    "one time in all steps": lambda: integrates(Net(), at(3)),
    "a recurrent cell": one_model(Cell, result_is_state),
    "a recurrent cell with a residual": one_model(Residual, result_is_state),
    "other places in each step": lambda: integrates_over(Field(), lambda: torch.randn(8, 8)),
    "the samples' numbers": lambda: integrates_over(Net("table"), lambda: torch.arange(2)),
    "adding noise": adds_noise,
    "noise on a result": noise_again,
    "the mean of two results": mean_of_results,
    "training": trains,
    "training, then denoising": trains_and_samples,
    "other data each time": evaluates,
    "rounds within a model": rounds_within,
}


@torch.no_grad()
def likeliest() -> Tensor:
    model, x = Words(), ids()
    for _ in range(STEPS):
        x = torch.cat([x, model(x)[:, -1:].argmax(-1)], 1)
    return x


@torch.no_grad()
def drawn() -> Tensor:
    model, x = Words(), ids()
    for _ in range(STEPS):
        best, places = (model(x)[:, -1] / 0.7).topk(4)
        token = places.gather(1, torch.multinomial(best.softmax(-1), 1))
        x = torch.cat([x, token], 1)
    return x


#: Programs that choose tokens -> ops that are part of it, and how often.
CHOOSING: dict[str, tuple[Callable[[], object], dict[str, int]]] = {
    "the likeliest": (likeliest, {"argmax": STEPS, "cat": STEPS}),
    "drawn among the likeliest": (drawn, {"topk": STEPS, "_softmax": STEPS, "multinomial": STEPS, "gather": STEPS,
                                          "cat": STEPS}),
}  # fmt: skip


@torch.no_grad()
def scores() -> Tensor:
    model, right = Words(), torch.zeros(())
    for _ in range(STEPS):
        x = ids()
        right = right + (model(x).argmax(-1) == x).float().mean()
    return right


@torch.no_grad()
def looks_up_documents() -> Tensor:
    """What a model finds is read by it: the documents' words, which nobody chose."""
    model, documents = Words(), torch.randint(0, WORDS, (5, TOKENS))
    found = model(ids())[:, -1, :5].topk(2).indices
    return model(documents[found.flatten()])


@torch.no_grad()
def looks_up_for_another() -> Tensor:
    """The best by one model's scores are what another one's table has."""

    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.line = nn.Embedding(WORDS, D), nn.Linear(D, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.line(self.table(x))

    return Other()(Words()(ids())[:, -1].topk(3).indices)


@torch.no_grad()
def nearest() -> Tensor:
    """Codes of a quantizer: the nearest entries of a table, which a second part of the model reads."""

    class Coded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.line = nn.Embedding(WORDS, D), nn.Linear(D, D)

        def forward(self, x: Tensor) -> Tensor:
            return self.line(self.table(x) if x.dtype == torch.int64 else x)

    model = Coded()
    made = model(torch.randn(2, TOKENS, D))
    return model((made[:, :, None] - model.table.weight).norm(dim=-1).argmin(-1))


#: Programs that choose no tokens.
NO_CHOOSING: dict[str, Callable[[], object]] = {
    "scores": scores,
    "documents": looks_up_documents,
    "candidates for another model": looks_up_for_another,
    "codes": nearest,
}
