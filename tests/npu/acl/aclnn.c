/* The two phases of aclnn calls: what they check, and how they are queued. */
#include "tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void free_plan(struct plan *plan) {
    free(plan->tensors);
    free(plan->handles);
    free(plan);
}

void end_executor(struct object *object) {
    struct executor *executor = (struct executor *)object;
    free_plan(executor->plan);
    executor->plan = NULL;
    end_object(object);
}

static struct plan *copy_plan(const struct plan *plan) {
    struct plan *copy = malloc(sizeof *copy);
    size_t room = (size_t)plan->count + 1;
    *copy = *plan;
    copy->tensors = memcpy(malloc(room * sizeof *copy->tensors), plan->tensors, room * sizeof *copy->tensors);
    copy->handles = memcpy(malloc(room * sizeof *copy->handles), plan->handles, room * sizeof *copy->handles);
    return copy;
}

/* First phase */

static struct plan *new_plan(int room, int (*run)(const struct plan *)) {
    struct plan *plan = calloc(1, sizeof *plan);
    plan->tensors = calloc((size_t)room + 1, sizeof *plan->tensors);
    plan->handles = calloc((size_t)room + 1, sizeof *plan->handles);
    plan->run = run;
    plan->outputs = 1;
    plan->values[0] = 1;
    return plan;
}

/* Whether the tensor's elements lie inside its storage: the lowest and the highest, in elements. */
static int extent(const tensor *t, int64_t *low, int64_t *high) {
    *low = *high = t->offset;
    if (!count_of(t)) return 0;
    for (int i = 0; i < t->rank; i++) {
        int64_t reach = (t->sizes[i] - 1) * t->strides[i];
        if (reach < 0) *low += reach;
        else *high += reach;
    }
    return 1;
}

static int add_tensor(struct plan *plan, const void *handle, int optional, const char *what) {
    int at = plan->count++;
    int64_t low, high;
    if (!handle && optional) return OK;
    if (!handle) return fail(NN_NULL, "%s is NULL", what);
    const tensor *t = find_object(handle, TENSOR, "aclTensor");
    if (!t) return NN_PARAM;
    plan->handles[at] = t;
    plan->tensors[at] = *t;
    if (extent(t, &low, &high) && (low < 0 || high >= t->storage))
        return misuse(NN_PARAM, "%s reaches from element %lld to %lld of %lld", what, (long long)low, (long long)high,
                      (long long)t->storage);
    for (int i = 0; i < t->rank && at < plan->outputs; i++)
        if (t->sizes[i] > 1 && !t->strides[i]) return misuse(NN_PARAM, "%s, an output, overlaps itself", what);
    return OK;
}

static int finish(struct plan *plan, int code, uint64_t *size, void **executor) {
    if (!code && (!size || !executor)) code = fail(NN_NULL, "the workspace's size or the executor is NULL");
    if (code) {
        free_plan(plan);
        return leave(code);
    }
    struct executor *made = new_object(EXECUTOR, sizeof *made, current->base.device);
    made->plan = plan;
    *size = plan->workspace;
    *executor = made;
    return leave(OK);
}

static int floating(int type) { return type == F32 || type == F16 || type == BF16; }

static int check_types(const struct plan *plan, int computes) {
    int type = plan->tensors[0].type;
    for (int i = 0; i < plan->count; i++)
        if (plan->handles[i] && plan->tensors[i].type != type)
            return fail(NN_PARAM, "types %d and %d", type, plan->tensors[i].type);
    return computes && !floating(type) ? fail(NN_PARAM, "type %d is not computed with", type) : OK;
}

static int check_broadcast(const tensor *in, const tensor *out) {
    if (in->rank > out->rank) return fail(NN_PARAM, "rank %d into rank %d", in->rank, out->rank);
    for (int i = 0; i < in->rank; i++) {
        int64_t size = in->sizes[i], wanted = out->sizes[i + out->rank - in->rank];
        if (size != wanted && size != 1)
            return fail(NN_PARAM, "size %lld of dimension %d into %lld", (long long)size, i, (long long)wanted);
    }
    return OK;
}

static int same_shape(const tensor *one, const tensor *other) {
    return one->rank == other->rank && !memcmp(one->sizes, other->sizes, (size_t)one->rank * sizeof *one->sizes);
}

/* The broadcast of both operands must be the output's shape, not only fit into it. */
static int check_result(const struct plan *plan) {
    const tensor *out = &plan->tensors[0];
    for (int i = 1; i < plan->count; i++) {
        int code = check_broadcast(&plan->tensors[i], out);
        if (code) return code;
    }
    for (int d = 0; d < out->rank; d++) {
        int64_t largest = 1;
        int covered = 0;
        for (int i = 1; i < plan->count; i++) {
            int at = d - (out->rank - plan->tensors[i].rank);
            if (at < 0) continue;
            covered = 1;
            if (plan->tensors[i].sizes[at] != 1) largest = plan->tensors[i].sizes[at];
        }
        if (!covered || largest != out->sizes[d]) return fail(NN_PARAM, "the output's dimension %d is of another size", d);
    }
    return OK;
}

static int get_scalar(const void *handle, const char *what, double *value) {
    if (!handle) return fail(NN_NULL, "%s is NULL", what);
    struct scalar *scalar = find_object(handle, SCALAR, "aclScalar");
    if (!scalar) return NN_PARAM;
    *value = scalar->value;
    return OK;
}

static int get_dimension(int64_t dimension, int rank, int64_t *result) {
    int64_t count = rank ? rank : 1;
    if (dimension < -count || dimension >= count) return fail(NN_PARAM, "dimension %lld of %d", (long long)dimension, rank);
    *result = dimension < 0 ? dimension + count : dimension;
    return OK;
}

/* Second phase */

static void run_plan(struct work *work) {
    struct plan *plan = work->plan;
    if (work->to) memset(work->to, 0xA5, work->size); /* whoever else keeps something there will notice */
    int code = plan->run(plan);
    if (!code) return;
    pthread_mutex_lock(&lock);
    work->stream->error = code;
    pthread_mutex_unlock(&lock);
}

static int same_place(const tensor *one, const tensor *other) {
    return one->data == other->data && one->offset == other->offset && one->type == other->type &&
           same_shape(one, other) && !memcmp(one->strides, other->strides, (size_t)one->rank * sizeof *one->strides);
}

static int add_memory(struct plan *plan, struct work *work, int at) {
    const tensor *handle = plan->handles[at];
    tensor *t = &plan->tensors[at];
    int64_t low, high, wide = (int64_t)bytes_of(t->type);
    if (!handle) return OK;
    if (!find_object(handle, TENSOR, "aclTensor of an executor")) return NN_PARAM;
    if (!extent(t, &low, &high)) return OK;
    size_t size = (size_t)((high - low + 1) * wide);
    char *start = t->data + low * wide;
    struct block *block = device_of(start) >= 0 ? find_block(start, size) : NULL;
    if (!block) return misuse(NN_PARAM, "%zu bytes at %p of a tensor are not inside a live device block", size, (void *)start);
    if (block->device != current->base.device)
        return misuse(NN_PARAM, "a tensor of device %d is used on device %d", block->device, current->base.device);
    for (int i = 0; i < work->count && i < plan->count; i++) {
        struct range *other = &work->ranges[i];
        int writes = other->write || at < plan->outputs;
        if (!writes || other->address >= start + size || start >= other->address + other->size) continue;
        if (!plan->in_place || !other->write || !same_place(plan->handles[0], handle))
            return misuse(NN_PARAM, "an output overlaps another tensor at %p", (void *)start);
    }
    add_range(work, block, start, size, at < plan->outputs);
    t->data = memory_of(block, start) + (t->offset - low) * wide;
    return OK;
}

static int second(struct plan *plan, void *workspace, uint64_t size, void *handle) {
    struct stream *stream;
    int code = find_stream(handle, &stream);
    if (code) return code;
    if (size != plan->workspace) return misuse(NN_PARAM, "a workspace of %llu bytes, %llu were asked for",
                                               (unsigned long long)size, (unsigned long long)plan->workspace);
    struct work *work = new_work(run_plan, plan->count + 1);
    for (int i = 0; i < plan->count && !code; i++) code = add_memory(plan, work, i);
    if (!code && size) {
        struct block *block = device_of(workspace) == current->base.device ? find_block(workspace, size) : NULL;
        if (block) {
            add_range(work, block, workspace, size, 1);
            work->to = memory_of(block, workspace);
            work->size = size;
        } else code = misuse(NN_PARAM, "the workspace %p is not inside a live block of the device", workspace);
    }
    if (code) {
        free_work(work);
        return code;
    }
    work->plan = copy_plan(plan);
    enqueue(stream, work);
    return OK;
}

/* An executor is spent by the second phase, also by one that fails, unless it was made repeatable. */
static int second_phase(struct site *site, void *workspace, uint64_t size, void *handle, void *stream) {
    int injected = 0;
    int code = enter(site, IN_CONTEXT, 1, &injected);
    if (code) return code;
    struct executor *executor = find_object(handle, EXECUTOR, "aclOpExecutor");
    if (!executor) return leave(NN_EXECUTOR);
    if (injected) code = injected;
    else if (strcmp(executor->plan->name, site->name))
        code = misuse(NN_EXECUTOR, "the executor is one of %s", executor->plan->name);
    else {
        struct plan *plan = copy_plan(executor->plan);
        code = second(plan, workspace, size, stream);
        free_plan(plan);
    }
    if (!executor->repeatable) end_executor(&executor->base);
    return leave(code);
}

API int aclSetAclOpExecutorRepeatable(void *handle) {
    ENTER(INITIALIZED);
    struct executor *executor = find_object(handle, EXECUTOR, "aclOpExecutor");
    if (!executor) return leave(NN_EXECUTOR);
    executor->repeatable = 1;
    return leave(OK);
}

API int aclDestroyAclOpExecutor(void *handle) {
    ENTER_RELEASE(INITIALIZED);
    struct executor *executor = find_object(handle, EXECUTOR, "aclOpExecutor");
    if (!executor) return leave(NN_EXECUTOR);
    if (!executor->repeatable) return leave(misuse(NN_EXECUTOR, "only a repeatable executor may be destroyed"));
    end_executor(&executor->base);
    LEAVE_RELEASE(OK);
}

#define PHASES(called, ...)                                                                                 \
    API int aclnn##called(void *workspace, uint64_t size, void *executor, void *stream) {                     \
        static struct site site = {.name = "aclnn" #called};                                                \
        return second_phase(&site, workspace, size, executor, stream);                                      \
    }                                                                                                       \
    API int aclnn##called##GetWorkspaceSize(__VA_ARGS__, uint64_t *size, void **executor)

#define BEGIN(second_name, room, run)                    \
    ENTER(IN_CONTEXT);                                   \
    struct plan *plan = new_plan(room, run);             \
    plan->name = "aclnn" #second_name;                   \
    int code = OK

#define TENSOR(handle) code = code ? code : add_tensor(plan, handle, 0, #handle)
#define OPTIONAL(handle) code = code ? code : add_tensor(plan, handle, 1, #handle)
#define CHECK(call) code = code ? code : (call)
#define REQUIRE(condition, ...) \
    if (!code && !(condition)) code = fail(NN_PARAM, __VA_ARGS__)
#define END return finish(plan, code, size, executor)

/* Elementwise */

static double neg(double x) { return -x; }
static double relu(double x) { return isnan(x) ? x : x > 0 ? x : 0; }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double silu(double x) { return x / (1 + exp(-x)); }
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

static int plan_binary(struct plan *plan, const void *self, const void *other, const void *scalar, const void *out,
                       double (*function)(double, double)) {
    int code = OK;
    TENSOR(out);
    TENSOR(self);
    if (scalar) CHECK(get_scalar(scalar, "other", &plan->values[1]));
    else TENSOR(other);
    CHECK(check_types(plan, 1));
    CHECK(check_result(plan));
    plan->binary = function;
    plan->in_place = 1;
    return code;
}

#define WITH_ALPHA(name, function)                                                          \
    PHASES(name, const void *self, const void *other, const void *alpha, void *out) {       \
        BEGIN(name, 3, run_binary);                                                         \
        CHECK(get_scalar(alpha, "alpha", &plan->values[0]));                                \
        CHECK(plan_binary(plan, self, other, NULL, out, function));                         \
        END;                                                                                \
    }                                                                                       \
    PHASES(name##s, const void *self, const void *other, const void *alpha, void *out) {    \
        BEGIN(name##s, 2, run_binary);                                                      \
        REQUIRE(other, "other is NULL");                                                    \
        CHECK(get_scalar(alpha, "alpha", &plan->values[0]));                                \
        CHECK(plan_binary(plan, self, NULL, other, out, function));                         \
        END;                                                                                \
    }
#define PLAIN(name, function)                                                               \
    PHASES(name, const void *self, const void *other, void *out) {                          \
        BEGIN(name, 3, run_binary);                                                         \
        CHECK(plan_binary(plan, self, other, NULL, out, function));                         \
        END;                                                                                \
    }                                                                                       \
    PHASES(name##s, const void *self, const void *other, void *out) {                       \
        BEGIN(name##s, 2, run_binary);                                                      \
        REQUIRE(other, "other is NULL");                                                    \
        CHECK(plan_binary(plan, self, NULL, other, out, function));                         \
        END;                                                                                \
    }
WITH_ALPHA(Add, add)
WITH_ALPHA(Sub, sub)
PLAIN(Mul, mul)
PLAIN(Div, divide)

/* Matrix products. Vectors become matrices with a side of 1. */

static void insert_one(tensor *t, int at) {
    memmove(t->sizes + at + 1, t->sizes + at, (size_t)(t->rank - at) * sizeof *t->sizes);
    memmove(t->strides + at + 1, t->strides + at, (size_t)(t->rank - at) * sizeof *t->strides);
    t->sizes[at] = 1;
    t->strides[at] = 0;
    t->rank++;
}

static int plan_matmul(struct plan *plan, int mode) {
    int code = check_types(plan, 1);
    if (code) return code;
    tensor *out = &plan->tensors[0], *left = &plan->tensors[1], *right = &plan->tensors[2];
    if (mode < 0 || mode > 3) return fail(NN_PARAM, "cubeMathType %d", mode);
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
    plan->number = mode;
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
    CHECK(plan_matmul(plan, mode));
    CHECK(check_broadcast(&plan->tensors[3], &plan->tensors[0]));
    END;
}

/* Reductions and what goes along a dimension */

static int plan_reduction(struct plan *plan, const int64_t *dims, uint64_t count, int keep) {
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

PHASES(Softmax, const void *self, int64_t dim, void *out) {
    BEGIN(Softmax, 2, run_softmax);
    TENSOR(out);
    TENSOR(self);
    CHECK(check_types(plan, 1));
    REQUIRE(same_shape(&plan->tensors[0], &plan->tensors[1]), "self and out are of different shapes");
    CHECK(get_dimension(dim, plan->tensors[1].rank, &plan->number));
    plan->workspace = 1024;
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
            REQUIRE(plan->tensors[k].rank == count && plan->tensors[k].sizes[i] == array->values[i], "a weight's shape");
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

static int index_type(int type) { return type == I64 || type == I32; }

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
    REQUIRE(in->rank == 2 && index_type(chosen->type), "a weight of rank %d, indices of type %d", in->rank, chosen->type);
    REQUIRE(in->type == result->type && result->rank == chosen->rank + 1, "weight and out do not fit");
    for (int i = 0; i < result->rank && !code; i++)
        REQUIRE(result->sizes[i] == (i < chosen->rank ? chosen->sizes[i] : in->sizes[1]), "size of dimension %d", i);
    END;
}
