/* Operations of streams, and graphs: lists of operations in the order of their capture. */
#include "state.h"

#include <stdlib.h>
#include <string.h>

static void fill(const struct operation *operation)
{
    unsigned char *at = (unsigned char *)operation->target;
    if (operation->width == 1)
        memset(at, (int)operation->value, operation->bytes);
    for (size_t i = 0; operation->width > 1 && i < operation->bytes; i += operation->width)
        memcpy(at + i, &operation->value, operation->width);
}

static void run(struct context *context, const struct operation *operation)
{
    if (operation->what == RUN_LAUNCH)
        run_launch(context, operation->launch);
    else if (operation->what == RUN_COPY)
        memmove((void *)operation->target, (const void *)operation->source, operation->bytes);
    else
        fill(operation);
}

int perform(struct context *context, const struct operation *operation)
{
    if (!context->pending && !context->sticky)
        run(context, operation);
    else if (operation->what == RUN_LAUNCH)
        log_launch(copy_launch(operation->launch), context->pending | context->sticky);
    return CUDA_SUCCESS;
}

void free_operation(struct operation *operation)
{
    free(operation->launch);
    free(operation);
}

API cuGraphInstantiateWithFlags(CUhandle *exec, CUhandle handle, unsigned long long flags)
{
    int code = enter(ID_cuGraphInstantiateWithFlags);
    struct graph *graph = find_handle(KIND_GRAPH, handle);
    if (!code)
        code = !exec || !graph || flags > 15 ? INVALID_VALUE : CUDA_SUCCESS;
    if (!code)
        *exec = add_handle(KIND_GRAPH_EXEC, graph);
    return leave(ID_cuGraphInstantiateWithFlags, code);
}

/* Memory that a node uses may have gone since the capture, and the library of a kernel. */
static int still_there(struct context *context, const struct operation *operation)
{
    if (operation->what == RUN_LAUNCH) {
        const struct library *library = operation->launch->library;
        return find_handle(KIND_LIBRARY, library->handle) == library;
    }
    if (operation->what == RUN_FILL)
        return usable(context, operation->target, operation->bytes);
    return usable(context, operation->target, operation->bytes) ||
           usable(context, operation->source, operation->bytes);
}

static int launch_graph(struct graph *graph, CUhandle stream_handle)
{
    struct stream *stream;
    struct context *context;
    int code = check_stream(stream_handle, &stream, &context);
    if (code)
        return code;
    if (stream && stream->capture)
        return NOT_SUPPORTED; /* graphs within graphs: not here */
    for (struct operation *at = graph->first; at; at = at->next) {
        if (!still_there(graph->context, at)) {
            fail_context(graph->context, ILLEGAL_ADDRESS, 0);
            continue;
        }
        if (at->launch)
            at->launch->replayed = 1;
        perform(graph->context, at);
    }
    return CUDA_SUCCESS;
}

API cuGraphLaunch(CUhandle exec, CUhandle stream)
{
    if (options.raw_speed)
        return CUDA_SUCCESS;
    int code = enter(ID_cuGraphLaunch);
    struct graph *graph = find_handle(KIND_GRAPH_EXEC, exec);
    if (!code)
        code = graph ? launch_graph(graph, stream) : INVALID_VALUE;
    return leave_with(ID_cuGraphLaunch, code, stream, &exec, 1);
}

/* The number of nodes; their handles are not given, since nothing else takes one here. */
API cuGraphGetNodes(CUhandle handle, CUhandle *nodes, size_t *count)
{
    int code = enter(ID_cuGraphGetNodes);
    struct graph *graph = find_handle(KIND_GRAPH, handle);
    if (!code)
        code = !graph || !count ? INVALID_VALUE : nodes ? NOT_SUPPORTED : CUDA_SUCCESS;
    if (!code)
        *count = graph->nodes;
    return leave(ID_cuGraphGetNodes, code);
}

API cuGraphDestroy(CUhandle handle)
{
    int code = enter(ID_cuGraphDestroy);
    if (!code)
        code = find_handle(KIND_GRAPH, handle) ? CUDA_SUCCESS : INVALID_VALUE;
    if (!code)
        drop_handle(handle);
    return leave(ID_cuGraphDestroy, code);
}

API cuGraphExecDestroy(CUhandle handle)
{
    int code = enter(ID_cuGraphExecDestroy);
    if (!code)
        code = find_handle(KIND_GRAPH_EXEC, handle) ? CUDA_SUCCESS : INVALID_VALUE;
    if (!code)
        drop_handle(handle);
    return leave(ID_cuGraphExecDestroy, code);
}
