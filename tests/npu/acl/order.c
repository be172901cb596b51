/* Whether work that touches the same memory is ordered: by a stream, by events, or by the host's having waited.
 * Each stream has a vector clock; what is unordered is found when it is queued, however the threads happen to run.
 * The host counts as one: what one thread has waited for, all of them are taken to know. */
#include "library.h"

#include <stdlib.h>
#include <string.h>

uint64_t host_clock[CLOCKS];
int order_checked, clocks;

struct access {
    char *start, *end;
    uint64_t sequence;
    int number, write;
};

uint64_t *new_clock(void) { return calloc(CLOCKS, sizeof(uint64_t)); }

void order_after(uint64_t *clock, const uint64_t *other) {
    for (int i = 0; i < clocks; i++)
        if (clock[i] < other[i]) clock[i] = other[i];
}

static void remember(struct block *block, struct access access) {
    if (block->access_count == block->access_room) {
        block->access_room = 2 * block->access_room + 8;
        block->accesses = realloc(block->accesses, (size_t)block->access_room * sizeof access);
    }
    block->accesses[block->access_count++] = access;
}

static void check_range(const struct range *range, const uint64_t *clock, int number, uint64_t sequence) {
    struct block *block = range->block;
    struct access access = {range->address, range->address + range->size, sequence, number, range->write};
    int kept = 0;
    for (int i = 0; i < block->access_count; i++) {
        struct access *other = &block->accesses[i];
        if (host_clock[other->number] >= other->sequence) continue; /* everything to come is later than that */
        int overlap = other->start < access.end && access.start < other->end;
        int ordered = other->number == number || clock[other->number] >= other->sequence;
        if (overlap && !ordered && (other->write || access.write))
            violation("%zu bytes at %p are %s without waiting for work that %s them on another stream", range->size,
                      (void *)range->address, access.write ? "written" : "read", other->write ? "writes" : "reads");
        int covered = access.start <= other->start && other->end <= access.end;
        if (number >= 0 && covered && ordered && (access.write || (other->number == number && !other->write))) continue;
        block->accesses[kept++] = *other;
    }
    block->access_count = kept;
    if (number >= 0) remember(block, access);
}

void check_order(struct stream *stream, struct work *work) {
    if (stream) {
        order_after(stream->clock, host_clock);
        stream->clock[stream->number] = work->sequence;
    }
    if (!order_checked) return;
    for (int i = 0; i < work->count; i++) {
        if (stream) check_range(&work->ranges[i], stream->clock, stream->number, work->sequence);
        else check_range(&work->ranges[i], host_clock, -1, 0);
    }
}

void check_unused(struct block *block) {
    int used = block->pending;
    for (int i = 0; i < block->access_count && order_checked; i++)
        used |= host_clock[block->accesses[i].number] < block->accesses[i].sequence;
    if (used) violation("block %p is freed without having waited for the work that uses it", (void *)block->address);
}
