/* What aclnn calls of layers compute, and their gradients: in double precision, over tensors of any strides. */
#include "tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double *zeros(int64_t count) { return calloc((size_t)count + 1, sizeof(double)); }

static void store_all(const tensor *t, double *values) {
    for (int64_t i = 0, n = count_of(t); i < n; i++) store(element(t, t, i), t->type, values[i]);
    free(values);
}

int run_softmax_backward(const struct plan *p) { /* out, gradient, output; numbers[0]: of the logarithm */
    const tensor *out = &p->tensors[0], *grad = &p->tensors[1], *output = &p->tensors[2];
    int64_t length = out->rank ? out->sizes[p->number] : 1, inner = 1;
    for (int i = out->rank - 1; i > p->number; i--) inner *= out->sizes[i];
    for (int64_t row = 0, n = length ? count_of(out) / length : 0; row < n; row++) {
        int64_t first = row / inner * inner * length + row % inner;
        double sum = 0;
        for (int64_t k = 0, i = first; k < length; k++, i += inner)
            sum += value_at(grad, out, i) * (p->numbers[0] ? 1 : value_at(output, out, i));
        for (int64_t k = 0, i = first; k < length; k++, i += inner) {
            double g = value_at(grad, out, i), y = value_at(output, out, i);
            store(element(out, out, i), out->type, p->numbers[0] ? g - exp(y) * sum : (g - sum) * y);
        }
    }
    return OK;
}

int run_embedding_backward(const struct plan *p) { /* out, gradient, indices; number: whose row stays zero */
    const tensor *out = &p->tensors[0], *grad = &p->tensors[1], *index = &p->tensors[2];
    int64_t width = out->sizes[1], count = count_of(index);
    double *sums = zeros(count_of(out)), *uses = zeros(out->sizes[0]);
    int code = OK;
    for (int64_t i = 0; i < count && !code; i++) {
        int64_t row = load_index(element(index, index, i), index->type);
        if (row < 0 || row >= out->sizes[0]) code = DEVICE_FAULT;
        else uses[row]++;
    }
    for (int64_t i = 0; i < count && !code; i++) {
        int64_t row = load_index(element(index, index, i), index->type);
        if (row == p->number) continue;
        for (int64_t k = 0; k < width; k++)
            sums[row * width + k] += value_at(grad, grad, i * width + k) / (p->numbers[0] ? uses[row] : 1);
    }
    store_all(out, sums);
    free(uses);
    return code;
}

/* The class of a row; -1: to be ignored; -2: there is no such class. */
static int64_t class_of(const struct plan *p, const tensor *target, int64_t row, int64_t classes) {
    int64_t found = load_index(element(target, target, row), target->type);
    return found == p->number ? -1 : found < 0 || found >= classes ? -2 : found;
}

int run_nll_loss(const struct plan *p) {
    const tensor *out = &p->tensors[0], *total = &p->tensors[1], *in = &p->tensors[2], *target = &p->tensors[3];
    int64_t classes = in->sizes[in->rank - 1], reduction = p->numbers[0];
    double loss = 0, weights = 0;
    for (int64_t row = 0, n = count_of(target); row < n; row++) {
        int64_t which = class_of(p, target, row, classes);
        if (which == -2) return DEVICE_FAULT;
        double weight = which < 0 ? 0 : value_at(&p->tensors[4], &p->tensors[4], which);
        double one = which < 0 ? 0 : -weight * value_at(in, in, row * classes + which);
        if (reduction == 0) store(element(out, out, row), out->type, one);
        loss += one;
        weights += weight;
    }
    if (reduction) store(element(out, out, 0), out->type, reduction == 1 ? loss / weights : loss);
    store(element(total, total, 0), total->type, reduction ? weights : 0);
    return OK;
}

int run_nll_loss_backward(const struct plan *p) {
    const tensor *out = &p->tensors[0], *grad = &p->tensors[1], *target = &p->tensors[3], *weight = &p->tensors[4];
    int64_t classes = out->sizes[out->rank - 1], reduction = p->numbers[0];
    double total = value_at(&p->tensors[5], &p->tensors[5], 0);
    for (int64_t i = 0, n = count_of(out); i < n; i++) {
        int64_t which = class_of(p, target, i / classes, classes);
        if (which == -2) return DEVICE_FAULT;
        double g = value_at(grad, grad, reduction || out->rank == 1 ? 0 : i / classes);
        double slope = which == i % classes ? -value_at(weight, weight, which) * g : 0;
        store(element(out, out, i), out->type, reduction == 1 && slope != 0 ? slope / total : slope);
    }
    return OK;
}

int run_layer_norm_backward(const struct plan *p) { /* three gradients, then gradient, input, mean, rstd, weight */
    const tensor *grad = &p->tensors[3], *in = &p->tensors[4], *mean = &p->tensors[5], *rstd = &p->tensors[6];
    const tensor *out = &p->tensors[0], *weight = &p->tensors[7];
    const int64_t *wanted = p->numbers + MAX_DIMS;
    int64_t length = 1;
    for (int i = 0; i < p->number; i++) length *= p->numbers[i];
    double *weights = zeros(length), *biases = zeros(length);
    for (int64_t row = 0, n = length ? count_of(in) / length : 0; row < n; row++) {
        double m = value_at(mean, mean, row), r = value_at(rstd, rstd, row), sum = 0, product = 0;
        for (int64_t k = 0; k < length; k++) {
            double g = value_at(grad, in, row * length + k), x = (value_at(in, in, row * length + k) - m) * r;
            weights[k] += g * x;
            biases[k] += g;
            if (p->handles[7]) g *= value_at(weight, weight, k);
            sum += g;
            product += g * x;
        }
        for (int64_t k = 0; k < length && wanted[0]; k++) {
            int64_t i = row * length + k;
            double g = value_at(grad, in, i), x = (value_at(in, in, i) - m) * r;
            if (p->handles[7]) g *= value_at(weight, weight, k);
            store(element(out, in, i), out->type, r * (g - sum / (double)length - x * product / (double)length));
        }
    }
    if (wanted[1]) store_all(&p->tensors[1], weights);
    else free(weights);
    if (wanted[2]) store_all(&p->tensors[2], biases);
    else free(biases);
    return OK;
}

/* Which channel element i of a tensor shaped (N, C, …) belongs to. */
static int64_t channel(const tensor *t, int64_t i) {
    int64_t inner = 1;
    for (int d = 2; d < t->rank; d++) inner *= t->sizes[d];
    return i / inner % t->sizes[1];
}

static double given(const struct plan *p, int at, int64_t i, double otherwise) {
    return p->handles[at] ? value_at(&p->tensors[at], &p->tensors[at], i) : otherwise;
}

/* out, mean, variance, running mean and variance; in, weight, bias. values: momentum, eps. number: training. */
int run_batch_norm(const struct plan *p) {
    const tensor *out = &p->tensors[0], *in = &p->tensors[5];
    int64_t channels = in->sizes[1], count = count_of(in);
    double each = channels ? (double)(count / channels) : 0, *means = zeros(channels), *variances = zeros(channels);
    for (int64_t i = 0; i < count && p->number; i++) means[channel(in, i)] += value_at(in, in, i) / each;
    for (int64_t i = 0; i < count && p->number; i++) {
        double distance = value_at(in, in, i) - means[channel(in, i)];
        variances[channel(in, i)] += distance * distance / each;
    }
    for (int64_t c = 0; c < channels; c++) {
        const double now[] = {means[c], variances[c] * each / (each - 1)};
        for (int k = 0; k < 2; k++) {
            const tensor *running = &p->tensors[3 + k], *saved = &p->tensors[1 + k];
            if (!p->number) {
                *(k ? &variances[c] : &means[c]) = value_at(running, running, c);
                continue;
            }
            store(element(saved, saved, c), saved->type, k ? variances[c] : means[c]);
            double mixed = (1 - p->values[0]) * given(p, 3 + k, c, 0) + p->values[0] * now[k];
            if (p->handles[3 + k]) store(element(running, running, c), running->type, mixed);
        }
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t c = channel(in, i);
        double x = (value_at(in, in, i) - means[c]) / sqrt(variances[c] + p->values[1]);
        store(element(out, in, i), out->type, x * given(p, 6, c, 1) + given(p, 7, c, 0));
    }
    free(means);
    free(variances);
    return OK;
}

/* Three gradients; gradient, in, weight, running mean and variance, saved mean and variance. */
int run_batch_norm_backward(const struct plan *p) {
    const tensor *out = &p->tensors[0], *grad = &p->tensors[3], *in = &p->tensors[4];
    int64_t channels = in->sizes[1], count = count_of(in);
    double each = channels ? (double)(count / channels) : 0, *sums = zeros(channels), *products = zeros(channels);
    int mean = p->number ? 8 : 6;
    for (int64_t i = 0; i < count; i++) {
        int64_t c = channel(in, i);
        double x = (value_at(in, in, i) - given(p, mean, c, 0)) / sqrt(given(p, mean + 1, c, 1) + p->values[1]);
        sums[c] += value_at(grad, in, i);
        products[c] += value_at(grad, in, i) * x;
    }
    for (int64_t i = 0; i < count && p->numbers[0]; i++) {
        int64_t c = channel(in, i);
        double scale = 1 / sqrt(given(p, mean + 1, c, 1) + p->values[1]), g = value_at(grad, in, i);
        double x = (value_at(in, in, i) - given(p, mean, c, 0)) * scale;
        if (p->number) g -= sums[c] / each + x * products[c] / each;
        store(element(out, in, i), out->type, g * scale * given(p, 5, c, 1));
    }
    if (p->numbers[1]) store_all(&p->tensors[1], products);
    else free(products);
    if (p->numbers[2]) store_all(&p->tensors[2], sums);
    else free(sums);
    return OK;
}

/* Convolution. `big` has the places that windows move over, `small` one place for each window; a convolution goes from
 * big to small, a transposed one back. The sums of one of the three tensors are products of the other two. */

static tensor in_five(const tensor *t) {
    tensor five = *t;
    int more = 5 - t->rank;
    five.rank = 5;
    memmove(five.sizes + 2 + more, t->sizes + 2, (size_t)(t->rank - 2) * sizeof *t->sizes);
    memmove(five.strides + 2 + more, t->strides + 2, (size_t)(t->rank - 2) * sizeof *t->strides);
    for (int i = 2; i < 2 + more; i++) five.sizes[i] = 1, five.strides[i] = 0;
    return five;
}

static int64_t flat(const tensor *t, const int64_t *at) {
    int64_t i = 0;
    for (int d = 0; d < 5; d++) i = i * t->sizes[d] + at[d];
    return i;
}

static double at_place(const tensor *t, const int64_t *at) {
    int64_t offset = 0;
    for (int d = 0; d < 5; d++) offset += at[d] * t->strides[d];
    return load(t->data + offset * (int64_t)bytes_of(t->type), t->type);
}

enum { BIG, SMALL, WEIGHT };

static double *convolve(const struct plan *p, const tensor *const *sides, int target) {
    const int64_t *stride = p->numbers, *padding = stride + 3, *dilation = stride + 6, groups = p->numbers[12];
    tensor t[3];
    int64_t at[3][5];
    for (int k = 0; k < 3; k++) t[k] = in_five(sides[k]);
    double *sums = zeros(count_of(&t[target]));
    const int64_t *inner = t[WEIGHT].sizes;
    int64_t windows = t[SMALL].sizes[2] * t[SMALL].sizes[3] * t[SMALL].sizes[4], places = inner[2] * inner[3] * inner[4];
    for (int64_t i = 0, n = t[SMALL].sizes[0] * inner[0] * inner[1] * windows * places; i < n; i++) {
        int64_t place = i % places, window = i / places % windows, rest = i / places / windows;
        int64_t in = rest % inner[1], out = rest / inner[1] % inner[0], batch = rest / inner[1] / inner[0];
        int inside = 1;
        at[BIG][0] = at[SMALL][0] = batch;
        at[WEIGHT][0] = at[SMALL][1] = out;
        at[WEIGHT][1] = in;
        at[BIG][1] = out / (inner[0] / groups) * inner[1] + in;
        for (int d = 4; d > 1; d--) {
            at[WEIGHT][d] = place % inner[d], place /= inner[d];
            at[SMALL][d] = window % t[SMALL].sizes[d], window /= t[SMALL].sizes[d];
            at[BIG][d] = at[SMALL][d] * stride[d - 2] - padding[d - 2] + at[WEIGHT][d] * dilation[d - 2];
            inside = inside && at[BIG][d] >= 0 && at[BIG][d] < t[BIG].sizes[d];
        }
        if (!inside) continue;
        int one = target == BIG ? SMALL : BIG, other = target == WEIGHT ? SMALL : WEIGHT;
        sums[flat(&t[target], at[target])] += shortened(at_place(&t[one], at[one]), p->number) *
                                              shortened(at_place(&t[other], at[other]), p->number);
    }
    return sums;
}

int run_convolution(const struct plan *p) { /* out, in, weight, bias */
    const tensor *out = &p->tensors[0], *in = &p->tensors[1];
    int transposed = (int)p->numbers[13];
    const tensor *sides[] = {transposed ? out : in, transposed ? in : out, &p->tensors[2]};
    double *sums = convolve(p, sides, transposed ? BIG : SMALL);
    for (int64_t i = 0, n = count_of(out); i < n; i++) sums[i] += given(p, 3, channel(out, i), 0);
    store_all(out, sums);
    return OK;
}

int run_convolution_backward(const struct plan *p) { /* three gradients; gradient, in, weight */
    const tensor *grad = &p->tensors[3], *in = &p->tensors[4];
    const int64_t *wanted = p->numbers + 14;
    int transposed = (int)p->numbers[13];
    const tensor *sides[] = {transposed ? grad : in, transposed ? in : grad, &p->tensors[5]};
    if (wanted[0]) store_all(&p->tensors[0], convolve(p, sides, transposed ? SMALL : BIG));
    if (wanted[1]) store_all(&p->tensors[1], convolve(p, sides, WEIGHT));
    if (wanted[2]) {
        double *sums = zeros(grad->sizes[1]);
        for (int64_t i = 0, n = count_of(grad); i < n; i++) sums[channel(grad, i)] += value_at(grad, grad, i);
        store_all(&p->tensors[2], sums);
    }
    return OK;
}

/* Pooling: planes of `high` by `wide` places. */

int run_max_pool(const struct plan *p) {
    const tensor *out = &p->tensors[0], *places = &p->tensors[1], *in = &p->tensors[2];
    const int64_t *kernel = p->numbers, *stride = kernel + 2, *padding = kernel + 4, *dilation = kernel + 6;
    int64_t high = in->sizes[in->rank - 2], wide = in->sizes[in->rank - 1];
    int64_t rows = out->sizes[in->rank - 2], columns = out->sizes[in->rank - 1];
    for (int64_t i = 0, n = count_of(out); i < n; i++) {
        int64_t plane = i / columns / rows, row = i / columns % rows, column = i % columns, where = -1;
        double best = -INFINITY;
        for (int64_t k = 0; k < kernel[0] * kernel[1]; k++) {
            int64_t y = row * stride[0] - padding[0] + k / kernel[1] * dilation[0];
            int64_t x = column * stride[1] - padding[1] + k % kernel[1] * dilation[1];
            if (y < 0 || y >= high || x < 0 || x >= wide) continue;
            double value = value_at(in, in, (plane * high + y) * wide + x);
            if (where >= 0 && !(value > best) && !isnan(value)) continue;
            best = value;
            where = y * wide + x;
        }
        store(element(out, out, i), out->type, best);
        store_index(element(places, out, i), places->type, where);
    }
    return OK;
}

int run_max_pool_backward(const struct plan *p) { /* out; gradient, in, places */
    const tensor *out = &p->tensors[0], *grad = &p->tensors[1], *places = &p->tensors[3];
    int64_t size = out->sizes[out->rank - 2] * out->sizes[out->rank - 1];
    int64_t windows = grad->sizes[grad->rank - 2] * grad->sizes[grad->rank - 1];
    double *sums = zeros(count_of(out));
    int code = OK;
    for (int64_t i = 0, n = count_of(grad); i < n && !code; i++) {
        int64_t where = load_index(element(places, grad, i), places->type);
        if (where < 0 || where >= size) code = DEVICE_FAULT;
        else sums[i / windows * size + where] += value_at(grad, grad, i);
    }
    store_all(out, sums);
    return code;
}

/* Adds to `sums` the mean of each window of `big`, or to each place of `big` its part of the window's gradient. */
static void mean_windows(const tensor *big, const tensor *small, const tensor *grad, double *sums) {
    int64_t high = big->sizes[big->rank - 2], wide = big->sizes[big->rank - 1];
    int64_t rows = small->sizes[big->rank - 2], columns = small->sizes[big->rank - 1];
    for (int64_t i = 0, n = count_of(small); i < n; i++) {
        int64_t plane = i / columns / rows, row = i / columns % rows, column = i % columns;
        int64_t top = row * high / rows, bottom = ((row + 1) * high + rows - 1) / rows;
        int64_t left = column * wide / columns, right = ((column + 1) * wide + columns - 1) / columns;
        double count = (double)((bottom - top) * (right - left));
        for (int64_t y = top; y < bottom; y++)
            for (int64_t x = left; x < right; x++) {
                int64_t at = (plane * high + y) * wide + x;
                if (grad) sums[at] += value_at(grad, grad, i) / count;
                else sums[i] += value_at(big, big, at) / count;
            }
    }
}

int run_mean_pool(const struct plan *p) {
    double *sums = zeros(count_of(&p->tensors[0]));
    mean_windows(&p->tensors[1], &p->tensors[0], NULL, sums);
    store_all(&p->tensors[0], sums);
    return OK;
}

int run_mean_pool_backward(const struct plan *p) {
    double *sums = zeros(count_of(&p->tensors[0]));
    mean_windows(&p->tensors[0], &p->tensors[1], &p->tensors[1], sums);
    store_all(&p->tensors[0], sums);
    return OK;
}
