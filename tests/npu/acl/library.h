/* The AscendCL C interface over host memory, for tests. Streams are threads with a queue each; device memory has no
 * access rights at the addresses that callers see, so that any touch by the host faults. Every misuse is remembered
 * as a violation. All bookkeeping is under one lock; queued work runs without it. */
#ifndef GENIE_TEST_ACL_H
#define GENIE_TEST_ACL_H

#define _GNU_SOURCE

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))
#define MAX_DEVICES 64
#define MAX_DIMS 8

enum {
    OK = 0, PARAM = 100000, UNINITIALIZED = 100001, REPEATED_INIT = 100002, NO_FILE = 100003, RT_PARAM = 107000, BAD_DEVICE = 107001,
    NO_CONTEXT = 107002, WRONG_CONTEXT = 107003, BAD_TIMESTAMP = 107006, BAD_HANDLE = 107017, TIMED_OUT = 107019,
    NO_DEVICE = 207004, NO_EVENT = 207007, NO_STREAM = 207008, OUT_OF_MEMORY = 207018,
    DEVICE_FAULT = 507015, SYNC_TIMED_OUT = 507046, DRIVER = 507899,
    NN_NULL = 161001, NN_PARAM = 161002, NN_RUNTIME = 361001, NN_EXECUTOR = 561102,
};

enum kind { CONTEXT, STREAM, EVENT, TENSOR, SCALAR, INT_ARRAY, BOOL_ARRAY, TENSOR_LIST, EXECUTOR, KINDS };

/* What callers hold. Destroyed objects stay in the table for a while, to tell a late use from a wild pointer. */
struct object {
    enum kind kind;
    int alive;
    int device;
    struct object *chain;
};

struct context {
    struct object base;
    struct stream *default_stream;
    int is_default;
    int deterministic;
    int failed; /* what work on it failed with, where that is for good */
};

/* Device memory, or pinned host memory (device -1). `address` is the caller's, `memory` is where the bytes are. */
struct block {
    char *address;
    char *memory;
    size_t size;
    int device;
    int freed;
    int pending; /* queued work that uses it */
    struct access *accesses;
    int access_count, access_room;
    struct block *next;
};

struct range {
    struct block *block;
    char *address;
    size_t size;
    int write;
};

struct recording { /* one record of an event: what a wait waits for */
    int references;
    int done;
    double seconds;
    pthread_cond_t changed;
    uint64_t *clock;
};

struct event {
    struct object base;
    struct context *context;
    uint32_t flags;
    int pending; /* queued records, waits and resets */
    struct recording *recording;
};

struct stream {
    struct object base;
    struct context *context;
    pthread_t thread;
    pthread_cond_t wake, done;
    struct work *head, *last, *running;
    uint64_t submitted, completed;
    int is_default, stopping, held, error;
    int stops;   /* on failure, until somebody is told of it */
    int number; /* in clocks */
    uint64_t *clock;
    struct stream *next;
};

struct work {
    void (*run)(struct work *); /* without the lock */
    struct work *next;
    struct stream *stream;
    struct range *ranges;
    int count;
    uint64_t sequence;
    struct event *event;
    struct recording *recording;
    struct plan *plan;
    char *to, *from;
    size_t size;
    int value;
};

struct device {
    int ready;
    char *view, *memory; /* the same pages: without access rights, and readable and writable */
    size_t span, limit, used, cursor;
    struct block **blocks; /* by address */
    size_t count, room;
    struct context *default_context;
    char peers[MAX_DEVICES];
};

/* One place that is called: counts, injected faults and the name in messages. */
struct site {
    const char *name;
    int registered;
    long calls;
    struct site *next;
};

extern pthread_mutex_t lock;
extern struct device devices[MAX_DEVICES];
extern int device_count, peers_allowed, copy_delay, memory_delay;
extern int scribbles;     /* operators write to the padding behind their operands */
extern int keeps_text;    /* an error's text stays until it is asked for */
extern int declines;      /* what every first phase of an operator gives, or 0 */
extern int foreign_waits; /* a stream can wait for another device's event; else the wait is none */
extern int counts_early;  /* devices can be counted before aclInit */
extern int stays_broken;  /* work that failed on a stream that stops ends its whole context's work */
extern int event_limit, stream_limit; /* of each device, default streams among them; 0: none */
extern int events_alive[MAX_DEVICES];
extern int float_cube; /* the chip multiplies float32 */
extern int runtime; /* its version, as aclsysGetVersionNum counts; 0: it does not know */
extern char chip[64];
extern struct stream *streams;
extern struct block *host_blocks;
extern _Thread_local struct context *current;

/* enter(): returns with the lock held, or an error without it. leave(): gives the lock back and passes the code on. */
enum { ANYTIME = 0, INITIALIZED = 1, IN_CONTEXT = 3 };
int enter(struct site *site, int needs, int release, int *injected);
int leave(int code);
void count_call(struct site *site); /* with the lock */
int fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
void violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
int misuse(int code, const char *format, ...) __attribute__((format(printf, 2, 3))); /* fail() and violation() */
int forked(void);
void sleep_ms(int milliseconds);
double now(void);

#define ENTER(needs)                                                 \
    static struct site site = {.name = __func__};                    \
    do {                                                             \
        int refused = enter(&site, needs, 0, NULL);                  \
        if (refused) return refused;                                 \
    } while (0)

/* Functions that give something back do so even when a fault is injected: the error comes on top. */
#define ENTER_RELEASE(needs)                                         \
    static struct site site = {.name = __func__};                    \
    int injected = 0;                                                \
    do {                                                             \
        int refused = enter(&site, needs, 1, &injected);             \
        if (refused) return refused;                                 \
    } while (0)
#define LEAVE_RELEASE(code) return leave(injected ? injected : (code))

void *new_object(enum kind kind, size_t size, int device);
void end_object(struct object *object); /* not to be touched afterwards */
void *find_object(const void *handle, enum kind kind, const char *what); /* alive, or NULL and a violation */
int each_object(int (*visit)(struct object *, void *), void *data);
int list_leaks(void (*line)(const char *text));

int ready_device(int device);
void reset_device(int device);
void destroy_context(struct context *context);

struct block *find_block(const void *address, size_t size); /* alive and in bounds, or NULL */
int device_of(const void *address);                         /* whose address range, or -1 for host memory */
char *memory_of(struct block *block, const void *address);
void unpin(struct block *block);
void drop_blocks(int device);
void drop_host_blocks(void);

struct stream *new_stream(struct context *context, int is_default);
int find_stream(void *handle, struct stream **stream); /* also NULL: the context's default stream */
int check_context(void);                               /* whether anything can be put on the current one */
struct work *new_work(void (*run)(struct work *), int ranges);
void add_range(struct work *work, struct block *block, const void *address, size_t size, int write);
void free_work(struct work *work);
void enqueue(struct stream *stream, struct work *work);
int wait_for(struct stream *stream, uint64_t sequence, int milliseconds);
void stop_stream(struct stream *stream, int force);
void finish_event_work(struct work *work);
void drop_recording(struct recording *recording);
void free_plan(struct plan *plan);
void end_executor(struct object *executor);

#define CLOCKS 1024
extern uint64_t host_clock[CLOCKS];
extern int order_checked, clocks; /* how many clocks were ever used */
uint64_t *new_clock(void);
void order_after(uint64_t *clock, const uint64_t *other);
void check_order(struct stream *stream, struct work *work); /* NULL: the host itself, now */
void check_unused(struct block *block);

#endif
