/* Expectations: what every launch with a certain first pointer must have been given. */
#include "state.h"

#include <string.h>

enum { SLOTS = 4096 };

struct expectation {
    uint64_t first, others, seen;
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
    memset(expected, 0, sizeof expected);
    known = 0;
    unexpected = 0;
}

/* Is every pointer, and every tensor map in a larger parameter, the one that is expected? */
static int fits(const struct launch *launch, const struct expectation *expectation)
{
    const unsigned char *at = launch->bytes + launch->sizes[0];
    if (launch->device != expectation->device)
        return 0;
    for (uint32_t i = 1; i < launch->parameter_count; at += launch->sizes[i++]) {
        uint64_t address, bytes;
        if (launch->sizes[i] == 8 && memcmp(at, &expectation->others, 8))
            return 0;
        for (uint32_t offset = 0; offset + 128 <= launch->sizes[i]; offset += 128)
            if (!map_extent(at + offset, &address, &bytes) || address != expectation->others)
                return 0;
    }
    return 1;
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

/* From now on every launch is compared: with this first pointer it goes to the device, and all its
 * other pointers and tensor maps are `others`. */
int standin_expect(uint64_t first, uint64_t others, int device)
{
    lock_all();
    struct expectation *expectation = slot_of(first);
    int code = !first || known >= SLOTS / 2 ? INVALID_VALUE : CUDA_SUCCESS;
    if (!code) {
        known += !expectation->first;
        *expectation = (struct expectation){first, others, 0, device};
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
