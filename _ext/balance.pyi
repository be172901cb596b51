from typing import Any, final

from typing_extensions import Self

@final
class Block:
    nbytes: int
    sig: int
    module: int
    location: int
    phase: int
    mark: int
    outlived: bool
    def __call__(self, reference: Any) -> None: ...

@final
class Balance:
    peak: int
    cuda: bool
    births: int
    born_by_peak: int
    def __new__(cls, tensor_type: type) -> Self: ...
    @property
    def live_bytes(self) -> int: ...
    def hold_tensor(self, tensor: Any) -> None: ...
    def module_peaks(self) -> dict[int, int]: ...
    def phase_peak(self, phase: int) -> int: ...
    def mark(self, tensor: Any, what: int) -> None: ...
    def at_peak(self) -> tuple[list[Block], tuple[int, int, int, int]] | None: ...
    def close(self) -> None: ...
