/* Contexts: the primary one of each device, those that a program makes, the stack of each thread. */
#include "state.h"

#include <stdlib.h>
#include <string.h>

enum { STACK = 64 };

static struct context *primary[MAX_DEVICES];
static unsigned primary_flags[MAX_DEVICES];

/* Of this thread. Handles, because another thread may destroy what they stand for. */
static _Thread_local CUhandle stack[STACK];
static _Thread_local int depth;
static _Thread_local uint64_t stack_epoch;
static uint64_t epoch; /* number of resets */

static void forget_old_stack(void)
{
    if (stack_epoch != epoch)
        depth = 0;
    stack_epoch = epoch;
}

struct context *current_context(void)
{
    forget_old_stack();
    return depth ? find_handle(KIND_CONTEXT, stack[depth - 1]) : NULL;
}

/* Why there is no current context: none was set, or the one that was is gone. */
int missing_context(void)
{
    forget_old_stack();
    return depth ? CONTEXT_IS_DESTROYED : INVALID_CONTEXT;
}

static struct context *make_context(CUdevice device, int references, unsigned flags)
{
    struct context *context = calloc(1, sizeof *context);
    context->device = device;
    context->references = references;
    context->flags = flags;
    context->handle = add_handle(KIND_CONTEXT, context);
    return context;
}

/* Streams, events and memory of a context go with it. */
static void destroy(struct context *context)
{
    size_t at = 0;
    struct stream *stream;
    while ((stream = next_handle(KIND_STREAM, &at)))
        if (stream->context == context)
            drop_handle(stream->handle);
    at = 0;
    struct function_object *function;
    while ((function = next_handle(KIND_FUNCTION, &at)))
        if (function->context == context) {
            function->kernel->functions[context->device] = 0;
            drop_handle(function->handle);
        }
    release_context_memory(context);
    drop_handle(context->handle);
    if (primary[context->device] == context)
        primary[context->device] = NULL;
}

void reset_contexts(void)
{
    memset(primary, 0, sizeof primary);
    memset(primary_flags, 0, sizeof primary_flags);
    epoch++;
}

static int bad_device(CUdevice device)
{
    return device < 0 || device >= device_count;
}

API cuDevicePrimaryCtxRetain(CUhandle *context, CUdevice device)
{
    int code = enter(ID_cuDevicePrimaryCtxRetain);
    if (!code)
        code = !context ? INVALID_VALUE : bad_device(device) ? INVALID_DEVICE : CUDA_SUCCESS;
    if (!code) {
        if (!primary[device])
            primary[device] = make_context(device, 0, primary_flags[device]);
        primary[device]->references++;
        *context = primary[device]->handle;
    }
    return leave(ID_cuDevicePrimaryCtxRetain, code);
}

API cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    int code = enter(ID_cuDevicePrimaryCtxReset_v2);
    if (!code)
        code = bad_device(device) ? INVALID_DEVICE : CUDA_SUCCESS;
    if (!code && primary[device])
        destroy(primary[device]);
    return leave(ID_cuDevicePrimaryCtxReset_v2, code);
}

API cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    int code = enter(ID_cuDevicePrimaryCtxGetState);
    if (!code)
        code = !flags || !active ? INVALID_VALUE : bad_device(device) ? INVALID_DEVICE : CUDA_SUCCESS;
    if (!code) {
        *flags = primary_flags[device];
        *active = primary[device] != NULL;
    }
    return leave(ID_cuDevicePrimaryCtxGetState, code);
}

static int push(CUhandle handle)
{
    forget_old_stack();
    if (!find_handle(KIND_CONTEXT, handle))
        return INVALID_CONTEXT;
    if (depth == STACK)
        return OUT_OF_MEMORY;
    stack[depth++] = handle;
    return CUDA_SUCCESS;
}

static int create(CUhandle *context, unsigned flags, CUdevice device)
{
    if (!context)
        return INVALID_VALUE;
    if (bad_device(device))
        return INVALID_DEVICE;
    *context = make_context(device, -1, flags)->handle;
    return push(*context);
}

API cuCtxCreate_v2(CUhandle *context, unsigned flags, CUdevice device)
{
    int code = enter(ID_cuCtxCreate_v2);
    return leave(ID_cuCtxCreate_v2, code ? code : create(context, flags, device));
}

API cuCtxCreate_v4(CUhandle *context, const void *parameters, unsigned flags, CUdevice device)
{
    int code = enter(ID_cuCtxCreate_v4);
    if (!code && parameters)
        code = NOT_SUPPORTED; /* execution affinity and graphics: not here */
    return leave(ID_cuCtxCreate_v4, code ? code : create(context, flags, device));
}

API cuCtxDestroy_v2(CUhandle handle)
{
    int code = enter(ID_cuCtxDestroy_v2);
    struct context *context = find_handle(KIND_CONTEXT, handle);
    if (!code)
        code = !context || context->references >= 0 ? INVALID_CONTEXT : CUDA_SUCCESS;
    if (!code) {
        if (depth && stack[depth - 1] == handle)
            depth--;
        destroy(context);
    }
    return leave(ID_cuCtxDestroy_v2, code);
}

API cuCtxGetCurrent(CUhandle *context)
{
    int code = enter(ID_cuCtxGetCurrent);
    if (!code && !context)
        code = INVALID_VALUE;
    if (!code) {
        forget_old_stack();
        *context = depth ? stack[depth - 1] : 0;
    }
    return leave(ID_cuCtxGetCurrent, code);
}

API cuCtxSetCurrent(CUhandle handle)
{
    int code = enter(ID_cuCtxSetCurrent);
    if (!code) {
        forget_old_stack();
        if (handle && !find_handle(KIND_CONTEXT, handle))
            code = INVALID_CONTEXT;
        else if (!handle)
            depth -= depth > 0;
        else if (depth)
            stack[depth - 1] = handle;
        else
            code = push(handle);
    }
    return leave_with(ID_cuCtxSetCurrent, code, 0, &handle, 1);
}

API cuCtxPushCurrent_v2(CUhandle handle)
{
    int code = enter(ID_cuCtxPushCurrent_v2);
    return leave_with(ID_cuCtxPushCurrent_v2, code ? code : push(handle), 0, &handle, 1);
}

API cuCtxPopCurrent_v2(CUhandle *context)
{
    int code = enter(ID_cuCtxPopCurrent_v2);
    forget_old_stack();
    if (!code && !depth)
        code = INVALID_CONTEXT;
    if (!code) {
        depth--;
        if (context)
            *context = stack[depth];
    }
    return leave(ID_cuCtxPopCurrent_v2, code);
}

static int device_of(CUdevice *device, struct context *context)
{
    if (!device)
        return INVALID_VALUE;
    if (!context)
        return INVALID_CONTEXT;
    *device = context->device;
    return CUDA_SUCCESS;
}

API cuCtxGetDevice(CUdevice *device)
{
    int code = enter(ID_cuCtxGetDevice);
    return leave(ID_cuCtxGetDevice, code ? code : device_of(device, current_context()));
}

API cuCtxSynchronize(void)
{
    int code = enter(ID_cuCtxSynchronize);
    if (!code)
        end_everything();
    return leave(ID_cuCtxSynchronize, code ? code : surface(current_context()));
}

int standin_break_context(int device, int code, int sticky)
{
    if (bad_device(device) || !primary[device])
        return INVALID_CONTEXT;
    lock_all();
    fail_context(primary[device], code, sticky);
    unlock_all();
    return CUDA_SUCCESS;
}
