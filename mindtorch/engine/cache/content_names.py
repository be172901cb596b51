"""Names of what is in storages: equal ones have equal bits (SPEC L14).

What came from outside is named by a digest of its bytes; what a segment makes, by the segment's own name and the place
among its results, so that results are not hashed. A segment's name is a digest of all that its results depend on: its
calls with their overloads, numbers and constants, the names of what it begins with, torch's settings, build and the
processor, the states of the generators that it draws from.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ...base import VERSION, hardware
from ..execute import ambient, between
from ..remote import functions
from ..remote.definitions import Definition, definition
from ..remote.wire import WireError, dumps

if TYPE_CHECKING:
    from ..._ext.encoder import Encoded

__all__ = ["Names", "NotKept", "Structure", "why_not"]

#: They give memory with whatever is in it, or read such.
_UNDEFINED = re.compile(r"aten::(_?(new_)?empty(_.*)?|resize_.*|_resize_output_?|linalg_lstsq)")
#: Variables of the environment that libraries of kernels look at.
_VARIABLES = ("ATEN_", "DNNL_", "GOMP_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_", "TORCH_")
#: Bytes of what a segment has written to that are hashed to see whether they changed: statistics of a batch norm.
_LITTLE = 4 << 20


class NotKept(Exception):
    """Results of a segment cannot be kept; its text says why."""


class Structure(NamedTuple):
    """Of segments that differ in numbers only: digest; indices of the devices whose generators they draw from."""

    digest: bytes
    draws: tuple[int, ...]


class Names:
    """The names that are known of storages in this process. New ones know none: who wrote before did not tell."""

    def __init__(self) -> None:
        self._structures: dict[bytes, Structure | str] = {}  # or why results cannot be kept
        self._settings = ambient.mirrored(cuda=False)

    def of(self, storage: torch.UntypedStorage) -> bytes:
        """That of the storage's bytes, hashed where nobody knows them."""
        found = getattr(storage, "_genie_name", None)
        lent = between.is_lent(storage)
        if found is not None and found[0] is self and found[1] == storage.nbytes() and not lent:
            return found[2]  # type: ignore[no-any-return]
        name = hashlib.sha256(_bytes_of(storage)).digest()
        self.give(storage, name)
        return name

    def give(self, storage: torch.UntypedStorage, name: bytes) -> None:
        """Its bytes have this name, until something writes to it."""
        storage._genie_name = (self, storage.nbytes(), name)  # type: ignore[attr-defined]

    def forget(self, storage: torch.UntypedStorage) -> None:
        """Something has written to it."""
        storage._genie_name = None  # type: ignore[attr-defined]

    def wrote(self, storages: Sequence[torch.UntypedStorage], name: bytes) -> None:
        """A segment of this name has written to these."""
        little = sum(storage.nbytes() for storage in storages) <= _LITTLE
        for place, storage in enumerate(storages):
            if little:
                self.forget(storage)  # it may be what it was, and is hashed when it is used again
            else:
                self.give(storage, derived(name, "written", place))

    def structure(self, encoded: Encoded) -> Structure:
        """That of a segment. NotKept where its results may be others another time."""
        found = self._structures.get(encoded.structure)
        if found is None:
            found = self._structures[encoded.structure] = _structure(encoded)
        if isinstance(found, str):
            raise NotKept(found)
        return found

    def segment(self, encoded: Encoded, structure: Structure, states: Mapping[int, torch.Tensor]) -> bytes:
        """The segment's name. states: of generators by index."""
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
            made.update(self.of(storage))
        for index in structure.draws:
            made.update(states[index].numpy().tobytes())
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


def _structure(encoded: Encoded) -> Structure | str:
    made = hashlib.sha256()
    draws: set[int] = set()
    known: dict[bytes, bytes] = {}
    for k in range(len(encoded)):
        call = encoded.call(k)
        if call not in known:
            name, sig, *_ = encoded.origin(k)
            try:
                found = definition(sig)
                known[call] = hashlib.sha256(dumps(tuple(found))).digest()
            except WireError:
                return f"{name} is a call of the program's own"
            reason = _reason(name, found)
            if reason:
                return reason
            if found.random >= 0:
                draws.add(found.random)
        made.update(known[call])
        made.update(repr((encoded.grad(k), encoded.inputs(k))).encode())
    kept = [(ordinal, meta[4]) for _slot, _root, ordinal, meta, _bits in encoded.kept[: encoded.n_own]]
    made.update(repr((encoded.begins(), kept)).encode())
    return Structure(made.digest(), tuple(sorted(draws)))


def _reason(name: str, made: Definition) -> str:
    """Why another run of a call may give something else; empty where it cannot."""
    if not functions.comes_with_torch(made.function):
        return f"{name} is an operator of the program's own"
    if made.function == functions.SEED:
        return "it seeds the generator"
    return why_not(name)


@functools.lru_cache(maxsize=4096)
def why_not(name: str) -> str:
    """Why another run of an operation (``aten::add``) may give something else, its inputs and the state of its
    generator being the same; empty where it cannot.
    """
    namespace, _, rest = name.partition("::")
    if namespace not in ("aten", "prim", "prims"):
        return f"{name} is an operator of the program's own"
    if _UNDEFINED.fullmatch(name):
        return f"{name} gives uninitialized memory"
    packet = getattr(torch.ops.aten, rest, None)
    overloads = packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else ()
    if any(torch.Tag.nondeterministic_bitwise in getattr(packet, each).tags for each in overloads):
        return f"{name} may give other bits each time"
    return ""


def _bytes_of(storage: torch.UntypedStorage) -> Any:
    """The bytes of a storage of the CPU, not copied."""
    n = storage.nbytes()
    return memoryview((ctypes.c_char * n).from_address(storage.data_ptr())) if n else b""
