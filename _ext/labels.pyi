from typing import final

IN_BACKWARD: str
RECOMPUTING: str

@final
class Labels:
    names: list[str]
    def take(self) -> dict[str, tuple[int, int, int, int]]: ...
