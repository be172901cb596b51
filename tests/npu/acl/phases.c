/* The two phases of aclnn calls: what all of them check, and how they are queued. */
#include "plan.h"

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

struct plan *new_plan(int room, int (*run)(const struct plan *)) {
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

int add_tensor(struct plan *plan, const void *handle, int optional, const char *what) {
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

int finish(struct plan *plan, int code, uint64_t *size, void **executor) {
    if (!code && (!size || !executor)) code = fail(NN_NULL, "the workspace's size or the executor is NULL");
    if (!code && declines) code = fail(declines, "%s is not on this chip", plan->name);
    if (code) {
        free_plan(plan);
        return leave(code);
    }
    static struct site deterministic = {.name = "deterministic"}; /* how many first phases found it so */
    if (current->deterministic) count_call(&deterministic);
    struct executor *made = new_object(EXECUTOR, sizeof *made, current->base.device);
    made->plan = plan;
    *size = plan->workspace;
    *executor = made;
    return leave(OK);
}

int floating(int type) { return type == F32 || type == F16 || type == BF16; }

int check_types(const struct plan *plan, int computes) {
    int type = plan->tensors[0].type;
    for (int i = 0; i < plan->count; i++)
        if (plan->handles[i] && plan->tensors[i].type != type)
            return fail(NN_PARAM, "types %d and %d", type, plan->tensors[i].type);
    return computes && !floating(type) ? fail(NN_PARAM, "type %d is not computed with", type) : OK;
}

int check_broadcast(const tensor *in, const tensor *out) {
    if (in->rank > out->rank) return fail(NN_PARAM, "rank %d into rank %d", in->rank, out->rank);
    for (int i = 0; i < in->rank; i++) {
        int64_t size = in->sizes[i], wanted = out->sizes[i + out->rank - in->rank];
        if (size != wanted && size != 1)
            return fail(NN_PARAM, "size %lld of dimension %d into %lld", (long long)size, i, (long long)wanted);
    }
    return OK;
}

int same_shape(const tensor *one, const tensor *other) {
    return one->rank == other->rank && !memcmp(one->sizes, other->sizes, (size_t)one->rank * sizeof *one->sizes);
}

/* The broadcast of both operands must be the output's shape, not only fit into it. */
int check_result(const struct plan *plan) {
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
        if (!covered || largest != out->sizes[d])
            return fail(NN_PARAM, "the output's dimension %d is of another size", d);
    }
    return OK;
}

int get_scalar(const void *handle, const char *what, double *value) {
    if (!handle) return fail(NN_NULL, "%s is NULL", what);
    struct scalar *scalar = find_object(handle, SCALAR, "aclScalar");
    if (!scalar) return NN_PARAM;
    *value = scalar->value;
    return OK;
}

/* Copies an array of integers, of which there must be at least `least`; how many, or what to give up with, negative. */
int get_array(const void *handle, const char *what, int64_t *values, int least, int most) {
    if (!handle) return -fail(NN_NULL, "%s is NULL", what);
    struct int_array *array = find_object(handle, INT_ARRAY, "aclIntArray");
    if (!array) return -NN_PARAM;
    if (array->count < (uint64_t)least || array->count > (uint64_t)most)
        return -fail(NN_PARAM, "%llu numbers in %s, expected %d to %d", (unsigned long long)array->count, what, least,
                     most);
    if (array->count) memcpy(values, array->values, array->count * sizeof *values);
    return (int)array->count;
}

int get_mask(const void *handle, int64_t *values, int count) {
    if (!handle) return fail(NN_NULL, "outputMask is NULL");
    struct bool_array *array = find_object(handle, BOOL_ARRAY, "aclBoolArray");
    if (!array || array->count != (uint64_t)count) return fail(NN_PARAM, "outputMask has not %d values", count);
    for (int i = 0; i < count; i++) values[i] = array->values[i];
    return OK;
}

int index_type(int type) { return type == I64 || type == I32; }

int get_dimension(int64_t dimension, int rank, int64_t *result) {
    int64_t count = rank ? rank : 1;
    if (dimension < -count || dimension >= count)
        return fail(NN_PARAM, "dimension %lld of %d", (long long)dimension, rank);
    *result = dimension < 0 ? dimension + count : dimension;
    return OK;
}

/* Second phase */

/* Operators read and write whole units of 32 bytes, and one more. */
static void scribble(const struct plan *plan) {
    for (int i = 0; i < plan->count; i++)
        if (plan->tensors[i].padded) memset(plan->tensors[i].padding, 0x5A, plan->tensors[i].padded);
}

static void run_plan(struct work *work) {
    struct plan *plan = work->plan;
    scribble(plan);
    if (work->to) memset(work->to, 0xA5, work->size); /* whoever else keeps something there will notice */
    int code = plan->run(plan);
    scribble(plan);
    if (!code) return;
    pthread_mutex_lock(&lock);
    work->stream->error = code;
    if (stays_broken && work->stream->stops) work->stream->context->failed = code;
    pthread_mutex_unlock(&lock);
}

static int same_place(const tensor *one, const tensor *other) {
    return one->data == other->data && one->offset == other->offset && one->type == other->type &&
           same_shape(one, other) && !memcmp(one->strides, other->strides, (size_t)one->rank * sizeof *one->strides);
}

/* Memory is handed out in such pieces that ALIGN_UP(size, 32) + 32 bytes are the tensor's. */
static int add_padding(struct block *block, tensor *t) {
    char *end = t->data + t->storage * (int64_t)bytes_of(t->type);
    size_t size = (size_t)(-(uintptr_t)end % 32 + 32);
    if (!scribbles) return OK;
    if (find_block(end, size) != block)
        return misuse(NN_PARAM, "a tensor ends at %p, which is not 32 bytes before the end of its block", (void *)end);
    t->padding = memory_of(block, end);
    t->padded = size;
    return OK;
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
    if (!block)
        return misuse(NN_PARAM, "%zu bytes at %p of a tensor are not inside a live device block", size, (void *)start);
    if (block->device != current->base.device)
        return misuse(NN_PARAM, "a tensor of device %d is used on device %d", block->device, current->base.device);
    for (int i = 0; i < work->count && i < plan->count; i++) {
        struct range *other = &work->ranges[i];
        int writes = other->write || at < plan->outputs;
        if (!writes || other->address >= start + size || start >= other->address + other->size) continue;
        if (!plan->in_place || !other->write || !same_place(plan->handles[0], handle))
            return misuse(NN_PARAM, "an output overlaps another tensor at %p", (void *)start);
    }
    int code = add_padding(block, t);
    if (code) return code;
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
int second_phase(struct site *site, void *workspace, uint64_t size, void *handle, void *stream) {
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
