/* Copies and fills, at once or queued. */
#include "library.h"

#include <string.h>

enum { H2H, H2D, D2H, D2D, ANY, H2BUF2D, INNER, INTER };

struct side {
    struct block *block; /* NULL: pageable host memory */
    char *memory;
    int device;
};

/* Where the bytes are; wrong addresses are the caller's mistake. */
static int resolve(const void *pointer, size_t size, const char *what, struct side *side) {
    *side = (struct side){NULL, (char *)(uintptr_t)pointer, device_of(pointer)};
    if (!pointer) return misuse(RT_PARAM, "the %s is NULL", what);
    if (side->device < 0) {
        struct block *pinned = find_block(pointer, 1);
        side->block = pinned;
        if (pinned && (char *)pointer + size > pinned->address + pinned->size)
            return misuse(RT_PARAM, "%zu bytes at %p reach beyond the %s's host block", size, pointer, what);
        return OK;
    }
    side->block = find_block(pointer, size);
    if (!side->block)
        return misuse(RT_PARAM, "the %s, %zu bytes at %p, is not inside a live block", what, size, pointer);
    side->memory = memory_of(side->block, pointer);
    return OK;
}

static int check_kind(int kind, const struct side *to, const struct side *from) {
    static const char *const names[] = {"host to host", "host to device", "device to host", "device to device", "",
                                        "host to device", "inside a device", "between devices"};
    static const int source[] = {0, 0, 1, 1, -1, 0, 1, 1}, target[] = {0, 1, 0, 1, -1, 1, 1, 1};
    if (kind < 0 || kind > INTER) return fail(PARAM, "kind %d", kind);
    if ((source[kind] >= 0 && source[kind] != (from->device >= 0)) ||
        (target[kind] >= 0 && target[kind] != (to->device >= 0)) ||
        (kind == INNER && to->device != from->device) || (kind == INTER && to->device == from->device))
        return misuse(RT_PARAM, "a copy %s was asked for, from %s to %s memory", names[kind],
                      from->device < 0 ? "host" : "device", to->device < 0 ? "host" : "device");
    return OK;
}

static int check_devices(const struct side *to, const struct side *from) {
    int here = current->base.device;
    if (to->device < 0 && from->device < 0) return OK;
    if (to->device >= 0 && from->device >= 0 && to->device != from->device) {
        if (to->device != here && from->device != here)
            return misuse(RT_PARAM, "a copy from device %d to %d in a context of device %d", from->device, to->device,
                          here);
        int other = to->device == here ? from->device : to->device;
        if (!devices[here].peers[other]) return fail(DRIVER, "no peer access from device %d to %d", here, other);
        return OK;
    }
    int device = to->device >= 0 ? to->device : from->device;
    if (device == here) return OK;
    return misuse(RT_PARAM, "memory of device %d is used in a context of device %d", device, here);
}

static int check_copy(void *to, size_t room, const void *from, size_t size, int kind, struct side *target,
                      struct side *source) {
    if (!size) return fail(RT_PARAM, "a copy of 0 bytes");
    if (size > room) return misuse(RT_PARAM, "%zu bytes for a room of %zu", size, room);
    int code = resolve(to, size, "destination", target);
    code = code ? code : resolve(from, size, "source", source);
    code = code ? code : check_kind(kind, target, source);
    code = code ? code : check_devices(target, source);
    if (code) return code;
    const char *first = from, *second = to;
    if (first < second + size && second < first + size) return misuse(RT_PARAM, "source and destination overlap");
    return OK;
}

API int aclrtMemcpy(void *to, size_t room, const void *from, size_t size, int kind) {
    ENTER(IN_CONTEXT);
    struct side target, source;
    int code = check_context();
    code = code ? code : check_copy(to, room, from, size, kind, &target, &source);
    if (code) return leave(code);
    struct work *access = new_work(NULL, 2); /* only to check that queued work is not disturbed */
    if (target.block) add_range(access, target.block, to, size, 1);
    if (source.block) add_range(access, source.block, from, size, 0);
    check_order(NULL, access);
    int delay = copy_delay;
    pthread_mutex_unlock(&lock); /* the blocks stay while `access` has them */
    if (delay) sleep_ms(delay);
    memcpy(target.memory, source.memory, size);
    pthread_mutex_lock(&lock);
    free_work(access);
    return leave(OK);
}

static void run_copy(struct work *work) {
    if (work->value) sleep_ms(work->value);
    memcpy(work->to, work->from, work->size);
}

API int aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t size, int kind, void *handle) {
    ENTER(IN_CONTEXT);
    struct side target, source;
    struct stream *stream;
    int code = find_stream(handle, &stream);
    code = code ? code : check_copy(to, room, from, size, kind, &target, &source);
    if (code) return leave(code);
    if (target.device >= 0 && target.device == source.device && ((uintptr_t)to | (uintptr_t)from) % 64)
        return leave(misuse(RT_PARAM, "an asynchronous copy on a device, %p to %p, needs 64-byte alignment", from, to));
    struct work *work = new_work(run_copy, 2);
    work->to = target.memory;
    work->from = source.memory;
    work->size = size;
    work->value = copy_delay;
    if (target.block) add_range(work, target.block, to, size, 1);
    if (source.block) add_range(work, source.block, from, size, 0);
    enqueue(stream, work);
    return leave(OK);
}

static int check_fill(void *to, size_t room, size_t size, struct side *target) {
    static const struct side host = {NULL, NULL, -1};
    if (!size) return fail(RT_PARAM, "a fill of 0 bytes");
    if (size > room) return misuse(RT_PARAM, "%zu bytes for a room of %zu", size, room);
    int code = resolve(to, size, "destination", target);
    return code ? code : check_devices(target, &host);
}

API int aclrtMemset(void *to, size_t room, int32_t value, size_t size) {
    ENTER(IN_CONTEXT);
    struct side target;
    int code = check_context();
    code = code ? code : check_fill(to, room, size, &target);
    if (code) return leave(code);
    struct work *access = new_work(NULL, 1);
    if (target.block) add_range(access, target.block, to, size, 1);
    check_order(NULL, access);
    memset(target.memory, value, size);
    free_work(access);
    return leave(OK);
}

static void run_fill(struct work *work) { memset(work->to, work->value, work->size); }

API int aclrtMemsetAsync(void *to, size_t room, int32_t value, size_t size, void *handle) {
    ENTER(IN_CONTEXT);
    struct side target;
    struct stream *stream;
    int code = find_stream(handle, &stream);
    code = code ? code : check_fill(to, room, size, &target);
    if (code) return leave(code);
    if (target.device < 0) return leave(misuse(RT_PARAM, "a queued fill of host memory"));
    struct work *work = new_work(run_fill, 1);
    work->to = target.memory;
    work->size = size;
    work->value = value;
    add_range(work, target.block, to, size, 1);
    enqueue(stream, work);
    return leave(OK);
}

/* Every copy that is called from now on takes this much longer. */
API void genie_test_delay_copies(int milliseconds) {
    pthread_mutex_lock(&lock);
    copy_delay = milliseconds;
    pthread_mutex_unlock(&lock);
}
