/* How an aclnn call is written: its two functions, from the checks of the first and what the second runs. */
#ifndef GENIE_TEST_PLAN_H
#define GENIE_TEST_PLAN_H

#include "tensor.h"

struct plan *new_plan(int room, int (*run)(const struct plan *));
int add_tensor(struct plan *plan, const void *handle, int optional, const char *what);
int finish(struct plan *plan, int code, uint64_t *size, void **executor);
int floating(int type);
int check_types(const struct plan *plan, int computes);
int check_cube(struct plan *plan, int type, int mode); /* the cube unit's */
int check_broadcast(const tensor *in, const tensor *out);
int same_shape(const tensor *one, const tensor *other);
int check_result(const struct plan *plan);
int get_scalar(const void *handle, const char *what, double *value);
int get_dimension(int64_t dimension, int rank, int64_t *result);
int get_array(const void *handle, const char *what, int64_t *values, int least, int most);
int get_mask(const void *handle, int64_t *values, int count);
int index_type(int type);
int plan_reduction(struct plan *plan, const int64_t *dims, uint64_t count, int keep);
int second_phase(struct site *site, void *workspace, uint64_t size, void *handle, void *stream);

#define PHASES(called, ...) \
    API int aclnn##called(void *workspace, uint64_t size, void *executor, void *stream) { \
        static struct site site = {.name = "aclnn" #called}; \
        return second_phase(&site, workspace, size, executor, stream); \
    } \
    API int aclnn##called##GetWorkspaceSize(__VA_ARGS__, uint64_t *size, void **executor)

#define BEGIN(second_name, room, run) \
    ENTER(IN_CONTEXT); \
    struct plan *plan = new_plan(room, run); \
    plan->name = "aclnn" #second_name; \
    int code = OK

#define TENSOR(handle) code = code ? code : add_tensor(plan, handle, 0, #handle)
#define OPTIONAL(handle) code = code ? code : add_tensor(plan, handle, 1, #handle)
#define CHECK(call) code = code ? code : (call)
#define REQUIRE(condition, ...) \
    if (!code && !(condition)) code = fail(NN_PARAM, __VA_ARGS__)
#define END return finish(plan, code, size, executor)

#endif
