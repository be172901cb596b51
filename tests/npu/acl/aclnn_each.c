/* aclnn calls that look at each element by itself: their parameters, as the public interface has them, and checks. */
#include "plan.h"

#include <math.h>
#include <string.h>

static int plan_map(struct plan *plan, double (*map)(const double *, const double *)) {
    int code = check_types(plan, 1);
    code = code ? code : check_result(plan);
    for (int i = 0; i < 2; i++) plan->values[i] = (float)plan->values[i]; /* no more digits than the tensors have */
    plan->map = map;
    plan->in_place = 1;
    return code;
}

static double tanh_backward(const double *x, const double *v) { return (void)v, x[0] * (1 - x[1] * x[1]); }
static double sigmoid_backward(const double *x, const double *v) { return (void)v, x[0] * x[1] * (1 - x[1]); }
static double silu_backward(const double *x, const double *v) {
    double sigmoid = 1 / (1 + exp(-x[1]));
    return (void)v, x[0] * sigmoid * (1 + x[1] * (1 - sigmoid));
}
static double gelu_backward_erf(const double *x, const double *v) {
    double below = 0.5 * (1 + erf(x[1] * 0.70710678118654752440));
    return (void)v, x[0] * (below + x[1] * exp(-0.5 * x[1] * x[1]) * 0.39894228040143267794);
}
static double gelu_backward_tanh(const double *x, const double *v) {
    double inner = tanh(0.79788456080286535588 * (x[1] + 0.044715 * x[1] * x[1] * x[1]));
    double slope = 0.79788456080286535588 * (1 + 3 * 0.044715 * x[1] * x[1]);
    return (void)v, x[0] * 0.5 * (1 + inner + x[1] * (1 - inner * inner) * slope);
}
static double threshold_backward(const double *x, const double *v) { return x[1] <= v[0] ? 0 : x[0]; }
static double maximum(const double *x, const double *v) { return (void)v, x[0] > x[1] || isnan(x[0]) ? x[0] : x[1]; }
static double minimum(const double *x, const double *v) { return (void)v, x[0] < x[1] || isnan(x[0]) ? x[0] : x[1]; }
static double power(const double *x, const double *v) { return pow(x[0], v[0]); }
static double clamp(const double *x, const double *v) {
    double least = x[0] < v[0] || isnan(v[0]) ? v[0] : x[0];
    return least > v[1] || isnan(v[1]) ? v[1] : least;
}
static double addcmul(const double *x, const double *v) { return x[0] + v[0] * x[1] * x[2]; }
static double addcdiv(const double *x, const double *v) { return x[0] + v[0] * x[1] / x[2]; }
static double lerp(const double *x, const double *v) {
    return fabs(v[0]) < 0.5 ? x[0] + v[0] * (x[1] - x[0]) : x[1] - (x[1] - x[0]) * (1 - v[0]);
}

#define MAP_TWO(called, function)                                          \
    PHASES(called, const void *self, const void *other, void *out) {       \
        BEGIN(called, 3, run_map);                                         \
        TENSOR(out);                                                       \
        TENSOR(self);                                                      \
        TENSOR(other);                                                     \
        CHECK(plan_map(plan, function));                                   \
        END;                                                               \
    }
MAP_TWO(TanhBackward, tanh_backward)
MAP_TWO(SigmoidBackward, sigmoid_backward)
MAP_TWO(SiluBackward, silu_backward)
MAP_TWO(Maximum, maximum)
MAP_TWO(Minimum, minimum)

PHASES(GeluBackwardV2, const void *grad, const void *self, char *approximate, void *out) {
    BEGIN(GeluBackwardV2, 3, run_map);
    TENSOR(out);
    TENSOR(grad);
    TENSOR(self);
    int by_tanh = approximate && !strcmp(approximate, "tanh");
    REQUIRE(approximate && (by_tanh || !strcmp(approximate, "none")), "approximate is neither none nor tanh");
    CHECK(plan_map(plan, by_tanh ? gelu_backward_tanh : gelu_backward_erf));
    END;
}

PHASES(ThresholdBackward, const void *grad, const void *self, const void *threshold, void *out) {
    BEGIN(ThresholdBackward, 3, run_map);
    TENSOR(out);
    TENSOR(grad);
    TENSOR(self);
    CHECK(get_scalar(threshold, "threshold", &plan->values[0]));
    CHECK(plan_map(plan, threshold_backward));
    END;
}

PHASES(PowTensorScalar, const void *self, const void *exponent, const void *out) {
    BEGIN(PowTensorScalar, 2, run_map);
    TENSOR(out);
    TENSOR(self);
    CHECK(get_scalar(exponent, "exponent", &plan->values[0]));
    CHECK(plan_map(plan, power));
    END;
}

PHASES(Clamp, const void *self, const void *low, const void *high, void *out) {
    BEGIN(Clamp, 2, run_map);
    TENSOR(out);
    TENSOR(self);
    REQUIRE(low || high, "neither a least nor a largest value");
    plan->values[0] = -INFINITY, plan->values[1] = INFINITY;
    if (low) CHECK(get_scalar(low, "clipValueMin", &plan->values[0]));
    if (high) CHECK(get_scalar(high, "clipValueMax", &plan->values[1]));
    CHECK(plan_map(plan, clamp));
    END;
}

#define MAP_THREE(called, function)                                                                              \
    PHASES(called, const void *self, const void *one, const void *other, const void *number, const void *out) {  \
        BEGIN(called, 4, run_map);                                                                               \
        TENSOR(out);                                                                                             \
        TENSOR(self);                                                                                            \
        TENSOR(one);                                                                                             \
        TENSOR(other);                                                                                           \
        CHECK(get_scalar(number, "value", &plan->values[0]));                                                    \
        CHECK(plan_map(plan, function));                                                                         \
        END;                                                                                                     \
    }
MAP_THREE(Addcmul, addcmul)
MAP_THREE(Addcdiv, addcdiv)

PHASES(Lerps, const void *self, const void *end, const void *weight, void *out) {
    BEGIN(Lerps, 3, run_map);
    TENSOR(out);
    TENSOR(self);
    TENSOR(end);
    CHECK(get_scalar(weight, "weight", &plan->values[0]));
    CHECK(plan_map(plan, lerp));
    END;
}

/* Comparisons: number has a bit for each outcome that is true. */

enum { LESS = 1, EQUAL = 2, GREATER = 4, UNORDERED = 8 };

static int check_truths(const struct plan *plan) {
    if (plan->tensors[0].type != BOOL) return fail(NN_PARAM, "the output is of type %d", plan->tensors[0].type);
    for (int i = 2; i < plan->count; i++)
        if (plan->tensors[i].type != plan->tensors[1].type)
            return fail(NN_PARAM, "types %d and %d", plan->tensors[1].type, plan->tensors[i].type);
    return check_result(plan);
}

#define COMPARE(called, outcomes)                                                     \
    PHASES(called##Tensor, const void *self, const void *other, void *out) {          \
        BEGIN(called##Tensor, 3, run_compare);                                        \
        TENSOR(out);                                                                  \
        TENSOR(self);                                                                 \
        TENSOR(other);                                                                \
        CHECK(check_truths(plan));                                                    \
        plan->number = outcomes;                                                      \
        END;                                                                          \
    }                                                                                 \
    PHASES(called##Scalar, const void *self, const void *other, void *out) {          \
        BEGIN(called##Scalar, 2, run_compare);                                        \
        TENSOR(out);                                                                  \
        TENSOR(self);                                                                 \
        CHECK(get_scalar(other, "other", &plan->values[0]));                          \
        CHECK(check_truths(plan));                                                    \
        if (!code && floating(plan->tensors[1].type)) plan->values[0] = (float)plan->values[0]; \
        plan->number = outcomes;                                                      \
        END;                                                                          \
    }
COMPARE(Eq, EQUAL)
COMPARE(Ne, LESS | GREATER | UNORDERED)
COMPARE(Lt, LESS)
COMPARE(Le, LESS | EQUAL)
COMPARE(Gt, GREATER)
COMPARE(Ge, GREATER | EQUAL)

/* Truth values and bits */

static int check_bits(const struct plan *plan, int truths) {
    int code = truths ? OK : check_types(plan, 0), type = plan->tensors[0].type;
    if (!code && truths && type != BOOL) code = fail(NN_PARAM, "the output is of type %d", type);
    if (!code && (floating(type) || type == F64)) code = fail(NN_PARAM, "bits of type %d", type);
    return code ? code : check_result(plan);
}

#define BITS(called, sign, truths)                                             \
    PHASES(called, const void *self, const void *other, void *out) {           \
        BEGIN(called, 3, run_bits);                                            \
        TENSOR(out);                                                           \
        TENSOR(self);                                                          \
        TENSOR(other);                                                         \
        CHECK(check_bits(plan, truths));                                       \
        plan->number = sign;                                                   \
        plan->numbers[0] = truths;                                             \
        plan->in_place = 1;                                                    \
        END;                                                                   \
    }
BITS(BitwiseAndTensor, '&', 0)
BITS(BitwiseOrTensor, '|', 0)
BITS(LogicalAnd, '&', 1)
BITS(LogicalOr, '|', 1)

#define NOT(called, truths)                            \
    PHASES(called, const void *self, void *out) {      \
        BEGIN(called, 2, run_bits);                    \
        TENSOR(out);                                   \
        TENSOR(self);                                  \
        CHECK(check_bits(plan, truths));               \
        plan->number = '~';                            \
        plan->numbers[0] = truths;                     \
        plan->in_place = 1;                            \
        END;                                           \
    }
NOT(BitwiseNot, 0)
NOT(LogicalNot, 1)

PHASES(SWhere, const void *condition, const void *self, const void *other, void *out) {
    BEGIN(SWhere, 4, run_where);
    TENSOR(out);
    TENSOR(condition);
    TENSOR(self);
    TENSOR(other);
    int truth = plan->tensors[1].type, type = plan->tensors[0].type;
    REQUIRE(truth == BOOL || truth == U8, "a condition of type %d", truth);
    REQUIRE(plan->tensors[2].type == type && plan->tensors[3].type == type, "self, other and out differ in type");
    CHECK(check_result(plan));
    END;
}

PHASES(InplaceMaskedFillScalar, void *self, const void *mask, const void *number) {
    BEGIN(InplaceMaskedFillScalar, 2, run_masked_fill);
    TENSOR(self);
    TENSOR(mask);
    REQUIRE(plan->tensors[1].type == BOOL, "a mask of type %d", plan->tensors[1].type);
    CHECK(check_broadcast(&plan->tensors[1], &plan->tensors[0]));
    CHECK(get_scalar(number, "value", &plan->values[0]));
    END;
}

/* Reductions */

#define TRUTHS(called, of_all)                                                            \
    PHASES(called, const void *self, const void *dims, _Bool keep, void *out) {           \
        BEGIN(called, 2, run_all);                                                        \
        TENSOR(out);                                                                      \
        TENSOR(self);                                                                     \
        int type = plan->tensors[0].type, count = 0;                                      \
        REQUIRE(type == BOOL || type == U8, "the output is of type %d", type);            \
        if (!code) count = get_array(dims, "dim", plan->numbers, 0, MAX_DIMS);            \
        CHECK(count < 0 ? -count : plan_reduction(plan, plan->numbers, (uint64_t)count, keep)); \
        plan->number = of_all;                                                            \
        END;                                                                              \
    }
TRUTHS(All, 1)
TRUTHS(Any, 0)

PHASES(LinalgVectorNorm, const void *self, const void *ord, const void *dims, _Bool keep, int type, void *out) {
    BEGIN(LinalgVectorNorm, 2, run_norm);
    TENSOR(out);
    TENSOR(self);
    CHECK(check_types(plan, 1));
    REQUIRE(type == plan->tensors[0].type, "type %d into %d", type, plan->tensors[0].type);
    CHECK(get_scalar(ord, "ord", &plan->values[0]));
    int count = code ? 0 : get_array(dims, "dims", plan->numbers, 0, MAX_DIMS);
    CHECK(count < 0 ? -count : plan_reduction(plan, plan->numbers, (uint64_t)count, keep));
    END;
}

/* Places */

PHASES(ConstantPadNd, const void *self, const void *pad, const void *number, void *out) {
    BEGIN(ConstantPadNd, 2, run_pad);
    TENSOR(out);
    TENSOR(self);
    CHECK(check_types(plan, 0));
    CHECK(get_scalar(number, "value", &plan->values[0]));
    const tensor *result = &plan->tensors[0], *in = &plan->tensors[1];
    int count = code ? 0 : get_array(pad, "pad", plan->numbers, 0, 2 * in->rank);
    CHECK(count < 0 ? -count : OK);
    REQUIRE(count % 2 == 0, "%d numbers in pad", count);
    REQUIRE(in->rank == result->rank, "rank %d into %d", in->rank, result->rank);
    for (int i = 0; i < in->rank && !code; i++) { /* the last dimension's come first */
        const int64_t *two = plan->numbers + 2 * (in->rank - 1 - i);
        REQUIRE(result->sizes[i] == in->sizes[i] + two[0] + two[1], "size of dimension %d", i);
    }
    END;
}

PHASES(Gather, const void *self, int64_t dim, const void *index, void *out) {
    BEGIN(Gather, 3, run_gather);
    TENSOR(out);
    TENSOR(self);
    TENSOR(index);
    const tensor *result = &plan->tensors[0], *in = &plan->tensors[1], *chosen = &plan->tensors[2];
    REQUIRE(index_type(chosen->type) && in->type == result->type, "types %d, %d, %d", result->type, in->type,
            chosen->type);
    REQUIRE(same_shape(chosen, result) && chosen->rank == in->rank && in->rank, "index, self and out differ in shape");
    CHECK(get_dimension(dim, in->rank, &plan->number));
    for (int i = 0; i < in->rank && !code; i++)
        REQUIRE(i == plan->number || chosen->sizes[i] <= in->sizes[i], "size of dimension %d", i);
    END;
}

/* Indices of the first dimensions; they are broadcast to the first dimensions of the output, number of them. */
PHASES(Index, const void *self, const void *indices, void *out) {
    ENTER(IN_CONTEXT);
    const struct tensor_list *list = indices ? find_object(indices, TENSOR_LIST, "aclTensorList") : NULL;
    if (!list) return leave(indices ? NN_PARAM : fail(NN_NULL, "indices is NULL"));
    struct plan *plan = new_plan((int)list->count + 2, run_index);
    plan->name = "aclnnIndex";
    int code = OK;
    TENSOR(out);
    TENSOR(self);
    const tensor *result = &plan->tensors[0], *in = &plan->tensors[1];
    REQUIRE(in->type == result->type && list->count && (int)list->count <= in->rank, "%llu indices of rank %d",
            (unsigned long long)list->count, in->rank);
    plan->number = code ? 0 : result->rank - (in->rank - (int)list->count);
    REQUIRE(plan->number >= 0, "the output's rank, %d", result->rank);
    tensor front = *result;
    front.rank = (int)plan->number;
    for (uint64_t k = 0; k < list->count && !code; k++) {
        TENSOR(list->tensors[k]);
        REQUIRE(index_type(plan->tensors[k + 2].type), "indices of type %d", plan->tensors[k + 2].type);
        CHECK(check_broadcast(&plan->tensors[k + 2], &front));
    }
    for (int i = (int)plan->number; i < result->rank && !code; i++)
        REQUIRE(result->sizes[i] == in->sizes[i - plan->number + (int)list->count], "size of dimension %d", i);
    END;
}

/* Gradients, whether one is not finite, and what they are multiplied by; the first two are written. */
PHASES(ForeachNonFiniteCheckAndUnscale, const void *grads, void *found, const void *inverse) {
    ENTER(IN_CONTEXT);
    const struct tensor_list *list = grads ? find_object(grads, TENSOR_LIST, "aclTensorList") : NULL;
    if (!list) return leave(grads ? NN_PARAM : fail(NN_NULL, "grads is NULL"));
    struct plan *plan = new_plan((int)list->count + 2, run_unscale);
    plan->name = "aclnnForeachNonFiniteCheckAndUnscale";
    plan->outputs = (int)list->count + 1;
    int code = OK;
    for (uint64_t k = 0; k < list->count; k++) TENSOR(list->tensors[k]);
    TENSOR(found);
    TENSOR(inverse);
    for (uint64_t k = 0; k < list->count && !code; k++)
        REQUIRE(floating(plan->tensors[k].type) && plan->tensors[k].type == plan->tensors[0].type, "types of gradients");
    for (int k = plan->outputs - 1; k < plan->count && !code; k++)
        REQUIRE(plan->tensors[k].type == F32 && count_of(&plan->tensors[k]) == 1, "tensor %d is no float", k);
    END;
}
