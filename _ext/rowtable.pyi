from typing import final

@final
class RowTable:
    failed: int
