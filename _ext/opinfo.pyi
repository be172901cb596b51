from typing import Any, final

@final
class Runs:
    recorded: int
    ran: int
    sig: int
    unseen: int

@final
class Op:
    func: Any
    call: Any
    name: str
    category: str
    has_formula: bool
    is_free: bool
    allocates: bool
    may_copy: bool
    writes: bool
    detaches: bool
    begins: bool
    ends: bool
    is_run: bool
    by_output: bool
    def __init__(
        self,
        func: Any,
        call: Any,
        name: str,
        category: str,
        has_formula: bool,
        is_free: bool,
        allocates: bool,
        writes: bool,
        is_run: bool = ...,
        by_output: bool = ...,
        may_copy: bool = ...,
    ) -> None: ...
