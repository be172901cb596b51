"""Which operations of the NPU's libraries the kernels call, for telling how many are there. torch is not imported."""

from __future__ import annotations

from mindtorch._ext import aclnn

__all__ = ["OPERATORS", "found"]

#: ``Add`` stands for ``aclnnAdd`` and its first phase.
OPERATORS = tuple(
    "Add Addmm Adds BatchMatMul Cast Cat Div Divs Embedding Exp Gelu GeluV2 IndexSelect InplaceCopy InplaceFillScalar "
    "LayerNorm Matmul Max MaxDim Mean Mm Mul Muls Neg ReduceSum Relu Sigmoid Silu Softmax Sub Subs Tanh".split()
)


def found() -> list[str]:
    """Those that the libraries have. What is not there runs through the CPU."""
    return [name for name in OPERATORS if aclnn.available(name)]
