/* What aclnn calls take, and how queued operations see tensors. */
#ifndef GENIE_TEST_TENSOR_H
#define GENIE_TEST_TENSOR_H

#include "library.h"

enum { F32 = 0, F16 = 1, I8 = 2, I32 = 3, U8 = 4, I16 = 6, I64 = 9, F64 = 11, BOOL = 12, BF16 = 27 };

typedef struct tensor {
    struct object base;
    int type, rank;
    int64_t sizes[MAX_DIMS], strides[MAX_DIMS]; /* in elements */
    int64_t offset, storage;                    /* in elements; how many there are */
    char *data;                                 /* the caller's address; while work runs, the element at offset */
    char *padding;                              /* while work runs: what lies behind the storage and is operators', too */
    size_t padded;
} tensor;

struct scalar {
    struct object base;
    double value;
};

struct int_array {
    struct object base;
    uint64_t count;
    int64_t values[];
};

struct tensor_list {
    struct object base;
    uint64_t count;
    tensor *tensors[];
};

struct executor {
    struct object base;
    int repeatable;
    struct plan *plan;
};

/* What the first phase leaves for the second: copies of the tensors, outputs first. */
struct plan {
    const char *name; /* of the second function */
    int (*run)(const struct plan *);
    tensor *tensors;
    const tensor **handles; /* NULL: an optional tensor that was not given */
    int count, outputs, in_place;
    uint64_t workspace;
    double values[2];
    int64_t number; /* a dimension, a mode */
    int reduced[MAX_DIMS];
    double (*unary)(double);
    double (*binary)(double, double);
};

/* Operations; 0 or the error of the stream. */
int run_unary(const struct plan *p);
int run_binary(const struct plan *p);
int run_matmul(const struct plan *p);
int run_sum(const struct plan *p);
int run_max(const struct plan *p);
int run_softmax(const struct plan *p);
int run_layer_norm(const struct plan *p);
int run_fill(const struct plan *p);
int run_convert(const struct plan *p);
int run_cat(const struct plan *p);
int run_select(const struct plan *p);
int run_embedding(const struct plan *p);

int64_t count_of(const tensor *t);
size_t bytes_of(int type);
double load(const char *at, int type);
void store(char *at, int type, double value);
int64_t load_index(const char *at, int type);

#endif
