from typing import final

@final
class RowTable:
    failed: int
    def move(self, from_: tuple[int, int, int, int], to: tuple[int, int, int, int], ns: int) -> bool: ...

@final
class ModuleCalls: ...
