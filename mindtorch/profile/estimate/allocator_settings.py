"""Settings of torch's caching allocator: ``PYTORCH_ALLOC_CONF`` (or ``PYTORCH_CUDA_ALLOC_CONF``), read as torch does.

Sizes, defaults and the grammar are those of torch 2.13, c10/core/AllocatorConfig.h and .cpp.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

MIB = 1 << 20
ROUND = 512  # kMinBlockSize: everything is a multiple of it
SMALL_SIZE = MIB  # kSmallSize: larger requests are of the large pool
SMALL_SEGMENT = 2 * MIB  # kSmallBuffer
LARGE_SEGMENT = 20 * MIB  # large_segment_size
SMALLEST_LARGE = 10 * MIB  # kMinLargeAlloc: from here on, a segment is as large as the request
ROUND_LARGE = 2 * MIB  # kRoundLarge
_UNLIMITED = 1 << 62
_INTERVALS = 16  # of roundup_power2_divisions: 1 MiB … 32 GiB and more
#: By kind of device; the first that is set counts.
VARIABLES = {"cuda": ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), "npu": ("PYTORCH_NPU_ALLOC_CONF",)}
_PADDING = {"cuda": 0, "npu": 32}


@dataclass(frozen=True)
class Settings:
    """What is not told has torch's default.

    padding: bytes added to each request before it is rounded: none on a GPU, 32 on an NPU (as torch_npu).
    ignored: options that change nothing of what is counted here.
    """

    max_split: int = _UNLIMITED
    max_non_split_rounding: int = LARGE_SEGMENT
    large_segment: int = LARGE_SEGMENT
    divisions: tuple[int, ...] = (0,) * _INTERVALS
    gc_threshold: float = 0.0
    expandable: bool = False
    fraction: float | None = None
    padding: int = 0
    ignored: tuple[str, ...] = field(default=(), compare=False)

    @property
    def limits_splits(self) -> bool:
        return self.max_split != _UNLIMITED

    def rounded(self, nbytes: int) -> int:
        """What a request takes."""
        nbytes += self.padding
        if nbytes < ROUND:
            return ROUND
        if any(self.divisions):
            divisions = self.divisions[min(max(nbytes.bit_length() - 1 - 20, 0), _INTERVALS - 1)]
            if divisions > 1 and nbytes > ROUND * divisions:
                power = 1 << (nbytes.bit_length() - 1)
                if power == nbytes:
                    return nbytes
                step = power // divisions
                return -(-nbytes // step) * step if step else power * 2
        return (nbytes + ROUND - 1) // ROUND * ROUND

    def segment(self, size: int) -> int:
        """What the device is asked for where a request of this size finds no free block."""
        if size <= SMALL_SIZE:
            return SMALL_SEGMENT
        if size < SMALLEST_LARGE:
            return self.large_segment
        return -(-size // ROUND_LARGE) * ROUND_LARGE

    @classmethod
    def of_environment(cls, kind: str = "cuda", environment: Mapping[str, str] | None = None) -> Settings:
        """Those of the program's environment. What cannot be read is as if it were not there: torch would refuse it
        when the first tensor is made."""
        found = os.environ if environment is None else environment
        text = next((found[name] for name in VARIABLES[kind] if found.get(name)), "")
        return replace(cls.parse(text), padding=_PADDING[kind])

    @classmethod
    def parse(cls, text: str) -> Settings:
        """Of one variable's value: ``expandable_segments:True,max_split_size_mb:128``."""
        values: dict[str, str] = {}
        for entry in re.findall(r"[^,\[\]]+(?:\[[^\]]*\])?", "".join(text.split())):
            name, colon, value = entry.partition(":")
            if colon:
                values[name] = value
        ignored = sorted(values.keys() - _KNOWN)
        try:
            large = int(values.get("large_segment_size_mb", 20)) * MIB
            split = int(values["max_split_size_mb"]) * MIB if "max_split_size_mb" in values else _UNLIMITED
            rounding = int(values.get("max_non_split_rounding_mb", 20)) * MIB
            threshold = float(values.get("garbage_collection_threshold", 0))
            fraction = float(values["per_process_memory_fraction"]) if "per_process_memory_fraction" in values else None
            divisions = _divisions(values.get("roundup_power2_divisions", "0"))
        except ValueError:
            return cls(ignored=(text,))
        expandable = values.get("expandable_segments") == "True"
        return cls(split, rounding, large, divisions, threshold, expandable, fraction, ignored=tuple(ignored))


_KNOWN = frozenset({
    "max_split_size_mb", "max_non_split_rounding_mb", "large_segment_size_mb", "garbage_collection_threshold",
    "expandable_segments", "roundup_power2_divisions", "per_process_memory_fraction",
})  # fmt: skip


def _divisions(text: str) -> tuple[int, ...]:
    """Of each interval of sizes: ``8`` for all, or ``[256:1,512:2,>:4]`` by their upper ends in MiB."""
    if not text.startswith("["):
        return (int(text),) * _INTERVALS
    found = [0] * _INTERVALS
    first, last = True, 0
    for entry in filter(None, text.strip("[]").split(",")):
        end, _, value = entry.partition(":")
        if end == ">":
            found[last:] = [int(value)] * (_INTERVALS - last)
            break
        index = min(max(int(end).bit_length() - 1, 0), _INTERVALS - 1)
        if first:  # whatever is smaller, too
            found[:index] = [int(value)] * index
            first = False
        found[index], last = int(value), index + 1
    return tuple(found)
