"""Small models written by hand: with towers, and such as only look like it. Names say nothing: all blocks are `Mix`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

D, WORDS, TOKENS = 8, 11, 6
Program = Callable[[], object]


class Mix(nn.Module):
    """A block of attention and a feed-forward part; `source`: it also attends to another value; `conditioned`: it is
    scaled by one."""

    def __init__(self, source: bool = False, conditioned: bool = False) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.c, self.d = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)
        self.e = nn.Linear(D, D) if source else None
        self.f = nn.Linear(D, 2 * D) if source else None
        self.g = nn.Linear(D, D) if conditioned else None

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        q, k, v = self.a(F.layer_norm(x, (D,))).chunk(3, -1)
        x = x + self.b(F.scaled_dot_product_attention(q, k, v))
        if self.e is not None and self.f is not None and other is not None:
            k, v = self.f(other).chunk(2, -1)
            x = x + F.scaled_dot_product_attention(self.e(x), k, v)
        if self.g is not None and other is not None:
            x = x * self.g(other).mean(1, keepdim=True)
        return x + self.d(F.gelu(self.c(F.layer_norm(x, (D,)))))


class Layers(nn.Module):
    """Blocks one after the other; `first` makes of the input what they compute with."""

    def __init__(self, first: nn.Module | None = None, count: int = 2, **kind: bool) -> None:
        super().__init__()
        self.first = nn.Identity() if first is None else first
        self.parts = nn.ModuleList(Mix(**kind) for _ in range(count))

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        x = self.first(x)
        for part in self.parts:
            x = part(x, other)
        return x


class Patches(nn.Module):
    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.one = nn.Conv2d(channels, D, 4, stride=4)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x).flatten(2).transpose(1, 2)


class Wave(nn.Module):
    def __init__(self, strides: tuple[int, ...] = (1, 2)) -> None:
        super().__init__()
        self.all = nn.ModuleList(nn.Conv1d(5 if n == 0 else D, D, 3, s, 1) for n, s in enumerate(strides))

    def forward(self, x: Tensor) -> Tensor:
        for one in self.all:
            x = F.gelu(one(x))
        return x.transpose(1, 2)


class Two(nn.Module):
    """Two modules side by side."""

    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.left, self.right, self.head = left, right, nn.Linear(D, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head(self.left(x).mean(1)) * self.head(self.right(y).mean(1))


class OneAfterTheOther(nn.Module):
    """The second gets what the first gave, as a further value."""

    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.left, self.right, self.head = left, right, nn.Linear(D, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head(self.right(y, self.left(x)))


class Joined(nn.Module):
    """What two modules give is one sequence for a third; without `body`, for blocks of its own."""

    def __init__(self, left: nn.Module, right: nn.Module, body: nn.Module | None = None) -> None:
        super().__init__()
        self.left, self.right, self.head = left, right, nn.Linear(D, 3)
        self.body = nn.ModuleList(Mix() for _ in range(2)) if body is None else body

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = torch.cat([self.left(x), self.right(y)], 1)
        for part in self.body if isinstance(self.body, nn.ModuleList) else [self.body]:
            z = part(z)
        return self.head(z)


class Resampled(nn.Module):
    """Learned queries attend to an image; a stack reads what comes of it, with words."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = Layers(Patches()), Layers(source=True), Layers()
        self.queries, self.table = nn.Parameter(torch.randn(1, 4, D)), nn.Embedding(WORDS, D)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.two(self.queries.expand(len(x), -1, -1), self.one(x))
        return self.three(torch.cat([z, self.table(y)], 1))


class LayerByLayer(nn.Module):
    """Each block attends to what the block of the same number gave in another stack."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, D)
        self.one = nn.ModuleList(Mix() for _ in range(3))
        self.two = nn.ModuleList(Mix(source=True) for _ in range(3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = self.table(x), self.table(y)
        for one, two in zip(self.one, self.two, strict=True):
            x = one(x)
            y = two(y, x)
        return y


class Flat(nn.Module):
    """All in one module, which calls the blocks of both stacks."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, D)
        self.one = nn.ModuleList(Mix() for _ in range(2))
        self.two = nn.ModuleList(Mix(source=True) for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = self.table(x), self.table(y)
        for one in self.one:
            x = one(x)
        for two in self.two:
            y = two(y, x)
        return y


class Halves(nn.Module):
    """A block that is a list of two equal ones."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Mix(source=True) for _ in range(2))

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x, other)
        return x


class OfHalves(Layers):
    def __init__(self) -> None:
        super().__init__(words())
        self.parts = nn.ModuleList(Halves() for _ in range(2))


class OfTorch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, D)
        self.both = nn.Transformer(D, 2, 2, 2, 16, 0.0, batch_first=True)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.both(self.table(x), self.table(y))


class Latents(nn.Module):
    """Latents attend to the words themselves: no stack made those."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.body = nn.Embedding(WORDS, D), Layers(source=True)
        self.queries = nn.Parameter(torch.randn(1, 4, D))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.queries.expand(len(x), -1, -1), self.table(x))


class Squeezed(nn.Module):
    """Convolutions down to a code and up again, as a variational autoencoder has them."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, D, 3, 2, 1), nn.ReLU(), nn.Conv2d(D, D, 3, 2, 1))
        self.up = nn.Sequential(nn.ConvTranspose2d(D, D, 2, 2), nn.ReLU(), nn.ConvTranspose2d(D, 3, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x).tanh())


class Convolutions(nn.Module):
    """Without equal blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3), nn.Conv2d(4, D, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x).relu()).flatten(2).transpose(1, 2)


class Beside(nn.Module):
    """Blocks side by side, which all get the same."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.parts = Patches(), nn.ModuleList(Mix() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return x + self.parts[0](x) + self.parts[1](x)


class FromTwo(nn.Module):
    """Blocks attend to what two stacks gave, as one sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = Layers(words()), Layers(words(), 3), Layers(words(), source=True)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.three(y, torch.cat([self.one(x), self.two(y)], 1))


class Placed(nn.Module):
    """Patches with vectors of their places, from a table: by a buffer, or by numbers that the program counts."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.table = Patches(), nn.Embedding(16, D)
        self.register_buffer("places", torch.arange(16)[None])
        self.body = Layers()

    def forward(self, x: Tensor, counted: Tensor | None = None) -> Tensor:
        return self.body(self.patches(x) + self.table(self.places if counted is None else counted))


class WithPlaces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = Placed(), Layers(words())

    def forward(self, x: Tensor, y: Tensor, counted: Tensor | None = None) -> Tensor:
        return self.left(x, counted).mean(1) * self.right(y).mean(1)


class EqualInARow(nn.Module):
    """The second of two equal stacks reads what the first gave, and what one for patches did."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.one, self.two, self.image = words(), Layers(), Layers(), Layers(Patches(), 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.two(torch.cat([self.one(self.table(y)), self.image(x)], 1))


class Nested(nn.Module):
    """Words and convolutions that are no stack are in one module, patches in another."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Layers(Patches()), Two(Layers(words()), Convolutions())

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.one(x).mean() * self.two(y, x)


def ids(rows: int = 2) -> Tensor:
    return torch.randint(0, WORDS, (rows, TOKENS))


def image(channels: int = 3) -> Tensor:
    return torch.randn(2, channels, 16, 16)


def sound() -> Tensor:
    return torch.randn(2, 5, 24)


def words() -> nn.Module:
    return nn.Embedding(WORDS, D)


def called(model: nn.Module, *inputs: Tensor, trains: bool = False) -> None:
    """Twice; trains: with a pass backward and a step each."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(2):
        with torch.set_grad_enabled(trains):
            out = model(*inputs)
        if trains:
            out.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


#: A model with its inputs -> its parts by module.
TOWERS: dict[str, tuple[Callable[[], tuple[nn.Module, tuple[Tensor, ...]]], dict[str, str]]] = {
    "vision and text": (
        lambda: (Two(Layers(Patches()), Layers(words())), (image(), ids())),
        {"Two.left": "vision tower", "Two.right": "text tower"},
    ),
    "audio and text": (
        lambda: (Two(Layers(Wave()), Layers(words())), (sound(), ids())),
        {"Two.left": "audio tower", "Two.right": "text tower"},
    ),
    "encoder and decoder": (
        lambda: (OneAfterTheOther(Layers(words()), Layers(words(), source=True)), (ids(), ids())),
        {"OneAfterTheOther.left": "encoder", "OneAfterTheOther.right": "decoder"},
    ),
    "sound and decoder": (
        lambda: (OneAfterTheOther(Layers(Wave()), Layers(words(), source=True)), (sound(), ids())),
        {"OneAfterTheOther.left": "encoder", "OneAfterTheOther.right": "decoder"},
    ),
    "blocks of equal halves": (
        lambda: (OneAfterTheOther(Layers(words()), OfHalves()), (ids(), ids())),
        {"OneAfterTheOther.left": "encoder", "OneAfterTheOther.right": "decoder"},
    ),
    "in one module": (lambda: (Flat(), (ids(), ids())), {"Flat.one": "encoder", "Flat.two": "decoder"}),
    "of torch": (
        lambda: (OfTorch(), (ids(), ids())),
        {"OfTorch.both.encoder": "encoder", "OfTorch.both.decoder": "decoder"},
    ),
    "an image among words": (
        lambda: (Joined(Layers(Patches()), words(), Layers()), (image(), ids())),
        {"Joined.left": "vision tower", "Joined.body": "text tower"},
    ),
    "an image among words, blocks of its own": (
        lambda: (Joined(Layers(Patches()), words()), (image(), ids())),
        {"Joined.left": "vision tower", "Joined.body": "text tower"},
    ),
    "an image's queries among words": (
        lambda: (Resampled(), (image(), ids())),
        {"Resampled.one": "vision tower", "Resampled.two": "vision tower", "Resampled.three": "text tower"},
    ),
    "places in a table": (
        lambda: (WithPlaces(), (image(), ids())),
        {"WithPlaces.left": "vision tower", "WithPlaces.right": "text tower"},
    ),
    "equal stacks in a row": (
        lambda: (EqualInARow(), (image(), ids())),
        {"EqualInARow.one": "text tower", "EqualInARow.image": "vision tower"},
    ),
    "other data in the same module": (
        lambda: (Nested(), (image(), ids())),
        {"Nested.one": "vision tower", "Nested.two.left": "text tower"},
    ),
    "scaled by what the other gave": (
        lambda: (OneAfterTheOther(Layers(words()), Layers(Patches(), conditioned=True)), (ids(), image())),
        {"OneAfterTheOther.left": "text tower", "OneAfterTheOther.right": "vision tower"},
    ),
}

#: What only looks like it.
NONE: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "text alone": lambda: (Layers(words(), 3), (ids(),)),
    "vision alone": lambda: (Layers(Patches(), 3), (image(),)),
    "sound alone": lambda: (Layers(Wave(), 3), (sound(),)),
    "two texts": lambda: (Two(Layers(words()), Layers(words(), 3)), (ids(), ids())),
    "two equal branches": lambda: (Two(Layers(words()), Layers(words())), (ids(), ids())),
    "patches and words in one stack": lambda: (Joined(Patches(), words()), (image(), ids())),
    "a spectrogram or a grey image": lambda: (Two(Layers(Patches(1)), Layers(words())), (image(1), ids())),
    "a series": lambda: (Two(Layers(Wave((1,))), Layers(words())), (sound(), ids())),
    "a series with one stride": lambda: (Two(Layers(Wave((2,))), Layers(words())), (sound(), ids())),
    "a series with no stride": lambda: (Two(Layers(Wave((1, 1))), Layers(words())), (sound(), ids())),
    "convolutions without equal blocks": lambda: (Two(Convolutions(), Layers(words())), (image(), ids())),
    "features": lambda: (Two(Layers(), Layers(words())), (torch.randn(2, 4, D), ids())),
    "latents": lambda: (Latents(), (ids(),)),
    "layer by layer": lambda: (LayerByLayer(), (ids(), ids())),
    "blocks side by side": lambda: (Two(Beside(), Layers(words())), (image(), ids())),
    "two sources": lambda: (FromTwo(), (ids(), ids())),
    "down and up": lambda: (Squeezed(), (image(),)),
}
