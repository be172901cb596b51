"""Prefill and decode in programs that announce neither: told from what a call reads that an earlier one wrote.

Looked at are outermost calls of modules without gradients that get integers (token ids). What such a call writes is its
state: a cache that it returns or fills, buffers that it changes. Then

- a call that reads state of an earlier call of the same module, for one new token of each sequence, is "decode", also
  where it gets all tokens so far and takes the last itself: its state has grown by one then, as is seen at its end;
- a call that reads such state otherwise (further parts of a prompt, another turn of a chat) is "prefill", and so is the
  call that the first decode, or such a call, followed;
- all else is "forward": scoring, evaluation, generation without a cache. So are, in the end, all calls of a run in
  which none decodes, or gets again what an earlier one has read: recurrent models are evaluated on text in parts.

A token is new unless it is part of a tensor that an earlier call got other tokens from, unchanged since: a prompt in
parts. Whether a call was a prefill is known when the next one begins; until then its phase is a candidate, which reads
as forward.

One file: what is looked at is chosen for these questions alone.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from mindtorch._ext import context
from mindtorch._ext import lazy as _core
from mindtorch._ext.signals import by_signal_handler
from mindtorch.engine.semantics import owners, snapshots
from mindtorch.engine.semantics.no_gradients import without_gradients

__all__ = ["Generated", "cached", "install", "listeners", "over", "uninstall"]

log = logging.getLogger(__name__)
_PREFILL, _DECODE = map(context.PHASES.index, ("prefill", "decode"))
_CANDIDATE, _INFERENCE = context.CANDIDATE, context.INFERENCE  # both read as "forward"
_NAMES = ("inputs_embeds", "input_ids", "decoder_inputs_embeds", "decoder_input_ids")  # the last there is counts
_NO_IDS = ("mask", "position", "token_type", "labels")  # in the names of other integers
_INTEGERS = (torch.int64, torch.int32)
_MOST = 1024  # tensors, and objects, of a state
_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))  # none of them holds a state


class _State:
    """Of a module: what its calls wrote, and where their tokens were from. Several generations may take turns."""

    def __init__(self) -> None:
        self.objects: list[Any] = []  # weak references to what holds tensors
        self.tensors: list[weakref.ref[torch.Tensor]] = []
        self.inside = False  # the module's own
        # What the last call returned beside its result, and which of that a next call got: attention, to draw, is not.
        self.returned: list[weakref.ref[torch.Tensor]] = []
        self.passed: set[int] = set()
        # What grew with the tokens, where calls get all of them so far.
        self.grows: tuple[int, tuple[int, ...]] | None = None
        # Place of tokens -> (what they were part of, its version).
        self.tokens: dict[Any, tuple[weakref.ref[torch.Tensor], int]] = {}

    def keep(self, objects: list[Any], tensors: list[torch.Tensor]) -> None:
        """A call wrote these."""
        new = {id(each) for each in (*objects, *tensors)}
        self.objects = [ref for ref in self.objects if snapshots.is_alive(ref) and id(ref()) not in new]
        self.objects = [*self.objects, *map(snapshots.weak, objects)][-_MOST:]
        self.tensors = [ref for ref in self.tensors if snapshots.is_alive(ref) and id(ref()) not in new]
        self.tensors = [*self.tensors, *map(weakref.ref, tensors)][-_MOST:]

    def had(self, tokens: torch.Tensor) -> bool:
        """Are they part of a tensor that an earlier call got other tokens from, unchanged since?"""
        ref, version = self.tokens.get(snapshots.place(tokens), (None, 0))
        return ref is not None and ref() is not None and version == snapshots.version(tokens)

    def took(self, tokens: torch.Tensor) -> None:
        """A call got its tokens there."""
        place, base = snapshots.place(tokens), tokens._base  # a slice of it may be gone already
        if base is None or base.numel() == tokens.numel():
            return  # the whole of it: no other call has the rest

        def forget(ref: weakref.ref[torch.Tensor]) -> None:
            if self.tokens.get(place, (None, 0))[0] is ref:
                del self.tokens[place]

        self.tokens[place] = weakref.ref(base, forget), snapshots.version(tokens)


class _Call:
    """An outermost call that is being looked at."""

    def __init__(self, module: torch.nn.Module, state: _State, got: tuple[Any, ...]) -> None:
        from mindtorch.engine.semantics import cache_growth  # few programs have such calls

        self.module, self.state, self.got = module, state, got
        self.held: list[tuple[Any, snapshots.Snapshot]] = []  # objects that it got, and their tensors before
        self.inside: snapshots.Snapshot | None = None  # the module's own tensors before, where they were looked at
        self.phase, self.tokens = _INFERENCE, 0
        self.sequences = 0  # where how much its state grows by says whether it decodes
        tensors: list[torch.Tensor] = []
        snapshots.find(got, tensors, self.held)
        self.given: dict[Any, dict[int, weakref.ref[torch.Tensor]]] = {}  # place -> version -> a tensor there
        for t in tensors:
            self.given.setdefault(snapshots.place(t), {})[snapshots.version(t)] = weakref.ref(t)
        self._had = [{id(t): (weakref.ref(t), 0) for t in tensors}, *(before for _, before in self.held)]
        self.growth = cache_growth
        self.sizes = cache_growth.sizes(t for before in self._had for t in snapshots.alive(before))

    def had(self, t: torch.Tensor) -> bool:
        """Was it there before the call?"""
        return any(id(t) in before and before[id(t)][0]() is t for before in self._had)

    def version(self, t: torch.Tensor) -> int | None:
        """That of its memory before the call, which got it; None: it is new, maybe where another's was that is gone."""
        found = self.given.get(snapshots.place(t), {}).items()
        return next((version for version, ref in found if ref() is not None), None)


listeners: list[Callable[[int, int], None]] = []  # told of the phase that what was in the other one had
cached: list[Callable[[list[torch.Tensor]], None]] = []  # told of the tensors that a call keeps for the next one
_phases: set[int] = set()  # of a run's calls so far; decode, too, where one got more than what is new
_counts: Counter[tuple[str, str]] = Counter()
_cache_bytes = 0  # after the last call
_states: dict[int, tuple[weakref.ref[torch.nn.Module], _State]] = {}
_candidate: tuple[int, int, int] | None = None  # (id of its module, its tokens, where its ops are recorded)


class _Running(threading.local):
    """The calls of a thread that are being looked at."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []


_now = _Running()


def install() -> None:
    _phases.clear()
    context.follow_generation(_enters, _left, without_gradients)


def uninstall() -> None:
    context.follow_generation(None, None)
    over()
    _states.clear()
    _now.calls.clear()


def over() -> None:
    """No call comes that would make a prefill of the last, or of those that read state where none decodes."""
    _settle(_INFERENCE)
    if _phases == {_PREFILL}:
        _tell(_INFERENCE, _PREFILL)
    _phases.clear()


class Generated:
    """What was generated, by stage of a run: from when this is made on."""

    def __init__(self) -> None:
        _phases.clear()
        self._before = Counter(_counts)
        self._stages: dict[str, Counter[tuple[str, str]]] = {}

    def ends(self, stage: str) -> None:
        """What was done since the last call belongs to that stage."""
        now = Counter(_counts)
        self._stages.setdefault(stage, Counter()).update(now - self._before)
        self._before = now

    def facts(self, stage: str) -> dict[str, Any] | None:
        """Calls ("steps") and tokens of all sequences by phase, and what the cache holds; None where nothing was."""
        counted = self._stages.get(stage)
        if not counted or not any(name == "decode" for found in self._stages.values() for name, _ in +found):
            return None
        return {
            "unit": "tokens",
            "phases": [
                {"name": name, "steps": counted[name, "calls"], "tokens": counted[name, "tokens"]}
                for name in ("prefill", "decode") if counted[name, "calls"]
            ],
            "kv_cache": {"bytes": _cache_bytes},
        }  # fmt: skip


def _enters(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The phase of a call that begins."""
    began = time.perf_counter_ns()
    try:
        with torch._C.DisableTorchFunction():
            return _phase(module, args, kwargs)
    except Exception as error:
        if by_signal_handler(error):
            raise  # the caller sees that the program gets it
        log.warning("a call of %s counts as forward, because inspecting it failed: %r", type(module).__name__, error)
        return _INFERENCE
    finally:
        _looked(began)


def _phase(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    tokens = _tokens(args, kwargs)
    if tokens is None:
        return _INFERENCE
    known = _states.get(id(module))
    state = _State() if known is None else known[1]
    call = _Call(module, state, (*args, *kwargs.values()))
    held, given = _read(state, call)
    reads = bool(held or given)
    if not (reads and not state.inside) and not any(_is_cache(holder) for holder, _ in call.held):
        call.inside = _inside(module)  # it takes a walk over all modules: not where the state is known to be given
    shape = tokens.shape[:-1] if tokens.dtype.is_floating_point else tokens.shape  # of the tokens: embedded ones
    if any(type(n) is not int for n in shape):
        return _INFERENCE  # nested, or traced for lengths of all kinds: to compare would be to choose one
    single = len(shape) < 2 or shape[-1] == 1
    new = single and not state.had(tokens)
    count = shape.numel()
    if reads:
        alive = ((number, ref()) for number, ref in enumerate(state.returned))
        state.passed = {n for n, t in alive if t is not None and snapshots.place(t) in call.given} or state.passed
        _was_prefill(module)
        # This call may put others in their place.
        _tell_of_cache([*(t for before in held for t in snapshots.alive(before)), *given])
        phase = _DECODE if new else _PREFILL
        if not single and _candidate is None:
            phase, call.sequences = _CANDIDATE, shape[:-1].numel()
            _be_candidate(module, count)
        elif not single and (known_so_far := call.growth.length(call.sizes, state.grows)) and known_so_far < shape[-1]:
            count = shape[:-1].numel() * (shape[-1] - known_so_far)  # while another model's prompt is the candidate
            phase = _DECODE if shape[-1] - known_so_far == 1 else _PREFILL
    elif state.inside and new:
        _was_prefill(module)
        phase = _DECODE
    else:
        _settle(_INFERENCE)
        phase = _CANDIDATE
        _be_candidate(module, count)
        state.tokens.clear()
    call.phase, call.tokens = phase, count
    state.took(tokens)
    if known is None:
        key = id(module)
        _states[key] = weakref.ref(module, lambda _: _states.pop(key, None)), state
    _now.calls.append(call)
    return phase


def _left(module: torch.nn.Module, result: Any) -> None:
    """A call that `_enters` was told of is over; result: None where it failed, too."""
    while _now.calls:
        call = _now.calls.pop()
        if call.module is module:
            break
    else:
        return
    began = time.perf_counter_ns()
    if call.phase in (_PREFILL, _DECODE):  # counted where it ends: a stage may end before it begins
        _count(call.phase, call.tokens)
    try:
        with torch._C.DisableTorchFunction():
            _wrote(call, result)
    except Exception as error:
        if by_signal_handler(error):
            raise
        log.warning("inspecting what %s wrote failed: %r", type(module).__name__, error)
    finally:
        _looked(began)


def _looked(began: int) -> None:
    """The time since then was no program's."""
    for watch in owners.watching:
        watch(began)


def _wrote(call: _Call, result: Any) -> None:
    global _cache_bytes
    state = call.state
    returned: list[torch.Tensor] = []
    held: list[tuple[Any, snapshots.Snapshot]] = []
    snapshots.find(result, returned, held)
    tensors = [t for t in returned if t.dtype.is_floating_point and call.version(t) is None]
    if len(tensors) == 1:  # what the call is for: a model that gets it again refines it
        tensors.clear()
    got: list[torch.Tensor] = []
    snapshots.find(call.got, got)  # lists and dicts may have new ones, and what there was may be written
    filled = [t for t in got if t.dtype.is_floating_point and call.version(t) != snapshots.version(t)]
    changed = [
        (holder, now) for holder, before in call.held if not snapshots.is_same(before, now := snapshots.of(holder))
    ]
    changed += [(holder, now) for holder, now in held if now and all(holder is not each for each, _ in call.held)]
    written = [holder for holder, _ in changed]
    state.keep(written, tensors + filled)
    state.returned = [weakref.ref(t) for t in tensors[1:]]
    inside = {} if call.inside is None else snapshots.changed(call.inside, _inside(call.module))
    state.inside = bool(inside)
    if call.sequences and _is_candidate(call.module):
        found = (each for _, now in changed for each in snapshots.alive(now))
        made = [t for t in (*returned, *got, *found) if not call.had(t)]
        sizes = call.growth.sizes(made)
        grown, state.grows = call.growth.growth(call.sizes, sizes, call.tokens // call.sequences)
        if 0 < grown < call.tokens // call.sequences:
            _phases.add(_DECODE)
            _counts["decode", "again"] += 1
        call.phase = _DECODE if grown == 1 else _PREFILL
        _settle(call.phase, call.sequences * grown)
    if call.phase in (_PREFILL, _DECODE):
        # What else a call returns (hidden states) is none of the cache where that is kept elsewhere.
        cache = [now for _, now in changed] or [snapshots.of(call.growth.beside(call.got, filled)) or inside]
        kept = {key: ref() for found in cache for key, (ref, _) in found.items()}
        kept = kept or {id(t): t for n, t in enumerate(tensors[1:]) if not state.passed or n in state.passed}
        if kept:  # none: it failed
            there = [t for t in kept.values() if t is not None]
            _cache_bytes = sum(t.nbytes for t in there)
            _tell_of_cache([t for t in there if id(t) not in inside])  # a module's buffers are buffers
    if _is_candidate(call.module) and not (written or inside or tensors or filled):
        _settle(_INFERENCE)


# ---- candidates


def _is_candidate(module: torch.nn.Module) -> bool:
    return _candidate is not None and _candidate[0] == id(module)


def _was_prefill(module: torch.nn.Module) -> None:
    """If the candidate is of that module; another's (of the model that verifies drafts) is not settled by that."""
    if _is_candidate(module):
        _settle(_PREFILL)


def _be_candidate(module: torch.nn.Module, tokens: int) -> None:
    global _candidate
    _candidate = id(module), tokens, _core.position()


def _settle(phase: int, tokens: int = 0) -> None:
    """tokens: how many they turned out to be; 0: as many as it got."""
    global _candidate
    if _candidate is not None:
        if phase != _INFERENCE:
            _count(phase, tokens or _candidate[1])
        _core.tell_phase(_candidate[2], phase)
        _candidate = None
        _tell(phase, _CANDIDATE)


def _tell(phase: int, was: int) -> None:
    context.settle(phase, was)
    for listener in list(listeners):
        listener(phase, was)


def _tell_of_cache(tensors: list[torch.Tensor]) -> None:
    for tell in cached:
        tell(tensors)


def _count(phase: int, tokens: int) -> None:
    _phases.add(phase)
    _counts[context.PHASES[phase], "calls"] += 1
    _counts[context.PHASES[phase], "tokens"] += tokens


# ---- what there is to look at


def _tokens(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """The ids of a call, or what was made of them: by their usual names, else the first integers."""
    for name in reversed(_NAMES):
        value = kwargs.get(name)
        if issubclass(type(value), torch.Tensor):
            return value
    named = (value for name, value in kwargs.items() if not any(part in name for part in _NO_IDS))
    for value in (*args, *named):
        if issubclass(type(value), torch.Tensor) and value.dtype in _INTEGERS:
            return value
    return None


def _read(state: _State, call: _Call) -> tuple[list[snapshots.Snapshot], list[torch.Tensor]]:
    """What the call gets of what earlier ones of the module wrote: what objects held before it, and tensors."""
    objects = [holder for ref in state.objects if (holder := ref()) is not None]
    held = [before for holder, before in call.held if any(holder is each for each in objects)]
    alive = [t for ref in state.tensors if (t := ref()) is not None]
    return held, [t for t in alive if snapshots.place(t) in call.given]


def _is_cache(value: Any) -> bool:
    """It says so: a model that gets one keeps nothing in itself."""
    return "cache" in type(value).__name__.lower()


def _inside(module: torch.nn.Module) -> snapshots.Snapshot:
    """Buffers and other tensors of the module and what is in it, but for its parameters, and for statistics: those
    of sequences have a dimension for each sequence or position, and one for what is kept of it."""
    from mindtorch._ext import module_state  # few programs have such calls

    found: snapshots.Snapshot = {}
    for value in module_state.values(module, _OF_EVERY_MODULE, torch.Tensor):
        if issubclass(type(value), torch.Tensor):
            found[id(value)] = weakref.ref(value), snapshots.version(value)
        else:
            found.update(snapshots.of(value))
    return {key: (ref, version) for key, (ref, version) in found.items() if (t := ref()) is not None and t.dim() > 1}
