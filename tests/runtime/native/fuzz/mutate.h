/* Changed flat plans, and a driver that watches what a launch does. */
#ifndef PALLASC_FUZZ_H
#define PALLASC_FUZZ_H

#include <stddef.h>
#include <stdint.h>

#include "flat_plan.h"

enum { MOST_BYTES = 1 << 20 };

/* Writes a changed plan to `out`, which has room for MOST_BYTES; returns its size. `other` is a plan
 * that parts are taken from. The digest fits again, but for one in sixteen. */
size_t mutate(unsigned char *out, const unsigned char *plan, size_t size,
              const unsigned char *other, size_t other_size, uint64_t seed);

/* Sets size and digest of a plan's header to those that its bytes have. */
void seal(unsigned char *plan, size_t size);

/* ---- driver.c: what a launch may use, and whether it does */

struct watched {
    const unsigned char *plan; /* one that was opened */
    void *const *buffers;
    size_t count;
    void *workspace;
    uint64_t workspace_bytes;
    int device; /* the current one; its primary context alone is in use */
    void *stream;
};

/* From now on launches are of this plan, with these arrays. */
void watch(const struct watched *what);

/* How many launches there were since, and how many maps were encoded or changed in all. */
size_t watched_launches(void);
size_t watched_maps(void);

/* The device that a plan for this architecture runs on. */
int device_for(const char *arch);

/* Forgets devices' memory. */
void forget_memory(void);

/* Ends the process with a message. */
void wrong(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

#endif
