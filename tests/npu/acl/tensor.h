/* What aclnn calls take, and how queued operations see tensors. */
#ifndef GENIE_TEST_TENSOR_H
#define GENIE_TEST_TENSOR_H

#include "library.h"

enum { NCHW = 0, ND = 2, NCDHW = 30, NCL = 47 };
enum { F32 = 0, F16 = 1, I8 = 2, I32 = 3, U8 = 4, I16 = 6, I64 = 9, F64 = 11, BOOL = 12, BF16 = 27 };

typedef struct tensor {
    struct object base;
    int type, rank, format;
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

struct bool_array {
    struct object base;
    uint64_t count;
    _Bool values[];
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
    int64_t numbers[4 * MAX_DIMS]; /* arrays that were given */
    int reduced[MAX_DIMS];
    double (*unary)(double);
    double (*binary)(double, double);
    int64_t (*whole)(int64_t, int64_t);
    double (*map)(const double *operands, const double *values);
};

/* Operations; 0 or the error of the stream. */
int run_unary(const struct plan *p);
int run_binary(const struct plan *p);
int run_matmul(const struct plan *p);
int run_unscale(const struct plan *p);
double shortened(double x, int64_t mode);
int run_sum(const struct plan *p);
int run_max(const struct plan *p);
int run_softmax(const struct plan *p);
int run_layer_norm(const struct plan *p);
int run_fill(const struct plan *p);
int run_convert(const struct plan *p);
int run_cat(const struct plan *p);
int run_select(const struct plan *p);
int run_embedding(const struct plan *p);
int run_map(const struct plan *p);
int run_compare(const struct plan *p);
int run_bits(const struct plan *p);
int run_where(const struct plan *p);
int run_masked_fill(const struct plan *p);
int run_all(const struct plan *p);
int run_norm(const struct plan *p);
int run_pad(const struct plan *p);
int run_gather(const struct plan *p);
int run_index(const struct plan *p);
int run_softmax_backward(const struct plan *p);
int run_embedding_backward(const struct plan *p);
int run_nll_loss(const struct plan *p);
int run_nll_loss_backward(const struct plan *p);
int run_layer_norm_backward(const struct plan *p);
int run_batch_norm(const struct plan *p);
int run_batch_norm_backward(const struct plan *p);
int run_convolution(const struct plan *p);
int run_convolution_backward(const struct plan *p);
int run_max_pool(const struct plan *p);
int run_max_pool_backward(const struct plan *p);
int run_mean_pool(const struct plan *p);
int run_mean_pool_backward(const struct plan *p);

int64_t count_of(const tensor *t);
size_t bytes_of(int type);
double load(const char *at, int type);
void store(char *at, int type, double value);
int64_t load_index(const char *at, int type);
void store_index(char *at, int type, int64_t value);
char *element(const tensor *t, const tensor *shape, int64_t index);
double value_at(const tensor *t, const tensor *shape, int64_t index);
int64_t reduced_index(const struct plan *p, const tensor *in, int64_t index);

#endif
