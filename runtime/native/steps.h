/* Enqueue the steps of a plan whose kernels are already loaded.
 *
 * The Python extension launches with the Python runtime's handles: cubins are loaded and constants
 * uploaded once per process, for all launch paths. A `steps` is created once for a device and never
 * changes, so any thread may launch from it; a launch allocates nothing and takes no lock. Nothing
 * here includes Python.h.
 */
#ifndef PALLASC_STEPS_H
#define PALLASC_STEPS_H

#include <stddef.h>
#include <stdint.h>

enum {
    MOST_BUFFERS = 96,
    MOST_PARAMETERS = 128,
    MOST_VALUE_BYTES = 8192, /* parameters passed by value, of one launch */
    MAP_BYTES = 128
};

/* The driver's functions, in the order in which Python passes their addresses. */
typedef struct driver_functions {
    int (*launch)(const void *config, void *function, void **parameters, void **extra);
    int (*copy)(uint64_t target, uint64_t source, size_t bytes, void *stream);
    int (*fill8)(uint64_t target, unsigned char value, size_t count, void *stream);
    int (*fill32)(uint64_t target, unsigned int value, size_t count, void *stream);
    int (*replace_address)(void *map, void *address);
    int (*current_context)(void **context);
} driver_functions;

/* The location of a buffer: in an array of the call, in the workspace, or at a fixed address. */
enum { AT_ARRAY = 0, AT_WORKSPACE = 1, AT_ADDRESS = 2 };

typedef struct place {
    uint64_t kind;
    uint64_t value; /* number of the array, offset in the workspace, or the address */
} place;

enum { STEP_LAUNCH = 0, STEP_FILL = 1, STEP_COPY = 2 };

/* A parameter: the address `buffer + at`, or the value at `at` of the launch's values. */
typedef struct parameter {
    uint64_t is_value;
    uint64_t buffer;
    uint64_t at;
} parameter;

/* A tensor map: its offset in the values, and the address that it describes. */
typedef struct map_place {
    uint64_t at;
    uint64_t buffer;
    uint64_t offset;
} map_place;

/* One launch, fill or copy, decoded from Python's words. */
typedef struct step {
    uint64_t kind;
    void *function;
    uint32_t grid[3], block[3], smem_bytes;
    uint32_t cluster[3]; /* 0 if there is none */
    uint32_t pdl;
    size_t parameter_count, map_count, value_bytes;
    parameter *parameters;
    map_place *maps;
    unsigned char *values;   /* aligned to 128 */
    uint64_t buffer, offset; /* a fill, or the target of a copy */
    uint64_t source, source_offset;
    uint64_t count, value, width;
} step;

typedef struct steps {
    driver_functions driver;
    void *context; /* the device's primary context */
    size_t place_count, step_count;
    size_t array_count; /* greater than every array number in places */
    int uses_workspace;
    place *places;
    step *list;
} steps;

/* Reads one step from `count` words and the bytes of its values. Returns 0, or -1 if the words are
 * not a valid step, or it is too large for the stack; then nothing needs to be freed. */
int step_read(step *made, const uint64_t *words, size_t count, const unsigned char *values,
              size_t value_bytes, size_t buffers);

/* Enqueues the steps from `first` on in a stream. Returns the driver's code; `failed` is the step
 * that it rejected. `arrays` are the addresses of the call's arrays. */
int steps_launch(const steps *plan, const uint64_t *arrays, uint64_t workspace, void *stream,
                 size_t first, size_t *failed);

void steps_free(steps *plan);

#endif
