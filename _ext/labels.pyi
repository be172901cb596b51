from typing import final

RECOMPUTING: str

@final
class Labels:
    names: list[str]
    def take(self) -> dict[str, tuple[int, int, int, int]]: ...
