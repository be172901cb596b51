"""Is an answer one to what was asked? Decided before the program's side makes anything of it (SPEC R3).

The counterpart of `checks`: numbers of records, outputs, tensors, storages and failures are those that there are,
metadata is within what was sent along, and nothing is looked up by a name but in a table. What fails is a `WireError`:
nobody knows then what the worker has, and the session is over.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any, NamedTuple

import torch

from ..._ext import lazy as _core
from ..._ext.encoder import Encoded
from ..._ext.strides import extent
from ...base import torch_facts
from .checks import are, argument, described, within
from .sent_contents import DIGEST
from .wire import WireError

__all__ = ["NEW_STORAGES", "Known", "check", "check_run", "check_warnings"]

NEW_STORAGES = 1 << 16  # numbers of storages that are set aside for the results of one call
_MOST_NUMBER = 1 << 62
_SPARSE = {
    torch.sparse_coo: 2, torch.sparse_csr: 3, torch.sparse_csc: 3, torch.sparse_bsr: 3, torch.sparse_bsc: 3,
}  # fmt: skip


class Known(NamedTuple):
    """What the program's side knows: the failures that it was told, bytes of the storages that it names, by number."""

    failures: Container[int]
    storages: Mapping[int, int]


def check(request: tuple, answer: Any, known: Known) -> None:
    """WireError unless this is an answer to the request. To ``run`` see `check_run`."""
    found = _ANSWERS.get(request[0])
    if request[0] == "run":
        return
    try:
        if found is None:
            if answer is not None:
                raise WireError(f"expected no answer, got {answer!r:.80}")
        else:
            found(request, answer, known)
    except WireError as error:
        raise WireError(f"the worker's answer to [{request[0]}]: {error}") from None
    except (TypeError, ValueError, IndexError, OverflowError, RecursionError) as error:
        raise WireError(f"the worker's answer to [{request[0]}] cannot be read: {error}") from error


def check_warnings(given: Any) -> None:
    """WireError unless these are categories and texts of warnings."""
    are("warnings", (given,), (list,))
    for item in given:
        are("a warning", item, (str, str))


def check_run(encoded: Encoded, answer: Any, timed: bool, known: Known) -> None:
    """WireError unless a worker may say so of this segment; see `Worker.run`."""
    try:
        _ran(encoded, answer, timed, known)
    except WireError as error:
        raise WireError(f"the worker's answer to [run]: {error}") from None
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        raise WireError(f"the worker's answer to [run] cannot be read: {error}") from error


def _ran(encoded: Encoded, answer: Any, timed: bool, known: Known) -> None:
    are("run", answer, (list, list, list, list, list, int, tuple))
    failures, corrections, times, without, lost, idle, otherwise = answer
    n = len(encoded)
    are("calls that passes changed", otherwise, (int, int, int, int))
    for count, most in zip(otherwise, (n + 1, n + 1, _MOST_NUMBER, n + 1), strict=True):
        within("what passes changed", count, most)
    within("records that did not run", idle, n + 1)
    if len(times) != (n if timed else 0):
        raise WireError(f"expected times of {n if timed else 0} records, got {len(times)}")
    for time in times:
        if time is not None:
            are("times", time, (int, int))
    for correction in corrections:
        are("a correction", correction, (int, int, tuple, int))
        k, output, strides, offset = correction
        within("a record", k, n)
        sig = encoded.origin(k)[1]
        within("an output", output, _core.sig_outputs(sig))
        dtype, sizes, *_ = _core.sig_output_meta(sig, output)
        described((0, dtype, sizes, strides, offset, 0))
    told = _failures(failures, n, known)
    for each in without:
        are("an output that failed", each, (int, int))
        within("an output", each[0], encoded.n_outputs)
        _failure(each[1], known, told)
    for each in lost:
        are("a storage that was not written", each, (int, int, int))
        within("a record", each[0], n)
        _failure(each[1], known, told)
        within("a storage", each[2], _MOST_NUMBER)


def _failures(given: list, n: int, known: Known) -> set[int]:
    """Numbers of the failures that are told of ``n`` records."""
    told: set[int] = set()
    for failure in given:
        are("a failure", failure, (int, int, str, str))
        within("a record", failure[0], n)
        if not 0 < failure[1] < _MOST_NUMBER or failure[1] in known.failures or failure[1] in told:
            raise WireError(f"expected the number of a new failure, got {failure[1]}")
        told.add(failure[1])
    return told


def _failure(number: Any, known: Known, told: Container[int] = ()) -> None:
    if type(number) is not int or not (number in known.failures or number in told):
        raise WireError(f"expected the number of a failure that was reported, got {number!r:.40}")


# ---- reads -----------------------------------------------------------------------------------------------------------
def _elements(request: tuple, answer: Any, known: Known) -> None:
    if _has_failed(answer, known):
        return
    are("fetch", answer, (str, tuple, bytes))
    _number, dtype, sizes, *_ = request[1]
    _is(answer[0], "values")
    described((0, dtype, sizes, answer[1], 0, 0))
    _long_enough(answer[2], extent(sizes, answer[1], 0) * dtype.itemsize)


def _storage(request: tuple, answer: Any, known: Known) -> None:
    if not _has_failed(answer, known):
        are("storage", answer, (str, bytes))
        _is(answer[0], "bytes")
        _long_enough(answer[1], known.storages.get(request[1], 0))


def _has_failed(answer: Any, known: Known) -> bool:
    """Is there no value, but the failure because of which it could not be computed, or no memory to send it?"""
    if isinstance(answer, tuple) and answer[:1] == ("memory",):
        are("memory", answer, (str, str))
        return True
    if isinstance(answer, tuple) and len(answer) == 2 and answer[0] == "failed":
        _failure(answer[1], known)
        return True
    return False


def _is(kind: Any, *kinds: str) -> None:
    if kind not in kinds:
        raise WireError(f"expected one of {kinds}, got {kind!r:.40}")


def _long_enough(data: bytes, nbytes: int) -> None:
    if len(data) < nbytes:
        raise WireError(f"expected {nbytes} bytes, got {len(data)}")


def _small(request: tuple, answer: Any, known: Known) -> None:
    are("small", (answer,), (list,))
    if len(answer) != len(request[1]):
        raise WireError(f"expected the contents of {len(request[1])} storages, got {len(answer)}")
    for number, data in zip(request[1], answer, strict=True):
        if data is not None:
            are("contents", (data,), (bytes,))
            _long_enough(data, known.storages.get(number, 0))


def _speculated(_request: tuple, answer: Any, known: Known) -> None:
    """What no segment was recorded for yet; see `check_run` for when there is one."""
    if answer is not None:
        are("run", answer, (list, list, list, list, list, int, tuple))
        _failures(answer[0], _MOST_NUMBER, known)


def _digest(request: tuple, answer: Any, known: Known) -> None:
    are("digest", (answer,), (list,))
    if len(answer) != len(request[1]):
        raise WireError(f"expected the digests of {len(request[1])} storages, got {len(answer)}")
    for digest in answer:
        if digest is not None:
            are("a digest", (digest,), (bytes,))
            if len(digest) != DIGEST:
                raise WireError(f"expected a digest of {DIGEST} bytes, got {len(digest)}")


# ---- calls -----------------------------------------------------------------------------------------------------------
def _call(request: tuple, answer: Any, known: Known) -> None:
    _name, base, given, *_ = request
    kind = answer[0] if isinstance(answer, tuple) and answer else None
    _is(kind, "failed", "cannot", "raised", "gave")
    if kind == "failed":
        are("failed", answer, (str, int))
        _failure(answer[1], known)
    elif kind == "cannot":
        are("cannot", answer, (str, str))
    elif kind == "raised":
        are("raised", answer, (str, str, str))
    else:
        are("gave", answer, (str, object, list, object))
        _kind, results, changed, raised = answer
        numbers = {number for number, *_ in given}
        if raised is None:
            _result(results, base, numbers, len(given))
        else:
            are("raised", raised, (str, str, str))
        for each in changed:
            are("a tensor that has changed", each, (int, tuple))
            within("a tensor", each[0], len(given))
            _value(each[1], base, numbers)


def _value(value: Any, base: int, numbers: Container[int]) -> None:
    """A tensor on one of the storages that were given, or on a new one."""
    described(value)
    if value[0] not in numbers:
        within("the number of a storage", value[0] - base, NEW_STORAGES)


def _result(result: Any, base: int, numbers: Container[int], n_given: int) -> None:
    kind = result[0] if isinstance(result, tuple) and result else None
    _is(kind, "given", "value", "plain", "constant", "list", "tuple")
    if kind == "given":
        are("given", result, (str, int))
        within("a tensor", result[1], n_given)
    elif kind == "value":
        are("value", result, (str, tuple))
        _value(result[1], base, numbers)
    elif kind == "plain":
        are("plain", result, (str, tuple))
        _parts(result[1], numbers)
    elif kind == "constant":
        are("constant", result, (str, object))
        holes: list[int] = []
        argument(result[1], holes)
        if holes:
            raise WireError("expected a constant, got a reference to a tensor")
    else:
        are("results", result, (str, str, list))
        _kind, name, items = result
        if name:
            made = vars(torch.return_types).get(name)
            if not isinstance(made, type) or getattr(made, "n_sequence_fields", None) != len(items):
                raise WireError(f"expected the name of one of torch's return types, got {name!r:.40}")
        for item in items:
            _result(item, base, numbers, n_given)


def _parts(plain: tuple, numbers: Container[int]) -> None:
    """A sparse tensor, taken apart."""
    are("a sparse tensor", plain, (torch.layout, tuple, object, list))
    layout, sizes, coalesced, parts = plain
    described((0, torch.uint8, sizes, (0,) * len(sizes), 0, 0))
    if coalesced not in (None, True, False) or len(parts) != _SPARSE.get(layout):
        raise WireError(f"expected the parts of a sparse tensor, got {plain!r:.80}")
    for part in parts:
        are("a part", part, (torch.dtype, tuple, tuple, int, int, bytes))
        dtype, shape, strides, offset, number, data = part
        described((0, dtype, shape, strides, offset, 0))
        _long_enough(data, extent(shape, strides, offset) * dtype.itemsize)
        if number and number not in numbers:
            raise WireError(f"expected the number of a storage that was given, got {number}")


# ---- the rest --------------------------------------------------------------------------------------------------------
def _hello(_request: tuple, answer: Any, _known: Known) -> None:
    are("hello", answer, (tuple, str))


def _machine(_request: tuple, answer: Any, _known: Known) -> None:
    are("machine", answer, (str, str, str, int, int, int, int))


def _file(request: tuple, answer: Any, known: Known) -> None:
    if type(answer) is tuple:
        _made(request, answer, known)
    elif answer is not None:
        are("file", (answer,), (bool,))


def _made(request: tuple, answer: Any, _known: Known) -> None:
    if answer is not None:
        are(request[0], answer, (int, str))
        within("a failure", answer[0] - 1, _MOST_NUMBER)


def _state(_request: tuple, answer: Any, _known: Known) -> None:
    are("get_state", (answer,), (bytes,))
    _sound(answer)


def _states(_request: tuple, answer: Any, _known: Known) -> None:
    are("get_generators", answer, (object, list))
    seed, states = answer
    if seed is not None:
        are("a seed", (seed,), (int,))
    for each in states:
        are("a generator", each, (int, bytes))
        within("a generator", each[0], 128)
        _sound(each[1])


def _sound(state: bytes) -> None:
    if not torch_facts.is_state(state):
        raise WireError("expected the state of a generator")


def _take(_request: tuple, answer: Any, _known: Known) -> None:
    if answer is not None:
        are("take", answer, (int, str if isinstance(answer[1], str) else int))
        within("a failure", answer[0] - 1, _MOST_NUMBER)
        if not isinstance(answer[1], str):
            within("a failure", answer[1], _MOST_NUMBER)


def _unpack(request: tuple, answer: Any, known: Known) -> None:
    are("unpack", (answer,), (list,))
    if len(answer) != len(request[1]):
        raise WireError(f"expected {len(request[1])} answers to unpack, got {len(answer)}")
    for each in answer:
        _take(request, each, known)


_ANSWERS: dict[str, Callable[[tuple, Any, Known], None]] = {
    "call": _call,
    "copy": _made,
    "digest": _digest,
    "fetch": _elements,
    "file": _file,
    "fill": _made,
    "get_generators": _states,
    "get_state": _state,
    "give": _made,
    "hello": _hello,
    "machine": _machine,
    "pack": _made,
    "reserve": _made,
    "small": _small,
    "speculate": _speculated,
    "storage": _storage,
    "take": _take,
    "unpack": _unpack,
    "upload": _made,
}
