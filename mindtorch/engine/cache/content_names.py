"""Names of what is in storages: equal ones have equal bits (SPEC L14).

What came from outside is named by a digest of its bytes; what a segment makes, by the segment's own name and the place
among its results, so that results are not hashed. A segment's name is a digest of all that its results depend on: its
calls with their overloads, numbers and constants, the names of what it begins with, torch's settings, build and the
processor, the states of the generators that it draws from.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ...base import VERSION, hardware
from ...base.storage_memory import memory_of
from ..execute import ambient, around_segments
from ..remote import functions
from ..remote.definitions import definition
from ..remote.wire import WireError, dumps

if TYPE_CHECKING:
    from ..._ext.encoder import Encoded

__all__ = ["LITTLE", "Names", "NotKept", "Structure", "Undefined", "gives_undefined", "why_not"]

#: They give memory with whatever is in it; they fill all of it; they keep some of it, or read such inside.
_UNDEFINED = re.compile(r"aten::_?(new_)?empty(_.*)?")
_FILLS = frozenset(
    f"aten::{name}_"
    for name in "fill zero copy bernoulli normal uniform random exponential geometric log_normal cauchy".split()
)
_READS_UNDEFINED = re.compile(r"aten::(resize_.*|_resize_output_?|linalg_lstsq)")
#: Variables of the environment that libraries of kernels look at.
_VARIABLES = ("ATEN_", "DNNL_", "GOMP_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_", "TORCH_")
#: Bytes of what a segment has written to that are hashed to see whether they changed: statistics of a batch norm.
LITTLE = 4 << 20
#: Structures that are remembered, of about 40 bytes an operation.
_STRUCTURES = 4096


class NotKept(Exception):
    """Results of a segment cannot be kept; its text says why."""


class Structure(NamedTuple):
    """Of segments that differ in numbers only: digest; indices of the devices whose generators they draw from or seed;
    of those, the ones that they draw from first.
    """

    digest: bytes
    draws: tuple[int, ...]
    states: tuple[int, ...]


class Names:
    """The names that are known of storages in this process. New ones know none: who wrote before did not tell."""

    def __init__(self) -> None:
        self._structures: dict[bytes, Structure | str] = {}  # or why results cannot be kept
        self._settings = ambient.mirrored(cuda=False)

    def of(self, storage: torch.UntypedStorage) -> bytes:
        """That of the storage's bytes, hashed where nobody knows them."""
        found = getattr(storage, "_genie_name", None)
        lent = around_segments.is_lent(storage)
        if found is not None and found[0] is self and not lent:
            return found[1]  # type: ignore[no-any-return]
        name = hashlib.sha256(memory_of(storage)).digest()
        self.give(storage, name)
        return name

    def give(self, storage: torch.UntypedStorage, name: bytes) -> None:
        """Its bytes have this name, until something writes to it."""
        storage._genie_name = (self, name)  # type: ignore[attr-defined]

    def forget(self, storage: torch.UntypedStorage) -> None:
        """Something has written to it."""
        storage._genie_name = None  # type: ignore[attr-defined]

    def wrote(self, storages: Sequence[torch.UntypedStorage], name: bytes) -> None:
        """A segment of this name has written to these, whose names were forgotten.

        Little may be what it was, and is hashed when it is used again.
        """
        if sum(storage.nbytes() for storage in storages) > LITTLE:
            for place, storage in enumerate(storages):
                self.give(storage, derived(name, "written", place))

    def structure(self, encoded: Encoded) -> Structure:
        """That of a segment. NotKept where its results may be others another time."""
        found = self._structures.get(encoded.structure)
        if found is None:
            if len(self._structures) >= _STRUCTURES:
                self._structures.clear()
            found = self._structures[encoded.structure] = _structure(encoded)
        if isinstance(found, str):
            raise NotKept(found)
        return found

    def segment(
        self,
        encoded: Encoded,
        structure: Structure,
        states: Sequence[bytes],
        given: Sequence[bytes] | None = None,
    ) -> bytes:
        """The segment's name. states: those of the generators that it draws from, or their names; given: names of what
        it begins with, else as `of` has."""
        made = hashlib.sha256(surroundings())
        made.update(repr([setting.get() for setting in self._settings]).encode())
        made.update(structure.digest)
        made.update(memoryview(encoded.numbers)[8 * len(encoded.given) :])
        first: dict[int, int] = {}
        for place, (value, _root) in enumerate(encoded.given):
            if value.layout is not torch.strided:
                raise NotKept(f"an input is {value.layout}")
            storage = value.untyped_storage()
            made.update(b"%d;" % first.setdefault(storage._cdata, place))
            made.update(self.of(storage) if given is None else given[place])
        for state in states:
            made.update(state)
        return made.digest()


def derived(name: bytes, kind: str, place: int) -> bytes:
    """The name of one of a segment's results."""
    return hashlib.sha256(b"%s %s %d" % (name, kind.encode(), place)).digest()


@functools.cache
def surroundings() -> bytes:
    """All that results depend on and a program cannot change: builds, processor, what libraries are told."""
    cpu = hardware.cpu()
    told = sorted((name, value) for name, value in os.environ.items() if name.startswith(_VARIABLES))
    facts = (
        VERSION, torch.__version__, torch.version.git_version, torch.__config__.show(),
        torch.backends.cpu.get_cpu_capability(), cpu["name"], cpu["architecture"], cpu["instruction_sets"], told,
    )  # fmt: skip
    return hashlib.sha256(repr(facts).encode()).digest()


def gives_undefined(name: str) -> bool:
    """Does an operation (``aten::empty``) give memory with whatever is in it?"""
    return _UNDEFINED.fullmatch(name) is not None


class Undefined:
    """Uninitialized memory in a sequence of calls: which of it is left so. Values go by any keys."""

    def __init__(self) -> None:
        self._left: dict[Any, str] = {}

    def call(self, name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> str:
        """The next call. Returns why its results may be others another time; empty where they cannot."""
        if name in _FILLS and inputs.count(inputs[0]) == 1:
            self._left.pop(inputs[0], None)
        elif gives_undefined(name):
            self._left.update(dict.fromkeys(outputs, f"{name} returns uninitialized memory"))
        return next((self._left[key] for key in inputs if key in self._left), "") or why_not(name)

    def among(self, keys: Iterable[Any] | None = None) -> str:
        """Why what these values are may be something else another time. None: of all."""
        return next((self._left[key] for key in (self._left if keys is None else keys) if key in self._left), "")


class _Call(NamedTuple):
    digest: bytes
    outputs: int
    random: int
    seeds: bool


def _structure(encoded: Encoded) -> Structure | str:
    made = hashlib.sha256()
    known: dict[bytes, _Call] = {}
    draws: dict[int, bool] = {}  # by index, does it draw from the generator before it seeds that?
    undefined, outputs = Undefined(), 0
    for k in range(len(encoded)):
        name, sig, *_ = encoded.origin(k)
        call = encoded.call(k)
        if call not in known:
            try:
                found = definition(sig)
                digest = hashlib.sha256(dumps(tuple(found))).digest()
                known[call] = _Call(digest, len(found.predicted), found.random, found.function == functions.SEED)
            except WireError:
                return f"{name} is a function of the program, or of another library"
        inputs = encoded.inputs(k)
        reason = (
            ""
            if known[call].seeds
            else undefined.call(name, inputs, range(2 * outputs + 1, 2 * (outputs + known[call].outputs) + 1, 2))
        )
        if reason:
            return reason
        outputs += known[call].outputs
        if known[call].random >= 0:
            draws.setdefault(known[call].random, not known[call].seeds)
        made.update(known[call].digest)
        made.update(repr((encoded.grad(k), inputs)).encode())
    own = [(ordinal, meta[4]) for _slot, _root, ordinal, meta, _bits in encoded.kept[: encoded.n_own]]
    made.update(repr((encoded.begins(), own)).encode())
    reason = undefined.among(2 * ordinal + 1 for ordinal, _place in own)
    return reason or Structure(made.digest(), tuple(sorted(draws)), tuple(sorted(k for k in draws if draws[k])))


@functools.lru_cache(maxsize=4096)
def why_not(name: str) -> str:
    """Why another run of an operation (``aten::add``) may give something else, its inputs and the state of its
    generator being the same; empty where it cannot.
    """
    namespace, _, rest = name.partition("::")
    if namespace not in ("aten", "prim", "prims"):
        return f"{name} is an operator of the program's own"
    if _READS_UNDEFINED.fullmatch(name):
        return f"{name} reads uninitialized memory"
    packet = getattr(torch.ops.aten, rest, None)
    overloads = packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else ()
    if any(torch.Tag.nondeterministic_bitwise in getattr(packet, each).tags for each in overloads):
        return f"{name} may give different results each time"
    return ""
