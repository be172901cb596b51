/* aclnn calls of layers and of what training needs of them: their parameters, as the public interface has them, and
 * what each checks. */
#include "plan.h"

#include <string.h>

#define IN(at) (&plan->tensors[at])

static int same_size(const struct plan *plan, int one, int other) {
    return same_shape(IN(one), IN(other)) ? OK : fail(NN_PARAM, "tensors %d and %d differ in shape", one, other);
}

/* Each of the tensors that were given is of the first one's type, which is computed with. */
static int check_given(const struct plan *plan, int first, int last) {
    int type = -1;
    for (int i = first; i <= last; i++) {
        if (!plan->handles[i]) continue;
        if (type < 0) type = IN(i)->type;
        if (IN(i)->type != type || !floating(type)) return fail(NN_PARAM, "types %d and %d", type, IN(i)->type);
    }
    return OK;
}

/* Each of these is of a type that is computed with. */
static int check_floats(const struct plan *plan, int first, int last) {
    for (int i = first; i <= last; i++)
        if (plan->handles[i] && !floating(IN(i)->type)) return fail(NN_PARAM, "type %d", IN(i)->type);
    return OK;
}

/* Tensors `first` to `last`, where they were given, have one dimension of this size. */
static int check_vectors(const struct plan *plan, int first, int last, int64_t size) {
    for (int i = first; i <= last; i++)
        if (plan->handles[i] && (IN(i)->rank != 1 || IN(i)->sizes[0] != size))
            return fail(NN_PARAM, "tensor %d is no vector of %lld", i, (long long)size);
    return OK;
}

/* A mask says which of the first outputs are wanted: those must have been given. */
static int check_mask(const struct plan *plan, const void *mask, int64_t *wanted) {
    int code = get_mask(mask, wanted, 3);
    for (int i = 0; i < 3 && !code; i++)
        if (wanted[i] && !plan->handles[i]) code = fail(NN_NULL, "output %d is NULL", i);
    return code;
}

#define SOFTMAX_BACKWARD(called, logarithm)                                                            \
    PHASES(called, const void *grad, const void *output, int64_t dim, void *out) {                     \
        BEGIN(called, 3, run_softmax_backward);                                                        \
        TENSOR(out);                                                                                   \
        TENSOR(grad);                                                                                  \
        TENSOR(output);                                                                                \
        CHECK(check_types(plan, 1));                                                                   \
        CHECK(same_size(plan, 0, 1));                                                                  \
        CHECK(same_size(plan, 0, 2));                                                                  \
        CHECK(get_dimension(dim, IN(0)->rank, &plan->number));                                         \
        plan->numbers[0] = logarithm;                                                                  \
        END;                                                                                           \
    }
SOFTMAX_BACKWARD(SoftmaxBackward, 0)
SOFTMAX_BACKWARD(LogSoftmaxBackward, 1)

PHASES(EmbeddingDenseBackward, const void *grad, const void *indices, uint64_t rows, uint64_t padding, _Bool scale,
       const void *out) {
    BEGIN(EmbeddingDenseBackward, 3, run_embedding_backward);
    TENSOR(out);
    TENSOR(grad);
    TENSOR(indices);
    REQUIRE(IN(0)->type == IN(1)->type && floating(IN(0)->type), "types %d, %d", IN(0)->type, IN(1)->type);
    REQUIRE(index_type(IN(2)->type) && IN(2)->rank, "indices of type %d, rank %d", IN(2)->type, IN(2)->rank);
    REQUIRE(IN(0)->rank == 2 && IN(0)->sizes[0] == (int64_t)rows, "the output has not %lld rows", (long long)rows);
    REQUIRE(IN(1)->rank == IN(2)->rank + 1 && IN(1)->sizes[IN(2)->rank] == IN(0)->sizes[1], "grad does not fit");
    for (int i = 0; i < IN(2)->rank && !code; i++)
        REQUIRE(IN(1)->sizes[i] == IN(2)->sizes[i], "size of dimension %d", i);
    plan->number = (int64_t)padding;
    plan->numbers[0] = scale;
    END;
}

/* self, target, weight at `first`; what has one value for all, or for each row without a reduction, at `value`. */
static int check_loss(const struct plan *plan, int first, int value, int64_t reduction) {
    const tensor *in = IN(first), *target = IN(first + 1), *weight = IN(first + 2);
    int classes = in->rank == 2, each = classes && reduction == 0;
    if (in->rank < 1 || in->rank > 2 || target->rank != classes) return fail(NN_PARAM, "ranks %d, %d", in->rank, target->rank);
    if (classes && target->sizes[0] != in->sizes[0]) return fail(NN_PARAM, "self and target have other lengths");
    if (target->type != I64 && target->type != I32 && target->type != U8) return fail(NN_PARAM, "type %d", target->type);
    if (weight->rank != 1 || weight->sizes[0] != in->sizes[classes]) return fail(NN_PARAM, "a weight for each class");
    if (reduction < 0 || reduction > 2) return fail(NN_PARAM, "reduction %lld", (long long)reduction);
    if (count_of(IN(value)) != (each ? in->sizes[0] : 1) || IN(value)->rank > 1) return fail(NN_PARAM, "the loss's shape");
    return floating(in->type) && weight->type == in->type && IN(value)->type == in->type
               ? OK : fail(NN_PARAM, "types %d, %d, %d", in->type, weight->type, IN(value)->type);
}

PHASES(NLLLoss, const void *self, const void *target, const void *weight, int64_t reduction, int64_t ignored, void *out,
       void *total) {
    BEGIN(NLLLoss, 5, run_nll_loss);
    plan->outputs = 2;
    TENSOR(out);
    TENSOR(total);
    TENSOR(self);
    TENSOR(target);
    TENSOR(weight);
    CHECK(check_loss(plan, 2, 0, reduction));
    REQUIRE(count_of(IN(1)) == 1 && IN(1)->type == IN(0)->type, "totalWeightOut is no number like the loss");
    plan->number = ignored;
    plan->numbers[0] = reduction;
    END;
}

PHASES(NLLLossBackward, const void *grad, const void *self, const void *target, const void *weight, int64_t reduction,
       int64_t ignored, const void *total, void *out) {
    BEGIN(NLLLossBackward, 6, run_nll_loss_backward);
    TENSOR(out);
    TENSOR(grad);
    TENSOR(self);
    TENSOR(target);
    TENSOR(weight);
    TENSOR(total);
    CHECK(check_loss(plan, 2, 1, reduction));
    CHECK(same_size(plan, 0, 2));
    REQUIRE(count_of(IN(5)) == 1 && IN(5)->type == IN(0)->type && IN(0)->type == IN(2)->type, "types or shapes");
    plan->number = ignored;
    plan->numbers[0] = reduction;
    END;
}

PHASES(LayerNormBackward, const void *grad, const void *input, const void *shape, const void *mean, const void *rstd,
       const void *weight, const void *bias, const void *mask, void *grad_input, void *grad_weight, void *grad_bias) {
    BEGIN(LayerNormBackward, 9, run_layer_norm_backward);
    plan->outputs = 3;
    OPTIONAL(grad_input);
    OPTIONAL(grad_weight);
    OPTIONAL(grad_bias);
    TENSOR(grad);
    TENSOR(input);
    TENSOR(mean);
    TENSOR(rstd);
    OPTIONAL(weight);
    OPTIONAL(bias);
    CHECK(check_mask(plan, mask, plan->numbers + MAX_DIMS));
    int count = code ? 0 : get_array(shape, "normalizedShape", plan->numbers, 1, IN(4)->rank), outer = IN(4)->rank - count;
    CHECK(count < 0 ? -count : same_size(plan, 3, 4));
    int64_t rows = 1;
    for (int i = 0; i < outer && !code; i++) rows *= IN(4)->sizes[i];
    for (int i = 0; i < count; i++)
        REQUIRE(plan->numbers[i] == IN(4)->sizes[outer + i], "normalizedShape is another one");
    for (int k = 1; k < 9; k++)
        for (int i = 0; i < count && !code && plan->handles[k] && (k < 3 || k > 6); i++)
            REQUIRE(IN(k)->rank == count && IN(k)->sizes[i] == plan->numbers[i], "tensor %d is of another shape", k);
    for (int k = 5; k < 7; k++) REQUIRE(count_of(IN(k)) == rows, "mean and rstd have one value each row");
    REQUIRE(IN(5)->type == IN(6)->type && (IN(5)->type == IN(4)->type || IN(5)->type == F32), "types of mean and rstd");
    REQUIRE(IN(3)->type == IN(4)->type && floating(IN(3)->type), "types %d, %d", IN(3)->type, IN(4)->type);
    REQUIRE(!plan->handles[0] || (IN(0)->type == IN(4)->type && same_shape(IN(0), IN(4))), "gradInputOut is not like input");
    plan->number = count;
    END;
}

/* Batch norm, as on Atlas A2, A3, 910 and 310P: one type for all, and saveInvstd has the variance. */

PHASES(BatchNorm, const void *input, const void *weight, const void *bias, void *running_mean, void *running_var,
       _Bool training, double momentum, double eps, void *out, void *save_mean, void *save_invstd) {
    BEGIN(BatchNorm, 8, run_batch_norm);
    plan->outputs = 5;
    TENSOR(out);
    TENSOR(save_mean);
    TENSOR(save_invstd);
    OPTIONAL(running_mean);
    OPTIONAL(running_var);
    TENSOR(input);
    OPTIONAL(weight);
    OPTIONAL(bias);
    CHECK(check_floats(plan, 0, 7));
    REQUIRE(IN(0)->type == IN(5)->type && IN(1)->type == IN(2)->type, "types of results");
    CHECK(same_size(plan, 0, 5));
    REQUIRE(IN(5)->rank > 1 && IN(0)->format == IN(5)->format, "rank %d", IN(5)->rank);
    CHECK(check_vectors(plan, 1, 4, IN(5)->sizes[1]));
    CHECK(check_vectors(plan, 6, 7, IN(5)->sizes[1]));
    REQUIRE(training || (plan->handles[3] && plan->handles[4]), "inference needs running statistics");
    plan->values[0] = momentum;
    plan->values[1] = eps;
    plan->number = training;
    END;
}

PHASES(BatchNormBackward, const void *grad, const void *input, const void *weight, const void *running_mean,
       const void *running_var, const void *save_mean, const void *save_invstd, _Bool training, double eps,
       const void *mask, void *grad_input, void *grad_weight, void *grad_bias) {
    BEGIN(BatchNormBackward, 10, run_batch_norm_backward);
    plan->outputs = 3;
    OPTIONAL(grad_input);
    OPTIONAL(grad_weight);
    OPTIONAL(grad_bias);
    TENSOR(grad);
    TENSOR(input);
    OPTIONAL(weight);
    OPTIONAL(running_mean);
    OPTIONAL(running_var);
    OPTIONAL(save_mean);
    OPTIONAL(save_invstd);
    CHECK(check_mask(plan, mask, plan->numbers));
    CHECK(check_floats(plan, 0, 9));
    REQUIRE(IN(3)->type == IN(4)->type && (!plan->handles[0] || IN(0)->type == IN(4)->type), "types of gradients");
    CHECK(same_size(plan, 3, 4));
    REQUIRE(!plan->handles[0] || same_shape(IN(0), IN(4)), "gradInput is of another shape than input");
    REQUIRE(IN(4)->rank > 1, "rank %d", IN(4)->rank);
    CHECK(check_vectors(plan, 1, 2, IN(4)->sizes[1]));
    CHECK(check_vectors(plan, 5, 7, IN(4)->sizes[1]));
    if (training) CHECK(check_vectors(plan, 8, 9, IN(4)->sizes[1]));
    REQUIRE(plan->handles[training ? 8 : 6] && plan->handles[training ? 9 : 7], "no statistics");
    plan->values[1] = eps;
    plan->number = training;
    END;
}

/* Convolution. numbers: stride, padding, dilation, padding of the output (three each), groups, transposed, mask. */

static int spatial_format(const tensor *t) { return t->format == (t->rank == 3 ? NCL : t->rank == 4 ? NCHW : NCDHW); }

static int get_geometry(struct plan *plan, int rank, const void *const *arrays) {
    for (int a = 0; a < 4; a++) {
        int64_t *three = plan->numbers + 3 * a;
        for (int i = 0; i < 3; i++) three[i] = a == 0 || a == 2; /* of dimensions that are not there */
        int count = get_array(arrays[a], "a convolution's array", three + 5 - rank, rank - 2, rank - 2);
        if (count < 0) return -count;
        for (int i = 0; i < 3; i++)
            if (three[i] < (a == 0 || a == 2)) return fail(NN_PARAM, "%lld in a convolution", (long long)three[i]);
    }
    return OK;
}

static int check_convolution(struct plan *plan, const tensor *in, const tensor *weight, const tensor *out, int transposed,
                             int64_t groups, int mode) {
    const int64_t *n = plan->numbers;
    int code = check_cube(plan, in->type, mode);
    if (code) return code;
    if (!spatial_format(in) || !spatial_format(weight) || !spatial_format(out)) return fail(NN_PARAM, "a format");
    if (in->rank != weight->rank || in->rank != out->rank) return fail(NN_PARAM, "ranks");
    if (groups < 1 || in->sizes[1] != weight->sizes[transposed ? 0 : 1] * (transposed ? 1 : groups) ||
        out->sizes[1] != weight->sizes[transposed ? 1 : 0] * (transposed ? groups : 1) || out->sizes[1] % groups ||
        in->sizes[0] != out->sizes[0])
        return fail(NN_PARAM, "channels or batches do not fit");
    for (int i = 5 - in->rank, d = 2; i < 3; i++, d++) {
        int64_t reach = n[6 + i] * (weight->sizes[d] - 1);
        int64_t size = transposed ? (in->sizes[d] - 1) * n[i] - 2 * n[3 + i] + reach + n[9 + i] + 1
                                  : (in->sizes[d] + 2 * n[3 + i] - reach - 1) / n[i] + 1;
        if (out->sizes[d] != size) return fail(NN_PARAM, "size of dimension %d should be %lld", d, (long long)size);
    }
    plan->numbers[12] = groups;
    plan->numbers[13] = transposed;
    return OK;
}

PHASES(Convolution, const void *input, const void *weight, const void *bias, const void *stride, const void *padding,
       const void *dilation, _Bool transposed, const void *output_padding, int64_t groups, void *output, int8_t mode) {
    BEGIN(Convolution, 4, run_convolution);
    TENSOR(output);
    TENSOR(input);
    TENSOR(weight);
    OPTIONAL(bias);
    CHECK(check_types(plan, 1));
    REQUIRE(IN(1)->rank >= 3 && IN(1)->rank <= 5, "rank %d", IN(1)->rank);
    const void *arrays[] = {stride, padding, dilation, output_padding};
    CHECK(get_geometry(plan, IN(1)->rank, arrays));
    CHECK(check_convolution(plan, IN(1), IN(2), IN(0), transposed, groups, mode));
    CHECK(check_vectors(plan, 3, 3, IN(0)->sizes[1]));
    plan->workspace = 512;
    END;
}

PHASES(ConvolutionBackward, const void *grad, const void *input, const void *weight, const void *bias_sizes,
       const void *stride, const void *padding, const void *dilation, _Bool transposed, const void *output_padding,
       int groups, const void *mask, int8_t mode, void *grad_input, void *grad_weight, void *grad_bias) {
    BEGIN(ConvolutionBackward, 6, run_convolution_backward);
    plan->outputs = 3;
    OPTIONAL(grad_input);
    OPTIONAL(grad_weight);
    OPTIONAL(grad_bias);
    TENSOR(grad);
    TENSOR(input);
    TENSOR(weight);
    CHECK(check_mask(plan, mask, plan->numbers + 14));
    CHECK(check_given(plan, 0, 5));
    REQUIRE(IN(4)->rank >= 3 && IN(4)->rank <= 5, "rank %d", IN(4)->rank);
    const void *arrays[] = {stride, padding, dilation, output_padding};
    CHECK(get_geometry(plan, IN(4)->rank, arrays));
    CHECK(check_convolution(plan, IN(4), IN(5), IN(3), transposed, groups, mode));
    REQUIRE(!plan->handles[0] || same_shape(IN(0), IN(4)), "gradInput is of another shape than input");
    REQUIRE(!plan->handles[1] || same_shape(IN(1), IN(5)), "gradWeight is of another shape than weight");
    CHECK(check_vectors(plan, 2, 2, IN(3)->sizes[1]));
    if (plan->numbers[16]) {
        int count = code ? 1 : get_array(bias_sizes, "biasSizes", plan->numbers + 17, 1, 1);
        CHECK(count < 0 ? -count : OK);
        REQUIRE(plan->numbers[17] == IN(3)->sizes[1], "biasSizes is %lld", (long long)plan->numbers[17]);
    }
    plan->workspace = 512;
    END;
}

/* Pooling over the last two dimensions. numbers: kernel, stride, padding, dilation (two each). */

static int get_windows(struct plan *plan, const void *const *arrays) {
    for (int a = 0; a < 4; a++) {
        int count = get_array(arrays[a], "a pool's array", plan->numbers + 2 * a, 2, 2);
        if (count < 0) return -count;
        for (int i = 2 * a; i < 2 * a + 2; i++)
            if (plan->numbers[i] < (a != 2)) return fail(NN_PARAM, "%lld in a pool", (long long)plan->numbers[i]);
    }
    return OK;
}

static int check_pool(const struct plan *plan, const tensor *in, const tensor *out) {
    if (in->rank != out->rank || in->rank < 3 || in->rank > 4) return fail(NN_PARAM, "ranks %d, %d", in->rank, out->rank);
    if (!spatial_format(in) || !spatial_format(out)) return fail(NN_PARAM, "a format");
    for (int i = 0; i < in->rank - 2; i++)
        if (in->sizes[i] != out->sizes[i]) return fail(NN_PARAM, "size of dimension %d", i);
    return check_given(plan, 0, 0);
}

static int check_windows(const struct plan *plan, const tensor *in, const tensor *out, int up) {
    const int64_t *n = plan->numbers;
    for (int i = 0; i < 2; i++) {
        int64_t size = in->sizes[in->rank - 2 + i], room = size + 2 * n[4 + i] - n[6 + i] * (n[i] - 1) - 1;
        int64_t count = (room + (up ? n[2 + i] - 1 : 0)) / n[2 + i] + 1;
        if (up && (count - 1) * n[2 + i] >= size + n[4 + i]) count--; /* no window begins in the padding at the end */
        if (room < 0 || 2 * n[4 + i] > n[i] || out->sizes[out->rank - 2 + i] != count)
            return fail(NN_PARAM, "the output should have %lld places", (long long)count);
    }
    return OK;
}

PHASES(MaxPool2dWithIndices, const void *self, const void *kernel, const void *stride, const void *padding,
       const void *dilation, _Bool ceil_mode, void *out, void *indices) {
    BEGIN(MaxPool2dWithIndices, 3, run_max_pool);
    plan->outputs = 2;
    TENSOR(out);
    TENSOR(indices);
    TENSOR(self);
    const void *arrays[] = {kernel, stride, padding, dilation};
    CHECK(get_windows(plan, arrays));
    REQUIRE(IN(0)->type == F32 && IN(1)->type == I32 && IN(2)->type == F32, "types %d, %d, %d", IN(0)->type, IN(1)->type,
            IN(2)->type);
    CHECK(same_size(plan, 0, 1));
    CHECK(check_pool(plan, IN(2), IN(0)));
    CHECK(check_windows(plan, IN(2), IN(0), ceil_mode));
    END;
}

PHASES(MaxPool2dWithIndicesBackward, const void *grad, const void *self, const void *indices, const void *kernel,
       const void *stride, const void *padding, const void *dilation, _Bool ceil_mode, void *grad_input) {
    BEGIN(MaxPool2dWithIndicesBackward, 4, run_max_pool_backward);
    TENSOR(grad_input);
    TENSOR(grad);
    TENSOR(self);
    TENSOR(indices);
    const void *arrays[] = {kernel, stride, padding, dilation};
    CHECK(get_windows(plan, arrays));
    REQUIRE(IN(0)->type == F32 && IN(1)->type == F32 && IN(2)->type == F32 && IN(3)->type == I32, "types");
    CHECK(same_size(plan, 0, 2));
    CHECK(same_size(plan, 1, 3));
    CHECK(check_pool(plan, IN(2), IN(1)));
    CHECK(check_windows(plan, IN(2), IN(1), ceil_mode));
    END;
}

PHASES(AdaptiveAvgPool2d, const void *self, const void *places, void *out) {
    BEGIN(AdaptiveAvgPool2d, 2, run_mean_pool);
    TENSOR(out);
    TENSOR(self);
    CHECK(check_types(plan, 1));
    CHECK(check_pool(plan, IN(1), IN(0)));
    int count = code ? 2 : get_array(places, "outputSize", plan->numbers, 2, 2);
    CHECK(count < 0 ? -count : OK);
    for (int i = 0; i < 2 && !code; i++) REQUIRE(IN(0)->sizes[IN(0)->rank - 2 + i] == plan->numbers[i], "outputSize");
    END;
}

PHASES(AdaptiveAvgPool2dBackward, const void *grad, const void *self, void *out) {
    BEGIN(AdaptiveAvgPool2dBackward, 3, run_mean_pool_backward);
    TENSOR(out);
    TENSOR(grad);
    TENSOR(self);
    CHECK(check_types(plan, 1));
    CHECK(same_size(plan, 0, 2));
    CHECK(check_pool(plan, IN(2), IN(1)));
    END;
}
