/* Launching: find kernel, context and stream, check, copy every parameter byte, run. */
#include "state.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static kernel_callback callback;

static int check_parameters(void **parameters, void **extra, const struct cubin_kernel *code)
{
    if (extra || (code->parameter_count && !parameters))
        return INVALID_VALUE; /* `extra`, one packed buffer, is not offered */
    for (uint32_t i = 0; i < code->parameter_count; i++)
        if (!parameters[i])
            return INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* A record in one block: the structure, offsets, sizes, attributes, name, parameters. */
static struct launch *record(const CUlaunchConfig *config, const struct kernel *kernel,
                             const struct context *context, void **parameters)
{
    const struct cubin_kernel *code = kernel->code;
    uint32_t n = code->parameter_count, bytes = 0;
    for (uint32_t i = 0; i < n; i++)
        bytes += code->sizes[i];
    size_t attribute_bytes = config->attribute_count * sizeof(CUlaunchAttribute);
    size_t name_bytes = strlen(code->name) + 1;
    struct launch launch = {
        .kernel = NULL, .context = context->handle, .stream = config->stream,
        .device = context->device, .smem_bytes = config->smem_bytes, .parameter_count = n,
        .attribute_count = config->attribute_count, .byte_count = bytes, .library = kernel->library,
    };
    memcpy(launch.grid, config->grid, sizeof launch.grid);
    memcpy(launch.block, config->block, sizeof launch.block);
    struct launch *copy = malloc(sizeof launch + attribute_bytes + 8 * (size_t)n + name_bytes + bytes);
    if (!copy)
        abort();
    CUlaunchAttribute *attributes = (CUlaunchAttribute *)(copy + 1);
    uint32_t *offsets = (uint32_t *)(attributes + config->attribute_count), *sizes = offsets + n;
    char *name = (char *)(sizes + n);
    unsigned char *at = (unsigned char *)name + name_bytes;
    *copy = launch;
    copy->kernel = memcpy(name, code->name, name_bytes);
    copy->attributes = attribute_bytes ? memcpy(attributes, config->attributes, attribute_bytes) : attributes;
    copy->offsets = memcpy(offsets, code->offsets, 4 * (size_t)n);
    copy->sizes = memcpy(sizes, code->sizes, 4 * (size_t)n);
    copy->bytes = at;
    for (uint32_t i = 0; i < n; at += code->sizes[i++])
        memcpy(at, parameters[i], code->sizes[i]);
    return copy;
}

/* The handle may be a kernel, which runs in the context of the stream, or a function. */
static int find_target(CUhandle f, CUhandle stream_handle, struct kernel **kernel,
                       struct stream **stream, struct context **context)
{
    struct function_object *function = find_handle(KIND_FUNCTION, f);
    *kernel = function ? function->kernel : find_handle(KIND_KERNEL, f);
    if (!*kernel)
        return INVALID_HANDLE;
    if (options.strict_context && !current_context())
        return missing_context();
    int code = check_stream(stream_handle, stream, context);
    if (code)
        return code;
    if (function)
        return function->context == *context ? CUDA_SUCCESS : INVALID_HANDLE;
    CUhandle loaded;
    return load_kernel(*kernel, *context, &loaded);
}

static struct launch *check_launch(const CUlaunchConfig *config, CUhandle f, void **parameters,
                                   void **extra, struct stream **stream, struct context **context,
                                   int *code)
{
    struct kernel *kernel;
    unsigned cluster[3];
    *code = config ? find_target(f, config->stream, &kernel, stream, context) : INVALID_VALUE;
    if (!*code)
        *code = check_limits(config, kernel, (*context)->device, cluster);
    if (!*code)
        *code = check_parameters(parameters, extra, kernel->code);
    if (*code)
        return NULL;
    struct launch *launch = record(config, kernel, *context, parameters);
    memcpy(launch->cluster, cluster, sizeof cluster);
    return launch;
}

/* What the hardware finds while the kernel runs: 8 bytes are taken for a pointer, and in larger
 * parameters every tensor map for one. */
static int check_addresses(struct context *context, const struct launch *launch)
{
    const unsigned char *at = launch->bytes;
    int code = CUDA_SUCCESS;
    for (uint32_t i = 0; !code && i < launch->parameter_count; at += launch->sizes[i++]) {
        uint64_t address, bytes;
        if (launch->sizes[i] == 8) {
            memcpy(&address, at, 8);
            code = usable_by_kernel(context, address, 1) ? CUDA_SUCCESS : ILLEGAL_ADDRESS;
        }
        for (uint32_t offset = 0; !code && offset + 128 <= launch->sizes[i]; offset += 64)
            if (map_extent(at + offset, &address, &bytes) &&
                !usable_by_kernel(context, address, bytes))
                code = ILLEGAL_ADDRESS;
    }
    return code;
}

static int call_back(const struct launch *launch)
{
    kernel_callback function = callback;
    if (!function)
        return CUDA_SUCCESS;
    unlock_all();
    int code = function(launch);
    lock_all();
    return code;
}

/* Run a copy of the launch in the context. Errors of the device appear at a later call. */
int run_launch(struct context *context, const struct launch *launch)
{
    struct launch *run = copy_launch(launch);
    int code = options.check_pointers ? check_addresses(context, run) : CUDA_SUCCESS;
    compare_launch(run);
    if (!code && !context->pending && !context->sticky)
        code = call_back(run);
    if (code)
        fail_context(context, code, 0);
    devices[context->device].clock_ns += (uint64_t)options.kernel_ns;
    log_launch(run, code);
    return CUDA_SUCCESS;
}

static int launch_on(const CUlaunchConfig *config, CUhandle f, void **parameters, void **extra)
{
    int code;
    struct stream *stream;
    struct context *context;
    struct launch *launch = check_launch(config, f, parameters, extra, &stream, &context, &code);
    if (code)
        return code;
    struct operation *operation = calloc(1, sizeof *operation);
    operation->what = RUN_LAUNCH;
    operation->launch = launch;
    return submit(stream, context, operation);
}

API cuLaunchKernelEx(const CUlaunchConfig *config, CUhandle f, void **parameters, void **extra)
{
    if (options.raw_speed)
        return CUDA_SUCCESS;
    int code = enter(ID_cuLaunchKernelEx);
    if (!code)
        code = launch_on(config, f, parameters, extra);
    return leave_with(ID_cuLaunchKernelEx, code, config ? config->stream : 0, &f, 1);
}

/* Let a function of the test be the kernel; it runs without the mutex, in the launching thread. */
void standin_callback(kernel_callback function)
{
    lock_all();
    callback = function;
    unlock_all();
}
