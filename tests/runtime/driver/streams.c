/* Streams: work runs at once, in the thread that submits it; only captures are deferred. */
#include "state.h"

#include <stdlib.h>

enum { NON_BLOCKING = 1, GREATEST_PRIORITY = -5 };

static struct stream *make_stream(struct context *context, unsigned flags, int priority)
{
    struct stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        abort();
    static uint64_t streams;
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority;
    stream->id = 1000 + ++streams; /* behind those of the default streams */
    stream->handle = options.reuse_streams ? add_handle_again(KIND_STREAM, stream)
                                           : add_handle(KIND_STREAM, stream);
    return stream;
}

/* The default stream that this thread has for itself. */
static struct stream *own_stream(struct context *context)
{
    static _Thread_local CUhandle handles[MAX_DEVICES];
    struct stream *stream = find_handle(KIND_STREAM, handles[context->device]);
    if (!stream || stream->context != context)
        stream = make_stream(context, 0, 0);
    handles[context->device] = stream->handle;
    return stream;
}

/* Find stream and context; `*stream` is NULL for the legacy stream of the current context. */
int resolve_stream(CUhandle handle, struct stream **stream, struct context **context)
{
    *stream = NULL;
    if (handle <= STREAM_PER_THREAD) {
        *context = current_context();
        if (!*context)
            return missing_context();
        if (handle == STREAM_PER_THREAD)
            *stream = own_stream(*context);
        return CUDA_SUCCESS;
    }
    *stream = find_handle(KIND_STREAM, handle);
    if (!*stream)
        return INVALID_HANDLE;
    *context = (*stream)->context;
    return CUDA_SUCCESS;
}

/* The same, and the context must not have failed. */
int check_stream(CUhandle handle, struct stream **stream, struct context **context)
{
    int code = resolve_stream(handle, stream, context);
    return code ? code : (*context)->sticky;
}

static struct stream *capturing_beside_legacy(struct context *context)
{
    size_t at = 0;
    struct stream *other;
    while ((other = next_handle(KIND_STREAM, &at)))
        if (other->context == context && other->capture == CAPTURE_ACTIVE && !(other->flags & NON_BLOCKING))
            return other;
    return NULL;
}

/* The legacy stream waits for all blocking streams, so it cannot be used while one captures. */
int legacy_blocked(struct context *context)
{
    return capturing_beside_legacy(context) != NULL;
}

/* Something was put into it all the same, which ends that capture. */
int legacy_conflict(struct context *context)
{
    struct stream *other = capturing_beside_legacy(context);
    if (other)
        other->capture = CAPTURE_INVALIDATED;
    return other != NULL;
}

static void append(struct graph *graph, struct operation *operation)
{
    if (graph->last)
        graph->last->next = operation;
    else
        graph->first = operation;
    graph->last = operation;
    graph->nodes++;
}

/* Run the operation, or keep it for the graph that the stream captures. Takes it over. */
int submit(struct stream *stream, struct context *context, struct operation *operation)
{
    int code = CUDA_SUCCESS;
    if (stream && stream->capture == CAPTURE_ACTIVE) {
        append(stream->graph, operation);
        return CUDA_SUCCESS;
    }
    if (stream && stream->capture == CAPTURE_INVALIDATED)
        code = STREAM_CAPTURE_INVALIDATED;
    else if (!stream && legacy_conflict(context))
        code = STREAM_CAPTURE_IMPLICIT;
    else
        code = perform(context, operation);
    free_operation(operation);
    return code;
}

static int create(CUhandle *handle, unsigned flags, int priority)
{
    if (!handle || flags > NON_BLOCKING)
        return INVALID_VALUE;
    priority = priority < GREATEST_PRIORITY ? GREATEST_PRIORITY : priority > 0 ? 0 : priority;
    *handle = make_stream(current_context(), flags, priority)->handle;
    return CUDA_SUCCESS;
}

API cuStreamCreate(CUhandle *handle, unsigned flags)
{
    int code = enter(ID_cuStreamCreate);
    return leave(ID_cuStreamCreate, code ? code : create(handle, flags, 0));
}

API cuStreamCreateWithPriority(CUhandle *handle, unsigned flags, int priority)
{
    int code = enter(ID_cuStreamCreateWithPriority);
    return leave(ID_cuStreamCreateWithPriority, code ? code : create(handle, flags, priority));
}

API cuStreamDestroy_v2(CUhandle handle)
{
    int code = enter(ID_cuStreamDestroy_v2);
    if (!code)
        code = find_handle(KIND_STREAM, handle) ? CUDA_SUCCESS : INVALID_HANDLE;
    if (!code)
        drop_handle(handle);
    return leave_with(ID_cuStreamDestroy_v2, code, handle, NULL, 0);
}

/* Waiting for a stream that captures ends the capture. */
static int wait_for(CUhandle handle, int asks)
{
    struct stream *stream;
    struct context *context;
    int code = resolve_stream(handle, &stream, &context);
    if (!code && stream && stream->capture) {
        stream->capture = CAPTURE_INVALIDATED;
        code = STREAM_CAPTURE_UNSUPPORTED;
    }
    if (!code && !stream && legacy_conflict(context))
        code = STREAM_CAPTURE_IMPLICIT;
    if (code)
        return code;
    if (!asks)
        end_past(past_of(stream, context));
    return surface(context);
}

API cuStreamSynchronize(CUhandle handle)
{
    int code = enter(ID_cuStreamSynchronize);
    return leave_with(ID_cuStreamSynchronize, code ? code : wait_for(handle, 0), handle, NULL, 0);
}

API cuStreamQuery(CUhandle handle)
{
    int code = enter(ID_cuStreamQuery);
    return leave_with(ID_cuStreamQuery, code ? code : wait_for(handle, 1), handle, NULL, 0);
}

API cuStreamGetId(CUhandle handle, unsigned long long *id)
{
    struct stream *stream;
    struct context *context;
    int code = enter(ID_cuStreamGetId);
    if (!code)
        code = id ? resolve_stream(handle, &stream, &context) : INVALID_VALUE;
    if (!code)
        *id = stream ? stream->id : (uint64_t)context->device + 1;
    return leave(ID_cuStreamGetId, code);
}

static int get_context(CUhandle handle, CUhandle *result)
{
    struct stream *stream;
    struct context *context;
    int code = result ? resolve_stream(handle, &stream, &context) : INVALID_VALUE;
    if (!code)
        *result = context->handle;
    return code;
}

API cuStreamGetCtx(CUhandle handle, CUhandle *context)
{
    int code = enter(ID_cuStreamGetCtx);
    return leave(ID_cuStreamGetCtx, code ? code : get_context(handle, context));
}

API cuStreamGetCtx_v2(CUhandle handle, CUhandle *context, CUhandle *green)
{
    int code = enter(ID_cuStreamGetCtx_v2);
    if (!code)
        code = get_context(handle, context);
    if (!code && green)
        *green = 0;
    return leave(ID_cuStreamGetCtx_v2, code);
}
