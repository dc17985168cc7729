/* Expectations: what every launch with a certain first pointer must have been given, to the byte. */
#include "state.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 4096, SHAPE = 11 };

struct expectation {
    uint64_t first, seen;
    unsigned char *bytes;
    uint32_t byte_count, shape[SHAPE];
    int device;
};

static struct expectation expected[SLOTS];
static int known;
static uint64_t unexpected;

/* The slot of a first pointer, or the empty one where it would be. */
static struct expectation *slot_of(uint64_t first)
{
    size_t at = first >> 8;
    while (expected[at % SLOTS].first && expected[at % SLOTS].first != first)
        at++;
    return &expected[at % SLOTS];
}

void forget_expectations(void)
{
    for (int i = 0; i < SLOTS; i++)
        free(expected[i].bytes);
    memset(expected, 0, sizeof expected);
    known = 0;
    unexpected = 0;
}

/* Grid, block, cluster, shared memory, and how many attributes there are. */
static void shape_of(const struct launch *launch, uint32_t shape[SHAPE])
{
    memcpy(shape, launch->grid, sizeof launch->grid);
    memcpy(shape + 3, launch->block, sizeof launch->block);
    memcpy(shape + 6, launch->cluster, sizeof launch->cluster);
    shape[9] = launch->smem_bytes;
    shape[10] = launch->attribute_count;
}

static int fits(const struct launch *launch, const struct expectation *expectation)
{
    uint32_t shape[SHAPE];
    shape_of(launch, shape);
    return launch->device == expectation->device && launch->byte_count == expectation->byte_count &&
           !memcmp(shape, expectation->shape, sizeof shape) &&
           !memcmp(launch->bytes, expectation->bytes, launch->byte_count);
}

void compare_launch(const struct launch *launch)
{
    uint64_t first;
    if (!known)
        return;
    if (!launch->parameter_count || launch->sizes[0] != 8) {
        unexpected++;
        return;
    }
    memcpy(&first, launch->bytes, 8);
    struct expectation *expectation = slot_of(first);
    if (expectation->first && fits(launch, expectation))
        expectation->seen++;
    else
        unexpected++;
}

/* From now on every launch is compared: one whose parameters begin with the same pointer as these
 * bytes must have all of them, and this shape, and go to this device. */
int standin_expect(const unsigned char *bytes, uint32_t count, const uint32_t shape[SHAPE], int device)
{
    uint64_t first = 0;
    if (count >= 8)
        memcpy(&first, bytes, 8);
    lock_all();
    struct expectation *expectation = slot_of(first);
    int code = !first || known >= SLOTS / 2 ? INVALID_VALUE : CUDA_SUCCESS;
    if (!code) {
        known += !expectation->first;
        free(expectation->bytes);
        *expectation = (struct expectation){.first = first, .bytes = malloc(count),
                                            .byte_count = count, .device = device};
        if (!expectation->bytes)
            abort();
        memcpy(expectation->bytes, bytes, count);
        memcpy(expectation->shape, shape, sizeof expectation->shape);
    }
    unlock_all();
    return code;
}

/* Count the launches that were as expected, with this first pointer. */
uint64_t standin_seen(uint64_t first)
{
    lock_all();
    uint64_t seen = slot_of(first)->seen;
    unlock_all();
    return seen;
}

/* Count those that were not. */
uint64_t standin_unexpected(void)
{
    lock_all();
    uint64_t count = unexpected;
    unlock_all();
    return count;
}
