/* Initialization, errors, violations, injected faults, and the table of everything that callers hold. */
#include "library.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

API int genie_acl_test_library = 1; /* how the product knows that this is no hardware */

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
struct device devices[MAX_DEVICES];
int device_count, peers_allowed, copy_delay, memory_delay;
int scribbles, foreign_waits, keeps_text, declines, counts_early, stays_broken;
int event_limit, stream_limit, runtime, float_cube, events_alive[MAX_DEVICES];
char chip[64];
_Thread_local struct context *current;

static _Thread_local char recent[512];
static _Thread_local const char *function = "";
static uint64_t initialized;
static int once_only, configured;
static volatile int in_child;

static struct site *sites;
static struct fault {
    char name[64];
    int remaining, code;
    struct fault *next;
} *faults;

static char *violations_text;
static size_t violations_size, violations_room;
static int violations_count;

#define BUCKETS 65536
#define KEPT 4096
static struct object *table[BUCKETS];
static struct object *ended[KEPT];
static size_t ended_at;
static int visiting;

static void became_child(void) { in_child = 1; }

int forked(void) { return in_child; }

static size_t setting(const char *name, size_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

/* Not those of the first 910 generation, 310 and 310P. */
static int has_float_cube(const char *name) {
    if (!strncmp(name, "Ascend310", 9)) return name[9] == 'B';
    return strncmp(name, "Ascend910", 9) || !strchr("ABP", name[9]) || (name[9] == 'B' && isdigit(name[10]));
}

static void configure(void) {
    if (!configured++) pthread_atfork(NULL, NULL, became_child);
    size_t count = setting("GENIE_TEST_NPU_DEVICES", 2);
    device_count = count < MAX_DEVICES ? (int)count : MAX_DEVICES;
    for (int i = 0; i < MAX_DEVICES; i++) devices[i].limit = setting("GENIE_TEST_NPU_MEMORY", (size_t)1 << 30);
    peers_allowed = (int)setting("GENIE_TEST_NPU_PEER", 1);
    order_checked = (int)setting("GENIE_TEST_NPU_ORDER", 1);
    int unkind = (int)setting("GENIE_TEST_NPU_UNKIND", 0); /* what the others are where they are not set */
    scribbles = (int)setting("GENIE_TEST_NPU_SCRIBBLE", (size_t)unkind);
    foreign_waits = (int)setting("GENIE_TEST_NPU_FOREIGN_WAITS", !unkind);
    keeps_text = (int)setting("GENIE_TEST_NPU_KEEP_TEXT", (size_t)unkind);
    declines = (int)setting("GENIE_TEST_NPU_DECLINE", 0);
    stays_broken = (int)setting("GENIE_TEST_NPU_STAYS_BROKEN", 0);
    counts_early = (int)setting("GENIE_TEST_NPU_COUNT", (size_t)unkind);
    event_limit = (int)setting("GENIE_TEST_NPU_EVENTS", unkind ? 1023 : 0);
    stream_limit = (int)setting("GENIE_TEST_NPU_STREAMS", unkind ? 512 : 0);
    const char *name = getenv("GENIE_TEST_NPU_CHIP"), *version = getenv("GENIE_TEST_NPU_RUNTIME");
    snprintf(chip, sizeof chip, "%s", name ? name : "Ascend910B1-GenieTest");
    float_cube = has_float_cube(chip);
    runtime = version ? atoi(version) : foreign_waits ? 90200000 : 90100000; /* CANN's waits since 9.2, on some chips */
    const char *mode = getenv("GENIE_TEST_NPU_INIT");
    once_only = mode && !strcmp(mode, "once");
}

__attribute__((constructor)) static void loaded(void) { configure(); }

double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

void sleep_ms(int milliseconds) {
    struct timespec time = {milliseconds / 1000, (milliseconds % 1000) * 1000000L};
    while (nanosleep(&time, &time)) {
    }
}

/* Errors and violations */

static int set_error(int code, const char *format, va_list values) {
    size_t at = keeps_text ? strlen(recent) : 0;
    if (at && at + 1 < sizeof recent) recent[at++] = '\n';
    at += (size_t)snprintf(recent + at, sizeof recent - at, "%s: ", function);
    if (at < sizeof recent) vsnprintf(recent + at, sizeof recent - at, format, values);
    return code;
}

int fail(int code, const char *format, ...) {
    va_list values;
    va_start(values, format);
    set_error(code, format, values);
    va_end(values);
    return code;
}

static void note(const char *line) {
    size_t size = strlen(line) + 1;
    if (violations_size + size + 1 > violations_room) {
        violations_room = 2 * (violations_room + size) + 4096;
        violations_text = realloc(violations_text, violations_room);
    }
    memcpy(violations_text + violations_size, line, size - 1);
    violations_size += size;
    violations_text[violations_size - 1] = '\n';
    violations_count++;
}

static void note_values(const char *format, va_list values) {
    char line[640];
    int used = snprintf(line, sizeof line, "%s: ", function);
    vsnprintf(line + used, sizeof line - (size_t)used, format, values);
    note(line);
}

void violation(const char *format, ...) {
    va_list values;
    va_start(values, format);
    note_values(format, values);
    va_end(values);
}

int misuse(int code, const char *format, ...) {
    va_list values;
    va_start(values, format);
    note_values(format, values);
    va_end(values);
    va_start(values, format);
    set_error(code, format, values);
    va_end(values);
    return code;
}

/* Also forgets it: whoever asks twice gets nothing. */
API const char *aclGetRecentErrMsg(void) {
    static _Thread_local char told[sizeof recent];
    if (!recent[0]) return NULL;
    memcpy(told, recent, sizeof recent);
    recent[0] = 0;
    return told;
}

/* Calls */

static int injected_fault(struct site *site) {
    for (struct fault **at = &faults; *at; at = &(*at)->next) {
        struct fault *fault = *at;
        if (strcmp(fault->name, "*") && strcmp(fault->name, site->name)) continue;
        if (--fault->remaining) continue;
        int code = fault->code;
        *at = fault->next;
        free(fault);
        return fail(code, "injected fault %d", code);
    }
    return OK;
}

void count_call(struct site *site) {
    if (!site->registered) {
        site->registered = 1;
        site->next = sites;
        sites = site;
    }
    site->calls++;
}

int enter(struct site *site, int needs, int release, int *injected) {
    function = site->name;
    if (in_child) return fail(DRIVER, "the driver was opened by the parent process");
    pthread_mutex_lock(&lock);
    function = site->name;
    if (!keeps_text) recent[0] = 0;
    count_call(site);
    int code = injected_fault(site);
    if (code && release) {
        *injected = code;
        code = OK;
    }
    if (!code && (needs & INITIALIZED) && !initialized) code = fail(UNINITIALIZED, "aclInit was not called");
    if (!code && needs == IN_CONTEXT && !(current && current->base.alive))
        code = fail(NO_CONTEXT, "the thread has no current context");
    return code ? leave(code) : OK;
}

int leave(int code) {
    pthread_mutex_unlock(&lock);
    return code;
}

/* Objects */

static size_t bucket(const void *handle) { return ((uintptr_t)handle >> 4) * 0x9E3779B97F4A7C15u >> 48; }

void *new_object(enum kind kind, size_t size, int device) {
    struct object *object = calloc(1, size);
    object->kind = kind;
    object->alive = 1;
    object->device = device;
    if (kind == EVENT) events_alive[device]++;
    object->chain = table[bucket(object)];
    table[bucket(object)] = object;
    return object;
}

static void forget_object(struct object *object) {
    struct object **at = &table[bucket(object)];
    while (*at != object) at = &(*at)->chain;
    *at = object->chain;
    free(object);
}

void end_object(struct object *object) {
    if (object->kind == EVENT && object->alive) events_alive[object->device]--;
    object->alive = 0;
    if (visiting || object->kind == CONTEXT || object->kind == STREAM) return; /* someone still looks at these */
    struct object *oldest = ended[ended_at % KEPT];
    if (oldest && !(oldest->kind == EVENT && ((struct event *)oldest)->pending)) forget_object(oldest);
    ended[ended_at++ % KEPT] = object;
}

void *find_object(const void *handle, enum kind kind, const char *what) {
    for (struct object *object = table[bucket(handle)]; object; object = object->chain) {
        if (object != handle || object->kind != kind) continue;
        if (object->alive) return object;
        misuse(BAD_HANDLE, "%s %p was destroyed before", what, handle);
        return NULL;
    }
    misuse(BAD_HANDLE, "%p is no %s", handle, what);
    return NULL;
}

int each_object(int (*visit)(struct object *, void *), void *data) {
    int count = 0;
    visiting++;
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct object *object = table[i]; object; object = object->chain) count += visit(object, data);
    visiting--;
    return count;
}

struct leaks {
    void (*line)(const char *);
};

static int visit_leak(struct object *object, void *data) {
    static const char *const names[KINDS] = {"context", "stream", "event", "aclTensor", "aclScalar", "aclIntArray",
                                             "aclBoolArray", "aclTensorList", "aclOpExecutor"};
    char text[128];
    if (!object->alive) return 0;
    if (object->kind == CONTEXT && ((struct context *)object)->is_default) return 0;
    if (object->kind == STREAM && ((struct stream *)object)->is_default) return 0;
    snprintf(text, sizeof text, "leaked %s %p of device %d", names[object->kind], (void *)object, object->device);
    ((struct leaks *)data)->line(text);
    return 1;
}

int list_leaks(void (*line)(const char *text)) {
    char text[128];
    struct leaks leaks = {line};
    int count = each_object(visit_leak, &leaks);
    for (int device = 0; device < MAX_DEVICES; device++)
        for (size_t i = 0; i < devices[device].count; i++) {
            struct block *block = devices[device].blocks[i];
            if (block->freed) continue;
            snprintf(text, sizeof text, "leaked device block %p of %zu bytes on device %d", (void *)block->address,
                     block->size, device);
            line(text);
            count++;
        }
    for (struct block *block = host_blocks; block; block = block->next) {
        if (block->freed) continue;
        snprintf(text, sizeof text, "leaked host block %p of %zu bytes", (void *)block->address, block->size);
        line(text);
        count++;
    }
    return count;
}

/* Initialization */

static char init_path[4096];

API int aclInit(const char *path) {
    ENTER(ANYTIME);
    snprintf(init_path, sizeof init_path, "%s", path ? path : "");
    if (path && access(path, R_OK)) return leave(fail(NO_FILE, "the configuration cannot be read"));
    if (initialized++ && once_only) return leave(fail(REPEATED_INIT, "initialized before")); /* and counted */
    return leave(OK);
}

static int visit_destroy(struct object *object, void *data) {
    (void)data;
    if (object->alive && object->kind >= EVENT && object->kind != EXECUTOR) end_object(object);
    if (object->alive && object->kind == EXECUTOR) end_executor(object);
    return 0;
}

static int visit_context(struct object *object, void *data) {
    (void)data;
    if (object->kind == CONTEXT && object->alive) destroy_context((struct context *)object);
    return 0;
}

static void destroy_everything(void) {
    for (struct stream *stream = streams; stream; stream = stream->next) stream->held = 0;
    each_object(visit_context, NULL);
    each_object(visit_destroy, NULL);
    for (int device = 0; device < MAX_DEVICES; device++) drop_blocks(device);
    drop_host_blocks();
    initialized = 0;
}

static int finalize(void) {
    list_leaks(note);
    destroy_everything();
    return OK;
}

API int aclFinalize(void) {
    ENTER(INITIALIZED);
    return leave(finalize());
}

API int aclFinalizeReference(uint64_t *remaining) {
    ENTER(INITIALIZED);
    uint64_t left = initialized - 1;
    if (left) initialized = left;
    else finalize();
    if (remaining) *remaining = left;
    return leave(OK);
}

/* Control functions for tests */

static int copy_out(char *buffer, size_t size, const char *text, size_t length) {
    if (!buffer || !size) return 0;
    if (length >= size) length = size - 1;
    if (length) memcpy(buffer, text, length);
    buffer[length] = 0;
    return 0;
}

/* Lines about every misuse since the last clear; returns how many. */
API int genie_test_violations(char *buffer, size_t size) {
    pthread_mutex_lock(&lock);
    copy_out(buffer, size, violations_text, violations_size);
    return leave(violations_count);
}

static char *leak_buffer;
static size_t leak_room, leak_size;

static void leak_line(const char *text) {
    size_t length = strlen(text);
    if (leak_size + length + 2 > leak_room) return;
    memcpy(leak_buffer + leak_size, text, length);
    leak_size += length;
    leak_buffer[leak_size++] = '\n';
    leak_buffer[leak_size] = 0;
}

/* Lines about everything that is held now; returns how many. */
API int genie_test_leaks(char *buffer, size_t size) {
    pthread_mutex_lock(&lock);
    leak_buffer = buffer, leak_room = buffer ? size : 0, leak_size = 0;
    if (leak_room) buffer[0] = 0;
    return leave(list_leaks(leak_line));
}

/* How often a function was called since the last clear. */
/* What the last aclInit was given; empty: nothing. */
API const char *genie_test_init_path(void) { return init_path; }

API long genie_test_calls(const char *name) {
    long calls = 0;
    pthread_mutex_lock(&lock);
    for (struct site *site = sites; site; site = site->next)
        if (!strcmp(name, "*") || !strcmp(site->name, name)) calls += site->calls;
    pthread_mutex_unlock(&lock);
    return calls;
}

/* The nth next call (1: the very next) of `name`, or of any function ("*"), fails with `code`. */
API void genie_test_fail(const char *name, int nth, int code) {
    struct fault *fault = calloc(1, sizeof *fault);
    snprintf(fault->name, sizeof fault->name, "%s", name);
    fault->remaining = nth > 0 ? nth : 1;
    fault->code = code;
    pthread_mutex_lock(&lock);
    fault->next = faults;
    faults = fault;
    pthread_mutex_unlock(&lock);
}

/* Forgets violations, call counts, armed faults and delays; returns how many faults had not fired. */
API int genie_test_clear(void) {
    int armed = 0;
    pthread_mutex_lock(&lock);
    violations_size = 0;
    violations_count = 0;
    for (struct site *site = sites; site; site = site->next) site->calls = 0;
    for (; faults; armed++) {
        struct fault *fault = faults;
        faults = fault->next;
        free(fault);
    }
    copy_delay = memory_delay = 0;
    return leave(armed);
}

/* As freshly loaded; the environment is read again. No other thread may be inside the library. */
API void genie_test_reset(void) {
    genie_test_clear();
    pthread_mutex_lock(&lock);
    function = "genie_test_reset";
    destroy_everything();
    for (int device = 0; device < MAX_DEVICES; device++) reset_device(device);
    current = NULL;
    recent[0] = 0;
    violations_size = 0;
    violations_count = 0;
    configure();
    pthread_mutex_unlock(&lock);
}

static FILE *report;

static void report_line(const char *text) { fprintf(report, "%s\n", text); }

/* For programs in a process of their own: GENIE_TEST_NPU_REPORT names a file for what is wrong at its end. */
__attribute__((destructor)) static void unloaded(void) {
    const char *path = getenv("GENIE_TEST_NPU_REPORT");
    if (in_child || !path || !(report = fopen(path, "a"))) return;
    pthread_mutex_lock(&lock);
    if (violations_size) fwrite(violations_text, 1, violations_size, report);
    list_leaks(report_line);
    fprintf(report, "end of process\n");
    fclose(report);
    pthread_mutex_unlock(&lock);
}
