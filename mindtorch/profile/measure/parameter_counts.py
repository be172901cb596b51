"""Parameters of the modules that ran: who owns how many, tied ones counted once."""

import weakref
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

import torch

from mindtorch._ext import context
from mindtorch.engine.semantics import modules, owners


class Owned(NamedTuple):
    """Parameters that a module holds itself: (token, elements, bytes) of each; equal tokens are one parameter."""

    path: int
    parameters: tuple[tuple[int, int, int], ...]


#: {(path, name) of a parameter: (token, elements)} of a root.
Noted: TypeAlias = dict[tuple[int, str], tuple[int, int]]


class ModelBook:
    """What the outermost modules own. Sizes are noted when a module is first called, as the program may drop it."""

    def __init__(self) -> None:
        self._tokens: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._next = 1
        self._frozen: dict[int, bool] = {}  # token -> whether it gets no gradient, when it was looked at last
        self._trained: set[int] = set()  # tokens of what was stepped, whatever it was set to afterwards
        self.roots: dict[int, tuple[str, list[Owned]]] = {}
        self._seen: list[tuple[weakref.ref[torch.nn.Module], int, Noted]] = []  # …, path, what was noted of it
        self._new = 0  # how many of them nobody looked at after a call
        # By path, of a model with no parameters but those of one module in it: itself, and the modules down to that.
        self._around: dict[int, tuple[weakref.ref[torch.nn.Module], list[weakref.ref[torch.nn.Module]]]] = {}
        self._died = False  # … and one of them was thrown away
        # By path, the class of what it was thrown away from, and the tokens of its parameters.
        self._inner: dict[int, tuple[str, set[int]]] = {}

    def add(self, root: torch.nn.Module, path: int) -> None:
        """Note a root's parameters; a root of the same path as another adds to it."""
        noted: Noted = {}
        self._new += 1
        self._seen.append((weakref.ref(root), path, noted))
        if inner := _inner(root):
            self._around[path] = weakref.ref(root, self._dies), [weakref.ref(module) for module in inner]
        self.roots.setdefault(path, (context.class_name(root), []))[1].extend(self._look(root, path, noted))

    def _dies(self, _: object) -> None:
        self._died = True

    def _thrown_away(self) -> None:
        """A library made it around a model of the program, which is still there and what the program knows."""
        self._died = False
        for path, (ref, inner) in self._around.copy().items():
            if ref() is None:
                del self._around[path]
                left = next((module for found in inner if (module := found()) is not None), None)
                if left is not None:
                    tokens = {self._known(parameter) for parameter in owners.held(left)[0]}
                    self._inner[path] = context.class_name(left), tokens

    def marked(self, kind: str) -> None:
        """Look again at new roots when their first call has ended: the program may drop them."""
        if self._died:
            self._thrown_away()
        if self._new and kind != "enter":
            self._refresh(self._seen[-self._new :])
            self._new = 0

    def refresh(self) -> None:
        """Look again at what is still alive: lazy modules get their parameters in their first forward."""
        self._refresh(self._seen)

    def _refresh(self, roots: list[tuple[weakref.ref[torch.nn.Module], int, Noted]]) -> None:
        for ref, path, noted in roots:
            root = ref()
            if root is None:
                continue
            parameters = owners.held(root)[0]
            tokens = {token for token, _ in noted.values()}
            known = list(map(self._known, parameters))
            if not tokens.issuperset(known):
                self.roots[path][1].extend(self._look(root, path, noted))
                known = list(map(self._known, parameters))
            for token, parameter in zip(known, parameters, strict=True):
                self._frozen[token] = not parameter.requires_grad

    def trains(self, optimizer: torch.optim.Optimizer) -> None:
        """It is about to step: programs freeze what they have trained, as for the evaluation after each epoch."""
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            if isinstance(parameter, torch.Tensor) and parameter.grad is not None:
                self._trained.add(self._known(parameter))

    def _is_frozen(self, token: int) -> bool:
        return self._frozen.get(token, False) and token not in self._trained

    def forget_all_but(self, called: set[int]) -> None:
        """Keep the models that these paths are in: others were called before the profile began, and not in it."""
        models = {context.path_root(path) for path in called}
        self.roots = {path: root for path, root in self.roots.items() if path in models}

    def _look(self, root: torch.nn.Module, path: int, noted: Noted) -> list[Owned]:
        """A parameter in the place of another of its size is that one, unless that is elsewhere in the model now: FSDP2
        leaves what it gathered between calls, and a list of layers may get a new first one."""
        found, there = [], {self._known(parameter) for parameter in owners.held(root)[0]}
        for module, module_path in modules.walk(root, path):
            own = []
            for name, parameter in modules.held_now(module._parameters):
                if parameter is not None and not torch.nn.parameter.is_lazy(parameter):
                    elements = parameter.shape.numel()  # a property: methods of tensors of ours take a detour
                    before, size = noted.get((module_path, name), (0, 0))
                    token = self._token(parameter, before if size == elements and before not in there else 0)
                    own.append((token, elements, elements * parameter.dtype.itemsize))
                    noted[module_path, name] = token, elements
                    self._frozen[token] = not parameter.requires_grad
            if own:
                found.append(Owned(module_path, tuple(own)))
        return found

    def _known(self, parameter: torch.Tensor) -> int:
        """Its token, 0 if it has none."""
        entry = self._tokens.get(id(parameter))
        return entry[1] if entry is not None and entry[0]() is parameter else 0

    def _token(self, parameter: torch.Tensor, replaces: int = 0) -> int:
        known = self._known(parameter)
        if known:
            return known
        if not replaces:
            replaces, self._next = self._next, self._next + 1
        self._tokens[id(parameter)] = (weakref.ref(parameter), replaces)
        return replaces

    def own(self, trainable: bool = False) -> dict[int, int]:
        """{path id: parameter elements held by that module itself}; a tied one counts where it is met first, that of
        several models in the largest of them: all together are the total.

        trainable: only those that get a gradient, or were trained.
        """
        counts: dict[int, int] = {}
        counted: set[int] = set()
        for root in self._by_size():
            for path, parameters in self.roots[root][1]:
                for token, elements, _ in parameters:
                    if token not in counted:
                        counted.add(token)
                        if trainable and self._is_frozen(token):
                            continue
                        counts[path] = counts.get(path, 0) + elements
        return counts

    def total(self) -> tuple[int, int]:
        """(elements, bytes) of all distinct parameters."""
        return _sum(owned for _, owned in self.roots.values())

    def trainable(self) -> int:
        """Elements of all distinct parameters that get a gradient, or that were trained before they were frozen."""
        distinct = _distinct(owned for _, owned in self.roots.values())
        return sum(n for token, (n, _) in distinct.items() if not self._is_frozen(token))

    def _by_size(self) -> list[int]:
        return sorted(self.roots, key=lambda path: -_sum([self.roots[path][1]])[0])

    def models(self, names: Mapping[int, str]) -> list[dict[str, object]]:
        """Name (by path), parameters and bytes of each model, the largest first. One without parameters, or with none
        but those of another, is there only if there is no other."""
        tokens = {path: _distinct([owned]).keys() for path, (_, owned) in self.roots.items()}
        kept: list[int] = []
        for path in self._by_size():
            if not kept or not any(tokens[path] <= tokens[larger] for larger in kept):
                kept.append(path)
        sizes = [(path, *_sum([self.roots[path][1]])) for path in kept]
        found: list[dict[str, object]] = []
        for path, elements, nbytes in sizes:
            name, all_ = self._inner.get(path, ("", set()))
            name = name if tokens[path] <= all_ else ""  # else another of that path has others, too
            found.append({"name": name or names[path], "params": elements, "param_bytes": nbytes})
        return found


def _inner(root: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules from there down, as long as one alone has all parameters, and none is held in between."""
    found: list[torch.nn.Module] = []
    at = root
    while not any(parameter is not None for parameter in list(at._parameters.values())):
        children = [m for m in list(at._modules.values()) if m is not None and owners.first_parameter(m) is not None]
        if len(children) != 1:
            break
        at = children[0]
        found.append(at)
    return found


def _distinct(groups: Iterable[list[Owned]]) -> dict[int, tuple[int, int]]:
    """{token: (elements, bytes)} of the parameters."""
    return {token: (n, size) for owned in groups for _, parameters in owned for token, n, size in parameters}


def _sum(groups: Iterable[list[Owned]]) -> tuple[int, int]:
    distinct = _distinct(groups).values()
    return sum(n for n, _ in distinct), sum(size for _, size in distinct)
