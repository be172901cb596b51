"""Rows of element-wise math, reductions and linear algebra."""

from __future__ import annotations

from . import algorithm_rules as alg
from .row import OpRow, op, ops
from .rules import PerInput, PerOutput, elementwise, reduction, zero

ROWS: list[OpRow] = [
    # activations that torch.nn.functional wraps in Python
    *(
        op(name, "elementwise", elementwise, python=(name,))
        for name in ("celu", "elu", "hardtanh", "leaky_relu", "mish", "relu", "relu6", "rrelu", "selu", "silu")
    ),
    op("glu", "elementwise", elementwise, python=("glu",)),
    op("masked_fill", "elementwise", elementwise, values_backward=True),
    op("threshold", "elementwise", elementwise, python=("_threshold",)),
    *ops(
        "elementwise",
        elementwise,
        "__and__ __ilshift__ __irshift__ __ixor__ __iand__ __ior__ __lshift__ __or__ __rshift__ __xor__ "
        "_add_relu _conj_physical _prelu_kernel abs absolute acos acosh add addcdiv addcmul angle arccos arccosh "
        "arcsin arcsinh arctan arctan2 arctanh asin asinh atan atan2 atanh bitwise_and bitwise_left_shift "
        "bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil clamp clamp_max clamp_min clip conj_physical "
        "copysign cos cosh deg2rad digamma div divide eq erf erfc erfinv exp exp2 expm1 fix float_power floor "
        "floor_divide fmax fmin fmod frac frexp gcd ge gelu greater greater_equal gt hardshrink hardsigmoid hardswish "
        "heaviside hypot i0 igamma igammac isclose isfinite isinf isnan isneginf isposinf isreal lcm ldexp le lerp "
        "less less_equal lgamma log log10 log1p log2 log_sigmoid log_sigmoid_forward logaddexp logaddexp2 logical_and "
        "logical_not logical_or logical_xor logit lt maximum minimum mul multiply mvlgamma nan_to_num ne "
        "neg negative nextafter not_equal polar polygamma pow prelu rad2deg reciprocal remainder round "
        "rrelu_with_noise rrelu_with_noise_functional rsqrt rsub sgn sigmoid sign signbit sin sinc sinh softplus "
        "softshrink sqrt square sub subtract tan tanh true_divide trunc where xlogy outer ger "
        "infinitely_differentiable_gelu_backward _masked_scale",
    ),
    *ops(
        "elementwise",
        elementwise,
        "special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 "
        "special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v "
        "special_chebyshev_polynomial_w special_digamma special_entr special_erf special_erfc special_erfcx "
        "special_erfinv special_exp2 special_expit special_expm1 special_gammainc special_gammaincc special_gammaln "
        "special_hermite_polynomial_h special_hermite_polynomial_he special_i0 special_i0e special_i1 special_i1e "
        "special_laguerre_polynomial_l special_legendre_polynomial_p special_log1p special_log_ndtr special_logit "
        "special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 "
        "special_multigammaln special_ndtr special_ndtri special_polygamma special_psi special_round "
        "special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t "
        "special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v "
        "special_shifted_chebyshev_polynomial_w special_sinc special_spherical_bessel_j0 special_xlog1py special_xlogy "
        "special_zeta",
    ),
    *ops(
        "elementwise",
        elementwise,
        "gelu_backward silu_backward sigmoid_backward tanh_backward threshold_backward elu_backward glu_backward "
        "glu_jvp glu_backward_jvp hardshrink_backward hardsigmoid_backward hardswish_backward hardtanh_backward "
        "leaky_relu_backward log_sigmoid_backward logit_backward mish_backward rrelu_with_noise_backward "
        "softplus_backward softshrink_backward _prelu_kernel_backward native_dropout_backward",
    ),
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
        "sum mean amax amin aminmax _aminmax argmax argmin any all count_nonzero logsumexp "
        "special_logsumexp nansum nanmean linalg_vector_norm frobenius_norm "
        "linalg__powsum native_norm dist equal allclose trace cumsum cummax cummin logcumsumexp "
        "_logcumsumexp _cummax_helper _cummin_helper cumprod_backward sum_to_size _is_all_true _is_any_true "
        "segment_reduce trapezoid trapz cumulative_trapezoid diff _nested_sum_backward hash_tensor",
    ),
    *ops("reduction", reduction, "prod cumprod", values_backward=True),
    *ops("reduction", reduction, "norm linalg_norm linalg_matrix_norm", whole=True),
    op("nuclear_norm", "reduction", whole=True),
    # mean, subtract, square, sum
    *ops("reduction", PerInput(4), "var std var_mean std_mean"),
    *ops("reduction", reduction, "max min median nanmedian", values_backward=True),
    *ops("reduction", reduction, "kthvalue histc histogram bincount"),
    *ops("reduction", None, "quantile nanquantile histogramdd"),
    op("mode", "reduction", alg.sort),
    op("sort", "other", alg.sort),
    op("argsort", "other", alg.sort),
    op("msort", "other", alg.msort),
    op("topk", "other", reduction),
    op("searchsorted", "other", alg.searchsorted),
    op("bucketize", "other", alg.bucketize),
    op("isin", "other", alg.isin),
    # by a table or by sorting, as the library sees fit: no formula
    *ops("other", None, "unique_dim unique_consecutive unique_dim_consecutive _unique _unique2"),
    # Linear algebra. Those marked probe: the meta kernel's strides are not LAPACK's.
    *ops("other", alg.lu, "det logdet slogdet _lu_with_info linalg_det linalg_lu linalg_lu_factor_ex linalg_slogdet"),
    *ops("other", alg.lu, "_linalg_det _linalg_slogdet"),
    *ops("other", alg.cholesky, "linalg_cholesky_ex linalg_ldl_factor_ex"),
    *ops("other", alg.solve, "linalg_solve_ex _linalg_solve_ex"),
    *ops("other", alg.cholesky_solve, "cholesky_solve _cholesky_solve_helper"),
    *ops("other", alg.qr, "qr linalg_qr"),
    *ops("other", alg.householder, "orgqr linalg_householder_product", values_backward=True),
    op("linalg_inv_ex", "other", alg.inverse),
    op("linalg_solve_triangular", "other", alg.solve_triangular),
    op("triangular_solve", "other", alg.triangular_solve),
    op("lu_unpack", "data movement"),
    # sub, multiply, add for each coordinate of a pair; the Euclidean one is a matrix product
    *ops("other", alg.Distances(3), "cdist _cdist_forward"),
    op("_cdist_backward", "other", alg.Distances(3, first=1)),
    op("_euclidean_dist", "other", alg.Distances(2)),
    *ops("elementwise", PerOutput(3), "cross linalg_cross"),
    *ops(
        "other",
        None,
        "pinverse lu_solve matrix_exp matrix_exp_backward linalg_eigh linalg_ldl_solve linalg_matrix_exp linalg_vander "
        "_linalg_eigh _linalg_eigvals vander corrcoef cov _compute_linear_combination renorm pdist _pdist_forward "
        "_pdist_backward pairwise_distance cosine_similarity gradient",
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
    *ops("other", None, "linalg_eig linalg_svd _linalg_svd svd geqrf", probe=True),
    op("linalg_lu_solve", "other", alg.lu_solve, probe=True),
    *ops(
        "other",
        None,
        "linalg_cond linalg_eigvals linalg_eigvalsh linalg_svdvals linalg_matrix_rank linalg_pinv",
        whole=True,
    ),
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
