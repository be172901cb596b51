"""What a worker asks of a Ray cluster, as the program says it (SPEC R2, C9). `mindtorch.cluster` tells Ray."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .errors import UsageError

__all__ = ["PLACEMENTS", "Resources"]

PLACEMENTS = ("pack", "spread", "strict_pack", "strict_spread")
_UNITS = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}  # fmt: skip
_MAPPINGS = ("custom", "labels")
_SHAPE = "NAME=VALUE,… such as gpus=0.5,cpus=2; JSON, or the path of a .json file"


@dataclass(frozen=True)
class Resources:
    """What each worker of `mindtorch.connect` reserves on a Ray cluster, where it runs, and in which environment.

    Attributes:
        cpus: number of CPUs, above 0. The worker then runs as many threads (rounded down, at least one) instead of the
            program's number. None: one, if the worker is on CPUs of a cluster that the program joined.
        gpus: share of a GPU, above 0 and up to 1: two workers that ask for 0.5 share one. None: 1 for a worker on a
            GPU. Ray only counts: a worker can still use all of the GPU's memory.
        memory: bytes, or a text such as ``"4GiB"``. Ray only counts them; of several workers, each holds values up to
            this size, unless ``GENIE_WORKER_MEMORY`` says otherwise.
        custom: amounts of the custom resources that the cluster's machines define.
        placement: ``"pack"``: on as few machines as possible; ``"spread"``: on as many; ``"strict_pack"``: on one;
            ``"strict_spread"``: each on its own. None: ``"pack"``.
        node: host name, address, or the beginning of Ray's id of the machine.
        labels: labels that machines must have, in Ray's syntax: ``{"zone": "a"}``, also ``"!a"`` and ``"in(a,b)"``.
        runtime_env: Ray's ``runtime_env`` for the program's workers, or the path of a JSON file with one: ``env_vars``,
            ``working_dir``, ``py_modules`` and so on. Relative paths begin where the program was started.
        name: the program's name in Ray's dashboard and in ``genie worker list``. None: the script's name.
    """

    cpus: float | None = None
    gpus: float | None = None
    memory: int | str | None = None
    custom: Mapping[str, float] = field(default_factory=dict)
    placement: str | None = None
    node: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    runtime_env: Mapping[str, Any] | str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        put: Any = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731 - it is frozen
        put("cpus", _amount("cpus", self.cpus))
        put("gpus", _amount("gpus", self.gpus, most=1))
        put("memory", _bytes(self.memory))
        if self.placement is not None and self.placement not in PLACEMENTS:
            raise _wrong("placement", ", ".join(PLACEMENTS), self.placement)
        for name in ("node", "name"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value.strip()):
                raise _wrong(name, "a text", value)
        put("custom", {key: _amount(f"custom.{key}", value) for key, value in _mapping("custom", self.custom).items()})
        for key in self.custom:
            if key.upper() in ("CPU", "GPU", "MEMORY", "OBJECT_STORE_MEMORY"):
                raise _wrong("custom", "names other than Ray's own: cpus, gpus and memory", key)
        for key, value in _mapping("labels", self.labels).items():
            if not isinstance(value, str):
                raise _wrong(f"labels.{key}", "a text", value)
        put("labels", dict(self.labels))
        put("runtime_env", _environment(self.runtime_env))

    @classmethod
    def of(cls, given: Any, what: str = "resources") -> Resources:
        """Make it from a `Resources`, a mapping of its attributes, or text: NAME=VALUE, separated by commas
        (``custom.NAME`` and ``labels.NAME`` for entries of mappings), JSON, or the path of a JSON file. UsageError,
        with ``what`` first, for anything else.
        """
        try:
            if given is None:
                return cls()
            if isinstance(given, cls):
                return given
            if isinstance(given, str):
                given = _read(given)
            if not isinstance(given, Mapping):
                raise UsageError(f"expected a mapping or text ({_SHAPE}), got {given!r}")
            known = [each.name for each in fields(cls)]
            for name in given:
                if name not in known:
                    raise UsageError(f"expected names out of {', '.join(known)}, got {name!r}")
            return cls(**given)
        except UsageError as error:
            raise UsageError(f"[{what}] {error}") from None

    def bundle(self, device: str, own: bool) -> dict[str, float] | None:
        """What Ray is to reserve for a worker on ``device``, in its names. None: nothing. own: the cluster is this
        program's, which shares its CPUs with nobody.
        """
        found: dict[str, float] = {}
        placed = self.placement or self.node or self.labels
        if self.cpus is not None:
            found["CPU"] = self.cpus
        elif device == "cpu" and (not own or placed) and not self.custom:
            found["CPU"] = 1
        if device == "cuda":
            found["GPU"] = self.gpus or 1
        if self.memory:
            found["memory"] = int(self.memory)
        found.update(self.custom)
        plain = self.cpus is None and not (self.gpus or self.memory or self.custom or placed)
        return None if own and plain else found

    @property
    def environment(self) -> dict[str, Any] | None:
        """``runtime_env``, with full paths."""
        return None if self.runtime_env is None else dict(self.runtime_env)  # type: ignore[arg-type]

    @property
    def threads(self) -> int | None:
        """Of a worker. None: as many as the program has."""
        return None if self.cpus is None else max(1, math.floor(self.cpus))


def _wrong(name: str, expected: str, value: Any) -> UsageError:
    return UsageError(f"{name}: expected {expected}, got {value!r}")


def _amount(name: str, value: Any, most: float = math.inf) -> float | None:
    if value is None:
        return None
    expected = "a number above 0" + (f", at most {most:g}" if most < math.inf else "")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise _wrong(name, expected, value) from None
    if isinstance(value, bool) or not 0.0001 <= number <= most or number == math.inf:  # the least that Ray counts
        raise _wrong(name, expected, value)
    return number


def _bytes(value: Any) -> int | None:
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kKMGT]?i?B|)", str(value).strip())
    size = int(float(found[1]) * _UNITS[found[2]]) if found and found[2] in _UNITS else 0
    if size < 1 or isinstance(value, bool):
        raise _wrong("memory", "a number of bytes, such as 4GiB", value)
    return size


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) and key for key in value):
        raise _wrong(name, "a mapping with names", value)
    return value


def _environment(value: Any) -> dict[str, Any] | None:
    """A ``runtime_env`` with full paths: Ray is told by a process that runs elsewhere."""
    if value is None:
        return None
    if isinstance(value, str):
        value = _json(value, "runtime_env: ")
    made = dict(_mapping("runtime_env", value))
    if isinstance(folder := made.get("working_dir"), str):
        made["working_dir"] = _full(folder)
    if isinstance(modules := made.get("py_modules"), (list, tuple)):
        made["py_modules"] = [_full(each) if isinstance(each, str) else each for each in modules]
    try:
        json.dumps(made)
    except (TypeError, ValueError):
        raise _wrong("runtime_env", "what can be written as JSON", value) from None
    return made


def _full(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)


def _json(text: str, name: str = "") -> Any:
    """Of JSON, or of a file with it."""
    try:
        if text.lstrip().startswith("{"):
            return json.loads(text)
        with open(text, "rb") as file:
            return json.load(file)
    except OSError as error:
        raise UsageError(f"{name}expected JSON or a file with it, got {text!r}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{name}expected JSON, got {text!r}: {error}") from None


def _read(text: str) -> Any:
    text = text.strip()
    if text.startswith("{") or (text.endswith(".json") and "=" not in text):
        return _json(text)
    found: dict[str, Any] = {}
    for entry in re.split(r",\s*(?=[\w.]+[^,{]*=)", text):  # a value may have commas: labels.zone=in(a,b)
        name, equals, value = entry.partition("=")
        name, value = name.strip(), value.strip()
        kind, dot, key = name.partition(".")
        if not equals or not value or bool(dot) != (kind in _MAPPINGS):
            raise UsageError(f"expected {_SHAPE}; custom.NAME and labels.NAME for entries of those; got {entry!r}")
        into = found.setdefault(kind, {}) if dot else found
        if (key or name) in into:
            raise UsageError(f"expected {name} once, got it twice in {text!r}")
        into[key or name] = value
    return found
