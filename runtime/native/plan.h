/* An open plan: the verified tables of a flat plan, and data derived from them. */
#ifndef PALLASC_PLAN_H
#define PALLASC_PLAN_H

#include "driver.h"
#include "flat_plan.h"

#include <stdatomic.h>

enum { MOST_DEVICES = 64, VALUE_ALIGNMENT = 128, BUFFER_ALIGNMENT = 256 };

/* A plan on a device. */
struct device_state {
    unsigned epoch; /* the epoch in which it was created */
    int ordinal;
    cuda_context context;
    cuda_function *functions; /* of each launch */
    cuda_address *constants;  /* of each buffer */
};

/* The location of a buffer. */
struct place {
    enum { NOWHERE, PASSED, WORKSPACE, CONSTANT } kind;
    uint64_t at; /* number of the array; offset in the workspace */
};

/* The parameters of one launch: its values are in a template with the values of all launches. */
struct layout {
    uint64_t values_at; /* in the template */
    uint64_t value_bytes;
    uint32_t maps, map_count;
};

struct pallasc_plan {
    unsigned char *data; /* a copy of the flat plan */
#define TABLE(number, name, entry) const entry *name;
    FLAT_EACH_TABLE(TABLE)
#undef TABLE
    uint32_t count[FLAT_TABLES]; /* entries of each table */

    struct place *places;      /* of each buffer */
    struct layout *layouts;    /* of each launch */
    uint32_t *value_at;        /* of each parameter by value: in the values of its launch */
    uint32_t *map_at;          /* of each map: in the values of its launch */
    const void **found;        /* of each blob: in `content` if it is inside, else allocated */
    unsigned char *template;   /* the values of all launches, their maps not encoded */
    uint64_t template_bytes;
    uint64_t workspace_bytes;
    int major, minor; /* of the architecture; `suffix` is "a", "f" or 0 */
    char suffix;

    _Atomic(struct device_state *) devices[MOST_DEVICES];
};

static inline const char *string_of(const pallasc_plan *plan, uint32_t at)
{
    return plan->strings + at;
}

static inline const char *path_of(const pallasc_plan *plan, uint32_t array)
{
    return string_of(plan, plan->arrays[array].path);
}

/* The buffer of an array, which is as large as the array. */
static inline const struct flat_buffer *buffer_of(const pallasc_plan *plan, uint32_t array)
{
    return &plan->buffers[plan->arrays[array].buffer];
}

static inline const char *name_of(const pallasc_plan *plan)
{
    return string_of(plan, plan->facts->name);
}

static inline const char *kernel_name(const pallasc_plan *plan, const struct flat_launch *launch)
{
    return string_of(plan, plan->kernels[launch->kernel].name);
}

/* prepare.c */
void free_states(pallasc_plan *plan);
int is_prepared(const pallasc_plan *plan, int ordinal);

/* The CUlaunchConfig of a launch; `attributes` gets at most two. */
void set_config(struct cuda_launch_config *config, struct cuda_launch_attribute attributes[2],
                const struct flat_launch *launch, cuda_stream stream);

/* sha256.c: FIPS 180-4. */
void sha256(const void *data, size_t size, uint8_t digest[32]);

/* cubin.c: returns the error in a cubin for sm_`sm`, NULL if there is none. Checks that
 * specs/artifacts/cubin.py has, too, have the same messages. `text` is memory for the message. */
const char *broken_cubin(const void *data, size_t size, int sm, char *text, size_t capacity);

#endif
