/* What aclnn calls compute that look at each element by itself, reduce to truths and norms, or look things up. */
#include "tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int run_map(const struct plan *p) {
    const tensor *out = &p->tensors[0];
    double operands[4];
    for (int64_t i = 0, n = count_of(out); i < n; i++) {
        for (int k = 1; k < p->count; k++) operands[k - 1] = value_at(&p->tensors[k], out, i);
        store(element(out, out, i), out->type, p->map(operands, p->values));
    }
    return OK;
}

int run_compare(const struct plan *p) {
    const tensor *out = &p->tensors[0], *in = &p->tensors[1];
    for (int64_t i = 0, n = count_of(out); i < n; i++) {
        int outcome;
        if (in->type == I64) {
            int64_t x = load_index(element(in, out, i), I64), y = (int64_t)p->values[0];
            if (p->count > 2) y = load_index(element(&p->tensors[2], out, i), I64);
            outcome = x < y ? 1 : x == y ? 2 : 4;
        } else {
            double x = value_at(in, out, i), y = p->count > 2 ? value_at(&p->tensors[2], out, i) : p->values[0];
            outcome = x < y ? 1 : x == y ? 2 : x > y ? 4 : 8;
        }
        *element(out, out, i) = (p->number & outcome) != 0;
    }
    return OK;
}

static int64_t bits_of(const tensor *t, const tensor *shape, int64_t index, int truths) {
    if (truths) return value_at(t, shape, index) != 0;
    return load_index(element(t, shape, index), t->type);
}

int run_bits(const struct plan *p) {
    const tensor *out = &p->tensors[0];
    int truths = (int)p->numbers[0], single = truths || out->type == BOOL;
    for (int64_t i = 0, n = count_of(out); i < n; i++) {
        int64_t x = bits_of(&p->tensors[1], out, i, truths), y;
        if (p->number == '~') y = single ? !x : ~x;
        else {
            y = bits_of(&p->tensors[2], out, i, truths);
            y = p->number == '&' ? x & y : x | y;
        }
        store_index(element(out, out, i), out->type, y);
    }
    return OK;
}

int run_where(const struct plan *p) {
    const tensor *out = &p->tensors[0];
    for (int64_t i = 0, n = count_of(out); i < n; i++) {
        const tensor *from = &p->tensors[*element(&p->tensors[1], out, i) ? 2 : 3];
        memcpy(element(out, out, i), element(from, out, i), bytes_of(out->type));
    }
    return OK;
}

int run_masked_fill(const struct plan *p) {
    const tensor *out = &p->tensors[0];
    for (int64_t i = 0, n = count_of(out); i < n; i++)
        if (*element(&p->tensors[1], out, i)) store(element(out, out, i), out->type, p->values[0]);
    return OK;
}

int run_all(const struct plan *p) { /* number: 1 for all, 0 for any */
    const tensor *out = &p->tensors[0], *in = &p->tensors[1];
    for (int64_t i = 0, n = count_of(out); i < n; i++) *element(out, out, i) = (char)p->number;
    for (int64_t i = 0, n = count_of(in); i < n; i++)
        if ((value_at(in, in, i) != 0) != p->number) *element(out, out, reduced_index(p, in, i)) = !p->number;
    return OK;
}

int run_norm(const struct plan *p) {
    const tensor *out = &p->tensors[0], *in = &p->tensors[1];
    double order = p->values[0];
    int64_t results = count_of(out);
    double *sums = calloc((size_t)results + 1, sizeof *sums);
    for (int64_t i = 0; i < results && isinf(order) && order < 0; i++) sums[i] = INFINITY;
    for (int64_t i = 0, n = count_of(in); i < n; i++) {
        double x = fabs(value_at(in, in, i)), *sum = &sums[reduced_index(p, in, i)];
        if (isinf(order)) *sum = (order < 0 ? x < *sum : x > *sum) || isnan(x) ? x : *sum;
        else *sum += order == 0 ? x != 0 : pow(x, order);
    }
    for (int64_t i = 0; i < results; i++)
        store(element(out, out, i), out->type, isinf(order) || order == 0 ? sums[i] : pow(sums[i], 1 / order));
    free(sums);
    return OK;
}

int run_pad(const struct plan *p) {
    const tensor *out = &p->tensors[0], *in = &p->tensors[1];
    for (int64_t i = 0, n = count_of(out); i < n; i++) {
        int64_t rest = i, offset = 0;
        int inside = 1;
        for (int d = out->rank - 1; d >= 0; d--) {
            int64_t place = rest % out->sizes[d] - p->numbers[2 * (out->rank - 1 - d)];
            rest /= out->sizes[d];
            inside = inside && place >= 0 && place < in->sizes[d];
            offset += place * in->strides[d];
        }
        char *to = element(out, out, i);
        if (inside) memcpy(to, in->data + offset * (int64_t)bytes_of(in->type), bytes_of(in->type));
        else store(to, out->type, p->values[0]);
    }
    return OK;
}

int run_gather(const struct plan *p) {
    const tensor *out = &p->tensors[0], *in = &p->tensors[1], *index = &p->tensors[2];
    for (int64_t i = 0, n = count_of(out); i < n; i++) {
        int64_t rest = i, offset = 0, chosen = load_index(element(index, out, i), index->type);
        if (chosen < 0 || chosen >= in->sizes[p->number]) return DEVICE_FAULT;
        for (int d = out->rank - 1; d >= 0; d--) {
            offset += (d == p->number ? chosen : rest % out->sizes[d]) * in->strides[d];
            rest /= out->sizes[d];
        }
        int64_t wide = (int64_t)bytes_of(in->type);
        memcpy(element(out, out, i), in->data + offset * wide, (size_t)wide);
    }
    return OK;
}

int run_index(const struct plan *p) {
    const tensor *out = &p->tensors[0], *in = &p->tensors[1];
    int64_t behind = 1, wide = (int64_t)bytes_of(in->type);
    tensor front = *out;
    front.rank = (int)p->number;
    for (int d = front.rank; d < out->rank; d++) behind *= out->sizes[d];
    for (int64_t i = 0, n = count_of(out); i < n; i++) {
        int64_t offset = 0, rest = i % behind;
        for (int k = 2; k < p->count; k++) {
            int64_t chosen = load_index(element(&p->tensors[k], &front, i / behind), p->tensors[k].type);
            int64_t size = in->sizes[k - 2];
            if (chosen < -size || chosen >= size) return DEVICE_FAULT;
            offset += (chosen < 0 ? chosen + size : chosen) * in->strides[k - 2];
        }
        for (int d = in->rank - 1; d >= p->count - 2; d--) {
            offset += rest % in->sizes[d] * in->strides[d];
            rest /= in->sizes[d];
        }
        memcpy(element(out, out, i), in->data + offset * wide, (size_t)wide);
    }
    return OK;
}

int run_unscale(const struct plan *p) { /* gradients, found; inverse */
    const tensor *found = &p->tensors[p->outputs - 1], *inverse = &p->tensors[p->outputs];
    double scale = load(element(inverse, inverse, 0), F32);
    for (int k = 0; k < p->outputs - 1; k++) {
        const tensor *grad = &p->tensors[k];
        for (int64_t i = 0, n = count_of(grad); i < n; i++) {
            double x = value_at(grad, grad, i);
            if (!isfinite(x)) store(element(found, found, 0), F32, 1);
            store(element(grad, grad, i), grad->type, x * scale);
        }
    }
    return OK;
}
