/* What aclnn calls compute, slowly and in double precision, over tensors of any strides. */
#include "tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Where element `index` of a tensor shaped as `shape` is in `t`, which is broadcast to that shape. */
char *element(const tensor *t, const tensor *shape, int64_t index) {
    int64_t offset = 0;
    for (int i = shape->rank - 1; i >= 0; i--) {
        int64_t place = index % shape->sizes[i];
        index /= shape->sizes[i];
        int d = i - (shape->rank - t->rank);
        if (d >= 0 && t->sizes[d] != 1) offset += place * t->strides[d];
    }
    return t->data + offset * (int64_t)bytes_of(t->type);
}

double value_at(const tensor *t, const tensor *shape, int64_t index) {
    return load(element(t, shape, index), t->type);
}

int run_unary(const struct plan *p) {
    const tensor *out = &p->tensors[0], *in = &p->tensors[1];
    for (int64_t i = 0, n = count_of(out); i < n; i++)
        store(element(out, out, i), out->type, p->unary(value_at(in, out, i)));
    return OK;
}

/* With one tensor, the other operand is values[1]. values[0] scales it. */
int run_binary(const struct plan *p) {
    const tensor *out = &p->tensors[0], *in = &p->tensors[1];
    for (int64_t i = 0, n = count_of(out); i < n && p->whole; i++) {
        int64_t alpha = (int64_t)p->values[0], other = (int64_t)p->values[1];
        if (p->count > 2) other = load_index(element(&p->tensors[2], out, i), out->type);
        other = (int64_t)((uint64_t)alpha * (uint64_t)other);
        store_index(element(out, out, i), out->type, p->whole(load_index(element(in, out, i), out->type), other));
    }
    for (int64_t i = 0, n = count_of(out); i < n && !p->whole; i++) {
        double other = p->count > 2 ? value_at(&p->tensors[2], out, i) : p->values[1];
        store(element(out, out, i), out->type, p->binary(value_at(in, out, i), p->values[0] * other));
    }
    return OK;
}

/* The cube unit's short formats drop what float32 has more: results must not depend on a mode nobody asked for. Where
 * it has no float32, it has float16 in saturation mode. */
double shortened(double x, int64_t mode) {
    float single = (float)x;
    uint32_t bits;
    if (mode == 2 || (mode == 1 && !float_cube)) {
        char half[2];
        store(half, F16, fmin(fmax(x, -65504), 65504));
        return load(half, F16);
    }
    if (mode != 1 && mode != 3) return x;
    memcpy(&bits, &single, 4);
    bits &= 0xFFFFF000;
    memcpy(&single, &bits, 4);
    return single;
}

/* out, left, right, and what is added; all of rank 2 at least. values: of what is added, of the product. */
int run_matmul(const struct plan *p) {
    const tensor *out = &p->tensors[0], *left = &p->tensors[1], *right = &p->tensors[2];
    int64_t rows = out->sizes[out->rank - 2], columns = out->sizes[out->rank - 1], depth = left->sizes[left->rank - 1];
    tensor batch = *out, a = *left, b = *right;
    batch.rank -= 2, a.rank -= 2, b.rank -= 2;
    int64_t down = left->strides[a.rank], along = left->strides[a.rank + 1];
    int64_t deeper = right->strides[b.rank], across = right->strides[b.rank + 1];
    int64_t wide = (int64_t)bytes_of(left->type), n = rows && columns ? count_of(out) : 0;
    double *line = calloc((size_t)depth + 1, sizeof *line), *line_before = calloc((size_t)depth + 1, sizeof *line);
    double *matrix = calloc((size_t)(depth * columns) + 1, sizeof *matrix);
    double *sums = calloc((size_t)columns + 1, sizeof *sums);
    const char *y = NULL;
    for (int64_t i = 0; i < n; i++) {
        int64_t column = i % columns, row = i / columns % rows, which = i / columns / rows;
        if (!column && !row) { /* the right matrix: once, and once for all that share it */
            const char *before = y;
            y = element(&b, &batch, which);
            for (int64_t at = 0; at < depth * columns && y != before; at++) {
                const char *place = y + (at / columns * deeper + at % columns * across) * wide;
                matrix[at] = shortened(load(place, right->type), p->number);
            }
        }
        if (!column) {
            const char *x = element(&a, &batch, which) + row * down * wide;
            for (int64_t k = 0; k < depth; k++)
                line[k] = shortened(load(x + k * along * wide, left->type), p->number);
            /* a line as the one before has its sums: a large matrix of ones is soon done */
            if (!row || memcmp(line, line_before, (size_t)depth * sizeof *line)) {
                memset(sums, 0, (size_t)columns * sizeof *sums);
                for (int64_t k = 0; k < depth; k++)
                    for (int64_t j = 0; j < columns; j++) sums[j] += line[k] * matrix[k * columns + j];
                memcpy(line_before, line, (size_t)depth * sizeof *line);
            }
        }
        double sum = sums[column];
        if (p->count > 3) sum *= p->values[1];
        if (p->count > 3 && p->values[0] != 0) sum += p->values[0] * value_at(&p->tensors[3], out, i);
        store(element(out, out, i), out->type, sum);
    }
    free(line), free(line_before), free(matrix), free(sums);
    return OK;
}

/* For each element of `in`: which element of the result, as if the reduced dimensions had size 1. */
int64_t reduced_index(const struct plan *p, const tensor *in, int64_t index) {
    int64_t result = 0, step = 1;
    for (int i = in->rank - 1; i >= 0; i--) {
        int64_t place = index % in->sizes[i];
        index /= in->sizes[i];
        if (p->reduced[i]) continue;
        result += place * step;
        step *= in->sizes[i];
    }
    return result;
}

int run_sum(const struct plan *p) { /* values[0]: what the sum is divided by */
    const tensor *out = &p->tensors[0], *in = &p->tensors[1];
    int64_t results = count_of(out);
    double *sums = calloc((size_t)results + 1, sizeof *sums);
    for (int64_t i = 0, n = count_of(in); i < n; i++) sums[reduced_index(p, in, i)] += value_at(in, in, i);
    for (int64_t i = 0; i < results; i++) store(element(out, out, i), out->type, sums[i] / p->values[0]);
    free(sums);
    return OK;
}

/* With a second output, the places along dimension `number`; numbers[0]: the places alone. */
int run_max(const struct plan *p) {
    const tensor *out = &p->tensors[0], *in = &p->tensors[p->outputs];
    const tensor *places = p->numbers[0] ? out : p->outputs > 1 ? &p->tensors[1] : NULL;
    int64_t results = count_of(out), step = 1;
    for (int i = in->rank - 1; i > p->number; i--) step *= in->sizes[i];
    double *best = calloc((size_t)results + 1, sizeof *best);
    int64_t *where = calloc((size_t)results + 1, sizeof *where);
    char *seen = calloc((size_t)results + 1, 1);
    for (int64_t i = 0, n = count_of(in); i < n; i++) {
        int64_t at = reduced_index(p, in, i);
        double x = value_at(in, in, i);
        if (seen[at] && (isnan(best[at]) || !(x > best[at] || isnan(x)))) continue;
        seen[at] = 1;
        best[at] = x;
        where[at] = places && in->rank ? i / step % in->sizes[p->number] : 0;
    }
    for (int64_t i = 0; i < results; i++) {
        if (!p->numbers[0]) store(element(out, out, i), out->type, best[i]);
        if (places) store_index(element(places, out, i), places->type, where[i]);
    }
    free(best);
    free(where);
    free(seen);
    return OK;
}

int run_softmax(const struct plan *p) { /* numbers[0]: its logarithm */
    const tensor *out = &p->tensors[0], *in = &p->tensors[1];
    tensor rows = *in;
    int64_t length = in->rank ? in->sizes[p->number] : 1;
    if (in->rank) rows.sizes[p->number] = 1;
    int64_t from = in->rank ? in->strides[p->number] * (int64_t)bytes_of(in->type) : 0;
    int64_t to = in->rank ? out->strides[p->number] * (int64_t)bytes_of(out->type) : 0;
    for (int64_t i = 0, n = length ? count_of(&rows) : 0; i < n; i++) {
        const char *x = element(in, &rows, i);
        char *y = element(out, &rows, i);
        double most = -INFINITY, sum = 0;
        for (int64_t k = 0; k < length; k++) most = fmax(most, load(x + k * from, in->type));
        for (int64_t k = 0; k < length; k++) sum += exp(load(x + k * from, in->type) - most);
        for (int64_t k = 0; k < length; k++)
            store(y + k * to, out->type, p->numbers[0] ? load(x + k * from, in->type) - most - log(sum)
                                                       : exp(load(x + k * from, in->type) - most) / sum);
    }
    return OK;
}

/* out, mean, rstd; in, weight, bias: all but out and in may be missing. number: how many dimensions are normalized. */
int run_layer_norm(const struct plan *p) {
    const tensor *out = &p->tensors[0], *in = &p->tensors[3];
    int64_t length = 1;
    for (int i = in->rank - (int)p->number; i < in->rank; i++) length *= in->sizes[i];
    for (int64_t row = 0, n = length ? count_of(in) / length : 0; row < n; row++) {
        double mean = 0, variance = 0;
        for (int64_t k = 0; k < length; k++) mean += value_at(in, in, row * length + k) / (double)length;
        for (int64_t k = 0; k < length; k++) {
            double distance = value_at(in, in, row * length + k) - mean;
            variance += distance * distance / (double)length;
        }
        double scale = 1 / sqrt(variance + p->values[0]);
        for (int64_t k = 0; k < length; k++) {
            int64_t i = row * length + k;
            double y = (value_at(in, in, i) - mean) * scale;
            if (p->handles[4]) y *= value_at(&p->tensors[4], in, i);
            if (p->handles[5]) y += value_at(&p->tensors[5], in, i);
            store(element(out, in, i), out->type, y);
        }
        const tensor *means = &p->tensors[1], *scales = &p->tensors[2];
        if (p->handles[1]) store(element(means, means, row), means->type, mean);
        if (p->handles[2]) store(element(scales, scales, row), scales->type, scale);
    }
    return OK;
}

int run_fill(const struct plan *p) {
    const tensor *out = &p->tensors[0];
    for (int64_t i = 0, n = count_of(out); i < n; i++) store(element(out, out, i), out->type, p->values[0]);
    return OK;
}

static void convert(char *to, int to_type, const char *from, int from_type) {
    int64_t whole = from_type == I64 ? load_index(from, from_type) : 0;
    float rounded = (float)whole; /* once */
    if (to_type == from_type) memcpy(to, from, bytes_of(to_type));
    else if (from_type == I64 && to_type == F32) memcpy(to, &rounded, sizeof rounded);
    else if (from_type == I64 && to_type == BOOL) *to = whole != 0;
    else store(to, to_type, load(from, from_type));
}

int run_convert(const struct plan *p) {
    const tensor *out = &p->tensors[0], *in = &p->tensors[1];
    for (int64_t i = 0, n = count_of(out); i < n; i++)
        convert(element(out, out, i), out->type, element(in, out, i), in->type);
    return OK;
}

int run_cat(const struct plan *p) {
    tensor part = p->tensors[0];
    for (int k = 1; k < p->count; k++) {
        const tensor *in = &p->tensors[k];
        if (in->rank == 1 && !in->sizes[0]) continue;
        part.sizes[p->number] = in->sizes[p->number];
        for (int64_t i = 0, n = count_of(in); i < n; i++)
            convert(element(&part, in, i), part.type, element(in, in, i), in->type);
        part.data += part.sizes[p->number] * part.strides[p->number] * (int64_t)bytes_of(part.type);
    }
    return OK;
}

int run_select(const struct plan *p) {
    const tensor *out = &p->tensors[0], *in = &p->tensors[1], *index = &p->tensors[2];
    int64_t step = 1;
    for (int i = out->rank - 1; i > p->number; i--) step *= out->sizes[i];
    tensor row = *in;
    if (row.rank) row.sizes[p->number] = 1;
    for (int64_t i = 0, n = count_of(out); i < n; i++) {
        int64_t k = i / step % (out->rank ? out->sizes[p->number] : 1);
        int64_t chosen = load_index(element(index, index, k), index->type);
        if (chosen < 0 || chosen >= (in->rank ? in->sizes[p->number] : 1)) return DEVICE_FAULT;
        int64_t skip = in->rank ? chosen * in->strides[p->number] * (int64_t)bytes_of(in->type) : 0;
        memcpy(element(out, out, i), element(&row, out, i) + skip, bytes_of(in->type));
    }
    return OK;
}

int run_embedding(const struct plan *p) {
    const tensor *out = &p->tensors[0], *weight = &p->tensors[1], *index = &p->tensors[2];
    int64_t width = weight->sizes[1], wide = (int64_t)bytes_of(weight->type);
    for (int64_t i = 0, n = width ? count_of(out) : 0; i < n; i++) {
        int64_t chosen = load_index(element(index, index, i / width), index->type);
        if (chosen < 0 || chosen >= weight->sizes[0]) return DEVICE_FAULT;
        const char *from = weight->data + (chosen * weight->strides[0] + i % width * weight->strides[1]) * wide;
        memcpy(element(out, out, i), from, bytes_of(weight->type));
    }
    return OK;
}
