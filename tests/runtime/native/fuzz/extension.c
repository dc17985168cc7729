/* What the extension calls: an exchange API that answers what a table says, and a launch function
 * that reads all that it is passed. Compiled into a library of its own, for programs/native_odd_calls.py. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN __attribute__((visibility("default")))

enum { MOST_RECORDS = 64, MOST_LOGGED = 256, MOST_ARRAYS = 32 };

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
SHOWN void *stream_raises, *stream_now, *context_now, *odd_stream;
SHOWN int context_status, answer;

/* What the launch function was asked for. */
struct asked {
    uint64_t stream, workspace, count, buffers[MOST_ARRAYS];
};

SHOWN struct asked logged[MOST_LOGGED];
SHOWN int logged_count;

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

SHOWN int plan_launch(const void *plan, int device, void *const *buffers, size_t count,
                      void *workspace, void *stream, void *event)
{
    if (logged_count == MOST_LOGGED || count > MOST_ARRAYS || !plan || device < 0 || event)
        wrong("a launch has odd arguments");
    struct asked *own = &logged[logged_count++];
    own->stream = (uintptr_t)stream;
    own->workspace = (uintptr_t)workspace;
    own->count = count;
    for (size_t n = 0; n < count; n++)
        own->buffers[n] = (uintptr_t)buffers[n];
    return answer;
}

SHOWN int driver_device(int *device)
{
    *device = (int)(uintptr_t)context_now; /* 0 is the device of all arrays */
    return 0;
}

SHOWN int driver_stream(void *stream, void **context)
{
    *context = (void *)(uintptr_t)(stream == odd_stream ? 1 : 0xC0);
    return 0;
}

SHOWN int driver_context(void **context)
{
    *context = context_now;
    return context_status;
}
