"""Set-up of the semantics tests: tracking on for one test, and a mode that notes where each op ran."""

from collections.abc import Iterator

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from mindtorch._ext import context
from mindtorch.engine import semantics


@pytest.fixture
def tracked() -> Iterator[None]:
    semantics.install()
    context.enter_stage(context.PHASES.index("other"))  # an earlier test's lazy tensors keep tracking on
    yield
    semantics.uninstall()


class _Seen(TorchDispatchMode):
    """Every op as (name, module path, phase)."""

    def __init__(self):
        super().__init__()
        self.ops = []

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        path, phase = context.module_path(context.get_module()), context.phase_name(context.get_phase())
        self.ops.append((func.overloadpacket.__name__, path, phase))
        return func(*args, **(kwargs or {}))

    def paths(self, *names, phase=None):
        return [p for n, p, ph in self.ops if n in names and (phase is None or ph == phase)]


@pytest.fixture(name="Seen")
def seen_mode() -> type[_Seen]:
    return _Seen
