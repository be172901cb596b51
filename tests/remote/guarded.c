/* Tensors' memory with a page behind it (GUARD=before: in front of it) that nobody may touch, for LD_PRELOAD: a kernel that
   reads or writes beyond dies at once, and so does one that uses what was freed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096UL
#define REGION (1UL << 42)        /* of addresses, none of which is used twice */
#define MOST (1UL << 30)          /* bytes of one allocation: who asks for more gets none */

static char *base, *next;
static uint32_t *pages;           /* of the allocation that begins at a page of the region */
static int before;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void (*real_free)(void *);

static void *none(size_t n, int may) {
    void *p = mmap(NULL, n, may, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        abort();
    return p;
}

int posix_memalign(void **out, size_t align, size_t n) {
    size_t whole = n ? (n + PAGE - 1) / PAGE * PAGE : PAGE;
    char *at;
    (void)align;
    if (n > MOST)
        return ENOMEM;
    pthread_mutex_lock(&lock);
    if (!base) {
        pages = none(REGION / PAGE * sizeof(*pages), PROT_READ | PROT_WRITE);
        base = none(REGION, PROT_NONE);
        next = base + PAGE;
        before = getenv("GUARD") && !strcmp(getenv("GUARD"), "before");
    }
    at = next;
    next += whole + PAGE;
    pages[(at - base) / PAGE] = whole / PAGE;
    pthread_mutex_unlock(&lock);
    if (mprotect(at, whole, PROT_READ | PROT_WRITE))
        return ENOMEM;
    memset(at, 0x5a, whole);
    *out = before ? at : at + whole - n;
    return 0;
}

void free(void *p) {
    char *at = p;
    size_t whole;
    if (base && at >= base && at < base + REGION) {
        at = base + (at - base) / PAGE * PAGE;
        whole = pages[(at - base) / PAGE] * PAGE;
        if (!whole)               /* n was 0 or the end of a page: it began before */
            abort();
        if (mmap(at, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != at)
            abort();
        return;
    }
    if (!real_free)
        real_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    real_free(p);
}
