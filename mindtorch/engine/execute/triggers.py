"""What made recordings run, and the words for what went wrong when they did (SPEC L9, L15)."""

from __future__ import annotations

import operator
import time
import traceback
from typing import Any, NamedTuple

from ..._ext import context as _context
from ..._ext import lazy as _core
from ..._ext.signals import error_of_handler
from ...base.errors import MaterializationError
from . import around_segments

MAX_PLACES = 1000  # distinct places in the program that are told apart
OTHER_PLACES = -1
NO_LINE = "(no line of the program)"  # a thread of torch's own, or the interpreter shutting down

reasons: dict[str, int] = {}
_places: dict[int, int] = {}  # location id -> count; turned into words when somebody asks
_waits: dict[int, list[int]] = {}  # location id -> reads of values elsewhere, messages waited for, ns that they took
segments = 0
idle = 0  # records that count as run on the tape and did not, where they were sent


def run(tape: Any, executor: Any, segment: Any, reason: str) -> None:
    """Hand a segment to the executor. What it does not get to stays pending, whatever is raised."""
    try:
        note(reason)
        around_segments.submit(executor, segment, reason)
    except MaterializationError:
        raise
    except Exception as error:
        if (own := error_of_handler(error)) is not None:
            raise own  # noqa: B904 - the program's, which is not about what it interrupted
        if segment.next is None:
            raise MaterializationError.also(type(error))(f"{type(error).__name__}: {error}") from error
        raise failure(tape, segment.next, error) from error
    finally:
        segment.close()


def note(reason: str) -> None:
    """A segment is about to run because of ``reason``, which came up at the program's current line."""
    global segments
    segments += 1
    reasons[reason] = reasons.get(reason, 0) + 1
    place = _place(_places)
    _places[place] = _places.get(place, 0) + 1


def _place(table: dict[int, Any]) -> int:
    """The id of the program's current line, as a key of a table with room for so many."""
    place = _context.get_location()
    return place if place in table or len(table) < MAX_PLACES else OTHER_PLACES


def waited(begun: int, messages: int) -> None:
    """The program has read a value on its current line, since ``begun`` by ``time.perf_counter_ns``, and waited for the
    replies to so many messages."""
    found = _waits.setdefault(_place(_waits), [0, 0, 0])
    found[0] += 1
    found[1] += messages
    found[2] += time.perf_counter_ns() - begun


class Waits(NamedTuple):
    """Reads of values elsewhere on one line. where: file and line; None: of no line that is known."""

    where: tuple[str, int] | None
    reads: int
    messages: int  # whose replies were waited for
    seconds: float


def waits() -> list[Waits]:
    """Where the program waited, the longest first."""
    found: dict[tuple[str, int] | None, list[int]] = {}
    for place, figures in _waits.copy().items():
        where = None if place == OTHER_PLACES else _context.location(place)
        of_line = found.setdefault(where and where[:2], [0, 0, 0])  # a line of a function in it is another place
        of_line[:] = map(operator.add, of_line, figures)
    rows = [Waits(where, reads, messages, ns / 1e9) for where, (reads, messages, ns) in found.items()]
    return sorted(rows, key=lambda row: -row.seconds)


def forget_places() -> None:
    """Count places from here, and as many of them as at first."""
    _places.clear()


def lines() -> dict[str, int]:
    """``file:line`` → segments that ran because of it."""
    out: dict[str, int] = {}
    for place, count in _places.copy().items():
        where = _context.location(place) if place != OTHER_PLACES else ("(other lines)",)
        line = ":".join(map(str, where[:2])) if where else NO_LINE
        out[line] = out.get(line, 0) + count
    return out


def failure(tape: Any, seq: int, error: Exception) -> MaterializationError:
    """The error of a materialization, naming op, module path and the user's line that recorded it."""
    sig, module, loc, *_ = tape.describe(seq)
    return failed_record(_core.sig_info(sig).name, module, loc, error)


def failed_record(name: str, module: int, location: int, error: Exception) -> MaterializationError:
    """The same of an op's name, and the ids of its module path and line."""
    text = str(error) if isinstance(error, MaterializationError) else f"{type(error).__name__}: {error}"
    path = _context.module_path(module) or "(no module)"
    place = _context.location(location)
    line = f"{place[0]}:{place[1]} in {place[2]}" if place else "(unknown line)"
    failed = MaterializationError.also(type(error))(f"[{name}] recorded in {path} at {line}: {text}")
    failed.__cause__ = error
    return failed


def kept_failure(tape: Any, seq: int, error: Exception) -> MaterializationError:
    """failure() for an error that stays in the tape, for whoever reads the value or what depends on it.

    Tracebacks hold frames, and frames the tensors of whoever was reading: text takes their place.
    """
    failed = failure(tape, seq, error)
    frames = traceback.format_tb(error.__traceback__)
    if frames and hasattr(failed, "add_note"):
        failed.add_note("".join(["Traceback of the operation (most recent call last):\n", *frames]).rstrip())
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        link = chain.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            link.__traceback__ = None
            chain += [link.__cause__, link.__context__]
    return failed
