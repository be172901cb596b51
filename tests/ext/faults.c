/* Fails the n-th allocation that a module of mindtorch._ext asks for: libc's, and Python's (all three domains).
 *
 * Preloaded, so that its malloc is everybody's. An allocation counts when its caller is one of our modules: for libc the
 * function that called malloc; for Python's allocators the first frame on the stack outside the interpreter, if no Python
 * code ran in between.
 */
#define _GNU_SOURCE
#include <Python.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <stdlib.h>
#include <string.h>

static void *(*real_malloc)(size_t);
static void *(*real_calloc)(size_t, size_t);
static void *(*real_realloc)(void *, size_t);
static long left = -1;          /* allocations of ours still to grant; negative: none fails */
static int failed, busy;
static const char *python;      /* file the interpreter was loaded from */
static char early[4096];        /* dlsym itself allocates before we know whom to ask */
static size_t early_used;

static int ours(const char *file) { return file && strstr(file, "/_ext/") != NULL; }

/* A place for a debugger's breakpoint; prints the stack when GENIE_FAULTS_TRACE is set. */
__attribute__((noinline)) void faults_here(void) {
    void *stack[40];
    if (getenv("GENIE_FAULTS_TRACE")) backtrace_symbols_fd(stack, backtrace(stack, 40), 2);
    __asm__ volatile("");
}

static int fails_now(void) {
    if (left > 0) { left--; return 0; }
    left = -1;
    failed = 1;
    faults_here();
    return 1;
}

static int direct(void *caller) {
    Dl_info info;
    int yes;
    if (left < 0 || busy) return 0;
    busy = 1;
    yes = dladdr(caller, &info) && ours(info.dli_fname);
    busy = 0;
    return yes && fails_now();
}

static int through_python(void) {
    void *stack[24];
    Dl_info info;
    int i, n, yes = 0, inside = 0;
    if (left < 0 || busy) return 0;
    busy = 1;
    n = backtrace(stack, 24);
    for (i = 1; i < n; i++) {
        if (!dladdr(stack[i], &info)) break;
        if (info.dli_fname && strcmp(info.dli_fname, python) == 0) {
            inside = 1;
            /* Python code that we called allocates for itself. */
            if (info.dli_sname && strcmp(info.dli_sname, "_PyEval_EvalFrameDefault") == 0) break;
            continue;
        }
        if (!inside) continue;  /* this library, or a sanitizer's */
        yes = ours(info.dli_fname);
        break;
    }
    busy = 0;
    return yes && fails_now();
}

static void find(void) {
    real_malloc = dlsym(RTLD_NEXT, "malloc");
    real_calloc = dlsym(RTLD_NEXT, "calloc");
    real_realloc = dlsym(RTLD_NEXT, "realloc");
}

void *malloc(size_t n) {
    if (!real_malloc) find();
    return direct(__builtin_return_address(0)) ? NULL : real_malloc(n);
}

void *calloc(size_t n, size_t size) {
    if (!real_calloc) {
        static int finding;
        if (finding) {
            void *p = early + early_used;
            early_used += (n * size + 15) & ~(size_t)15;
            return early_used <= sizeof early ? p : NULL;
        }
        finding = 1;
        find();
    }
    return direct(__builtin_return_address(0)) ? NULL : real_calloc(n, size);
}

void *realloc(void *p, size_t n) {
    if (!real_realloc) find();
    return direct(__builtin_return_address(0)) ? NULL : real_realloc(p, n);
}

static PyMemAllocatorEx original[3];

static void *py_malloc(void *ctx, size_t n) {
    PyMemAllocatorEx *a = ctx;
    return through_python() ? NULL : a->malloc(a->ctx, n);
}
static void *py_calloc(void *ctx, size_t k, size_t n) {
    PyMemAllocatorEx *a = ctx;
    return through_python() ? NULL : a->calloc(a->ctx, k, n);
}
static void *py_realloc(void *ctx, void *p, size_t n) {
    PyMemAllocatorEx *a = ctx;
    return through_python() ? NULL : a->realloc(a->ctx, p, n);
}
static void py_free(void *ctx, void *p) {
    PyMemAllocatorEx *a = ctx;
    a->free(a->ctx, p);
}

void faults_install(void) {
    static const PyMemAllocatorDomain domains[3] = {PYMEM_DOMAIN_RAW, PYMEM_DOMAIN_MEM, PYMEM_DOMAIN_OBJ};
    void *stack[2];
    Dl_info info;
    int i;
    backtrace(stack, 2);        /* loads what it needs now */
    dladdr(dlsym(RTLD_DEFAULT, "PyList_New"), &info);
    python = info.dli_fname;
    for (i = 0; i < 3; i++) {
        PyMemAllocatorEx ours = {&original[i], py_malloc, py_calloc, py_realloc, py_free};
        PyMem_GetAllocator(domains[i], &original[i]);
        PyMem_SetAllocator(domains[i], &ours);
    }
}

void faults_arm(long n) { failed = 0; left = n; }

int faults_disarm(void) { left = -1; return failed; }
