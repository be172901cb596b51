"""Named accelerators: what their data sheets promise, by `targets.toml` or by a file of the user's own."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from mindtorch.base.errors import UsageError

#: dtype → whose rate it has when the sheet does not give its own. "tf32" is no dtype but a way to multiply float32.
WIDER = {
    "float8": "float16", "float16": "float32", "bfloat16": "float16", "tf32": "float32", "int8": "float16",
    "float32": "float64", "float64": "float32",
}  # fmt: skip
_DTYPES = frozenset(WIDER)
#: The target that is the machine at hand.
MEASURED = "cpu"
_FIELDS = frozenset({"name", "source", "memory_bytes", "memory_bandwidth", "host_bandwidth", "launch_s", "matrix",
                     "vector", "capability", "processors", "device", "also", "clock_hz", "l2_bytes", "power_w",
                     "idle_w", "ecc", "factors"})  # fmt: skip
_DEVICES = ("cuda", "npu")
_VENDORS = frozenset(
    {"nvidia", "geforce", "tesla", "quadro", "amd", "instinct", "huawei", "ascend", "tensor", "core", "gpu"}
)


@dataclass(frozen=True, eq=False)  # one is itself: what is known of it is kept by it
class Target:
    """What bounds the speed of a device.

    memory_bytes, memory_bandwidth (bytes/s), launch_s (seconds per operation at least); matrix and vector: peak
    operations per second by dtype, a multiply-add being two. model: (seconds, bound) of one call (a `work.Work`, and
    the bytes that the program holds) where that was measured; without one it is the roofline's.
    capability, processors: CUDA's compute capability and number of streaming multiprocessors, for programs that ask.
    device: what torch calls devices of its kind. clock_hz, l2_bytes, power_w: its clock, second-level cache and board
    power. idle_w: what the board draws while a program is on it and nothing runs; 0: not known.
    host_bandwidth: bytes/s to or from the host's memory; 0: not known. ecc: whether its memory has error
    correction. also: other names. factors: {table: {factor: value}} of the models of time, where the sheet brings its
    own.
    """

    key: str
    name: str
    source: str
    memory_bytes: float
    memory_bandwidth: float
    launch_s: float
    matrix: Mapping[str, float]
    vector: Mapping[str, float]
    model: Callable[[Any, int], tuple[float, str]] | None = None
    capability: tuple[int, int] = (9, 0)
    processors: int = 132
    device: str = "cuda"
    clock_hz: float = 1.5e9
    l2_bytes: float = 32e6
    power_w: float = 0.0
    idle_w: float = 0.0
    host_bandwidth: float = 0.0
    ecc: bool = True
    also: tuple[str, ...] = ()
    factors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def rate(self, dtype: str, on_matrix_units: bool) -> float:
        """Peak operations per second for that torch dtype (by its name, "float32")."""
        rates = self.matrix if on_matrix_units else self.vector
        found = _family(dtype)
        seen = set()
        while found not in rates and found not in seen:
            seen.add(found)
            found = WIDER[found]
        return rates[found] if found in rates else max(rates.values())


def _family(dtype: str) -> str:
    """The name by which a sheet gives the rate of a torch dtype."""
    name = dtype.removeprefix("torch.")
    if name.startswith("float8"):
        return "float8"
    if name.startswith("complex"):
        return {"complex32": "float16", "complex64": "float32"}.get(name, "float64")
    if name in _DTYPES:
        return name
    return "int8" if name in ("uint8", "bool") or name.startswith(("q", "int4", "uint4")) else "float32"


@cache
def shipped() -> Mapping[str, Target]:
    """The targets that come with the package, by name."""
    return _parse(Path(__file__).with_name("targets.toml"))


def names() -> list[str]:
    """What `find` knows without a file."""
    return [*shipped(), MEASURED]


def find(name: str) -> Target:
    """The target called `name`, or the only one in the TOML file of that path; "cpu" is measured, in a second or two.

    Raises UsageError: unknown name (the known ones are listed), unreadable file, missing or absurd figures.
    """
    if _plain(name) == MEASURED:
        from mindtorch.profile.cost import cpu

        return cpu.target()
    path = Path(name)
    if path.suffix != ".toml":
        called = _called()
        if (key := called.get(_plain(name))) is not None:
            return shipped()[key]
        import difflib

        near = list(dict.fromkeys(called[word] for word in difflib.get_close_matches(_plain(name), called, 5, 0.5)))
        nearest = f"; nearest: {', '.join(near)}" if near else ""
        raise UsageError(f"[target] expected one of {', '.join(names())}, or a .toml file, got {name!r}{nearest}")
    found = _parse(path)
    if len(found) != 1:
        raise UsageError(f"[target] expected one table in {name}, got {len(found)}: {', '.join(found) or 'none'}")
    return next(iter(found.values()))


@cache
def _called() -> Mapping[str, str]:
    """{plain name: key} of every name that a target goes by."""
    return {_plain(name): key for key, target in shipped().items() for name in (key, *target.also)}


def _plain(name: str) -> str:
    """Without case, dashes, spaces and what vendors put in front: "NVIDIA A100-PCIE-40GB" is "a100pcie40gb"."""
    words = re.findall(r"[a-z0-9.]+", name.lower())
    return "".join(word for word in words if word not in _VENDORS)


def _parse(path: Path) -> dict[str, Target]:
    from mindtorch.profile.cost.toml_files import TOMLDecodeError, parsed

    try:
        tables = parsed(path)
    except OSError as error:
        raise UsageError(f"[target] cannot read {path}: {error.strerror}") from error
    except (TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"[target] {path} is not TOML: {error}") from error
    return {key: _target(f"{path.name}: {key}", key, table) for key, table in tables.items()}


def _target(where: str, key: str, table: Any) -> Target:
    if not isinstance(table, dict):
        raise UsageError(f"[target] {where}: expected a table of figures, got {table!r}")
    if key == MEASURED:
        raise UsageError(f"[target] {where}: the name {MEASURED} is reserved for this machine: give the table another")
    if unknown := sorted(set(table) - _FIELDS):
        raise UsageError(f"[target] {where}: unknown {', '.join(unknown)}; expected {', '.join(sorted(_FIELDS))}")
    return Target(
        key, str(table.get("name", key)), str(table.get("source", "")),
        _figure(where, table, "memory_bytes", 1e6, 1e16), _figure(where, table, "memory_bandwidth", 1e6, 1e18),
        _figure(where, table, "launch_s", 0, 1) if "launch_s" in table else 0.0,
        _rates(where, table, "matrix"), _rates(where, table, "vector"), capability=_capability(where, table),
        processors=int(_figure(where, table, "processors", 1, 1e6)) if "processors" in table else Target.processors,
        device=_device(where, table), clock_hz=_given(where, table, "clock_hz", 1e8, 1e11),
        l2_bytes=_given(where, table, "l2_bytes", 0, 1e12), power_w=_given(where, table, "power_w", 0, 1e6),
        idle_w=_given(where, table, "idle_w", 0, 1e6),
        host_bandwidth=_given(where, table, "host_bandwidth", 1e6, 1e16),
        ecc=_flag(where, table, "ecc"), also=tuple(map(str, table.get("also", ()))), factors=_factors(where, table),
    )  # fmt: skip


def _given(where: str, table: dict[str, Any], field: str, low: float, high: float) -> float:
    """A figure that a sheet may leave out."""
    default: float = getattr(Target, field)
    return _figure(where, table, field, low, high) if field in table else default


def _factors(where: str, table: dict[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Fitted factors, as `genie calibrate` writes them: tables of numbers, and words that say where they are from."""
    value = table.get("factors", {})
    if not isinstance(value, dict) or not all(isinstance(part, (dict, str)) for part in value.values()):
        raise UsageError(f"[target] {where}: expected factors as tables of numbers, got {value!r}")
    return value


def _flag(where: str, table: dict[str, Any], field: str) -> bool:
    value = table.get(field, getattr(Target, field))
    if not isinstance(value, bool):
        raise UsageError(f"[target] {where}: expected true or false for {field}, got {value!r}")
    return value


def _device(where: str, table: dict[str, Any]) -> str:
    value = table.get("device", Target.device)
    if value not in _DEVICES:
        raise UsageError(f"[target] {where}: device: expected one of {', '.join(_DEVICES)}, got {value!r}")
    return str(value)


def _capability(where: str, table: Mapping[str, Any]) -> tuple[int, int]:
    value = table.get("capability", list(Target.capability))
    if not isinstance(value, list) or len(value) != 2 or not all(type(n) is int and 0 <= n < 100 for n in value):
        raise UsageError(f"[target] {where}: expected capability = [<major>, <minor>], got {value!r}")
    return value[0], value[1]


def _rates(where: str, table: Mapping[str, Any], field: str) -> Mapping[str, float]:
    rates = table.get(field)
    if not isinstance(rates, dict) or not rates:
        raise UsageError(f"[target] {where}: expected {field} = {{ float32 = <operations/s>, … }}, got {rates!r}")
    if unknown := sorted(set(rates) - _DTYPES):
        known_ones = ", ".join(sorted(_DTYPES))
        raise UsageError(f"[target] {where}: unknown {', '.join(unknown)} in {field}; expected {known_ones}")
    return {dtype: _figure(f"{where}.{field}", rates, dtype, 1e6, 1e20) for dtype in rates}


def _figure(where: str, table: Mapping[str, Any], field: str, low: float, high: float) -> float:
    value = table.get(field)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UsageError(f"[target] {where}: expected a number for {field}, got {value!r}")
    if not low <= value <= high:
        raise UsageError(f"[target] {where}: expected {field} between {low:g} and {high:g}, got {value:g}")
    return float(value)
