/* Captures: what a stream gets is kept for a graph in place of being run. */
#include "state.h"

#include <stdlib.h>

enum { MODE_GLOBAL, MODE_THREAD_LOCAL, MODE_RELAXED };

static uint64_t captures;
static _Thread_local int thread_mode = MODE_GLOBAL;

/* A call that is unsafe during a capture must not happen while this thread makes one, nor, unless
 * this thread says otherwise, while any thread makes one in the global mode. */
int thread_captures(void)
{
    size_t at = 0;
    struct stream *stream;
    if (thread_mode == MODE_RELAXED)
        return 0;
    while ((stream = next_handle(KIND_STREAM, &at))) {
        int own = stream->capture_thread == thread_number();
        if (stream->capture != CAPTURE_ACTIVE || stream->joined)
            continue;
        if (own ? stream->capture_mode != MODE_RELAXED
                : stream->capture_mode == MODE_GLOBAL && thread_mode == MODE_GLOBAL)
            return 1;
    }
    return 0;
}

/* What was unsafe ends the captures that forbade it: those of this thread, and of any thread in the
 * global mode. */
void invalidate_captures(void)
{
    size_t at = 0;
    struct stream *stream;
    while ((stream = next_handle(KIND_STREAM, &at)))
        if (stream->capture == CAPTURE_ACTIVE &&
            (stream->capture_thread == thread_number() || stream->capture_mode == MODE_GLOBAL))
            stream->capture = CAPTURE_INVALIDATED;
}

API cuThreadExchangeStreamCaptureMode(int *mode)
{
    int code = enter(ID_cuThreadExchangeStreamCaptureMode);
    if (!code && (!mode || *mode < MODE_GLOBAL || *mode > MODE_RELAXED))
        code = INVALID_VALUE;
    if (!code) {
        int old = thread_mode;
        thread_mode = *mode;
        *mode = old;
    }
    return leave(ID_cuThreadExchangeStreamCaptureMode, code);
}

static int begin_capture(CUhandle handle, int mode)
{
    struct stream *stream;
    struct context *context;
    int code = check_stream(handle, &stream, &context);
    if (code)
        return code;
    if (!stream)
        return STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture || mode < MODE_GLOBAL || mode > MODE_RELAXED)
        return stream->capture ? 401 : INVALID_VALUE; /* CUDA_ERROR_ILLEGAL_STATE */
    stream->graph = calloc(1, sizeof *stream->graph);
    stream->graph->context = context;
    stream->graph->handle = add_handle(KIND_GRAPH, stream->graph);
    stream->capture = CAPTURE_ACTIVE;
    stream->capture_mode = mode;
    stream->capture_id = ++captures;
    stream->capture_thread = thread_number();
    return CUDA_SUCCESS;
}

API cuStreamBeginCapture_v2(CUhandle handle, int mode)
{
    int code = enter(ID_cuStreamBeginCapture_v2);
    return leave_with(ID_cuStreamBeginCapture_v2, code ? code : begin_capture(handle, mode), handle,
                      NULL, 0);
}

static int end_capture(CUhandle handle, CUhandle *graph)
{
    struct stream *stream, *other;
    struct context *context;
    size_t at = 0;
    int code = graph ? resolve_stream(handle, &stream, &context) : INVALID_VALUE;
    if (code)
        return code;
    if (!stream || !stream->capture)
        return 401; /* CUDA_ERROR_ILLEGAL_STATE */
    if (stream->joined)
        return STREAM_CAPTURE_UNMATCHED;
    if (stream->capture_mode != MODE_RELAXED && stream->capture_thread != thread_number())
        return STREAM_CAPTURE_WRONG_THREAD;
    int valid = stream->capture == CAPTURE_ACTIVE;
    *graph = valid ? stream->graph->handle : 0;
    while ((other = next_handle(KIND_STREAM, &at)))
        if (other == stream || other->joined == handle) {
            other->capture = CAPTURE_NONE;
            other->joined = 0;
            other->graph = NULL;
        }
    return valid ? CUDA_SUCCESS : STREAM_CAPTURE_INVALIDATED;
}

API cuStreamEndCapture(CUhandle handle, CUhandle *graph)
{
    int code = enter(ID_cuStreamEndCapture);
    return leave_with(ID_cuStreamEndCapture, code ? code : end_capture(handle, graph), handle, NULL, 0);
}

API cuStreamIsCapturing(CUhandle handle, int *status)
{
    struct stream *stream;
    struct context *context;
    int code = enter(ID_cuStreamIsCapturing);
    if (!code)
        code = status ? resolve_stream(handle, &stream, &context) : INVALID_VALUE;
    /* "The blocking stream capture is not invalidated": reference, cuStreamIsCapturing. */
    if (!code && !stream && legacy_blocked(context))
        code = STREAM_CAPTURE_IMPLICIT;
    if (!code)
        *status = stream ? stream->capture : CAPTURE_NONE;
    return leave_with(ID_cuStreamIsCapturing, code, handle, NULL, 0);
}

static int capture_info(CUhandle handle, int *status, uint64_t *id, CUhandle *graph, size_t *count)
{
    struct stream *stream;
    struct context *context;
    int code = status ? resolve_stream(handle, &stream, &context) : INVALID_VALUE;
    if (!code && !stream && legacy_blocked(context))
        code = STREAM_CAPTURE_IMPLICIT;
    if (code)
        return code;
    *status = stream ? stream->capture : CAPTURE_NONE;
    if (id)
        *id = *status == CAPTURE_ACTIVE ? stream->capture_id : 0;
    if (graph)
        *graph = *status == CAPTURE_ACTIVE ? stream->graph->handle : 0;
    if (count)
        *count = 0;
    return CUDA_SUCCESS;
}

API cuStreamGetCaptureInfo_v2(CUhandle handle, int *status, uint64_t *id, CUhandle *graph,
                              const CUhandle **dependencies, size_t *count)
{
    int code = enter(ID_cuStreamGetCaptureInfo_v2);
    if (dependencies)
        *dependencies = NULL;
    return leave(ID_cuStreamGetCaptureInfo_v2,
                 code ? code : capture_info(handle, status, id, graph, count));
}

API cuStreamGetCaptureInfo_v3(CUhandle handle, int *status, uint64_t *id, CUhandle *graph,
                              const CUhandle **dependencies, const void **edges, size_t *count)
{
    int code = enter(ID_cuStreamGetCaptureInfo_v3);
    if (dependencies)
        *dependencies = NULL;
    if (edges)
        *edges = NULL;
    return leave(ID_cuStreamGetCaptureInfo_v3,
                 code ? code : capture_info(handle, status, id, graph, count));
}
