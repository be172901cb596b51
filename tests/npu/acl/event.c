/* Events. A wait means the record that was the last one when the wait was called. */
#include "library.h"

#include <stdlib.h>

static struct recording *hold_recording(struct recording *recording) {
    if (recording) recording->references++;
    return recording;
}

void drop_recording(struct recording *recording) {
    if (!recording || --recording->references) return;
    pthread_cond_destroy(&recording->changed);
    free(recording->clock);
    free(recording);
}

static struct event *find_event(void *handle) { return find_object(handle, EVENT, "event"); }

static int create(void **out, uint32_t flags) {
    if (!out) return fail(PARAM, "event is NULL");
    if (!flags || flags & ~0x6Bu) return fail(RT_PARAM, "flags %#x", flags);
    if (event_limit && events_alive[current->base.device] >= event_limit)
        return fail(NO_EVENT, "device %d has no more than %d events", current->base.device, event_limit);
    struct event *event = new_object(EVENT, sizeof *event, current->base.device);
    event->context = current;
    event->flags = flags;
    *out = event;
    return OK;
}

API int aclrtCreateEvent(void **event) {
    ENTER(IN_CONTEXT);
    return leave(create(event, 1 | 8));
}

API int aclrtCreateEventWithFlag(void **event, uint32_t flags) {
    ENTER(IN_CONTEXT);
    return leave(create(event, flags));
}

API int aclrtCreateEventExWithFlag(void **event, uint32_t flags) {
    ENTER(IN_CONTEXT);
    return leave(create(event, flags));
}

API int aclrtDestroyEvent(void *handle) {
    ENTER_RELEASE(INITIALIZED);
    struct event *event = find_event(handle);
    if (!event) return leave(BAD_HANDLE);
    if (event->pending) violation("event %p is destroyed while %d queued uses wait", handle, event->pending);
    drop_recording(event->recording);
    event->recording = NULL;
    end_object(&event->base);
    LEAVE_RELEASE(OK);
}

/* Called with the lock when work about events is over, done or discarded: the record counts as reached. */
void finish_event_work(struct work *work) {
    struct recording *recording = work->recording;
    if (work->event) work->event->pending--;
    if (recording && work->value == 'r' && !recording->done) {
        recording->done = 1;
        recording->seconds = now();
        pthread_cond_broadcast(&recording->changed);
    }
    if (work->event && work->value == 'x' && work->event->recording == recording) {
        work->event->recording = NULL;
        drop_recording(recording);
    }
    drop_recording(recording);
}

static void run_wait(struct work *work) {
    pthread_mutex_lock(&lock);
    while (!work->recording->done && work->stream->stopping != 2)
        pthread_cond_wait(&work->recording->changed, &lock);
    pthread_mutex_unlock(&lock);
}

static void enqueue_event(struct stream *stream, struct event *event, void (*run)(struct work *), int what) {
    struct work *work = new_work(run, 0);
    work->event = event;
    work->recording = hold_recording(event->recording);
    work->value = what;
    event->pending++;
    enqueue(stream, work);
}

static int find_both(void *event_handle, void *stream_handle, struct event **event, struct stream **stream) {
    int code = find_stream(stream_handle, stream);
    if (code) return code;
    *event = find_event(event_handle);
    return *event ? OK : BAD_HANDLE;
}

static int wrong_context(const struct event *event, const struct stream *stream) {
    if (event->context == stream->context) return OK;
    return misuse(WRONG_CONTEXT, "event %p of device %d is used on a stream of another context, of device %d",
                  (const void *)event, event->base.device, stream->base.device);
}

API int aclrtRecordEvent(void *event_handle, void *stream_handle) {
    ENTER(IN_CONTEXT);
    struct event *event;
    struct stream *stream;
    int code = find_both(event_handle, stream_handle, &event, &stream);
    code = code ? code : wrong_context(event, stream);
    if (code) return leave(code);
    drop_recording(event->recording);
    event->recording = calloc(1, sizeof *event->recording);
    event->recording->references = 1;
    pthread_cond_init(&event->recording->changed, NULL);
    enqueue_event(stream, event, NULL, 'r');
    event->recording->clock = new_clock();
    order_after(event->recording->clock, stream->clock);
    return leave(OK);
}

API int aclrtRecordEventWithFlag(void *event_handle, void *stream_handle, uint32_t flag) {
    ENTER(IN_CONTEXT);
    (void)event_handle, (void)stream_handle;
    return leave(fail(RT_PARAM, "flag %#x", flag)); /* of CANN 9.2; nobody here calls it */
}

API int aclrtResetEvent(void *event_handle, void *stream_handle) {
    ENTER(IN_CONTEXT);
    struct event *event;
    struct stream *stream;
    int code = find_both(event_handle, stream_handle, &event, &stream);
    code = code ? code : wrong_context(event, stream);
    if (!code && event->recording) enqueue_event(stream, event, NULL, 'x');
    return leave(code);
}

API int aclrtStreamWaitEvent(void *stream_handle, void *event_handle) {
    ENTER(IN_CONTEXT);
    struct event *event;
    struct stream *stream;
    int code = find_both(event_handle, stream_handle, &event, &stream);
    if (code || !event->recording) return leave(code); /* never recorded: nothing to wait for */
    if (!foreign_waits && event->base.device != stream->base.device) return leave(OK); /* says nothing of it */
    order_after(stream->clock, event->recording->clock);
    enqueue_event(stream, event, run_wait, 'w');
    return leave(OK);
}

static int query(void *handle, int *status, int complete, int not_ready) {
    if (!status) return fail(PARAM, "status is NULL");
    struct event *event = find_event(handle);
    if (!event) return BAD_HANDLE;
    int done = !event->recording || event->recording->done;
    if (done && event->recording) order_after(host_clock, event->recording->clock);
    *status = done ? complete : not_ready;
    return OK;
}

API int aclrtQueryEvent(void *event, int *status) {
    ENTER(INITIALIZED);
    return leave(query(event, status, 0, 1));
}

API int aclrtQueryEventStatus(void *event, int *status) {
    ENTER(INITIALIZED);
    return leave(query(event, status, 1, 0));
}

API int aclrtSynchronizeEvent(void *handle) {
    ENTER(INITIALIZED);
    struct event *event = find_event(handle);
    if (!event) return leave(BAD_HANDLE);
    struct recording *recording = hold_recording(event->recording);
    if (recording) {
        while (!recording->done) pthread_cond_wait(&recording->changed, &lock);
        order_after(host_clock, recording->clock);
        drop_recording(recording);
    }
    return leave(OK);
}

API int aclrtEventElapsedTime(float *milliseconds, void *start_handle, void *end_handle) {
    ENTER(INITIALIZED);
    struct event *start = find_event(start_handle), *end = start ? find_event(end_handle) : NULL;
    if (!milliseconds) return leave(fail(PARAM, "the result's pointer is NULL"));
    if (!start || !end) return leave(BAD_HANDLE);
    if (!(start->flags & end->flags & 8)) return leave(fail(BAD_TIMESTAMP, "an event was created without timing"));
    if (!start->recording || !end->recording || !start->recording->done || !end->recording->done)
        return leave(fail(BAD_TIMESTAMP, "an event was not recorded or not reached"));
    *milliseconds = (float)((end->recording->seconds - start->recording->seconds) * 1e3);
    return leave(OK);
}
