/* What the extension calls: an exchange API that answers what a table says, and a driver that reads
 * all that it is passed. Compiled into a library of its own, for programs/native_odd_calls.py. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_abi.h"

#define SHOWN __attribute__((visibility("default")))

enum { MOST_RECORDS = 64, MOST_LOGGED = 256, MOST_PARAMETERS = 16, MAP_BYTES = 128 };

extern void PyErr_SetNone(void *type);

/* An array as DLPack has it, and what looking at it comes to. */
struct record {
    void *object;
    int status;
    void *raises; /* a type of exception, NULL for none */
    unsigned char tensor[48];
};

SHOWN struct record records[MOST_RECORDS];
SHOWN int stream_status;
SHOWN void *stream_raises, *stream_now, *context_now;
SHOWN int context_status, answer, answer_at; /* the driver's code, at which call */

/* A function of the driver: how many bytes each of its parameters has. */
struct function {
    size_t count, sizes[MOST_PARAMETERS];
};

/* What the driver was asked: which function, and numbers. */
struct asked {
    uint64_t what, stream, numbers[MOST_PARAMETERS];
};

SHOWN struct asked logged[MOST_LOGGED];
SHOWN int logged_count;
static volatile unsigned char seen;

static int wrong(const char *what)
{
    fprintf(stderr, "WRONG: %s\n", what);
    abort();
}

SHOWN int exchange_view(void *object, void *out)
{
    for (int n = 0; n < MOST_RECORDS; n++)
        if (records[n].object == object) {
            memcpy(out, records[n].tensor, sizeof records[n].tensor);
            if (records[n].raises)
                PyErr_SetNone(records[n].raises);
            return records[n].status;
        }
    return wrong("an object is looked at that is no array");
}

SHOWN int exchange_stream(int32_t kind, int32_t device, void **stream)
{
    if (kind != 2 || device < 0)
        wrong("the stream of no GPU is asked for");
    if (!stream_status)
        *stream = stream_now;
    if (stream_raises)
        PyErr_SetNone(stream_raises);
    return stream_status;
}

static struct asked *note(uint64_t what, const void *stream)
{
    if (logged_count == MOST_LOGGED)
        wrong("there are too many steps");
    struct asked *own = &logged[logged_count++];
    memset(own, 0, sizeof *own);
    own->what = what;
    own->stream = (uintptr_t)stream;
    return own;
}

static int code(void)
{
    return answer_at && !--answer_at ? answer : 0;
}

SHOWN int driver_launch(const struct cuda_launch_config *config, const struct function *function,
                        void **parameters, void **extra)
{
    struct asked *own = note((uintptr_t)function, config->stream);
    for (size_t n = 0; n < config->attribute_count * sizeof *config->attributes; n++)
        seen ^= ((const unsigned char *)config->attributes)[n];
    for (size_t n = 0; n < function->count; n++) {
        for (size_t at = 0; at < function->sizes[n]; at++)
            seen ^= ((const unsigned char *)parameters[n])[at];
        memcpy(&own->numbers[n], parameters[n], function->sizes[n] < 8 ? function->sizes[n] : 8);
    }
    return extra ? wrong("a launch has an option") : code();
}

SHOWN int driver_copy(uint64_t target, uint64_t source, size_t bytes, void *stream)
{
    struct asked *own = note(1, stream);
    own->numbers[0] = target;
    own->numbers[1] = source;
    own->numbers[2] = bytes;
    return code();
}

SHOWN int driver_fill8(uint64_t target, unsigned char value, size_t count, void *stream)
{
    struct asked *own = note(2, stream);
    own->numbers[0] = target;
    own->numbers[1] = value;
    own->numbers[2] = count;
    return code();
}

SHOWN int driver_fill32(uint64_t target, unsigned value, size_t count, void *stream)
{
    driver_fill8(target, 0, count, stream);
    logged[logged_count - 1].numbers[1] = value;
    return 0;
}

SHOWN int driver_replace(unsigned char *map, void *address)
{
    if ((uintptr_t)map % 64)
        wrong("a tensor map is not aligned");
    for (size_t n = 0; n < MAP_BYTES; n++)
        seen ^= map[n];
    memcpy(map, &address, sizeof address);
    return code();
}

SHOWN int driver_context(void **context)
{
    *context = context_now;
    return context_status;
}
