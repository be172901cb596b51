/* Streams: a thread and a queue each. */
#include "library.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

struct stream *streams;

static struct stream *numbers[CLOCKS]; /* who has or had each number */

void free_work(struct work *work) {
    for (int i = 0; i < work->count; i++) unpin(work->ranges[i].block);
    if (work->event || work->recording) finish_event_work(work);
    if (work->plan) free_plan(work->plan);
    free(work->ranges);
    free(work);
}

static void *serve(void *argument) {
    struct stream *stream = argument;
    pthread_mutex_lock(&lock);
    while (1) {
        while ((!stream->head || stream->held) && !stream->stopping) pthread_cond_wait(&stream->wake, &lock);
        struct work *work = stream->head;
        if (!work) break;
        stream->head = work->next;
        if (!stream->head) stream->last = NULL;
        stream->running = work;
        int discard = stream->stopping == 2 || (stream->stops && stream->error) || stream->context->failed;
        pthread_mutex_unlock(&lock);
        if (!discard && work->run) work->run(work);
        pthread_mutex_lock(&lock);
        stream->running = NULL;
        stream->completed++;
        free_work(work);
        pthread_cond_broadcast(&stream->done);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void make_condition(pthread_cond_t *condition) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

struct stream *new_stream(struct context *context, int is_default) {
    struct stream *stream = new_object(STREAM, sizeof *stream, context->base.device);
    stream->context = context;
    stream->is_default = is_default;
    int number = 0;
    while (number < CLOCKS - 1 && numbers[number] && numbers[number]->base.alive) number++;
    if (number >= clocks) clocks = number + 1;
    if (numbers[number]) stream->submitted = stream->completed = numbers[number]->submitted;
    numbers[number] = stream;
    stream->number = number;
    stream->clock = new_clock();
    make_condition(&stream->wake);
    make_condition(&stream->done);
    stream->next = streams;
    streams = stream;
    pthread_create(&stream->thread, NULL, serve, stream);
    return stream;
}

/* Ends the stream after its work, or (force) after what runs now. Gives the lock up meanwhile. */
void stop_stream(struct stream *stream, int force) {
    stream->base.alive = 0;
    stream->stopping = force ? 2 : 1;
    pthread_cond_broadcast(&stream->wake);
    if (force && stream->running && stream->running->recording)
        pthread_cond_broadcast(&stream->running->recording->changed); /* it may be waiting for an event */
    struct stream **at = &streams;
    while (*at != stream) at = &(*at)->next;
    *at = stream->next;
    pthread_mutex_unlock(&lock);
    pthread_join(stream->thread, NULL);
    pthread_mutex_lock(&lock);
    order_after(host_clock, stream->clock);
}

int check_context(void) {
    int code = current->failed;
    return code ? fail(code, "device %d runs nothing more after work that failed", current->base.device) : OK;
}

static int known_stream(void *handle, struct stream **out) {
    struct stream *stream = handle ? find_object(handle, STREAM, "stream") : current->default_stream;
    if (!stream) return BAD_HANDLE;
    if (stream->context != current) {
        return misuse(WRONG_CONTEXT, "stream %p of device %d is used in another context, of device %d", handle,
                      stream->base.device, current->base.device);
    }
    *out = stream;
    return OK;
}

int find_stream(void *handle, struct stream **out) {
    int code = known_stream(handle, out);
    return code ? code : check_context();
}

struct work *new_work(void (*run)(struct work *), int ranges) {
    struct work *work = calloc(1, sizeof *work);
    work->run = run;
    work->ranges = calloc((size_t)ranges + 1, sizeof *work->ranges);
    return work;
}

void add_range(struct work *work, struct block *block, const void *address, size_t size, int write) {
    block->pending++;
    work->ranges[work->count++] = (struct range){block, (char *)(uintptr_t)address, size, write};
}

void enqueue(struct stream *stream, struct work *work) {
    work->stream = stream;
    work->sequence = ++stream->submitted;
    check_order(stream, work);
    if (stream->last) stream->last->next = work;
    else stream->head = work;
    stream->last = work;
    pthread_cond_signal(&stream->wake);
}

/* milliseconds: -1 for ever. The error of failed work is told once, to whoever waits first. */
int wait_for(struct stream *stream, uint64_t sequence, int milliseconds) {
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (milliseconds > 0) {
        end.tv_sec += milliseconds / 1000;
        end.tv_nsec += (milliseconds % 1000) * 1000000L;
        if (end.tv_nsec >= 1000000000L) end.tv_sec++, end.tv_nsec -= 1000000000L;
    }
    while (stream->completed < sequence) {
        if (milliseconds < 0) pthread_cond_wait(&stream->done, &lock);
        else if (!milliseconds || pthread_cond_timedwait(&stream->done, &lock, &end) == ETIMEDOUT)
            return fail(SYNC_TIMED_OUT, "stream %p is not done after %d ms", (void *)stream, milliseconds);
    }
    order_after(host_clock, stream->clock);
    int error = stream->context->failed ? stream->context->failed : stream->error;
    stream->error = OK;
    return error ? fail(error, "work on stream %p failed", (void *)stream) : OK;
}

static int create(void **out, uint32_t priority) {
    if (!out) return fail(PARAM, "stream is NULL");
    if (priority > 7) return fail(RT_PARAM, "priority %u, expected 0 to 7", priority);
    int count = 0;
    for (struct stream *each = streams; each; each = each->next) count += each->base.device == current->base.device;
    if (stream_limit && count >= stream_limit)
        return fail(NO_STREAM, "device %d has no more than %d streams", current->base.device, stream_limit);
    *out = new_stream(current, 0);
    return OK;
}

API int aclrtCreateStream(void **stream) {
    ENTER(IN_CONTEXT);
    return leave(create(stream, 0));
}

API int aclrtCreateStreamWithConfig(void **stream, uint32_t priority, uint32_t flags) {
    ENTER(IN_CONTEXT);
    if (flags & ~7u) return leave(fail(RT_PARAM, "flags %#x", flags));
    return leave(create(stream, priority));
}

API int aclrtSetStreamFailureMode(void *handle, uint64_t mode) {
    ENTER(IN_CONTEXT);
    struct stream *stream;
    if (!handle) return leave(fail(RT_PARAM, "a default stream has no failure mode"));
    if (mode > 1) return leave(fail(RT_PARAM, "failure mode %llu", (unsigned long long)mode));
    int code = find_stream(handle, &stream);
    if (!code) stream->stops = (int)mode;
    return leave(code);
}

static int destroy(void *handle, int force) {
    struct stream *stream;
    if (!handle) return misuse(RT_PARAM, "the default stream goes with its context");
    int code = known_stream(handle, &stream);
    if (code) return code;
    if (stream->is_default) return misuse(RT_PARAM, "the default stream goes with its context");
    stop_stream(stream, force);
    return OK;
}

API int aclrtDestroyStream(void *stream) {
    ENTER_RELEASE(IN_CONTEXT);
    int code = destroy(stream, 0);
    LEAVE_RELEASE(code);
}

API int aclrtDestroyStreamForce(void *stream) {
    ENTER_RELEASE(IN_CONTEXT);
    int code = destroy(stream, 1);
    LEAVE_RELEASE(code);
}

API int aclrtSynchronizeStream(void *handle) {
    ENTER(IN_CONTEXT);
    struct stream *stream;
    int code = find_stream(handle, &stream);
    return leave(code ? code : wait_for(stream, stream->submitted, -1));
}

API int aclrtSynchronizeStreamWithTimeout(void *handle, int32_t milliseconds) {
    ENTER(IN_CONTEXT);
    struct stream *stream;
    if (milliseconds < -1) return leave(fail(RT_PARAM, "%d ms", milliseconds));
    int code = find_stream(handle, &stream);
    return leave(code ? code : wait_for(stream, stream->submitted, milliseconds));
}

API int aclrtStreamQuery(void *handle, int *status) {
    ENTER(IN_CONTEXT);
    struct stream *stream;
    if (!status) return leave(fail(PARAM, "status is NULL"));
    int code = find_stream(handle, &stream);
    if (code) return leave(code);
    *status = stream->completed < stream->submitted;
    if (!*status) order_after(host_clock, stream->clock);
    return leave(OK);
}

/* Control functions for tests */

static void run_stall(struct work *work) { sleep_ms(work->value); }

static int each_stream(void *handle, void (*visit)(struct stream *, int), int value) {
    int found = 0;
    pthread_mutex_lock(&lock);
    for (struct stream *stream = streams; stream; stream = stream->next)
        if (stream->base.alive && (!handle || stream == handle)) visit(stream, value), found++;
    return leave(found);
}

static void stall(struct stream *stream, int milliseconds) {
    struct work *work = new_work(run_stall, 0);
    work->value = milliseconds;
    enqueue(stream, work);
}

static void hold(struct stream *stream, int held) {
    stream->held = held;
    pthread_cond_broadcast(&stream->wake);
}

/* The stream (NULL: every stream) sleeps before what is queued next; returns how many do. */
API int genie_test_stall(void *stream, int milliseconds) { return each_stream(stream, stall, milliseconds); }

/* Nothing more starts on the stream (NULL: on any) until it is released; destroying it releases it too. */
API int genie_test_hold(void *stream) { return each_stream(stream, hold, 1); }
API int genie_test_release(void *stream) { return each_stream(stream, hold, 0); }
