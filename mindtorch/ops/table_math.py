"""Rows of element-wise math, reductions and linear algebra."""

from __future__ import annotations

from . import algorithm_rules as alg
from . import layout_rules as lay
from . import refusal_rules as refusal
from .flop_rules import PerInput, PerOutput, elementwise, reduction, zero
from .op_row import OpRow, op, ops

ROWS: list[OpRow] = [
    # activations that torch.nn.functional wraps in Python
    *ops("elementwise", elementwise, "hardtanh leaky_relu relu relu6 rrelu", python=True),
    *ops("elementwise", elementwise, "celu elu mish selu", python=True, cpu="exp"),
    op("silu", "elementwise", elementwise, python=True, cpu="silu"),
    op("glu", "elementwise", elementwise, python=True, cpu="sigmoid", layout=lay.gated),
    op("masked_fill", "elementwise", elementwise, values_backward=True, cpu="where"),
    op("threshold", "elementwise", elementwise, python=("_threshold",)),
    *ops(
        "elementwise",
        elementwise,
        "__irshift__ __iand__ __ior__ _add_relu absolute arccos arccosh arcsin arcsinh arctan arctan2 arctanh fix "
        "greater greater_equal hardswish isclose isreal less less_equal multiply negative not_equal "
        "rrelu_with_noise_functional subtract outer ger infinitely_differentiable_gelu_backward _masked_scale",
    ),
    *ops("elementwise", elementwise, "_prelu_kernel prelu", layout=lay.like(0)),
    *ops("elementwise", elementwise, "copysign heaviside logaddexp2", layout=lay.element_wise),
    op("ldexp", "elementwise", elementwise, layout=lay.scaled_by_powers),
    op("rrelu_with_noise", "elementwise", elementwise, layout=lay.noisy),
    *ops("elementwise", elementwise, "__and__ bitwise_and", absorbing=False),
    *ops("elementwise", elementwise, "__or__ bitwise_or", absorbing=True),
    *ops("elementwise", elementwise, "acos asin atan atan2 cos polar sin sinc tan", cpu="sin"),
    op("angle", "elementwise", elementwise, cpu="sin", layout=lay.angle),
    *ops("elementwise", elementwise, "acosh asinh atanh tanh", cpu="tanh"),
    *ops("elementwise", elementwise, "addcdiv reciprocal rsqrt sqrt", cpu="sqrt"),
    *ops("elementwise", elementwise, "cosh exp exp2 expm1 logit sinh softplus", cpu="exp"),
    *ops("elementwise", elementwise, "log_sigmoid log_sigmoid_forward", cpu="exp", layout=lay.dense),
    op("logaddexp", "elementwise", elementwise, cpu="exp", layout=lay.element_wise),
    *ops("elementwise", elementwise, "digamma erf erfc erfinv lgamma", cpu="erf"),
    *ops("elementwise", elementwise, "div divide floor_divide fmod remainder true_divide", cpu="divide"),
    *ops("elementwise", elementwise, "eq ge gt isfinite isinf isnan le logical_not logical_xor lt ne", cpu="compare"),
    op("float_power", "elementwise", elementwise, cpu="pow"),
    op("pow", "elementwise", elementwise, cpu="pow", layout=lay.power),
    op("gelu", "elementwise", elementwise, cpu="gelu"),
    *ops("elementwise", elementwise, "hardsigmoid sigmoid", cpu="sigmoid"),
    *ops("elementwise", elementwise, "log log10 log1p log2", cpu="log"),
    op("xlogy", "elementwise", elementwise, cpu="log", layout=lay.element_wise),
    op("logical_and", "elementwise", elementwise, cpu="compare", absorbing=False),
    op("logical_or", "elementwise", elementwise, cpu="compare", absorbing=True),
    op("where", "elementwise", elementwise, cpu="where"),
    *ops(
        "elementwise",
        elementwise,
        "special_digamma special_erfc special_erfinv special_exp2 special_expit special_expm1 special_gammainc "
        "special_gammaincc special_gammaln special_i0 special_log1p special_logit special_multigammaln "
        "special_polygamma special_psi special_round special_sinc",
    ),
    *ops("elementwise", elementwise, "special_xlog1py special_xlogy", layout=lay.element_wise),
    *ops("elementwise", elementwise, "special_erf special_ndtr", cpu="erf"),
    *ops(
        "elementwise",
        elementwise,
        "glu_jvp glu_backward_jvp hardshrink_backward hardsigmoid_backward hardswish_backward hardtanh_backward "
        "leaky_relu_backward log_sigmoid_backward softshrink_backward _prelu_kernel_backward",
    ),
    op("rrelu_with_noise_backward", "elementwise", elementwise, layout=lay.noisy_backward),
    op("native_dropout_backward", "elementwise", elementwise, layout=lay.element_wise),
    op("gelu_backward", "elementwise", elementwise, cpu="gelu_backward"),
    op("silu_backward", "elementwise", elementwise, cpu="silu_backward"),
    *ops("elementwise", elementwise, "elu_backward mish_backward softplus_backward", cpu="exp"),
    op("glu_backward", "elementwise", elementwise, cpu="sigmoid", layout=lay.dense),
    # rounding to a quantization grid: scale, round, clamp, scale back
    *ops(
        "elementwise",
        PerOutput(4),
        "fake_quantize_per_tensor_affine fake_quantize_per_channel_affine fake_quantize_per_tensor_affine_cachemask "
        "fake_quantize_per_channel_affine_cachemask",
    ),
    # reductions
    *ops(
        "reduction",
        reduction,
        "_aminmax special_logsumexp nanmean frobenius_norm linalg__powsum native_norm allclose trace _logcumsumexp "
        "cumprod_backward sum_to_size _is_all_true _is_any_true segment_reduce trapezoid trapz cumulative_trapezoid "
        "diff _nested_sum_backward hash_tensor",
    ),
    *ops(
        "reduction",
        reduction,
        "sum mean amax amin any all count_nonzero nansum linalg_vector_norm dist equal",
        cpu="sum",
    ),
    *ops("reduction", reduction, "aminmax argmax argmin", cpu="max"),
    op("logsumexp", "reduction", reduction, cpu="exp"),
    *ops("reduction", reduction, "cumsum cummax cummin logcumsumexp _cummax_helper _cummin_helper", cpu="cumsum"),
    *ops("reduction", reduction, "prod cumprod", values_backward=True, cpu="cumsum"),
    op("linalg_norm", "reduction", reduction, whole=True, refuses=refusal.if_matrix_norm),
    op("linalg_matrix_norm", "reduction", reduction, whole=True, refuses=refusal.if_decomposed),
    op("norm", "reduction", reduction, whole=True, cpu="sum", refuses=refusal.if_nuclear),
    op("nuclear_norm", "reduction", whole=True, refuses=refusal.always),
    # mean, subtract, square, sum
    *ops("reduction", PerInput(4), "var std var_mean std_mean", cpu="var"),
    *ops("reduction", reduction, "max min median", values_backward=True, cpu="max", over_all=True),
    op("nanmedian", "reduction", reduction, values_backward=True, over_all=True),
    *ops("reduction", reduction, "histc histogram"),
    op("kthvalue", "reduction", reduction, cpu="max"),
    op("bincount", "reduction", reduction, sizes_from_values=True),
    *ops("reduction", None, "quantile nanquantile histogramdd"),
    op("mode", "reduction", alg.sort, cpu="sort"),
    op("sort", "other", alg.sort, cpu="sort", layout=lay.like(0)),
    op("argsort", "other", alg.sort, cpu="sort"),
    op("msort", "other", alg.msort, cpu="sort"),
    op("topk", "other", reduction, cpu="topk"),
    op("searchsorted", "other", alg.searchsorted),
    op("bucketize", "other", alg.bucketize),
    op("isin", "other", alg.isin, layout=lay.dense),
    # by a table or by sorting, as the library sees fit: no formula
    *ops("other", None, "unique_dim_consecutive _unique"),
    *ops("other", None, "unique_dim unique_consecutive _unique2", sizes_from_values=True),
    # Linear algebra. Those marked probe: the meta kernel's strides are not LAPACK's.
    *ops("other", alg.lu, "det logdet slogdet _lu_with_info linalg_det linalg_lu linalg_slogdet"),
    op("linalg_lu_factor_ex", "other", alg.lu, refuses=refusal.if_checked),
    *ops("other", alg.lu, "_linalg_det _linalg_slogdet"),
    *ops("other", alg.cholesky, "linalg_cholesky_ex linalg_ldl_factor_ex", refuses=refusal.if_checked),
    *ops("other", alg.solve, "linalg_solve_ex _linalg_solve_ex", refuses=refusal.if_checked),
    *ops("other", alg.cholesky_solve, "cholesky_solve _cholesky_solve_helper"),
    *ops("other", alg.qr, "qr linalg_qr"),
    *ops("other", alg.householder, "orgqr linalg_householder_product", values_backward=True),
    op("linalg_inv_ex", "other", alg.inverse, refuses=refusal.if_checked),
    op("linalg_solve_triangular", "other", alg.solve_triangular),
    op("triangular_solve", "other", alg.triangular_solve),
    op("lu_unpack", "data movement"),
    # sub, multiply, add for each coordinate of a pair; the Euclidean one is a matrix product
    *ops("other", alg.Distances(3), "cdist _cdist_forward"),
    op("_cdist_backward", "other", alg.Distances(3, first=1), layout=lay.distances_backward),
    op("_euclidean_dist", "other", alg.Distances(2)),
    *ops("elementwise", PerOutput(3), "cross linalg_cross"),
    *ops(
        "other",
        None,
        "lu_solve matrix_exp matrix_exp_backward linalg_ldl_solve linalg_matrix_exp linalg_vander vander corrcoef cov "
        "_compute_linear_combination renorm pdist _pdist_forward _pdist_backward pairwise_distance cosine_similarity "
        "gradient",
    ),
    # Programs catch what these raise about their values (a matrix that is singular or not positive definite).
    op("_linalg_check_errors", "other", zero, eager=True),
    *ops("other", alg.cholesky, "cholesky linalg_cholesky linalg_ldl_factor", eager=True),
    *ops("other", alg.inverse, "inverse linalg_inv", eager=True),
    op("cholesky_inverse", "other", alg.cholesky_inverse, eager=True),
    op("linalg_lu_factor", "other", alg.lu, eager=True),
    op("linalg_solve", "other", alg.solve, eager=True),
    *ops("other", None, "linalg_tensorinv linalg_tensorsolve", eager=True),
    op("linalg_lstsq", "other", eager=True),  # whether there are residuals depends on the rank
    op("ormqr", "other", probe=True, values_backward=True),
    op("geqrf", "other", probe=True),
    *ops(
        "other",
        None,
        "linalg_eig linalg_eigh _linalg_eigh _linalg_eigvals linalg_svd _linalg_svd svd pinverse",
        refuses=refusal.always,
    ),
    op("linalg_lu_solve", "other", alg.lu_solve, probe=True),
    *ops(
        "other",
        None,
        "linalg_eigvals linalg_eigvalsh linalg_svdvals linalg_matrix_rank linalg_pinv",
        whole=True,
        refuses=refusal.always,
    ),
    op("linalg_cond", "other", whole=True, refuses=refusal.if_condition),
    # Fourier transforms: the libraries differ in what they do; of the real ones in several dimensions, in strides too
    *ops("other", alg.Fft(-1), "fft_fft fft_ifft"),
    *ops("other", alg.Fft(-2, -1), "fft_fft2 fft_ifft2"),
    *ops("other", alg.Fft(), "fft_fftn fft_ifftn"),
    op("_fft_c2c", "other", alg.fft_kernel),
    *ops("other", None, "stft istft"),
    *ops("other", alg.Fft(-1), "fft_ihfft fft_irfft fft_rfft", probe=True),
    *ops("other", alg.Fft(-2, -1), "fft_irfft2 fft_rfft2", probe=True),
    *ops("other", alg.Fft(), "fft_irfftn fft_rfftn", probe=True),
    *ops("other", alg.fft_kernel, "_fft_c2r _fft_r2c", probe=True),
    *ops("other", None, "fft_ihfft2 fft_ihfftn", probe=True),
    op("fft_hfft", "other", alg.Fft(-1), probe=True, whole=True),
    *ops("other", None, "fft_hfft2 fft_hfftn", probe=True, whole=True),
]
