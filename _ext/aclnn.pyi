# address, sizes, strides, offset, elements of the storage, AscendCL's dtype
_Tensor = tuple[int, tuple[int, ...], tuple[int, ...], int, int, int]

def available(name: str) -> bool: ...
def unary(name: str, self: _Tensor, out: _Tensor, device: int) -> bool: ...
def binary(
    name: str, self: _Tensor, other: _Tensor | float, alpha: float | None, out: _Tensor, device: int
) -> bool: ...
def product(
    name: str, self: _Tensor, other: _Tensor, out: _Tensor, device: int, mode: int = 0
) -> bool: ...
def addmm(
    self: _Tensor,
    mat1: _Tensor,
    mat2: _Tensor,
    beta: float,
    alpha: float,
    out: _Tensor,
    device: int,
    mode: int = 0,
) -> bool: ...
def reduction(
    name: str, self: _Tensor, dims: tuple[int, ...], keepdim: bool, out: _Tensor, device: int
) -> bool: ...
def max_dim(
    self: _Tensor, dim: int, keepdim: bool, out: _Tensor, indices: _Tensor, device: int
) -> bool: ...
def with_number(
    name: str, self: _Tensor, number: int, out: _Tensor, device: int
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
    device: int,
) -> bool: ...
def cast(self: _Tensor, out: _Tensor, device: int) -> bool: ...
def fill(self: _Tensor, value: float, device: int) -> bool: ...
def cat(tensors: list[_Tensor], dim: int, out: _Tensor, device: int) -> bool: ...
def index_select(
    self: _Tensor, dim: int, index: _Tensor, out: _Tensor, device: int
) -> bool: ...
def embedding(
    weight: _Tensor, indices: _Tensor, out: _Tensor, device: int
) -> bool: ...
