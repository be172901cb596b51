"""What is otherwise here because it is where the worker is, such as what failed: the same as in the local executor
(SPEC L9, R1).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ..._ext import lazy as _core
from ..._ext.encoder import Encoded
from ..._ext.replay import fail_dependents
from ...base.errors import MaterializationError
from ..execute.values import tape
from ..record.arguments import quiet
from .exchange import again
from .mirrors import META, Mirrors

__all__ = ["Outcome", "error_of", "put_right"]

#: Of torch's and Python's own exceptions, those that are told apart.
ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, IndexError, KeyError, LookupError,
        MemoryError, NotImplementedError, OSError, OverflowError, RecursionError, RuntimeError, SystemError, TypeError,
        ValueError, ZeroDivisionError, torch.OutOfMemoryError, torch.linalg.LinAlgError,
    )
}  # fmt: skip


class Outcome(NamedTuple):
    """Of a segment that did not run in whole. The last three: see `Worker.run`."""

    encoded: Encoded
    base: int  # number of the first output's storage
    views: Sequence[tuple[int, int, weakref.ref[torch.Tensor]]]  # slot, output, mirror of those on other storages
    failures: Sequence[tuple[int, int, str, str]]
    without: Sequence[tuple[int, int]]
    lost: Sequence[tuple[int, int, int]]

    def tell(self, mirrors: Mirrors, known: dict[int, MaterializationError]) -> None:
        """Let fail what is recorded and depends on it, and raise what has not been told yet.

        known: failures by number.
        """
        failed = dict(self.without)
        for output in failed:
            mirrors.without(self.base + output)
        for slot, output, reference in self.views:
            mirror = reference()
            if mirror is not None and output in failed:
                _core.exchange(slot, mirror, known[failed[output]])
        storages = {number: failure for _k, failure, number in self.lost}
        slots: dict[int, list[int]] = {}
        for slot, value in _core.computed():
            if value not in mirrors:
                continue
            number = mirrors.number_of(value)
            if number - self.base in failed:
                _core.exchange(slot, value, known[failed[number - self.base]])
            elif number in storages:
                slots.setdefault(storages[number], []).append(slot)
        begins = {failure: self.encoded.seq(k) for k, failure, _number in reversed(self.lost)}
        begins.update({failure: self.encoded.seq(k) for k, failure, *_ in self.failures})
        for failure, seq in begins.items():
            fail_dependents(tape, seq, slots.get(failure, ()), known[failure])
        if begins:
            first = self.failures[0][1] if self.failures else self.lost[0][1]
            raise again(known[first], lost_write=bool(self.lost))


def error_of(kind: str, text: str) -> Exception:
    """The exception that a worker tells of."""
    known = ERRORS.get(kind)
    return RuntimeError(f"{kind}: {text}") if known is None else known(text)


def put_right(encoded: Encoded, corrections: list[tuple[int, int, tuple[int, ...], int]]) -> None:
    """From now on outputs are predicted as they came: (record, output, strides, offset)."""
    for k, output, strides, offset in corrections:
        sig = encoded.origin(k)[1]
        dtype, sizes, _strides, _offset, _place = _core.sig_output_meta(sig, output)
        with quiet():
            like = torch.empty_strided(sizes, strides, dtype=dtype, device=META)
            like.set_(like.untyped_storage(), offset, sizes, strides)
        _core.correct_output(sig, output, like)
