from collections.abc import Callable
from typing import Protocol

class _Block(Protocol):
    ptr: int

# address, sizes, strides, offset, elements of the storage, AscendCL's dtype
_Tensor = tuple[int, tuple[int, ...], tuple[int, ...], int, int, int]
_Workspace = Callable[[int], _Block]

def available(name: str) -> bool: ...
def unary(name: str, self: _Tensor, out: _Tensor, stream: int, workspace: _Workspace) -> bool: ...
def binary(
    name: str, self: _Tensor, other: _Tensor | float, alpha: float | None, out: _Tensor, stream: int, workspace: _Workspace
) -> bool: ...
def product(
    name: str, self: _Tensor, other: _Tensor, out: _Tensor, stream: int, workspace: _Workspace, mode: int = 0
) -> bool: ...
def addmm(
    self: _Tensor,
    mat1: _Tensor,
    mat2: _Tensor,
    beta: float,
    alpha: float,
    out: _Tensor,
    stream: int,
    workspace: _Workspace,
    mode: int = 0,
) -> bool: ...
def reduction(
    name: str, self: _Tensor, dims: tuple[int, ...], keepdim: bool, out: _Tensor, stream: int, workspace: _Workspace
) -> bool: ...
def max_dim(
    self: _Tensor, dim: int, keepdim: bool, out: _Tensor, indices: _Tensor, stream: int, workspace: _Workspace
) -> bool: ...
def with_number(
    name: str, self: _Tensor, number: int, out: _Tensor, stream: int, workspace: _Workspace
) -> bool: ...
def layer_norm(
    self: _Tensor,
    shape: tuple[int, ...],
    weight: _Tensor | None,
    bias: _Tensor | None,
    eps: float,
    out: _Tensor,
    mean: _Tensor | None,
    rstd: _Tensor | None,
    stream: int,
    workspace: _Workspace,
) -> bool: ...
def cast(self: _Tensor, out: _Tensor, stream: int, workspace: _Workspace) -> bool: ...
def fill(self: _Tensor, value: float, stream: int, workspace: _Workspace) -> bool: ...
def cat(tensors: list[_Tensor], dim: int, out: _Tensor, stream: int, workspace: _Workspace) -> bool: ...
def index_select(
    self: _Tensor, dim: int, index: _Tensor, out: _Tensor, stream: int, workspace: _Workspace
) -> bool: ...
def embedding(
    weight: _Tensor, indices: _Tensor, out: _Tensor, stream: int, workspace: _Workspace
) -> bool: ...
