"""The operators of the NPU's libraries that kernels call, and what their first phases take. torch is not imported.

``Add`` stands for ``aclnnAdd`` and its first phase, ``aclnnAddGetWorkspaceSize``. The letters, one for each parameter,
are `mindtorch._ext.aclnn.declare`'s. They follow the public headers of CANN's operators: `MATH` those of
hicann/ops-math, `NN` of hicann/ops-nn (``<group>/<name>/op_api/aclnn_*.h``, 2026-08); which of them may be None, their
documentation.
"""

from __future__ import annotations

from mindtorch._ext import aclnn

__all__ = ["MATH", "NN", "OPERATORS", "VARYING", "found"]

MATH = {
    "Abs": "TT", "Add": "TTST", "Addcdiv": "TTTST", "Addcmul": "TTTST", "Adds": "TSST", "All": "TAbT", "Any": "TAbT",
    "ArgMax": "TlbT", "BitwiseAndTensor": "TTT", "BitwiseNot": "TT", "BitwiseOrTensor": "TTT", "Cast": "TiT",
    "Cat": "LlT", "Clamp": "TssT", "ConstantPadNd": "TAST", "Cos": "TT", "Div": "TTT", "Divs": "TST",
    "EqScalar": "TST", "EqTensor": "TTT", "Exp": "TT", "GeScalar": "TST", "GeTensor": "TTT", "GtScalar": "TST",
    "GtTensor": "TTT", "InplaceCopy": "TT", "InplaceFillScalar": "TS", "InplaceMaskedFillScalar": "TTS",
    "LeScalar": "TST", "LeTensor": "TTT", "Lerps": "TTST", "Log": "TT", "LogicalAnd": "TTT", "LogicalNot": "TT",
    "LogicalOr": "TTT", "LtScalar": "TST", "LtTensor": "TTT", "Max": "TT", "MaxDim": "TlbTT", "Maximum": "TTT",
    "Mean": "TAbiT", "Minimum": "TTT", "Mul": "TTT", "Muls": "TST", "NeScalar": "TST", "NeTensor": "TTT", "Neg": "TT",
    "PowTensorScalar": "TST", "Reciprocal": "TT", "ReduceSum": "TAbiT", "Rsqrt": "TT", "SWhere": "TTTT", "Sin": "TT",
    "Sqrt": "TT", "Sub": "TTST", "Subs": "TSST", "Tanh": "TT", "TanhBackward": "TTT",
}  # fmt: skip
NN = {
    "AdaptiveAvgPool2d": "NAN", "AdaptiveAvgPool2dBackward": "NNN", "Addmm": "TTTSSTc", "BatchMatMul": "TTTc",
    "BatchNorm": "NttttbddNTT", "BatchNormBackward": "NNtttttbdBntt", "Convolution": "NNtAAAbAlNc",
    "ConvolutionBackward": "NNNaAAAbAiBcnnt", "Embedding": "TTT", "EmbeddingDenseBackward": "TTuubT",
    "ForeachNonFiniteCheckAndUnscale": "LTT", "Gather": "TlTT",
    "Gelu": "TT", "GeluBackwardV2": "TTzT", "GeluV2": "TlT", "Index": "TLT", "IndexSelect": "TlTT",
    "LayerNorm": "TAttdTtt", "LayerNormBackward": "TTATTttBttt", "LinalgVectorNorm": "TSAbiT", "LogSoftmax": "TlT",
    "LogSoftmaxBackward": "TTlT", "Matmul": "TTTc", "MaxPool2dWithIndices": "NAAAAbNN",
    "MaxPool2dWithIndicesBackward": "NNNAAAAbN", "Mm": "TTTc", "NLLLoss": "TTTllTT", "NLLLossBackward": "TTTTllTT",
    "Relu": "TT", "Sigmoid": "TT", "SigmoidBackward": "TTT", "Silu": "TT", "SiluBackward": "TTT", "Softmax": "TlT",
    "SoftmaxBackward": "TTlT", "ThresholdBackward": "TTST",
}  # fmt: skip
OPERATORS = MATH | NN
#: Those whose results are documented to vary from call to call unless ``ACL_OPT_DETERMINISTIC`` is set.
VARYING = frozenset(
    {
        "AdaptiveAvgPool2dBackward", "Addmm", "BatchNorm", "BatchNormBackward", "ConvolutionBackward",
        "EmbeddingDenseBackward", "LinalgVectorNorm", "MaxPool2dWithIndicesBackward", "NLLLoss",
    }
)  # fmt: skip
aclnn.declare(OPERATORS)


def found() -> list[str]:
    """Those that the libraries have. What is not there runs through the CPU."""
    return [name for name in OPERATORS if aclnn.available(name)]
