/* Devices and contexts. Each thread has its own current context; a device's default context is the process's. */
#include "library.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int valid(int device) { return device >= 0 && device < device_count; }

static int bad_device(int device) {
    return fail(BAD_DEVICE, "device %d of %d", device, device_count);
}

static struct context *new_context(int device, int is_default) {
    struct context *context = new_object(CONTEXT, sizeof *context, device);
    context->is_default = is_default;
    context->default_stream = new_stream(context, 1);
    return context;
}

int ready_device(int index) {
    struct device *device = &devices[index];
    if (device->ready) return OK;
    /* More addresses than memory: freed ranges are reused late, so that a late use is seen. */
    device->span = (4 * device->limit + ((size_t)1 << 24)) & ~(size_t)0xFFF;
    int file = memfd_create("genie-test-npu", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)device->span)) return fail(DRIVER, "no memory for device %d", index);
    device->view = mmap(NULL, device->span, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
    device->memory = mmap(NULL, device->span, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    close(file);
    if (device->view == MAP_FAILED || device->memory == MAP_FAILED)
        return fail(DRIVER, "no addresses for device %d", index);
    madvise(device->memory, device->span, MADV_DONTFORK);
    device->ready = 1;
    return OK;
}

void reset_device(int index) {
    struct device *device = &devices[index];
    if (!device->ready) return;
    munmap(device->view, device->span);
    munmap(device->memory, device->span);
    free(device->blocks);
    memset(device, 0, sizeof *device);
}

static int visit_event(struct object *object, void *data) {
    struct context *context = data;
    struct event *event = (struct event *)object;
    if (object->kind != EVENT || !object->alive || event->context != context) return 0;
    violation("event %p outlives its context", (void *)event);
    end_object(object);
    return 1;
}

void destroy_context(struct context *context) {
    context->base.alive = 0; /* nothing new is queued from here on */
    for (struct stream *stream = streams, *next; stream; stream = next) {
        next = stream->next;
        if (stream->context != context || !stream->base.alive) continue;
        if (!stream->is_default) violation("stream %p outlives its context", (void *)stream);
        stop_stream(stream, 0);
        next = streams; /* the lock was given up */
    }
    each_object(visit_event, context);
    if (devices[context->base.device].default_context == context) devices[context->base.device].default_context = NULL;
    if (current == context) current = NULL;
}

API int aclrtGetDeviceCount(uint32_t *count) {
    ENTER(counts_early ? ANYTIME : INITIALIZED);
    if (!count) return leave(fail(PARAM, "count is NULL"));
    *count = (uint32_t)device_count;
    return leave(device_count ? OK : fail(NO_DEVICE, "no device"));
}

API int drvGetDevNum(int *count) {
    ENTER(ANYTIME);
    if (!count) return leave(fail(PARAM, "count is NULL"));
    *count = device_count;
    return leave(OK);
}

API int aclrtSetDevice(int32_t device) {
    ENTER(INITIALIZED);
    if (!valid(device)) return leave(bad_device(device));
    int code = ready_device(device);
    if (code) return leave(code);
    if (!devices[device].default_context) devices[device].default_context = new_context(device, 1);
    current = devices[device].default_context;
    return leave(OK);
}

API int aclrtGetDevice(int32_t *device) {
    ENTER(IN_CONTEXT);
    if (!device) return leave(fail(PARAM, "device is NULL"));
    *device = current->base.device;
    return leave(OK);
}

static int visit_context(struct object *object, void *device) {
    if (object->kind != CONTEXT || !object->alive || object->device != *(int32_t *)device) return 0;
    violation("context %p outlives its device", (void *)object);
    destroy_context((struct context *)object);
    return 1;
}

API int aclrtResetDevice(int32_t device) {
    ENTER_RELEASE(INITIALIZED);
    if (!valid(device)) return leave(bad_device(device));
    if (!devices[device].default_context) return leave(fail(NO_CONTEXT, "device %d was not set", device));
    destroy_context(devices[device].default_context);
    each_object(visit_context, &device);
    for (size_t i = 0; i < devices[device].count; i++)
        if (!devices[device].blocks[i]->freed)
            violation("block %p outlives its device", (void *)devices[device].blocks[i]->address);
    drop_blocks(device);
    LEAVE_RELEASE(OK);
}

static int synchronize(int milliseconds) {
    int device = current->base.device, code = OK;
    for (struct stream *stream = streams; stream; stream = stream->next) {
        if (stream->base.device != device || !stream->base.alive) continue;
        int failed = wait_for(stream, stream->submitted, milliseconds);
        code = code ? code : failed;
    }
    return code;
}

API int aclrtSynchronizeDevice(void) {
    ENTER(IN_CONTEXT);
    return leave(synchronize(-1));
}

API int aclrtSynchronizeDeviceWithTimeout(int32_t milliseconds) {
    ENTER(IN_CONTEXT);
    if (milliseconds < -1 || !milliseconds) return leave(fail(RT_PARAM, "%d ms", milliseconds));
    return leave(synchronize(milliseconds));
}

API int aclrtGetRunMode(int *mode) {
    ENTER(INITIALIZED);
    if (!mode) return leave(fail(PARAM, "mode is NULL"));
    *mode = 1;
    return leave(OK);
}

API const char *aclrtGetSocName(void) { return chip; }

API int aclrtGetVersion(int32_t *major, int32_t *minor, int32_t *patch) {
    ENTER(ANYTIME);
    if (!major || !minor || !patch) return leave(fail(PARAM, "a version pointer is NULL"));
    *major = 1, *minor = 15, *patch = 0;
    return leave(OK);
}

API int aclsysGetVersionNum(char *package, int32_t *version) {
    ENTER(ANYTIME);
    if (!package || !version) return leave(fail(PARAM, "the package or the version's pointer is NULL"));
    if (strcmp(package, "runtime") || !runtime) return leave(fail(NO_FILE, "no version of %s is known", package));
    *version = runtime;
    return leave(OK);
}

API int aclrtCreateContext(void **context, int32_t device) {
    ENTER(INITIALIZED);
    if (!context) return leave(fail(PARAM, "context is NULL"));
    if (!valid(device)) return leave(bad_device(device));
    int code = ready_device(device);
    if (code) return leave(code);
    *context = current = new_context(device, 0);
    return leave(OK);
}

API int aclrtDestroyContext(void *handle) {
    ENTER_RELEASE(INITIALIZED);
    struct context *context = find_object(handle, CONTEXT, "context");
    if (!context) return leave(BAD_HANDLE);
    if (context->is_default) return leave(misuse(RT_PARAM, "the default context goes with aclrtResetDevice"));
    destroy_context(context);
    LEAVE_RELEASE(OK);
}

API int aclrtCtxSetSysParamOpt(int option, int64_t value) {
    ENTER(IN_CONTEXT);
    if (option || value < 0 || value > 3) return leave(misuse(RT_PARAM, "option %d, %lld", option, (long long)value));
    current->deterministic = (int)value;
    return leave(OK);
}

API int aclrtSetCurrentContext(void *handle) {
    ENTER(INITIALIZED);
    struct context *context = find_object(handle, CONTEXT, "context");
    if (!context) return leave(BAD_HANDLE);
    current = context;
    return leave(OK);
}

API int aclrtGetCurrentContext(void **context) {
    ENTER(IN_CONTEXT);
    if (!context) return leave(fail(PARAM, "context is NULL"));
    *context = current;
    return leave(OK);
}

API int aclrtDeviceCanAccessPeer(int32_t *answer, int32_t device, int32_t peer) {
    ENTER(INITIALIZED);
    if (!answer) return leave(fail(PARAM, "the answer's pointer is NULL"));
    if (!valid(device) || !valid(peer)) return leave(bad_device(valid(device) ? peer : device));
    if (device == peer) return leave(fail(RT_PARAM, "device %d asked about itself", device));
    *answer = peers_allowed;
    return leave(OK);
}

API int aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t flags) {
    ENTER(IN_CONTEXT);
    if (!valid(peer)) return leave(bad_device(peer));
    if (flags || peer == current->base.device) return leave(fail(RT_PARAM, "peer %d, flags %u", peer, flags));
    if (!peers_allowed) return leave(fail(DRIVER, "devices %d and %d are not linked", current->base.device, peer));
    devices[current->base.device].peers[peer] = 1;
    return leave(OK);
}

API int aclrtDeviceDisablePeerAccess(int32_t peer) {
    ENTER(IN_CONTEXT);
    if (!valid(peer)) return leave(bad_device(peer));
    devices[current->base.device].peers[peer] = 0;
    return leave(OK);
}

static int capability(uint32_t device, int attribute, int64_t *value) {
    static const int64_t values[] = {24, 48, (int64_t)192 << 20};
    if (!value) return fail(PARAM, "value is NULL");
    if (!valid((int)device)) return bad_device((int)device);
    if (attribute < 0 || attribute > 2) return fail(PARAM, "attribute %d", attribute);
    *value = values[attribute];
    return OK;
}

API int aclrtGetDeviceInfo(uint32_t device, int attribute, int64_t *value) {
    ENTER(INITIALIZED);
    return leave(capability(device, attribute, value));
}

API int aclGetDeviceCapability(uint32_t device, int attribute, int64_t *value) {
    ENTER(INITIALIZED);
    return leave(capability(device, attribute, value));
}
