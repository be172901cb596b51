from typing import Any

from mindtorch._ext.intern import OpInfo

def shorten(func: Any, info: OpInfo) -> None: ...
