/* Device memory and pinned host memory. */
#include "library.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

struct block *host_blocks;

#define FREED 1024
static void *freed[FREED]; /* addresses given back, to tell a second free from a wild pointer */
static size_t freed_at;

static int was_freed(const void *address) {
    for (size_t i = 0; i < FREED; i++)
        if (freed[i] == address) return 1;
    return 0;
}

int device_of(const void *address) {
    for (int i = 0; i < MAX_DEVICES; i++) {
        const char *view = devices[i].view;
        if (devices[i].ready && (char *)address >= view && (char *)address < view + devices[i].span) return i;
    }
    return -1;
}

/* The first block that ends after `address`. */
static size_t place(const struct device *device, const char *address) {
    size_t low = 0, high = device->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (device->blocks[middle]->address + device->blocks[middle]->size <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

struct block *find_block(const void *address, size_t size) {
    const char *start = address;
    int index = device_of(address);
    if (index >= 0) {
        struct device *device = &devices[index];
        size_t at = place(device, start);
        if (at == device->count) return NULL;
        struct block *block = device->blocks[at];
        if (block->freed || start < block->address) return NULL;
        return size <= block->size - (size_t)(start - block->address) ? block : NULL;
    }
    for (struct block *block = host_blocks; block; block = block->next)
        if (!block->freed && start >= block->address && start < block->address + block->size) return block;
    return NULL;
}

char *memory_of(struct block *block, const void *address) {
    return block->memory + ((const char *)address - block->address);
}

static void remove_block(struct block *block) {
    free(block->accesses);
    if (block->device < 0) {
        struct block **at = &host_blocks;
        while (*at != block) at = &(*at)->next;
        *at = block->next;
        memset(block->memory, 0xDD, block->size < 4096 ? block->size : 4096);
        free(block->memory);
    } else {
        struct device *device = &devices[block->device];
        size_t at = 0;
        while (device->blocks[at] != block) at++;
        memmove(device->blocks + at, device->blocks + at + 1, (--device->count - at) * sizeof *device->blocks);
    }
    free(block);
}

void unpin(struct block *block) {
    if (--block->pending == 0 && block->freed) remove_block(block);
}

static void free_block(struct block *block) {
    freed[freed_at++ % FREED] = block->address;
    if (block->device >= 0) devices[block->device].used -= block->size;
    block->freed = 1;
    check_unused(block);
    if (!block->pending) remove_block(block);
}

void drop_blocks(int index) {
    struct device *device = &devices[index];
    for (size_t i = device->count; i-- > 0;) {
        struct block *block = device->blocks[i];
        if (!block->freed) device->used -= block->size;
        block->freed = 1;
        if (!block->pending) remove_block(block); /* another device's stream may be copying it */
    }
}

void drop_host_blocks(void) {
    while (host_blocks) remove_block(host_blocks);
}

/* The next fitting place after the last one: a freed range is not soon used again. NULL: none. */
static char *find_place(struct device *device, size_t size, size_t alignment) {
    for (int round = 0; round < 2; round++) {
        size_t offset = round ? 0 : device->cursor;
        while (1) {
            offset = (offset + alignment - 1) / alignment * alignment;
            size_t at = place(device, device->view + offset);
            char *end = at < device->count ? device->blocks[at]->address : device->view + device->span;
            if (device->view + offset + size <= end) return device->view + offset;
            if (at == device->count) break;
            offset = (size_t)(device->blocks[at]->address - device->view) + device->blocks[at]->size;
        }
    }
    return NULL;
}

static int allocate(void **out, size_t size, int policy, size_t padding) {
    if (!out || !size) return fail(PARAM, "%s", out ? "size 0" : "the pointer is NULL");
    if (policy < 0 || policy > 7) return fail(PARAM, "policy %d", policy);
    struct device *device = &devices[current->base.device];
    /* Ordinary pages promise 32 bytes and no more; huge ones, which is what large blocks get, are aligned as pages. */
    size_t alignment = size > (size_t)1 << 20 && policy != 2 && policy != 5 ? (size_t)1 << 21 : 32;
    size_t taken = ((size + 31) & ~(size_t)31) + padding;
    if (taken < size || taken > device->limit - device->used)
        return fail(OUT_OF_MEMORY, "%zu bytes of device %d, %zu of %zu are free", size, current->base.device,
                    device->limit - device->used, device->limit);
    if (device->count == device->room) {
        device->room = 2 * device->room + 64;
        device->blocks = realloc(device->blocks, device->room * sizeof *device->blocks);
    }
    char *address = find_place(device, taken, alignment);
    if (!address) return fail(OUT_OF_MEMORY, "no addresses for %zu bytes", size);
    struct block *block = calloc(1, sizeof *block);
    block->address = address;
    block->memory = device->memory + (address - device->view);
    block->size = taken;
    block->device = current->base.device;
    size_t at = place(device, address);
    memmove(device->blocks + at + 1, device->blocks + at, (device->count++ - at) * sizeof *device->blocks);
    device->blocks[at] = block;
    device->used += taken;
    device->cursor = (size_t)(address - device->view) + taken;
    memset(block->memory, 0xFF, taken < (size_t)1 << 22 ? taken : (size_t)1 << 22); /* read too early: NaN */
    *out = address;
    return OK;
}

/* Within what asks for device memory, after it is taken; within what gives it back, before that. */
static void take_time(void) {
    pthread_mutex_lock(&lock);
    int delay = memory_delay;
    pthread_mutex_unlock(&lock);
    if (delay) sleep_ms(delay);
}

static int slowly(int code) {
    if (code == OK) take_time();
    return code;
}

API int aclrtMalloc(void **pointer, size_t size, int policy) {
    ENTER(IN_CONTEXT);
    return slowly(leave(allocate(pointer, size, policy, 32)));
}

API int aclrtMallocAlign32(void **pointer, size_t size, int policy) {
    ENTER(IN_CONTEXT);
    return slowly(leave(allocate(pointer, size, policy, 0)));
}

/* Every call that gets device memory or gives it back takes this much longer from now on. */
API void genie_test_delay_memory(int milliseconds) {
    pthread_mutex_lock(&lock);
    memory_delay = milliseconds;
    pthread_mutex_unlock(&lock);
}

static int free_checked(void *pointer, int on_device) {
    struct block *block = find_block(pointer, 1);
    if (block && block->address == pointer && (block->device >= 0) == on_device) {
        free_block(block);
        return OK;
    }
    if (was_freed(pointer)) return misuse(PARAM, "%p is freed twice", pointer);
    return misuse(PARAM, "%p is no %s block", pointer, on_device ? "device" : "host");
}

API int aclrtFree(void *pointer) {
    take_time();
    ENTER_RELEASE(IN_CONTEXT);
    int code = free_checked(pointer, 1);
    LEAVE_RELEASE(code);
}

API int aclrtMallocHost(void **pointer, size_t size) {
    ENTER(IN_CONTEXT);
    if (!pointer || !size) return leave(fail(PARAM, "%s", pointer ? "size 0" : "the pointer is NULL"));
    struct block *block = calloc(1, sizeof *block);
    block->memory = block->address = aligned_alloc(64, (size + 63) & ~(size_t)63);
    if (!block->memory) {
        free(block);
        return leave(fail(207001, "%zu bytes of host memory", size));
    }
    block->size = size;
    block->device = -1;
    block->next = host_blocks;
    host_blocks = block;
    *pointer = block->address;
    return leave(OK);
}

API int aclrtFreeHost(void *pointer) {
    ENTER_RELEASE(IN_CONTEXT);
    int code = free_checked(pointer, 0);
    LEAVE_RELEASE(code);
}

API int aclrtGetMemInfo(int attribute, size_t *available, size_t *total) {
    ENTER(IN_CONTEXT);
    if (!available || !total) return leave(fail(PARAM, "a pointer is NULL"));
    if (attribute < 0 || attribute > 11) return leave(fail(PARAM, "attribute %d", attribute));
    struct device *device = &devices[current->base.device];
    int hbm = attribute == 1;
    *total = hbm ? device->limit : 0;
    *available = hbm ? device->limit - device->used : 0;
    return leave(OK);
}

static int touch(void *pointer, void *host, size_t size, int poke) {
    pthread_mutex_lock(&lock);
    struct block *block = device_of(pointer) >= 0 ? find_block(pointer, size) : NULL;
    if (block && poke) memcpy(memory_of(block, pointer), host, size);
    if (block && !poke) memcpy(host, memory_of(block, pointer), size);
    return leave(block ? OK : -1);
}

/* Device memory as the test wants to see or have it, whatever is queued; -1: not inside a live block. */
API int genie_test_peek(void *pointer, void *host, size_t size) { return touch(pointer, host, size, 0); }
API int genie_test_poke(void *pointer, void *host, size_t size) { return touch(pointer, host, size, 1); }
