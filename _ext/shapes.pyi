from typing import Any

from mindtorch._ext.layout import Meta as Meta

Result = list[tuple[tuple[int, ...], tuple[int, ...], Any]]

def init(torch_module: Any) -> None: ...
def infer(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Result | None: ...
