/* Events: a moment on the clock of a device, or on the real one. */
#include "state.h"

#include <stdlib.h>
#include <time.h>

enum { DISABLE_TIMING = 2, KNOWN_FLAGS = 7 };

struct event {
    CUhandle handle;
    struct context *context;
    unsigned flags;
    int recorded;
    uint64_t moment_ns;
    uint64_t number;   /* of the last record */
    struct past past;  /* what it stands for */
    struct graph *captured; /* the capture that it was recorded in */
    CUhandle origin;        /* and the stream that began it */
};

static uint64_t now_ns(const struct context *context)
{
    struct timespec now;
    if (options.kernel_ns)
        return devices[context->device].clock_ns;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

API cuEventCreate(CUhandle *handle, unsigned flags)
{
    int code = enter(ID_cuEventCreate);
    if (!code && (!handle || flags > KNOWN_FLAGS))
        code = INVALID_VALUE;
    if (!code) {
        struct event *event = calloc(1, sizeof *event);
        event->context = current_context();
        event->flags = flags;
        *handle = event->handle = add_handle(KIND_EVENT, event);
    }
    return leave(ID_cuEventCreate, code);
}

API cuEventDestroy_v2(CUhandle handle)
{
    int code = enter(ID_cuEventDestroy_v2);
    if (!code)
        code = find_handle(KIND_EVENT, handle) ? CUDA_SUCCESS : INVALID_HANDLE;
    if (!code)
        drop_handle(handle);
    return leave(ID_cuEventDestroy_v2, code);
}

static int record(CUhandle handle, CUhandle stream_handle)
{
    struct stream *stream;
    struct context *context;
    struct event *event = find_handle(KIND_EVENT, handle);
    if (!event)
        return INVALID_HANDLE;
    int code = check_stream(stream_handle, &stream, &context);
    if (!code && context != event->context)
        code = INVALID_HANDLE;
    if (!code && !stream && legacy_conflict(context))
        code = STREAM_CAPTURE_IMPLICIT;
    if (code)
        return code;
    event->captured = stream && stream->capture ? stream->graph : NULL;
    event->origin = event->captured ? (stream->joined ? stream->joined : stream->handle) : 0;
    event->recorded = 1;
    if (options.asynchronous && !event->captured) {
        struct past *past = past_of(stream, context);
        event->number = note_event(past);
        event->past.count = 0;
        come_behind(&event->past, past);
    }
    event->moment_ns = now_ns(context);
    return CUDA_SUCCESS;
}

API cuEventRecord(CUhandle handle, CUhandle stream)
{
    int code = enter(ID_cuEventRecord);
    return leave_with(ID_cuEventRecord, code ? code : record(handle, stream), stream, &handle, 1);
}

static int wait_for(CUhandle handle, int asks)
{
    struct event *event = find_handle(KIND_EVENT, handle);
    if (!event)
        return INVALID_HANDLE;
    if (event->captured)
        return CAPTURED_EVENT; /* whatever the thread's mode: reference, cuThreadExchange… */
    if (thread_captures()) {
        invalidate_captures();
        return STREAM_CAPTURE_UNSUPPORTED;
    }
    if (asks && event->recorded && !is_over(event->number))
        return NOT_READY;
    end_past(&event->past);
    return surface(event->context);
}

API cuEventQuery(CUhandle handle)
{
    int code = enter(ID_cuEventQuery);
    return leave_with(ID_cuEventQuery, code ? code : wait_for(handle, 1), 0, &handle, 1);
}

API cuEventSynchronize(CUhandle handle)
{
    int code = enter(ID_cuEventSynchronize);
    return leave_with(ID_cuEventSynchronize, code ? code : wait_for(handle, 0), 0, &handle, 1);
}

static int elapsed(float *milliseconds, CUhandle first, CUhandle second)
{
    struct event *start = find_handle(KIND_EVENT, first), *end = find_handle(KIND_EVENT, second);
    if (!milliseconds)
        return INVALID_VALUE;
    if (!start || !end || start->context != end->context || !start->recorded || !end->recorded ||
        (start->flags | end->flags) & DISABLE_TIMING)
        return INVALID_HANDLE;
    if (start->captured || end->captured)
        return CAPTURED_EVENT;
    *milliseconds = (float)((double)(int64_t)(end->moment_ns - start->moment_ns) / 1e6);
    return surface(start->context);
}

API cuEventElapsedTime(float *milliseconds, CUhandle start, CUhandle end)
{
    int code = enter(ID_cuEventElapsedTime);
    return leave(ID_cuEventElapsedTime, code ? code : elapsed(milliseconds, start, end));
}

API cuEventElapsedTime_v2(float *milliseconds, CUhandle start, CUhandle end)
{
    int code = enter(ID_cuEventElapsedTime_v2);
    return leave(ID_cuEventElapsedTime_v2, code ? code : elapsed(milliseconds, start, end));
}

static int end_capture(struct stream *stream, int code)
{
    size_t at = 0;
    struct stream *other;
    while ((other = next_handle(KIND_STREAM, &at)))
        if (other->graph && other->graph == stream->graph)
            other->capture = CAPTURE_INVALIDATED;
    return code;
}

/* Waiting for an event of a capture makes the stream part of that capture. A capture can wait for
 * nothing outside of itself: "Only implicit in-stream ordering dependencies are allowed to cross
 * the boundary", reference, CUDA_ERROR_STREAM_CAPTURE_ISOLATION; nor can two become one
 * (…_MERGE). An event that was never recorded stands for no work. */
static int stream_wait(CUhandle stream_handle, CUhandle handle, unsigned flags)
{
    struct stream *stream;
    struct context *context;
    struct event *event = find_handle(KIND_EVENT, handle);
    int code = check_stream(stream_handle, &stream, &context);
    if (!code && (!event || flags > 1))
        code = event ? INVALID_VALUE : INVALID_HANDLE;
    if (!code && !stream && legacy_conflict(context))
        code = STREAM_CAPTURE_IMPLICIT;
    if (code)
        return code;
    if (!event->captured)
        return stream && stream->capture && event->recorded
                   ? end_capture(stream, STREAM_CAPTURE_ISOLATION)
                   : (come_behind(past_of(stream, context), &event->past), CUDA_SUCCESS);
    if (!stream)
        return STREAM_CAPTURE_IMPLICIT;
    struct stream *origin = find_handle(KIND_STREAM, event->origin);
    if (!origin || origin->graph != event->captured)
        return CAPTURED_EVENT;
    if (stream->capture && stream->graph != origin->graph)
        return end_capture(stream, STREAM_CAPTURE_MERGE);
    if (!stream->capture) {
        stream->capture = origin->capture;
        stream->capture_mode = origin->capture_mode;
        stream->capture_id = origin->capture_id;
        stream->capture_thread = origin->capture_thread;
        stream->graph = origin->graph;
        stream->joined = origin->handle;
    }
    return CUDA_SUCCESS;
}

API cuStreamWaitEvent(CUhandle stream, CUhandle handle, unsigned flags)
{
    int code = enter(ID_cuStreamWaitEvent);
    return leave_with(ID_cuStreamWaitEvent, code ? code : stream_wait(stream, handle, flags), stream,
                      &handle, 1);
}
