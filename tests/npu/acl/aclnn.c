/* The aclnn calls: their parameters, as the public interface has them, and what each checks. */
#include "plan.h"

#include <math.h>
#include <string.h>

/* Elementwise */

static double neg(double x) { return -x; }
static double relu(double x) { return x < 0 ? 0 : x; }  /* NaN and -0 stay */
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double silu(double x) { return x / (1 + exp(-x)); }
static double rsqrt(double x) { return 1 / sqrt(x); }
static double reciprocal(double x) { return 1 / x; }
static double gelu_erf(double x) { return 0.5 * x * (1 + erf(x * 0.70710678118654752440)); }
static double gelu_tanh(double x) { return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x))); }

static int plan_unary(struct plan *plan, const void *self, const void *out, double (*function)(double)) {
    int code = OK;
    TENSOR(out);
    TENSOR(self);
    CHECK(check_types(plan, 1));
    REQUIRE(same_shape(&plan->tensors[0], &plan->tensors[1]), "self and out are of different shapes");
    plan->unary = function;
    plan->in_place = 1;
    return code;
}

#define UNARY(name, function)                                              \
    PHASES(name, const void *self, void *out) {                            \
        BEGIN(name, 2, run_unary);                                         \
        CHECK(plan_unary(plan, self, out, function));                      \
        END;                                                               \
    }
UNARY(Neg, neg)
UNARY(Exp, exp)
UNARY(Relu, relu)
UNARY(Sigmoid, sigmoid)
UNARY(Tanh, tanh)
UNARY(Silu, silu)
UNARY(Abs, fabs)
UNARY(Cos, cos)
UNARY(Sin, sin)
UNARY(Sqrt, sqrt)
UNARY(Rsqrt, rsqrt)
UNARY(Log, log)
UNARY(Gelu, gelu_tanh) /* the first version is the approximation; the second takes a mode */

PHASES(GeluV2, const void *self, int64_t approximate, void *out) {
    BEGIN(GeluV2, 2, run_unary);
    REQUIRE(approximate == 0 || approximate == 1, "approximate %lld", (long long)approximate);
    CHECK(plan_unary(plan, self, out, approximate ? gelu_tanh : gelu_erf));
    END;
}

static double add(double x, double y) { return x + y; }
static double sub(double x, double y) { return x - y; }
static double mul(double x, double y) { return x * y; }
static double divide(double x, double y) { return x / y; }
static int64_t whole_add(int64_t x, int64_t y) { return (int64_t)((uint64_t)x + (uint64_t)y); }
static int64_t whole_sub(int64_t x, int64_t y) { return (int64_t)((uint64_t)x - (uint64_t)y); }
static int64_t whole_mul(int64_t x, int64_t y) { return (int64_t)((uint64_t)x * (uint64_t)y); }

PHASES(Reciprocal, const void *self, void *out) { /* also of float64 */
    BEGIN(Reciprocal, 2, run_unary);
    TENSOR(out);
    TENSOR(self);
    REQUIRE(plan->tensors[0].type == plan->tensors[1].type && (floating(plan->tensors[0].type) || plan->tensors[0].type == F64), "type %d", plan->tensors[0].type);
    REQUIRE(same_shape(&plan->tensors[0], &plan->tensors[1]), "self and out are of different shapes");
    plan->unary = reciprocal;
    plan->in_place = 1;
    END;
}

static int plan_binary(struct plan *plan, const void *self, const void *other, const void *scalar, const void *out,
                       double (*function)(double, double), int64_t (*whole)(int64_t, int64_t)) {
    int code = OK;
    TENSOR(out);
    TENSOR(self);
    if (scalar) CHECK(get_scalar(scalar, "other", &plan->values[1]));
    else TENSOR(other);
    for (int i = 1, mixed = 0; !code && i < plan->count; i++) {
        mixed += plan->tensors[i].type != plan->tensors[0].type;
        for (int j = 0; mixed && !code && j < plan->count; j++)
            REQUIRE(floating(plan->tensors[j].type), "types of which not all are floats"); /* which are promoted */
    }
    REQUIRE(whole || floating(plan->tensors[0].type), "type %d is not computed with", plan->tensors[0].type);
    CHECK(check_result(plan));
    if (!code && !floating(plan->tensors[0].type)) {
        REQUIRE(plan->tensors[0].type != BOOL && plan->tensors[0].type != F64, "type %d", plan->tensors[0].type);
        plan->whole = whole;
    } else
        for (int i = 0; i < 2; i++) plan->values[i] = (float)plan->values[i]; /* no more digits than the tensors have */
    plan->binary = function;
    plan->in_place = 1;
    return code;
}

#define WITH_ALPHA(name, function, whole)                                                   \
    PHASES(name, const void *self, const void *other, const void *alpha, void *out) {       \
        BEGIN(name, 3, run_binary);                                                         \
        CHECK(get_scalar(alpha, "alpha", &plan->values[0]));                                \
        CHECK(plan_binary(plan, self, other, NULL, out, function, whole));                        \
        END;                                                                                \
    }                                                                                       \
    PHASES(name##s, const void *self, const void *other, const void *alpha, void *out) {    \
        BEGIN(name##s, 2, run_binary);                                                      \
        REQUIRE(other, "other is NULL");                                                    \
        CHECK(get_scalar(alpha, "alpha", &plan->values[0]));                                \
        CHECK(plan_binary(plan, self, NULL, other, out, function, whole));                        \
        END;                                                                                \
    }
#define PLAIN(name, function, whole)                                                        \
    PHASES(name, const void *self, const void *other, void *out) {                          \
        BEGIN(name, 3, run_binary);                                                         \
        CHECK(plan_binary(plan, self, other, NULL, out, function, whole));                        \
        END;                                                                                \
    }                                                                                       \
    PHASES(name##s, const void *self, const void *other, void *out) {                       \
        BEGIN(name##s, 2, run_binary);                                                      \
        REQUIRE(other, "other is NULL");                                                    \
        CHECK(plan_binary(plan, self, NULL, other, out, function, whole));                        \
        END;                                                                                \
    }
WITH_ALPHA(Add, add, whole_add)
WITH_ALPHA(Sub, sub, whole_sub)
PLAIN(Mul, mul, whole_mul)
PLAIN(Div, divide, NULL)

/* Matrix products. Vectors become matrices with a side of 1. */

static void insert_one(tensor *t, int at) {
    memmove(t->sizes + at + 1, t->sizes + at, (size_t)(t->rank - at) * sizeof *t->sizes);
    memmove(t->strides + at + 1, t->strides + at, (size_t)(t->rank - at) * sizeof *t->strides);
    t->sizes[at] = 1;
    t->strides[at] = 0;
    t->rank++;
}

int check_cube(struct plan *plan, int type, int mode) {
    plan->number = mode;
    if (mode < 0 || mode > 3) return fail(NN_PARAM, "cubeMathType %d", mode);
    if (!float_cube && (type == BF16 || (type == F32 && mode != 1 && mode != 2)))
        return fail(NN_PARAM, "the cube unit of %s does not take type %d in cubeMathType %d", chip, type, mode);
    return OK;
}

static int plan_matmul(struct plan *plan, int mode) {
    int code = check_types(plan, 1);
    code = code ? code : check_cube(plan, plan->tensors[1].type, mode);
    if (code) return code;
    tensor *out = &plan->tensors[0], *left = &plan->tensors[1], *right = &plan->tensors[2];
    if (!left->rank || !right->rank || left->rank == MAX_DIMS || right->rank == MAX_DIMS)
        return fail(NN_PARAM, "ranks %d and %d", left->rank, right->rank);
    int row = left->rank == 1, column = right->rank == 1;
    if (column) insert_one(right, 1);
    if (row) insert_one(left, 0);
    if (row) insert_one(out, out->rank - !column);
    if (column) insert_one(out, out->rank);
    int rank = left->rank > right->rank ? left->rank : right->rank;
    if (out->rank != rank) return fail(NN_PARAM, "the output's rank, %d, should be %d", out->rank, rank);
    int64_t depth = left->sizes[left->rank - 1];
    if (depth != right->sizes[right->rank - 2] || out->sizes[rank - 2] != left->sizes[left->rank - 2] ||
        out->sizes[rank - 1] != right->sizes[right->rank - 1])
        return fail(NN_PARAM, "the matrices' sizes do not fit");
    tensor batch = *out, a = *left, b = *right;
    batch.rank -= 2, a.rank -= 2, b.rank -= 2;
    code = check_broadcast(&a, &batch);
    plan->workspace = 512;
    return code ? code : check_broadcast(&b, &batch);
}

#define PRODUCT(name, fits)                                                                 \
    PHASES(name, const void *self, const void *other, void *out, int8_t mode) {             \
        BEGIN(name, 3, run_matmul);                                                         \
        TENSOR(out);                                                                        \
        TENSOR(self);                                                                       \
        TENSOR(other);                                                                      \
        const tensor *a = &plan->tensors[1], *b = &plan->tensors[2];                        \
        REQUIRE(fits(a->rank) && fits(b->rank), "ranks %d and %d", a->rank, b->rank);       \
        CHECK(plan_matmul(plan, mode));                                                     \
        END;                                                                                \
    }
#define TWO(rank) ((rank) == 2)
#define THREE(rank) ((rank) == 3)
#define SOME(rank) ((rank) > 0)
PRODUCT(Mm, TWO)
PRODUCT(BatchMatMul, THREE)
PRODUCT(Matmul, SOME)

PHASES(Addmm, const void *self, const void *mat1, const void *mat2, const void *beta, const void *alpha, void *out,
       int8_t mode) {
    BEGIN(Addmm, 4, run_matmul);
    TENSOR(out);
    TENSOR(mat1);
    TENSOR(mat2);
    TENSOR(self);
    REQUIRE(plan->tensors[1].rank == 2 && plan->tensors[2].rank == 2, "not two matrices");
    CHECK(get_scalar(beta, "beta", &plan->values[0]));
    CHECK(get_scalar(alpha, "alpha", &plan->values[1]));
    for (int i = 0; i < 2; i++) plan->values[i] = (float)plan->values[i];
    CHECK(plan_matmul(plan, mode));
    CHECK(check_broadcast(&plan->tensors[3], &plan->tensors[0]));
    END;
}

/* Reductions and what goes along a dimension */

int plan_reduction(struct plan *plan, const int64_t *dims, uint64_t count, int keep) {
    const tensor *out = &plan->tensors[0], *in = &plan->tensors[plan->outputs];
    int64_t at;
    for (uint64_t i = 0; i < count; i++) {
        int code = get_dimension(dims[i], in->rank, &at);
        if (code) return code;
        if (plan->reduced[at]++) return fail(NN_PARAM, "dimension %lld twice", (long long)at);
    }
    int rank = 0;
    for (int i = 0; i < in->rank; i++) {
        if (!count) plan->reduced[i] = 1; /* no dimensions: all of them */
        if (plan->reduced[i] && !keep) continue;
        if (rank >= out->rank || out->sizes[rank] != (plan->reduced[i] ? 1 : in->sizes[i]))
            return fail(NN_PARAM, "the output is of another shape than the reduction");
        rank++;
    }
    return rank == out->rank ? OK : fail(NN_PARAM, "the output's rank, %d, should be %d", out->rank, rank);
}

static int plan_sum(struct plan *plan, const void *dims, int keep, int type) {
    int code = check_types(plan, 1);
    if (code) return code;
    if (type != plan->tensors[0].type) return fail(NN_PARAM, "type %d into %d", type, plan->tensors[0].type);
    if (!dims) return fail(NN_NULL, "dims is NULL");
    struct int_array *array = find_object(dims, INT_ARRAY, "aclIntArray");
    return array ? plan_reduction(plan, array->values, array->count, keep) : NN_PARAM;
}

PHASES(ReduceSum, const void *self, const void *dims, _Bool keep, int type, void *out) {
    BEGIN(ReduceSum, 2, run_sum);
    TENSOR(out);
    TENSOR(self);
    CHECK(plan_sum(plan, dims, keep, type));
    END;
}

PHASES(Mean, const void *self, const void *dims, _Bool keep, int type, void *out) {
    BEGIN(Mean, 2, run_sum);
    TENSOR(out);
    TENSOR(self);
    CHECK(plan_sum(plan, dims, keep, type));
    plan->values[0] = 1;
    for (int i = 0; i < plan->tensors[1].rank; i++)
        if (plan->reduced[i]) plan->values[0] *= (double)plan->tensors[1].sizes[i];
    END;
}

PHASES(Max, const void *self, void *out) {
    BEGIN(Max, 2, run_max);
    TENSOR(out);
    TENSOR(self);
    CHECK(check_types(plan, 1));
    REQUIRE(count_of(&plan->tensors[1]), "the maximum of nothing");
    CHECK(plan_reduction(plan, NULL, 0, 0));
    END;
}

PHASES(MaxDim, const void *self, int64_t dim, _Bool keep, void *out, void *indices) {
    BEGIN(MaxDim, 3, run_max);
    plan->outputs = 2;
    TENSOR(out);
    TENSOR(indices);
    TENSOR(self);
    REQUIRE(plan->tensors[1].type == I64, "indices of type %d", plan->tensors[1].type);
    REQUIRE(floating(plan->tensors[0].type) && plan->tensors[0].type == plan->tensors[2].type, "the types differ");
    REQUIRE(same_shape(&plan->tensors[0], &plan->tensors[1]), "out and indices are of different shapes");
    CHECK(get_dimension(dim, plan->tensors[2].rank, &plan->number));
    REQUIRE(!plan->tensors[2].rank || plan->tensors[2].sizes[plan->number], "the maximum of nothing");
    if (!code && plan->tensors[2].rank) code = plan_reduction(plan, &dim, 1, keep);
    REQUIRE(plan->tensors[2].rank, "a maximum along a dimension of a number");
    END;
}

#define SOFTMAX(called, logarithm)                                                                                 \
    PHASES(called, const void *self, int64_t dim, void *out) {                                                     \
        BEGIN(called, 2, run_softmax);                                                                             \
        TENSOR(out);                                                                                               \
        TENSOR(self);                                                                                              \
        CHECK(check_types(plan, 1));                                                                               \
        REQUIRE(same_shape(&plan->tensors[0], &plan->tensors[1]), "self and out are of different shapes");         \
        CHECK(get_dimension(dim, plan->tensors[1].rank, &plan->number));                                           \
        plan->numbers[0] = logarithm;                                                                              \
        plan->workspace = 1024;                                                                                    \
        END;                                                                                                       \
    }
SOFTMAX(Softmax, 0)
SOFTMAX(LogSoftmax, 1)

PHASES(ArgMax, const void *self, int64_t dim, _Bool keep, void *out) {
    BEGIN(ArgMax, 2, run_max);
    TENSOR(out);
    TENSOR(self);
    REQUIRE(index_type(plan->tensors[0].type) && floating(plan->tensors[1].type), "types %d, %d", plan->tensors[0].type,
            plan->tensors[1].type);
    CHECK(get_dimension(dim, plan->tensors[1].rank, &plan->number));
    REQUIRE(plan->tensors[1].rank && plan->tensors[1].sizes[plan->number], "the maximum of nothing");
    if (!code) code = plan_reduction(plan, &dim, 1, keep);
    plan->numbers[0] = 1;
    END;
}

PHASES(LayerNorm, const void *input, const void *shape, const void *weight, const void *bias, double eps, void *out,
       void *mean, void *rstd) {
    BEGIN(LayerNorm, 6, run_layer_norm);
    plan->outputs = 3;
    TENSOR(out);
    OPTIONAL(mean);
    OPTIONAL(rstd);
    TENSOR(input);
    OPTIONAL(weight);
    OPTIONAL(bias);
    const tensor *in = &plan->tensors[3];
    struct int_array *array = !code && shape ? find_object(shape, INT_ARRAY, "aclIntArray") : NULL;
    REQUIRE(array && array->count && (int)array->count <= in->rank, "normalizedShape does not fit the input");
    REQUIRE(floating(in->type) && plan->tensors[0].type == in->type, "types %d, %d", in->type, plan->tensors[0].type);
    REQUIRE(same_shape(&plan->tensors[0], in), "input and out are of different shapes");
    int count = code ? 0 : (int)array->count, outer = in->rank - count;
    for (int i = 0; i < count; i++) REQUIRE(array->values[i] == in->sizes[outer + i], "normalizedShape is another one");
    for (int k = 4; k < 6; k++)
        for (int i = 0; i < count && !code && plan->handles[k]; i++)
            REQUIRE(plan->tensors[k].rank == count && plan->tensors[k].sizes[i] == array->values[i],
                    "weight or bias is of another shape than normalizedShape");
    for (int k = 4; k < 6; k++)
        REQUIRE(!plan->handles[k] || plan->tensors[k].type == in->type || plan->tensors[k].type == F32,
                "weight or bias of type %d for an input of type %d", plan->tensors[k].type, in->type);
    int64_t rows = 1;
    for (int i = 0; i < outer; i++) rows *= in->sizes[i];
    for (int k = 1; k < 3; k++)
        REQUIRE(!plan->handles[k] || count_of(&plan->tensors[k]) == rows, "mean and rstd have one value each row");
    plan->number = count;
    plan->values[0] = eps;
    plan->workspace = 2048;
    END;
}

/* Moving and converting */

static int convertible(const struct plan *plan) { return check_broadcast(&plan->tensors[1], &plan->tensors[0]); }

PHASES(Cast, const void *self, int type, void *out) {
    BEGIN(Cast, 2, run_convert);
    TENSOR(out);
    TENSOR(self);
    REQUIRE(type == plan->tensors[0].type, "type %d into %d", type, plan->tensors[0].type);
    REQUIRE(same_shape(&plan->tensors[0], &plan->tensors[1]), "self and out are of different shapes");
    END;
}

PHASES(InplaceFillScalar, void *self, const void *number) {
    BEGIN(InplaceFillScalar, 1, run_fill);
    TENSOR(self);
    CHECK(get_scalar(number, "value", &plan->values[0]));
    END;
}

PHASES(InplaceCopy, void *self, const void *source) {
    BEGIN(InplaceCopy, 2, run_convert);
    TENSOR(self);
    TENSOR(source);
    CHECK(convertible(plan));
    END;
}

PHASES(Cat, const void *tensors, int64_t dim, void *out) {
    ENTER(IN_CONTEXT);
    const struct tensor_list *list = tensors ? find_object(tensors, TENSOR_LIST, "aclTensorList") : NULL;
    if (!list) return leave(tensors ? NN_PARAM : fail(NN_NULL, "tensors is NULL"));
    struct plan *plan = new_plan((int)list->count + 1, run_cat);
    plan->name = "aclnnCat";
    int code = OK;
    TENSOR(out);
    const tensor *result = &plan->tensors[0];
    CHECK(get_dimension(dim, result->rank, &plan->number));
    int64_t length = 0;
    for (uint64_t k = 0; k < list->count && !code; k++) {
        TENSOR(list->tensors[k]);
        const tensor *in = &plan->tensors[k + 1];
        if (code || (in->rank == 1 && !in->sizes[0])) continue;
        REQUIRE(in->rank == result->rank && in->rank, "rank %d into %d", in->rank, result->rank);
        for (int i = 0; i < in->rank && !code; i++)
            REQUIRE(i == plan->number || in->sizes[i] == result->sizes[i], "size %lld of dimension %d",
                    (long long)in->sizes[i], i);
        length += in->sizes[plan->number];
    }
    CHECK(check_types(plan, 0));
    REQUIRE(list->count && result->rank && length == result->sizes[plan->number], "the output's length is another one");
    END;
}

PHASES(IndexSelect, const void *self, int64_t dim, const void *index, void *out) {
    BEGIN(IndexSelect, 3, run_select);
    TENSOR(out);
    TENSOR(self);
    TENSOR(index);
    const tensor *result = &plan->tensors[0], *in = &plan->tensors[1], *chosen = &plan->tensors[2];
    REQUIRE(index_type(chosen->type) && chosen->rank < 2, "an index of type %d, rank %d", chosen->type, chosen->rank);
    REQUIRE(in->type == result->type && in->rank == result->rank, "self and out differ in type or rank");
    CHECK(get_dimension(dim, in->rank, &plan->number));
    for (int i = 0; i < in->rank && !code; i++)
        REQUIRE(result->sizes[i] == (i == plan->number ? count_of(chosen) : in->sizes[i]), "size of dimension %d", i);
    END;
}

PHASES(Embedding, const void *weight, const void *indices, void *out) {
    BEGIN(Embedding, 3, run_embedding);
    TENSOR(out);
    TENSOR(weight);
    TENSOR(indices);
    const tensor *result = &plan->tensors[0], *in = &plan->tensors[1], *chosen = &plan->tensors[2];
    REQUIRE(in->rank == 2 && index_type(chosen->type), "a weight of rank %d, indices of type %d", in->rank,
            chosen->type);
    REQUIRE(in->type == result->type && result->rank == chosen->rank + 1, "weight and out do not fit");
    for (int i = 0; i < result->rank && !code; i++)
        REQUIRE(result->sizes[i] == (i < chosen->rank ? chosen->sizes[i] : in->sizes[1]), "size of dimension %d", i);
    END;
}
